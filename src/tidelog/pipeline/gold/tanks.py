"""`tanks`: the level of every tank, hour by hour.

A tank is a fluid and an instance: a boat has a fuel tank 0 and a water tank 0. Two senders of one tank are not mixed
(`hourly`). A level that moves with the waves is why there are minimum and maximum.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import TANKS
from tidelog.pipeline.gold.hourly import sensor_hours


def build_tanks(signals: DataFrame) -> DataFrame:
    """The rows of `tanks` for the days of `signals`."""
    found = sensor_hours(signals, TANKS, instances=True, references=True).filter("primary")
    level, capacity = F.col("quantity") == "level_percent", F.col("quantity") == "capacity_l"
    return found.groupBy("channel", "day", "hour", "instance", F.col("reference").alias("fluid")).agg(
        *(F.max(F.when(level, F.col(what))).alias(f"level_percent_{what}") for what in ("min", "mean", "max")),
        F.max(F.when(capacity, F.col("mean"))).alias("capacity_l"),
        F.sum("samples").alias("samples"),
    )
