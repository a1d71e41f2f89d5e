"""A gateway with an old catalog: its refusals are checked again with a newer one, and pauses are outlasted."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import Api, Cluster, dialled, opened
from tests.gateways.test_liftbridge_access import DENIED, Tree, grant, secured, shown
from tests.patience import wait_until
from tidelog.cluster.node.process import Node
from tidelog.cluster.node.replica_channels import ReplicaChannels
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.catalog import Catalog, Change, PauseChannel, RemoveGrant, SetReadonly
from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway

Status = grpc.StatusCode
ROBOT = "client:robot"


class Late:
    """What the gateway sees is an old catalog, until it asks for what was committed meanwhile."""

    def __init__(self, node: Node, gateway: LiftbridgeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node = node
        self.gateway = gateway
        self._old: Catalog | None = None
        self.barriers = 0
        monkeypatch.setattr(ReplicaChannels, "catalog", property(self._seen_by))
        read_barrier = node.channels.read_barrier

        async def heard() -> None:
            self.barriers += 1
            await read_barrier()
            self._old = None

        monkeypatch.setattr(node.channels, "read_barrier", heard)

    def _seen_by(self, channels: ReplicaChannels) -> Catalog | None:
        return self._old if self._old is not None and channels is self._node.channels else channels.known_catalog

    @property
    def newest(self) -> Catalog:
        catalog = self._node.core.catalog
        assert catalog is not None
        return catalog

    def paused(self) -> Change:
        return PauseChannel(**self._foo())

    def readonly(self) -> Change:
        return SetReadonly(**self._foo(), readonly=True)

    def without(self, scope: str) -> Change:
        return RemoveGrant(principal=ROBOT, scope=scope, channels="*")

    def show(self, old: Catalog) -> None:
        self._old, self.barriers = old, 0

    def _foo(self) -> dict[str, int]:
        record = self.newest.channel("foo")
        assert record is not None
        return {"channel_id": record.channel_id, "expected_channel_epoch": record.channel_epoch}

    def behind(self, change: Change | None) -> None:
        """The catalog as it was before `change` was undone; before a leader was elected, if there is none."""
        old = copy.deepcopy(self.newest)
        if change is not None:
            assert old.apply(old.applied_index + 1, change).refusal is None
        else:
            channel_id = self._foo()["channel_id"]
            channels = old._state.channels
            channels[channel_id] = replace(channels[channel_id], leader=None)
        self.show(old)


@contextlib.asynccontextmanager
async def late_gateway(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *scopes: str, **more: Any
) -> AsyncIterator[tuple[Api, Late]]:
    """A stream `foo`, and a client that has these grants."""
    tree = Tree(folder)
    operator, client = tree.issue("otto", "operator"), tree.issue("robot", "client")
    async with (
        secured(folder, tree, tree.options()) as cluster,
        shown(cluster, tree, operator) as otto,
        shown(cluster, tree, client) as robot,
    ):
        await otto.create("foo", **more)
        for scope in scopes:
            await grant(cluster, "robot", scope, "*")
        yield robot, Late(cluster.nodes["n1"], cluster.gateways["n1"], monkeypatch)


PUBLISH = pb.PublishRequest(stream="foo", value=b"x", ackPolicy=pb.ALL, expectedOffset=-1, correlationId="c")


@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
async def test_a_publish_is_taken_that_only_an_old_catalog_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """The caller may not resume: a pause of which it is told in vain is none that it could end itself."""

    settings = {"optimisticConcurrencyControl": pb.NullableBool(value=checked)}
    async with late_gateway(tmp_path, monkeypatch, "write:data", **settings) as (robot, late):
        for change in (late.paused, late.readonly, lambda: late.without("write:data")):
            late.behind(change())
            assert (await robot(PUBLISH)).ack.offset > 0, change
            assert late.barriers == 1
            late.behind(change())
            call = robot.publish_async()
            await call.write(PUBLISH)
            assert not (await call.read()).HasField("asyncError"), change
            call.cancel()
        late.behind(late.without("write:data"))
        (found,) = (await robot(pb.FetchMetadataRequest(streams=["foo"]))).streamMetadata
        assert found.error == pb.StreamMetadata.OK


@pytest.mark.parametrize("what", ["grant", "paused", "leader"])
async def test_a_subscription_begins_that_only_an_old_catalog_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with late_gateway(tmp_path, monkeypatch, "write:data", "read:data") as (robot, late):
        await robot(PUBLISH)
        changes: dict[str, Callable[[], Change | None]] = {
            "grant": lambda: late.without("read:data"),
            "paused": late.paused,
            "leader": lambda: None,
        }
        late.behind(changes[what]())
        call = robot.subscribe("foo", startPosition=pb.EARLIEST)
        assert await call.read() == pb.Message()
        assert (await call.read()).value == b"x"
        assert late.barriers == 1
        call.cancel()


async def test_a_subscription_at_the_end_of_a_partition_that_was_readonly_waits_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with late_gateway(tmp_path, monkeypatch, "write:data", "read:data") as (robot, late):
        await robot(PUBLISH)
        late.behind(late.readonly())
        call = robot.subscribe("foo", startPosition=pb.EARLIEST)
        assert [(await call.read()).value for _ in range(2)] == [b"", b"x"]
        await wait_until(lambda: late.barriers > 0 or call.done(), "it came to the end")
        await robot(PUBLISH)
        assert (await call.read()).value == b"x"
        call.cancel()


async def test_cursors_and_metadata_are_given_that_only_an_old_catalog_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with late_gateway(tmp_path, monkeypatch, "read:data", "admin:channels") as (robot, late):
        cursor: dict[str, Any] = {"stream": "foo", "cursorId": "c"}
        late.behind(late.without("read:data"))
        await robot(pb.SetCursorRequest(offset=7, **cursor))
        late.behind(late.without("read:data"))
        assert (await robot(pb.FetchCursorRequest(**cursor))).offset == 7
        late.behind(None)
        found = (await robot(pb.FetchPartitionMetadataRequest(stream="foo"))).metadata
        assert (found.leader, late.barriers) == ("n1", 1)
        for request in (
            pb.CreateStreamRequest(name="new", subject="new"),
            pb.PauseStreamRequest(name="foo"),
            pb.SetStreamReadonlyRequest(name="foo"),
            pb.DeleteStreamRequest(name="new"),
        ):
            late.behind(late.without("admin:channels"))
            await robot(request)


async def test_a_refusal_that_a_newer_catalog_confirms_is_given_and_many_at_once_look_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with late_gateway(tmp_path, monkeypatch) as (robot, late):
        late.behind(late.paused())
        refusals = await asyncio.gather(*(robot.refusal(PUBLISH) for _ in range(100)))
        assert {refusal.code() for refusal in refusals} == {DENIED}
        _, ended = await robot.read("foo")
        assert ended.code() is DENIED
        late.behind(late.paused())
        gate = asyncio.Event()
        read_barrier = late._node.channels.read_barrier

        async def slow() -> None:
            await gate.wait()
            await read_barrier()

        monkeypatch.setattr(late._node.channels, "read_barrier", slow)
        waiting = [asyncio.ensure_future(robot.refusal(PUBLISH)) for _ in range(100)]
        subscriptions = late.gateway.subscriptions
        assert subscriptions is not None
        barrier = subscriptions._streams.barrier
        await wait_until(lambda: barrier.waiting == 100, "all were refused once")
        gate.set()
        assert {refusal.code() for refusal in await asyncio.gather(*waiting)} == {DENIED}
        assert late.barriers <= 2


async def test_a_node_that_is_gone_and_not_fenced_yet_is_shown_at_the_node_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its death and the end of its session the catalog calls it active."""

    async with opened(tmp_path, 3) as cluster, dialled(cluster.port("n1")) as api:
        late = Late(cluster.nodes["n1"], cluster.gateways["n1"], monkeypatch)
        old = copy.deepcopy(late.newest)
        await wait_until(lambda: late._node.pool.link_to("n3") is not None, "n1 is linked with n3")
        await cluster.stop_node("n3")
        await wait_until(lambda: late._node.pool.link_to("n3") is None, "the link ends")
        late.show(old)
        brokers = (await api(pb.FetchMetadataRequest())).brokers
        assert {broker.id: broker.port for broker in brokers}["n3"] == cluster.port("n1")
        assert late.barriers == 0, "it was the old catalog that was shown"


# --- pauses while messages are under way ---------------------------------------------------------------------------


class PausedAgain:
    """Whenever the gateway has resumed `foo` somebody pauses it again, `left` times."""

    def __init__(self, cluster: Cluster, left: int) -> None:
        client = cluster.gateways["n1"]._client
        assert client is not None
        resume = client.resume
        self.left = left

        async def resumed(name: str, *, timeout_ms: int | None = None) -> dict[str, Any]:
            found = await resume(name, timeout_ms=timeout_ms)
            if self.left:
                self.left -= 1
                await client.pause(name)
            return found

        client.resume = resumed  # type: ignore[method-assign]


@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("is_async", [False, True], ids=["publish", "async"])
async def test_a_message_that_meets_one_pause_after_the_other_is_sent_again_after_each(
    tmp_path: Path, checked: bool, is_async: bool
) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", optimisticConcurrencyControl=pb.NullableBool(value=checked))
        await api.publish("foo", b"begin") if not checked else await api(PUBLISH)
        pauses = PausedAgain(cluster, 5)
        await api(pb.PauseStreamRequest(name="foo"))
        if is_async:
            call = api.publish_async()
            await call.write(PUBLISH)
            response = await call.read()
            assert not response.HasField("asyncError"), response
            call.cancel()
        else:
            assert (await api(PUBLISH)).ack.offset > 0
        assert pauses.left == 0


async def test_a_stream_that_is_paused_again_after_every_ack_takes_all_messages_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        call = api.publish_async()
        acked: set[str] = set()
        news = asyncio.Event()

        async def publish() -> None:
            for number in range(200):
                request = pb.PublishRequest(stream="foo", value=b"%d" % number, correlationId=str(number))
                await call.write(request)
                await asyncio.sleep(0)
            await call.done_writing()

        async def pause() -> None:
            for _ in range(15):
                news.clear()
                await api(pb.PauseStreamRequest(name="foo"))
                await news.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(publish())
            pausing = group.create_task(pause())
            while len(acked) < 200:
                response = await call.read()
                assert not response.HasField("asyncError"), response
                acked.add(response.correlationId)
                news.set()
            pausing.cancel()
        await api(pb.PauseStreamRequest(name="foo"))
        found, _ = await api.read("foo", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST, resume=True)
        assert sorted(int(message.value) for message in found) == list(range(200))


async def test_what_happened_to_a_stream_while_its_messages_waited_for_a_resume_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        gateways, client = cluster.nodes["n1"].channels, cluster.gateways["n1"]._client
        assert client is not None
        pauses = PausedAgain(cluster, 1)
        await api(pb.PauseStreamRequest(name="foo"))
        read_barrier = gateways.read_barrier
        looks = 0

        async def barrier() -> None:
            nonlocal looks
            if pauses.left == 0:
                looks += 1
                if looks == 2:  # the one after the message was refused for the second pause
                    await client.delete("foo")
            await read_barrier()

        monkeypatch.setattr(gateways, "read_barrier", barrier)
        refusal = await api.refusal(PUBLISH)
        assert (refusal.code(), looks >= 2) == (Status.NOT_FOUND, True), refusal
