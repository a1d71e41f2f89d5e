"""Fast packets and ISO transport: what a sender split comes out whole, and nothing else does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge.bus_frames import Row, can_id, capture_path, fast_packet, transport
from tests.nmea.fast_pgns_module import module
from tidelog.compat.captures import read_canboat_raw, read_candump
from tidelog.errors import InvalidConfig
from tidelog.nmea import fast_pgns
from tidelog.nmea.fast_packet import REORDER_US, TIMEOUT_US, FastPacketAssembler, FastPacketDrop
from tidelog.nmea.pgns import FAST_PACKET_PGNS, pgn_of
from tidelog.nmea.transport import ADDRESSED_TIMEOUT_US, TransportDrop

GNSS = 129029
START_US = 1_700_000_000_000_000

payloads = st.binary(min_size=9, max_size=223)


def feed(assembler: FastPacketAssembler, identifier: int, frames: list[bytes], start_us: int = START_US) -> list[Row]:
    rows = [assembler.receive(start_us + 500 * place, identifier, frame) for place, frame in enumerate(frames)]
    return [row for row in rows if row is not None]


# --- whole messages ------------------------------------------------------------------------------


@given(payload=st.binary(min_size=1, max_size=223), sequence=st.integers(0, 7), priority=st.integers(0, 7))
def test_a_split_message_comes_out_whole_with_its_last_frames_time(
    payload: bytes, sequence: int, priority: int
) -> None:
    assembler = FastPacketAssembler()
    frames = fast_packet(payload, sequence)
    identifier = can_id(GNSS, 7, priority=priority)
    assert feed(assembler, identifier, frames) == [(START_US + 500 * (len(frames) - 1), identifier, payload)]
    assert assembler.statistics().open == 0


@given(
    messages=st.lists(st.tuples(payloads, st.integers(0, 3), st.sampled_from([GNSS, 126996, 126208])), max_size=8),
    rng=st.randoms(use_true_random=False),
)
def test_interleaved_senders_never_mix(messages: list[tuple[bytes, int, int]], rng: random.Random) -> None:
    # Sequence counters as real senders use them: each its own next one, per PGN.
    used: dict[tuple[int, int], int] = {}
    queues = []
    for payload, source, pgn in messages:
        sequence = used.get((source, pgn), 0)
        used[source, pgn] = sequence + 1
        queues.append([(can_id(pgn, source), frame) for frame in fast_packet(payload, sequence % 8)])
    assembler = FastPacketAssembler()
    out = []
    time_us = START_US
    while remaining := [queue for queue in queues if queue]:
        identifier, frame = rng.choice(remaining).pop(0)
        time_us += 100
        row = assembler.receive(time_us, identifier, frame)
        if row is not None:
            out.append(row)
    assert sorted((row[1], row[2]) for row in out) == sorted((can_id(pgn, source), p) for p, source, pgn in messages)
    assert [row[0] for row in out] == sorted(row[0] for row in out)


@given(payload=payloads, rng=st.randoms(use_true_random=False))
def test_frames_in_any_order_make_the_message(payload: bytes, rng: random.Random) -> None:
    frames = fast_packet(payload, 5)
    rng.shuffle(frames)
    assert [row[2] for row in feed(FastPacketAssembler(), can_id(GNSS, 1), frames)] == [payload]


@given(payload=payloads, rng=st.randoms(use_true_random=False))
def test_repeated_frames_change_nothing(payload: bytes, rng: random.Random) -> None:
    assembler = FastPacketAssembler()
    frames = [copy for frame in fast_packet(payload, 2) for copy in [frame] * rng.randint(1, 3)]
    assert [row[2] for row in feed(assembler, can_id(GNSS, 1), frames)] == [payload]
    assert assembler.statistics().dropped.get(FastPacketDrop.DUPLICATE, 0) == len(frames) - len(fast_packet(payload, 2))
    assert assembler.statistics().open == 0


@given(messages=st.lists(payloads, min_size=1, max_size=40), rng=st.randoms(use_true_random=False))
def test_lost_frames_lose_their_message_and_no_other(messages: list[bytes], rng: random.Random) -> None:
    """Sequence counters wrap; messages are 200 ms apart, so a counter comes back after the timeout."""
    assembler = FastPacketAssembler()
    out: list[bytes] = []
    whole: list[bytes] = []
    for number, payload in enumerate(messages):
        frames = fast_packet(payload, number % 8)
        kept = [frame for frame in frames if rng.random() > 0.1]
        if len(kept) == len(frames):
            whole.append(payload)
        out += [row[2] for row in feed(assembler, can_id(GNSS, 1), kept, START_US + number * 200_000)]
    assert out == whole


def test_a_sender_that_never_counts_loses_only_what_lost_a_frame() -> None:
    assembler = FastPacketAssembler()
    out: list[bytes] = []
    payloads_sent = [bytes([number]) * 20 for number in range(30)]
    for number, payload in enumerate(payloads_sent):
        frames = fast_packet(payload, 0)
        if number % 3 == 1:
            del frames[number % 2]
        out += [row[2] for row in feed(assembler, can_id(GNSS, 1), frames, START_US + number * 100_000)]
    assert out == [payload for number, payload in enumerate(payloads_sent) if number % 3 != 1]
    assert assembler.statistics().dropped[FastPacketDrop.SUPERSEDED] == 10


def test_equal_messages_of_a_sender_that_never_counts_all_come_out() -> None:
    assembler = FastPacketAssembler()
    short = fast_packet(b"abc", 0)
    long = fast_packet(b"abcdefghijkl", 0)
    assert len(feed(assembler, can_id(GNSS, 1), short * 4 + long * 4)) == 8


def test_destinations_are_kept_apart() -> None:
    assembler = FastPacketAssembler()
    one, two = fast_packet(b"1" * 12, 0), fast_packet(b"2" * 12, 0)
    first, second = can_id(126208, 5, destination=1), can_id(126208, 5, destination=2)
    rows = [assembler.receive(START_US, first, one[0]), assembler.receive(START_US, second, two[0])]
    rows += [assembler.receive(START_US, first, one[1]), assembler.receive(START_US, second, two[1])]
    assert rows[2:] == [(START_US, first, b"1" * 12), (START_US, second, b"2" * 12)]


# --- what passes, what is given up ---------------------------------------------------------------


@given(identifier=st.integers(0, 2**29 - 1), payload=st.binary(max_size=8))
def test_single_frames_pass_unchanged(identifier: int, payload: bytes) -> None:
    if pgn_of(identifier) in FAST_PACKET_PGNS or pgn_of(identifier) in (60416, 60160):
        identifier = can_id(127250, identifier & 0xFF)
    assert FastPacketAssembler().receive(1, identifier, payload) == (1, identifier, payload)


@given(payload=payloads)
def test_an_assembled_payload_passes(payload: bytes) -> None:
    assert FastPacketAssembler().receive(1, can_id(GNSS, 1), payload) == (1, can_id(GNSS, 1), payload)


def test_an_incomplete_message_times_out() -> None:
    assembler = FastPacketAssembler()
    frames = fast_packet(b"x" * 20, 0)
    assembler.receive(START_US, can_id(GNSS, 1), frames[0])
    assert assembler.wake_at_us() == START_US + TIMEOUT_US + 1
    assembler.wake(START_US + TIMEOUT_US)
    assert assembler.statistics().open == 1
    assembler.wake(START_US + TIMEOUT_US + 1)
    assert assembler.wake_at_us() is None
    assert assembler.statistics().dropped == {FastPacketDrop.TIMED_OUT: 1}
    assert feed(assembler, can_id(GNSS, 1), frames[1:], START_US + TIMEOUT_US + 1) == []


def test_a_clock_set_back_does_not_join_two_times() -> None:
    assembler = FastPacketAssembler()
    frames = fast_packet(b"x" * 20, 0)
    feed(assembler, can_id(GNSS, 1), frames[:2])
    assert feed(assembler, can_id(GNSS, 1), frames[2:], START_US - 10 * TIMEOUT_US) == []
    assert assembler.statistics().dropped == {FastPacketDrop.TIMED_OUT: 1}


def test_a_late_first_frame_begins_anew() -> None:
    assembler = FastPacketAssembler()
    old, new = fast_packet(b"o" * 20, 0), fast_packet(b"n" * 20, 0)
    assert feed(assembler, can_id(GNSS, 1), old[1:]) == []
    assert [row[2] for row in feed(assembler, can_id(GNSS, 1), new, START_US + REORDER_US + 1)] == [b"n" * 20]


def test_a_clock_set_back_a_little_still_times_out_what_is_behind_others() -> None:
    assembler = FastPacketAssembler()
    frames = fast_packet(b"x" * 12, 0)
    assembler.receive(START_US, can_id(GNSS, 1), frames[0])
    assembler.receive(START_US + 400_000, can_id(GNSS, 2), frames[0])
    assert assembler.receive(START_US - 500_000, can_id(GNSS, 2), frames[1]) is None
    assert assembler.receive(START_US - 500_000, can_id(GNSS, 1), frames[1]) is not None
    assert assembler.statistics().dropped == {FastPacketDrop.TIMED_OUT: 1}


def test_a_first_frame_does_not_join_frames_behind_its_end() -> None:
    assembler = FastPacketAssembler()
    old, new = fast_packet(b"o" * 40, 0), fast_packet(b"n" * 12, 0)
    assert [row[2] for row in feed(assembler, can_id(GNSS, 1), [*old[1:], *new])] == [b"n" * 12]
    assert assembler.statistics().dropped == {FastPacketDrop.SUPERSEDED: 1}


def test_open_messages_are_bounded_and_the_oldest_goes() -> None:
    assembler = FastPacketAssembler(open_max=3)
    frames = fast_packet(b"x" * 12, 0)
    for source in range(10):
        assembler.receive(START_US + source, can_id(GNSS, source), frames[0])
    assert assembler.statistics().open == 3
    assert assembler.statistics().dropped == {FastPacketDrop.EVICTED: 7}
    assert assembler.receive(START_US + 20, can_id(GNSS, 9), frames[1]) is not None


@pytest.mark.parametrize(
    "frame", [b"", b"\x00", b"\x00\x00abcdef", b"\x00\xe0abcdef", b"\x00\xffabcdef", b"\x01"], ids=repr
)
def test_a_malformed_frame_is_counted(frame: bytes) -> None:
    assembler = FastPacketAssembler()
    assert assembler.receive(START_US, can_id(GNSS, 1), frame) is None
    assert assembler.statistics().dropped == {FastPacketDrop.MALFORMED: 1}


def test_frames_behind_the_end_or_too_short_are_counted() -> None:
    assembler = FastPacketAssembler()
    frames = fast_packet(b"x" * 20, 0)
    assembler.receive(START_US, can_id(GNSS, 1), frames[0])
    assembler.receive(START_US, can_id(GNSS, 1), b"\x05abcdefg")
    assert [row[2] for row in feed(assembler, can_id(GNSS, 1), frames[1:])] == [b"x" * 20]
    assert feed(assembler, can_id(GNSS, 2), [frames[0], frames[1][:4], frames[2]]) == []
    assert assembler.statistics().dropped == {FastPacketDrop.MALFORMED: 2}


def test_limits_must_be_positive() -> None:
    with pytest.raises(InvalidConfig):
        FastPacketAssembler(open_max=0)


# --- ISO 11783 transport -------------------------------------------------------------------------


@given(payload=st.binary(min_size=9, max_size=1785), rng=st.randoms(use_true_random=False))
def test_a_broadcast_transport_message_comes_out_whole(payload: bytes, rng: random.Random) -> None:
    assembler = FastPacketAssembler()
    announcement, *data = transport(payload, 126996, 9)
    rng.shuffle(data)
    rows = [assembler.receive(START_US + place, *frame) for place, frame in enumerate([announcement, *data, data[0]])]
    assert [row for row in rows if row] == [(START_US + len(data), can_id(126996, 9, priority=7), payload)]
    assert assembler.statistics().transport_dropped == {TransportDrop.UNANNOUNCED: 1}


@given(payload=st.binary(min_size=9, max_size=1785))
def test_an_addressed_transport_message_keeps_its_destination(payload: bytes) -> None:
    assembler = FastPacketAssembler()
    announcement, *data = transport(payload, 126208, 9, destination=35)
    clear = (can_id(60416, 35, priority=7, destination=9), bytes([17, 255, 1, 255, 255, 0, 237, 1]))
    rows = [assembler.receive(START_US, *frame) for frame in [announcement, clear, data[0], *data]]
    assert rows[1] == (START_US, *clear)
    assert [row for row in rows if row][1:] == [(START_US, can_id(126208, 9, priority=7, destination=35), payload)]


def test_an_abort_by_either_side_ends_the_message() -> None:
    assembler = FastPacketAssembler()
    for source, destination in ((9, 35), (35, 9)):
        announcement, *data = transport(b"x" * 20, 126208, 9, destination=35)
        assembler.receive(START_US, *announcement)
        abort = (can_id(60416, source, destination=destination), bytes([255, 1, 255, 255, 255, 0, 237, 1]))
        assert assembler.receive(START_US, *abort) == (START_US, *abort)
        assert assembler.receive(START_US, *data[0]) is None
    assert assembler.statistics().transport_dropped == {TransportDrop.ABORTED: 2, TransportDrop.UNANNOUNCED: 2}


def test_transport_times_out_is_superseded_and_is_bounded() -> None:
    assembler = FastPacketAssembler()
    announcement = transport(b"x" * 20, 126996, 9)[0]
    assembler.receive(START_US, *announcement)
    assembler.receive(START_US, *announcement)
    assert assembler.wake_at_us() == START_US + TIMEOUT_US + 1
    assembler.wake(START_US + TIMEOUT_US + 1)
    assembler.receive(START_US, *transport(b"x" * 20, 126208, 9, destination=3)[0])
    assembler.wake(START_US + ADDRESSED_TIMEOUT_US)
    assert assembler.statistics().transport_open == 1
    for source in range(250):
        for destination in range(4):
            assembler.receive(START_US, *transport(b"x" * 20, 126208, source, destination=destination)[0])
    assert assembler.statistics().transport_open == 512
    dropped = assembler.statistics().transport_dropped
    assert (dropped[TransportDrop.TIMED_OUT], dropped[TransportDrop.EVICTED]) == (1, 1000 - 512)


def test_an_announcement_that_cannot_be_true_is_malformed() -> None:
    assembler = FastPacketAssembler()
    identifier = can_id(60416, 9)
    for lie in ([32, 8, 0, 2], [32, 20, 0, 4], [32, 250, 6, 255], [32, 20, 0, 3]):
        assembler.receive(START_US, identifier, bytes([*lie, 255, 255, 255, 255]))
    assert assembler.statistics().transport_dropped == {TransportDrop.MALFORMED: 4}


# --- hostile and real ----------------------------------------------------------------------------

hostile_ids = st.one_of(
    st.integers(0, 2**32 - 1),
    st.builds(can_id, st.sampled_from([GNSS, 126208, 60416, 60160, 130816]), st.integers(0, 255)),
)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), hostile_ids, st.binary(max_size=12)), max_size=60))
def test_no_input_raises_or_grows_the_memory(rows: list[Row]) -> None:
    assembler = FastPacketAssembler(open_max=4)
    for row in rows:
        out = assembler.receive(*row)
        assert out is None or len(out[2]) <= 1785
        assert assembler.statistics().open <= 4
    assembler.wake(2**63)


def test_noise_on_a_few_ids_stays_within_bounds() -> None:
    rng = random.Random(4)
    assembler = FastPacketAssembler(open_max=16)
    for place in range(50_000):
        identifier = can_id(rng.choice([GNSS, 126208, 60416, 60160]), rng.randrange(40), destination=rng.randrange(256))
        assembler.receive(START_US + place * 300, identifier, rng.randbytes(rng.randrange(9)))
    statistics = assembler.statistics()
    assert statistics.open <= 16
    assert set(statistics.dropped) >= {FastPacketDrop.EVICTED, FastPacketDrop.MALFORMED, FastPacketDrop.SUPERSEDED}


def test_the_list_of_fast_packets_is_what_the_definitions_say() -> None:
    pytest.importorskip("nmea2000", reason="the definitions come with the `spark` extra")
    written = Path(fast_pgns.__file__).read_text()
    assert written == module(), "python -m tests.nmea.fast_pgns_module > src/tidelog/nmea/fast_pgns.py"
    assert {129814, 129815, 129816, 130329, 130568, 130575} <= FAST_PACKET_PGNS
    assert {126208, 126464, 126720, 130816, 131071} <= FAST_PACKET_PGNS, "ranges that are by rule"
    assert not {61184, 65280, 65535, 130325} & FAST_PACKET_PGNS, "single frames, and one that nobody has defined"


def test_the_table_knows_every_long_pgn_of_the_real_captures() -> None:
    for name in ("dirona-actisense-serial.raw", "susteranna-actisense-serial.raw"):
        for chunk in read_canboat_raw(capture_path(name), on_malformed="skip"):
            long = {pgn_of(row[1]) for row in chunk.rows() if len(row[2]) > 8}
            assert long <= FAST_PACKET_PGNS
            singles = {127245, 127250, 127251, 127257, 127488, 127505, 127508, 129025, 129026, 129539, 130306, 65280}
            assert not singles & FAST_PACKET_PGNS


def test_the_real_candump_sample_is_assembled() -> None:
    assembler = FastPacketAssembler()
    rows, fast = [], 0
    for chunk in read_candump(capture_path("candumpSample1.txt")):
        for place, (_, identifier, payload) in enumerate(chunk.rows()):
            fast += pgn_of(identifier) in FAST_PACKET_PGNS
            rows.append(assembler.receive(START_US + place * 2_000, identifier, payload))
    whole = [row for row in rows if row is not None]
    statistics = assembler.statistics()
    assert statistics.passed + fast == len(rows)
    assert statistics.passed + statistics.assembled == len(whole)
    lengths: dict[int, set[int]] = {}
    for _, identifier, payload in whole:
        lengths.setdefault(pgn_of(identifier), set()).add(len(payload))
    assert lengths[126996] == {134}
    assert lengths[GNSS] <= {43, 47, 51}
    assert lengths[129540] == {147}
    assert (statistics.assembled, statistics.dropped, statistics.open) == (406, {}, 0)
