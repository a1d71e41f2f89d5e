"""Keeps the gold tables up with `signals` and `frames`: finds what is touched, rebuilds it, replaces what differs.

Every gold table stores which version of the table below it has consumed, in the same transaction as its rows. A run
asks what was added since, rebuilds the (day, channel) partitions this touches and commits once. Killed anywhere,
it starts again from what is stored; files of the attempt are nobody's and `vacuum` sweeps them.

GJ1  Late backfill changes exactly the partitions it touches, and of these only those whose rows differ.
GJ2  A run without news commits nothing; news that change no row move the position alone.
GJ3  Where the table below no longer remembers what was added, everything counts as touched: slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidelog.errors import HistoryGone
from tidelog.pipeline.gold import health_steps, trip_steps
from tidelog.pipeline.gold.electrical import build_electrical
from tidelog.pipeline.gold.engine import build_engine
from tidelog.pipeline.gold.environment import build_environment
from tidelog.pipeline.gold.partitions import Changes, batches, compare, read_files
from tidelog.pipeline.gold.schemas import (
    COVERAGE,
    ELECTRICAL_HOURS,
    ENGINE_HOURS,
    ENVIRONMENT_HOURS,
    FLEET_HEALTH,
    TRACKS,
    TRIPS,
    GoldLayout,
)
from tidelog.pipeline.gold.tracks import build_tracks
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT, SIGNALS_LAYOUT
from tidelog.pipeline.tables.table import DataFile, Partition, Step, Table

LostRanges = Callable[[Collection[str]], pa.Table | None]
"""Channels -> what the control records of their logs say (see `fleet_health`); None where nobody can tell."""

_BY_DAY: Final[Mapping[GoldLayout, Callable[[DataFrame], DataFrame]]] = {
    TRACKS: build_tracks,
    ENGINE_HOURS: build_engine,
    ELECTRICAL_HOURS: build_electrical,
    ENVIRONMENT_HOURS: build_environment,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldOptions:
    """Where the tables are and whose positions they keep."""

    tables: Path
    pipeline: str
    table_format: str = DELTA


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldOutcome:
    """What a run did to one table. `version` is the table's after it."""

    table: str
    touched: int
    replaced: int
    rows: int
    version: int
    is_new: bool
    """Whether anything was committed, if only the position."""


def run_gold(spark: SparkSession, options: GoldOptions, *, lost_ranges: LostRanges | None = None) -> list[GoldOutcome]:
    """Bring every gold table up to date, once; tables whose source does not exist yet are left out."""
    job = _GoldJob(spark, options)
    outcomes = []
    if job.signals.exists():
        outcomes += [job.follow(layout, job.by_day(build)) for layout, build in _BY_DAY.items()]
        outcomes.append(job.follow(TRIPS, job.trips))
    if job.frames.exists():
        outcomes.append(job.follow(COVERAGE, job.coverage))
        outcomes.append(job.follow(FLEET_HEALTH, job.fleet_health(lost_ranges)))
    return outcomes


def gold_status(options: GoldOptions) -> dict[str, tuple[int | None, int]]:
    """By table: the version of the source that is in it, None before the first run, and the source's own."""
    job = _GoldJob(None, options)
    found = {}
    for layout in (*_BY_DAY, TRIPS, COVERAGE, FLEET_HEALTH):
        source = job.source_of(layout)
        table = job.open(layout)
        if source.exists():
            consumed = table.consumed(options.pipeline, source.layout.name) if table.exists() else None
            found[layout.name] = (consumed, source.version())
    return found


_Rebuild = Callable[[Table, GoldLayout, Changes, list[DataFile]], int]
"""Rebuilds what new files of the source touch; fills `Changes`, returns how many partitions it looked at."""


class _GoldJob:
    def __init__(self, spark: SparkSession | None, options: GoldOptions) -> None:
        self._spark = spark
        self._options = options
        self.signals = open_table(options.tables, SIGNALS_LAYOUT, table_format=options.table_format)
        self.frames = open_table(options.tables, FRAMES_LAYOUT, table_format=options.table_format)

    def open(self, layout: GoldLayout) -> Table:
        return open_table(self._options.tables, layout.table, table_format=self._options.table_format)

    def source_of(self, layout: GoldLayout) -> Table:
        return self.frames if layout in (COVERAGE, FLEET_HEALTH) else self.signals

    def follow(self, layout: GoldLayout, rebuild: _Rebuild) -> GoldOutcome:
        source, table = self.source_of(layout), self.open(layout)
        table.create()
        upstream, pipeline = source.layout.name, self._options.pipeline
        consumed = table.consumed(pipeline, upstream)
        # The version first: rows that come after it are built in perhaps, and looked at again next time.
        version = source.version()
        if consumed == version:
            return _outcome(layout, 0, Changes(), table.version(), is_new=False)
        changes = Changes()
        added = _added(source, consumed)
        touched = rebuild(table, layout, changes, added) if added else 0
        step = Step(upstream=upstream, start=consumed, end=version)
        before = table.version()
        commit = table.commit_following(pipeline, [step], changes.files, replaced=changes.replaced)
        return _outcome(layout, touched, changes, commit.version, is_new=commit.version > before)

    def by_day(self, build: Callable[[DataFrame], DataFrame]) -> _Rebuild:
        """For tables whose partitions depend on `signals` of the same day and channel alone (G2)."""

        def rebuild(table: Table, layout: GoldLayout, changes: Changes, added: list[DataFile]) -> int:
            touched = {file.partition for file in added}
            for some in batches(touched):
                rows = build(self._read(self.signals, some)).toArrow()
                compare(changes, table, layout, some, rows)
            return len(touched)

        return rebuild

    def trips(self, table: Table, layout: GoldLayout, changes: Changes, added: list[DataFile]) -> int:
        touched = {file.partition for file in added}
        tracks = self.open(TRACKS)
        found = trip_steps.find_trips(self._session(), tracks, self.signals, touched)
        for some in batches(found.partitions):
            compare(changes, table, layout, some, found.rows)
        return len(found.partitions)

    def coverage(self, table: Table, layout: GoldLayout, changes: Changes, added: list[DataFile]) -> int:
        touched = health_steps.touched_days(self._session(), self.frames, added)
        for some in batches(touched):
            rows = health_steps.coverage_of(self._session(), self.frames, some)
            compare(changes, table, layout, some, rows)
        return len(touched)

    def fleet_health(self, lost_ranges: LostRanges | None) -> _Rebuild:
        def rebuild(table: Table, layout: GoldLayout, changes: Changes, added: list[DataFile]) -> int:
            channels = {channel for _, channel in (file.partition for file in added) if channel is not None}
            said = None if lost_ranges is None else lost_ranges(channels)
            rows = health_steps.health_of(self._session(), self.open(COVERAGE), channels, said)
            held = {file.partition for file in table.files() if file.partition[1] in channels}
            partitions = held | health_steps.partitions_of(rows)
            for some in batches(partitions):
                compare(changes, table, layout, some, rows)
            return len(partitions)

        return rebuild

    def _read(self, table: Table, partitions: Collection[Partition]) -> DataFrame:
        return read_files(self._session(), table, table.files(partitions))

    def _session(self) -> SparkSession:
        assert self._spark is not None, "only status does without Spark"
        return self._spark


def _added(source: Table, consumed: int | None) -> list[DataFile]:
    """The files that are new since then; all of them where nobody remembers (GJ3)."""
    try:
        return [one.file for one in source.added_since(consumed)]
    except HistoryGone:
        return source.files()


def _outcome(layout: GoldLayout, touched: int, changes: Changes, version: int, *, is_new: bool) -> GoldOutcome:
    return GoldOutcome(
        table=layout.name,
        touched=touched,
        replaced=len(changes.replaced),
        rows=sum(file.rows for file in changes.files),
        version=version,
        is_new=is_new,
    )
