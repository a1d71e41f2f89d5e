"""Publishing through the gateway: acks, their policies, pipelining, subjects, expected offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import HOST, Api, dialled, one_node, opened
from tests.patience import patient
from tidelog.client import connect
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.gateways.liftbridge.producers import GatewayProducers, OutgoingMessage

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SPAN = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}


async def values_of(api: Api, stream: str, **more: Any) -> list[bytes]:
    messages, _ = await api.read(stream, **SPAN, **more)
    return [message.value for message in messages]


async def test_an_ack_says_where_the_message_is_and_whose_it_was(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo", subject="sub", partitions=2)
        for policy in (pb.LEADER, pb.ALL):
            request = pb.PublishRequest(
                stream="foo", partition=1, value=b"v", correlationId="c1", ackInbox="inbox", ackPolicy=policy
            )
            answer = await api(request)
            ack = answer.ack
            assert (answer.correlationId, ack.correlationId, ack.ackInbox) == ("c1", "c1", "inbox")
            assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("foo", "sub.1", "sub.1")
            assert (ack.ackPolicy, ack.ackError) == (policy, pb.Ack.OK)
            assert ack.receptionTimestamp > 10**18
            assert ack.commitTimestamp >= ack.receptionTimestamp
        messages, _ = await api.read("foo", partition=1, **SPAN)
        assert messages[-1].offset == ack.offset
        assert [message.subject for message in messages] == ["sub.1"] * 2


async def test_keys_values_and_headers_come_out_as_they_went_in(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        headers = {"a": b"1", "b": b"", "subject": b"forged", "reply": b"forged"}
        await api(pb.PublishRequest(stream="foo", key=b"k", value=b"v", headers=headers))
        await api(pb.PublishRequest(stream="foo"))
        (full, bare), _ = await api.read("foo", **SPAN)
        assert (full.key, full.value, full.stream, full.partition) == (b"k", b"v", "foo", 0)
        assert dict(full.headers) == {"a": b"1", "b": b"", "subject": b"foo", "reply": b""}
        assert (bare.key, bare.value, dict(bare.headers)) == (b"", b"", {"subject": b"foo", "reply": b""})
        assert 10**18 < full.timestamp <= bare.timestamp


@pytest.mark.parametrize(("policy", "deadline_s"), [(pb.NONE, 30.0), (pb.ALL, None), (pb.LEADER, None)])
async def test_who_asks_for_no_ack_or_has_no_deadline_hears_nothing_and_is_heard(
    tmp_path: Path, policy: int, deadline_s: float | None
) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        request = pb.PublishRequest(stream="foo", value=b"quiet", ackPolicy=policy)  # type: ignore[arg-type]
        assert not (await api(request, deadline_s=deadline_s)).HasField("ack")
        async for message in api.subscribe("foo", startPosition=pb.EARLIEST):
            if message.value:
                assert message.value == b"quiet"
                break


async def test_a_message_that_is_too_large_is_refused_in_words(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        refusal = await api.refusal(pb.PublishRequest(stream="foo", value=bytes(2**20 + 1)))
        assert refusal.code() is INVALID
        assert "split it" in (refusal.details() or "")
        await api.publish("foo", bytes(2**20))


async def test_async_messages_are_acked_in_order_without_a_wait_for_each(tmp_path: Path) -> None:
    count = 3_000

    async with one_node(tmp_path) as api:
        await api.create("foo")
        call = api.publish_async()

        async def send() -> None:
            for number in range(count):
                policy = (pb.LEADER, pb.NONE)[number % 2]
                await call.write(
                    pb.PublishRequest(stream="foo", value=b"%d" % number, correlationId=str(number), ackPolicy=policy)
                )
            await call.done_writing()

        sending = asyncio.ensure_future(send())
        answers = [answer async for answer in call]
        await sending
        assert [answer.ack.correlationId for answer in answers] == [str(n) for n in range(0, count, 2)]
        assert not any(answer.HasField("asyncError") for answer in answers)
        offsets = [answer.ack.offset for answer in answers]
        assert offsets == sorted(set(offsets))
        assert await values_of(api, "foo") == [b"%d" % number for number in range(count)]


async def test_an_async_message_that_cannot_be_taken_is_told_and_the_next_is_taken(tmp_path: Path) -> None:
    codes = pb.PublishAsyncError

    async with one_node(tmp_path) as api:
        await api.create("foo")
        await api.create("shut")
        await api(pb.SetStreamReadonlyRequest(name="shut", readonly=True))
        call = api.publish_async()
        cases = {
            "missing": pb.PublishRequest(stream="nothing"),
            "partition": pb.PublishRequest(stream="foo", partition=7),
            "shut": pb.PublishRequest(stream="shut"),
            "large": pb.PublishRequest(stream="foo", value=bytes(2**20 + 1)),
            "good": pb.PublishRequest(stream="foo", value=b"good"),
        }
        for name, request in cases.items():
            request.correlationId = name
            await call.write(request)
        await call.done_writing()
        answers = {answer.correlationId: answer async for answer in call}
        found = {name: answer.asyncError.code for name, answer in answers.items() if answer.HasField("asyncError")}
        assert found == {
            "missing": codes.NOT_FOUND,
            "partition": codes.NOT_FOUND,
            "shut": codes.READONLY,
            "large": codes.BAD_REQUEST,
        }
        assert answers["missing"].ack.correlationId == "", "failures are matched by the response's own"
        assert answers["good"].ack.correlationId == "good"


async def test_an_idle_async_stream_stays_open_and_one_that_is_cut_harms_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        idle = api.publish_async()
        async with dialled(cluster.port("n1")) as other:
            cut = other.publish_async()
            await cut.write(pb.PublishRequest(stream="foo", value=b"cut"))
        await api.publish("foo", b"later")
        await idle.write(pb.PublishRequest(stream="foo", value=b"idle", correlationId="i"))
        assert (await idle.read()).correlationId == "i"
        idle.cancel()


async def test_a_stream_that_checks_offsets_takes_a_message_only_where_it_is_expected(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("occ", optimisticConcurrencyControl=pb.NullableBool(value=True))

        def wanted(offset: int, policy: int = pb.ALL) -> pb.PublishRequest:
            return pb.PublishRequest(stream="occ", value=b"v", expectedOffset=offset, ackPolicy=policy)  # type: ignore[arg-type]

        first = (await api(wanted(-1))).ack.offset
        assert (await api(wanted(first + 1))).ack.offset == first + 1
        assert (await api.refusal(wanted(first + 1))).code() is grpc.StatusCode.UNKNOWN
        assert (await api.refusal(wanted(-1, pb.NONE))).code() is INVALID
        assert (await api.refusal(wanted(-5))).code() is INVALID
        end = (await api(pb.FetchPartitionMetadataRequest(stream="occ"))).metadata.newestOffset
        assert (await api(wanted(end + 1))).ack.offset == end + 1, "who lost asks for the end, and goes on"
        call = api.publish_async()
        await call.write(wanted(0))
        await call.done_writing()
        (answer,) = [answer async for answer in call]
        assert answer.asyncError.code == pb.PublishAsyncError.INCORRECT_OFFSET


async def test_a_stream_that_checks_nothing_takes_old_clients_whose_expected_offset_is_0(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        await api.publish("foo", b"a")
        await api(pb.PublishRequest(stream="foo", value=b"b", expectedOffset=0))
        assert await values_of(api, "foo") == [b"a", b"b"]


async def test_a_subject_reaches_every_stream_and_one_of_each_group(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("one", subject="s")
        await api.create("two", subject="s", partitions=2)
        await api.create("g1", subject="s", group="g")
        await api.create("g2", subject="s", group="g")
        for number in range(4):
            request = pb.PublishToSubjectRequest(subject="s", value=b"%d" % number, ackPolicy=pb.ALL)
            assert (await api(request)).ack.msgSubject == "s"
        await api(pb.PublishToSubjectRequest(subject="s.1", value=b"p1", ackPolicy=pb.ALL))
        everything = [b"%d" % number for number in range(4)]
        assert await values_of(api, "one") == everything
        assert await values_of(api, "two") == everything
        assert await values_of(api, "two", partition=1) == [b"p1"]
        assert sorted(await values_of(api, "g1") + await values_of(api, "g2")) == everything


async def test_a_subject_that_nobody_listens_to_is_never_acked(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        unheard = pb.PublishToSubjectRequest(subject="nobody", value=b"x", ackPolicy=pb.ALL)
        assert (await api.refusal(unheard)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not (await api(unheard, deadline_s=None)).HasField("ack")
        assert (await api.refusal(pb.PublishToSubjectRequest(subject="a b"))).code() is INVALID


async def test_bytes_that_are_no_request_harm_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        idle = api.publish_async()
        async with grpc.aio.insecure_channel(f"{HOST}:{cluster.port('n1')}") as channel:
            for method in ("CreateStream", "Publish", "FetchMetadata", "SetCursor"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(f"/proto.API/{method}")(b"\xff\xff\xff", timeout=patient(30))
                assert refused.value.code() is INVALID, method
            call = channel.stream_stream("/proto.API/PublishAsync")()
            await call.write(pb.PublishRequest(stream="foo", value=b"first").SerializeToString())
            assert pb.PublishResponse.FromString(await call.read()).ack.offset > 0
            await call.write(b"\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is INVALID
        for bad in (
            pb.PublishRequest(stream="foo", ackPolicy=17),  # type: ignore[arg-type]
            pb.PublishToSubjectRequest(subject="foo", ackPolicy=17),  # type: ignore[arg-type]
        ):
            assert (await api.refusal(bad)).code() is INVALID
        await idle.write(pb.PublishRequest(stream="foo", value=b"good", correlationId="g"))
        assert (await idle.read()).correlationId == "g"
        assert await values_of(api, "foo") == [b"first", b"good"]
        idle.cancel()


async def test_producers_make_room_for_each_other_and_lose_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        names = [f"s{number}" for number in range(4)]
        for name in names:
            await api.create(name)
        catalog = cluster.nodes["n1"].channels.catalog
        async with await connect(cluster.peers["n1"], insecure_dev=True) as client:
            producers = GatewayProducers(client, node="n1", producers_max=2, bytes_max=2_000)
            outcomes: list[tuple[str, int, Any]] = []
            for turn in range(20):
                for name in names:
                    record = catalog.channel(name)
                    assert record is not None
                    await producers.wait_room()
                    assert producers.bytes < 2_000

                    def answered(offset: int, error: Any, name: str = name) -> None:
                        outcomes.append((name, offset, error))

                    producers.send(record, pb.ALL, OutgoingMessage(b"%d" % turn, None, ()), answered)
            await producers.close()
            assert producers.bytes == 0
            assert [error for _, _, error in outcomes if error is not None] == []
            assert len(outcomes) == 80
        for name in names:
            assert await values_of(api, name) == [b"%d" % turn for turn in range(20)]
