"""What Liftbridge's clients rely on beyond its documents, as Liftbridge 1.9.0 answers the same calls."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import Api, Cluster, dialled, one_node, opened, run
from tests.patience import wait_until
from tests.transports.nats_server import NatsServer
from tidelog.client import Record, connect
from tidelog.codecs.liftbridge_envelope import MessageType, encode_envelope, open_envelope
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.transports.nats.connection import NatsConnection, NatsMessage, NatsOptions

Status = grpc.StatusCode
SPAN: dict[str, Any] = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}
CHECKED: dict[str, Any] = {"optimisticConcurrencyControl": pb.NullableBool(value=True)}
WORDS = "incorrect expected offset"


async def metadata_of(api: Api, stream: str) -> pb.PartitionMetadata:
    found: pb.PartitionMetadata = (await api(pb.FetchPartitionMetadataRequest(stream=stream))).metadata
    return found


def expecting(offset: int, value: bytes = b"v", policy: int = pb.ALL) -> pb.PublishRequest:
    return pb.PublishRequest(stream="occ", value=value, expectedOffset=offset, ackPolicy=policy)  # type: ignore[arg-type]


# --- expected offsets --------------------------------------------------------------------------------------------


async def test_a_fresh_stream_takes_the_message_that_expects_to_be_its_first(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("occ", **CHECKED)
        newest = (await metadata_of(api, "occ")).newestOffset
        assert newest == -1
        first = (await api(expecting(newest + 1, b"a"))).ack.offset
        refused = await api.refusal(expecting(0))
        assert (refused.code(), WORDS in (refused.details() or "")) == (Status.UNKNOWN, True)
        assert (await api(expecting(first + 1, b"b"))).ack.offset == first + 1
        messages, _ = await api.read("occ", **SPAN)
        assert [message.value for message in messages] == [b"a", b"b"]


async def test_cursors_do_not_disturb_who_expects_an_offset(tmp_path: Path) -> None:
    """Where the partition is led, and at another node, which cannot know what lies in between."""

    async with opened(tmp_path, 2) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("occ", **CHECKED)
        leader = cluster.leader_of("occ")
        (other,) = set(cluster.peers) - {leader}
        offset = -1
        for number, name in enumerate((leader, other, leader, other)):
            async with dialled(cluster.port(name)) as at:
                await at(pb.SetCursorRequest(stream="occ", cursorId="c", offset=number))
                ack = (await at(expecting(offset + 1, b"%d" % number))).ack
                assert ack.offset > offset
                refused = await at.refusal(expecting(offset + 1))
                assert WORDS in (refused.details() or ""), "a message lies there now"
                offset = ack.offset
        async with dialled(cluster.port(leader)) as at:
            messages, _ = await at.read("occ", **SPAN)
            assert [message.value for message in messages] == [b"0", b"1", b"2", b"3"]
            newest = (await metadata_of(at, "occ")).newestOffset
            assert (await at(expecting(newest + 1))).ack.offset == newest + 1
            beyond = await at.refusal(expecting(newest + 100))
            assert WORDS in (beyond.details() or "")


async def test_of_many_who_expect_the_same_offset_one_is_taken_and_those_behind_it_count_on_it(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("occ", **CHECKED)
        (first,) = await api.publish("occ", b"first")
        await api(pb.SetCursorRequest(stream="occ", cursorId="c", offset=1))
        racing = [api(expecting(first + 1, b"%d" % number)) for number in range(10)]
        outcomes = await asyncio.gather(*racing, return_exceptions=True)
        assert sum(isinstance(outcome, pb.PublishResponse) for outcome in outcomes) == 1
        newest = (await metadata_of(api, "occ")).newestOffset
        call = api.publish_async()
        for offset in range(newest + 1, newest + 21):
            await call.write(expecting(offset))
        await call.write(expecting(newest + 1))
        await call.done_writing()
        answers = [answer async for answer in call]
        assert [answer.ack.offset for answer in answers[:20]] == list(range(newest + 1, newest + 21))
        assert answers[20].asyncError.code == pb.PublishAsyncError.INCORRECT_OFFSET
        assert WORDS in answers[20].asyncError.message


# --- acks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [pb.LEADER, pb.ALL])
@pytest.mark.parametrize("key", [b"", b"k"])
@pytest.mark.parametrize("settings", [{}, CHECKED], ids=["plain", "checked"])
async def test_an_ack_tells_of_a_reception_not_before_the_stored_time_and_of_a_commit(
    tmp_path: Path, policy: int, key: bytes, settings: dict[str, Any]
) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", **settings)
        request = pb.PublishRequest(stream="foo", value=b"v", key=key, ackPolicy=policy, expectedOffset=-1)  # type: ignore[arg-type]
        acks = [(await api(request)).ack]
        call = api.publish_async()
        for _ in range(20):
            await call.write(request)
        await call.done_writing()
        acks += [answer.ack async for answer in call]
        messages, _ = await api.read("foo", **SPAN)
        stored = {message.offset: message.timestamp for message in messages}
        for ack in acks:
            assert 0 < stored[ack.offset] <= ack.receptionTimestamp <= ack.commitTimestamp


# --- what came over NATS -------------------------------------------------------------------------------------------


async def _attached(cluster: Cluster, count: int) -> NatsConnection:
    node = cluster.nodes["n1"]
    nats = node.nats
    assert nats is not None
    await wait_until(lambda: nats.is_up and node.attach.status()["subjects"] == count, "their leader listens")
    return nats


def test_a_reply_subject_that_came_over_nats_is_given_to_who_reads(tmp_path: Path) -> None:
    async def scenario(server: NatsServer) -> None:
        options = NatsOptions(servers=(server.url,))
        async with opened(tmp_path, nats=options) as cluster, dialled(cluster.port("n1")) as api:
            await api.create("foo", subject="s")
            nats = await _attached(cluster, 1)
            nats.publish("s", [b"asks"], reply="my.reply")
            nats.publish("s", [b"tells"])
            call = api.subscribe("foo", startPosition=pb.EARLIEST)
            assert await call.read() == pb.Message()
            asks, tells = await call.read(), await call.read()
            assert (asks.value, asks.replySubject, asks.headers["reply"]) == (b"asks", "my.reply", b"my.reply")
            assert (tells.value, tells.replySubject, tells.headers["reply"]) == (b"tells", "", b"")
            assert asks.headers["subject"] == b"s"
            call.cancel()

    with NatsServer(tmp_path / "nats") as server:
        run(scenario(server))


def test_over_nats_too_a_fresh_stream_and_cursors_do_not_disturb_who_expects_an_offset(tmp_path: Path) -> None:
    async def scenario(server: NatsServer) -> None:
        options = NatsOptions(servers=(server.url,))
        async with opened(tmp_path, nats=options) as cluster, dialled(cluster.port("n1")) as api:
            await api.create("occ", subject="s", **CHECKED)
            nats = await _attached(cluster, 1)
            acks: list[NatsMessage] = []
            nats.subscribe("acks", acks.extend)

            async def acked(offset: int) -> pb.Ack:
                message = pb.Message(value=b"v", offset=offset, ackInbox="acks", ackPolicy=pb.ALL)
                acks.clear()
                nats.publish("s", [encode_envelope(MessageType.PUBLISH, message.SerializeToString())])
                await wait_until(lambda: bool(acks), "the ack")
                return pb.Ack.FromString(bytes(open_envelope(acks[0].payload, MessageType.ACK)))

            first = await acked(0)
            assert first.ackError == pb.Ack.OK
            assert (await acked(0)).ackError == pb.Ack.INCORRECT_OFFSET
            await api(pb.SetCursorRequest(stream="occ", cursorId="c", offset=1))
            second = await acked(first.offset + 1)
            assert (second.ackError, second.offset > first.offset + 1) == (pb.Ack.OK, True)
            assert second.commitTimestamp >= second.receptionTimestamp > 0

    with NatsServer(tmp_path / "nats") as server:
        run(scenario(server))


# --- subscriptions -------------------------------------------------------------------------------------------------


async def test_a_start_beyond_the_end_waits_for_the_next_message(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        await api.publish("foo", b"before")
        call = api.subscribe("foo", startPosition=pb.OFFSET, startOffset=1_000)
        assert await call.read() == pb.Message()
        await api.publish("foo", b"a", b"b")
        assert [(await call.read()).value for _ in range(2)] == [b"a", b"b"]
        call.cancel()
        stop = {"stopPosition": pb.STOP_LATEST}
        _, ended = await api.read("foo", startPosition=pb.OFFSET, startOffset=1_000, **stop)
        assert ended.code() is Status.INVALID_ARGUMENT, "it would stop before it starts"


@pytest.mark.parametrize("number", [12, 13])
async def test_reading_in_reverse_is_refused_and_not_left_out(tmp_path: Path, number: int) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        request = pb.SubscribeRequest(stream="foo", startPosition=pb.EARLIEST)
        request.MergeFromString(bytes([number << 3, 1]))
        (_, ended) = await api.read_asked(request)
        assert (ended.code(), "reverse" in (ended.details() or "")) == (Status.INVALID_ARGUMENT, True)


# --- streams -------------------------------------------------------------------------------------------------------


async def test_a_partition_tells_when_messages_came_and_when_it_was_paused_or_readonly(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        fresh = await metadata_of(api, "foo")
        nothing = pb.PartitionEventTimestamps()
        assert fresh.messagesReceivedTimestamps == fresh.pauseTimestamps == fresh.readonlyTimestamps == nothing
        moments = [time.time_ns()]
        await api.publish("foo", b"a")
        moments.append(time.time_ns())
        await api.publish("foo", b"b")
        moments.append(time.time_ns())
        await api(pb.SetCursorRequest(stream="foo", cursorId="c", offset=1))
        received = (await metadata_of(api, "foo")).messagesReceivedTimestamps
        assert moments[0] // 1000 <= received.firstTimestamp // 1000 <= moments[1] // 1000
        assert moments[1] // 1000 <= received.latestTimestamp // 1000 <= moments[2] // 1000
        for request, field in (
            (pb.PauseStreamRequest(name="foo"), "pauseTimestamps"),
            (pb.SetStreamReadonlyRequest(name="foo", readonly=True), "readonlyTimestamps"),
        ):
            before = time.time_ns()
            await api(request)
            span = getattr(await metadata_of(api, "foo"), field)
            assert before <= span.firstTimestamp == span.latestTimestamp <= time.time_ns(), field
            if field == "pauseTimestamps":
                await api.publish("foo", b"resumes")
                resumed = (await metadata_of(api, "foo")).pauseTimestamps
                assert resumed.firstTimestamp == span.firstTimestamp < resumed.latestTimestamp


async def test_a_stream_that_should_pause_itself_is_refused(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        request = pb.CreateStreamRequest(name="foo", subject="foo", autoPauseTime=pb.NullableInt64(value=1_000))
        refused = await api.refusal(request)
        assert (refused.code(), "autoPauseTime" in (refused.details() or "")) == (Status.INVALID_ARGUMENT, True)
        request.autoPauseTime.value = 0
        await api(request)


async def test_a_name_that_was_left_out_is_told_from_one_that_nobody_has(tmp_path: Path) -> None:
    """Liftbridge's codes, call by call: docs/decisions/0024."""

    async with one_node(tmp_path) as api:
        for request, code in (
            (pb.PublishRequest(value=b"v"), Status.INVALID_ARGUMENT),
            (pb.SetCursorRequest(cursorId="c"), Status.INVALID_ARGUMENT),
            (pb.FetchCursorRequest(cursorId="c"), Status.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(subject="s"), Status.INVALID_ARGUMENT),
            (pb.DeleteStreamRequest(name="__cursors"), Status.INVALID_ARGUMENT),
            (pb.DeleteStreamRequest(), Status.NOT_FOUND),
            (pb.PauseStreamRequest(), Status.NOT_FOUND),
            (pb.SetStreamReadonlyRequest(), Status.NOT_FOUND),
            (pb.FetchPartitionMetadataRequest(), Status.NOT_FOUND),
        ):
            assert (await api.refusal(request)).code() is code, request
        _, ended = await api.read("")
        assert ended.code() is Status.NOT_FOUND
        call = api.publish_async()
        await call.write(pb.PublishRequest(value=b"v", correlationId="c"))
        assert (await call.read()).asyncError.code == pb.PublishAsyncError.NOT_FOUND
        call.cancel()


async def test_publish_reaches_its_stream_alone_and_a_subject_everybody(tmp_path: Path) -> None:
    """Unlike Liftbridge, on purpose: docs/decisions/0024."""

    async with one_node(tmp_path) as api:
        await api.create("one", subject="s")
        await api.create("two", subject="s")
        await api.publish("one", b"to one")
        await api(pb.PublishToSubjectRequest(subject="s", value=b"to both", ackPolicy=pb.ALL))
        for name, wanted in (("one", [b"to one", b"to both"]), ("two", [b"to both"])):
            call = api.subscribe(name, startPosition=pb.EARLIEST)  # the ack was the first one's alone
            assert [(await call.read()).value for _ in (b"", *wanted)] == [b"", *wanted]
            call.cancel()


async def test_what_a_native_client_reads_is_what_was_published_with_keys_and_headers(tmp_path: Path) -> None:
    """Messages of all shapes that came together are one block (LPA4)."""

    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo", partitions=3)
        call = api.publish_async()
        sent: dict[int, list[tuple[bytes, bytes | None]]] = {0: [], 1: [], 2: []}
        for number in range(300):
            key = b"k%d" % number if number % 2 else b""
            sent[number % 3].append((b"%d" % number, key or None))
            policy = pb.NONE if number % 5 == 0 else pb.LEADER
            request = pb.PublishRequest(
                stream="foo", partition=number % 3, value=b"%d" % number, key=key, ackPolicy=policy
            )
            if number % 7 == 0:
                request.headers["h"] = b"1"
            await call.write(request)
        await call.done_writing()
        assert len([answer async for answer in call if not answer.HasField("asyncError")]) == 240
        async with await connect(cluster.peers["n1"], insecure_dev=True) as client:
            for partition, wanted in sent.items():
                name = "foo" if not partition else f"foo/{partition}"
                async with client.reader(name, follow=False) as reader:
                    found = [(record.value, record.key) async for record in reader if isinstance(record, Record)]
                assert found == wanted, "in the order in which they came, LEADER and NONE mixed"
