"""Subscriptions: every start and stop position, how they end, and clients that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import Api, Cluster, dialled, one_node, opened
from tests.patience import wait_until
from tidelog.codecs.proto import liftbridge_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
NOT_FOUND = grpc.StatusCode.NOT_FOUND


async def take(call: Any, count: int) -> list[pb.Message]:
    """The next messages of a subscription that goes on."""
    return [await call.read() for _ in range(count)]


async def begun(call: Any) -> None:
    assert await call.read() == pb.Message(), "the first message is the empty one"


async def ended(call: Any) -> grpc.aio.AioRpcError:
    try:
        while True:
            assert await call.read() is not grpc.aio.EOF, "a subscription ends with a status"
    except grpc.aio.AioRpcError as error:
        return error


def values(messages: Sequence[pb.Message]) -> list[bytes]:
    return [message.value for message in messages]


async def published(api: Api, at: Cluster | None = None) -> list[pb.Message]:
    """Five messages with a cursor's control record before the last one: offsets with a gap."""
    await api.create("foo")
    await api.publish("foo", b"0", b"1", b"2", b"3")
    await api(pb.SetCursorRequest(stream="foo", cursorId="c", offset=1))
    await api.publish("foo", b"4")
    await api(pb.SetCursorRequest(stream="foo", cursorId="c", offset=2))
    span = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}
    if at is None:
        found, _ = await api.read("foo", **span)
    else:
        async with dialled(at.port(at.leader_of("foo"))) as leader:
            found, _ = await leader.read("foo", **span)
    assert values(found) == [b"0", b"1", b"2", b"3", b"4"]
    assert found[4].offset == found[3].offset + 2, "the cursor took an offset"
    return found


async def test_a_subscription_begins_where_it_is_told(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        found = await published(api)
        starts: list[tuple[dict[str, Any], int]] = [
            ({"startPosition": pb.EARLIEST}, 0),
            ({"startPosition": pb.LATEST}, 4),
            ({"startPosition": pb.OFFSET, "startOffset": 0}, 0),
            ({"startPosition": pb.OFFSET, "startOffset": found[2].offset}, 2),
            ({"startPosition": pb.OFFSET, "startOffset": found[3].offset + 1}, 4),
            ({"startPosition": pb.TIMESTAMP, "startTimestamp": 0}, 0),
            ({"startPosition": pb.TIMESTAMP, "startTimestamp": found[3].timestamp}, 3),
            ({"startPosition": pb.TIMESTAMP, "startTimestamp": found[3].timestamp + 1}, 4),
        ]
        for start, first in starts:
            call = api.subscribe("foo", **start)
            await begun(call)
            assert values(await take(call, 5 - first)) == values(found[first:]), start
            call.cancel()


async def test_a_subscription_for_what_comes_is_given_only_that(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        found = await published(api)
        after_all = found[-1].timestamp + 10**15
        calls = [
            api.subscribe("foo"),
            api.subscribe("foo", startPosition=pb.TIMESTAMP, startTimestamp=after_all),
        ]
        for call in calls:
            await begun(call)
        far = api.subscribe("foo", startPosition=pb.OFFSET, startOffset=found[-1].offset + 4)
        await begun(far)
        offsets = await api.publish("foo", b"5", b"6", b"7")
        for call in calls:
            assert values(await take(call, 3)) == [b"5", b"6", b"7"]
            call.cancel()
        (message,) = await take(far, 1)
        assert message.offset == offsets[0], "a start beyond the end waits for the next message, as Liftbridge does"
        far.cancel()


async def test_a_subscription_ends_where_it_is_told(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        found = await published(api)
        stops: list[tuple[dict[str, Any], int]] = [
            ({"stopPosition": pb.STOP_LATEST}, 5),
            ({"stopPosition": pb.STOP_OFFSET, "stopOffset": found[2].offset}, 3),
            ({"stopPosition": pb.STOP_OFFSET, "stopOffset": found[3].offset + 1}, 4),
            ({"stopPosition": pb.STOP_TIMESTAMP, "stopTimestamp": found[1].timestamp}, 2),
            ({"stopPosition": pb.STOP_TIMESTAMP, "stopTimestamp": found[4].timestamp + 10**15}, 5),
        ]
        for stop, count in stops:
            messages, end = await api.read("foo", startPosition=pb.EARLIEST, **stop)
            assert values(messages) == values(found[:count]), stop
            assert end.code() is EXHAUSTED


async def test_a_stop_that_lies_ahead_is_waited_for(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        await api.create("foo")
        (first,) = await api.publish("foo", b"0")
        call = api.subscribe("foo", startPosition=pb.EARLIEST, stopPosition=pb.STOP_OFFSET, stopOffset=first + 1)
        await begun(call)
        assert values(await take(call, 1)) == [b"0"]
        await api.publish("foo", b"1", b"2")
        assert values(await take(call, 1)) == [b"1"]
        assert (await ended(call)).code() is EXHAUSTED


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"stream": "nothing"}, NOT_FOUND),
        ({"partition": 1}, NOT_FOUND),
        ({"partition": -1}, NOT_FOUND),
        ({"startPosition": 17}, INVALID),
        ({"stopPosition": 17}, INVALID),
        ({"startPosition": pb.OFFSET, "startOffset": 5, "stopPosition": pb.STOP_OFFSET, "stopOffset": 4}, INVALID),
        ({"consumer": pb.Consumer(groupId="g"), "readISRReplica": True}, INVALID),
        ({"consumer": pb.Consumer(groupId="g", consumerId="c")}, grpc.StatusCode.NOT_FOUND),
        ({"stopPosition": pb.STOP_LATEST}, EXHAUSTED),
        ({"stopPosition": pb.STOP_TIMESTAMP, "stopTimestamp": 5}, EXHAUSTED),
    ],
    ids=str,
)
async def test_a_subscription_that_cannot_be_is_refused(tmp_path: Path, wanted: dict[str, Any], code: Any) -> None:
    async with one_node(tmp_path) as api:
        await api.create("empty")
        messages, end = await api.read(**{"stream": "empty", **wanted})
        assert (messages, end.code()) == ([], code)


async def test_a_running_subscription_ends_with_its_stream(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        for name in ("deleted", "paused", "readonly"):
            await api.create(name)
            await api.publish(name, b"x")
        calls = {name: api.subscribe(name, startPosition=pb.EARLIEST) for name in ("deleted", "paused", "readonly")}
        for call in calls.values():
            await begun(call)
            assert values(await take(call, 1)) == [b"x"]
        await api(pb.DeleteStreamRequest(name="deleted"))
        await api(pb.PauseStreamRequest(name="paused"))
        await api(pb.SetStreamReadonlyRequest(name="readonly", readonly=True))
        assert (await ended(calls["deleted"])).code() is NOT_FOUND
        assert (await ended(calls["paused"])).code() is PRECONDITION
        assert (await ended(calls["readonly"])).code() is EXHAUSTED


async def test_a_readonly_stream_is_read_to_its_end(tmp_path: Path) -> None:
    async with one_node(tmp_path) as api:
        found = await published(api)
        await api(pb.SetStreamReadonlyRequest(name="foo", readonly=True))
        messages, end = await api.read("foo", startPosition=pb.EARLIEST)
        assert (values(messages), end.code()) == (values(found), EXHAUSTED)


async def test_who_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    size, count = 64 * 1024, 256  # 16 MiB: more than any buffer between the log and a client

    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        async with dialled(cluster.port("n1")) as lazy:
            stuck = lazy.subscribe("foo", startPosition=pb.EARLIEST)
            await begun(stuck)
            call = api.publish_async()
            for number in range(count):
                await call.write(pb.PublishRequest(stream="foo", value=number.to_bytes(2) + bytes(size)))
            await call.done_writing()
            assert len([answer async for answer in call]) == count
            subscription = api.subscribe("foo", startPosition=pb.EARLIEST)
            await begun(subscription)
            got = [int.from_bytes(message.value[:2]) for message in await take(subscription, count)]
            assert got == list(range(count))
            subscription.cancel()
            assert int.from_bytes((await take(stuck, 1))[0].value[:2]) == 0, "it may go on where it stopped"
        running = cluster.gateways["n1"].subscriptions
        assert running is not None
        await wait_until(lambda: running.running == 0, "subscriptions end with their clients")


async def test_a_node_has_so_many_subscriptions_and_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        running = cluster.gateways["n1"].subscriptions
        assert running is not None
        running._max = 1
        call = api.subscribe("foo")
        await begun(call)
        _, end = await api.read("foo")
        assert end.code() is grpc.StatusCode.UNAVAILABLE
        call.cancel()
        await wait_until(lambda: running.running == 0, "the first has ended")
        again = api.subscribe("foo")
        await begun(again)
        again.cancel()


async def test_a_subscription_moves_with_the_leader_and_misses_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, 3) as cluster:
        names = list(cluster.peers)
        async with dialled(cluster.port(names[0])) as api:
            await api.create("foo", replicationFactor=3)
        leader = cluster.leader_of("foo")
        other = next(name for name in names if name != leader)
        async with dialled(cluster.port(other)) as publisher, dialled(cluster.port(leader)) as reader:
            before = await publisher.publish("foo", *(b"%d" % number for number in range(10)))
            call = reader.subscribe("foo", startPosition=pb.EARLIEST)
            await begun(call)
            found = await take(call, 10)
            publishing = asyncio.ensure_future(publisher.publish("foo", *(b"%d" % n for n in range(10, 40))))
            await cluster.stop_node(leader)
            end = await ended(call)
            assert end.code() is grpc.StatusCode.UNAVAILABLE, "clients look for the new leader then"
            after = await publishing
            assert before + after == sorted({*before, *after}), "each acked at an offset of its own"
            new_leader = cluster.leader_of("foo")
            async with dialled(cluster.port(new_leader)) as again:
                call = again.subscribe("foo", startPosition=pb.OFFSET, startOffset=found[-1].offset + 1)
                await begun(call)
                found += await take(call, 30)
                call.cancel()
        assert values(found) == [b"%d" % number for number in range(40)]


async def test_any_node_gives_what_other_replicas_hold_if_that_is_enough(tmp_path: Path) -> None:
    async with opened(tmp_path, 3) as cluster:
        async with dialled(cluster.port("n1")) as api:
            found = await published(api, at=cluster)
        leader = cluster.leader_of("foo")
        other = next(name for name in cluster.peers if name != leader)
        async with dialled(cluster.port(other)) as api:
            _, end = await api.read("foo", startPosition=pb.EARLIEST)
            assert end.code() is PRECONDITION, "it has no replica, and does not lead"
            spans: list[tuple[dict[str, Any], list[bytes]]] = [
                ({"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}, values(found)),
                ({"startPosition": pb.LATEST, "stopPosition": pb.STOP_LATEST}, values(found[4:])),
                (
                    {
                        "startPosition": pb.TIMESTAMP,
                        "startTimestamp": found[1].timestamp,
                        "stopPosition": pb.STOP_TIMESTAMP,
                        "stopTimestamp": found[3].timestamp,
                    },
                    values(found[1:4]),
                ),
            ]
            for span, wanted in spans:
                messages, end = await api.read("foo", readISRReplica=True, **span)
                assert (values(messages), end.code()) == (wanted, EXHAUSTED), span
            call = api.subscribe("foo", readISRReplica=True)
            await begun(call)
            await api.publish("foo", b"5")
            assert values(await take(call, 1)) == [b"5"]
            await api(pb.DeleteStreamRequest(name="foo"))
            assert (await ended(call)).code() is NOT_FOUND
