"""The other processes of `tidelog bench doors`: publishers, subscribers, and servers that only echo.

    python -m benchmarks.clients.gateway_parties '{"role": "publish", ...}'

A server prints its port and serves until its standard input ends. A client prints a line when it is connected, begins
when it is given one, and prints what it measured as JSON. There are three kinds of clients: `raw` (see `grpc_pump`),
`grpcio` (the field's own, made from our .proto), and `native`.

CGP1  A message counts when its answer has come; what was sent is answered before a publisher ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks.kits.client_floor import tls_context
from benchmarks.kits.cluster_kit import HOST, OPERATOR
from benchmarks.kits.grpc_pump import GrpcPump, grpc_message
from tidelog.client import Client, Producer, connect
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.errors import QueueFull
from tidelog.transports.grpc.server import GrpcServer
from tidelog.transports.link.link import LinkTlsFiles

VALUE_BYTES: Final = 256
IN_FLIGHT: Final = 4_096
"""Messages of a publisher without an answer; a gateway lets a stream have twice as many."""
PACED_PER_S: Final = 500
_CHUNK: Final = 64
_BURST: Final = 500
_PUBLISH: Final = "/proto.API/PublishAsync"
_SUBSCRIBE: Final = "/proto.API/Subscribe"
_ANSWER: Final = pb.PublishResponse(ack=pb.Ack(stream="bench", offset=2**40), correlationId="c").SerializeToString()


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """What a process is to do."""

    role: str
    kind: str
    certificates: str
    name: str = OPERATOR
    """Whose certificate it shows."""
    addresses: tuple[str, ...] = ()
    """The addresses of the nodes, for native clients."""
    port: int = 0
    """The address of the gateway."""
    stream: str = ""
    policy: int = 0
    warm_up_s: float = 0.0
    seconds: float = 0.0
    records: int = 0
    """To subscribe to."""
    is_keyed: bool = False
    """Whether messages have a key."""
    partitions: int = 1
    """Messages go to one after the other."""

    def told(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    records: int
    seconds: float
    acked: int
    """In all, also before and after what was measured."""
    p50_ms: float = 0.0
    """From sending a message to its answer, where that is measured."""
    p99_ms: float = 0.0


# --- publishers ------------------------------------------------------------------------------------------


def _request(party: Party, partition: int = 0) -> bytes:
    value = os.urandom(VALUE_BYTES)
    return pb.PublishRequest(
        stream=party.stream,
        partition=partition,
        value=value,
        ackPolicy=party.policy,  # type: ignore[arg-type]
        correlationId="c",
        key=b"key" if party.is_keyed else b"",
        expectedOffset=-1,
    ).SerializeToString()


async def _publish_paced(party: Party) -> Measured:
    """`PACED_PER_S` messages a second, each sent when it is due, whatever has been answered: a stall is met by all that
    are due meanwhile, as it is by publishers that do not wait for each other."""
    message = grpc_message(_request(party))
    pump = await GrpcPump.dial(HOST, party.port, _PUBLISH, tls=_tls(party))
    await _begin()
    warm_up = int(PACED_PER_S * party.warm_up_s)
    count = warm_up + int(PACED_PER_S * party.seconds)
    sent_s: list[float] = []
    waits_s: list[float] = []

    async def send() -> None:
        began_s = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, began_s + number / PACED_PER_S - time.perf_counter()))
            sent_s.append(time.perf_counter())
            await pump.send(message)

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        while len(waits_s) < count:
            await pump.wait_changed()
            now_s = time.perf_counter()
            waits_s += [now_s - sent_s[number] for number in range(len(waits_s), pump.answers)]
    pump.close()
    measured = sorted(waits_s[warm_up:])
    p50_s, p99_s = (measured[int(part * (len(measured) - 1))] for part in (0.5, 0.99))
    return Measured(
        records=len(measured), seconds=party.seconds, acked=count, p50_ms=p50_s * 1_000, p99_ms=p99_s * 1_000
    )


async def _publish_raw(party: Party) -> Measured:
    messages = [grpc_message(_request(party, partition)) for partition in range(party.partitions)]
    chunk = b"".join(messages[number % party.partitions] for number in range(_CHUNK))
    pump = await GrpcPump.dial(HOST, party.port, _PUBLISH, tls=_tls(party))
    await _begin()
    sent, ends = 0, time.perf_counter() + party.warm_up_s + party.seconds

    async def send() -> None:
        nonlocal sent
        while time.perf_counter() < ends:
            while sent - pump.answers >= IN_FLIGHT:
                await pump.wait_changed()
            await pump.send(chunk)
            sent += _CHUNK
            await asyncio.sleep(0)
        while pump.answers < sent:
            await pump.wait_changed()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        await asyncio.sleep(party.warm_up_s)
        before, start = pump.answers, time.perf_counter()
        await asyncio.sleep(party.seconds)
        records, elapsed = pump.answers - before, time.perf_counter() - start
    pump.close()
    return Measured(records=records, seconds=elapsed, acked=pump.answers)


def _publish_grpcio(party: Party) -> Measured:
    data, room = _request(party), threading.Semaphore(IN_FLIGHT)
    with _channel(party) as channel:
        asyncio.run(_begin())
        start = time.perf_counter() + party.warm_up_s
        ends = start + party.seconds

        def requests() -> Iterator[bytes]:
            while time.perf_counter() < ends:
                room.acquire()
                yield data

        answers = before = in_time = 0
        for _ in channel.stream_stream(_PUBLISH)(requests()):
            room.release()
            answers += 1
            now = time.perf_counter()
            if now < start:
                before = answers
            elif now < ends:
                in_time = answers
    return Measured(records=in_time - before, seconds=party.seconds, acked=answers)


async def _publish_native(party: Party) -> Measured:
    """Record by record, as the gateway's clients do."""
    acks = "all" if party.policy == pb.ALL else "leader"
    values = [os.urandom(VALUE_BYTES) for _ in range(_BURST)]
    async with await _client(party) as client, client.producer(party.stream, acks=acks) as producer:
        await producer.send(values[0])  # finds the leader and opens the producer
        await _begin()
        warm = await _send_for(producer, values, party.warm_up_s)
        start = time.perf_counter()
        sent = await _send_for(producer, values, party.seconds)
        elapsed = time.perf_counter() - start
    return Measured(records=sent, seconds=elapsed, acked=1 + warm + sent)


async def _send_for(producer: Producer, values: list[bytes], seconds: float) -> int:
    sent, ends = 0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        try:
            for value in values:
                producer.send(value)
                sent += 1
        except QueueFull:
            await producer.send_room(len(values) * VALUE_BYTES)
        await asyncio.sleep(0)
    await producer.flush()
    return sent


# --- subscribers -----------------------------------------------------------------------------------------


def _subscription(party: Party) -> bytes:
    return pb.SubscribeRequest(
        stream=party.stream, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST
    ).SerializeToString()


async def _subscribe_raw(party: Party) -> Measured:
    pump = await GrpcPump.dial(HOST, party.port, _SUBSCRIBE, tls=_tls(party))
    await _begin()
    start = time.perf_counter()
    await pump.send(grpc_message(_subscription(party)))
    pump.end()
    while pump.answers <= party.records:  # the first message is the empty one
        await pump.wait_changed()
    elapsed = time.perf_counter() - start
    pump.close()
    return Measured(records=party.records, seconds=elapsed, acked=0)


def _subscribe_grpcio(party: Party) -> Measured:
    with _channel(party) as channel:
        asyncio.run(_begin())
        start = time.perf_counter()
        call = channel.unary_stream(_SUBSCRIBE)(_subscription(party))
        for _ in range(party.records + 1):
            next(call)
        elapsed = time.perf_counter() - start
        call.cancel()
    return Measured(records=party.records, seconds=elapsed, acked=0)


async def _subscribe_native(party: Party) -> Measured:
    async with await _client(party) as client:
        await _begin()
        start = time.perf_counter()
        seen = 0
        async with client.reader(party.stream, start="earliest") as reader:
            async for _ in reader:
                seen += 1
                if seen >= party.records:
                    break
        elapsed = time.perf_counter() - start
    return Measured(records=party.records, seconds=elapsed, acked=0)


# --- servers ---------------------------------------------------------------------------------------------


async def _echo_ours(party: Party) -> None:
    async def echo(requests: Any, context: Any) -> None:
        while batch := await requests.read_batch():
            await context.write_batch([_ANSWER] * len(batch))

    server = GrpcServer(_handlers(echo))
    port = server.bind(HOST, 0)
    tls = tls_context(Path(party.certificates), party.name, server_side=True)
    tls.set_alpn_protocols(["h2"])
    await server.start(tls)
    _say(port)
    await _input_ends()
    await server.stop(0)


async def _echo_grpcio(party: Party) -> None:
    async def echo(requests: Any, context: Any) -> None:
        async for _ in requests:
            await context.write(_ANSWER)

    place = Path(party.certificates)
    key, certificate, authority = (
        (place / file).read_bytes() for file in (f"{party.name}.key", f"{party.name}.crt", "ca.crt")
    )
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(_handlers(echo))
    _say(server.add_secure_port(f"{HOST}:0", credentials))
    await server.start()
    await _input_ends()
    await server.stop(0)


def _handlers(echo: Any) -> tuple[grpc.GenericRpcHandler, ...]:
    methods = {"PublishAsync": grpc.stream_stream_rpc_method_handler(echo)}
    return (grpc.method_handlers_generic_handler("proto.API", methods),)


# --- what all need -----------------------------------------------------------------------------------------


def _tls(party: Party) -> ssl.SSLContext:
    context = tls_context(Path(party.certificates), party.name, server_side=False)
    context.set_alpn_protocols(["h2"])
    return context


def _channel(party: Party) -> grpc.Channel:
    place = Path(party.certificates)
    authority, key, certificate = (
        (place / file).read_bytes() for file in ("ca.crt", f"{party.name}.key", f"{party.name}.crt")
    )
    channel = grpc.secure_channel(f"{HOST}:{party.port}", grpc.ssl_channel_credentials(authority, key, certificate))
    grpc.channel_ready_future(channel).result(timeout=30)
    return channel


async def _client(party: Party) -> Client:
    place = Path(party.certificates)
    files = LinkTlsFiles(
        certificate=place / f"{party.name}.crt", key=place / f"{party.name}.key", authority=place / "ca.crt"
    )
    return await connect(list(party.addresses), tls=files)


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def _begin() -> None:
    """Ready; wait for the word."""
    _say("ready")
    await asyncio.to_thread(sys.stdin.readline)


async def _input_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)


_ROLES: Final[dict[tuple[str, str], Any]] = {
    ("publish", "raw"): _publish_raw,
    ("publish", "paced"): _publish_paced,
    ("publish", "grpcio"): _publish_grpcio,
    ("publish", "native"): _publish_native,
    ("subscribe", "raw"): _subscribe_raw,
    ("subscribe", "grpcio"): _subscribe_grpcio,
    ("subscribe", "native"): _subscribe_native,
    ("echo", "raw"): _echo_ours,
    ("echo", "grpcio"): _echo_grpcio,
}


def main(told: str) -> None:
    party = Party(**json.loads(told))
    done = _ROLES[party.role, party.kind](party)
    if asyncio.iscoroutine(done):
        done = asyncio.run(done)
    if isinstance(done, Measured):
        _say(json.dumps(asdict(done)))


if __name__ == "__main__":
    main(sys.argv[1])
