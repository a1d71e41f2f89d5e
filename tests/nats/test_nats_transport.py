"""Three nodes in this process whose replicas speak over a real nats-server, and what happens when that is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.cluster.test_node import Trio
from tests.patience import patient, wait_until
from tests.transports.nats_server import NatsServer
from tidelog.client import Client, connect
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.cluster.status.node_metrics import fill_node_metrics
from tidelog.errors import LogError
from tidelog.http.metrics import Metrics
from tidelog.transports.nats.connection import NatsConnection, NatsMessage, NatsOptions
from tidelog.units import KIB, MIB

DEADLINE_S = 60.0
NOBODY = "nats://127.0.0.1:1"
"""Where no server listens."""


class NatsTrio(Trio):
    """n1, n2 and n3 with a server between them, unless one is told to use another."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        super().__init__(folder)
        self.server = server

    async def start_over(self, name: str, *, url: str | None = None, transport: Any = "nats") -> Node:
        options = NodeProcessOptions(
            node=name,
            listen=self.peers[name],
            peers=self.peers,
            data_dir=self.folder / name,
            insecure_dev=True,
            host=name,
            nats=NatsOptions(servers=(url or self.server.url,), name=name),
            transport=transport,
        )
        node = Node(options, log=lambda line: self.lines.append(f"{name} {line}"))
        await node.start()
        self.nodes[name] = node
        return node

    def says(self, name: str) -> dict[str, Any]:
        """The status of a node's transport."""
        status: dict[str, Any] = self.nodes[name].status()["transport"]
        return status

    def count(self, key: str) -> int:
        return sum(self.says(name).get(key, 0) for name in self.nodes)

    def are_up(self, *names: str) -> bool:
        return all(self.says(name)["up"] for name in names or self.nodes)

    def leader_of(self, channel: str) -> str | None:
        for name, node in self.nodes.items():
            for replica in node.core.channels.replicas.replicas():
                if replica.name == channel and replica.leading is not None:
                    return name
        return None

    def is_whole(self, channel: str) -> bool:
        catalog = next(iter(self.nodes.values())).core.catalog
        record = None if catalog is None else catalog.channel(channel)
        return record is not None and set(record.isr_nodes) == set(self.peers)

    def levels(self, channel: str) -> list[tuple[int, int]]:
        return [
            (replica.held_end, replica.committed_end)
            for node in self.nodes.values()
            for replica in node.core.channels.replicas.replicas()
            if replica.name == channel
        ]

    def is_level(self, channel: str) -> bool:
        return len(set(self.levels(channel))) == 1


@contextlib.asynccontextmanager
async def running(
    folder: Path, *, config: str = "", start: Callable[[NatsTrio, str], Coroutine[Any, Any, Any]] | None = None
) -> AsyncIterator[tuple[NatsTrio, Client]]:
    with NatsServer(folder / "nats", config=config) as server:
        trio = NatsTrio(folder, server)
        try:
            for name in trio.peers:
                await (trio.start_over(name) if start is None else start(trio, name))
            await wait_until(trio.is_formed, f"three voters; {trio.lines}")
            async with await connect(list(trio.peers.values()), insecure_dev=True) as client:
                await client.create_channel("foo", factor=3)
                await wait_until(lambda: trio.is_whole("foo"), "all replicas are in sync")
                await wait_until(lambda: trio.leader_of("foo") is not None, "the channel is led")
                yield trio, client
        finally:
            for name in list(trio.nodes):
                await trio.stop(name)


async def produce(client: Client, count: int, *, size: int = 100) -> None:
    """So many records, each acknowledged by all replicas."""
    async with client.producer("foo", acks="all") as producer:
        for _ in range(count):
            await producer.send(value=bytes(size))


async def until_over_nats(trio: NatsTrio, client: Client, count: int, *, size: int = 100) -> None:
    """Until so many records went through without a message by link; a machine under load may need a second try."""
    async with asyncio.timeout(patient(DEADLINE_S)):
        while True:
            fallbacks, sent = trio.count("fallbacks"), trio.count("sent")
            await produce(client, count, size=size)
            if trio.count("fallbacks") == fallbacks:
                assert trio.count("sent") >= sent + 2 * count
                return


# --- bytes on the server -------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def fields(replica: str, offset: int, epoch: int) -> bytes:
    """What Liftbridge writes of a request, by hand; a proto3 field that is zero is not there."""
    written = b"\x0a" + varint(len(replica)) + replica.encode()
    if offset:
        written += b"\x10" + varint(offset)
    return written + b"\x18" + varint(epoch)


def test_the_hand_written_bytes_are_those_of_the_reference() -> None:
    assert fields("b", 41, 7).hex() == "0a016210291807"
    assert fields("b", -1, 7).hex() == "0a016210ffffffffffffffffff011807"


@contextlib.asynccontextmanager
async def subscriber(url: str) -> AsyncIterator[list[NatsMessage]]:
    """All that passes through the server."""
    seen: list[NatsMessage] = []
    up = asyncio.Event()
    connection = NatsConnection(NatsOptions(servers=(url,)), on_up=up.set, on_down=lambda _: None, log=lambda _: None)
    for subject in ("tidelog-default.>", "_INBOX.>"):
        connection.subscribe(subject, seen.extend)
    await connection.start()
    try:
        async with asyncio.timeout(patient(DEADLINE_S)):
            await up.wait()
        yield seen
    finally:
        await connection.close()


async def test_a_subscriber_on_the_server_sees_the_bytes_of_liftbridge(tmp_path: Path) -> None:
    async with running(tmp_path) as (trio, client):
        leader = trio.leader_of("foo")
        assert leader is not None
        await produce(client, 1)
        await wait_until(lambda: trio.is_level("foo"), "all replicas are level")
        record = trio.nodes[leader].core.channels.replicas.replicas()[0]
        assert record.leading is not None
        epoch, end = record.leading.epoch, record.log_end
        async with subscriber(trio.server.url) as seen:
            await produce(client, 3)
            await wait_until(lambda: trio.is_level("foo"), "all replicas are level")
            other = next(name for name in trio.nodes if name != leader)
            trio.nodes[leader].driver.ask_again()
            begin = bytes.fromhex("b90e43b400080002") + fields(other, end, epoch)
            notify = bytes.fromhex("b90e43b40008000e0a03666f6f")

            def has(subject: str, begins: bytes) -> bool:
                return any(one.subject == subject and one.payload.startswith(begins) for one in seen)

            await wait_until(lambda: has("tidelog-default.foo.0.replicate", begin), "a request")
            await wait_until(lambda: has(f"tidelog-default.notify.{other}", notify), "a notification")
            answer = bytes.fromhex("b90e43b400080003") + epoch.to_bytes(8, "big") + (end - 1).to_bytes(8, "big")
            await wait_until(
                lambda: any(one.subject.startswith("_INBOX.") and one.payload.startswith(answer) for one in seen),
                "an answer",
            )
            assert all(one.reply.startswith("_INBOX.") for one in seen if one.subject.endswith(".replicate"))
            await elect(trio, client, other)
            question = bytes.fromhex("b90e43b40008000608") + varint(epoch)
            await wait_until(lambda: has("tidelog-default.foo.0.offset", question), "where the last epoch ends")


# --- the server comes and goes -------------------------------------------------------------------------------


async def test_while_the_server_is_there_nothing_takes_the_link(tmp_path: Path) -> None:
    async with running(tmp_path) as (trio, client):
        await until_over_nats(trio, client, 100)
        assert not any(trio.says(name)["bad_messages"] for name in trio.nodes)
        metrics = Metrics()
        fill_node_metrics(metrics, trio.nodes["n1"])
        assert "tidelog_nats_up 1\n" in metrics.text()
        assert "tidelog_nats_fallbacks_total" in metrics.text()


async def test_a_server_that_dies_and_comes_back_stops_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as (trio, client):
        await produce(client, 10)
        before = trio.count("fallbacks")
        trio.server.kill()
        await produce(client, 20)
        assert trio.count("fallbacks") > before
        await wait_until(lambda: not any(map(trio.are_up, trio.nodes)), "the server is missed")
        trio.server.start()
        await wait_until(trio.are_up, "the server is found again")
        await until_over_nats(trio, client, 10)
        await wait_until(lambda: trio.is_level("foo"), "all replicas are level")


async def test_a_server_that_freezes_stops_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as (trio, client):
        await produce(client, 5)
        before = trio.count("fallbacks")
        trio.server.pause()
        try:
            await produce(client, 5)
        finally:
            trio.server.resume()
        assert trio.count("fallbacks") > before
        await wait_until(lambda: trio.is_level("foo"), "all replicas are level")


# --- nodes that differ -----------------------------------------------------------------------------------------


async def elect(trio: NatsTrio, client: Client, leader: str) -> None:
    async with asyncio.timeout(patient(DEADLINE_S)):
        while trio.leader_of("foo") != leader:
            with contextlib.suppress(LogError):
                await client.elect("foo", leader)
            await asyncio.sleep(0.1)


async def test_nodes_without_the_server_or_without_nats_take_part_by_link(tmp_path: Path) -> None:
    """As while the setting is changed, one node after the other, leader or not."""

    async def start(trio: NatsTrio, name: str) -> None:
        if name == "n1":
            await trio.start_over(name)
        elif name == "n2":
            await trio.start_over(name, url=NOBODY)
        else:
            await trio.start_over(name, transport="link")

    async with running(tmp_path, start=start) as (trio, client):
        for leader in ("n1", "n2", "n3"):
            await elect(trio, client, leader)
            await produce(client, 10)
            await wait_until(lambda: trio.is_level("foo"), "all replicas are level")
        assert trio.says("n2") | {"fallbacks": 0} == trio.says("n2") | {"up": False, "sent": 0, "fallbacks": 0}
        assert trio.says("n3") == {"transport": "link"}


async def test_records_larger_than_a_payload_are_replicated_in_parts(tmp_path: Path) -> None:
    async with running(tmp_path, config=f"max_payload: {64 * KIB}") as (trio, client):
        await until_over_nats(trio, client, 2, size=MIB - 4 * KIB)
        await wait_until(lambda: trio.is_level("foo"), "all replicas are level")
        assert trio.count("parts_dropped") == 0
