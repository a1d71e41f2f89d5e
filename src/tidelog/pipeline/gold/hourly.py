"""Minimum, mean and maximum per hour: what `engine`, `electrical` and `environment` share.

The mean is the mean of the samples. Instruments send at a steady rate, so it is the mean over time as well.

GH1  A value outside the plausible range of its measure, or in an unknown unit, is left out, and only that value.
GH2  Sums are taken over integers (millionths), so the order of the rows does not show in the mean (GD1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import CONVERSIONS, Measure, column_names, signal_names
from tidelog.pipeline.gold.moments import HOUR_US, cut, day_of, micros, moment

_MILLIONTHS: Final = 1_000_000


def converted(measure: Measure) -> Column:
    """The value of a row of `signals` in the unit of gold; null for another signal or an implausible value."""
    value = F.lit(None).cast("double")
    for (given, wanted), (factor, offset) in CONVERSIONS.items():
        if wanted == measure.unit:
            value = F.when(F.col("unit") == given, F.col("value") * factor + offset).otherwise(value)
    return F.when((F.col("signal") == measure.signal) & value.between(measure.low, measure.high), value)


def hourly(signals: DataFrame, measures: Sequence[Measure], *, instances: bool) -> DataFrame:
    """One row per channel, hour and, if asked, instance: day, hour, `<column>_min|_mean|_max`, samples."""
    own = signals.filter(F.col("signal").isin(signal_names(measures)))
    if any(measure.qualifier for measure in measures):
        values = _values_by_frame(own, measures)
    else:
        values = own.select("channel", micros("time").alias("us"), "instance", *_by_column(measures, converted))
    keys = ["channel", "hour_us", *(["instance"] if instances else [])]
    names = column_names(measures)
    sums = [
        part
        for name in names
        for part in (
            F.min(name).alias(f"{name}_min"),
            F.sum(F.round(F.col(name) * _MILLIONTHS).cast("bigint")).alias(f"{name}_sum"),
            F.count(name).alias(f"{name}_count"),
            F.max(name).alias(f"{name}_max"),
        )
    ]
    hours = values.withColumn("hour_us", cut(F.col("us"), HOUR_US)).groupBy(*keys).agg(*sums)
    return hours.select(
        "channel",
        day_of(F.col("hour_us")).alias("day"),
        moment(F.col("hour_us")).alias("hour"),
        *(["instance"] if instances else []),
        *(column for name in names for column in _finished(name)),
        reduce(Column.__add__, [F.col(f"{name}_count") for name in names]).alias("samples"),
    ).filter(F.col("samples") > 0)


def _finished(name: str) -> tuple[Column, Column, Column]:
    mean = F.try_divide(F.col(f"{name}_sum") / _MILLIONTHS, F.col(f"{name}_count"))
    return F.col(f"{name}_min"), mean.alias(f"{name}_mean"), F.col(f"{name}_max")


def _by_column(measures: Sequence[Measure], value: Callable[[Measure], Column]) -> list[Column]:
    """One expression per column, from whichever of its measures has a value."""
    return [
        F.coalesce(*(value(measure) for measure in measures if measure.column == name)).alias(name)
        for name in column_names(measures)
    ]


def _values_by_frame(own: DataFrame, measures: Sequence[Measure]) -> DataFrame:
    """One row per message, so that a value is joined with its qualifying field.

    Only numbers are aggregated: with a string among them Spark would sort instead of hash. Messages of a producer
    without seqs are told apart by time, sender and kind.
    """
    place = {measure: number for number, measure in enumerate(measures)}
    parts = [F.max(converted(measure)).alias(f"value_{number}") for measure, number in place.items()]
    for measure, number in place.items():
        if measure.qualifier is not None:
            says = (F.col("signal") == measure.qualifier) & F.col("text").isin(list(measure.texts))
            parts.append(F.max(F.when(says, 1)).alias(f"counts_{number}"))
    message = ("channel", "lineage", "seq", micros("time").alias("us"), "source", "pgn")
    frames = own.groupBy(*message).agg(F.max("instance").alias("instance"), *parts)

    def value(measure: Measure) -> Column:
        number = place[measure]
        found = F.col(f"value_{number}")
        return found if measure.qualifier is None else F.when(F.col(f"counts_{number}") == 1, found)

    return frames.select("channel", "us", "instance", *_by_column(measures, value))
