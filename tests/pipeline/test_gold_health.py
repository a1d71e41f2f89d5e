"""Coverage and fleet health: what is held, missing and lost, and how late it came."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.gold_rows import LINEAGE, NOON, frames, tiny_data
from tidelog.pipeline.gold.coverage import build_coverage, with_shifts
from tidelog.pipeline.gold.fleet_health import build_fleet_health
from tidelog.pipeline.gold.schemas import COVERAGE, FLEET_HEALTH

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

OTHER = "cd" * 16
NEVER_SET = datetime.fromtimestamp(0, NOON.tzinfo) - NOON


def all_frames() -> pa.Table:
    """Every scenario is a boat; a frame every ten seconds, 360 an hour."""
    return pa.concat_tables(
        [
            # Whole hours and a half, some of it late.
            frames(range(540), NOON, channel="whole", every_s=10),
            # 90 frames are missing inside an hour.
            frames([*range(180), *range(270, 360)], NOON, channel="inside", every_s=10),
            # From seq 180 to 1619, four hours of which two are empty, into the next day.
            frames([*range(180), *range(1620, 1800)], NOON + timedelta(hours=8), channel="long", every_s=10),
            # The same way, part of it said to be lost, part never to have been.
            frames([*range(180), *range(1620, 1800)], NOON, channel="lost", every_s=10),
            # Backfill, an hour late.
            frames(range(180), NOON, channel="late", every_s=10, path="backfill", lag_s=3600),
            frames(range(180, 360), NOON, channel="late", every_s=10, lag_s=2.0),
            # The clock was not set until seq 100, and ran a year ahead from 200 to 210.
            frames(range(100), NOON, channel="clock", every_s=10, clock_off=NEVER_SET),
            frames(range(100, 200), NOON, channel="clock", every_s=10),
            frames(range(200, 210), NOON, channel="clock", every_s=10, clock_off=timedelta(days=365)),
            frames(range(210, 360), NOON, channel="clock", every_s=10),
            # The clock goes two hours back in the middle: hours overlap in seq, and nothing is missing.
            frames(range(720), NOON, channel="step", every_s=10),
            frames(range(720, 1440), NOON, channel="step", every_s=10, clock_off=timedelta(hours=-2)),
            # A capture of ten years ago is replayed with its own times, beside a boat on a slow link.
            frames(range(180), NOON, channel="replayed", every_s=10, clock_off=timedelta(days=-3652)),
            frames(range(180), NOON, channel="slow", every_s=10, lag_s=7_200),
            # Three hours behind, and the GPS shows it; never set, sent in a day late, and placed beside its neighbours.
            frames(range(180), NOON, channel="gps", every_s=10, clock_off=timedelta(hours=-3)),
            frames(range(180), NOON, channel="placed", every_s=10, clock_off=NEVER_SET, path="backfill", lag_s=86_400),
            frames(range(180, 360), NOON, channel="placed", every_s=10),
            # The card was swapped: seqs start again.
            frames(range(100), NOON, channel="swapped", every_s=10),
            frames(range(200, 360), NOON, channel="swapped", every_s=10, lineage=OTHER, lag_s=4.0),
        ]
    )


def clock_shifts() -> pa.Table:
    """What `signals` did to the clocks; one range twice, as two steps may write it."""
    hours_us = 3_600_000_000
    rows = [
        ("gps", LINEAGE, 0, 100, 3 * hours_us, "gps"),
        ("gps", LINEAGE, 90, 180, 3 * hours_us, "gps"),
        ("gps", OTHER, 0, 180, 7 * hours_us, "gps"),
        ("placed", LINEAGE, 0, 180, -(NEVER_SET // timedelta(microseconds=1)), "placed"),
    ]
    names = ("channel", "lineage", "seq_start", "seq_end", "shift_us", "clock")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


def lost_ranges() -> pa.Table:
    rows = [
        ("lost", LINEAGE, 180, 540, "lost"),
        ("lost", LINEAGE, 1260, 1620, "void"),
        ("lost", LINEAGE, 0, 10, "lost"),  # arrived after all
        ("lost", OTHER, 540, 900, "lost"),  # of somebody else
        # Said again, in other pieces, and one piece as both: nothing counts twice.
        ("lost", LINEAGE, 180, 540, "lost"),
        ("lost", LINEAGE, 200, 300, "lost"),
        ("lost", LINEAGE, 500, 540, "lost"),
        ("lost", LINEAGE, 1300, 1400, "void"),
        ("lost", LINEAGE, 1350, 1450, "lost"),
    ]
    names = ("channel", "lineage", "seq_start", "seq_end", "kind")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


@pytest.fixture(scope="module")
def built(spark: SparkSession) -> dict[str, list[dict[str, Any]]]:
    with tiny_data(spark):
        placed = with_shifts(spark.createDataFrame(all_frames()), spark.createDataFrame(clock_shifts()))
        coverage = build_coverage(placed).cache()
        health = build_fleet_health(coverage, spark.createDataFrame(lost_ranges()))
        tables = ((COVERAGE, coverage.toArrow()), (FLEET_HEALTH, health.toArrow()))
        coverage.unpersist()
    found = {}
    for layout, rows in tables:
        known = rows.select(layout.table.schema.names).cast(layout.table.schema)
        found[layout.name] = known.sort_by([(key, "ascending") for key in layout.keys]).to_pylist()
    return found


def health(built: dict[str, list[dict[str, Any]]], channel: str) -> list[dict[str, Any]]:
    return [row for row in built["fleet_health"] if row["channel"] == channel]


def columns(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_every_frame_is_counted_once(built: dict[str, list[dict[str, Any]]]) -> None:
    assert sum(row["held"] for row in built["coverage"]) == all_frames().num_rows
    assert sum(row["held"] for row in built["fleet_health"]) == all_frames().num_rows


def test_a_whole_hour_is_covered(built: dict[str, list[dict[str, Any]]]) -> None:
    rows = health(built, "whole")
    assert columns(rows, "hour", "held", "holes", "lost", "coverage") == [
        (NOON, 360, 0, 0, 1.0),
        (NOON + timedelta(hours=1), 180, 0, 0, 1.0),
    ]
    assert columns(rows, "live", "lag_p50_s", "lag_max_s") == [(360, 0.5, 0.5), (180, 0.5, 0.5)]


def test_a_hole_inside_an_hour_is_counted_there(built: dict[str, list[dict[str, Any]]]) -> None:
    assert columns(health(built, "inside"), "held", "holes", "coverage") == [(270, 90, 0.75)]


def test_a_long_hole_is_spread_over_its_hours_and_over_midnight(built: dict[str, list[dict[str, Any]]]) -> None:
    rows = health(built, "long")
    assert columns(rows, "held", "holes") == [(180, 180), (0, 360), (0, 360), (0, 360), (180, 180)]
    assert [row["hour"] for row in rows] == [NOON + timedelta(hours=8 + hour) for hour in range(5)]
    assert [row["day"].day for row in rows] == [1, 1, 1, 1, 2]
    assert sum(row["holes"] for row in rows) == 1440


def test_what_the_log_calls_lost_is_lost_and_void_never_was(built: dict[str, list[dict[str, Any]]]) -> None:
    rows = health(built, "lost")
    assert sum(row["held"] for row in rows) == 360
    assert sum(row["lost"] for row in rows) == 360
    assert sum(row["holes"] for row in rows) == 1440 - 360 - 360
    assert all(row["coverage"] == row["held"] / (row["held"] + row["holes"] + row["lost"]) for row in rows)


def test_backfill_is_told_from_live_and_its_lag_too(built: dict[str, list[dict[str, Any]]]) -> None:
    (row,) = health(built, "late")
    assert (row["live"], row["backfill"]) == (180, 180)
    assert (row["lag_max_s"], row["live_lag_p50_s"], row["live_lag_max_s"]) == (3600.0, 2.0, 2.0)


def test_a_wrong_clock_is_counted_where_it_arrived_and_makes_no_hole(built: dict[str, list[dict[str, Any]]]) -> None:
    (row,) = health(built, "clock")
    assert (row["hour"], row["held"], row["holes"], row["wrong_clock"]) == (NOON, 360, 0, 110)
    assert row["lag_max_s"] == 0.5


def test_a_clock_that_steps_back_makes_up_no_hole(built: dict[str, list[dict[str, Any]]]) -> None:
    rows = health(built, "step")
    assert columns(rows, "held", "holes") == [(720, 0), (720, 0)]


def test_the_replay_of_an_old_capture_has_no_lag(built: dict[str, list[dict[str, Any]]]) -> None:
    (row,) = health(built, "replayed")
    assert (row["hour"].year, row["held"], row["live"], row["wrong_clock"]) == (2016, 180, 180, 0)
    assert {row[name] for name in ("lag_p50_s", "lag_max_s", "live_lag_p50_s", "live_lag_max_s")} == {None}
    (row,) = health(built, "slow")
    assert (row["live_lag_p50_s"], row["live_lag_max_s"]) == (7_200, 7_200)


def test_frames_are_counted_when_they_were_on_the_bus_and_not_when_a_wrong_clock_says(
    built: dict[str, list[dict[str, Any]]],
) -> None:
    (row,) = health(built, "gps")
    assert (row["hour"], row["held"], row["wrong_clock"], row["lag_max_s"]) == (NOON, 180, 180, 0.5)
    (row,) = health(built, "placed")
    assert (row["hour"], row["held"], row["holes"], row["wrong_clock"]) == (NOON, 360, 0, 180)
    assert row["lag_max_s"] == 0.5, "a time that is a guess says nothing about the link"


def test_lineages_are_judged_one_by_one(built: dict[str, list[dict[str, Any]]]) -> None:
    (row,) = health(built, "swapped")
    assert (row["held"], row["holes"]) == (260, 0)
    assert row["lag_p50_s"] == 4.0  # of the lineage with more frames
