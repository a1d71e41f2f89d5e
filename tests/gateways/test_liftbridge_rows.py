"""Liftbridge's behaviour, row by row, as far as no other file of this folder has it.

What clients of Liftbridge rely on is a table, call by call; docs/protocols/liftbridge.md has ours. Where its rows are
tested:

    CreateStream            test_liftbridge_streams, test_liftbridge_names, test_liftbridge_bad_input, here (forwarded)
    Delete, Pause, Readonly test_liftbridge_streams, here (all partitions, forwarded)
    Subscribe               test_liftbridge_subscribe, here (oldest offset, only what is committed)
    FetchMetadata           test_liftbridge_streams, here (what a node without a replica says, no groups)
    FetchPartitionMetadata  test_liftbridge_streams
    Publish                 test_liftbridge_publish, here (no ack in time)
    PublishAsync            test_liftbridge_publish, here (order, inboxes)
    expectedOffset          test_liftbridge_publish, here (with keys and headers)
    Cursors                 test_liftbridge_streams, here (at any node)
    Groups                  test_liftbridge_groups
    forwarded errors        here
    what no document says   test_liftbridge_quirks
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.blocks.crafted import stamped
from tests.gateways.gateway_kit import Api, Cluster, dialled, one_node, opened
from tidelog.blocks.block import Block
from tidelog.blocks.messages import encode_values
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.gateways.liftbridge.logs import PartitionEnds
from tidelog.gateways.liftbridge.positions import span_of

Status = grpc.StatusCode
SPAN: dict[str, Any] = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}


async def partitions_of(api: Api, stream: str) -> list[pb.PartitionMetadata]:
    (found,) = (await api(pb.FetchMetadataRequest(streams=[stream]))).streamMetadata
    return [found.partitions[number] for number in sorted(found.partitions)]


# --- one node --------------------------------------------------------------------------------------------------


async def test_no_partitions_named_means_all_of_them(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", partitions=3)
        await api(pb.SetStreamReadonlyRequest(name="foo", readonly=True))
        assert [partition.readonly for partition in await partitions_of(api, "foo")] == [True] * 3
        await api(pb.SetStreamReadonlyRequest(name="foo", partitions=[1]))
        assert [partition.readonly for partition in await partitions_of(api, "foo")] == [True, False, True]
        await api(pb.PauseStreamRequest(name="foo", resumeAll=True))
        assert [partition.paused for partition in await partitions_of(api, "foo")] == [True] * 3


async def test_who_asks_for_no_groups_is_told_of_none(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        assert list((await api(pb.FetchMetadataRequest())).groupMetadata) == []


class TrimmedLog:
    """A log whose beginning was trimmed, and whose last two records are not committed yet."""

    STANDING = PartitionEnds(log_start=50, committed_end=98, log_end=100)

    async def standing(self) -> PartitionEnds:
        return self.STANDING

    async def read(self, position: int) -> list[Block]:
        raise AssertionError("nothing is read to find where to begin")

    async def blocks(self, low: int, high: int) -> AsyncIterator[Block]:
        assert self.STANDING.log_start <= low < high <= self.STANDING.committed_end, "LO2"
        made = encode_values([b"x"] * (high - low), time_us=1)
        yield stamped(made, base_offset=low)

    async def first_from(self, time_us: int, end: int) -> int | None:
        return None

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("wanted", "span"),
    [
        ({"startPosition": pb.OFFSET, "startOffset": 0}, (50, None)),
        ({"startPosition": pb.OFFSET, "startOffset": -7}, (50, None)),
        ({"startPosition": pb.OFFSET, "startOffset": 50}, (50, None)),
        ({"startPosition": pb.OFFSET, "startOffset": 1_000}, (100, None)),
        ({"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}, (50, 99)),
        ({"startPosition": pb.NEW_ONLY}, (100, None)),
        ({"startPosition": pb.LATEST}, (97, None)),
        ({"startPosition": pb.TIMESTAMP, "startTimestamp": 10**18}, (98, None)),
    ],
    ids=str,
)
async def test_a_start_below_the_oldest_is_the_oldest_and_new_is_what_the_replica_does_not_hold(
    wanted: dict[str, Any], span: tuple[int, int | None]
) -> None:
    assert await span_of(TrimmedLog(), TrimmedLog.STANDING, pb.SubscribeRequest(**wanted)) == span


async def test_a_message_with_key_and_headers_may_expect_its_offset_too(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("occ", optimisticConcurrencyControl=pb.NullableBool(value=True))

        def wanted(offset: int) -> pb.PublishRequest:
            return pb.PublishRequest(
                stream="occ", key=b"k", value=b"v", headers={"h": b"1"}, expectedOffset=offset, ackPolicy=pb.ALL
            )

        first = (await api(wanted(-1))).ack.offset
        assert (await api(wanted(first + 1))).ack.offset == first + 1
        assert (await api.refusal(wanted(first + 1))).code() is Status.UNKNOWN
        call = api.publish_async()
        for offset in (first + 2, first + 2, first + 3):
            await call.write(wanted(offset))
        await call.done_writing()
        answers = [answer async for answer in call]
        assert sorted(answer.ack.offset for answer in answers) == [0, first + 2, first + 3]
        (refused,) = [answer.asyncError.code for answer in answers if answer.HasField("asyncError")]
        assert refused == pb.PublishAsyncError.INCORRECT_OFFSET
        messages, _ = await api.read("occ", **SPAN)
        assert [(message.key, message.headers["h"]) for message in messages] == [(b"k", b"1")] * 4


async def test_async_messages_of_every_shape_keep_their_order_and_their_answers(tmp_path: Path) -> None:
    """Runs of plain values, and others between them that go alone (LPA4)."""
    count = 400

    def shaped(number: int) -> pb.PublishRequest:
        request = pb.PublishRequest(stream="foo", value=b"%d" % number, correlationId=f"c{number}")
        request.partition = number // 50 % 2
        if number % 7 == 0:
            request.key = b"k%d" % number
        if number % 11 == 0:
            request.headers["h"] = b"%d" % number
        if number % 13 == 0:
            request.ackInbox = f"inbox{number}"
        if number % 17 == 0:
            request.stream = "nothing"
        return request

    async with one_node(tmp_path) as api:
        await api.create("foo", partitions=2)
        call = api.publish_async()
        requests = {f"c{number}": shaped(number) for number in range(count)}
        for request in requests.values():
            await call.write(request)
        await call.done_writing()
        answers = {answer.correlationId: answer async for answer in call}
        assert answers.keys() == requests.keys(), "each is answered once"
        for name, request in requests.items():
            if request.stream == "nothing":
                assert answers[name].asyncError.code == pb.PublishAsyncError.NOT_FOUND
            else:
                assert (answers[name].ack.ackInbox, answers[name].ack.correlationId) == (request.ackInbox, name)
        for partition in range(2):
            messages, _ = await api.read("foo", partition=partition, **SPAN)
            sent = [one for one in requests.values() if one.partition == partition and one.stream == "foo"]
            assert [message.value for message in messages] == [request.value for request in sent]
            assert [message.key for message in messages] == [request.key for request in sent]
            acked = [answers[request.correlationId].ack.offset for request in sent]
            assert [message.offset for message in messages] == acked, "an ack names the message's own offset"


# --- three nodes -------------------------------------------------------------------------------------------------


async def test_any_node_answers_as_the_others_do(tmp_path: Path) -> None:
    async with opened(tmp_path, 3) as cluster, dialled(cluster.port("n1")) as first:
        await first.create("foo")
        leader = cluster.leader_of("foo")
        for name in cluster.peers:
            async with dialled(cluster.port(name)) as api:
                await _is_refused_everywhere_alike(api)
                request = pb.SetCursorRequest(stream="foo", cursorId="c", offset=len(name))
                await api(request)
                found = await first(pb.FetchCursorRequest(stream="foo", cursorId="c"))
                assert found.offset == len(name), "set anywhere, known everywhere"
                (partition,) = await partitions_of(api, "foo")
                assert partition.leader == leader
                is_known = partition.highWatermark >= 0
                assert is_known == (name == leader), "offsets are the answering node's own"
        await _is_acked_in_time_or_not_at_all(cluster, first)


async def _is_refused_everywhere_alike(api: Api) -> None:
    """The code of an operation that another node carries out is the one it gave."""
    for request, code in (
        (pb.CreateStreamRequest(name="foo", subject="foo"), Status.ALREADY_EXISTS),
        (pb.CreateStreamRequest(name="bar", subject="bar", replicationFactor=4), Status.INVALID_ARGUMENT),
        (pb.DeleteStreamRequest(name="nothing"), Status.NOT_FOUND),
        (pb.PauseStreamRequest(name="nothing"), Status.NOT_FOUND),
        (pb.SetStreamReadonlyRequest(name="nothing"), Status.NOT_FOUND),
        (pb.PublishRequest(stream="nothing"), Status.NOT_FOUND),
        (pb.FetchCursorRequest(stream="nothing", cursorId="c"), Status.NOT_FOUND),
    ):
        assert (await api.refusal(request)).code() is code, type(request)


async def _is_acked_in_time_or_not_at_all(cluster: Cluster, api: Api) -> None:
    """Two copies are needed, and the follower does not hear of the second message: it is not committed, so nobody is
    acked or shown anything. The follower is alive and stays in the ISR, or the message would be refused at once."""
    await api.create("two", replicationFactor=2, minIsr=pb.NullableInt32(value=2))
    leader = cluster.leader_of("two")
    (partition,) = await partitions_of(api, "two")
    (follower,) = set(partition.replicas) - {leader}
    async with dialled(cluster.port(leader)) as at_leader:
        (offset,) = await at_leader.publish("two", b"before")
        call = at_leader.subscribe("two", startPosition=pb.OFFSET, startOffset=offset)
        assert [(await call.read()).value for _ in range(2)] == [b"", b"before"]
        replicas = cluster.nodes[follower].core.channels.replicas
        taken, replicas.receive = replicas.receive, lambda *_: None  # type: ignore[method-assign]
        request = pb.PublishRequest(stream="two", value=b"uncommitted", ackPolicy=pb.ALL)
        assert (await at_leader.refusal(request, deadline_s=1.0)).code() is Status.DEADLINE_EXCEEDED
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait({reading}, timeout=0.3)
        assert not done, "only what is committed is shown"
        replicas.receive = taken  # type: ignore[method-assign]
        assert (await reading).value == b"uncommitted", "it was kept, and is committed now"
        call.cancel()
