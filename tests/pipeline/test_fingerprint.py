"""Fingerprints: the same frames give the same sums in any order and any cut, and any difference shows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.pipeline.fingerprint import FINGERPRINT_SCHEMA, STRETCH_BITS, fingerprints

START = datetime(2026, 7, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("channel", pa.string()),
        ("lineage", pa.string()),
        ("seq", pa.int64()),
        ("offset", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("priority", pa.int8()),
        ("pgn", pa.int32()),
        ("source", pa.int16()),
        ("destination", pa.int16()),
        ("data", pa.binary()),
    ]
)


def rows(count: int, *, seed: int = 7) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "channel": rng.choice(("north", "south")),
            "lineage": rng.choice(("aa" * 16, "bb" * 16, None)),
            "seq": 1 + number * 700,
            "offset": number * 650,
            "time": START + timedelta(microseconds=rng.randrange(10**12)),
            "priority": rng.randrange(8),
            "pgn": rng.choice((129_025, 59_904, 126_996)),
            "source": rng.randrange(254),
            "destination": rng.choice((255, 17)),
            "data": rng.randbytes(rng.choice((0, 1, 8, 8, 8, 134))),
        }
        for number in range(count)
    ]


def found(*parts: list[dict[str, Any]]) -> dict[tuple[str, str | None, int], tuple[int, int]]:
    sums: Counter[tuple[str, str | None, int]] = Counter()
    frames: Counter[tuple[str, str | None, int]] = Counter()
    for part in parts:
        made = fingerprints(pa.RecordBatch.from_pylist(part, schema=SCHEMA))
        assert made.schema == FINGERPRINT_SCHEMA
        for row in made.to_pylist():
            key = row["channel"], row["lineage"], row["stretch"]
            sums[key] = (sums[key] + row["checksum"]) % 2**64
            frames[key] += row["frames"]
    return {key: (frames[key], sums[key]) for key in frames}


def test_order_and_cuts_do_not_matter() -> None:
    all_rows = rows(500)
    shuffled = random.Random(3).sample(all_rows, len(all_rows))
    whole = found(all_rows)
    assert len(whole) > 12
    assert found(shuffled) == whole
    assert found(shuffled[:123], shuffled[123:124], shuffled[124:]) == whole
    assert sum(count for count, _ in whole.values()) == 500


def test_a_slice_of_a_batch_counts_only_its_own_frames() -> None:
    all_rows = [row | {"channel": "north", "lineage": "aa" * 16} for row in rows(50)]
    batch = pa.RecordBatch.from_pylist(all_rows, schema=SCHEMA)
    assert (
        fingerprints(batch.slice(11, 20)).to_pylist()
        == fingerprints(pa.RecordBatch.from_pylist(all_rows[11:31], schema=SCHEMA)).to_pylist()
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", 3),
        ("time", START - timedelta(days=1)),
        ("priority", 0),
        ("pgn", 129_026),
        ("source", 254),
        ("data", b"otherwise"),
        ("data", b"\x00" * 9),
    ],
)
def test_a_frame_that_differs_in_any_way_shows(field: str, value: Any) -> None:
    frame = rows(1)[0] | {"lineage": "aa" * 16, "data": b"\x00" * 8, "priority": 3, "pgn": 129_025}
    assert found([frame]) != found([frame | {field: value}])


def test_the_destination_of_an_addressed_frame_counts_and_that_of_a_broadcast_does_not() -> None:
    frame = rows(1)[0] | {"pgn": 59_904, "destination": 17}
    assert found([frame]) != found([frame | {"destination": 18}])
    broadcast = frame | {"pgn": 129_025, "destination": 255}
    assert found([broadcast]) == found([broadcast | {"destination": 18}])


def test_a_missing_and_a_doubled_frame_show() -> None:
    all_rows = rows(100)
    assert found(all_rows[:-1]) != found(all_rows)
    assert found([*all_rows, all_rows[5]]) != found(all_rows)


def test_two_frames_that_swap_their_bytes_show() -> None:
    first, second = (row | {"channel": "north", "lineage": "aa" * 16} for row in rows(2))
    second = second | {"data": b"second"}
    swapped = [first | {"data": second["data"]}, second | {"data": first["data"]}]
    assert found(swapped) != found([first, second])


def test_frames_without_a_seq_are_placed_by_offset() -> None:
    frame = rows(1)[0] | {"lineage": None, "seq": None, "offset": 5 << STRETCH_BITS}
    ((key, _),) = found([frame]).items()
    assert key[1:] == (None, 5)


def test_no_frames_give_no_rows() -> None:
    assert fingerprints(pa.RecordBatch.from_pylist([], schema=SCHEMA)).num_rows == 0


def test_random_frames_do_not_collide() -> None:
    batch = [row | {"seq": seq, "lineage": "aa" * 16, "channel": "north"} for seq, row in enumerate(rows(300), 1)]
    seen = {next(iter(found([one]).values())) for one in batch}
    assert len(seen) == len(np.unique([one["seq"] for one in batch]))
