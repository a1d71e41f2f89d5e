"""The gold job: exactly what is touched is rebuilt, exactly what differs is replaced, and a re-run is nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.gold_rows import LINEAGE, METRES_PER_DEGREE, Signals, frames, tiny_data
from tidelog.pipeline.gold.gold_job import GoldOptions, GoldOutcome, gold_status, run_gold
from tidelog.pipeline.gold.schemas import COVERAGE, FLEET_HEALTH, LAYOUTS, TRACKS, TRIPS, GoldLayout
from tidelog.pipeline.gold.trip_days import DAY_ROWS_MIN, ChannelDays, merged
from tidelog.pipeline.tables import DELTA, FORMATS, open_table
from tidelog.pipeline.tables.layouts import CLOCK_SHIFTS_LAYOUT, FRAMES_LAYOUT, SIGNALS_LAYOUT
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.table import OffsetRange, RangeFiles, Table, TableLayout, TableStep

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

MIDNIGHT = datetime(2026, 6, 2, tzinfo=UTC)


class Lake:
    """A folder of tables that is fed by hand."""

    def __init__(self, folder: Path, table_format: str = DELTA) -> None:
        self.options = GoldOptions(tables=folder, pipeline="test", table_format=table_format)
        self.signals = self.open(SIGNALS_LAYOUT)
        self.frames = self.open(FRAMES_LAYOUT)
        self.signals.create()
        self.frames.create()

    def open(self, layout: TableLayout) -> Table:
        return open_table(self.options.tables, layout, table_format=self.options.table_format)

    def versions(self) -> dict[str, int]:
        return {layout.name: self.open(layout.table).version() for layout in LAYOUTS}

    def add_signals(self, *boats: Signals) -> None:
        rows = pa.concat_tables([boat.table() for boat in boats])
        consumed = self.signals.consumed("test", "frames")
        step = TableStep(upstream="frames", start=consumed, end=(consumed or 0) + 1)
        self.signals.commit_following("test", [step], self._written(SIGNALS_LAYOUT, rows))

    def add_frames(self, rows: pa.Table, start: int) -> None:
        days = pa.array([time.as_py().date() for time in rows.column("append_time")], pa.date32())
        files = self._written(FRAMES_LAYOUT, rows.append_column("append_day", days))
        part = OffsetRange(channel="boat-1", channel_id=1, leader_epoch=1, start=start, end=start + rows.num_rows)
        self.frames.commit_append("test", [RangeFiles(range=part, files=tuple(files))])

    def add_shift(self, lineage: str, start: int, end: int, shift: timedelta, clock: str, time: datetime) -> None:
        table = self.open(CLOCK_SHIFTS_LAYOUT)
        table.create()
        row = {"channel": "boat-1", "lineage": lineage, "seq_start": start, "seq_end": end, "clock": clock}
        row |= {"shift_us": shift // timedelta(microseconds=1), "time_start": time, "time_end": time}
        rows = pa.Table.from_pylist([row], schema=CLOCK_SHIFTS_LAYOUT.schema)
        consumed = table.consumed("test", "frames")
        step = TableStep(upstream="frames", start=consumed, end=(consumed or 0) + 1)
        table.commit_following("test", [step], self._written(CLOCK_SHIFTS_LAYOUT, rows))

    def run(self, spark: SparkSession) -> dict[str, GoldOutcome]:
        with tiny_data(spark):
            return {one.table: one for one in run_gold(spark, self.options)}

    def rows(self, layout: GoldLayout) -> list[dict[str, Any]]:
        table = self.open(layout.table)
        read = [pq.ParquetFile(table.path_of(file)).read() for file in table.files()]
        joined = pa.concat_tables([layout.table.schema.empty_table(), *read])
        found: list[dict[str, Any]] = joined.sort_by([(key, "ascending") for key in layout.keys]).to_pylist()
        return found

    def files(self, layout: GoldLayout) -> set[tuple[str, tuple[str | None, ...]]]:
        return {(file.path, file.partition) for file in self.open(layout.table).files()}

    def _written(self, layout: TableLayout, rows: pa.Table) -> list[Any]:
        with PartitionedWriter(self.options.tables / layout.name, layout) as writer:
            for batch in rows.combine_chunks().to_batches():
                writer.write_split(batch)
            return writer.close()


def at_sea(channel: str, start: datetime, seconds: int, *, metres: float = 0.0, seq: int = 0) -> Signals:
    """North at 4 m/s, a position every five seconds."""
    boat = Signals(channel)
    boat.seq = seq
    for second in range(0, seconds, 5):
        time = start + timedelta(seconds=second)
        boat.position(time, 50 + (metres + 4 * second) / METRES_PER_DEGREE, -4.0)
        boat.motion(time, 4.0, 0.0)
    return boat


def at_rest(channel: str, start: datetime, seconds: int, *, metres: float = 0.0, seq: int = 0) -> Signals:
    boat = Signals(channel)
    boat.seq = seq
    for second in range(0, seconds, 5):
        time = start + timedelta(seconds=second)
        boat.position(time, 50 + metres / METRES_PER_DEGREE, -4.0)
        boat.motion(time, 0.0, 0.0)
    return boat


@pytest.mark.parametrize("table_format", FORMATS)
def test_backfill_changes_what_it_touches_and_a_re_run_changes_nothing(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    # boat-1 sails up to midnight and is seen again at rest an hour into the next day; boat-2 sails by day.
    lake.add_signals(
        at_rest("boat-1", MIDNIGHT - timedelta(hours=3), 3600),
        at_sea("boat-1", MIDNIGHT - timedelta(hours=2), 7200, seq=10_000),
        at_rest("boat-1", MIDNIGHT + timedelta(hours=1), 3600, metres=4 * 10_800.0, seq=20_000),
        at_sea("boat-2", MIDNIGHT - timedelta(hours=12), 1800),
    )
    lake.add_frames(frames([*range(100), *range(200, 300)], MIDNIGHT - timedelta(seconds=150)), 0)
    first = lake.run(spark)
    assert {name: one.replaced for name, one in first.items()} == {
        **{"tracks": 3, "trips": 2, "engine": 0, "engine_meters": 0, "electrical": 0, "environment": 0, "sensors": 0},
        **{"navigation": 0, "tanks": 0, "ais_targets": 0},
        **{"coverage": 2, "fleet_health": 2},
    }
    trip, other = lake.rows(TRIPS)
    assert (trip["channel"], trip["ended"], trip["end_time"]) == ("boat-1", True, MIDNIGHT - timedelta(seconds=5))
    assert (other["channel"], other["ended"]) == ("boat-2", False)

    versions = lake.versions()
    again = lake.run(spark)
    assert not any(one.is_new for one in again.values())
    assert versions == lake.versions()

    # The missing hour arrives: one day of tracks changes, and the trip of the day before is an hour longer.
    before = {layout.name: lake.files(layout) for layout in LAYOUTS}
    lake.add_signals(at_sea("boat-1", MIDNIGHT, 3600, metres=4 * 7200.0, seq=30_000))
    lake.add_frames(frames(range(100, 200), MIDNIGHT - timedelta(seconds=150), lag_s=900, path="backfill"), 200)
    late = lake.run(spark)
    touched = (MIDNIGHT.date().isoformat(), "boat-1")
    kept = {name: {one for one in held if one[1] != touched} for name, held in before.items()}
    assert (late["tracks"].replaced, late["tracks"].touched) == (1, 1)
    assert kept["tracks"] < lake.files(TRACKS)
    assert late["trips"].replaced == 1
    longer = lake.rows(TRIPS)[0]
    assert longer["start_time"] == trip["start_time"]
    assert longer["end_time"] == MIDNIGHT + timedelta(seconds=3595)
    assert [row for row in lake.rows(TRIPS) if row["channel"] == "boat-2"] == [other]

    assert _health(lake, "sum(held), sum(holes), sum(backfill)") == (300, 0, 100)
    assert set(gold_status(lake.options)) == {layout.name for layout in LAYOUTS}
    assert all(consumed == version for consumed, version in gold_status(lake.options).values())


def test_frames_move_to_the_day_where_their_clock_is_placed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    behind = frames(range(100), MIDNIGHT + timedelta(hours=1), clock_off=timedelta(hours=-3), lag_s=90_000)
    lake.add_frames(pa.concat_tables([behind, frames(range(100, 200), MIDNIGHT + timedelta(hours=1))]), 0)
    lake.run(spark)
    assert {(row["day"].day, row["hour"].hour, row["held"]) for row in lake.rows(COVERAGE)} == {
        (1, 22, 100),
        (2, 1, 100),
    }
    lake.add_shift(LINEAGE, 0, 100, timedelta(hours=3), "gps", MIDNIGHT + timedelta(hours=1))
    moved = lake.run(spark)
    assert (moved["coverage"].touched, moved["coverage"].replaced) == (2, 2)
    ((row),) = lake.rows(COVERAGE)
    assert (row["hour"], row["held"], row["wrong_clock"]) == (MIDNIGHT + timedelta(hours=1), 200, 100)
    (row,) = lake.rows(FLEET_HEALTH)
    assert (row["hour"], row["held"], row["holes"]) == (MIDNIGHT + timedelta(hours=1), 200, 0)
    assert not any(one.is_new for one in lake.run(spark).values())

    # Frames that come later into the moved range are counted where it lies, though nothing in their file shows it.
    late = frames(range(50, 60), MIDNIGHT + timedelta(hours=1), clock_off=timedelta(hours=-3), lag_s=900)
    lake.add_frames(late, 200)
    assert {one.table for one in lake.run(spark).values() if one.replaced} == {"coverage", "fleet_health"}
    assert [row["held"] for row in lake.rows(COVERAGE)] == [210]


def _health(lake: Lake, what: str) -> tuple[Any, ...]:
    """Ask DuckDB, as anybody would; the live files are what the table's log says."""
    table = lake.open(FLEET_HEALTH.table)
    paths = [str(table.path_of(file)) for file in table.files()]
    answers = duckdb.sql(f"select {what} from read_parquet({paths!r})")
    assert answers is not None
    (answer,) = answers.fetchall()
    return tuple(answer)


def test_nothing_is_built_before_there_is_anything(spark: SparkSession, tmp_path: Path) -> None:
    options = GoldOptions(tables=tmp_path, pipeline="test")
    assert run_gold(spark, options) == []
    assert gold_status(options) == {}
    lake = Lake(tmp_path)
    outcomes = lake.run(spark)
    assert {one.rows for one in outcomes.values()} == {0}
    assert lake.rows(TRACKS) == []


# --- which days to look at, without Spark ------------------------------------------------------------


def day(number: int) -> date:
    return date(2026, 6, 1) + timedelta(days=number)


def test_the_days_around_a_touched_one_are_looked_at_too() -> None:
    known = ChannelDays({day(number): DAY_ROWS_MIN for number in (0, 1, 5, 6, 20)})
    assert known.around({day(5)}) == [range(1, 4)]
    assert known.around({day(0)}) == [range(2)]
    assert known.around({day(3)}) == [range(1, 3)]  # a day without positions still parts its neighbours
    assert known.around({day(0), day(20)}) == [range(2), range(3, 5)]
    assert known.around({day(0), day(5)}) == [range(4)]  # they meet
    assert ChannelDays({}).around({day(3)}) == []


def test_a_day_with_few_positions_does_not_end_the_search() -> None:
    rows = {day(number): DAY_ROWS_MIN for number in range(6)} | {day(2): 1, day(4): 1}
    assert ChannelDays(rows).around({day(3)}) == [range(1, 6)]


def test_an_unsettled_stretch_doubles_up_to_the_days_there_are() -> None:
    known = ChannelDays({day(number): DAY_ROWS_MIN for number in range(20)})
    assert known.grown(range(5, 8), before=True, after=False) == range(2, 8)
    assert known.grown(range(2, 8), before=True, after=True) == range(0, 14)
    assert known.grown(range(0, 20), before=True, after=True) == range(0, 20)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([range(3, 5), range(0, 2)], [range(0, 2), range(3, 5)]),
        ([range(0, 2), range(2, 4)], [range(0, 4)]),
        ([range(0, 9), range(2, 4)], [range(0, 9)]),
    ],
)
def test_stretches_that_touch_are_one(ranges: list[range], expected: list[range]) -> None:
    assert merged(ranges) == expected
