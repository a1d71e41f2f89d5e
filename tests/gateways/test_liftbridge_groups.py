"""Liftbridge's consumer groups, row by row: membership, assignments, statuses, subscriptions, and takeover."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import FORM_S, Api, Cluster, dialled, one_node, opened
from tests.gateways.test_liftbridge_access import Tree, grant, secured, shown
from tests.patience import patient, wait_until
from tidelog.client import connect
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.groups.coordinator import GroupOptions

Status = grpc.StatusCode
NS_PER_S = 1_000_000_000


def joining(consumer: str = "c1", group: str = "g", streams: tuple[str, ...] = ("foo",)) -> pb.JoinConsumerGroupRequest:
    return pb.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=streams)


async def assigned(api: Api, consumer: str, *, group: str = "g") -> dict[str, list[int]]:
    """What a consumer is told when it asks as the Go client does: by the epoch of the group's metadata."""
    metadata = await api(pb.FetchMetadataRequest(groups=[group]))
    epoch = metadata.groupMetadata[0].epoch
    answer = await api(
        pb.FetchConsumerGroupAssignmentsRequest(groupId=group, consumerId=consumer, epoch=epoch), deadline_s=10
    )
    assert answer.epoch == epoch
    return {assignment.stream: list(assignment.partitions) for assignment in answer.assignments}


async def until_assigned(api: Api, consumer: str, wanted: dict[str, list[int]]) -> None:
    give_up = time.monotonic() + patient(FORM_S)
    share: dict[str, list[int]] = {}
    while share != wanted:
        assert time.monotonic() < give_up, f"{consumer} still has {share}"
        with contextlib.suppress(grpc.aio.AioRpcError):  # the epoch moved on between two calls
            share = await assigned(api, consumer)
        await asyncio.sleep(0.02)


async def test_consumers_share_partitions_and_each_has_one_reader(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", partitions=4)
        await api.create("bar")
        first = await api(joining("c1", streams=("foo", "bar")))
        assert (first.coordinator, first.epoch) == ("n1", 1)
        assert (first.consumerTimeout, first.coordinatorTimeout) == (15 * NS_PER_S, 15 * NS_PER_S)
        assert await assigned(api, "c1") == {"foo": [0, 1, 2, 3], "bar": [0]}
        second = await api(joining("c2"))
        assert second.epoch == 2
        shares = [await assigned(api, "c1"), await assigned(api, "c2")]
        assert sorted(sum(len(partitions) for partitions in share.values()) for share in shares) == [2, 3]
        given = sorted((stream, part) for share in shares for stream, parts in share.items() for part in parts)
        assert given == [("bar", 0), ("foo", 0), ("foo", 1), ("foo", 2), ("foo", 3)]
        assert "bar" in shares[0], "only the first asked for it"
        await api(pb.LeaveConsumerGroupRequest(groupId="g", consumerId="c1"))
        assert await assigned(api, "c2") == {"foo": [0, 1, 2, 3]}
        await api(pb.LeaveConsumerGroupRequest(groupId="g", consumerId="c2"))
        found = (await api(pb.FetchMetadataRequest(groups=["g"]))).groupMetadata
        assert [one.error for one in found] == [pb.ConsumerGroupMetadata.UNKNOWN_GROUP]


async def test_a_stream_that_comes_later_is_shared_out(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        await api(joining())
        await api(pb.DeleteStreamRequest(name="foo"))
        await api.create("foo", partitions=3)
        await until_assigned(api, "c1", {"foo": [0, 1, 2]})


REFUSALS: list[tuple[Any, grpc.StatusCode]] = [
    (pb.JoinConsumerGroupRequest(consumerId="c", streams=["foo"]), Status.INVALID_ARGUMENT),
    (pb.JoinConsumerGroupRequest(groupId="g", streams=["foo"]), Status.INVALID_ARGUMENT),
    (pb.JoinConsumerGroupRequest(groupId="g", consumerId="c"), Status.INVALID_ARGUMENT),
    (joining(group="no name"), Status.INVALID_ARGUMENT),
    (joining(consumer="no name"), Status.INVALID_ARGUMENT),
    (joining("c2", streams=("nowhere",)), Status.NOT_FOUND),
    (joining("c1"), Status.FAILED_PRECONDITION),
    (pb.LeaveConsumerGroupRequest(consumerId="c1"), Status.INVALID_ARGUMENT),
    (pb.LeaveConsumerGroupRequest(groupId="g"), Status.INVALID_ARGUMENT),
    (pb.LeaveConsumerGroupRequest(groupId="other", consumerId="c1"), Status.NOT_FOUND),
    (pb.LeaveConsumerGroupRequest(groupId="g", consumerId="c9"), Status.FAILED_PRECONDITION),
    (pb.FetchConsumerGroupAssignmentsRequest(consumerId="c1", epoch=1), Status.INVALID_ARGUMENT),
    (pb.FetchConsumerGroupAssignmentsRequest(groupId="g", epoch=1), Status.INVALID_ARGUMENT),
    (pb.FetchConsumerGroupAssignmentsRequest(groupId="x", consumerId="c1", epoch=1), Status.NOT_FOUND),
    (pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="c9", epoch=1), Status.FAILED_PRECONDITION),
    (pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="c1", epoch=0), Status.FAILED_PRECONDITION),
    (pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="c1", epoch=7), Status.FAILED_PRECONDITION),
    (
        pb.ReportConsumerGroupCoordinatorRequest(groupId="g", consumerId="c1", epoch=1),
        Status.INVALID_ARGUMENT,
    ),
    (
        pb.ReportConsumerGroupCoordinatorRequest(groupId="x", consumerId="c1", coordinator="n1", epoch=1),
        Status.NOT_FOUND,
    ),
    (
        pb.ReportConsumerGroupCoordinatorRequest(groupId="g", consumerId="c9", coordinator="n1", epoch=1),
        Status.FAILED_PRECONDITION,
    ),
    (
        pb.ReportConsumerGroupCoordinatorRequest(groupId="g", consumerId="c1", coordinator="n9", epoch=1),
        Status.FAILED_PRECONDITION,
    ),
    (
        pb.ReportConsumerGroupCoordinatorRequest(groupId="g", consumerId="c1", coordinator="n1", epoch=9),
        Status.FAILED_PRECONDITION,
    ),
]


async def test_every_refusal_has_its_status_and_words(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        await api(joining("c1"))
        for request, status in REFUSALS:
            refusal = await api.refusal(request)
            assert refusal.code() is status, f"{request}: {refusal.details()}"
            assert refusal.details()
        consumer = pb.Consumer(groupId="g", consumerId="c1", groupEpoch=1)
        subscriptions: list[tuple[dict[str, Any], grpc.StatusCode]] = [
            ({"consumer": pb.Consumer(groupId="g", consumerId="c9")}, Status.FAILED_PRECONDITION),
            ({"consumer": pb.Consumer(groupId="x", consumerId="c1")}, Status.NOT_FOUND),
            ({"consumer": pb.Consumer(groupId="g")}, Status.INVALID_ARGUMENT),
            ({"consumer": consumer, "readISRReplica": True}, Status.INVALID_ARGUMENT),
        ]
        for more, status in subscriptions:
            _, refusal = await api.read("foo", **more)
            assert refusal.code() is status, refusal.details()
        assert await assigned(api, "c1") == {"foo": [0]}, "nothing of that did any harm"


async def test_a_subscription_ends_when_its_partition_goes_to_another(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", partitions=2)
        await api.publish("foo", b"a")
        await api(joining("c1"))
        consumer = pb.Consumer(groupId="g", consumerId="c1", groupEpoch=1)
        mine = [api.subscribe("foo", partition=part, startPosition=pb.EARLIEST, consumer=consumer) for part in (0, 1)]
        for call in mine:
            assert await call.read() == pb.Message()
        assert (await mine[0].read()).value == b"a"
        await api(joining("c2"))
        (kept,) = (await assigned(api, "c1"))["foo"]
        (lost,) = (await assigned(api, "c2"))["foo"]
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await mine[lost].read()
        assert ended.value.code() is Status.FAILED_PRECONDITION
        await api.publish("foo", b"b", partition=kept)
        assert (await mine[kept].read()).value == b"b", "what it keeps goes on"
        # The same consumer subscribes again: the newer one takes the place of the one before.
        newer = pb.Consumer(groupId="g", consumerId="c1", groupEpoch=2)
        again = api.subscribe("foo", partition=kept, startPosition=pb.NEW_ONLY, consumer=newer)
        assert await again.read() == pb.Message()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await mine[kept].read()
        assert ended.value.code() is Status.FAILED_PRECONDITION
        again.cancel()


async def test_a_native_member_and_a_consumer_share_a_group_and_its_positions(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        offsets = await api.publish("foo", b"a", b"b", b"c")
        # The Go client keeps the last offset it read under this id.
        cursor: dict[str, Any] = {"stream": "foo", "partition": 0, "cursorId": "__group:g"}
        assert (await api(pb.FetchCursorRequest(**cursor))).offset == -1
        await api(pb.SetCursorRequest(**cursor, offset=offsets[0]))
        assert (await api(pb.FetchCursorRequest(**cursor))).offset == offsets[0]
        async with await connect(cluster.peers["n1"], insecure_dev=True) as client:
            async with client.group("g", ["foo"]) as group:
                batch = await group.read()
                assert [record.offset for record in batch.records] == offsets[1:]
            assert (await api(pb.FetchCursorRequest(**cursor))).offset == offsets[2]


async def test_a_silent_consumer_is_expelled(tmp_path: Path) -> None:
    options = GroupOptions(consumer_timeout_ms=1_500, coordinator_timeout_ms=1_500)
    async with opened(tmp_path, groups=options) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=2)
        assert (await api(joining("silent"))).consumerTimeout == 1_500_000_000
        await api(joining("c2"))
        await until_assigned(api, "c2", {"foo": [0, 1]})
        refusal = await api.refusal(pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="silent", epoch=3))
        assert refusal.code() is Status.FAILED_PRECONDITION


def coordinator_of(cluster: Cluster) -> str:
    group = next(iter(cluster.nodes.values())).channels.catalog.group("g")
    assert group is not None
    return group.coordinator


@pytest.mark.slow
async def test_a_coordinator_that_most_consumers_report_is_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path, 3) as cluster, dialled(cluster.port("n2")) as api:
        await api.create("foo", partitions=3, replicationFactor=3)
        for consumer in ("c1", "c2", "c3"):
            joined = await api(joining(consumer))
        before = joined.coordinator

        async def report(consumer: str) -> None:
            await api(
                pb.ReportConsumerGroupCoordinatorRequest(
                    groupId="g", consumerId=consumer, coordinator=before, epoch=joined.epoch
                )
            )

        await report("c1")
        await report("c1")
        assert coordinator_of(cluster) == before, "one voice of three, however often"
        await report("c2")
        await wait_until(lambda: coordinator_of(cluster) != before, "the coordinator is replaced")
        after = coordinator_of(cluster)
        # A node that does not coordinate refuses, and the metadata names the coordinator.
        found = (await api(pb.FetchMetadataRequest(groups=["g"]))).groupMetadata[0]
        assert (found.coordinator, found.epoch) == (after, joined.epoch)
        asking = pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="c1", epoch=found.epoch)
        async with dialled(cluster.port(before)) as old, dialled(cluster.port(after)) as new:
            assert (await old.refusal(asking)).code() is Status.FAILED_PRECONDITION
            assert (await new(asking)).epoch == found.epoch
        # A node that stops is replaced by itself.
        await cluster.stop_node(after)
        await wait_until(lambda: coordinator_of(cluster) != after, "a coordinator that stopped is replaced")
        last = coordinator_of(cluster)
        async with dialled(cluster.port(last)) as newest:
            shares = [await assigned(newest, consumer) for consumer in ("c1", "c2", "c3")]
        assert sorted(partition for share in shares for partition in share["foo"]) == [0, 1, 2]


async def test_lg1_nobody_else_speaks_for_a_consumer(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    files = {name: tree.issue(name, "client") for name in ("robot", "thief")}
    operator = tree.issue("otto", "operator")
    async with (
        secured(tmp_path, tree, tree.options()) as cluster,
        shown(cluster, tree, operator) as otto,
        shown(cluster, tree, files["robot"]) as robot,
        shown(cluster, tree, files["thief"]) as thief,
    ):
        await otto.create("foo")
        assert (await robot.refusal(joining("c1"))).code() is Status.PERMISSION_DENIED
        await grant(cluster, "robot", "read:data", "foo")
        await robot(joining("c1"))
        found = (await thief(pb.FetchMetadataRequest(groups=["g"]))).groupMetadata[0]
        assert found.error == pb.ConsumerGroupMetadata.UNKNOWN_GROUP, "nobody sees what it may not read"
        await grant(cluster, "thief", "read:data", "foo")
        consumer = pb.Consumer(groupId="g", consumerId="c1", groupEpoch=1)
        for request in (
            pb.FetchConsumerGroupAssignmentsRequest(groupId="g", consumerId="c1", epoch=1),
            pb.LeaveConsumerGroupRequest(groupId="g", consumerId="c1"),
            pb.ReportConsumerGroupCoordinatorRequest(groupId="g", consumerId="c1", coordinator="n1", epoch=1),
        ):
            assert (await thief.refusal(request)).code() is Status.PERMISSION_DENIED, type(request).__name__
        _, ended = await thief.read("foo", consumer=consumer)
        assert ended.code() is Status.PERMISSION_DENIED
        assert await assigned(robot, "c1") == {"foo": [0]}
        await otto(pb.LeaveConsumerGroupRequest(groupId="g", consumerId="c1"))
