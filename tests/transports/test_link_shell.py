"""Live links over real sockets: requests, limits, drains, and peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.patience import patient, slowness, wait_until
from tests.transports.links import (
    CLUSTER,
    HOST,
    OTHER_CLUSTER,
    QUIET,
    TIMEOUT_MS,
    Duo,
    Recorder,
    duo,
    echo,
    hello_of,
    plain_end,
    refusal_of,
)
from tidelog.errors import (
    AddressTaken,
    DiskFull,
    InvalidConfig,
    LinkBusy,
    LinkClosed,
    PeerRefused,
    PeerUnreachable,
    UnknownMethod,
    WaitTimedOut,
    WrongCluster,
    WrongPeer,
)
from tidelog.transports.link.frames import HEAD, FrameType, frame
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkListener, LinkOptions, dial_link
from tidelog.transports.link.memory import BodyMemory
from tidelog.units import KIB, MIB


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


# --- talking ---------------------------------------------------------------------------------------


async def test_small_messages_arrive_in_order_and_requests_are_answered() -> None:
    async with duo() as both:
        for number in range(5_000):
            both.near.post(7, number.to_bytes(4, "little"))
        answer = await both.near.request(1, b"ping", timeout_ms=TIMEOUT_MS)
        assert bytes(answer) == b"ping"
        assert [int.from_bytes(body, "little") for _, _, body in both.far_handler.messages] == list(range(5_000))
        assert bytes(await both.far.request(1, b"pong", timeout_ms=TIMEOUT_MS)) == b"pong"
        assert (both.near.peer, both.far.peer, both.far.peer_kind) == ("n2", "n1", "node")
        assert both.far.peer_cluster == CLUSTER


async def test_large_bodies_go_both_ways_at_once_with_heartbeats_in_between() -> None:
    dice = random.Random(4)
    bodies = [dice.randbytes(3 * MIB + number) for number in range(4)]

    async with duo() as both:
        waits_ms: list[float] = []

        async def carry(link: Link, body: bytes) -> None:
            for _ in range(3):
                answer = await link.request(1, [body[:1_000], memoryview(body)[1_000:]], timeout_ms=TIMEOUT_MS)
                assert answer == body

        async with asyncio.TaskGroup() as group:
            carrying = [group.create_task(carry(link, body)) for link in (both.near, both.far) for body in bodies]
            while not all(task.done() for task in carrying):
                start = time.monotonic()
                await both.near.request(1, b"heartbeat", timeout_ms=TIMEOUT_MS)
                waits_ms.append((time.monotonic() - start) * 1000)
        assert len(waits_ms) > 3, "heartbeats were answered while large bodies went both ways"
        for link in (both.near, both.far):
            assert (link.statistics().held_bytes, link.statistics().queue_bytes) == (0, 0)


async def test_a_handler_that_raises_hurts_its_own_request_only() -> None:
    async with duo() as both:
        both.far_handler.refuses = {
            2: DiskFull(operation="append", path="x", reason="no space"),
            3: ZeroDivisionError("a secret"),
        }
        typed = await refusal_of(both.near.request(2, b"", timeout_ms=TIMEOUT_MS))
        assert (typed.code, typed.retriable, typed.definite) == ("disk_full", True, True)
        untyped = await refusal_of(both.near.request(3, b"", timeout_ms=TIMEOUT_MS))
        assert (untyped.code, untyped.definite) == ("handler_failed", False)
        assert "secret" not in str(untyped)
        unknown = await refusal_of(both.near.request(99, b"", timeout_ms=TIMEOUT_MS))
        assert (type(unknown), unknown.code) == (PeerRefused, UnknownMethod.code)
        assert bytes(await both.near.request(1, b"fine", timeout_ms=TIMEOUT_MS)) == b"fine"


async def test_a_refused_message_is_counted_and_a_bug_in_its_handler_ends_the_link() -> None:
    async with duo() as both:
        both.far_handler.refuses = {2: UnknownMethod(kind=2), 3: KeyError("a bug")}
        both.near.post(2, b"")
        await wait_until(lambda: both.far.statistics().messages_refused == 1)
        assert both.near.is_usable
        both.near.post(3, b"")
        await wait_until(lambda: both.near.is_closed and both.far.is_closed)
        assert "handler_failed" in (both.far.close_reason or "")
        assert "handler_failed" in (both.near.close_reason or "")


class Gate:
    """A handler that answers when it is let go, and tells whether it was cancelled."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.open = asyncio.Event()

    async def __call__(self, link: Link, body: memoryview) -> Buffers:
        self.begun += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return b"done"


@contextlib.asynccontextmanager
async def gated(both: Duo):  # type: ignore[no-untyped-def]
    gate = Gate()
    both.far_handler.answers[5] = gate
    yield gate
    gate.open.set()


async def test_a_request_past_its_deadline_fails_and_its_handler_is_stopped() -> None:
    async with duo() as both, gated(both) as gate:
        error = await refusal_of(both.near.request(5, b"", timeout_ms=50))
        assert isinstance(error, WaitTimedOut)
        assert not error.definite
        await wait_until(lambda: gate.cancelled == 1)
        assert both.near.statistics().calls_open == 0
        await wait_until(lambda: both.far.statistics().requests_running == 0)


async def test_a_cancelled_request_frees_its_call_on_both_sides() -> None:
    async with duo() as both, gated(both) as gate:
        asking = asyncio.create_task(both.near.request(5, bytes(MIB), timeout_ms=TIMEOUT_MS))
        await wait_until(lambda: gate.begun == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await wait_until(lambda: gate.cancelled == 1)
        await wait_until(lambda: both.far.statistics().held_bytes == 0)
        assert both.near.statistics().calls_open == 0


async def test_draining_lets_answers_finish() -> None:
    async with duo() as both, gated(both) as gate:
        asking = asyncio.create_task(both.near.request(5, b"", timeout_ms=TIMEOUT_MS))
        await wait_until(lambda: gate.begun == 1)
        both.near.post(7, b"last words")
        closing = asyncio.create_task(both.far.close(drain_ms=TIMEOUT_MS))
        await wait_until(lambda: not both.near.is_usable)
        with pytest.raises(LinkClosed):
            both.near.post(7, b"too late")
        gate.open.set()
        assert bytes(await asking) == b"done"
        await closing
        await both.near.wait_closed()
        assert both.far_handler.messages == [("n1", 7, b"last words")]
        assert "drained" in (both.far.close_reason or "")


async def test_a_drain_that_takes_too_long_fails_what_waits() -> None:
    async with duo() as both, gated(both) as gate:
        asking = asyncio.create_task(both.near.request(5, b"", timeout_ms=TIMEOUT_MS))
        await wait_until(lambda: gate.begun == 1)
        await both.far.close(drain_ms=20)
        error = await refusal_of(asking)
        assert isinstance(error, LinkClosed)
        assert not error.definite
        assert gate.cancelled == 1


async def test_a_link_that_is_cut_fails_what_waits_and_tells_once() -> None:
    async with duo() as both, gated(both) as gate:
        ends: list[str] = []
        both.near.on_close.append(lambda _, reason: ends.append(reason))
        asking = asyncio.create_task(both.near.request(5, b"", timeout_ms=TIMEOUT_MS))
        await wait_until(lambda: gate.begun == 1)
        both.far.abort("a test")
        assert isinstance(await refusal_of(asking), LinkClosed)
        both.near.abort("again")
        assert len(ends) == 1
        with pytest.raises(LinkClosed):
            both.near.post(7, b"")
        assert isinstance(await refusal_of(both.near.request(1, b"", timeout_ms=TIMEOUT_MS)), LinkClosed)


# --- peers that misbehave --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(end: LinkEnd, handler: Recorder, links: list[Link]):  # type: ignore[no-untyped-def]
    listener = LinkListener(f"{HOST}:0", end=end, handler=handler, on_link=links.append)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()
        for link in links:
            link.abort("the test is over")


async def stranger(port: int) -> socket.socket:
    """A connection whose owner keeps to no rule."""
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (HOST, port))
    return connection


async def introduced(port: int, options: LinkOptions | None = None) -> socket.socket:
    """The same, after a proper hello as n9."""
    connection = await stranger(port)
    loop = asyncio.get_running_loop()
    hello = hello_of(options or LinkOptions(), node="n9")
    await loop.sock_sendall(connection, frame(FrameType.HELLO, body=hello.encode()))
    head = b""
    while len(head) < HEAD.size:
        head += await loop.sock_recv(connection, HEAD.size - len(head))
    length, frame_type, *_ = HEAD.unpack(head)
    assert frame_type == FrameType.HELLO
    while length:
        length -= len(await loop.sock_recv(connection, length))
    await loop.sock_sendall(connection, frame(FrameType.READY))
    return connection


async def hung_up(connection: socket.socket) -> bytes:
    """What the other side still said before it closed."""
    loop = asyncio.get_running_loop()
    said = b""
    async with asyncio.timeout(patient(60)):
        with contextlib.suppress(ConnectionError):
            while part := await loop.sock_recv(connection, 65_536):
                said += part
    return said


async def test_a_caller_that_says_nothing_is_hung_up_on() -> None:
    links: list[Link] = []
    end = plain_end("n2", options=LinkOptions(handshake_timeout_ms=100))
    async with listening(end, Recorder(), links) as listener:
        with await stranger(listener.port) as connection:
            assert await hung_up(connection) == b""
        await wait_until(lambda: listener.refused == 1)
        assert links == []


async def test_a_caller_that_stops_half_way_through_the_hello_is_hung_up_on() -> None:
    end = plain_end("n2", options=LinkOptions(handshake_timeout_ms=100))
    async with listening(end, Recorder(), []) as listener:
        with await stranger(listener.port) as connection:
            await asyncio.get_running_loop().sock_sendall(connection, b"\x30\0\0\0\1")
            assert await hung_up(connection) == b""


async def test_callers_over_the_limit_are_hung_up_on_at_once() -> None:
    links: list[Link] = []
    listener = LinkListener(
        f"{HOST}:0", end=plain_end("n2"), handler=Recorder(), on_link=links.append, handshakes_max=2
    )
    await listener.start()
    with await stranger(listener.port), await stranger(listener.port), await stranger(listener.port) as third:
        assert await hung_up(third) == b""
        assert listener.refused == 1
        await listener.close()


@pytest.mark.parametrize("seed", range(20))
async def test_noise_ends_one_link_and_the_others_go_on(seed: int) -> None:
    dice = random.Random(seed)
    links: list[Link] = []
    async with listening(plain_end("n2"), Recorder(answers={1: echo}), links) as listener:
        near = await dial_link(f"{HOST}:{listener.port}", end=plain_end("n1"), handler=Recorder())
        loop = asyncio.get_running_loop()
        noise = dice.randbytes(dice.randint(64, 5_000))
        with await stranger(listener.port) as before, await introduced(listener.port) as after:
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(before, noise)
            with contextlib.suppress(ConnectionError):
                # A frame of an impossible type first: noise alone might be the beginning of a long wait.
                await loop.sock_sendall(after, b"\0\0\0\0\xff" + noise)
            said = await hung_up(after)
            assert b"bad_frame" in said, f"seed {seed}"
        assert bytes(await near.request(1, b"fine", timeout_ms=TIMEOUT_MS)) == b"fine"
        near.abort("the test is over")


STALLING = LinkOptions(
    queue_bytes_max=256 * KIB,
    bulk_queue_bytes_max=8 * MIB,
    stall_max_ms=400,
    silence_max_ms=QUIET,
    ping_interval_ms=QUIET - 1,
)


async def test_a_peer_that_stops_reading_costs_bounded_memory_and_then_its_link() -> None:
    links: list[Link] = []
    options = replace(STALLING, stall_max_ms=QUIET)
    async with listening(plain_end("n2", options=options), Recorder(answers={1: echo}), links) as listener:
        near = await dial_link(f"{HOST}:{listener.port}", end=plain_end("n1"), handler=Recorder())
        with await introduced(listener.port):
            await wait_until(lambda: len(links) == 2)
            deaf = next(link for link in links if link.peer == "n9")
            busy = 0
            for _ in range(400):
                try:
                    deaf.post(7, bytes(15_000))
                    deaf.post(7, bytes(MIB))
                except LinkBusy:
                    busy += 1
                await asyncio.sleep(0)
            assert busy > 100
            statistics = deaf.statistics()
            assert statistics.queue_bytes <= options.queue_bytes_max + options.bulk_queue_bytes_max + MIB
            assert bytes(await near.request(1, b"others", timeout_ms=TIMEOUT_MS)) == b"others"
            near.abort("the test is over")


async def test_a_peer_that_takes_nothing_loses_its_link_after_the_deadline() -> None:
    links: list[Link] = []
    async with listening(plain_end("n2", options=STALLING), Recorder(), links) as listener:
        with await introduced(listener.port):
            await wait_until(lambda: len(links) == 1)
            with contextlib.suppress(LinkBusy):
                for _ in range(8):
                    links[0].post(7, bytes(MIB))
            asked = asyncio.create_task(links[0].request(1, b"", timeout_ms=TIMEOUT_MS))
            await wait_until(lambda: links[0].is_closed)
            assert "read nothing" in (links[0].close_reason or "")
            assert isinstance(await refusal_of(asked), LinkClosed)


async def test_a_silent_peer_loses_its_link() -> None:
    links: list[Link] = []
    options = LinkOptions(ping_interval_ms=50, silence_max_ms=300)
    async with listening(plain_end("n2", options=options), Recorder(), links) as listener:
        with await introduced(listener.port) as connection:
            said = await hung_up(connection)
            assert said[4] == FrameType.PING
            assert "silent" in (links[0].close_reason or "")


async def test_a_flood_of_requests_from_a_peer_that_does_not_read_is_not_read() -> None:
    links: list[Link] = []
    async with listening(plain_end("n2", options=replace(STALLING, stall_max_ms=QUIET)), Recorder(), links) as listener:
        with await introduced(listener.port) as connection:
            await wait_until(lambda: len(links) == 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            pings = frame(FrameType.PING) * 4_096
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 64 * MIB:
                    async with asyncio.timeout(2):
                        await asyncio.get_running_loop().sock_sendall(connection, pings)
                    sent += len(pings)
            assert sent < 64 * MIB, "it would have taken any number"
            assert links[0].statistics().queue_bytes < 8 * MIB


async def test_a_flood_from_one_peer_does_not_starve_the_others() -> None:
    flood = frame(FrameType.MESSAGE, kind=7, body=bytes(32)) * 2_000

    class Counter(Recorder):
        count = 0

        def on_turn(self) -> None:
            """Nothing is put off."""

        def on_message(self, link: Link, kind: int, body: memoryview) -> None:
            self.count += 1

    links: list[Link] = []
    handler = Counter(answers={1: echo})
    async with listening(plain_end("n2"), handler, links) as listener:
        near = await dial_link(f"{HOST}:{listener.port}", end=plain_end("n1"), handler=Recorder())
        with await introduced(listener.port) as connection:
            connection.setblocking(True)

            def pour() -> None:
                for _ in range(150):
                    connection.sendall(flood)

            pouring = asyncio.create_task(asyncio.to_thread(pour))
            # Counted in messages of the flood, not in time: how fast the machine is does not matter.
            waits = []
            while handler.count < 300_000:
                before = handler.count
                await near.request(1, b"beat", timeout_ms=int(patient(TIMEOUT_MS)))
                waits.append(handler.count - before)
            await pouring
            assert max(waits) < 60_000, "a request waits for a few turns of the flood, not for its end"
        near.abort("the test is over")


async def test_a_link_measures_its_way_and_its_speed() -> None:
    options = LinkOptions(ping_interval_ms=20)
    async with duo(options=options) as both:
        await wait_until(lambda: both.near.statistics().rtt_ms is not None)
        body = bytes(4 * MIB)
        while both.far.statistics().bulk_bytes_per_s == 0:
            both.near.post(7, body)
            both.near.post(7, body)
            await both.near.request(1, body, timeout_ms=TIMEOUT_MS)
            both.far_handler.messages.clear()
        assert both.far.statistics().bulk_peak_bytes_per_s >= both.far.statistics().bulk_bytes_per_s > MIB / slowness()


# --- who may talk ----------------------------------------------------------------------------------


async def test_another_cluster_is_refused_on_both_sides_before_any_message() -> None:
    links: list[Link] = []
    lines: list[str] = []
    end = replace(plain_end("n2"), log=lines.append)
    handler = Recorder()
    async with listening(end, handler, links) as listener:
        foreign = plain_end("n1", cluster=OTHER_CLUSTER)
        error = await refusal_of(dial_link(f"{HOST}:{listener.port}", end=foreign, handler=handler))
        assert (type(error), error.code) == (PeerRefused, WrongCluster.code)
        await wait_until(lambda: listener.refused == 1)
        assert "code=wrong_cluster" in lines[0]
        assert (links, handler.messages) == ([], [])


async def test_a_blank_node_links_with_any_cluster_and_reads_its_id() -> None:
    async with duo(plain_end("n1", cluster=b"")) as both:
        assert (both.near.peer_cluster, both.far.peer_cluster) == (CLUSTER, b"")


async def test_the_cluster_of_a_running_node_counts_from_the_next_link() -> None:
    ids = [b""]
    end = LinkEnd(identity=lambda: LinkIdentity(node="n2", cluster=ids[0]), insecure_dev=True)
    links: list[Link] = []
    async with listening(end, Recorder(), links) as listener:
        address = f"{HOST}:{listener.port}"
        first = await dial_link(address, end=plain_end("n1"), handler=Recorder())
        assert first.peer_cluster == b""
        ids[0] = OTHER_CLUSTER
        error = await refusal_of(dial_link(address, end=plain_end("n1"), handler=Recorder()))
        assert error.code == WrongCluster.code
        first.abort("the test is over")


async def test_another_version_is_refused_with_words() -> None:
    async with listening(plain_end("n2"), Recorder(), []) as listener:
        with await stranger(listener.port) as connection:
            hello = frame(FrameType.HELLO, body=b"TIDELINK" + (7).to_bytes(2, "little") * 2 + b"new things")
            await asyncio.get_running_loop().sock_sendall(connection, hello)
            assert b"wrong_version" in await hung_up(connection)


async def test_a_node_that_is_not_the_expected_one_is_refused_on_both_sides() -> None:
    lines: list[str] = []
    links: list[Link] = []
    async with listening(replace(plain_end("n2"), log=lines.append), Recorder(), links) as listener:
        address = f"{HOST}:{listener.port}"
        error = await refusal_of(dial_link(address, end=plain_end("n1"), handler=Recorder(), expected="n3"))
        assert isinstance(error, WrongPeer)
        await wait_until(lambda: any("code=wrong_peer" in line for line in lines))
        own_name = await refusal_of(dial_link(address, end=plain_end("n2"), handler=Recorder()))
        assert own_name.code == "wrong_peer"
        assert links == []


async def test_nobody_at_the_address_is_said_so() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    for address in (f"{HOST}:{port}", "no-such-host.invalid:1", "nonsense"):
        error = await refusal_of(dial_link(address, end=plain_end("n1"), handler=Recorder()))
        assert isinstance(error, PeerUnreachable), address
        assert error.retriable
        assert error.definite


async def test_a_second_process_on_the_same_port_is_refused() -> None:
    async with listening(plain_end("n2"), Recorder(), []) as listener:
        twin = LinkListener(f"{HOST}:{listener.port}", end=plain_end("n2"), handler=Recorder(), on_link=lambda _: None)
        assert isinstance(await refusal_of(twin.start()), AddressTaken)


def test_plain_links_need_the_explicit_word() -> None:
    with pytest.raises(InvalidConfig):
        LinkEnd(identity=lambda: LinkIdentity(node="n1", cluster=b""))


# --- memory ----------------------------------------------------------------------------------------


def test_memory_of_a_body_is_used_again_only_when_no_view_is_left() -> None:
    memory = BodyMemory()
    first = memory.take(100_000)
    part = first[10:20]
    part[:] = b"0123456789"
    del first
    second = memory.take(100_000)
    second[:] = bytes(100_000)
    assert bytes(part) == b"0123456789", "LY1"
    del part
    assert memory.free_bytes == 128 * KIB
    third = memory.take(70_000)
    assert memory.free_bytes == 0
    del second, third
    assert memory.free_bytes == 256 * KIB


def test_memory_that_nobody_uses_is_bounded() -> None:
    memory = BodyMemory(bytes_max=MIB)
    views = [memory.take(500_000) for _ in range(10)]
    views.clear()
    assert memory.free_bytes == MIB, "LY2"


async def test_what_is_put_and_flushed_leaves_without_a_turn_of_the_loop() -> None:
    async with duo() as both:
        sent = both.near.statistics().bytes_sent
        both.near.put(7, b"first")
        both.near.put(7, [b"sec", memoryview(b"ond")])
        assert both.near.statistics().bytes_sent == sent, "nothing leaves before it is flushed"
        both.near.flush()
        assert both.near.statistics().bytes_sent > sent
        await wait_until(lambda: len(both.far_handler.messages) == 2)
        assert [body for _, _, body in both.far_handler.messages] == [b"first", b"second"]


async def test_what_a_link_brought_before_it_ended_still_has_its_turn() -> None:
    class Turns(Recorder):
        brought = taken = 0

        def on_message(self, link: Link, kind: int, body: memoryview) -> None:
            self.brought += 1
            if kind == 8:
                link.abort("enough")

        def on_turn(self) -> None:
            self.taken = self.brought

    links: list[Link] = []
    handler = Turns()
    async with listening(plain_end("n2"), handler, links) as listener:
        with await introduced(listener.port) as connection:
            await wait_until(lambda: bool(links))
            connection.setblocking(True)
            both = frame(FrameType.MESSAGE, kind=7) + frame(FrameType.MESSAGE, kind=8)
            await asyncio.to_thread(connection.sendall, both)
            await wait_until(lambda: links[0].is_closed)
    assert (handler.brought, handler.taken) == (2, 2)


def test_a_link_that_ended_holds_no_buffer_until_a_collection() -> None:
    """What a link consists of refers to each other, so it stays in memory until the next garbage collection."""
    ended: list[Link] = []

    async def work() -> None:
        for _ in range(20):
            async with duo() as both:
                ended.extend((both.near, both.far))

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        run(work)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held_bytes < len(ended) * 32 * KIB
