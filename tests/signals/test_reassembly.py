"""Fast packets of raw captures: the live assembler is the oracle."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge.bus_frames import can_id, fast_packet
from tests.signals.frames_kit import START_US, TIME, capture_path, frames_batch
from tidelog.compat.captures import parts_from_can_id_scalar, read_candump
from tidelog.nmea.fast_packet import FastPacketAssembler
from tidelog.nmea.pgns import FAST_PACKET_PGNS, ISO_TRANSPORT_CONTROL, ISO_TRANSPORT_DATA
from tidelog.signals.reassembly import Assembly, reassemble

GNSS, ENGINE, WIND = 129029, 127489, 130306

Raw = tuple[int, int, int, bytes]
"""Time, PGN, source and payload of a CAN frame."""


def raw_batch(frames: list[Raw]) -> pa.RecordBatch:
    batch = frames_batch([(pgn, source, payload) for _, pgn, source, payload in frames])
    times = pa.array([time_us for time_us, *_ in frames], TIME)
    return batch.set_column(batch.schema.get_field_index("time"), "time", times)


def whole_rows(batch: pa.RecordBatch) -> list[tuple[int, int, int, bytes]]:
    columns = (batch.column(name).to_pylist() for name in ("seq", "pgn", "source", "data"))
    return list(zip(*columns, strict=True))


def live_rows(frames: list[Raw]) -> list[tuple[int, int, int, bytes]]:
    """The same by the assembler of a live bus."""
    assembler = FastPacketAssembler()
    found = []
    for seq, (time_us, pgn, source, payload) in enumerate(frames, 1):
        row = assembler.receive(time_us, can_id(pgn, source), payload)
        if row is not None:
            found.append((seq, pgn, source, row[2]))
    return found


def timed(frames: list[tuple[int, int, bytes]]) -> list[Raw]:
    return [(START_US + 700 * place, *frame) for place, frame in enumerate(frames)]


def test_interleaved_messages_come_out_whole_where_they_ended() -> None:
    first, second = bytes(range(43)), bytes(range(100, 126))
    long, short = fast_packet(first, 3), fast_packet(second, 5)
    frames = [(WIND, 9, bytes(8))]
    for place in range(len(long)):
        frames.append((GNSS, 3, long[place]))
        frames += [(ENGINE, 4, short[place])] if place < len(short) else []
    frames.append((WIND, 9, bytes(8)))
    result = reassemble(raw_batch(timed(frames)))
    assert whole_rows(result.whole) == live_rows(timed(frames))
    assert [row[3] for row in whole_rows(result.whole)] == [bytes(8), second, first, bytes(8)]
    assert result.incomplete == []
    assert result.open_tail.num_rows == 0


def test_a_lost_frame_costs_its_message_and_is_counted() -> None:
    frames = [(GNSS, 3, part) for place, part in enumerate(fast_packet(bytes(43), 3)) if place != 2]
    frames += [(GNSS, 3, part) for part in fast_packet(bytes(43), 4)]
    result = reassemble(raw_batch(timed(frames)))
    assert len(whole_rows(result.whole)) == 1
    assert result.incomplete == [(GNSS, 6)]


def test_doubled_frames_do_no_harm_and_are_counted() -> None:
    frames = [(GNSS, 3, part) for part in fast_packet(bytes(range(43)), 3) for _ in range(2)]
    result = reassemble(raw_batch(timed(frames)))
    assert [row[3] for row in whole_rows(result.whole)] == [bytes(range(43))]
    assert result.incomplete == [(GNSS, 7)]


def test_a_message_cut_by_the_end_goes_on_in_the_next_batch() -> None:
    parts = timed([(GNSS, 3, part) for part in fast_packet(bytes(range(43)), 3)])
    first = reassemble(raw_batch(parts[:4]))
    assert first.whole.num_rows == 0
    assert first.incomplete == [(GNSS, 4)]
    rest = raw_batch(parts).slice(4)
    joined = pa.Table.from_batches([first.open_tail, rest]).combine_chunks().to_batches()[0]
    assert [row[3] for row in whole_rows(reassemble(joined).whole)] == [bytes(range(43))]


def test_a_stream_that_is_whole_already_is_left_alone() -> None:
    seen = Assembly()
    batch = frames_batch([(GNSS, 3, bytes(43)), (126720, 3, bytes(6))])
    assert reassemble(batch, seen).whole.equals(batch)
    short = frames_batch([(126720, 3, bytes(8)), (126720, 3, b"\0\5......"), (GNSS, 3, bytes(range(8)))])
    assert reassemble(short, seen).whole.equals(short)
    assert reassemble(short).incomplete == [(126720, 1)], "nothing has been shown before: the others are frames"


def test_one_long_payload_does_not_make_a_raw_capture_an_assembled_one() -> None:
    seen = Assembly()
    raw = [(GNSS, 3, part) for number in range(8) for part in fast_packet(bytes(range(43)), number)]
    stray = [(129794, 8, bytes(range(75)))]  # as a gateway hands it over
    result = reassemble(raw_batch(timed([*raw, *stray, *raw[:3]])), seen)
    assert [len(row[3]) for row in whole_rows(result.whole)] == [43] * 8 + [75]
    assert result.incomplete == [(GNSS, 3)], "the start of a message is no message"
    again = reassemble(raw_batch(timed([*stray, *raw[2:7]])), seen)
    assert [len(row[3]) for row in whole_rows(again.whole)] == [75]
    assert again.incomplete == [(GNSS, 5)]


def test_frames_of_a_pgn_that_the_boat_did_not_know_are_joined_in_a_stream_that_is_whole() -> None:
    seen = Assembly()
    whole = [(GNSS, 3, bytes(range(43)))] * 20
    parts = [(130568, 7, part) for part in fast_packet(bytes(range(20)), 3)]
    result = reassemble(raw_batch(timed([*whole, *parts, (126720, 5, bytes(8))])), seen)
    assert [(row[1], len(row[3])) for row in whole_rows(result.whole)[20:]] == [(130568, 20), (126720, 8)]
    # A message cut in two by the end of a batch is known for what it is from then on.
    rest = reassemble(raw_batch(timed([*whole, *parts[:2]])), seen)
    assert rest.incomplete == [(130568, 2)]
    assert rest.open_tail.num_rows == 2


def test_a_lineage_whose_boat_begins_to_assemble_is_followed() -> None:
    seen = Assembly()
    raw = timed([(GNSS, 3, part) for number in range(200) for part in fast_packet(bytes(range(43)), number % 8)])
    assert reassemble(raw_batch(raw), seen).whole.num_rows == 200
    whole = frames_batch([(GNSS, 3, bytes(43))] * 70 + [(126720, 5, bytes(8))])
    assert reassemble(whole, seen).whole.equals(whole)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_loss_and_doubling_gives_what_the_live_assembler_gives(seed: int) -> None:
    rng = random.Random(seed)
    counters: Counter[tuple[int, int]] = Counter()
    streams = []
    for _ in range(rng.randrange(1, 12)):
        pgn, source = rng.choice((GNSS, ENGINE, 126996)), rng.choice((3, 4))
        counters[pgn, source] += 1
        payload = rng.randbytes(rng.choice((5, 13, 26, 43, 134, 223)))
        streams.append((pgn, source, fast_packet(payload, counters[pgn, source] % 8)))
    frames: list[Raw] = []
    time_us = START_US
    for pgn, source, parts in streams:
        for part in parts:
            time_us += 600
            if rng.random() < 0.04:
                continue
            frames += [(time_us, pgn, source, part)] * (2 if rng.random() < 0.05 else 1)
            if rng.random() < 0.3:
                frames.append((time_us, WIND, 9, rng.randbytes(8)))
    result = reassemble(raw_batch(frames))
    assert whole_rows(result.whole) == live_rows(frames), seed
    passed = sum(pgn == WIND for _, pgn, _, _ in frames)
    used = sum(1 + max(0, -(-(len(row[3]) - 6) // 7)) for row in whole_rows(result.whole) if row[1] != WIND)
    assert passed + used + sum(count for _, count in result.incomplete) == len(frames), seed


def test_a_real_candump_gives_what_the_live_assembler_gives() -> None:
    frames: list[Raw] = []
    for chunk in read_candump(capture_path("candumpSample1.txt"), on_malformed="skip"):
        for place in range(len(chunk)):
            parts = parts_from_can_id_scalar(int(chunk.can_ids[place]))
            payload = chunk.payload[chunk.payload_offsets[place] : chunk.payload_offsets[place + 1]].tobytes()
            frames.append((START_US + 500 * len(frames), parts.pgn, parts.source, payload))
    # The live assembler also joins ISO transport, which is no fast packet.
    frames = [frame for frame in frames if frame[1] not in (ISO_TRANSPORT_CONTROL, ISO_TRANSPORT_DATA)]
    result = reassemble(raw_batch(frames))
    assert whole_rows(result.whole) == live_rows(frames)
    assert any(len(row[3]) > 8 for row in whole_rows(result.whole))
    assert sum(pgn in FAST_PACKET_PGNS for _, pgn, _, _ in frames) > 100


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\0", b"\x00\xff", b"\x1f\0"])
def test_malformed_frames_are_counted(payload: bytes) -> None:
    result = reassemble(raw_batch(timed([(GNSS, 3, payload)])))
    assert result.whole.num_rows == 0
    assert result.incomplete == [(GNSS, 1)]
