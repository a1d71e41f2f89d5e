"""The activity stream: what happened, in Liftbridge's messages, in order, and off unless it is asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateways.gateway_kit import HOST, Api, Cluster, dialled, opened
from tests.patience import patient, wait_until
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.gateways.liftbridge.gateway import LiftbridgeOptions

ACTIVE = LiftbridgeOptions(listen=f"{HOST}:0", insecure_dev=True, activity=True)


def has_stream(cluster: Cluster) -> bool:
    return all(node.channels.catalog.channel("__activity") is not None for node in cluster.nodes.values())


def leading_node(cluster: Cluster) -> str | None:
    """The running node that knows that it leads the stream."""
    for name, node in cluster.nodes.items():
        replica = next((one for one in node.core.channels.replicas.replicas() if one.name == "__activity"), None)
        if replica is not None and replica.leading is not None and replica.record.leader == name:
            return name
    return None


async def events(cluster: Cluster, count: int) -> list[pb.ActivityStreamEvent]:
    """The first so many that are not repetitions."""
    await wait_until(lambda: leading_node(cluster) is not None, "the stream is there, and led by a node that runs")
    found: dict[int, pb.ActivityStreamEvent] = {}
    leader = leading_node(cluster)
    assert leader is not None
    async with dialled(cluster.port(leader)) as api, asyncio.timeout(patient(60)):
        call = api.subscribe("__activity", startPosition=pb.EARLIEST)
        assert await call.read() == pb.Message()
        while len(found) < count:
            event = pb.ActivityStreamEvent.FromString((await call.read()).value)
            assert event.id in found or event.id > max(found, default=0), "LV1: new ones in order"
            found.setdefault(event.id, event)
        call.cancel()
    return list(found.values())


async def some_activity(api: Api) -> None:
    await api.create("foo", partitions=3)
    await api(pb.PauseStreamRequest(name="foo", partitions=[1]))
    await api(pb.SetStreamReadonlyRequest(name="foo", partitions=[2], readonly=True))
    await api(pb.JoinConsumerGroupRequest(groupId="g", consumerId="c", streams=["foo"]))
    await api(pb.LeaveConsumerGroupRequest(groupId="g", consumerId="c"))
    await api(pb.DeleteStreamRequest(name="foo"))


SOME = [
    pb.ActivityStreamEvent(op=pb.CREATE_STREAM, createStreamOp=pb.CreateStreamOp(stream="foo", partitions=[0, 1, 2])),
    pb.ActivityStreamEvent(op=pb.PAUSE_STREAM, pauseStreamOp=pb.PauseStreamOp(stream="foo", partitions=[1])),
    pb.ActivityStreamEvent(
        op=pb.SET_STREAM_READONLY,
        setStreamReadonlyOp=pb.SetStreamReadonlyOp(stream="foo", partitions=[2], readonly=True),
    ),
    pb.ActivityStreamEvent(
        op=pb.JOIN_CONSUMER_GROUP,
        joinConsumerGroupOp=pb.JoinConsumerGroupOp(groupId="g", consumerId="c", streams=["foo"]),
    ),
    pb.ActivityStreamEvent(
        op=pb.LEAVE_CONSUMER_GROUP, leaveConsumerGroupOp=pb.LeaveConsumerGroupOp(groupId="g", consumerId="c")
    ),
    pb.ActivityStreamEvent(op=pb.DELETE_STREAM, deleteStreamOp=pb.DeleteStreamOp(stream="foo")),
]


def without_id(event: pb.ActivityStreamEvent) -> pb.ActivityStreamEvent:
    plain = pb.ActivityStreamEvent()
    plain.CopyFrom(event)
    plain.id = 0
    return plain


async def test_what_happens_to_streams_and_groups_is_told_in_order(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    try:
        await cluster.start_node("n1", ACTIVE)
        await wait_until(lambda: cluster.nodes["n1"].core.is_registered, "the node is there")
        await wait_until(lambda: has_stream(cluster), "the stream is there")
        async with dialled(cluster.port("n1")) as api:
            await some_activity(api)
        assert [without_id(event) for event in await events(cluster, len(SOME))] == SOME
        catalog = cluster.nodes["n1"].channels.catalog
        await wait_until(lambda: not catalog.activity(1), "what is published is forgotten")
    finally:
        await cluster.stop()


async def test_there_is_no_activity_stream_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        assert not has_stream(cluster)
        assert cluster.nodes["n1"].channels.catalog.activity(1) == []


@pytest.mark.slow
async def test_a_new_metadata_leader_goes_on_publishing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    try:
        for name in cluster.peers:
            await cluster.start_node(name, ACTIVE)
        await wait_until(lambda: all(node.core.is_registered for node in cluster.nodes.values()), "they are there")
        await wait_until(lambda: has_stream(cluster), "the stream is there")
        leader = next(name for name, node in cluster.nodes.items() if node.core.is_leader)
        other = next(name for name in cluster.nodes if name != leader)
        async with dialled(cluster.port(other)) as api:
            await api.create("before", replicationFactor=3)
            await cluster.stop_node(leader)
            await api.create("after", replicationFactor=2)
        told = [event.createStreamOp.stream for event in await events(cluster, 2)]
        assert told == ["before", "after"]
    finally:
        await cluster.stop()
