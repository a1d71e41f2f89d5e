"""Bad input at Liftbridge's gateway: each has its documented status, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from benchmarks.kits.grpc_pump import GrpcPump, grpc_message

from tests.gateways.gateway_kit import HOST, Api, Cluster, dialled, opened
from tests.patience import patient, wait_until
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.transports.grpc.http2_frames import END_HEADERS, PREFACE, Http2FrameKind, frame, settings_frame
from tidelog.units import KIB, MIB

Status = grpc.StatusCode
INVALID = Status.INVALID_ARGUMENT
UNARY = (
    "CreateStream",
    "DeleteStream",
    "PauseStream",
    "SetStreamReadonly",
    "FetchMetadata",
    "FetchPartitionMetadata",
    "Publish",
    "PublishToSubject",
    "SetCursor",
    "FetchCursor",
)
BAD_SUBJECTS = (
    "",
    " ",
    "a b",
    "a\tb",
    ".",
    "a.",
    ".a",
    "a..b",
    "*",
    "a.*",
    "a.>",
    ">",
    "a\x00b",
    "$SYS.x",
    "_INBOX.y",
    "x" * 300,
)
LARGE = 1 * MIB + 1
GIANT = 8 * MIB + 1
WELL_S = 30.0


@contextlib.asynccontextmanager
async def a_witness(folder: Path) -> AsyncIterator[tuple[Cluster, Api]]:
    """A node with the stream `foo`, and somebody who publishes and subscribes there before, meanwhile and after."""
    async with opened(folder) as cluster, dialled(cluster.port("n1")) as witness:
        await witness.create("foo")
        publishing, subscribed = witness.publish_async(), witness.subscribe("foo")
        assert await subscribed.read() == pb.Message()
        await _is_well(publishing, subscribed, "before")
        yield cluster, witness
        await _is_well(publishing, subscribed, "after")
        publishing.cancel()
        subscribed.cancel()


async def _is_well(publishing: Any, subscribed: Any, word: str) -> None:
    async with asyncio.timeout(patient(WELL_S)):
        await publishing.write(pb.PublishRequest(stream="foo", value=word.encode(), correlationId=word))
        assert (await publishing.read()).correlationId == word
        while (await subscribed.read()).value != word.encode():
            pass


async def outcome(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return Status.OK


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    code: grpc.StatusCode = caught.value.code()
    return code


async def test_names_and_subjects_that_cannot_be_are_refused_in_words(tmp_path: Path) -> None:
    async with a_witness(tmp_path) as (_, api):
        for name in ("__activity", "__cursors", "", "a b", "foo/1", "x" * 300, "\u00fc"):
            refusal = await api.refusal(pb.CreateStreamRequest(name=name, subject="s"))
            assert refusal.code() is INVALID, name
            assert refusal.details(), name
        for subject in BAD_SUBJECTS:
            refusal = await api.refusal(pb.CreateStreamRequest(name="bar", subject=subject))
            assert (refusal.code(), bool(refusal.details())) == (INVALID, True), subject
        for subject in ("", " ", "a b", "a\tb"):
            assert (await api.refusal(pb.PublishToSubjectRequest(subject=subject))).code() is INVALID, subject
        for name in ("__cursors", "__activity"):
            assert (await api.refusal(pb.DeleteStreamRequest(name=name))).code() in (INVALID, Status.NOT_FOUND)
        known = (await api(pb.FetchMetadataRequest(streams=["bar"]))).streamMetadata
        assert known[0].error == pb.StreamMetadata.UNKNOWN_STREAM, "nothing was made on the way"


async def test_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    low, high = -(2**31), 2**31 - 1

    async with a_witness(tmp_path) as (_, api):
        for number in (low, -1, 1, 256, high):
            for request in (
                pb.PublishRequest(stream="foo", partition=number),
                pb.FetchPartitionMetadataRequest(stream="foo", partition=number),
                pb.SetCursorRequest(stream="foo", partition=number, cursorId="c"),
                pb.FetchCursorRequest(stream="foo", partition=number, cursorId="c"),
                pb.PauseStreamRequest(name="foo", partitions=[0, number]),
                pb.SetStreamReadonlyRequest(name="foo", partitions=[number], readonly=True),
            ):
                assert (await api.refusal(request)).code() is Status.NOT_FOUND, (type(request), number)
            _, end = await api.read("foo", partition=number)
            assert end.code() is Status.NOT_FOUND
        for number in (low, -2, 4, high):
            create = pb.CreateStreamRequest(name="bar", subject="s", replicationFactor=number)
            assert (await api.refusal(create)).code() is INVALID
        for number in (low, -1, 257, high):
            create = pb.CreateStreamRequest(name="bar", subject="s", partitions=number)
            assert (await api.refusal(create)).code() is INVALID
        for offset in (-2, -(2**63), 2**63 - 1):
            assert (await api.refusal(pb.SetCursorRequest(stream="foo", cursorId="c", offset=offset))).code() is INVALID
        for cursor in ("", "c" * 2_000):
            assert (await api.refusal(pb.SetCursorRequest(stream="foo", cursorId=cursor))).code() is INVALID


async def test_messages_that_are_too_large_are_refused_whichever_way_they_come(tmp_path: Path) -> None:
    async with a_witness(tmp_path) as (cluster, api):
        for request in (
            pb.PublishRequest(stream="foo", value=bytes(LARGE)),
            pb.PublishRequest(stream="foo", key=bytes(LARGE)),
            pb.PublishRequest(stream="foo", headers={"h": bytes(LARGE)}),
            pb.PublishRequest(stream="foo", key=bytes(LARGE // 2), value=bytes(LARGE // 2 + 1)),
            pb.PublishToSubjectRequest(subject="foo", value=bytes(LARGE)),
        ):
            assert (await api.refusal(request)).code() is INVALID
        giant = pb.PublishRequest(stream="foo", value=bytes(GIANT))
        assert (await api.refusal(giant)).code() is Status.RESOURCE_EXHAUSTED
        call = api.publish_async()
        await call.write(pb.PublishRequest(stream="foo", value=bytes(LARGE), correlationId="large"))
        answer = await call.read()
        assert (answer.correlationId, answer.asyncError.code) == ("large", pb.PublishAsyncError.BAD_REQUEST)
        await call.write(pb.PublishRequest(stream="foo", value=b"good", correlationId="good"))
        assert (await call.read()).ack.offset > 0
        await call.write(giant)
        assert await refused(call.read()) is Status.RESOURCE_EXHAUSTED
        async with dialled(cluster.port("n1")) as other:
            await other.publish("foo", bytes(MIB))


async def test_rubbish_instead_of_requests_is_told_so(tmp_path: Path) -> None:
    """Bytes that are no protobuf, and protobufs of anything; the seed is printed."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)

    async with (
        a_witness(tmp_path) as (cluster, _),
        grpc.aio.insecure_channel(f"{HOST}:{cluster.port('n1')}") as channel,
    ):
        for method in UNARY:
            call = channel.unary_unary(f"/proto.API/{method}")
            assert await refused(call(b"\xff\xff\xff", timeout=patient(WELL_S))) is INVALID, method
            for _ in range(15):
                data = dice.randbytes(dice.randrange(40))
                code = await outcome(call(data, timeout=patient(WELL_S)))
                bad = code in (Status.UNKNOWN, Status.INTERNAL, Status.UNAVAILABLE)
                assert not bad, f"{method} {data.hex()}: {code}, seed {seed}"
        subscribe = channel.unary_stream("/proto.API/Subscribe")
        assert await refused(subscribe(b"\xff\xff\xff").read()) is INVALID
        publish = channel.stream_stream("/proto.API/PublishAsync")()
        await publish.write(b"\xff\xff\xff")
        assert await refused(publish.read()) is INVALID
        assert await refused(channel.unary_unary("/proto.API/NoSuchCall")(b"")) is Status.UNIMPLEMENTED
        assert await refused(channel.unary_unary("/other.Service/Publish")(b"")) is Status.UNIMPLEMENTED


async def test_connections_that_break_the_protocol_or_off_are_let_go(tmp_path: Path) -> None:
    opening = PREFACE + settings_frame({})
    cut_message = frame(Http2FrameKind.DATA, b"\0\0\0\x10\0half", stream=1)

    async with a_witness(tmp_path) as (cluster, _):
        for rubbish in (
            b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),  # TLS at a gateway without
            bytes(100_000),
            opening + b"\xff" * 100,
            opening + frame(Http2FrameKind.HEADERS, b"\xff" * 50, flags=END_HEADERS, stream=1),
            opening + frame(Http2FrameKind.CONTINUATION, b"", stream=1),
            opening + frame(Http2FrameKind.PING, bytes(8)) * 10_000 + frame(Http2FrameKind.DATA, b"", stream=9),
        ):
            reader, writer = await asyncio.open_connection(HOST, cluster.port("n1"))
            with contextlib.suppress(ConnectionError):
                writer.write(rubbish)
                await reader.read()
            writer.close()
        pump = await GrpcPump.dial(HOST, cluster.port("n1"), "/proto.API/PublishAsync")
        transport = cast(asyncio.Transport, pump._transport)
        transport.write(cut_message)
        await asyncio.sleep(0)
        pump.close()


async def test_clients_that_never_read_cost_what_the_gateway_allows_and_no_more(tmp_path: Path) -> None:
    """They grant every window there is, so that nothing but the gateway itself stops it."""
    value = bytes(64 * KIB)
    count = 512  # 32 MiB in the log

    async with a_witness(tmp_path) as (cluster, api):
        await api.create("bar")
        call = api.publish_async()
        for _ in range(count):
            await call.write(pb.PublishRequest(stream="bar", value=value))
        await call.done_writing()
        assert len([answer async for answer in call]) == count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        subscription = pb.SubscribeRequest(stream="bar", startPosition=pb.EARLIEST).SerializeToString()
        pumps = []
        for _ in range(8):
            pump = await GrpcPump.dial(HOST, cluster.port("n1"), "/proto.API/Subscribe")
            cast(asyncio.Transport, pump._transport).pause_reading()
            await pump.send(grpc_message(subscription))
            pump.end()
            pumps.append(pump)
        running = cluster.gateways["n1"].subscriptions
        assert running is not None
        await wait_until(lambda: running.running == len(pumps) + 1, "all are served")
        for _ in range(20):
            await api.publish("foo", b"meanwhile")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * KIB
        assert grown < len(pumps) * 8 * MIB, "a few pieces each, and not the log"
        for pump in pumps:
            pump.close()
        await wait_until(lambda: running.running == 1, "they end with their clients")


async def test_a_publisher_that_never_takes_its_acks_is_read_no_further(tmp_path: Path) -> None:
    """LPA2: it hears what it may send, and grants no room for the acks."""
    one = grpc_message(pb.PublishRequest(stream="bar", value=b"v" * 100, correlationId="c" * 100).SerializeToString())

    async with a_witness(tmp_path) as (cluster, api):
        await api.create("bar")
        pump = await GrpcPump.dial(HOST, cluster.port("n1"), "/proto.API/PublishAsync", grants=False)
        sent, is_stuck = 0, False
        while sent < 300_000 and not is_stuck:
            try:
                async with asyncio.timeout(2):
                    await pump.send(one * 100)
                sent += 100
            except TimeoutError:
                is_stuck = True
        assert is_stuck, "windows and sockets are full long before"
        await api.publish("bar", b"others go on")
        pump.close()
