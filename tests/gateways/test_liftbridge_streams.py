"""Streams by the gateway: create, delete, pause, readonly, metadata and cursors, with Liftbridge's status codes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import FORM_S, HOST, Api, Cluster, dialled, one_node, opened
from tests.patience import patient
from tidelog.client import connect
from tidelog.codecs.proto import liftbridge_pb2 as pb

NOT_FOUND = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
EXISTS = grpc.StatusCode.ALREADY_EXISTS


async def streams_of(api: Api, *names: str) -> dict[str, pb.StreamMetadata]:
    answer: pb.FetchMetadataResponse = await api(pb.FetchMetadataRequest(streams=names))
    return {stream.name: stream for stream in answer.streamMetadata}


async def test_a_stream_has_the_partitions_that_it_was_created_with(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", subject="bar", partitions=3)
        await api.create("plain")
        found = await streams_of(api)
        assert sorted(found) == ["__cursors", "foo", "plain"]
        assert sorted(found["foo"].partitions) == [0, 1, 2]
        assert [found["foo"].partitions[number].id for number in range(3)] == [0, 1, 2]
        assert found["foo"].subject == "bar"
        assert found["foo"].creationTimestamp > 0
        assert found["plain"].partitions[0].leader == "n1"
        assert list(found["plain"].partitions[0].isr) == ["n1"]


async def test_a_stream_that_exists_is_not_created_again(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        for name in ("foo", "FOO"):
            again = await api.refusal(pb.CreateStreamRequest(name=name, subject="foo"))
            assert again.code() is EXISTS, "names that differ in case alone are the same"


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": ""},
        {"name": "__cursors"},
        {"name": "__activity"},
        {"name": "foo/3"},
        {"subject": ""},
        {"subject": "a b"},
        {"subject": "a..b"},
        {"subject": "a.>"},
        {"subject": "x" * 256},
        {"replicationFactor": 2},
        {"replicationFactor": -2},
        {"partitions": -1},
        {"partitions": 1_000},
        {"compactEnabled": pb.NullableBool(value=True)},
        {"encryption": pb.NullableBool(value=True)},
        {"minIsr": pb.NullableInt32(value=5)},
    ],
    ids=str,
)
async def test_a_stream_that_cannot_be_is_refused_in_words(tmp_path: Path, wanted: dict[str, Any]) -> None:
    async with one_node(tmp_path) as api:
        refusal = await api.refusal(pb.CreateStreamRequest(**{"name": "foo", "subject": "foo", **wanted}))
        assert refusal.code() is INVALID
        assert refusal.details()
        assert sorted(await streams_of(api)) == ["__cursors"], "nothing was done"


async def test_settings_of_a_stream_become_those_of_its_channels(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create(
            "foo",
            partitions=2,
            group="g",
            retentionMaxBytes=pb.NullableInt64(value=1_000_000),
            retentionMaxMessages=pb.NullableInt64(value=0),
            retentionMaxAge=pb.NullableInt64(value=60_000),
            cleanerInterval=pb.NullableInt64(value=1),
            minIsr=pb.NullableInt32(value=1),
        )
        for name in ("foo", "foo/1"):
            record = cluster.nodes["n1"].channels.catalog.channel(name)
            assert record is not None
            limits = record.config.retention
            assert (limits.max_bytes, limits.max_events, limits.max_age_ms) == (1_000_000, None, 60_000)
            assert record.config.min_isr == 1


async def test_a_deleted_stream_is_gone_with_all_its_partitions(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=3)
        await api(pb.DeleteStreamRequest(name="foo"))
        assert cluster.nodes["n1"].channels.catalog.channels() == []
        assert (await api.refusal(pb.DeleteStreamRequest(name="foo"))).code() is NOT_FOUND
        await api.create("foo", partitions=2)
        assert sorted((await streams_of(api, "foo"))["foo"].partitions) == [0, 1]


async def test_a_stream_that_is_deleted_and_created_again_takes_and_gives_messages(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, 3) as cluster,
        dialled(cluster.port("n1")) as api,
        dialled(cluster.port("n2")) as other,
    ):
        for round_number in range(4):
            await (api, other)[round_number % 2].create("s", replicationFactor=1)
            value = b"%d" % round_number
            for publisher in (api, other):
                for policy in (pb.ALL, pb.LEADER):
                    await publisher.publish("s", value, policy=policy)
            async with dialled(cluster.port(cluster.leader_of("s"))) as reader:
                found, _ = await reader.read("s", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
            assert [message.value for message in found] == [value] * 4
            await (other, api)[round_number % 2](pb.DeleteStreamRequest(name="s"))


async def test_a_deletion_that_a_crash_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=3)
        await api.publish("foo", b"old", partition=1)
        async with await connect(cluster.peers["n1"], insecure_dev=True) as native:
            await native.delete("foo")
        assert (await streams_of(api, "foo"))["foo"].error == pb.StreamMetadata.UNKNOWN_STREAM
        refusal = await api.refusal(pb.CreateStreamRequest(name="foo", subject="foo", partitions=3))
        assert refusal.code() is EXISTS, "partition 1 holds an old message"
        await api(pb.DeleteStreamRequest(name="foo"))
        assert cluster.nodes["n1"].channels.catalog.channels() == []


async def test_a_creation_that_a_crash_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=3)
        async with await connect(cluster.peers["n1"], insecure_dev=True) as native:
            await native.delete("foo")
            await native.delete("foo/1")
        await api.create("foo", partitions=3)
        assert sorted((await streams_of(api, "foo"))["foo"].partitions) == [0, 1, 2]


async def test_every_channel_is_a_stream_of_one_partition(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        async with await connect(cluster.peers["n1"], insecure_dev=True) as native:
            await native.create_channel("bus", factor=1)
            await native.create_channel("deck/1", factor=1)
            await native.producer("bus").send(b"native", key=b"k", headers=[("h", b"1")])
        assert sorted(await streams_of(api)) == ["__cursors", "bus", "deck/1"]
        assert (await streams_of(api, "bus"))["bus"].subject == "bus"
        messages, _ = await api.read("bus", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        (message,) = messages
        assert (message.value, message.key, message.headers["h"]) == (b"native", b"k", b"1")


async def test_a_paused_stream_is_shown_so_and_a_publish_resumes_it(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", partitions=2)
        await api.publish("foo", b"first")
        await api(pb.PauseStreamRequest(name="foo", partitions=[1]))
        partitions = (await streams_of(api, "foo"))["foo"].partitions
        assert [partitions[number].paused for number in range(2)] == [False, True]
        _, ended = await api.read("foo", partition=1)
        assert ended.code() is PRECONDITION
        await api(pb.PauseStreamRequest(name="foo"))
        await api.publish("foo", b"x", partition=1)
        partitions = (await streams_of(api, "foo"))["foo"].partitions
        assert [partitions[number].paused for number in range(2)] == [True, False]
        span = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}
        messages, _ = await api.read("foo", resume=True, **span)
        assert [message.value for message in messages] == [b"first"]
        assert not (await streams_of(api, "foo"))["foo"].partitions[0].paused, "a subscription resumed it"


async def test_a_publish_right_after_a_pause_or_after_readonly_ended_is_taken_at_every_node(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, 3) as cluster,
        dialled(cluster.port("n1")) as first,
        dialled(cluster.port("n2")) as second,
        dialled(cluster.port("n3")) as third,
    ):
        apis = (first, second, third)
        await first.create("s", replicationFactor=3)
        await first.publish("s", b"begin")
        for number in range(18):
            admin, publisher = apis[number % 3], apis[number // 3 % 3]
            await admin(pb.PauseStreamRequest(name="s"))
            await publisher.publish("s", b"paused %d" % number, policy=(pb.ALL, pb.LEADER)[number % 2])
            for readonly in (True, False):
                await admin(pb.SetStreamReadonlyRequest(name="s", readonly=readonly))
            await publisher.publish("s", b"writable %d" % number)
        async with dialled(cluster.port(cluster.leader_of("s"))) as reader:
            found, _ = await reader.read("s", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        wanted = [b"begin"]
        for number in range(18):
            wanted += [b"paused %d" % number, b"writable %d" % number]
        assert [message.value for message in found] == wanted


async def test_messages_in_flight_while_a_stream_is_paused_resume_it(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, 3) as cluster,
        dialled(cluster.port("n1")) as api,
        dialled(cluster.port("n2")) as admin,
    ):
        await api.create("s", replicationFactor=3)
        call = api.publish_async()
        acked = set()

        async def publish() -> None:
            for number in range(400):
                await call.write(pb.PublishRequest(stream="s", value=b"%d" % number, correlationId=str(number)))
                if number % 50 == 25:
                    await admin(pb.PauseStreamRequest(name="s"))
            await call.done_writing()

        publishing = asyncio.ensure_future(publish())
        async for response in call:
            assert not response.HasField("asyncError"), response
            acked.add(response.correlationId)
            if len(acked) == 400:
                break
        await publishing


async def test_a_readonly_stream_takes_no_messages(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        await api(pb.SetStreamReadonlyRequest(name="foo", readonly=True))
        assert (await streams_of(api, "foo"))["foo"].partitions[0].readonly
        refusal = await api.refusal(pb.PublishRequest(stream="foo", value=b"x"))
        assert refusal.code() is PRECONDITION
        await api(pb.SetStreamReadonlyRequest(name="foo", readonly=False))
        await api.publish("foo", b"x")


@pytest.mark.parametrize(
    "request_of",
    [
        pb.PauseStreamRequest(name="nothing"),
        pb.SetStreamReadonlyRequest(name="nothing", readonly=True),
        pb.PauseStreamRequest(name="foo", partitions=[0, 1]),
        pb.SetStreamReadonlyRequest(name="foo", partitions=[-1]),
        pb.DeleteStreamRequest(name="nothing"),
        pb.FetchPartitionMetadataRequest(stream="nothing"),
        pb.FetchPartitionMetadataRequest(stream="foo", partition=1),
        pb.PublishRequest(stream="nothing"),
        pb.PublishRequest(stream="foo", partition=1),
        pb.SetCursorRequest(stream="nothing", cursorId="c"),
        pb.FetchCursorRequest(stream="foo", partition=1, cursorId="c"),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_what_is_not_there_is_not_found(tmp_path: Path, request_of: Any) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        assert (await api.refusal(request_of)).code() is NOT_FOUND


async def test_unknown_streams_and_groups_are_entries_and_no_errors(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        answer = await api(pb.FetchMetadataRequest(streams=["foo", "nothing"], groups=["g"]))
        assert [(stream.name, stream.error) for stream in answer.streamMetadata] == [
            ("foo", pb.StreamMetadata.OK),
            ("nothing", pb.StreamMetadata.UNKNOWN_STREAM),
        ]
        (group,) = answer.groupMetadata
        assert (group.groupId, group.error) == ("g", pb.ConsumerGroupMetadata.UNKNOWN_GROUP)


async def test_brokers_are_where_the_gateways_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=2)
        (broker,) = (await api(pb.FetchMetadataRequest())).brokers
        assert (broker.id, broker.host, broker.port) == ("n1", HOST, cluster.port("n1"))
        assert (broker.partitionCount, broker.leaderCount) == (2, 2)


async def test_every_broker_answers_while_one_node_is_dead_and_another_has_no_gateway(tmp_path: Path) -> None:
    """Go clients dial all brokers that they are told of, and do not connect if one of them does not answer."""

    cluster = Cluster(tmp_path, 3)
    cluster.without_gateway.add("n2")
    try:
        await cluster.start()
        async with dialled(cluster.port("n1")) as api:
            await api.create("foo", replicationFactor=3)
            await cluster.stop_node("n3")
            give_up = time.monotonic() + patient(FORM_S)
            while True:
                answer = await api(pb.FetchMetadataRequest(streams=["foo"]))
                places = {broker.id: (broker.host, broker.port) for broker in answer.brokers}
                if set(places.values()) == {(HOST, cluster.port("n1"))}:
                    break
                assert time.monotonic() < give_up, places
            assert sorted(places) == ["n1", "n2", "n3"], "every node with a replica is named"
            await cluster.start_node("n3")
            place = (HOST, cluster.port("n3"))
            while place not in {(one.host, one.port) for one in (await api(pb.FetchMetadataRequest())).brokers}:
                assert time.monotonic() < give_up, "the node is back, and so is its gateway"
                await asyncio.sleep(0.02)
    finally:
        await cluster.stop()


async def test_a_node_whose_address_is_not_in_the_catalog_is_shown_where_its_gateway_listens(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.without_gateway.add("n1")
    try:
        await cluster.start()
        await cluster.gateways["n1"].start(cluster.nodes["n1"])
        async with dialled(cluster.port("n1")) as api:
            (broker,) = (await api(pb.FetchMetadataRequest())).brokers
            assert (broker.id, broker.host, broker.port) == ("n1", HOST, cluster.port("n1"))
    finally:
        await cluster.stop()


async def test_the_leader_knows_where_its_partition_ends(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        offsets = await api.publish("foo", b"a", b"b")
        metadata = (await api(pb.FetchPartitionMetadataRequest(stream="foo"))).metadata
        assert (metadata.highWatermark, metadata.newestOffset) == (offsets[-1], offsets[-1])
        assert metadata.leader == "n1"


async def test_a_cursor_is_kept_moved_and_taken_away(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", partitions=2)
        await api.publish("foo", b"a", b"b")

        async def cursor(name: str, partition: int = 0) -> int:
            request = pb.FetchCursorRequest(stream="foo", partition=partition, cursorId=name)
            return int((await api(request)).offset)

        assert await cursor("mine") == -1
        for name in ("mine", "any text, even ü"):
            await api(pb.SetCursorRequest(stream="foo", cursorId=name, offset=2))
            assert await cursor(name) == 2
        assert await cursor("mine", partition=1) == -1
        await api(pb.SetCursorRequest(stream="foo", cursorId="mine", offset=1))
        assert await cursor("mine") == 1, "also backwards"
        await api(pb.SetCursorRequest(stream="foo", cursorId="mine", offset=-1))
        assert await cursor("mine") == -1
        for bad in (
            pb.SetCursorRequest(stream="foo", cursorId="", offset=1),
            pb.SetCursorRequest(stream="foo", cursorId="c", offset=-2),
        ):
            assert (await api.refusal(bad)).code() is INVALID


async def test_health_is_told(tmp_path: Path) -> None:
    async with (
        opened(tmp_path) as cluster,
        grpc.aio.insecure_channel(f"{HOST}:{cluster.port('n1')}") as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"\x0a\x09proto.API", timeout=patient(30)) == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(b"\x0a\x01x", timeout=patient(30))
        assert refused.value.code() is NOT_FOUND


async def test_three_nodes_agree_on_streams(tmp_path: Path) -> None:
    async with opened(tmp_path, 3) as cluster:
        await _ask_all(cluster)


async def _ask_all(cluster: Cluster) -> None:
    async with (
        dialled(cluster.port("n1")) as first,
        dialled(cluster.port("n2")) as second,
        dialled(cluster.port("n3")) as third,
    ):
        await first.create("foo", partitions=3, replicationFactor=-1)
        by_name = {"n1": first, "n2": second, "n3": third}
        for number, api in enumerate(by_name.values()):
            # Published at any node, leader or not.
            for partition in range(3):
                request = pb.PublishRequest(stream="foo", partition=partition, value=b"%d" % number, ackPolicy=pb.ALL)
                assert (await api(request)).ack.offset > 0
        answer = await second(pb.FetchMetadataRequest(streams=["foo"]))
        assert sorted(broker.id for broker in answer.brokers) == ["n1", "n2", "n3"]
        assert {broker.port for broker in answer.brokers} == {cluster.port(name) for name in cluster.peers}
        partitions = answer.streamMetadata[0].partitions
        for number in range(3):
            assert sorted(partitions[number].replicas) == ["n1", "n2", "n3"]
            leader = partitions[number].leader
            for name, api in by_name.items():
                span = {"partition": number, "startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}
                messages, ended = await api.read("foo", **span)
                if name == leader:
                    assert [message.value for message in messages] == [b"0", b"1", b"2"]
                    metadata = await api(pb.FetchPartitionMetadataRequest(stream="foo", partition=number))
                    assert metadata.metadata.highWatermark == messages[-1].offset
                else:
                    assert ended.code() is PRECONDITION
                    assert leader in (ended.details() or "")
                    ask = pb.FetchPartitionMetadataRequest(stream="foo", partition=number)
                    assert (await api.refusal(ask)).code() is PRECONDITION
                    messages, _ = await api.read(
                        "foo",
                        partition=number,
                        readISRReplica=True,
                        startPosition=pb.EARLIEST,
                        stopPosition=pb.STOP_OFFSET,
                        stopOffset=partitions[number].highWatermark,
                    )
        await third(pb.DeleteStreamRequest(name="foo"))
        assert (await first.refusal(pb.PublishRequest(stream="foo"))).code() is NOT_FOUND
