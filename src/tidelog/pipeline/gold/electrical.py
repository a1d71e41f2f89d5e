"""`electrical`: voltage, current, temperature and charge of every battery, hour by hour."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidelog.pipeline.gold.columns import ELECTRICAL
from tidelog.pipeline.gold.hourly import hourly


def build_electrical(signals: DataFrame) -> DataFrame:
    """The rows of `electrical` for the days of `signals`."""
    return hourly(signals, ELECTRICAL, instances=True)
