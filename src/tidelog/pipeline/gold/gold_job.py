"""Brings the gold tables up to date with `signals` and `frames`: finds touched partitions, rebuilds them, replaces
those that differ.

Every gold table stores which version of the table below it has consumed, in the same transaction as its rows. A run
asks what was added since, rebuilds the (day, channel) partitions this touches and commits once. Killed anywhere, it
starts again from the stored versions; files of the failed attempt belong to no version and `vacuum` removes them.

`coverage` is computed from `frames` and `clock_shifts`, `fleet_health` from `coverage` and `lost_ranges`, `trips` from
`tracks` too. Rows that come during a run may
be in one and not in the other yet; so these two follow only as far as their source table has come.

GJ1  Late backfill changes exactly the partitions it touches, and of these only those whose rows differ.
GJ2  A run without new files commits nothing; new files that change no row only move the position.
GJ3  Where the source table no longer knows what was added, or rows were taken away from it, everything counts as
     touched, what a gold table holds included: slower, never wrong. A gold table of another source is emptied first.
GJ4  A table computed from another gold table never records more as consumed than that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tidelog.errors import HistoryGone
from tidelog.pipeline.gold import health_steps, trip_steps
from tidelog.pipeline.gold.ais_targets import build_ais_targets
from tidelog.pipeline.gold.electrical import build_electrical
from tidelog.pipeline.gold.engine import build_engine, build_engine_meters
from tidelog.pipeline.gold.environment import build_environment, build_navigation, build_sensors
from tidelog.pipeline.gold.health_steps import Shifts
from tidelog.pipeline.gold.partitions import Changes, batches, compare, read_files
from tidelog.pipeline.gold.schemas import (
    AIS_TARGETS,
    COVERAGE,
    ELECTRICAL_HOURS,
    ENGINE_HOURS,
    ENGINE_METERS,
    ENVIRONMENT_HOURS,
    FLEET_HEALTH,
    NAVIGATION_MINUTES,
    SENSOR_HOURS,
    TANK_HOURS,
    TRACKS,
    TRIPS,
    GoldLayout,
)
from tidelog.pipeline.gold.tanks import build_tanks
from tidelog.pipeline.gold.tracks import build_tracks
from tidelog.pipeline.jobs.clock_shifts import read_clock_shifts
from tidelog.pipeline.jobs.lost_ranges import read_lost_ranges
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.following import is_same
from tidelog.pipeline.tables.layouts import CLOCK_SHIFTS_LAYOUT, FRAMES_LAYOUT, LOST_RANGES_LAYOUT, SIGNALS_LAYOUT
from tidelog.pipeline.tables.table import DataFile, Partition, Table, TableLayout, TableStep

_BY_DAY: Final[Mapping[GoldLayout, Callable[[DataFrame], DataFrame]]] = {
    TRACKS: build_tracks,
    ENGINE_HOURS: build_engine,
    ENGINE_METERS: build_engine_meters,
    ELECTRICAL_HOURS: build_electrical,
    ENVIRONMENT_HOURS: build_environment,
    SENSOR_HOURS: build_sensors,
    NAVIGATION_MINUTES: build_navigation,
    TANK_HOURS: build_tanks,
    AIS_TARGETS: build_ais_targets,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldOptions:
    """The folder of the tables and the pipeline whose positions they store."""

    tables: Path
    pipeline: str
    table_format: str = DELTA


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldOutcome:
    """The result of a run for one table. `version` is the table's after it."""

    table: str
    touched: int
    replaced: int
    rows: int
    version: int
    is_new: bool
    """Whether anything was committed, if only the position."""


def run_gold(
    spark: SparkSession, options: GoldOptions, *, breathe: Callable[[], None] = lambda: None
) -> list[GoldOutcome]:
    """Bring every gold table up to date, once; tables whose source does not exist yet are left out.

    `breathe` is called between two tables, to give other work its turn.
    """
    job = _GoldJob(spark, options)
    steps: list[tuple[GoldLayout, _Rebuild]] = []
    if job.signals.exists():
        steps += [(layout, job.by_day(build)) for layout, build in _BY_DAY.items()]
        steps.append((TRIPS, job.trips))
    if job.frames.exists():
        steps += [(COVERAGE, job.coverage), (FLEET_HEALTH, job.fleet_health)]
    outcomes: list[GoldOutcome] = []
    for layout, rebuild in steps:
        if outcomes:
            breathe()
        outcomes.append(job.follow(layout, rebuild))
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


@dataclass(slots=True)
class _News:
    """What a gold table has to look at: files with new rows of its sources, and partitions of its own."""

    added: dict[str, list[DataFile]] = field(default_factory=dict)
    """By the table they are of."""
    is_all: bool = False
    """Whether everything counts as touched (GJ3)."""
    held: set[Partition] = field(default_factory=set)

    def take(self, source: Table, consumed: int | None, version: int) -> None:
        """The files added since then, up to this version."""
        try:
            found = source.news_since(consumed)
        except HistoryGone:
            found = None
        if found is None or found.removed_at is not None or found.is_whole:
            self.is_all = True
            self.added[source.layout.name] = source.files()
        else:
            self.added[source.layout.name] = [one.file for one in found.added if one.version <= version]

    def of(self, source: Table) -> list[DataFile]:
        return self.added.get(source.layout.name, [])

    def partitions(self, source: Table) -> set[Partition]:
        """The partitions to look at, of a table that is split like its source."""
        return {file.partition for file in self.of(source)} | self.held

    def channels(self) -> set[str]:
        # The channel is the last column that all of these tables are split by.
        touched = {file.partition for files in self.added.values() for file in files} | self.held
        return {channel for *_, channel in touched if channel is not None}


def gold_sources() -> dict[str, tuple[TableLayout, list[TableLayout], list[TableLayout]]]:
    """By gold table: its layout, the tables whose versions it follows, and others that it reads."""
    found: dict[str, tuple[TableLayout, list[TableLayout], list[TableLayout]]] = {
        layout.name: (layout.table, [SIGNALS_LAYOUT], []) for layout in _BY_DAY
    }
    found[TRIPS.name] = (TRIPS.table, [SIGNALS_LAYOUT], [TRACKS.table])
    found[COVERAGE.name] = (COVERAGE.table, [FRAMES_LAYOUT, CLOCK_SHIFTS_LAYOUT], [])
    counted = [FRAMES_LAYOUT, CLOCK_SHIFTS_LAYOUT, LOST_RANGES_LAYOUT]
    found[FLEET_HEALTH.name] = (FLEET_HEALTH.table, counted, [COVERAGE.table])
    return found


_Rebuild = Callable[[Table, GoldLayout, Changes, _News], int]
"""Rebuilds what new files of the source touch; fills `Changes`, returns how many partitions it looked at."""


class _GoldJob:
    def __init__(self, spark: SparkSession | None, options: GoldOptions) -> None:
        self._spark = spark
        self._options = options
        self.signals = open_table(options.tables, SIGNALS_LAYOUT, table_format=options.table_format)
        self.frames = open_table(options.tables, FRAMES_LAYOUT, table_format=options.table_format)
        self.lost = open_table(options.tables, LOST_RANGES_LAYOUT, table_format=options.table_format)
        self.clocks = open_table(options.tables, CLOCK_SHIFTS_LAYOUT, table_format=options.table_format)

    def open(self, layout: GoldLayout) -> Table:
        return open_table(self._options.tables, layout.table, table_format=self._options.table_format)

    def source_of(self, layout: GoldLayout) -> Table:
        return self.frames if layout in (COVERAGE, FLEET_HEALTH) else self.signals

    def follow(self, layout: GoldLayout, rebuild: _Rebuild) -> GoldOutcome:
        table, pipeline = self.open(layout), self._options.pipeline
        table.create()
        steps: list[TableStep] = []
        news = _News()
        # The versions first: rows that come after them may be included, and are processed again next time.
        sources = self._versions(layout)
        if not all(is_same(source, table, pipeline) for source, _ in sources):
            table.commit_reset(pipeline, upstreams=[source.layout.name for source, _ in sources])
        for source, version in sources:
            name = source.layout.name
            consumed = table.consumed(pipeline, name)
            if consumed != version:
                news.take(source, consumed, version)
            steps.append(TableStep(upstream=name, start=consumed, end=version, mark=source.mark_at(version)))
        if all(step.start == step.end for step in steps):
            return _outcome(layout, 0, Changes(), table.version(), is_new=False)
        if news.is_all:
            news.held = {file.partition for file in table.files()}
        changes = Changes()
        touched = rebuild(table, layout, changes, news) if any(news.added.values()) or news.held else 0
        before = table.version()
        commit = table.commit_following(pipeline, steps, changes.files, replaced=changes.replaced)
        return _outcome(layout, touched, changes, commit.version, is_new=commit.version > before)

    def _versions(self, layout: GoldLayout) -> list[tuple[Table, int]]:
        """The source of a table, and the version up to which it may follow (GJ4)."""
        source = self.source_of(layout)
        below = {FLEET_HEALTH: COVERAGE, TRIPS: TRACKS}.get(layout)
        reached = self.open(below).consumed(self._options.pipeline, source.layout.name) if below else source.version()
        assert reached is not None, "the table below is brought up to date first"
        found = [(source, reached)]
        if layout is COVERAGE and self.clocks.exists():
            found.append((self.clocks, self.clocks.version()))
        if layout is FLEET_HEALTH and self.clocks.exists():
            shifted = self.open(COVERAGE).consumed(self._options.pipeline, self.clocks.layout.name)
            found += [] if shifted is None else [(self.clocks, shifted)]
        if layout is FLEET_HEALTH and self.lost.exists():
            found.append((self.lost, self.lost.version()))
        return found

    def by_day(self, build: Callable[[DataFrame], DataFrame]) -> _Rebuild:
        """For tables whose partitions depend on `signals` of the same day and channel alone (GD2)."""

        def rebuild(table: Table, layout: GoldLayout, changes: Changes, news: _News) -> int:
            touched = news.partitions(self.signals)
            for some in batches(touched):
                rows = build(self._read(self.signals, some)).toArrow()
                compare(changes, table, layout, some, rows)
            return len(touched)

        return rebuild

    def trips(self, table: Table, layout: GoldLayout, changes: Changes, news: _News) -> int:
        touched = news.partitions(self.signals)
        tracks = self.open(TRACKS)
        found = trip_steps.find_trips(self._session(), tracks, self.signals, touched)
        partitions = found.partitions | news.held
        for some in batches(partitions):
            compare(changes, table, layout, some, found.rows)
        return len(partitions)

    def coverage(self, table: Table, layout: GoldLayout, changes: Changes, news: _News) -> int:
        shifts = self._shifts(news.channels())
        new = Shifts(read_clock_shifts(self.clocks, news.of(self.clocks)))
        frames = news.of(self.frames)
        touched = health_steps.touched_days(self._session(), self.frames, frames, shifts, new) | news.held
        for some in batches(touched):
            rows = health_steps.coverage_of(self._session(), self.frames, some, shifts)
            compare(changes, table, layout, some, rows)
        return len(touched)

    def _shifts(self, channels: Collection[str]) -> Shifts:
        if not self.clocks.exists():
            return health_steps.NO_SHIFTS
        return Shifts(read_clock_shifts(self.clocks, self.clocks.files({(channel,) for channel in channels})))

    def fleet_health(self, table: Table, layout: GoldLayout, changes: Changes, news: _News) -> int:
        channels = news.channels()
        said = read_lost_ranges(self.lost, channels) if self.lost.exists() else None
        rows = health_steps.health_of(self._session(), self.open(COVERAGE), channels, said)
        held = {file.partition for file in table.files() if file.partition[1] in channels}
        partitions = held | health_steps.partitions_of(rows)
        for some in batches(partitions):
            compare(changes, table, layout, some, rows)
        return len(partitions)

    def _read(self, table: Table, partitions: Collection[Partition]) -> DataFrame:
        return read_files(self._session(), table, table.files(partitions))

    def _session(self) -> SparkSession:
        assert self._spark is not None, "only status does without Spark"
        return self._spark


def _outcome(layout: GoldLayout, touched: int, changes: Changes, version: int, *, is_new: bool) -> GoldOutcome:
    return GoldOutcome(
        table=layout.name,
        touched=touched,
        replaced=len(changes.replaced),
        rows=sum(file.rows for file in changes.files),
        version=version,
        is_new=is_new,
    )
