"""Corrects the times of frames whose clock was wrong.

A boat without a battery for its clock wakes up in 1970, jumps when the GPS has a fix, and sometimes wakes up in
2038. The order of its frames is right all the same: seqs are always right. So frames are cut into runs in which the
      clock went steadily, and a run that cannot be right is moved as a whole.

Invariants:
SCL1  Frames of a run that can be right keep their times and are "ok".
SCL2  Within a run all times move by the same amount, so distances between frames stay.
SCL3  The result depends on the arguments alone.
SCL4  A frame that was moved is "gps" (moved by the GPS time within its run) or "placed".
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.signals.buffers import binary_buffers
from tidelog.signals.payloads import Int64s, Payloads, padded
from tidelog.units import US_PER_S

EARLIEST_US: Final = 1_262_304_000 * US_PER_S
"""2010. There were frames before; but a clock that shows such a time today was never set."""
JUMP_US_MAX: Final = 3_600 * US_PER_S
AHEAD_US_MAX: Final = 300 * US_PER_S
"""How far a boat's clock may be ahead of the leader's that appended its frames."""
GPS_US_MAX: Final = 60 * US_PER_S

_DAY_US: Final = 86_400 * US_PER_S
_TICK_US: Final = 100
_DATE_MAX: Final = 65_532
_TIME_MAX: Final = 864_009_999
_SYSTEM_TIME, _TIME_DATE, _GNSS_POSITION = 126992, 129033, 129029


class Clock(enum.IntEnum):
    """What was done to the time of a frame."""

    OK = 0
    GPS = 1
    PLACED = 2


CLOCK_NAMES: Final = ("ok", "gps", "placed")


class PlacedTimes(NamedTuple):
    """Times and what was done to them, frame by frame."""

    times_us: Int64s
    clocks: npt.NDArray[np.int8]

    def clock_column(self) -> pa.Array:
        """The values of the table's `clock` column."""
        return pa.DictionaryArray.from_arrays(pa.array(self.clocks, pa.int32()), pa.array(CLOCK_NAMES))


class GpsTimes(NamedTuple):
    """Times sent by receivers, by the index of the frame that sent them; indexes rise."""

    frames: Int64s
    times_us: Int64s


NO_GPS: Final = GpsTimes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def place_times(
    times_us: Int64s,
    append_us: Int64s,
    gps: GpsTimes = NO_GPS,
    *,
    previous_end_us: int | None = None,
    next_start_us: int | None = None,
) -> PlacedTimes:
    """Times of the frames of one lineage, in order of seq.

    `previous_end_us` and `next_start_us` are the good times around this stretch, where it is a part of more.
    """
    if not len(times_us):
        return PlacedTimes(times_us, np.zeros(0, dtype=np.int8))
    starts = _run_starts(times_us)
    ends = np.append(starts[1:], len(times_us)) - 1
    gps_offsets, has_gps = _gps_offsets(times_us, append_us, gps, starts)
    early = times_us[starts] < EARLIEST_US
    late = np.maximum.reduceat(times_us - append_us, starts) > AHEAD_US_MAX
    wrong = early | late | (np.abs(gps_offsets) > GPS_US_MAX)
    shifts = np.zeros(len(starts), dtype=np.int64)
    clocks = np.full(len(starts), Clock.OK, dtype=np.int8)
    by_gps = wrong & has_gps
    shifts[by_gps] = gps_offsets[by_gps]
    clocks[by_gps] = Clock.GPS
    left = np.flatnonzero(wrong & ~by_gps)
    clocks[left] = Clock.PLACED
    _place_runs(left, times_us[starts], times_us[ends], append_us[ends], shifts, previous_end_us, next_start_us)
    counts = ends - starts + 1
    return PlacedTimes(times_us + np.repeat(shifts, counts), np.repeat(clocks, counts))


def _run_starts(times_us: Int64s) -> Int64s:
    steps = np.diff(times_us)
    return np.append(0, np.flatnonzero((steps < 0) | (steps > JUMP_US_MAX)) + 1)


def _gps_offsets(
    times_us: Int64s, append_us: Int64s, gps: GpsTimes, starts: Int64s
) -> tuple[Int64s, npt.NDArray[np.bool]]:
    """How far the GPS is ahead of the clock in each run, where it has a plausible time."""
    offsets = np.zeros(len(starts), dtype=np.int64)
    has_gps = np.zeros(len(starts), dtype=np.bool)
    believed = (gps.times_us >= EARLIEST_US) & (gps.times_us <= append_us[gps.frames] + AHEAD_US_MAX)
    frames, said_us = gps.frames[believed], gps.times_us[believed]
    ahead_us = said_us - times_us[frames]
    run = np.searchsorted(starts, frames, side="right") - 1
    order = np.lexsort((ahead_us, run))
    runs, first, counts = np.unique(run[order], return_index=True, return_counts=True)
    # The median: a receiver without a fix sends some time too.
    offsets[runs] = ahead_us[order][first + counts // 2]
    has_gps[runs] = True
    return offsets, has_gps


def _place_runs(
    left: Int64s,
    first_us: Int64s,
    last_us: Int64s,
    append_us: Int64s,
    shifts: Int64s,
    previous_end_us: int | None,
    next_start_us: int | None,
) -> None:
    """Move the runs that have no GPS time: a step for every run, of which a boat has a few in a day."""
    if not len(left):
        return
    waiting = set(left.tolist())
    bounds: dict[int, int] = {}
    follows_us = next_start_us
    # Backwards, so that of two such runs the earlier one ends where the later one was moved to.
    for run in range(len(shifts) - 1, -1, -1):
        if run in waiting and follows_us is not None:
            shifts[run] = follows_us - last_us[run]
            bounds[run] = follows_us
        if run not in waiting or run in bounds:
            follows_us = int(first_us[run] + shifts[run])
    ended_us = previous_end_us
    for run in range(len(shifts)):
        if run in waiting and run not in bounds:
            shifts[run] = append_us[run] - last_us[run] if ended_us is None else ended_us - first_us[run]
        ended_us = int(last_us[run] + shifts[run])


def gps_times(batch: pa.RecordBatch) -> GpsTimes:
    """The times that receivers send in whole messages (system time, time and date, GNSS position)."""
    offsets, values = binary_buffers(batch.column("data"))
    lengths = np.diff(offsets).astype(np.int64)
    starts = offsets[:-1].astype(np.int64)
    buffer = padded(values, int(lengths.max(initial=0)))
    pgns = batch.column("pgn").to_numpy(zero_copy_only=False)
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for pgn, date_bit, time_bit, bits in (
        (_SYSTEM_TIME, 16, 32, 64),
        (_TIME_DATE, 0, 16, 48),
        (_GNSS_POSITION, 8, 24, 256),
    ):
        frames = np.flatnonzero((pgns == pgn) & (lengths * 8 >= bits))
        if not len(frames):
            continue
        payloads = Payloads(buffer, starts[frames], lengths[frames])
        days = payloads.raw(None, date_bit, 16).astype(np.int64)
        ticks = payloads.raw(None, time_bit, 32).astype(np.int64)
        good = (days <= _DATE_MAX) & (ticks <= _TIME_MAX)
        if pgn == _SYSTEM_TIME:
            # 5 is the sender's own crystal, which is the clock in doubt.
            good &= payloads.raw(None, 8, 4) < 5
        elif pgn == _GNSS_POSITION:
            method = payloads.raw(None, 252, 4)
            # No fix; estimated, typed in or simulated ones are no better.
            good &= (method > 0) & (method < 6)
        found.append((frames[good], days[good] * _DAY_US + ticks[good] * _TICK_US))
    frames = np.concatenate([item[0] for item in found])
    order = np.argsort(frames, kind="stable")
    return GpsTimes(frames[order], np.concatenate([item[1] for item in found])[order])
