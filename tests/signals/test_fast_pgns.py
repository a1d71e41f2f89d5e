"""Every fast packet of the definitions, cut into frames, joined and decoded: as if it had never been cut."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.edge.bus_frames import can_id
from tests.signals.frames_kit import START_US, frames_batch, rows_by_seq
from tests.signals.test_oracle import payload_of
from tidelog.nmea.fast_packet import FastPacketAssembler, split_message
from tidelog.nmea.pgns import FAST_PACKET_PGNS
from tidelog.signals.decode import UNKNOWN_PGN, Undecoded, decode_signals
from tidelog.signals.layouts import fast_packet_pgns, layouts_of
from tidelog.signals.reassembly import reassemble

SEED = 1_017
SOURCE = 7

pytest.importorskip("nmea2000", reason="signals need the `spark` extra (nmea2000)")


def fast_messages() -> list[tuple[int, bytes]]:
    rng = random.Random(SEED)
    return [
        (pgn, payload_of(variant, rng))
        for pgn in sorted(fast_packet_pgns())
        # Proprietary PGNs without a definition all have the same layout.
        if pgn < 130_816 or len(layouts_of(pgn).variants) > 1
        for variant in layouts_of(pgn).variants
    ]


def test_every_fast_packet_of_the_definitions_comes_back_from_its_frames() -> None:
    messages = fast_messages()
    assert len({pgn for pgn, _ in messages}) > 120
    frames = [
        (pgn, SOURCE, part)
        for number, (pgn, payload) in enumerate(messages)
        for part in split_message(pgn, payload, counter=number % 8)
    ]
    raw = frames_batch(frames)
    joined = reassemble(raw)
    assert joined.incomplete == []
    rows = zip(joined.whole["pgn"].to_pylist(), joined.whole["data"].to_pylist(), strict=True)
    assert list(rows) == messages, f"seed {SEED}"
    assembler = FastPacketAssembler()
    live = [
        assembler.receive(START_US + 1_000 * place, can_id(pgn, source), part)
        for place, (pgn, source, part) in enumerate(frames)
    ]
    assert [row[2] for row in live if row is not None] == [payload for _, payload in messages], f"seed {SEED}"
    never_cut = frames_batch([(pgn, SOURCE, payload) for pgn, payload in messages])
    ours, theirs = decode_signals(joined.whole), decode_signals(never_cut)
    assert ours.undecoded == theirs.undecoded
    for name in ("signal", "value", "unit", "text", "instance"):
        assert _column(ours.signals, name) == _column(theirs.signals, name), f"{name}, seed {SEED}"


def _column(signals: pa.RecordBatch, name: str) -> list[object]:
    # Random bytes hold numbers that are none.
    return [repr(value) for value in signals.column(name).to_pylist()]


@pytest.mark.parametrize("pgn", [130_325, 126_990, 127_000, 130_800])
def test_frames_of_a_pgn_that_is_neither_single_nor_fast_are_counted_not_decoded(pgn: int) -> None:
    assert pgn not in FAST_PACKET_PGNS
    frames = frames_batch([(pgn, SOURCE, part) for part in _parts(bytes(range(20)))])
    decoded = decode_signals(reassemble(frames).whole)
    assert decoded.signals.num_rows == 0
    assert decoded.undecoded == [Undecoded(pgn=pgn, reason=UNKNOWN_PGN, frames=3)]


def test_unknown_proprietary_messages_are_joined_by_rule_and_counted_as_proprietary() -> None:
    messages = [(126_720, b"\x01\x02" + bytes(20)), (130_999, b"\x01\x02" + bytes(20))]
    frames = frames_batch([(pgn, SOURCE, part) for pgn, payload in messages for part in _parts(payload)])
    decoded = decode_signals(reassemble(frames).whole)
    assert [(one.pgn, one.reason, one.frames) for one in decoded.undecoded] == [
        (126_720, "proprietary", 1),
        (130_999, "proprietary", 1),
    ]
    data = [row["text"] for rows in rows_by_seq(decoded.signals).values() for row in rows if "data" in row["signal"]]
    assert data == [bytes(20).hex()] * 2


def _parts(payload: bytes) -> list[bytes]:
    return split_message(130_816, payload, counter=3)
