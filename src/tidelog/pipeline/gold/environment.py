"""`environment`: wind, depth, temperatures, pressure and humidity, hour by hour.

Where several sensors measure the same thing, the hour's minimum and maximum are over all of them.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidelog.pipeline.gold.columns import ENVIRONMENT
from tidelog.pipeline.gold.hourly import hourly


def build_environment(signals: DataFrame) -> DataFrame:
    """The rows of `environment` for the days of `signals`."""
    return hourly(signals, ENVIRONMENT, instances=False)
