"""Minimum, mean and maximum per hour: what `engine`, `electrical`, `environment` and `sensors` share.

The mean is the mean of the samples. Instruments send at a steady rate, so it is the mean over time as well.

Several senders of one quantity are never mixed: three depth sounders see three depths, and their mean is none of them.
Of every quantity (and instance, where the table has instances) one sender is the primary: of those heard in an hour,
the one heard in most minutes of the day. A tie is broken by the order of the measures in `columns`, then by the
instance, then by the NAME of the device or, without one, the source address. So the primary changes within a day only
where it is silent for a whole hour.

GH1  A value outside the plausible range of its measure, or in an unknown unit, is left out, and only that value.
GH2  Sums are taken over integers (millionths), so the order of the rows does not show in the mean (GD1).
GH3  A number in an hour's row comes from one sender; which one depends on the day alone (GD2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import CONVERSIONS, Measure, column_names, signal_names
from tidelog.pipeline.gold.moments import HOUR_US, MINUTE_US, cut, day_of, micros, moment
from tidelog.pipeline.gold.senders import with_claims

_MILLIONTHS: Final = 1_000_000
_SENDER: Final = ("measure", "instance", "device", "address")


def converted(measure: Measure) -> Column:
    """The value of a row of `signals` in the unit of gold; null for another signal or an implausible value."""
    value = _in_unit_of_gold(measure)
    return F.when((F.col("signal") == measure.signal) & value.between(measure.low, measure.high), value)


def hourly(signals: DataFrame, measures: Sequence[Measure], *, instances: bool) -> DataFrame:
    """One row per channel, hour and, if asked, instance: day, hour, `<column>_min|_mean|_max`, samples."""
    found = sensor_hours(signals, measures, instances=instances).filter("primary")
    names = column_names(measures)
    parts = [
        F.max(F.when(F.col("quantity") == name, F.col(what))).alias(f"{name}_{what}")
        for name in names
        for what in ("min", "mean", "max")
    ]
    keys = ["channel", "day", "hour", *(["instance"] if instances else [])]
    return found.groupBy(*keys).agg(*parts, F.sum("samples").alias("samples"))


def sensor_hours(signals: DataFrame, measures: Sequence[Measure], *, instances: bool) -> DataFrame:
    """One row per channel, hour, quantity and sender: day, hour, quantity, signal, reference, instance, source, device,
    primary, min, mean, max, samples.

    `instances` says whether each instance of a quantity has a primary of its own.
    """
    hours = _by_sender(_values(signals, measures))
    number = F.col("measure")
    named = {
        "quantity": _by_measure(number, [measure.column for measure in measures]),
        "signal": _by_measure(number, [measure.signal for measure in measures]),
        "reference": _by_measure(number, [measure.texts[0] if measure.texts else None for measure in measures]),
    }
    quantity = ("channel", "day", "quantity", *(["instance"] if instances else []))
    sender = Window.partitionBy(*quantity, *_SENDER)
    order = (F.desc("minutes_of_day"), *_SENDER)
    rank = Window.partitionBy(*quantity, "hour_us").orderBy(*order)
    return (
        hours.withColumns(named)
        .withColumn("day", day_of(F.col("hour_us")))
        .withColumn("minutes_of_day", F.sum(F.bit_count("minutes")).over(sender))
        .withColumn("primary", F.row_number().over(rank) == 1)
        .withColumn("hour", moment(F.col("hour_us")))
        .withColumn("mean", F.col("sum") / _MILLIONTHS / F.col("samples"))
    )


def _by_sender(values: DataFrame) -> DataFrame:
    """The hours of each sender: channel, hour_us, measure, instance, device, address, source, min, sum, samples, max,
    minutes.

    `address` is the source of a sender without a device, and null for one that has moved with its NAME or may.
    """
    minute = F.pmod(F.col("us"), F.lit(HOUR_US)) / MINUTE_US
    hour_us = cut(F.col("us"), HOUR_US)
    first = values.groupBy("channel", hour_us.alias("hour_us"), "measure", "instance", "source", "device").agg(
        F.min("value").alias("min"),
        F.sum(F.round(F.col("value") * _MILLIONTHS).cast("bigint")).alias("sum"),
        F.count("value").alias("samples"),
        F.max("value").alias("max"),
        # A bit for each minute with a value.
        F.bit_or(F.call_function("shiftleft", F.lit(1).cast("bigint"), minute.cast("int"))).alias("minutes"),
    )
    claimed = with_claims(first.withColumn("day", day_of(F.col("hour_us"))), "hour_us")
    address = F.when(F.col("device").isNull(), F.col("source"))
    return claimed.groupBy("channel", "hour_us", "measure", "instance", "device", address.alias("address")).agg(
        F.min("source").alias("source"),
        F.min("min").alias("min"),
        F.sum("sum").alias("sum"),
        F.sum("samples").alias("samples"),
        F.max("max").alias("max"),
        F.bit_or("minutes").alias("minutes"),
    )


def _values(signals: DataFrame, measures: Sequence[Measure]) -> DataFrame:
    """One row per value: channel, us, measure (its place), instance, source, device, value."""
    own = signals.filter(F.col("signal").isin(signal_names(measures)))
    sent = ("channel", micros("time").alias("us"), "instance", "source", "device")
    if any(measure.qualifier or measure.added for measure in measures):
        messages, values = _by_message(own, measures)
    else:
        messages, values = own.select(*sent, "signal", "unit", "value"), [converted(one) for one in measures]
    found = [F.struct(F.lit(place).alias("measure"), value.alias("value")) for place, value in enumerate(values)]
    exploded = messages.withColumn("found", F.explode(F.filter(F.array(*found), lambda one: one["value"].isNotNull())))
    return exploded.select("channel", "us", "instance", "source", "device", "found.*")


def _by_message(own: DataFrame, measures: Sequence[Measure]) -> tuple[DataFrame, list[Column]]:
    """One row per message, so that a value is joined with the fields beside it, and the value of each measure there.

    Only numbers are aggregated: with a string among them Spark would sort instead of hash. Messages of a producer
    without seqs are told apart by time, sender and kind.
    """
    parts, values = [], []
    for place, measure in enumerate(measures):
        parts.append(F.max(F.when(F.col("signal") == measure.signal, _in_unit_of_gold(measure))).alias(f"v_{place}"))
        value = F.col(f"v_{place}")
        if measure.added is not None:
            added = F.when(F.col("signal") == measure.added, _in_unit_of_gold(measure))
            parts.append(F.max(added).alias(f"added_{place}"))
            value = value + F.coalesce(F.col(f"added_{place}"), F.lit(0.0))
        value = F.when(value.between(measure.low, measure.high), value)
        if measure.qualifier is not None:
            says = (F.col("signal") == measure.qualifier) & F.col("text").isin(list(measure.texts))
            parts.append(F.max(F.when(says, 1)).alias(f"counts_{place}"))
            value = F.when(F.col(f"counts_{place}") == 1, value)
        values.append(value)
    message = ("channel", "lineage", "seq", micros("time").alias("us"), "source", "device", "pgn")
    return own.groupBy(*message).agg(F.max("instance").alias("instance"), *parts), values


def _in_unit_of_gold(measure: Measure) -> Column:
    value = F.lit(None).cast("double")
    for (given, wanted), (factor, offset) in CONVERSIONS.items():
        if wanted == measure.unit:
            value = F.when(F.col("unit") == given, F.col("value") * factor + offset).otherwise(value)
    return value


def _by_measure(number: Column, texts: Sequence[str | None]) -> Column:
    """The text of a measure, by its place."""
    found = F.array(*(F.lit(text).cast("string") for text in texts))
    return F.element_at(found, number + 1)
