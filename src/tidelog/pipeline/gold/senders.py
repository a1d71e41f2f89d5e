"""Who sent a value: the device where it is known, else the source address.

A device is known from its address claim on, and the frames before the claim are its own: without this rule a receiver
would become another one in the middle of a day.

GSE1  What a source sent before a claim belongs to the device of that claim, within the day.
GSE2  What was sent after the device left the address, and before the next claim, belongs to that next claim; where
      none follows, to the address.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def with_claims(rows: DataFrame, order: str) -> DataFrame:
    """The rows with `device` filled in from the next claim of the same source and day.

    Columns of the rows: channel, day, source, device, and the column `order`, a time that orders them.
    """
    # Of rows at the same time, those without a device come first: the claim came in between.
    of_source = Window.partitionBy("channel", "day", "source").orderBy(order, "device")
    onward = of_source.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    return rows.withColumn("device", F.first("device", ignorenulls=True).over(onward))
