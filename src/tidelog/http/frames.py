"""Frames as JSON, the way lplex's clients read them, a whole block at a time.

One frame is one object with its keys in this order: seq, ts, prio, pgn, src, dst, data. Times are RFC 3339 in
UTC without trailing zeros, data is lower-case hex. Ids, times and payloads are split by numpy; what is left
per frame is one formatting step.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import parts_from_can_id
from tidelog.units import format_time_us

Rows = npt.NDArray[np.intp]
"""Indexes of frames in a block, ascending unless stated otherwise."""

# The first and last moment of a calendar with four-digit years; numpy would format other times differently.
_CALENDAR_BEGINS_US: Final = -62_135_596_800_000_000
_CALENDAR_ENDS_US: Final = 253_402_300_800_000_000

UNNUMBERED: Final = 0
"""As a base seq: none of these frames has a number. They are all shown with seq 0, as lplex does."""


def time_text(time_us: int) -> str:
    """RFC 3339 in UTC, trailing zeros trimmed; the plain number of microseconds outside of the calendar."""
    text = format_time_us(time_us)
    return text[:-1].rstrip("0").rstrip(".") + "Z" if text.endswith("Z") else text


def frame_seqs(base_seq: int, count: int) -> npt.NDArray[np.int64]:
    """The seqs of `count` frames, the first of which has `base_seq`."""
    if base_seq == UNNUMBERED:
        return np.zeros(count, dtype=np.int64)
    return np.arange(base_seq, base_seq + count, dtype=np.int64)


def frame_texts(seqs: npt.NDArray[np.int64], frames: FrameColumns, rows: Rows | None = None) -> list[str]:
    """One JSON object for each frame, or for each of `rows` in the order given. `seqs` has one number per frame."""
    places = np.arange(len(frames)) if rows is None else rows
    if not len(places):
        return []
    ids = frames.can_ids if rows is None else frames.can_ids[rows]
    times_us = frames.times_us if rows is None else frames.times_us[rows]
    parts = parts_from_can_id(ids)
    data = frames.payload.tobytes().hex()
    starts = (frames.payload_offsets[:-1][places].astype(np.int64) * 2).tolist()
    ends = (frames.payload_offsets[1:][places].astype(np.int64) * 2).tolist()
    columns = zip(
        (seqs if rows is None else seqs[rows]).tolist(),
        time_texts(times_us),
        parts.priority.tolist(),
        parts.pgn.tolist(),
        parts.source.tolist(),
        parts.destination.tolist(),
        starts,
        ends,
        strict=True,
    )
    return [
        f'{{"seq":{seq},"ts":"{ts}","prio":{priority},"pgn":{pgn},"src":{source},"dst":{destination}'
        f',"data":"{data[start:end]}"}}'
        for seq, ts, priority, pgn, source, destination, start, end in columns
    ]


def time_texts(times_us: npt.NDArray[np.int64]) -> list[str]:
    """`time_text` of each time."""
    if not len(times_us):
        return []
    if int(times_us.min()) < _CALENDAR_BEGINS_US or int(times_us.max()) >= _CALENDAR_ENDS_US:
        return [time_text(time_us) for time_us in times_us.tolist()]
    texts = np.datetime_as_string(times_us.astype("datetime64[us]"), unit="us").tolist()
    return [text.rstrip("0").rstrip(".") + "Z" for text in texts]
