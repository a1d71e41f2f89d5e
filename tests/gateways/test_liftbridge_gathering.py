"""Messages that come together are handed on together, whatever they look like and wherever they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.kits.grpc_pump import GrpcPump, grpc_message

from tests.gateways.gateway_kit import HOST, dialled, opened
from tidelog.client.records import holds_data
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.gateways.liftbridge.producers import GatewayProducers

MESSAGES = 300
READS_MAX = 4
"""The reads of the socket that one write may need: a few kilobytes each."""


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("partitions", [1, 6])
async def test_messages_of_all_shapes_for_all_partitions_become_few_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool, partitions: int
) -> None:
    handed: list[int] = []
    send, send_run = GatewayProducers.send, GatewayProducers.send_run

    def counted(self: GatewayProducers, *arguments: Any, **named: Any) -> None:
        handed.append(1)
        send(self, *arguments, **named)

    def counted_run(
        self: GatewayProducers, record: Any, policy: int, messages: Any, answered: Any, **named: Any
    ) -> None:
        handed.append(len(messages))
        send_run(self, record, policy, messages, answered, **named)

    monkeypatch.setattr(GatewayProducers, "send", counted)
    monkeypatch.setattr(GatewayProducers, "send_run", counted_run)

    def request(number: int) -> bytes:
        key = b"k%d" % number if keyed else b""
        headers = {"h": b"1"} if keyed and number % 7 == 0 else {}
        message = pb.PublishRequest(
            stream="foo", partition=number % partitions, value=b"%d" % number, key=key, headers=headers
        )
        return grpc_message(message.SerializeToString())

    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=partitions)
        for partition in range(partitions):
            await api.publish("foo", b"finds the leader and opens the producer", partition=partition, policy=pb.LEADER)
        handed.clear()
        pump = await GrpcPump.dial(HOST, cluster.port("n1"), "/proto.API/PublishAsync")
        await pump.send(b"".join(map(request, range(MESSAGES))))
        while pump.answers < MESSAGES:
            await pump.wait_changed()
        pump.close()
        assert sum(handed) == MESSAGES
        assert partitions <= len(handed) <= READS_MAX * partitions
        client = cluster.gateways["n1"]._client
        assert client is not None
        for partition in range(partitions):
            name = f"foo/{partition}" if partition else "foo"
            end = (await client.offsets(name)).committed_end
            blocks = [block async for block in client.fetch(name, range(end)) if holds_data(block)]
            assert len(blocks) <= 1 + READS_MAX
