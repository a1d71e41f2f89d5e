"""The core of a link: two of them joined in memory, and one that is lied to."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.links import QUIET, CorePair
from tidelog.errors import BadFrame, BodyTooLarge, DiskFull, InvalidConfig, LinkBusy, LinkClosed, WrongVersion
from tidelog.transports.link.events import Answered, Arrived, Asked, Cancelled, Draining, Failed, LinkOptions
from tidelog.transports.link.frames import CREDIT, HEAD, LARGE, SMALL_BYTES_MAX, TRANSFER, FrameType, frame
from tidelog.transports.link.hello import PeerLimits
from tidelog.units import KIB, MIB

PEER = "n2"
NEAR, FAR = 0, 1
SMALL_LIMITS = LinkOptions(
    taken=PeerLimits(body_bytes_max=MIB, transfers_max=3, initial_credit=32 * KIB, requests_max=4),
    bulk_bytes_max=2 * MIB,
    queue_bytes_max=64 * KIB,
    bulk_queue_bytes_max=4 * MIB,
    calls_max=8,
    silence_max_ms=QUIET,
)


def opened(options: LinkOptions = SMALL_LIMITS, seed: int = 1) -> CorePair:
    pair = CorePair(options=options, dice=random.Random(seed))
    pair.taken(NEAR)
    pair.taken(FAR)
    return pair


def test_messages_requests_and_answers_cross() -> None:
    pair = opened()
    near, far = pair.cores
    near.post(PEER, 7, b"note")
    call = near.ask(PEER, 8, [b"a ", memoryview(b"question")])
    pair.settle()
    assert pair.taken(FAR) == [Arrived(7, memoryview(b"note")), Asked(call, 8, memoryview(b"a question"))]
    far.answer(call, b"yes")
    pair.settle()
    assert pair.taken(NEAR) == [Answered(call, memoryview(b"yes"))]
    assert (near.calls, far.running, near.queued_bytes, far.queued_bytes) == (0, 0, 0, 0)


def test_control_frames_can_leave_alone_and_leave_once() -> None:
    pair = opened()
    near, _ = pair.cores
    near.post(PEER, 7, b"note")
    near.drain()
    assert near.has_control
    (control,) = near.next_control(0)
    assert (bytes(control), near.has_control) == (frame(FrameType.DRAIN), False)
    rest = b"".join(near.next_write(0))
    assert frame(FrameType.MESSAGE, kind=7, body=b"note") in rest
    assert frame(FrameType.DRAIN) not in rest
    assert near.small_bytes == 0


def test_a_typed_failure_crosses_with_its_promises() -> None:
    pair = opened()
    call = pair.cores[NEAR].ask(PEER, 8, b"")
    pair.settle()
    pair.cores[FAR].fail(call, DiskFull(operation="append", path="x", reason="no space"))
    pair.settle()
    (failed,) = pair.taken(NEAR)
    assert isinstance(failed, Failed)
    assert (failed.refusal.code, failed.refusal.retriable, failed.refusal.definite) == ("disk_full", True, True)


# --- any order, any cut ----------------------------------------------------------------------------

operations = st.lists(
    st.tuples(
        st.sampled_from(["post", "ask", "answer", "cancel", "step"]),
        st.integers(0, 1),
        st.one_of(st.integers(0, 200), st.sampled_from([SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 40_000, 300_000])),
    ),
    max_size=60,
)


class World:
    """What was said to a pair of cores, and what must have come of it."""

    def __init__(self, seed: int) -> None:
        self.pair = opened(seed=seed)
        self.dice = random.Random(seed)
        self.posted: list[list[bytes]] = [[], []]
        self.asked: list[dict[int, bytes]] = [{}, {}]
        self.cancelled: list[set[int]] = [set(), set()]
        self.heard: list[list[bytes]] = [[], []]
        self.open: list[dict[int, bytes]] = [{}, {}]
        """Requests that a side has heard and not answered."""
        self.answered: list[dict[int, bytes]] = [{}, {}]

    def do(self, what: str, side: int, size: int) -> None:
        core, body = self.pair.cores[side], self.dice.randbytes(size)
        with contextlib.suppress(LinkBusy):
            if what == "post":
                core.post(PEER, 1, self.cut(body))
                self.posted[side].append(body)
            elif what == "ask":
                self.asked[side][core.ask(PEER, 2, self.cut(body))] = body
            elif what == "answer" and self.open[side]:
                call = self.dice.choice(sorted(self.open[side]))
                core.answer(call, self.open[side].pop(call)[::-1])
            elif what == "cancel" and self.asked[side]:
                call = self.dice.choice(sorted(self.asked[side]))
                core.cancel(call)
                self.cancelled[side].add(call)
        self.pair.step(side, bytes_max=size + 1)
        self.look()

    def cut(self, body: bytes) -> list[bytes | memoryview]:
        at = self.dice.randint(0, len(body))
        return [body[:at], memoryview(body)[at:]]

    def look(self) -> None:
        for side in (NEAR, FAR):
            for event in self.pair.taken(side):
                match event:
                    case Arrived(_, body):
                        self.heard[side].append(bytes(body))
                    case Asked(call, _, body):
                        assert call not in self.open[side], "LM2"
                        self.open[side][call] = bytes(body)
                    case Cancelled(call):
                        self.open[side].pop(call)
                    case Answered(call, body):
                        assert call not in self.answered[side], "LM2"
                        self.answered[side][call] = bytes(body)
                    case Failed(call, refusal):
                        assert refusal.code == "link_busy"
                        assert call not in self.answered[side], "LM2"
                        self.answered[side][call] = self.asked[side][call][::-1]

    def finish(self) -> None:
        while True:
            self.pair.settle()
            self.look()
            if not any(self.open):
                return
            for side in (NEAR, FAR):
                for call in list(self.open[side]):
                    self.pair.cores[side].answer(call, self.open[side].pop(call)[::-1])


@settings(max_examples=60)
@given(operations, st.integers(0, 2**32))
def test_whatever_is_said_arrives_once_and_every_call_ends(steps: list[tuple[str, int, int]], seed: int) -> None:
    world = World(seed)
    for what, side, size in steps:
        world.do(what, side, size)
    world.finish()
    for side in (NEAR, FAR):
        said, heard = world.posted[side], world.heard[1 - side]
        assert sorted(heard) == sorted(said)
        assert _small(heard) == _small(said), "LM1"
        for call, body in world.asked[side].items():
            if call in world.answered[side]:
                assert world.answered[side][call] == body[::-1]
            else:
                assert call in world.cancelled[side], "LM2"
        core = world.pair.cores[side]
        assert (core.calls, core.running, core.queued_bytes, core.held_bytes) == (0, 0, 0, 0)


def _small(bodies: list[bytes]) -> list[bytes]:
    return [body for body in bodies if len(body) <= SMALL_BYTES_MAX]


# --- limits ----------------------------------------------------------------------------------------


def test_small_messages_over_the_queue_are_refused_and_nothing_of_them_is_sent() -> None:
    pair = opened()
    near = pair.cores[NEAR]
    sent = 0
    with contextlib.suppress(LinkBusy):
        while sent < 1_000:
            near.post(PEER, 1, bytes(1_000))
            sent += 1
    assert sent < 1_000
    assert near.queued_bytes < SMALL_LIMITS.queue_bytes_max + 2_000, "LM3"
    pair.settle()
    assert len(pair.taken(FAR)) == sent
    near.post(PEER, 1, b"room again")


def test_large_bodies_over_their_queue_are_refused() -> None:
    near = opened().cores[NEAR]
    for _ in range(4):
        near.post(PEER, 1, bytes(MIB))
    with pytest.raises(LinkBusy):
        near.post(PEER, 1, bytes(MIB))
    assert near.queued_bytes <= SMALL_LIMITS.bulk_queue_bytes_max


def test_a_body_over_the_peers_limit_is_refused_here() -> None:
    pair = opened()
    with pytest.raises(BodyTooLarge):
        pair.cores[NEAR].post(PEER, 1, bytes(MIB + 1))
    call = pair.cores[NEAR].ask(PEER, 2, b"")
    pair.settle()
    with pytest.raises(BodyTooLarge):
        pair.cores[FAR].answer(call, bytes(MIB + 1))
    pair.cores[FAR].answer(call, b"smaller")
    pair.settle()
    assert Answered(call, memoryview(b"smaller")) in pair.taken(NEAR)


def test_calls_over_the_limit_are_refused() -> None:
    near = opened().cores[NEAR]
    for _ in range(SMALL_LIMITS.calls_max):
        near.ask(PEER, 2, b"")
    with pytest.raises(LinkBusy):
        near.ask(PEER, 2, b"")


def test_requests_over_the_peers_limit_are_refused_by_the_peer() -> None:
    pair = opened()
    calls = [pair.cores[NEAR].ask(PEER, 2, b"") for _ in range(6)]
    pair.settle()
    assert [event.call for event in pair.taken(FAR) if isinstance(event, Asked)] == calls[:4], "LM4"
    refused = [event for event in pair.taken(NEAR) if isinstance(event, Failed)]
    assert [event.call for event in refused] == calls[4:]
    assert all(event.refusal.retriable and event.refusal.definite for event in refused)


def test_large_requests_wait_for_memory_while_small_messages_pass() -> None:
    pair = opened()
    near, far = pair.cores
    calls = [near.ask(PEER, 2, bytes(MIB)) for _ in range(4)]
    pair.settle()
    assert [event.call for event in pair.taken(FAR) if isinstance(event, Asked)] == calls[:2]
    assert far.held_bytes == SMALL_LIMITS.bulk_bytes_max, "LB1"
    near.post(PEER, 1, b"heartbeat")
    pair.settle()
    assert pair.taken(FAR) == [Arrived(1, memoryview(b"heartbeat"))]
    far.answer(calls[0], b"")
    pair.settle()
    assert [event.call for event in pair.taken(FAR) if isinstance(event, Asked)] == [calls[2]]


def unused_credit(pair: CorePair) -> int:
    """Bytes that the near side may send now without asking again."""
    return sum(one.credit for one in pair.cores[NEAR]._outgoing._open.values())


def test_credit_that_is_out_is_worth_what_the_way_is_and_grows_with_the_speed() -> None:
    pair = opened(LinkOptions(silence_max_ms=QUIET, taken=PeerLimits(initial_credit=KIB)))
    near = pair.cores[NEAR]

    def largest_credit(us_per_step: int, bodies: int) -> int:
        for _ in range(bodies):
            near.post(PEER, 1, bytes(30 * MIB))
        largest = 0
        while near.queued_bytes:
            pair.step(NEAR)
            pair.now_us += us_per_step
            while pair.step(FAR):
                pass
            largest = max(largest, unused_credit(pair))
        pair.settle()
        return largest

    # A chunk of up to 256 KiB in 2 ms is about 100 MB/s: the least that is given out is more than the way is worth.
    slow = largest_credit(2_000, 1)
    assert slow <= MIB, "LB5"
    fast = largest_credit(100, 5)
    assert 2 * slow <= fast <= 32 * MIB, "LB5"
    assert len(pair.taken(FAR)) == 6


def test_a_heartbeat_waits_for_one_chunk_at_most() -> None:
    pair = opened(LinkOptions(silence_max_ms=QUIET))
    near = pair.cores[NEAR]
    for _ in range(8):
        near.post(PEER, 1, bytes(8 * MIB))
    near.next_write(pair.now_us)
    near.wrote(pair.now_us)
    near.post(PEER, 2, b"heartbeat")
    (first, *_) = near.next_write(pair.now_us)
    assert b"heartbeat" in bytes(first[:200])


def test_chunks_shrink_on_a_slow_connection_and_grow_again() -> None:
    pair = opened(LinkOptions(silence_max_ms=QUIET, taken=PeerLimits(initial_credit=64 * MIB)))
    near = pair.cores[NEAR]
    near.post(PEER, 1, bytes(60 * MIB))

    def write(took_us: int) -> int:
        size = sum(map(len, near.next_write(pair.now_us)))
        near.wrote(pair.now_us + took_us)
        return size

    full = write(100_000)
    assert [write(100_000) for _ in range(6)][-1] < full / 10
    assert [write(100) for _ in range(6)][-1] == pytest.approx(full, rel=0.01)


def test_large_bodies_take_turns() -> None:
    pair = opened(LinkOptions(silence_max_ms=QUIET, taken=PeerLimits(initial_credit=64 * MIB)))
    near = pair.cores[NEAR]
    near.post(PEER, 1, bytes(20 * MIB))
    near.post(PEER, 2, bytes(MIB))
    heard: list[int] = []
    while not heard:
        pair.step(NEAR)
        heard = [event.kind for event in pair.taken(FAR) if isinstance(event, Arrived)]
    assert heard == [2], "LB3"


def test_a_peer_that_asks_and_does_not_read_is_not_read_from() -> None:
    pair = opened()
    far = pair.cores[FAR]
    while far.wants_input:
        pair.inject(FAR, frame(FrameType.PING) * 1_000)
    bound = SMALL_LIMITS.queue_bytes_max + 4 * (HEAD.size + SMALL_BYTES_MAX) + MIB
    assert far.queued_bytes <= bound + 1_000 * HEAD.size, "LM3"
    far.next_write(pair.now_us)
    while far.has_output:
        far.next_write(pair.now_us)
    assert far.wants_input


# --- cancelling and draining -----------------------------------------------------------------------


def test_a_cancelled_call_is_cancelled_over_there_and_its_answer_ignored() -> None:
    pair = opened()
    near, far = pair.cores
    call = near.ask(PEER, 2, b"")
    pair.settle()
    pair.taken(FAR)
    near.cancel(call)
    far_answered_first = near.calls
    pair.settle()
    assert pair.taken(FAR) == [Cancelled(call)]
    far.answer(call, b"too late")
    pair.settle()
    assert (pair.taken(NEAR), far_answered_first, far.running) == ([], 0, 0)


def test_an_answer_that_crosses_with_the_cancel_is_dropped() -> None:
    pair = opened()
    near, far = pair.cores
    call = near.ask(PEER, 2, b"")
    pair.settle()
    pair.taken(FAR)
    far.answer(call, bytes(300_000))
    near.cancel(call)
    pair.settle()
    assert (pair.taken(NEAR), near.held_bytes, far.queued_bytes) == ([], 0, 0)


def test_a_large_request_that_is_cancelled_half_way_frees_both_sides() -> None:
    pair = opened()
    near, far = pair.cores
    call = near.ask(PEER, 2, bytes(MIB))
    pair.step(NEAR)
    pair.step(NEAR)
    near.cancel(call)
    pair.settle()
    assert (near.queued_bytes, far.held_bytes, pair.taken(FAR)) == (0, 0, [])
    near.post(PEER, 1, bytes(MIB))
    pair.settle()
    assert len(pair.taken(FAR)) == 1


def test_draining_lets_answers_finish_and_takes_nothing_new() -> None:
    pair = opened()
    near, far = pair.cores
    call = near.ask(PEER, 2, b"")
    near.post(PEER, 1, bytes(300_000))
    pair.settle()
    near.drain()
    with pytest.raises(LinkClosed):
        near.post(PEER, 1, b"")
    pair.settle()
    events = pair.taken(FAR)
    assert Draining() in events
    assert len([event for event in events if isinstance(event, Arrived)]) == 1
    with pytest.raises(LinkClosed):
        far.ask(PEER, 2, b"")
    assert (near.is_drained, far.is_drained) == (False, False)
    far.answer(call, b"done")
    pair.settle()
    assert pair.taken(NEAR) == [Answered(call, memoryview(b"done"))]
    assert near.is_drained
    assert far.is_drained


# --- time ------------------------------------------------------------------------------------------


def test_pings_measure_the_way_there_and_back() -> None:
    pair = opened(LinkOptions(ping_interval_ms=10))
    near = pair.cores[NEAR]
    assert near.wake(pair.now_us + 10_000, is_blocked=False) is None
    pair.now_us += 10_250
    pair.settle()
    assert near.rtt_us == 250


def test_silence_and_a_standstill_are_reasons_to_close() -> None:
    pair = opened(LinkOptions(silence_max_ms=5_000, stall_max_ms=10_000))
    near = pair.cores[NEAR]
    assert near.wake(pair.now_us + 4_999_000, is_blocked=True) is None
    assert "silent" in (near.wake(pair.now_us + 5_000_000, is_blocked=False) or "")
    pair = opened(LinkOptions(silence_max_ms=QUIET, stall_max_ms=10_000))
    near = pair.cores[NEAR]
    assert near.wake(pair.now_us + 10_000_000, is_blocked=False) is None
    assert "read nothing" in (near.wake(pair.now_us + 10_000_000, is_blocked=True) or "")


# --- lies ------------------------------------------------------------------------------------------


def announced(transfer: int, size: int, frame_type: int = FrameType.MESSAGE, number: int = 0) -> bytes:
    return frame(frame_type, flags=LARGE, kind=1, number=number, body=TRANSFER.pack(transfer, size))


def data(transfer: int, size: int) -> bytes:
    return HEAD.pack(size, FrameType.DATA, 0, 0, transfer) + bytes(size)


LIES = {
    "a second hello": frame(FrameType.HELLO, body=b"TIDELINK\1\0\1\0"),
    "a READY out of turn": frame(FrameType.READY),
    "an answer to no call": frame(FrameType.ANSWER, number=5),
    "a failure of no call": frame(FrameType.FAILURE, number=5, body=b"\0\0\0"),
    "a cancel of no request": frame(FrameType.CANCEL, number=5),
    "a request number used twice": frame(FrameType.REQUEST, number=5) * 2,
    "request numbers that fall": frame(FrameType.REQUEST, number=5) + frame(FrameType.REQUEST, number=4),
    "one number for a small and a large request": frame(FrameType.REQUEST, number=5)
    + announced(1, 20_000, FrameType.REQUEST, 5),
    "request number 0": frame(FrameType.REQUEST),
    "credit for no transfer": frame(FrameType.CREDIT, number=1, body=CREDIT.pack(1)),
    "credit of the wrong size": frame(FrameType.CREDIT, number=1, body=b"123"),
    "an abort of no transfer": frame(FrameType.ABORT, number=1),
    "DATA for no transfer": data(1, 10),
    "DATA beyond the body": announced(1, 20_000) + data(1, 20_001),
    "DATA beyond the credit": announced(1, MIB) + announced(2, MIB) + announced(3, MIB) + data(3, 32 * KIB + 1),
    "DATA after the body": announced(1, 20_000) + data(1, 20_000) + data(1, 1),
    "a body over the limit": announced(1, MIB + 1),
    "a body of no bytes": announced(1, 0),
    "a body of 2^64 - 1 bytes": announced(1, 2**64 - 1),
    "a transfer number used twice": announced(1, 20_000) * 2,
    "too many transfers": b"".join(announced(number, 20_000) for number in range(1, 5)),
    "an announcement of the wrong size": frame(FrameType.MESSAGE, flags=LARGE, body=b"123"),
    "unknown flags": frame(FrameType.MESSAGE, flags=0x80),
    "a PONG to no ping": frame(FrameType.PONG, number=1),
    "a refusal that is none": frame(FrameType.REFUSED, body=b"\0\xff\xff"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_the_link(lie: str) -> None:
    pair = opened()
    with pytest.raises(BadFrame):
        pair.inject(FAR, LIES[lie])


def test_more_credit_than_a_body_needs_ends_the_link() -> None:
    pair = opened()
    pair.cores[NEAR].post(PEER, 1, bytes(MIB))
    pair.cores[NEAR].next_write(pair.now_us)
    with pytest.raises(BadFrame):
        pair.inject(NEAR, frame(FrameType.CREDIT, number=1, body=CREDIT.pack(MIB)))


def test_an_answer_given_up_by_the_peer_ends_the_link() -> None:
    pair = opened()
    call = pair.cores[NEAR].ask(PEER, 2, b"")
    with pytest.raises(BadFrame):
        pair.inject(NEAR, announced(1, 20_000, FrameType.ANSWER, call) + frame(FrameType.ABORT, number=1))


@pytest.mark.parametrize("frame_type", [kind for kind in FrameType if kind not in (FrameType.HELLO, FrameType.REFUSED)])
def test_nothing_is_taken_before_the_hello(frame_type: FrameType) -> None:
    pair = opened()
    stranger = type(pair.cores[FAR])(options=SMALL_LIMITS, is_dialler=False, now_us=0)
    room = stranger.room()
    said = data(1, 10) if frame_type == FrameType.DATA else frame(frame_type, number=1, body=CREDIT.pack(1))
    room[: len(said)] = said
    with pytest.raises(BadFrame):
        stranger.received(len(said), 0)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 15), st.integers(0, 3), st.integers(0, 3), st.binary(max_size=24))))
def test_no_sequence_of_frames_is_more_than_refused(frames: list[tuple[int, int, int, bytes]]) -> None:
    pair = opened()
    with contextlib.suppress(BadFrame, WrongVersion):
        for frame_type, flags, number, body in frames:
            pair.inject(FAR, frame(frame_type, flags=flags, number=number, body=body))
    assert pair.cores[FAR].held_bytes <= SMALL_LIMITS.bulk_bytes_max + 3 * 32 * KIB, "LB1"
    assert pair.cores[FAR].running <= SMALL_LIMITS.taken.requests_max, "LM4"


def test_options_that_cannot_work_are_refused_together() -> None:
    with pytest.raises(InvalidConfig) as refused:
        LinkOptions(queue_bytes_max=0, silence_max_ms=100, ping_interval_ms=100)
    assert len(refused.value.problems) == 2
