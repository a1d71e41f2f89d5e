"""`environment`: wind, depth, temperatures, pressure and humidity, hour by hour.

Where several sensors measure the same thing, the primary one counts, by the rule in `hourly`; the table `sensors` has
all of them. Depth includes the offset of the transducer where it is sent: to the surface if that is positive, to the
keel if it is negative.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidelog.pipeline.gold.columns import ENVIRONMENT
from tidelog.pipeline.gold.hourly import hourly


def build_environment(signals: DataFrame) -> DataFrame:
    """The rows of `environment` for the days of `signals`."""
    return hourly(signals, ENVIRONMENT, instances=False)
