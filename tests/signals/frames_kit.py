"""Batches of frames for the tests of signals, and the package's own decoder as an oracle. Plain and slow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidelog.signals.rows import plain

TIME = pa.timestamp("us", tz="UTC")
START_US = 1_700_000_000_000_000

Frame = tuple[int, int, bytes]
"""PGN, source and payload."""


def frames_batch(frames: Sequence[Frame], *, destination: int = 255, step_us: int = 1_000) -> pa.RecordBatch:
    """Frames a millisecond apart with seqs from 1 on."""
    count = len(frames)
    return pa.RecordBatch.from_pydict(
        {
            "seq": pa.array(range(1, count + 1), pa.int64()),
            "time": pa.array([START_US + step_us * place for place in range(count)], TIME),
            "source": pa.array([source for _, source, _ in frames], pa.int16()),
            "destination": pa.array([destination] * count, pa.int16()),
            "pgn": pa.array([pgn for pgn, _, _ in frames], pa.int32()),
            "data": pa.array([payload for _, _, payload in frames], pa.binary()),
        }
    )


def rows_by_seq(signals: pa.RecordBatch) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in plain(signals).to_pylist():
        found.setdefault(row["seq"], []).append(row)
    return found


def capture_path(name: str) -> Path:
    """A real capture, searched upward from the repository; the test is skipped where it is not."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / "data" / "nmea2000" / name
        if path.exists():
            return path
    pytest.skip(f"the capture {name} is not on this machine (looked for shared/data/nmea2000 above the repository)")


def canboat_batch(path: Path) -> pa.RecordBatch:
    """All lines of a canboat raw file, gateway messages and damaged PGNs included."""
    rows = [_canboat_row(line.strip().split(",")) for line in path.read_text().splitlines() if line.count(",") >= 5]
    times, pgns, sources, destinations, payloads = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "seq": pa.array(range(1, len(rows) + 1), pa.int64()),
            "time": pa.array(times, TIME),
            "source": pa.array(sources, pa.int16()),
            "destination": pa.array(destinations, pa.int16()),
            "pgn": pa.array(pgns, pa.int32()),
            "data": pa.array(payloads, pa.binary()),
        }
    )


def _canboat_row(cells: list[str]) -> tuple[dt.datetime, int, int, int, bytes]:
    text = cells[0] if "T" in cells[0] else "T".join(cells[0].rsplit("-", 1))
    time = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    time = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    payload = bytes.fromhex("".join(cells[6 : 6 + int(cells[5])]))
    return time, int(cells[2]), int(cells[3]), int(cells[4]), payload


def oracle_fields(pgn: int, payload: bytes) -> tuple[str | None, dict[tuple[str, int], Any]]:
    """(variant, fields by id and number of their set, 0 outside of sets) as the package decodes a payload."""
    from nmea2000 import backend

    message = backend.decode(pgn, payload, units="si")
    if message is None:
        return None, {}
    fields: dict[tuple[str, int], Any] = {}
    for field in message.fields:
        if isinstance(field.value, list):
            for number, inner in enumerate(field.value, 1):
                fields.update({(name, number): item for name, item in inner.items()})
        else:
            fields[field.id, 0] = field
    return message.id, fields
