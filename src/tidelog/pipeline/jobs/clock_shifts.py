"""The table `clock_shifts`: ranges of seqs whose times were wrong, and by how much `signals` has moved them.

A row of `signals` has its placed time, a frame keeps the time its boat gave it. Tables that count frames need both: so
each step of the signals job writes what it did to the clock, one row for a range of seqs that moved together. A channel
whose clock is right has no rows.

What a reader must keep: ranges of two steps may overlap in frames of a message that one step's end cut in two; the one
that begins first counts. A frame in no range is either right or not decoded yet.

JCS1  Only seqs that are held are in a range.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import DataFile, Table
from tidelog.signals.clocks import CLOCK_NAMES, Clock
from tidelog.signals.payloads import Int64s


def shifted_ranges(frames: pa.RecordBatch, whole: pa.RecordBatch, placed: pa.RecordBatch) -> list[dict[str, Any]]:
    """The ranges of `frames`, in order of seq, without channel and lineage.

    `whole` are the messages of the frames with the times of the boat, `placed` the same with corrected times.
    """
    codes = placed.column("clock").indices.to_numpy()
    if (codes == Clock.OK).all():
        return []
    shifts = _micros(placed) - _micros(whole)
    seqs = frames.column("seq").to_numpy()
    # A frame of an unfinished message belongs to the message before it.
    at = np.maximum(np.searchsorted(whole.column("seq").to_numpy(), seqs, side="right") - 1, 0)
    shifts, codes = shifts[at], codes[at]
    times_us = _micros(frames) + shifts
    breaks = (np.diff(seqs) > 1) | (np.diff(shifts) != 0) | (np.diff(codes) != 0)
    starts = np.append(0, np.flatnonzero(breaks) + 1)
    ends = np.append(starts[1:], len(seqs)) - 1
    return [
        {
            "seq_start": int(seqs[start]),
            "seq_end": int(seqs[end]) + 1,
            "shift_us": int(shifts[start]),
            "clock": CLOCK_NAMES[codes[start]],
            "time_start": int(times_us[start : end + 1].min()),
            "time_end": int(times_us[start : end + 1].max()),
        }
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if codes[start] != Clock.OK
    ]


def read_clock_shifts(table: Table, files: Collection[DataFile]) -> pa.Table:
    """The ranges in these files, in the columns of the table."""
    return pa.concat_tables([table.layout.schema.empty_table(), *(file_rows(table, file) for file in files)])


def _micros(batch: pa.RecordBatch) -> Int64s:
    micros: Int64s = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return micros
