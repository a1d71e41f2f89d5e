"""Three node processes, one of them killed: messages acked by the other gateways are there, once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import grpc
import pytest

from tests.gateways.gateway_kit import FORM_S, HOST, Api, NodeProcess, dialled, run
from tests.patience import patient
from tests.ports import free_port
from tidelog.codecs.proto import liftbridge_pb2 as pb

COUNT = 1_500
KILL_AT = 500


async def leader_of(api: Api) -> str:
    answer = await api(pb.FetchMetadataRequest(streams=["foo"]))
    return str(answer.streamMetadata[0].partitions[0].leader)


async def created(api: Api) -> None:
    """As soon as all three nodes are there."""
    give_up = time.monotonic() + patient(FORM_S)
    while True:
        try:
            await api.create("foo", replicationFactor=3)
            return
        except grpc.aio.AioRpcError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.05)


async def publish(api: Api, acked: dict[str, int], node: NodeProcess) -> list[str]:
    """Publishes all, and kills the node on the way; returns what was refused."""
    call = api.publish_async()
    refused = []

    async def send() -> None:
        for number in range(COUNT):
            name = str(number)
            await call.write(pb.PublishRequest(stream="foo", value=name.encode(), correlationId=name, ackPolicy=pb.ALL))
            if number == KILL_AT:
                node.kill()
        await call.done_writing()

    sending = asyncio.ensure_future(send())
    for _ in range(COUNT):
        answer = await call.read()
        if answer.HasField("asyncError"):
            refused.append(answer.correlationId)
        else:
            acked[answer.ack.correlationId] = answer.ack.offset
    await sending
    return refused


@pytest.mark.slow
def test_acked_messages_outlive_a_killed_leader(tmp_path: Path) -> None:
    peers = {name: f"{HOST}:{free_port()}" for name in ("n1", "n2", "n3")}
    nodes = {name: NodeProcess(tmp_path, name, peers) for name in peers}

    async def scenario() -> None:
        async with dialled(nodes["n1"].port) as api:
            await created(api)
            leader = await leader_of(api)
        others = [node for name, node in nodes.items() if name != leader]
        acked: dict[str, int] = {}
        async with dialled(others[0].port) as api, dialled(others[1].port) as second:
            refused = await publish(api, acked, nodes[leader])
            assert len(acked) + len(refused) == COUNT, "each is answered once"
            assert len(acked) > KILL_AT
            new_leader = await leader_of(api)
            assert new_leader != leader
            reader = api if new_leader == others[0].name else second
            messages, _ = await reader.read("foo", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        at = {message.value.decode(): message.offset for message in messages}
        assert len(at) == len(messages), "none is there twice"
        assert {name: at.get(name) for name in acked} == acked
        numbers = [int(message.value) for message in messages]
        assert numbers == sorted(numbers)

    with contextlib.ExitStack() as stack:
        for node in nodes.values():
            stack.callback(node.kill)
            node.start()
        for node in nodes.values():
            node.wait_served()
        run(scenario())
