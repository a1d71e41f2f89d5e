"""`coverage`: the frames held of every lineage, hour by hour; `fleet_health` is computed from it.

The hour is that of the bus. Where the boat's clock is plainly wrong (before 2010, or ahead of the leader that took the
frame) it is the hour of arrival, and the frame is counted as such: a clock that shows 1970 makes no partition of 1970.

GCO1  A row depends on the frames of its own hour alone.
GCO2  Every frame is counted in exactly one row.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.moments import DAY_US, HOUR_US, SECOND_US, cut, day_of, micros, moment

CLOCK_US_MIN: Final = 1_262_304_000 * SECOND_US
"""2010-01-01: no recorded boat is older, so an earlier time is a clock that was never set."""
CLOCK_AHEAD_US_MAX: Final = 300 * SECOND_US
REPLAY_US_MIN: Final = DAY_US
"""A frame that comes live is seconds old, minutes on a slow link. One of another day is the replay of a capture, or its
clock is wrong; it says nothing about the link."""


def bus_micros() -> Column:
    """When a frame was on the bus, as far as the frame alone shows."""
    return F.when(clock_is_wrong(), micros("append_time")).otherwise(micros("time"))


def clock_is_wrong() -> Column:
    time, appended = micros("time"), micros("append_time")
    return time.isNull() | (time < CLOCK_US_MIN) | (time > appended + CLOCK_AHEAD_US_MAX)


def has_lag() -> Column:
    """Whether the time from the bus to the leader says how long the frame was under way."""
    is_replay = (F.col("path") == "live") & (micros("append_time") - micros("time") > REPLAY_US_MIN)
    return ~clock_is_wrong() & ~is_replay


def build_coverage(frames: DataFrame) -> DataFrame:
    """The rows of `coverage` for `frames`; hours of which only a part is loaded come out wrong."""
    lag_s = _rounded((micros("append_time") - micros("time")) / SECOND_US)
    # Twice: first to the few distinct lags of an hour by hashing alone, then to the hour. A median straight over
    # the frames would cost several times as much.
    by_lag = (
        frames.select(
            "channel",
            "lineage",
            "seq",
            "path",
            bus_micros().alias("us"),
            clock_is_wrong().cast("int").alias("wrong"),
            F.when(has_lag(), lag_s).alias("lag_s"),
        )
        .groupBy("channel", "lineage", cut(F.col("us"), HOUR_US).alias("hour_us"), "path", "wrong", "lag_s")
        .agg(
            F.count("*").alias("frames"),
            F.min("seq").alias("seq_first"),
            F.max("seq").alias("seq_last"),
            F.min("us").alias("first_us"),
            F.max("us").alias("last_us"),
        )
    )
    is_live = F.col("path") == "live"
    hours = by_lag.groupBy("channel", "lineage", "hour_us").agg(
        F.min("seq_first").alias("seq_first"),
        F.max("seq_last").alias("seq_last"),
        moment(F.min("first_us")).alias("time_first"),
        moment(F.max("last_us")).alias("time_last"),
        F.sum("frames").alias("held"),
        *(_counted(F.col("path") == path).alias(path) for path in ("live", "backfill", "publish")),
        _counted(F.col("wrong") == 1).alias("wrong_clock"),
        F.percentile("lag_s", 0.5, F.col("frames")).alias("lag_p50_s"),
        F.max("lag_s").alias("lag_max_s"),
        F.percentile(F.when(is_live, F.col("lag_s")), 0.5, F.col("frames")).alias("live_lag_p50_s"),
        F.max(F.when(is_live, F.col("lag_s"))).alias("live_lag_max_s"),
    )
    day, hour = day_of(F.col("hour_us")).alias("day"), moment(F.col("hour_us")).alias("hour")
    return hours.select("*", day, hour).drop("hour_us")


def _counted(condition: Column) -> Column:
    return F.sum(F.when(condition, F.col("frames")).otherwise(0))


def _rounded(lag_s: Column) -> Column:
    """To a hundredth of a second, coarser for longer ones, so that an hour has few distinct lags."""
    positive = F.greatest(lag_s, F.lit(0.0))
    return (
        F.when(positive < 10, F.round(positive, 2))
        .when(positive < 100, F.round(positive, 1))
        .otherwise(F.round(positive))
    )
