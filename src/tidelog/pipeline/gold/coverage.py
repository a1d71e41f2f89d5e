"""`coverage`: the frames held of every lineage, hour by hour; `fleet_health` is computed from it.

The hour is that of the bus: the time of a frame as `signals` has placed it (`clock_shifts`). Until a frame is decoded,
the boat's clock counts, or where that is plainly wrong (before 2010, or ahead of the leader that took the frame) the
hour of arrival: a clock that shows 1970 makes no partition of 1970. Frames whose clock was wrong are counted as such.

GCO1  A row depends on the frames of its own hour alone.
GCO2  Every frame is counted in exactly one row.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.moments import DAY_US, HOUR_US, SECOND_US, cut, day_of, micros, moment

CLOCK_US_MIN: Final = 1_262_304_000 * SECOND_US
"""2010-01-01: no recorded boat is older, so an earlier time is a clock that was never set."""
CLOCK_AHEAD_US_MAX: Final = 300 * SECOND_US
REPLAY_US_MIN: Final = DAY_US
"""A frame that comes live is seconds old, minutes on a slow link. One of another day is the replay of a capture, or its
clock is wrong; it says nothing about the link."""
_STRETCH_BITS: Final = 14


def with_shifts(frames: DataFrame, shifts: DataFrame | None) -> DataFrame:
    """The frames with `shift_us` and `shift_clock` of the table `clock_shifts`, null where nothing was moved."""
    if shifts is None:
        nothing = {"shift_us": F.lit(None).cast("bigint"), "shift_clock": F.lit(None).cast("string")}
        return frames.withColumns(nothing)
    in_order = Window.partitionBy("channel", "lineage").orderBy("seq_start", "seq_end")
    covered = F.max("seq_end").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    first = F.greatest("seq_start", F.coalesce(covered, "seq_start"))
    cut_up = shifts.withColumn("first", first).filter(F.col("first") < F.col("seq_end"))
    # By stretches of seqs, so that frames and ranges meet by hashing.
    stretches = F.sequence(_stretch(F.col("first")), _stretch(F.col("seq_end") - 1))
    ranges = cut_up.select(
        F.col("channel").alias("of_channel"),
        F.coalesce("lineage", F.lit("")).alias("of_lineage"),
        F.explode(stretches).alias("stretch"),
        "first",
        F.col("seq_end").alias("last"),
        "shift_us",
        F.col("clock").alias("shift_clock"),
    )
    place = F.coalesce("seq", "offset")
    same = (
        (F.col("channel") == F.col("of_channel"))
        & (F.coalesce("lineage", F.lit("")) == F.col("of_lineage"))
        & (_stretch(place) == F.col("stretch"))
        & (place >= F.col("first"))
        & (place < F.col("last"))
    )
    joined = frames.join(F.broadcast(ranges), same, "left")
    return joined.drop("of_channel", "of_lineage", "stretch", "first", "last")


def _stretch(seq: Column) -> Column:
    return F.shiftright(seq, _STRETCH_BITS)


def bus_micros() -> Column:
    """When a frame was on the bus, as far as it is known."""
    placed = micros("time") + F.col("shift_us")
    arrived = F.when(clock_is_wrong(), micros("append_time")).otherwise(micros("time"))
    return F.coalesce(placed, arrived)


def clock_is_wrong() -> Column:
    time, appended = micros("time"), micros("append_time")
    return time.isNull() | (time < CLOCK_US_MIN) | (time > appended + CLOCK_AHEAD_US_MAX)


def has_lag() -> Column:
    """Whether the time from the bus to the leader says how long the frame was under way."""
    is_replay = (F.col("path") == "live") & (micros("append_time") - bus_micros() > REPLAY_US_MIN)
    is_known = F.coalesce(F.col("shift_clock") == "gps", ~clock_is_wrong())
    return is_known & ~is_replay


def build_coverage(frames: DataFrame) -> DataFrame:
    """The rows of `coverage` for `frames` (`with_shifts`); hours of which only a part is loaded come out wrong."""
    lag_s = _rounded((micros("append_time") - bus_micros()) / SECOND_US)
    # Twice: first to the few distinct lags of an hour by hashing alone, then to the hour. A median straight over
    # the frames would cost several times as much.
    by_lag = (
        frames.select(
            "channel",
            "lineage",
            "seq",
            "path",
            bus_micros().alias("us"),
            (clock_is_wrong() | F.col("shift_us").isNotNull()).cast("int").alias("wrong"),
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
