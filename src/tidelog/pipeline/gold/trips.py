"""`trips`: from leaving to arriving, found in the seconds of `tracks`.

A boat is under way while it makes more than `UNDER_WAY_MPS` over ground and did so for most of the minute around: one
outlier of a receiver is no departure. A trip ends after `REST_ENDS_TRIP_S` of rest. A hole in the data is rest if the
boat is found where it was, and under way if it has moved on. A trip may span any number of midnights; it belongs to the
day on which it began.

GT1  A trip that is `settled` on both sides (ten minutes of rest are seen before it and after it) comes out the same
    whatever else is loaded. `gold_job` loads more days until everything is settled or no more days exist.
GT2  Two trips of a channel never overlap.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.engine import engine_spans
from tidelog.pipeline.gold.moments import METRES_PER_MILE, SECOND_US, day_of, micros, moment
from tidelog.pipeline.gold.tracks import HOLE_S, with_steps

UNDER_WAY_MPS: Final = 0.5
REST_ENDS_TRIP_S: Final = 600
TRIP_S_MIN: Final = 60
"""Shorter ones are a boat that is moved along a pontoon."""
_AROUND_S: Final = 30

_STRETCH: Final = ("channel", "stretch")


def build_trips(tracks: DataFrame, signals: DataFrame) -> DataFrame:
    """Every trip in `tracks`; engine hours come from `signals` of the same days.

    Beyond the columns of its table `tracks` has `stretch`, a number for the days of a channel that follow each other:
    days between two stretches were not loaded. The trips have it too, and `settled_before` and `settled_after` (GT1).
    """
    trips = _trips(_under_way(tracks))
    spans = engine_spans(signals)
    inside = (
        (trips["channel"] == spans["channel"]) & (spans["us"] >= trips["start_us"]) & (spans["us"] <= trips["end_us"])
    )
    hours = (
        trips.join(spans, inside)
        .groupBy(trips["channel"], trips["start_us"])
        .agg((F.sum("span_us") / SECOND_US / 3600).alias("engine_hours"))
    )
    return trips.join(hours, ["channel", "start_us"], "left").select(
        "channel",
        day_of(F.col("start_us")).alias("day"),
        moment(F.col("start_us")).alias("start_time"),
        moment(F.col("end_us")).alias("end_time"),
        *(f"{end}_{what}" for end in ("start", "end") for what in ("latitude", "longitude")),
        "miles",
        "speed_max_mps",
        "engine_hours",  # null where no engine was heard
        F.col("settled_after").alias("ended"),
        "stretch",
        "settled_before",
        "settled_after",
    )


def _under_way(tracks: DataFrame) -> DataFrame:
    """The seconds with: under_way, and the distance made and the rest taken since the stretch began."""
    in_order = Window.partitionBy(*_STRETCH).orderBy("second_us")
    around = in_order.rangeBetween(-_AROUND_S * SECOND_US, _AROUND_S * SECOND_US)
    fast = F.coalesce(F.col("speed_mps") > UNDER_WAY_MPS, F.lit(False))
    seconds = (
        tracks.filter(F.col("grain") == "second")
        .select(*_STRETCH, micros("time").alias("second_us"), "latitude", "longitude", "speed_mps")
        .transform(with_steps, in_order)
        .withColumn("share", F.avg(fast.cast("int")).over(around))
        .withColumn("under_way", fast & (F.col("share") >= 0.5))
    )
    moved_on = F.col("metres") > F.col("since_s") * UNDER_WAY_MPS
    rests = F.when(F.col("since_s") > HOLE_S, ~moved_on).otherwise(~F.col("under_way"))
    rest_s = F.when(rests, F.col("since_s")).otherwise(F.lit(0.0))
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    # Millimetres as integers: the distance up to here depends on where the loaded days begin, a trip's own may not
    # (GT1).
    step_mm = F.round(F.col("step_m") * 1000).cast("bigint")
    return seconds.withColumn("rest_s", F.sum(F.coalesce(rest_s, F.lit(0.0))).over(so_far)).withColumn(
        "way_mm", F.sum(step_mm).over(so_far)
    )


def _trips(seconds: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*_STRETCH).orderBy("second_us")
    whole = Window.partitionBy(*_STRETCH)
    rested = F.col("rest_s") - F.lag("rest_s").over(in_order) >= REST_ENDS_TRIP_S
    numbered = (
        seconds.withColumn("rest_in_all_s", F.max("rest_s").over(whole))
        .filter("under_way")
        .withColumn("departs", F.coalesce(rested, F.lit(True)).cast("int"))
        .withColumn("trip", F.sum("departs").over(in_order.rowsBetween(Window.unboundedPreceding, 0)))
    )
    first, last = F.min_by, F.max_by
    trips = numbered.groupBy(*_STRETCH, "trip").agg(
        F.min("second_us").alias("start_us"),
        F.max("second_us").alias("end_us"),
        first("latitude", "second_us").alias("start_latitude"),
        first("longitude", "second_us").alias("start_longitude"),
        last("latitude", "second_us").alias("end_latitude"),
        last("longitude", "second_us").alias("end_longitude"),
        ((F.max("way_mm") - F.min("way_mm")) / 1000 / METRES_PER_MILE).alias("miles"),
        F.max("speed_mps").alias("speed_max_mps"),
        (F.min("rest_s") >= REST_ENDS_TRIP_S).alias("settled_before"),
        (F.max("rest_in_all_s") - F.max("rest_s") >= REST_ENDS_TRIP_S).alias("settled_after"),
    )
    return trips.filter(F.col("end_us") - F.col("start_us") >= TRIP_S_MIN * SECOND_US)
