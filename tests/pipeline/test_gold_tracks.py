"""Tracks and trips of voyages whose answers are known. Every scenario is a boat of its own, all in one run of Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.pipeline.gold_rows import GNSS, METRES_PER_DEGREE, NOON, Signals, tiny_data
from tidelog.pipeline.gold.tracks import build_tracks
from tidelog.pipeline.gold.trips import build_trips

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

MIDNIGHT = datetime(2026, 6, 2, tzinfo=UTC)
METRES_PER_MILE = 1852.0


def plain_voyage() -> Signals:
    """At rest, 1,000 s at 5 m/s, at rest."""
    boat = Signals("plain")
    boat.voyage(NOON, [(700, 0.0), (1000, 5.0), (700, 0.0)])
    for second in range(690, 890):  # ten seconds before the trip begins to 190 s into it
        boat.engine(NOON + timedelta(seconds=second), 0, 1500)
        boat.engine(NOON + timedelta(seconds=second), 1, 1500)
    return boat


def voyage_over_midnight() -> Signals:
    boat = Signals("midnight")
    boat.voyage(MIDNIGHT - timedelta(seconds=1500), [(900, 0.0), (1200, 4.0), (900, 0.0)])
    return boat


def two_trips() -> Signals:
    """Nine minutes of rest are a pause, eleven are the end; a wave that lifts the boat for ten seconds is no trip."""
    boat = Signals("two-trips")
    legs = [(300, 0.0), (300, 3.0), (540, 0.0), (300, 3.0), (660, 0.0), (300, 3.0), (300, 0.0), (10, 2.0), (200, 0.0)]
    boat.voyage(NOON, legs)
    return boat


def two_receivers() -> Signals:
    """The one with more seconds is preferred; the other, 100 m east, is heard only in its silence of 60 s."""
    boat = Signals("two-receivers")
    east = 100 / METRES_PER_DEGREE
    for second in range(600):
        time = NOON + timedelta(seconds=second)
        if not 200 <= second < 260 and second % 7:  # misses a second now and then
            boat.position(time, 0.0, 10.0, source=3, device="0000000000000003")
        if 100 <= second < 500:
            boat.position(time, 0.0, 10.0 + east, source=2, device="0000000000000002")
    return boat


def wild_positions() -> Signals:
    """Five km off for three seconds, at the edge too; a place that is no place; and a receiver without a fix."""
    boat = Signals("wild")
    for second in range(120):
        wrong = second in (0, 60, 61, 62)
        latitude = 50.0 + (0.05 if wrong else second * 2 / METRES_PER_DEGREE)
        boat.position(NOON + timedelta(seconds=second), latitude, 179.9999 if second < 50 else -179.9999)
    boat.position(NOON + timedelta(seconds=130), 0.0, 0.0)
    boat.position(NOON + timedelta(seconds=131), 95.0, 10.0)
    return boat


def wrong_clock() -> Signals:
    """Frames of an hour ago, before the clock was set, were placed into a time that other frames know better."""
    boat = Signals("wrong-clock")
    for second in range(300):
        boat.position(NOON + timedelta(seconds=second), 50.0, -4.0)
    for second in range(200, 400):
        boat.position(NOON + timedelta(seconds=second), 51.0, -4.0, clock="placed")
    return boat


def silent_speed() -> Signals:
    """Only a slow receiver, heading east, that says nothing of speed or course; its second half is a hole."""
    boat = Signals("silent-speed")
    for second in range(0, 100, 2):
        boat.message(
            NOON + timedelta(seconds=second, milliseconds=300),
            GNSS,
            ("gnss_position_data.latitude", 0.0, "deg"),
            ("gnss_position_data.longitude", 1 + second * 6 / METRES_PER_DEGREE, "deg"),
        )
    boat.position(NOON + timedelta(seconds=4000), 0.0, 1 + 10_000 / METRES_PER_DEGREE)
    return boat


def trembling() -> Signals:
    """At anchor a receiver trembles by a few metres; that is no way made."""
    boat = Signals("trembling")
    for second in range(600):
        time = NOON + timedelta(seconds=second)
        boat.position(time, 50.0 + (second % 3) * 2 / METRES_PER_DEGREE, -4.0)
        boat.motion(time, 0.1, 0.0)
    return boat


def hole_under_way() -> Signals:
    """Under way before and after an hour without data, and further on by as much as it sails in an hour."""
    boat = Signals("hole")
    boat.voyage(NOON, [(700, 0.0), (600, 5.0)])
    metres = 600 * 5.0 + 3600 * 5.0
    for second in range(1200):
        time = NOON + timedelta(seconds=700 + 600 + 3600 + second)
        speed = 5.0 if second < 500 else 0.0
        boat.position(time, 50 + metres / METRES_PER_DEGREE, -4.0)
        boat.motion(time, speed, 0.0)
        metres += speed
    boat.engine(NOON + timedelta(seconds=1000), 0, 0.0)
    return boat


def late_claim() -> Signals:
    """One receiver whose address claim comes in the middle of a second, and again after it was lost for a while."""
    boat = Signals("late-claim")
    name = "00000000000000aa"
    for tenth in range(0, 1200, 5):
        known = 305 <= tenth < 700 or tenth >= 900
        time = NOON + timedelta(milliseconds=100 * tenth)
        boat.position(time, 50 + tenth / METRES_PER_DEGREE, -4.0, source=7, device=name if known else None)
        boat.motion(time, 10.0, 0.0, source=7, device=name if known else None)
    return boat


SCENARIOS = (
    late_claim,
    plain_voyage,
    voyage_over_midnight,
    two_trips,
    two_receivers,
    wild_positions,
    wrong_clock,
    silent_speed,
    trembling,
    hole_under_way,
)


@pytest.fixture(scope="module")
def built(spark: SparkSession) -> tuple[pa.Table, pa.Table]:
    """Tracks and trips of all scenarios."""
    rows = pa.concat_tables([scenario().table() for scenario in SCENARIOS])
    with tiny_data(spark):
        signals = spark.createDataFrame(rows).cache()
        tracks = build_tracks(signals).withColumn("stretch", F.lit(0)).cache()
        try:
            return tracks.toArrow(), build_trips(tracks, signals).toArrow()
        finally:
            tracks.unpersist()
            signals.unpersist()


def track(built: tuple[pa.Table, pa.Table], channel: str, grain: str = "second") -> list[dict[str, Any]]:
    rows = [row for row in built[0].to_pylist() if row["channel"] == channel and row["grain"] == grain]
    return sorted(rows, key=lambda row: row["time"])


def trips(built: tuple[pa.Table, pa.Table], channel: str) -> list[dict[str, Any]]:
    rows = [row for row in built[1].to_pylist() if row["channel"] == channel]
    return sorted(rows, key=lambda row: row["start_time"])


def test_a_track_has_the_length_of_the_way_sailed(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "plain")
    assert len(rows) == 2400
    assert rows[0]["distance_m"] == 0
    assert rows[-1]["distance_m"] == pytest.approx(5000, rel=1e-6)
    assert rows[1000]["speed_mps"] == 5.0
    assert rows[1000]["course_deg"] == 0.0
    assert {row["clock"] for row in rows} == {"ok"}


def test_the_minutes_of_a_track_are_the_first_of_its_seconds(built: tuple[pa.Table, pa.Table]) -> None:
    seconds = {row["time"]: row for row in track(built, "plain")}
    minutes = track(built, "plain", "minute")
    assert [row["time"] for row in minutes] == [NOON + timedelta(minutes=minute) for minute in range(40)]
    assert all(row | {"grain": "second"} == seconds[row["time"]] for row in minutes)


def test_distance_starts_again_at_midnight(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "midnight")
    first_day = [row for row in rows if row["time"] < MIDNIGHT]
    second_day = [row for row in rows if row["time"] >= MIDNIGHT]
    assert {row["day"] for row in second_day} == {MIDNIGHT.date()}
    assert first_day[-1]["distance_m"] == pytest.approx(599 * 4.0, rel=1e-6)
    assert second_day[0]["distance_m"] == 0
    assert second_day[-1]["distance_m"] == pytest.approx(600 * 4.0, rel=1e-6)


def test_another_receiver_is_heard_only_while_the_preferred_one_is_silent(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "two-receivers")
    second_of = {int((row["time"] - NOON).total_seconds()): row["longitude"] for row in rows}
    from_other = sorted(second for second, longitude in second_of.items() if longitude != 10.0)
    # The last position before the silence is that of second 199, the next that of 260; ten seconds either side.
    assert from_other == list(range(210, 250))


def test_a_receiver_whose_address_claim_comes_late_stays_one_receiver(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "late-claim")
    assert [row["time"] for row in rows] == [NOON + timedelta(seconds=second) for second in range(120)]
    assert {row["speed_mps"] for row in rows} == {10.0}


def test_positions_no_boat_could_reach_are_dropped(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "wild")
    assert {int((row["time"] - NOON).total_seconds()) for row in rows} == set(range(120)) - {0, 60, 61, 62}
    assert max(row["latitude"] for row in rows) < 50.01
    # Across the date line it is 14 m, not round the earth.
    assert rows[-1]["distance_m"] < 300


def test_a_guessed_time_fills_silence_and_never_replaces_a_known_one(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "wrong-clock")
    by_clock = {clock: [row for row in rows if row["clock"] == clock] for clock in ("ok", "placed")}
    assert len(by_clock["ok"]) == 300
    assert {row["latitude"] for row in by_clock["ok"]} == {50.0}
    assert min(row["time"] for row in by_clock["placed"]) == NOON + timedelta(seconds=310)


def test_speed_and_course_come_from_the_track_where_nobody_sends_them(built: tuple[pa.Table, pa.Table]) -> None:
    rows = track(built, "silent-speed")
    assert rows[20]["speed_mps"] == pytest.approx(6.0, rel=1e-3)
    assert rows[20]["course_deg"] == pytest.approx(90.0, abs=1e-3)
    assert rows[-1]["speed_mps"] is None
    assert rows[-1]["distance_m"] == pytest.approx(10_000, rel=1e-6)


def test_trembling_at_anchor_is_no_distance(built: tuple[pa.Table, pa.Table]) -> None:
    assert track(built, "trembling")[-1]["distance_m"] == 0
    assert trips(built, "trembling") == []


def test_a_trip_tells_when_where_how_far_and_how_long_the_engines_ran(built: tuple[pa.Table, pa.Table]) -> None:
    (trip,) = trips(built, "plain")
    assert trip["start_time"] == NOON + timedelta(seconds=700)
    assert trip["end_time"] == NOON + timedelta(seconds=1699)
    assert (trip["start_latitude"], trip["start_longitude"]) == (50.0, -4.0)
    assert trip["end_latitude"] == pytest.approx(50 + 999 * 5 / METRES_PER_DEGREE)
    assert trip["miles"] == pytest.approx(999 * 5 / METRES_PER_MILE, rel=1e-4)
    assert trip["speed_max_mps"] == 5.0
    assert trip["engine_hours"] == pytest.approx(2 * 190 / 3600)
    assert trip["ended"]
    assert trip["settled_before"]


def test_a_trip_during_which_no_engine_was_heard_has_unknown_engine_hours(built: tuple[pa.Table, pa.Table]) -> None:
    (trip,) = trips(built, "midnight")
    assert trip["engine_hours"] is None
    (trip,) = trips(built, "hole")
    assert trip["engine_hours"] == 0, "an engine said that it stands"


def test_a_trip_over_midnight_is_one_and_belongs_to_the_day_it_began(built: tuple[pa.Table, pa.Table]) -> None:
    (trip,) = trips(built, "midnight")
    assert trip["day"] == (MIDNIGHT - timedelta(days=1)).date()
    assert trip["end_time"] - trip["start_time"] == timedelta(seconds=1199)
    assert trip["miles"] == pytest.approx(1199 * 4 / METRES_PER_MILE, rel=1e-4)


def test_ten_minutes_of_rest_end_a_trip_and_less_do_not(built: tuple[pa.Table, pa.Table]) -> None:
    first, second = trips(built, "two-trips")
    assert first["start_time"] == NOON + timedelta(seconds=300)
    assert first["end_time"] == NOON + timedelta(seconds=1439)
    assert first["miles"] == pytest.approx(600 * 3 / METRES_PER_MILE, rel=0.01)
    assert not first["settled_before"]
    assert second["start_time"] == NOON + timedelta(seconds=2100)
    assert not second["ended"]


def test_a_hole_in_which_the_boat_sailed_on_does_not_end_a_trip(built: tuple[pa.Table, pa.Table]) -> None:
    (trip,) = trips(built, "hole")
    assert trip["end_time"] - trip["start_time"] == timedelta(seconds=600 + 3600 + 499)
    assert trip["miles"] == pytest.approx((600 + 3600 + 499) * 5 / METRES_PER_MILE, rel=1e-3)
