"""The gateways' benchmark counts acknowledged messages, and its raw client is a client like others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from benchmarks.clients import gateway_bench
from benchmarks.kits.grpc_pump import GrpcPump, grpc_message

from tests.bench.test_bench import assert_flat_and_finite, number
from tests.patience import patient
from tidelog.errors import BadMessage
from tidelog.transports.grpc.server import GrpcServer

KEYS = {
    "publish_async_per_s",
    "publish_async_leader_1_per_s",
    "publish_async_leader_4_per_s",
    "publish_async_all_1_per_s",
    "publish_async_all_4_per_s",
    "subscribe_per_s",
    "api_vs_native",
    "subscribe_vs_native",
    "echo_per_s",
    "api_vs_echo",
    "grpcio_echo_per_s",
    "api_vs_grpcio_echo",
    "grpcio_publish_per_s",
    "keyed_vs_plain",
    "spread_vs_plain",
    "nats_transport_vs_link",
}
TINY = gateway_bench.GatewaySizes(rounds=1, seconds=0.3, warm_up_s=0.1, records=5_000, grpcio_records=1_000)


@pytest.mark.slow
def test_gateway_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = gateway_bench.bench_gateway(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert results.keys() >= KEYS
    for key in KEYS:
        assert number(results, key) > 0, key
    assert number(results, "nats_fallbacks") == 0
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


def _handlers() -> grpc.GenericRpcHandler:
    async def echo(requests: Any, context: Any) -> None:
        while batch := await requests.read_batch():
            await context.write_batch(batch)

    return grpc.method_handlers_generic_handler("a.B", {"echo": grpc.stream_stream_rpc_method_handler(echo)})


@pytest.mark.parametrize("is_theirs", [False, True])
async def test_the_raw_client_is_understood_by_our_server_and_by_grpcios(is_theirs: bool) -> None:
    """More than every window holds, so that windows are kept on both sides."""
    message = grpc_message(bytes(1_000))

    async def echo(requests: Any, context: Any) -> None:
        async for one in requests:
            await context.write(one)

    async with asyncio.timeout(patient(60)):
        server: Any
        if is_theirs:
            methods = {"echo": grpc.stream_stream_rpc_method_handler(echo)}
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", methods),))
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            server = GrpcServer([_handlers()])
            port = server.bind("127.0.0.1", 0)
        await server.start()
        pump = await GrpcPump.dial("127.0.0.1", port, "/a.B/echo")
        for _ in range(20):
            await pump.send(message * 100)
        while pump.answers < 2_000:
            await pump.wait_changed()
        pump.end()
        while not pump.is_closed:
            await pump.wait_changed()
        with pytest.raises(BadMessage, match="ended"):
            await pump.wait_changed()
        assert (pump.answers, pump.trailers[b"grpc-status"]) == (2_000, b"0")
        pump.close()
        await server.stop(0.1)
