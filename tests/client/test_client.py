"""The client as a whole: connecting, administration, the sync twin, and every wrong call as a typed error."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import socket
import threading
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.client.fake_cluster import QUICK, FakeCluster, cluster_in_a_thread, fake_client, fake_cluster
from tests.client.running import DEADLINE_S
from tests.patience import patient, wait_until
from tests.transports.links import HOST, Tree, refusal_of, secure_end
from tidelog.client import (
    Client,
    ClientClosed,
    ClientOptions,
    Created,
    LinkTlsFiles,
    Offsets,
    ProducerOptions,
    ReaderOptions,
    Record,
    SyncClient,
    Time,
    connect,
    connect_sync,
)
from tidelog.core.catalog.channel_config import ChannelConfig
from tidelog.errors import (
    InvalidConfig,
    InvalidRecord,
    PeerRefused,
    PeerUnreachable,
    TlsFailed,
    UnknownChannel,
    WaitTimedOut,
)
from tidelog.transports.link.link import LinkListener
from tidelog.units import MIB

# --- connecting ------------------------------------------------------------------------------------


async def test_any_address_that_answers_is_enough() -> None:
    async with fake_cluster("a") as cluster:
        await cluster.nodes["n1"].stop()
        gone = cluster.nodes["n1"].address
        cluster.log("a").move("n3")
        addresses = [gone, cluster.nodes["n2"].address]
        async with await connect(addresses, insecure_dev=True, options=QUICK) as client:
            assert await client.producer("a").send(b"x") == 1


async def test_a_node_that_says_nothing_does_not_hold_up_connecting() -> None:
    async with fake_cluster("a") as cluster:
        with socket.create_server((HOST, 0)) as silent:  # the kernel takes calls, and nobody ever answers them
            address = f"{HOST}:{silent.getsockname()[1]}"
            options = replace(QUICK, attempt_ms=1_500)
            addresses = [address, cluster.nodes["n2"].address]
            async with await connect(addresses, insecure_dev=True, options=options) as client:
                assert (await client.cluster())["node"] == "n2"


@pytest.mark.parametrize("addresses", [[], ["nowhere"], ["host:port"]])
async def test_addresses_that_cannot_be_are_refused_at_once(addresses: list[str]) -> None:
    assert isinstance(await refusal_of(connect(addresses, insecure_dev=True)), InvalidConfig)


async def test_plain_connections_are_for_development_and_must_be_asked_for() -> None:
    assert isinstance(await refusal_of(connect([f"{HOST}:1"])), InvalidConfig)


async def test_a_cluster_that_is_not_there_is_told_in_time() -> None:
    async with fake_cluster() as cluster:
        addresses = cluster.addresses
    error = await refusal_of(connect(addresses, insecure_dev=True, options=QUICK, timeout_ms=300))
    assert isinstance(error, PeerUnreachable)
    assert error.retriable
    assert error.definite


async def test_certificates_decide_who_a_client_is(tmp_path: Path) -> None:
    tree = Tree.make(tmp_path / "tree")
    tree.issue("n1")
    tree.issue("robot", kind="client")
    cluster = FakeCluster(1)
    cluster.create("a")
    node = cluster.nodes["n1"]
    listener = LinkListener(
        f"{HOST}:0",
        end=secure_end(tree.files("n1"), "n1"),
        handler=node,
        on_link=node.links.append,
        allowed_kinds=frozenset({"client"}),
    )
    await listener.start()
    node.address = f"{HOST}:{listener.port}"
    try:
        async with await connect(node.address, tls=tree.files("robot"), options=QUICK) as client:
            assert await client.producer("a").send(b"x") == 0
        assert (node.links[0].peer_kind, node.links[0].peer) == ("client", "robot")
        assert isinstance(await refusal_of(connect(node.address, tls=tree.files("n1"))), InvalidConfig)
        other = Tree.make(tmp_path / "other")
        other.issue("robot", kind="client")
        files = LinkTlsFiles(
            certificate=tmp_path / "other" / "robot.crt",
            key=tmp_path / "other" / "robot.key",
            authority=tree.authority,
        )
        error = await refusal_of(connect(node.address, tls=files, options=QUICK, timeout_ms=300))
        assert isinstance(error, TlsFailed | PeerUnreachable)
    finally:
        node.drop_links()
        await listener.close()


# --- administration --------------------------------------------------------------------------------


async def test_channels_are_created_described_altered_and_deleted() -> None:
    async with fake_client() as (cluster, client):
        created = await client.create_channel("a", factor=2, retention={"max_bytes": 1_000})
        assert created == Created(name="a", channel_id=1, existed=False)
        assert (await client.create_channel("a", factor=2, retention={"max_bytes": 1_000})).existed
        many = await client.create_channels([f"c{number}" for number in range(1_100)], ChannelConfig(factor=1))
        assert len(many) == 1_100
        assert all(isinstance(one, Created) for one in many)
        assert (await client.describe("a"))["config"]["factor"] == 2
        assert len(await client.channels()) >= 1_000
        altered = await client.alter("a", factor=3, heartbeat_ms=200)
        assert (altered["config"]["factor"], altered["config"]["heartbeat_ms"]) == (3, 200)
        assert (await client.pause("a"))["paused"]
        assert not (await client.resume("a"))["paused"]
        assert (await client.set_readonly("a"))["readonly"]
        assert not (await client.set_readonly("a", False))["readonly"]
        assert (await client.elect("a", "n3"))["leader"] == "n3"
        assert (await client.rebalance())["applied"] is False
        assert (await client.rebalance(dry_run=False))["applied"] is True
        assert await client.offsets("a") == Offsets(log_start=0, committed_end=1, leader_epoch=2)
        assert await client.offset_at("a", Time(5)) == 1
        assert await client.offset_at("a", 7) == 7
        await client.delete("a")
        assert "a" not in cluster.logs
        assert isinstance(await refusal_of(client.describe("a")), UnknownChannel)
        assert isinstance(await refusal_of(client.delete("a")), UnknownChannel)


async def test_a_wrong_config_is_refused_before_anybody_is_asked() -> None:
    async with fake_client() as (cluster, client):
        with pytest.raises(InvalidConfig) as caught:
            await client.create_channel("a", factor=99, heartbeat_ms=1)
        assert "factor" in str(caught.value)
        assert "heartbeat_ms" in str(caught.value)
        assert isinstance(await refusal_of(client.create_channel("a", colour="red")), InvalidConfig)
        assert not cluster.logs


async def test_a_deletion_whose_answer_was_lost_counts_as_done() -> None:
    async with fake_client("a") as (cluster, client):
        answer = FakeCluster.alter

        def alter(self: FakeCluster, request: dict[str, Any]) -> Any:
            found = answer(self, request)
            for node in self.nodes.values():
                node.drop_links()
            return found

        FakeCluster.alter = alter  # type: ignore[method-assign]
        try:
            await client.delete("a")
        finally:
            FakeCluster.alter = answer  # type: ignore[method-assign]
        assert "a" not in cluster.logs


async def test_an_election_whose_answer_was_lost_is_not_asked_for_twice() -> None:
    async with fake_client("a", options=replace(QUICK, commit_ms=100)) as (cluster, client):
        for node in cluster.nodes.values():
            node.asked.clear()
            node.is_frozen = True
        error = await refusal_of(client.elect("a", "n2"))
        assert isinstance(error, WaitTimedOut)
        assert not error.definite
        assert sum(len(node.asked) for node in cluster.nodes.values()) == 1


async def test_every_call_of_a_closed_client_is_refused() -> None:
    async with fake_client("a") as (_, client):
        reader = client.reader("a")
        await client.close()
        await client.close()
        calls: list[Coroutine[Any, Any, Any]] = [
            client.create_channel("b"),
            client.describe("a"),
            client.channels(),
            client.pause("a"),
            client.offsets("a"),
            client.cursors("a"),
            client.rebalance(),
            reader.read(),
        ]
        for call in calls:
            error = await refusal_of(call)
            assert isinstance(error, ClientClosed)
            assert error.definite
        for wrong in (
            lambda: client.producer("a"),
            lambda: client.reader("a"),
            lambda: client.fetch("a", range(1)),
        ):
            with pytest.raises(ClientClosed):
                wrong()


async def test_closing_does_not_wait_for_calls_that_cannot_end() -> None:
    async with fake_client("a") as (cluster, client):
        for node in cluster.nodes.values():
            node.is_frozen = True
        call = asyncio.ensure_future(client.describe("a"))
        await wait_until(lambda: any(node.asked and node.is_frozen for node in cluster.nodes.values()))
        await client.close()
        assert isinstance(await refusal_of(call), ClientClosed)


async def test_what_a_node_says_that_makes_no_sense_is_a_typed_error() -> None:
    async with fake_client("a") as (cluster, client):
        answer = FakeCluster.describe
        FakeCluster.describe = lambda self, node, request: {"nodes": 5}  # type: ignore[method-assign]
        try:
            error = await refusal_of(client.describe("a"))
        finally:
            FakeCluster.describe = answer  # type: ignore[method-assign]
        assert error.code == "bad_message"
        assert not isinstance(error, PeerRefused)
        assert cluster.logs


# --- without a loop --------------------------------------------------------------------------------


def sync_client(cluster: FakeCluster) -> SyncClient:
    return connect_sync(cluster.addresses, insecure_dev=True, options=QUICK)


def test_the_sync_client_does_the_same_without_await() -> None:
    with cluster_in_a_thread() as cluster, sync_client(cluster) as client:
        assert client.create_channel("a").channel_id == 1
        assert [one.channel_id for one in client.create_channels(["b", "c"]) if isinstance(one, Created)] == [2, 3]
        with client.producer("a") as producer:
            receipts = [producer.send(b"%d" % number, key=b"k") for number in range(10)]
            assert [receipt.result() for receipt in receipts] == list(range(10))
            assert receipts[0].is_done
            assert producer.send_many([b"x"] * 5).result(patient(DEADLINE_S)) == [range(10, 15)]
            producer.flush()
            with pytest.raises(InvalidRecord):
                producer.send_many(["text"])  # type: ignore[list-item]
        with client.reader("a", follow=False, cursor="job") as reader:
            found = []
            for record in reader:
                found.append(record)
                if len(found) == 12:
                    break
        assert [record.value for record in found if isinstance(record, Record)][:2] == [b"0", b"1"]
        assert client.cursors("a") == {"job": 12}
        assert [record.offset for record in client.reader("a", follow=False, cursor="job")] == [12, 13, 14]
        assert sum(batch.num_rows for batch in client.reader("a", follow=False).batches()) == 15
        assert sum(len(block.offsets) for block in client.fetch("a", range(0, 15))) >= 15
        assert client.offsets("a").committed_end == 15
        assert client.describe("a")["name"] == "a"
        assert [channel["name"] for channel in client.channels()] == ["a", "b", "c"]
        client.set_cursor("a", "job", 3)
        client.delete_cursor("a", "job")
        client.pause("a")
        client.resume("a")
        client.set_readonly("a", True)
        client.alter("a", factor=1)
        client.elect("a", "n2")
        client.rebalance(dry_run=True)
        client.delete("a")
        with pytest.raises(UnknownChannel):
            client.describe("a")


def test_calls_at_once_give_each_its_own_result_or_error() -> None:
    async def offsets(name: str, client: Client) -> Offsets:
        return await client.offsets(name)

    with cluster_in_a_thread("a", "b") as cluster, sync_client(cluster) as client:
        found = client.at_once([partial(offsets, name) for name in ("a", "x", "b")])
        assert [type(one) for one in found] == [Offsets, UnknownChannel, Offsets]
        assert client.at_once([]) == []
        assert len(client.at_once([lambda client: client.describe("a")] * 200)) == 200
        with pytest.raises(TypeError, match="missing"):
            client.at_once([lambda client: client.offsets()])  # type: ignore[call-arg]


def test_a_closed_sync_client_leaves_no_thread_and_refuses_calls() -> None:
    with cluster_in_a_thread("a") as cluster:
        before = threading.active_count()
        client = sync_client(cluster)
        producer = client.producer("a")
        client.close()
        client.close()
        assert threading.active_count() == before
        for call in (client.channels, lambda: producer.send(b"x"), lambda: client.reader("a")):
            with pytest.raises(ClientClosed):
                call()


def test_a_sync_client_that_cannot_connect_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(PeerUnreachable):
        connect_sync(f"{HOST}:1", insecure_dev=True, options=QUICK, timeout_ms=200)
    assert threading.active_count() == before


def test_many_threads_may_use_one_sync_client() -> None:
    with cluster_in_a_thread("a") as cluster, sync_client(cluster) as client:
        producer = client.producer("a")
        offsets: list[int] = []

        def send() -> None:
            offsets.extend(producer.send(b"x").result() for _ in range(50))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patient(DEADLINE_S))
        assert sorted(offsets) == list(range(200))


# --- the page about all this -----------------------------------------------------------------------


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    with cluster_in_a_thread() as cluster:
        for example in examples:
            cluster.logs.clear()
            exec(example.replace("127.0.0.1:9500", cluster.addresses[0]), {"__name__": "example"})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "0 [range(1, 4)]"
    assert printed[1] == "0 b'ship-7' b'48.1 N 16.4 E'"
    assert printed[5] == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


def test_the_page_tells_the_true_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    for options in (ProducerOptions, ReaderOptions):
        for option in dataclasses.fields(options):
            if option.name != "cursor_interval_ms":
                assert f"`{option.name}`" in page, f"docs/client.md says nothing of {option.name}"
    assert ProducerOptions().batch_bytes_max == MIB
    assert ProducerOptions().in_flight_max_bytes == 64 * MIB
    assert ClientOptions().timeout_ms == 30_000
    assert ClientOptions().suspect_ms == 400
