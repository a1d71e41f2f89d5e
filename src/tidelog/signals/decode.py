"""Whole messages to signals: many rows for every frame, no step for a single one.

Frames are grouped by PGN and then by variant; each group gives columns (`columns.py`), which become the rows of the
long table one behind the other (`rows.py`).

A caller gives messages that are whole; `reassemble` makes them from raw captures.

Invariants:
DEC1  Rows come by PGN, then by variant and field; those of one field in the order of the frames.
DEC2  Every frame is decoded or counted in `undecoded`, never both: `frames == decoded + sum(undecoded)`. A counted
      frame may still have rows for its known fields: a proprietary one has its manufacturer.
DEC3  Equal batches give equal results, dictionaries included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.signals.buffers import binary_buffers
from tidelog.signals.columns import read_variant
from tidelog.signals.layouts import Variant, layouts_of
from tidelog.signals.payloads import Int64s, Payloads, padded
from tidelog.signals.rows import SignalRows
from tidelog.signals.texts import TextPool

UNKNOWN_PGN: Final = "unknown_pgn"
TOO_SHORT: Final = "too_short"
PROPRIETARY: Final = "proprietary"
VARIABLE: Final = "variable"

_PGN_END: Final = 1 << 20
"""Beyond the 18 bits of the bus: canboat numbers the messages of gateways from 2**18 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded:
    """Counts of frames that were not decoded, or not completely."""

    pgn: int
    reason: str
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The signals of a batch of frames."""

    signals: pa.RecordBatch
    """Rows of SIGNALS_SCHEMA, without the day."""
    frames: int
    decoded: int
    undecoded: list[Undecoded]
    """By PGN, then by reason."""


def decode_signals(batch: pa.RecordBatch) -> Decoded:
    """Signals of a batch of frames.

    Needs the columns seq, time, source, pgn and data. channel, lineage, clock, device and destination are taken over
    where the batch has them and are null where not.
    """
    frames = _Frames(batch)
    pool = TextPool()
    rows = SignalRows(batch)
    counted: Counter[tuple[int, str]] = Counter()
    order, groups = _groups(frames.pgns)
    frames.sort(order)
    for pgn, start, end in groups:
        _decode_pgn(pgn, start, end, frames, pool, rows, counted)
    undecoded = [
        Undecoded(pgn=pgn, reason=reason, frames=count) for (pgn, reason), count in sorted(counted.items()) if count
    ]
    return Decoded(
        signals=rows.to_arrow(pool),
        frames=batch.num_rows,
        decoded=batch.num_rows - sum(item.frames for item in undecoded),
        undecoded=undecoded,
    )


class _Frames:
    """The columns of a batch that decoding reads."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.pgns = batch.column("pgn").to_numpy(zero_copy_only=False)
        offsets, values = binary_buffers(batch.column("data"))
        self.starts: Int64s = offsets[:-1].astype(np.int64)
        self.lengths: Int64s = np.diff(offsets).astype(np.int64)
        self.buffer = padded(values, int(self.lengths.max(initial=0)))
        self.order: Int64s = np.zeros(0, dtype=np.int64)

    def sort(self, order: Int64s) -> None:
        """Put the frames of a group side by side; `order` is the place of each in the batch."""
        self.order = order
        self.starts = self.starts.take(order)
        self.lengths = self.lengths.take(order)


def _groups(pgns: npt.NDArray[np.int32]) -> tuple[Int64s, list[tuple[int, int, int]]]:
    """Frames by PGN, those of one in rising order: their places, and (PGN, start, end) among these."""
    if not len(pgns):
        return np.zeros(0, dtype=np.int64), []
    if int(pgns.min()) < 0 or int(pgns.max()) >= _PGN_END:
        # No such PGN exists, so this is a damaged capture and rare: performance does not matter.
        damaged, which, each = np.unique(pgns, return_inverse=True, return_counts=True)
        return np.argsort(which, kind="stable"), _spans(damaged, each)
    # Places of numpy's own width: taking by narrower ones costs ten times as much.
    places = pgns.astype(np.intp)
    counts = np.bincount(places)
    seen = np.flatnonzero(counts)
    # Sorting small numbers is a radix sort, ten times as fast as sorting the PGNs themselves.
    numbers = np.zeros(len(counts), dtype=np.uint8 if len(seen) <= 256 else np.uint16)
    numbers[seen] = np.arange(len(seen))
    order = np.argsort(numbers.take(places), kind="stable")
    return order, _spans(seen, counts[seen])


def _spans(pgns: npt.NDArray[Any], counts: Int64s) -> list[tuple[int, int, int]]:
    ends = np.cumsum(counts)
    return list(zip(pgns.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True))


def _decode_pgn(
    pgn: int,
    start: int,
    end: int,
    frames: _Frames,
    pool: TextPool,
    rows: SignalRows,
    counted: Counter[tuple[int, str]],
) -> None:
    members, starts, lengths = frames.order[start:end], frames.starts[start:end], frames.lengths[start:end]
    layouts = layouts_of(pgn)
    if not layouts.variants:
        counted[pgn, UNKNOWN_PGN] += len(members)
        return
    payloads = Payloads(frames.buffer, starts, lengths)
    for variant, chosen in _by_variant(layouts.variants, payloads):
        if variant is None:
            short = payloads.bits[chosen] < _decided_at(layouts.variants)
            counted[pgn, TOO_SHORT] += int(short.sum())
            counted[pgn, UNKNOWN_PGN] += len(chosen) - int(short.sum())
            continue
        everyone = len(chosen) == len(members)
        of_variant = members if everyone else members[chosen]
        part = payloads if everyone else Payloads(frames.buffer, starts[chosen], lengths[chosen])
        found = read_variant(variant, part, pool)
        rows.add(pgn, of_variant, found.columns, found.instances)
        if variant.proprietary:
            counted[pgn, PROPRIETARY] += len(chosen)
            continue
        empty = part.bits < _first_end(variant)
        counted[pgn, TOO_SHORT] += int(empty.sum())
        if found.opaque_rows is not None:
            counted[pgn, VARIABLE] += int((~empty[found.opaque_rows]).sum())


def _by_variant(variants: tuple[Variant, ...], payloads: Payloads) -> list[tuple[Variant | None, Int64s]]:
    """Each variant with its rows; those of no variant under None."""
    left: Int64s = np.arange(len(payloads))
    found: list[tuple[Variant | None, Int64s]] = []
    for variant in variants:
        if not len(left):
            break
        if not variant.matches:
            return [*found, (variant, left)]
        agreeing = np.ones(len(left), dtype=np.bool)
        for place, length, raw in variant.matches:
            agreeing &= payloads.bits[left] >= place + length
            agreeing &= payloads.raw(left, place, length) == raw
        if agreeing.any():
            found.append((variant, left[agreeing]))
            left = left[~agreeing]
    return [*found, (None, left)] if len(left) else found


def _decided_at(variants: tuple[Variant, ...]) -> int:
    """The bits that a payload must have to identify any variant."""
    return min(max(place + length for place, length, _ in variant.matches) for variant in variants)


def _first_end(variant: Variant) -> int:
    """The bits that hold the first field; a shorter payload holds no signal."""
    return min(variant.fields[0].bit_length or 8, 8)
