"""`sensors`: wind, depth, temperatures, pressure and humidity of every sender, hour by hour.

`environment` has one number for a boat; here is where it comes from, and what the other senders said. The rows with
`primary` are those in `environment`, by the rule in `hourly`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidelog.pipeline.gold.columns import SENSORS
from tidelog.pipeline.gold.hourly import sensor_hours


def build_sensors(signals: DataFrame) -> DataFrame:
    """The rows of `sensors` for the days of `signals`."""
    return sensor_hours(signals, SENSORS, instances=False)
