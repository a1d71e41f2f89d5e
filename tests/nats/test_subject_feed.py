"""Channels fed from the subjects of a real nats-server: leaders that move, servers that go, publishers with acks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.nats.subject_kit import Publisher, enveloped, records_of
from tests.nats.test_nats_transport import NatsTrio
from tests.patience import wait_until
from tests.ports import free_port
from tests.transports.nats_server import NatsServer
from tidelog.client import Client, connect
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.cluster.status.node_metrics import fill_node_metrics
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.catalog import ChannelConfig
from tidelog.errors import InvalidConfig
from tidelog.http.metrics import Metrics
from tidelog.transports.nats.connection import NatsOptions

DEADLINE_S = 120.0


@contextlib.asynccontextmanager
async def lone(folder: Path) -> AsyncIterator[tuple[Node, Client, Publisher, NatsServer]]:
    """A cluster of one node, with a server and a publisher."""
    lines: list[str] = []
    with NatsServer(folder / "nats") as server:
        address = f"127.0.0.1:{free_port()}"
        options = NodeProcessOptions(
            node="n1",
            listen=address,
            peers={"n1": address},
            data_dir=folder / "n1",
            insecure_dev=True,
            nats=NatsOptions(servers=(server.url,)),
        )
        node = Node(options, log=lines.append)
        await node.start()
        try:
            await wait_until(lambda: node.core.is_registered and node.core.is_leader, "the node leads")
            async with await connect([address], insecure_dev=True) as client, Publisher(server.url) as publisher:
                yield node, client, publisher, server
        finally:
            await node.stop()


async def attached(
    node: Node, client: Client, publisher: Publisher, channel: str, subject: str, **settings: Any
) -> None:
    """A channel that is listened to."""
    await client.create_channel(channel, factor=1, subject=subject, **settings)
    await listens(node, publisher, channel, subject)


async def listens(node: Node, publisher: Publisher, channel: str, subject: str) -> None:
    """Until the server knows: what the node says after it subscribed comes to the publisher after that."""
    await wait_until(lambda: subjects(node).get(channel) == subject, f"{channel} is listened to")
    assert node.nats is not None
    await publisher.hears(node.nats)


def subjects(node: Node) -> dict[str, str]:
    return {one["channel"]: one["subject"] for one in node.attach.status()["channels"]}


async def test_plain_messages_and_envelopes_are_stored_in_order_and_acked_by_their_policy(tmp_path: Path) -> None:
    async with lone(tmp_path) as (node, client, publisher, _):
        await attached(node, client, publisher, "foo", "sea.foo")
        publisher.nats.publish("sea.foo", [b"plain"], reply="answers")
        publisher.send("sea.foo", b"leader", token="1", policy=pb.LEADER, key=b"k", headers={"h": b"x"})
        publisher.send("sea.foo", b"all", token="2")
        publisher.send("sea.foo", b"none", token="3", policy=pb.NONE)
        bad = enveloped(value=b"bad", ackInbox=publisher.inbox, correlationId="4", checksum=True)[:-1] + b"?"
        publisher.nats.publish("sea.foo", [bad])
        publisher.send("sea.foo", b"last", token="5")
        acks = await publisher.acked("1", "2", "5")
        records = await records_of(client, "foo", 6)
        assert [record.value for record in records] == [b"plain", b"leader", b"all", b"none", bad, b"last"]
        assert list(records[0].headers) == [("reply", b"answers")]
        assert (records[1].key, list(records[1].headers)) == (b"k", [("h", b"x")])
        assert [ack.offset for ack in acks] == [records[place].offset for place in (1, 2, 5)]
        assert {(ack.stream, ack.msgSubject, ack.ackError) for ack in acks} == {("foo", "sea.foo", pb.Ack.OK)}
        assert set(publisher.acks) == {"1", "2", "5"}
        counts = node.attach.status()
        assert (counts["messages_in"], counts["plain"], counts["appended"], counts["acked"]) == (6, 2, 6, 3)
        metrics = Metrics()
        fill_node_metrics(metrics, node)
        assert "tidelog_attach_messages_in_total 6" in metrics.text()


async def test_messages_that_arrive_together_become_few_blocks(tmp_path: Path) -> None:
    async with lone(tmp_path) as (node, client, publisher, _):
        await attached(node, client, publisher, "foo", "many")
        for number in range(2_000):
            publisher.send("many", b"%d" % number, token=str(number))
        await publisher.acked(*map(str, range(2_000)))
        blocks = 0
        records = await records_of(client, "foo", 2_000)
        assert [int(record.value or b"") for record in records] == list(range(2_000))
        async with client.reader("foo", follow=False) as reader:
            async for _block in reader.blocks():
                blocks += 1
        assert blocks < 500


async def test_a_channel_is_attached_and_detached_by_altering_it_and_rests_while_it_takes_nothing(
    tmp_path: Path,
) -> None:
    async with lone(tmp_path) as (node, client, publisher, _):
        await client.create_channel("foo", factor=1)
        await client.alter("foo", subject="late")
        await listens(node, publisher, "foo", "late")
        await client.set_readonly("foo", True)
        await wait_until(lambda: not subjects(node), "a read-only channel is not fed")
        await client.set_readonly("foo", False)
        await listens(node, publisher, "foo", "late")
        await client.pause("foo")
        await wait_until(lambda: not subjects(node), "a paused channel is not fed")
        await client.resume("foo")
        await listens(node, publisher, "foo", "late")
        await client.alter("foo", subject="later")
        await listens(node, publisher, "foo", "later")
        publisher.send("later", b"there", token="1")
        await publisher.acked("1")
        await client.alter("foo", subject=None)
        await wait_until(lambda: not subjects(node), "no subject")
        await client.alter("foo", subject="later")
        await listens(node, publisher, "foo", "later")
        await client.delete("foo")
        await wait_until(lambda: not subjects(node), "a deleted channel is not fed")


async def test_channels_of_one_queue_group_share_and_others_get_everything(tmp_path: Path) -> None:
    async with lone(tmp_path) as (node, client, publisher, _):
        for name in ("a", "b"):
            await attached(node, client, publisher, name, "shared", queue_group="workers")
        await attached(node, client, publisher, "c", "shared")
        for number in range(100):
            publisher.send("shared", b"%d" % number)
        found = await records_of(client, "c", 100)
        assert len(found) == 100
        await wait_until(lambda: node.attach.statistics().appended == 200, "every message twice")
        shares = [one["appended"] for one in node.attach.status()["channels"]]
        assert sum(shares) == 200
        assert all(0 < share <= 100 for share in shares)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"subject": "a.*"}, "wildcard"),
        ({"subject": "a.>"}, "wildcard"),
        ({"subject": "a b"}, "white space"),
        ({"subject": "$SYS.x"}, "NATS' own"),
        ({"queue_group": "g"}, "name the subject"),
        ({"subject": "a", "queue_group": ""}, "empty"),
    ],
)
def test_subjects_that_cannot_be_are_refused_in_words_before_anything_happens(
    settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidConfig, match=word):
        ChannelConfig(**settings).validate()


async def test_a_subject_of_the_cluster_itself_is_refused_where_it_would_be_listened_to(tmp_path: Path) -> None:
    async with lone(tmp_path) as (node, client, _, _):
        await client.create_channel("foo", factor=1, subject="tidelog-default.foo.0.replicate")
        await wait_until(lambda: bool(node.attach.status()["refused_subjects"]), "the refusal")
        (words,) = node.attach.status()["refused_subjects"]
        assert "foo" in words
        assert "choose another" in words
        assert not subjects(node)
        await client.alter("foo", subject="good")
        await wait_until(lambda: subjects(node) == {"foo": "good"}, "another subject")
        assert not node.attach.status()["refused_subjects"]


async def test_a_stream_that_checks_offsets_refuses_others_with_liftbridges_code(tmp_path: Path) -> None:
    async with lone(tmp_path) as (node, client, publisher, _):
        await attached(node, client, publisher, "foo", "occ", placement_metadata=[["liftbridge.occ", "1"]])
        publisher.send("occ", b"any", token="1", offset=-1)
        (first,) = await publisher.acked("1")
        publisher.send("occ", b"right", token="2", offset=first.offset + 1)
        publisher.send("occ", b"wrong", token="3", offset=first.offset + 1)
        second, third = await publisher.acked("2", "3")
        assert (second.ackError, second.offset) == (pb.Ack.OK, first.offset + 1)
        assert third.ackError == pb.Ack.INCORRECT_OFFSET
        assert [record.value for record in await records_of(client, "foo", 2)] == [b"any", b"right"]


async def test_a_server_that_was_killed_is_listened_to_again(tmp_path: Path) -> None:
    async with lone(tmp_path) as (node, client, publisher, server):
        await attached(node, client, publisher, "foo", "again")
        publisher.send("again", b"before", token="1")
        await publisher.acked("1")
        server.kill()
        assert node.nats is not None
        nats = node.nats
        await wait_until(lambda: not nats.is_up and not publisher.nats.is_up, "the server is missed")
        server.start()
        await wait_until(lambda: nats.is_up and publisher.nats.is_up, "the server is found")
        publisher.send("again", b"after", token="2")
        await publisher.acked("2")
        assert [record.value for record in await records_of(client, "foo", 2)] == [b"before", b"after"]


@contextlib.asynccontextmanager
async def three(folder: Path) -> AsyncIterator[tuple[NatsTrio, Client, Publisher]]:
    """Three nodes whose replication goes by link, with a server and a publisher."""
    with NatsServer(folder / "nats") as server:
        trio = NatsTrio(folder, server)
        try:
            for name in trio.peers:
                await trio.start_over(name, transport="link")
            await wait_until(trio.is_formed, f"three voters; {trio.lines}")
            async with (
                await connect(list(trio.peers.values()), insecure_dev=True) as client,
                Publisher(server.url) as publisher,
            ):
                yield trio, client, publisher
        finally:
            for name in list(trio.nodes):
                await trio.stop(name)


async def test_only_the_leader_listens_and_the_next_one_takes_over(tmp_path: Path) -> None:
    async with three(tmp_path) as (trio, client, publisher):
        await client.create_channel("foo", factor=3, subject="moving")
        await wait_until(lambda: trio.is_whole("foo"), "all replicas are in sync")
        targets = ("n1", "n2", "n3", "n1")

        def listens_alone(name: str) -> bool:
            return listeners(trio) == [name]

        for number, target in enumerate(targets):
            await client.elect("foo", target)
            await wait_until(partial(listens_alone, target), f"{target} alone listens")
            nats = trio.nodes[target].nats
            assert nats is not None
            await publisher.hears(nats)
            publisher.send("moving", b"%d" % number, token=str(number))
            await publisher.acked(str(number))
        offsets = {publisher.acks[str(number)].offset: b"%d" % number for number in range(len(targets))}
        found = {record.offset: record.value for record in await records_of(client, "foo", len(targets))}
        assert found == offsets


async def test_messages_wait_while_too_few_replicas_are_in_sync(tmp_path: Path) -> None:
    async with three(tmp_path) as (trio, client, publisher):
        await client.create_channel(
            "foo", subject="waiting", placement="pinned", pinned_nodes=["n1", "n2"], leader_pinned="n1", min_isr=2
        )
        await wait_until(lambda: listeners(trio) == ["n1"], "n1 listens")
        node = trio.nodes["n1"]
        await listens(node, publisher, "foo", "waiting")
        publisher.send("waiting", b"before", token="0")
        await publisher.acked("0")
        await trio.stop("n2")
        await wait_until(lambda: is_alone(node), "n2 is missed")
        for number in range(1, 51):
            publisher.send("waiting", b"%d" % number, token=str(number))
        await wait_until(lambda: node.attach.status()["held_bytes"] > 0, "they wait")
        assert node.attach.status()["channels"][0]["problem"] == "not_enough_replicas"
        assert set(publisher.acks) == {"0"}
        await trio.start_over("n2", transport="link")
        await publisher.acked(*map(str, range(1, 51)))
        found = await records_of(client, "foo", 51)
        assert [record.value for record in found] == [b"before", *(b"%d" % number for number in range(1, 51))]
        counts = node.attach.statistics()
        assert (counts.dropped, counts.refused) == (0, 0)
        assert node.attach.status()["held_bytes"] == 0


def is_alone(node: Node) -> bool:
    catalog = node.core.catalog
    record = None if catalog is None else catalog.channel("foo")
    return record is not None and record.isr_nodes == ("n1",)


def listeners(trio: NatsTrio) -> list[str]:
    return [name for name, node in trio.nodes.items() if "foo" in subjects(node)]
