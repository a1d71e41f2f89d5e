"""`environment`, `sensors` and `navigation`: wind, water, air and how the boat lies in them.

`environment` has wind, depth, temperatures, pressure and humidity hour by hour. Where several sensors measure the same
thing, the primary one counts, by the rule in `hourly`; `sensors` has the hours of all of them. Depth includes the
offset of the transducer where it is sent: to the surface if that is positive, to the keel if it is negative.

`navigation` has heading, speed through the water and wind minute by minute: means of the primary sender, beside
`tracks`, whose minutes have the same times. Angles of the wind are relative to the bow, 0 to 360 clockwise;
`ground_wind_from_deg` is the direction that it comes from. The mean of an angle is that of directions: of 350 and 10
degrees it is 0. What the boat's instruments do not send is null, and nothing is computed from anything else.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import ENVIRONMENT, NAVIGATION, SENSORS, column_names
from tidelog.pipeline.gold.hourly import hourly, sensor_hours
from tidelog.pipeline.gold.moments import MINUTE_US


def build_environment(signals: DataFrame) -> DataFrame:
    """The rows of `environment` for the days of `signals`."""
    return hourly(signals, ENVIRONMENT, instances=False)


def build_sensors(signals: DataFrame) -> DataFrame:
    """The rows of `sensors` for the days of `signals`; those with `primary` are in `environment`."""
    return sensor_hours(signals, SENSORS, instances=False)


def build_navigation(signals: DataFrame) -> DataFrame:
    """The rows of `navigation` for the days of `signals`."""
    found = sensor_hours(signals, NAVIGATION, instances=False, grain_us=MINUTE_US).filter("primary")
    means = [F.max(F.when(F.col("quantity") == name, F.col("mean"))).alias(name) for name in column_names(NAVIGATION)]
    return found.groupBy("channel", "day", F.col("hour").alias("time")).agg(*means, F.sum("samples").alias("samples"))
