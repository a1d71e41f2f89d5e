"""Minimum, mean and maximum per hour: what `engine`, `electrical`, `environment`, `navigation` and others share.

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
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import CONVERSIONS, Measure, column_names, signal_names
from tidelog.pipeline.gold.moments import HOUR_US, MINUTE_US, cut, day_of, micros, moment
from tidelog.pipeline.gold.senders import with_claims

_MILLIONTHS: Final = 1_000_000
_VALUE: Final = ("channel", "us", "measure", "instance", "source", "device", "value")
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


def sensor_hours(
    signals: DataFrame,
    measures: Sequence[Measure],
    *,
    instances: bool,
    references: bool = False,
    grain_us: int = HOUR_US,
) -> DataFrame:
    """One row per channel, hour (or other grain), quantity and sender: day, hour, quantity, signal, reference,
    instance, source, device, primary, min, mean, max, samples.

    `instances` and `references` say whether each instance and each reference of a quantity has a primary of its own.
    """
    has_angles = any(measure.is_angle for measure in measures)
    hours = _by_sender(_values(signals, measures), grain_us, has_angles=has_angles)
    number = F.col("measure")
    named = {
        "quantity": _by_measure(number, [measure.column for measure in measures]),
        "signal": _by_measure(number, [measure.signal for measure in measures]),
        "reference": _by_measure(number, [measure.texts[0] if measure.texts else None for measure in measures]),
    }
    apart = [*(["instance"] if instances else []), *(["reference"] if references else [])]
    quantity = ("channel", "day", "quantity", *apart)
    is_angle = number.isin([place for place, measure in enumerate(measures) if measure.is_angle])
    mean = F.col("sum") / _MILLIONTHS / F.col("samples")
    if has_angles:
        mean = F.when(is_angle, F.pmod(F.degrees(F.atan2("east", "north")) + 360.0, F.lit(360.0))).otherwise(mean)
    sender = Window.partitionBy(*quantity, *_SENDER)
    order = (F.desc("minutes_of_day"), *_SENDER)
    rank = Window.partitionBy(*quantity, "hour_us").orderBy(*order)
    return (
        hours.withColumns(named)
        .withColumn("day", day_of(F.col("hour_us")))
        .withColumn("minutes_of_day", F.sum(F.bit_count("minutes")).over(sender))
        .withColumn("primary", F.row_number().over(rank) == 1)
        .withColumn("hour", moment(F.col("hour_us")))
        .withColumn("mean", mean)
        .withColumns({what: F.when(~is_angle, F.col(what)) for what in ("min", "max")})
    )


def _by_sender(values: DataFrame, grain_us: int, *, has_angles: bool) -> DataFrame:
    """The hours of each sender: channel, hour_us, measure, instance, device, address, source, min, sum, samples, max,
    minutes, and for angles the sums of sines and cosines, east and north.

    `address` is the source of a sender without a device, and null for one that has moved with its NAME or may.
    """
    minute = F.pmod(F.col("us"), F.lit(HOUR_US)) / MINUTE_US
    hour_us = cut(F.col("us"), grain_us)
    sides = {"east": F.sin, "north": F.cos} if has_angles else {}
    first = values.groupBy("channel", hour_us.alias("hour_us"), "measure", "instance", "source", "device").agg(
        F.min("value").alias("min"),
        _summed(F.col("value")).alias("sum"),
        F.count("value").alias("samples"),
        F.max("value").alias("max"),
        *(_summed(side(F.radians("value"))).alias(name) for name, side in sides.items()),
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
        *(F.sum(name).alias(name) for name in sides),
        F.bit_or("minutes").alias("minutes"),
    )


def _summed(value: Column) -> Column:
    return F.sum(F.round(value * _MILLIONTHS).cast("bigint"))


def _values(signals: DataFrame, measures: Sequence[Measure]) -> DataFrame:
    """One row per value: channel, us, measure (its place), instance, source, device, value."""
    own = signals.filter(F.col("signal").isin(signal_names(measures)))
    if any(measure.qualifier or measure.added for measure in measures):
        return _by_message(own, measures)
    values = [converted(measure) for measure in measures]
    place = F.coalesce(*(F.when(value.isNotNull(), F.lit(number)) for number, value in enumerate(values)))
    found = own.withColumns({"us": micros("time"), "measure": place, "value": F.coalesce(*values)})
    return found.select(*_VALUE).filter(F.col("value").isNotNull())


@dataclass(slots=True)
class _Slot:
    """Measures that read the same fields of a message, of which at most one applies to it."""

    number: int
    places: list[int]
    measures: list[Measure]

    def parts(self) -> list[Column]:
        """The fields of a message: the value, what is added to it, and the place of the measure that applies."""
        measure, number = self.measures[0], self.number
        parts = [F.max(F.when(F.col("signal") == measure.signal, _in_unit_of_gold(measure))).alias(f"value_{number}")]
        if measure.added is not None:
            added = F.when(F.col("signal") == measure.added, _in_unit_of_gold(measure))
            parts.append(F.max(added).alias(f"added_{number}"))
        if measure.qualifier is not None:
            applies = F.lit(None).cast("int")
            for place, one in zip(self.places, self.measures, strict=True):
                applies = F.when(F.col("text").isin(list(one.texts)), F.lit(place)).otherwise(applies)
            parts.append(F.max(F.when(F.col("signal") == measure.qualifier, applies)).alias(f"applies_{number}"))
        return parts

    def found(self) -> Column:
        """The measure that applies and its value, null if that is not plausible."""
        value = F.col(f"value_{self.number}")
        if self.measures[0].added is not None:
            value = value + F.coalesce(F.col(f"added_{self.number}"), F.lit(0.0))
        is_alone = self.measures[0].qualifier is None
        place = F.lit(self.places[0]) if is_alone else F.col(f"applies_{self.number}")
        plausible = F.lit(False)
        for number, measure in zip(self.places, self.measures, strict=True):
            plausible = F.when(place == number, value.between(measure.low, measure.high)).otherwise(plausible)
        return F.struct(place.alias("measure"), F.when(plausible, value).alias("value"))


def _slots(measures: Sequence[Measure]) -> list[_Slot]:
    slots: dict[object, _Slot] = {}
    for place, measure in enumerate(measures):
        # Without a qualifier every measure applies. Angles and speeds of one message are two signals.
        apart = measure.column if measure.qualifier is None else measure.qualifier
        key = (measure.signal, measure.unit, measure.added, apart)
        slot = slots.setdefault(key, _Slot(number=len(slots), places=[], measures=[]))
        assert not any(set(measure.texts) & set(one.texts) for one in slot.measures), "one value, two measures"
        slot.places.append(place)
        slot.measures.append(measure)
    return list(slots.values())


def _by_message(own: DataFrame, measures: Sequence[Measure]) -> DataFrame:
    """The values of messages, in which a value is joined with the fields beside it.

    Only numbers are aggregated: with a string among them Spark would sort instead of hash. Messages of a producer
    without seqs are told apart by time, sender and kind.
    """
    slots = _slots(measures)
    parts = [part for slot in slots for part in slot.parts()]
    message = ("channel", "lineage", "seq", micros("time").alias("us"), "source", "device", "pgn")
    messages = own.groupBy(*message).agg(F.max("instance").alias("instance"), *parts)
    # All slots of a message and then only those with a value: a filter inside the array is not compiled.
    exploded = messages.withColumn("found", F.explode(F.array(*(slot.found() for slot in slots))))
    found = exploded.filter(F.col("found.value").isNotNull())
    return found.select("channel", "us", "instance", "source", "device", "found.*").select(*_VALUE)


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
