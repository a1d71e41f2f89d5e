"""The orders of one step, each carried out once: by Spark's tasks, or in this process where that is less work.

A trigger of a small fleet brings a few thousand frames. Planning a job, sending orders to workers and fetching their
results costs more processor time than such a step itself, and the step waits for free cores. So on a local master small
steps run here, several orders at once, since most of their time is spent waiting for nodes and for the disk; larger
ones go to tasks. On a real cluster everything runs on executors unless a threshold is set: the driver may be anywhere.

JTR1  An order is carried out by the same function with the same result, wherever it is.
JTR2  A worker that does not share the folder of the table is refused before it writes (TSF1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.pipeline.engine import is_local
from tidelog.pipeline.tables.shared_folder import InSharedFolder, marked, require_shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_RECORDS_MAX: Final = 100_000
"""The threshold on a local master: about half a second of decoding. A job of that size takes longer to begin, and much
longer beside another job."""

Order = TypeVar("Order")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where the orders of a step are carried out, and how many at the same time."""

    spark: SparkSession | None
    """None: here."""
    at_once: int


def workplace_of(spark: SparkSession, *, records: int, driver_records_max: int | None, at_once: int) -> Workplace:
    """For a step of this many records. `at_once` of them here: 1 if `work` must not run in several threads.

    Steps of up to `driver_records_max` stay here; 0: none do; None: `DRIVER_RECORDS_MAX` on a local master, else none.
    """
    context = spark.sparkContext
    limit = driver_records_max
    if limit is None:
        limit = DRIVER_RECORDS_MAX if is_local(str(context.master)) else 0
    if limit > 0 and records <= limit:
        return Workplace(None, at_once)
    return Workplace(spark, context.defaultParallelism)


def carried_out(
    workplace: Workplace, orders: Sequence[Order], work: Callable[[Order], Result], *, folder: Path
) -> list[Result]:
    """The results of `work`, which writes into `folder`, for every order, in their order (JTR1, JTR2). `work` and the
    orders must be picklable."""
    if not orders:
        return []
    if workplace.spark is not None:
        with marked(folder) as marker:
            tasks = workplace.spark.sparkContext.parallelize(orders, len(orders))
            return require_shared(folder, tasks.map(InSharedFolder(marker, work)).collect())
    if len(orders) == 1 or workplace.at_once == 1:
        return [work(order) for order in orders]
    # All of them finish, also when one has failed: none keeps writing after the call.
    with ThreadPoolExecutor(workplace.at_once, thread_name_prefix="tidelog-order") as threads:
        return list(threads.map(work, orders))
