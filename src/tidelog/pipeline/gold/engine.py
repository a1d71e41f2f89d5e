"""`engine`: what every engine did, hour by hour. `engine_meters`: the hours that its own meter shows, day by day.

An engine runs while its speed is above `RUNNING_RPM_MIN`. A reading holds until the next one of the same engine, but no
longer than `READING_HOLDS_MAX_S`: in a hole of the data the engine's state is unknown, and hours that were not observed
are not counted. In an hour in which no speed was heard, `running_seconds` is null.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import ENGINE, ENGINE_METER, ENGINE_SPEED
from tidelog.pipeline.gold.hourly import converted, hourly
from tidelog.pipeline.gold.moments import HOUR_US, SECOND_US, cut, day_of, micros, moment

RUNNING_RPM_MIN: Final = 100.0
"""Below idle of any engine and above the reading of a sensor on a stopped one."""
READING_HOLDS_MAX_S: Final = 10
_LAST_READING_HOLDS_S: Final = 1


def build_engine(signals: DataFrame) -> DataFrame:
    """The rows of `engine` for the days of `signals`."""
    hours = hourly(signals, ENGINE, instances=True)
    running = (
        engine_spans(signals)
        .withColumn("hour_us", cut(F.col("us"), HOUR_US))
        # A span is cut where its hour ends, so that no hour has more than 3,600 seconds.
        .withColumn("span_us", F.least(F.col("span_us"), F.col("hour_us") + HOUR_US - F.col("us")))
        .groupBy("channel", "instance", moment(F.col("hour_us")).alias("hour"))
        .agg((F.sum("span_us") / SECOND_US).alias("running_seconds"))
    )
    same = [hours[name].eqNullSafe(running[name]) for name in ("channel", "instance", "hour")]
    joined = hours.join(running, same, "left")
    measured = [hours[name] for name in hours.columns]
    return joined.select(*measured, running["running_seconds"])


def build_engine_meters(signals: DataFrame) -> DataFrame:
    """The rows of `engine_meters` for the days of `signals`.

    A meter only counts up, so the smallest reading of a day is its first.
    """
    return (
        hourly(signals, [ENGINE_METER], instances=True)
        .groupBy("channel", "day", "instance")
        .agg(
            F.min("meter_h_min").alias("meter_h_first"),
            F.max("meter_h_max").alias("meter_h_last"),
            F.sum("samples").alias("samples"),
        )
    )


def engine_spans(signals: DataFrame) -> DataFrame:
    """How long an engine ran from each reading of its speed on: channel, instance, us, span_us, which is 0 where it
    stood. Spans of one engine never overlap.

    Days are taken one by one, so that a day comes out the same whichever other days are at hand (GD2).
    """
    readings = (
        signals.filter(F.col("signal") == ENGINE_SPEED.signal)
        .select("channel", "instance", micros("time").alias("us"), "seq", converted(ENGINE_SPEED).alias("rpm"))
        .filter(F.col("rpm").isNotNull())
        .withColumn("day", day_of(F.col("us")))
    )
    engine_day = Window.partitionBy("channel", "day", "instance").orderBy("us", "seq", "rpm")
    until_next = F.coalesce(F.lead("us").over(engine_day) - F.col("us"), F.lit(_LAST_READING_HOLDS_S * SECOND_US))
    holds_us = F.least(until_next, F.lit(READING_HOLDS_MAX_S * SECOND_US))
    span_us = F.when(F.col("rpm") > RUNNING_RPM_MIN, holds_us).otherwise(F.lit(0))
    return readings.select("channel", "instance", "us", span_us.alias("span_us"))
