"""`fleet_health`: how much of every boat's data is held, hour by hour, and how fast it arrived.

Made from `coverage` of whole channels, since a hole ends where the next frame is found, be it days later. Missing seqs
between two frames are spread over the time between them, since their times are unknown. What a lineage had before its
first frame here is not counted: it has no time at all.

A missing frame is a hole until the log declares its range lost (it can no longer be had) or void (it never existed).
Those ranges come from the control records of the log, in the table `lost_ranges`: channel, lineage, seq_start, seq_end
(half-open) and kind ("lost" | "void"). They may overlap and be declared more than once. Without them every missing
frame is a hole.

FH1  Holes, lost and void of a lineage sum to exactly what is missing between its first and its last frame: a clock that
     steps can put a hole into the wrong hour, but never invents one.
FH2  Data overrides lost: only missing seqs can be lost (F4). Which seqs of an hour are missing is not known here, so
     where a part of a lost range came after all, other frames missing in its hours may count in its place.
FH3  However often and in whichever pieces a seq is declared lost or void, it counts once; if both, it is void.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.moments import HOUR_US, cut, day_of, micros, moment

GAP_HOURS_MAX: Final = 24 * 366
"""A gap of more hours is counted in its last one, or one wrong frame would make rows for decades."""

_LINEAGE: Final = ("channel", "lineage")
_COUNTS: Final = ("held", "live", "backfill", "publish", "wrong_clock")
_LAGS: Final = ("lag_p50_s", "lag_max_s", "live_lag_p50_s", "live_lag_max_s")


def build_fleet_health(coverage: DataFrame, lost_ranges: DataFrame | None = None) -> DataFrame:
    """The rows of `fleet_health` of every channel in `coverage`, which must be there with all its hours."""
    missing = _by_hour(_judged(_missing(coverage), lost_ranges))
    held = coverage.groupBy("channel", micros("hour").alias("hour_us")).agg(
        *(F.sum(name).alias(name) for name in _COUNTS),
        # Two lineages in one hour are rare (a card was swapped); the one with more frames represents the hour.
        *(F.max_by(name, F.struct("held", "lineage")).alias(name) for name in _LAGS),
    )
    both = held.join(missing, ["channel", "hour_us"], "full")
    counts = [F.coalesce(name, F.lit(0)).alias(name) for name in (*_COUNTS, "holes", "lost")]
    known = both.select("channel", "hour_us", *counts, *_LAGS)
    wanted = F.col("held") + F.col("holes") + F.col("lost")
    return known.select(
        "*",
        day_of(F.col("hour_us")).alias("day"),
        moment(F.col("hour_us")).alias("hour"),
        F.try_divide("held", wanted).alias("coverage"),
    ).drop("hour_us")


def _missing(coverage: DataFrame) -> DataFrame:
    """Stretches in which frames are missing: lineage, seq_start, seq_end, start_us, end_us, missing.

    One inside every hour that is incomplete and one before every hour that does not join the frames before it.
    """
    in_order = Window.partitionBy(*_LINEAGE).orderBy("seq_first", "hour")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    whole = Window.partitionBy(*_LINEAGE)
    rows = (
        coverage.filter(F.col("lineage").isNotNull() & F.col("seq_first").isNotNull())
        .withColumn("first_us", micros("time_first"))
        .withColumn("last_us", micros("time_last"))
        .withColumn("end_before", F.max("seq_last").over(before) + 1)
        .withColumn("us_before", F.lag("last_us").over(in_order))
        .withColumn("span", F.max("seq_last").over(whole) - F.min("seq_first").over(whole) + 1)
        .withColumn("truly_missing", F.col("span") - F.sum("held").over(whole))
        .filter(F.col("truly_missing") > 0)
    )
    inside = F.struct(
        F.col("seq_first").alias("seq_start"),
        (F.col("seq_last") + 1).alias("seq_end"),
        F.col("first_us").alias("start_us"),
        F.col("last_us").alias("end_us"),
        (F.col("seq_last") - F.col("seq_first") + 1 - F.col("held")).alias("missing"),
    )
    between = F.struct(
        F.col("end_before").alias("seq_start"),
        F.col("seq_first").alias("seq_end"),
        F.least("us_before", "first_us").alias("start_us"),
        F.col("first_us").alias("end_us"),
        (F.col("seq_first") - F.col("end_before")).alias("missing"),
    )
    stretches = (
        rows.withColumn("stretch", F.explode(F.array(between, inside)))
        .select(*_LINEAGE, "truly_missing", "stretch.*")
        .filter(F.col("missing") > 0)
    )
    # Hours overlap in seq where a clock stepped back; what they then miss twice over is brought down in proportion.
    in_order = Window.partitionBy(*_LINEAGE).orderBy("seq_start", "seq_end", "start_us")
    total = F.sum("missing").over(Window.partitionBy(*_LINEAGE))
    return stretches.withColumn("total", total).withColumn(
        "missing", _share(F.col("truly_missing"), F.col("missing"), F.col("total"), in_order)
    )


def _share(amount: Column, part: Column, total: Column, in_order: WindowSpec) -> Column:
    """Split an integer in proportion to parts that follow each other, so that the shares sum to it exactly."""
    upto = F.sum(part).over(in_order.rowsBetween(Window.unboundedPreceding, 0))
    wide = amount.cast("decimal(20,0)")
    return (F.floor(wide * upto / total) - F.floor(wide * (upto - part) / total)).cast("bigint")


def _judged(missing: DataFrame, lost_ranges: DataFrame | None) -> DataFrame:
    """The lost and the void ones of the missing frames; the rest are holes."""
    if lost_ranges is None:
        return missing.withColumn("lost", F.lit(0).cast("bigint")).withColumn("holes", F.col("missing"))
    # Ranges declared lost or void, and ranges declared void: the difference is lost (FH3).
    said = _disjoint(lost_ranges.withColumn("kind", F.lit("any"))).unionByName(
        _disjoint(lost_ranges.filter(F.col("kind") == "void"))
    )
    overlap = F.least("seq_end", "said_end") - F.greatest("seq_start", "said_start")
    inside = F.when(overlap > 0, overlap).otherwise(0)
    keys = missing.columns
    found = (
        missing.join(said, list(_LINEAGE), "left")
        .groupBy(*keys)
        .agg(
            *(
                F.sum(F.when(F.col("kind") == kind, inside).otherwise(0)).alias(f"said_{kind}")
                for kind in ("any", "void")
            )
        )
    )
    void = F.least("missing", "said_void")
    lost = F.least(F.col("missing") - void, F.col("said_any") - F.col("said_void"))
    return found.withColumn("lost", lost).withColumn("holes", F.col("missing") - void - lost)


def _disjoint(ranges: DataFrame) -> DataFrame:
    """The same seqs in ranges that do not overlap: lineage, kind, said_start, said_end."""
    in_order = Window.partitionBy(*_LINEAGE).orderBy("seq_start", "seq_end")
    covered = F.max("seq_end").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    start = F.greatest("seq_start", F.coalesce(covered, "seq_start"))
    cut = ranges.select(*_LINEAGE, "kind", start.alias("said_start"), F.col("seq_end").alias("said_end"))
    return cut.filter(F.col("said_start") < F.col("said_end"))


def _by_hour(judged: DataFrame) -> DataFrame:
    """Spread every stretch evenly over its time: channel, hour_us, holes, lost."""
    first, last = cut(F.col("start_us"), HOUR_US), cut(F.col("end_us"), HOUR_US)
    from_us = F.when(last - first > GAP_HOURS_MAX * HOUR_US, last).otherwise(first)
    numbered = judged.withColumn("stretch", F.struct(*_LINEAGE, "seq_start", "seq_end", "start_us", "end_us"))
    hours = numbered.withColumn("hour_us", F.explode(F.sequence(from_us, last, F.lit(HOUR_US))))
    start = F.greatest("start_us", "hour_us")
    end = F.least(F.col("end_us"), F.col("hour_us") + HOUR_US)
    # Never zero, so that a stretch without duration still has a total to divide by.
    spread = hours.withColumn("part_us", F.greatest(end - start, F.lit(0)) + 1)
    total = F.sum("part_us").over(Window.partitionBy("stretch"))
    in_order = Window.partitionBy("stretch").orderBy("hour_us")
    spread = spread.withColumn("total_us", total)
    shares = {name: _share(F.col(name), F.col("part_us"), F.col("total_us"), in_order) for name in ("holes", "lost")}
    counted = spread.select("channel", "hour_us", *(share.alias(name) for name, share in shares.items()))
    sums = counted.groupBy("channel", "hour_us").agg(F.sum("holes").alias("holes"), F.sum("lost").alias("lost"))
    return sums.filter((F.col("holes") > 0) | (F.col("lost") > 0))
