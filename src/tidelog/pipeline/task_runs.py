"""The orders of one step, each carried out once: by Spark's tasks, or in this process where that is less work.

A trigger of a small fleet brings a few thousand frames. To plan a job, hand orders to workers and fetch what they say
costs more processor time than such a step itself, and leaves it waiting behind whatever job holds the cores. So on a
local master small steps are done here; what grows beyond that goes to tasks by itself. On a real cluster all of it is
for the executors: the driver may be anywhere.

TR1  An order is carried out by the same function with the same result, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_RECORDS_MAX: Final = 20_000
"""About a quarter of a second of decoding; more is worth a job, and the cores beside this one."""

Order = TypeVar("Order")
Result = TypeVar("Result")


def carried_out(
    spark: SparkSession,
    orders: Sequence[Order],
    work: Callable[[Order], Result],
    *,
    records: int,
    driver_records_max: int,
) -> list[Result]:
    """What `work` makes of every order, in their order (TR1). `work` and the orders must go through pickle."""
    if not orders:
        return []
    context = spark.sparkContext
    if records <= driver_records_max and str(context.master).startswith("local"):
        return [work(order) for order in orders]
    results: list[Result] = context.parallelize(orders, len(orders)).map(work).collect()
    return results
