"""Frames as lplex's clients read them, held against a slow and simple second implementation."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tidelog.blocks.columns import FrameColumns
from tidelog.http.frames import UNNUMBERED, frame_seqs, frame_texts, time_text, time_texts


def texts(base_seq: int, rows: list[tuple[int, int, bytes]]) -> list[str]:
    frames = FrameColumns.from_rows(rows)
    return frame_texts(frame_seqs(base_seq, len(frames)), frames)


def test_a_frame_reads_as_lplex_writes_it() -> None:
    assert texts(50001, [(1_750_000_000_000_000, 0x09F8010A, bytes.fromhex("aabbccddeeff1122"))]) == [
        '{"seq":50001,"ts":"2025-06-15T15:06:40Z","prio":2,"pgn":129025,"src":10,"dst":255,"data":"aabbccddeeff1122"}'
    ]


def test_an_addressed_pgn_has_a_destination_and_a_broadcast_none() -> None:
    addressed, broadcast = (json.loads(text) for text in texts(1, [(0, 0x18EA_23FE, b""), (0, 0x18EE_FF05, b"")]))
    assert (addressed["pgn"], addressed["dst"], addressed["src"]) == (59904, 0x23, 0xFE)
    assert (broadcast["pgn"], broadcast["dst"], broadcast["src"]) == (60928, 255, 5)
    [global_one] = (json.loads(text) for text in texts(1, [(0, 0x1DF0_00FF, b"")]))
    assert (global_one["pgn"], global_one["dst"], global_one["prio"]) == (0x1F000, 255, 7)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (1_750_000_000_000_000, "2025-06-15T15:06:40Z"),
        (1_750_000_000_100_000, "2025-06-15T15:06:40.1Z"),
        (1_750_000_000_000_001, "2025-06-15T15:06:40.000001Z"),
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00Z"),
        (2**63 - 1, f"{2**63 - 1}us"),
        (-(2**63), f"{-(2**63)}us"),
    ],
)
def test_times_have_no_trailing_zeros_and_end_with_the_calendar(time_us: int, text: str) -> None:
    assert time_text(time_us) == text
    assert time_texts(np.array([time_us], dtype=np.int64)) == [text]


def test_frames_without_numbers_all_have_seq_0() -> None:
    found = [json.loads(text)["seq"] for text in texts(UNNUMBERED, [(0, 0, b""), (1, 0, b"")])]
    assert found == [0, 0]


def slow_text(seq: int, time_us: int, can_id: int, payload: bytes) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    ts = moment.strftime("%Y-%m-%dT%H:%M:%S")
    if moment.microsecond:
        ts += f".{moment.microsecond:06d}".rstrip("0")
    pdu_format = can_id >> 16 & 0xFF
    broadcast = pdu_format >= 240
    frame = {
        "seq": seq,
        "ts": ts + "Z",
        "prio": can_id >> 26,
        "pgn": (can_id >> 24 & 3) << 16 | pdu_format << 8 | (can_id >> 8 & 0xFF if broadcast else 0),
        "src": can_id & 0xFF,
        "dst": 255 if broadcast else can_id >> 8 & 0xFF,
        "data": payload.hex(),
    }
    return json.dumps(frame, separators=(",", ":"))


def test_any_block_and_any_choice_of_rows_reads_like_the_slow_version() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        rows = [
            (
                rng.randrange(2_000_000_000_000_000),
                rng.randrange(1 << 29),
                rng.randbytes(rng.choice([0, 1, 8, 223, 1785])),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        base_seq = rng.randrange(1, 2**62)
        expected = [slow_text(base_seq + place, *row) for place, row in enumerate(rows)]
        frames = FrameColumns.from_rows(rows)
        seqs = frame_seqs(base_seq, len(frames))
        assert frame_texts(seqs, frames) == expected
        chosen = rng.sample(range(len(rows)), rng.randrange(len(rows) + 1))
        assert frame_texts(seqs, frames, np.array(chosen, dtype=np.intp)) == [expected[place] for place in chosen]
