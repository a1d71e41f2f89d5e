"""The days that new frames touch, and the files from which an hour's coverage must be computed.

`frames` is split by the day of arrival, coverage by the day on the bus: backfill of last week arrives today. The
smallest and largest time in the table's log show which files may hold frames of a day, unless their times were moved
(`clock_shifts`): then the ranges of seqs show it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.coverage import CLOCK_AHEAD_US_MAX, CLOCK_US_MIN, build_coverage, bus_micros, with_shifts
from tidelog.pipeline.gold.fleet_health import build_fleet_health
from tidelog.pipeline.gold.moments import SECOND_US, day_of
from tidelog.pipeline.gold.partitions import read_files
from tidelog.pipeline.tables.table import DataFile, Partition, Table

_ONE_DAY: Final = timedelta(days=1)
_CLOCK_MIN: Final = datetime.fromtimestamp(CLOCK_US_MIN / SECOND_US, UTC)
_CLOCK_AHEAD_MAX: Final = timedelta(microseconds=CLOCK_AHEAD_US_MAX)


class _Range(NamedTuple):
    seq_start: int
    seq_end: int
    time_start: datetime
    time_end: datetime


class Shifts:
    """The rows of `clock_shifts` of some channels."""

    def __init__(self, rows: pa.Table | None = None) -> None:
        self._rows = rows
        self._of: dict[str, list[_Range]] = {}
        for row in rows.to_pylist() if rows is not None else []:
            times = (row["time_start"], row["time_end"])
            self._of.setdefault(row["channel"], []).append(_Range(row["seq_start"], row["seq_end"], *times))

    def __bool__(self) -> bool:
        return bool(self._of)

    def in_file(self, file: DataFile) -> list[_Range]:
        """The ranges that may have frames in this file of `frames`."""
        _, channel = file.partition
        found = self._of.get(channel or "", [])
        # Frames without a seq are placed by their offset.
        keys = [key for key in ("seq", "offset") if key in file.minimums and key in file.maximums]
        return [
            one
            for one in found
            if not keys or any(one.seq_start <= file.maximums[key] and one.seq_end > file.minimums[key] for key in keys)
        ]

    def frame(self, spark: SparkSession) -> DataFrame | None:
        return spark.createDataFrame(self._rows) if self else None


NO_SHIFTS: Final = Shifts()


def touched_days(
    spark: SparkSession,
    frames: Table,
    added: Collection[DataFile],
    shifts: Shifts = NO_SHIFTS,
    added_shifts: Shifts = NO_SHIFTS,
) -> set[Partition]:
    """The (day, channel) partitions of `coverage` that the frames of these files belong to, and those that the frames
    of the new shifts leave and come into."""
    touched: set[Partition] = set()
    unclear = []
    for file in added:
        days = None if shifts.in_file(file) else _days_of(file)
        if days is None:
            unclear.append(file)
        else:
            touched |= {(day.isoformat(), file.partition[1]) for day in days}
    if unclear:
        touched |= _days_in(with_shifts(read_files(spark, frames, unclear), shifts.frame(spark)))
    moved = [file for file in frames.files() if added_shifts.in_file(file)] if added_shifts else []
    if moved:
        rows = with_shifts(read_files(spark, frames, moved), added_shifts.frame(spark))
        rows = rows.filter(F.col("shift_us").isNotNull())
        touched |= _days_in(rows) | _days_in(with_shifts(rows.drop("shift_us", "shift_clock"), None))
    return touched


def _days_in(frames: DataFrame) -> set[Partition]:
    found = frames.select(day_of(bus_micros()).cast("string").alias("day"), "channel")
    return partitions_of(found.distinct().toArrow())


def coverage_of(
    spark: SparkSession, frames: Table, partitions: Collection[Partition], shifts: Shifts = NO_SHIFTS
) -> pa.Table:
    """The rows of `coverage` for these partitions, from every file that may hold frames of theirs."""
    wanted: dict[str, set[date]] = {}
    for day, channel in partitions:
        if day is not None and channel is not None:
            wanted.setdefault(channel, set()).add(date.fromisoformat(day))
    files = [file for file in frames.files() if _may_hold(file, wanted, shifts)]
    days = [(channel, day) for channel, some in wanted.items() for day in some]
    marks = F.broadcast(spark.createDataFrame(days, "channel string, day date"))
    placed = with_shifts(read_files(spark, frames, files), shifts.frame(spark))
    rows = placed.withColumn("day", day_of(bus_micros()))
    return build_coverage(rows.join(marks, ["channel", "day"], "left_semi")).toArrow()


def health_of(spark: SparkSession, coverage: Table, channels: Collection[str], lost: pa.Table | None) -> pa.Table:
    """The rows of `fleet_health` of these channels, all their days."""
    files = [file for file in coverage.files() if file.partition[1] in channels]
    ranges = spark.createDataFrame(lost) if lost is not None and lost.num_rows else None
    return build_fleet_health(read_files(spark, coverage, files), ranges).toArrow()


def partitions_of(rows: pa.Table) -> set[Partition]:
    """The partitions of rows that have a day and a channel."""
    pairs = rows.select(["day", "channel"]).group_by(["day", "channel"]).aggregate([])
    return {(str(row["day"]), row["channel"]) for row in pairs.to_pylist()}


def _days_of(file: DataFile) -> set[date] | None:
    """The days on which the frames of a file were on the bus, if its bounds alone show it: those of a live file do."""
    earliest, latest = file.minimums.get("time"), file.maximums.get("time")
    appended = file.minimums.get("append_time")
    if earliest is None or latest is None or appended is None or file.nulls.get("time"):
        return None
    earliest, latest = _in_utc(earliest), _in_utc(latest)
    if earliest < _CLOCK_MIN or latest > _in_utc(appended) + _CLOCK_AHEAD_MAX:
        return None  # some clock may be wrong, and its frames count on the day of their arrival
    days = {earliest.date(), latest.date()}
    return days if latest.date() - earliest.date() <= _ONE_DAY else None


def _may_hold(file: DataFile, wanted: dict[str, set[date]], shifts: Shifts) -> bool:
    append_day, channel = file.partition
    if channel not in wanted or append_day is None:
        return False
    earliest, latest = file.minimums.get("time"), file.maximums.get("time")
    moved = shifts.in_file(file)
    return any(
        any(_overlaps(one.time_start, one.time_end, day) for one in moved)
        # A frame with a wrong clock counts on the day of its arrival.
        or append_day == day.isoformat()
        or earliest is None
        or latest is None
        or _overlaps(earliest, latest, day)
        for day in wanted[channel]
    )


def _overlaps(earliest: datetime, latest: datetime, day: date) -> bool:
    start = datetime.combine(day, time(), UTC)
    return _in_utc(earliest) < start + _ONE_DAY and _in_utc(latest) >= start


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
