"""What `tidelog bench pipeline` times: the pipeline's ways from blocks to rows, and Spark's own on the same rows.

Spark's Parquet is compressed as our tables are (zstd, level 1) and is written without a sync, which ours are not
spared. Every case checks that it moved all rows, and cleans up outside of the measured time.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.kits.process_tree import tree_processor_s
from benchmarks.pipeline.pipeline_logs import BenchLogs
from benchmarks.pipeline.tuple_source import NAME as TUPLES
from benchmarks.pipeline.tuple_source import TupleSource
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.columns import FRAMES
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARQUET: Final[Mapping[str, str]] = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
BATCH_RECORDS: Final = 20_000_000
"""The records of a batch, by a pipeline's default."""


class WrongRows(RuntimeError):
    """A case did not move the rows that it should have moved."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The measurements of one round: elapsed time, and processor time of all processes. Also rates of either kind."""

    wall_s: float
    processor_s: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall_s - other.wall_s, self.processor_s - other.processor_s)

    def rates(self, rows: int) -> Cost:
        """Rows per second of either kind; 0 where no time was taken."""
        return Cost(*(rows / spent if spent > 0 else 0.0 for spent in (self.wall_s, self.processor_s)))


@dataclass(slots=True)
class Moments:
    """When how many frames were committed, on the clock and in processor time; the first when a batch first began."""

    frames: list[int] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def note(self, frames: int) -> None:
        self.frames.append(frames)
        self.costs.append(Cost(time.perf_counter(), tree_processor_s()))

    @property
    def whole(self) -> Cost:
        """From the beginning of the first batch to the last commit: what is left when a stream need not be started."""
        return self.costs[-1] - self.costs[0]

    def rates(self, start: int, end: int) -> Cost:
        """Frames per second and per processor second from the commit at or after `start` frames to the one at or after
        `end`."""
        first, last = (next(place for place, held in enumerate(self.frames) if held >= mark) for mark in (start, end))
        return (self.costs[last] - self.costs[first]).rates(self.frames[last] - self.frames[first])


class _WatchedJob(FramesJob):
    """The frames job; notes when each of its batches was committed."""

    def __init__(self, spark: SparkSession, options: FramesOptions) -> None:
        super().__init__(spark, options)
        self.moments = Moments()

    def commit_batch(self, pieces: Sequence[Piece]) -> None:
        if not self.moments.frames:
            self.moments.note(0)
        super().commit_batch(pieces)
        self.moments.note(self.progress.frames)


class PipelineCases:
    """All cases over one set of logs and one Spark session."""

    def __init__(self, spark: SparkSession, logs: BenchLogs, scratch: Path) -> None:
        self._spark = spark
        self._logs = logs
        self._scratch = scratch
        self.parquet = str(scratch / "rows.parquet")
        """The same rows as Spark itself writes them, once `write_parquet` was called."""
        self._first_parquet = str(scratch / "first.parquet")
        spark.dataSource.register(TupleSource)

    # --- blocks to the table -------------------------------------------------------------------------

    def ingest(self, kind: str, *, frames: int, batch_records_max: int = BATCH_RECORDS) -> tuple[Cost, Moments]:
        """A stream of the frames job into a new table, until nothing is left; the table is then removed."""
        folder = self._scratch / "tables"
        cost, moments = self._ingested(folder, kind, frames=frames, batch_records_max=batch_records_max)
        shutil.rmtree(folder)
        return cost, moments

    def _ingested(
        self, folder: Path, kind: str, *, frames: int, batch_records_max: int = BATCH_RECORDS
    ) -> tuple[Cost, Moments]:
        options = FramesOptions(
            address=LogsAddress(path=self._logs.path(kind)),
            tables=str(folder),
            checkpoint=str(folder / "checkpoint"),
            batch_records_max=batch_records_max,
        )
        job = _WatchedJob(self._spark, options)
        try:
            cost = timed_tree(lambda: job.start().awaitTermination())
        finally:
            job.close()
        _require(frames, job.progress.frames, f"ingest of the {kind} log")
        return cost, job.moments

    def write_parquet(self, *, first_rows: int) -> float:
        """Make `parquet` of the plain log's rows, and a small one of the first; bytes per frame of the table that they
        came from."""
        folder = self._scratch / "source"
        self._ingested(folder, "plain", frames=self._logs.frames)
        table = open_table(str(folder), FRAMES_LAYOUT)
        files = table.files()
        rows = self._spark.read.parquet(*(str(table.path_of(file)) for file in files)).select(*FRAMES.names)
        rows.write.options(**_PARQUET).parquet(self.parquet)
        (end,) = set(self._logs.first(first_rows).values())
        rows.where(f"offset < {end}").coalesce(1).write.options(**_PARQUET).parquet(self._first_parquet)
        shutil.rmtree(folder)
        return sum(file.bytes for file in files) / self._logs.frames

    def parquet_bytes(self) -> int:
        return sum(entry.stat().st_size for entry in os.scandir(self.parquet) if entry.name.endswith(".parquet"))

    def rewrite(self) -> Cost:
        """Spark from Parquet to Parquet."""
        target = self._scratch / "rewritten.parquet"
        cost = timed_tree(lambda: self._spark.read.parquet(self.parquet).write.options(**_PARQUET).parquet(str(target)))
        shutil.rmtree(target)
        return cost

    # --- scans ---------------------------------------------------------------------------------------

    def scan(self, kind: str) -> Cost:
        """All columns of all frames through the source to nowhere."""
        return timed_tree(lambda: _to_nowhere(self._read("tidelog", kind, {})))

    def scan_first(self, rows: int, *, tuples: bool) -> Cost:
        """The same of the first rows of the plain log, as Arrow batches or as tuples."""
        ending = json.dumps(self._logs.first(rows))
        return timed_tree(lambda: _to_nowhere(self._read(TUPLES if tuples else "tidelog", "plain", {"ending": ending})))

    def scan_parquet(self, *, first: bool = False) -> Cost:
        path = self._first_parquet if first else self.parquet
        return timed_tree(lambda: _to_nowhere(self._spark.read.parquet(path)))

    def require_rows(self) -> None:
        """Every source gives all rows, and the same ones."""
        expected = self._digest(self._spark.read.parquet(self.parquet))
        for kind in ("plain", "delta"):
            _require(expected, self._digest(self._read("tidelog", kind, {})), f"rows of the {kind} log")
        _require(self._logs.frames, expected[0], "rows of Spark's Parquet")

    def _digest(self, rows: DataFrame) -> tuple[Any, ...]:
        (found,) = rows.selectExpr("count(*)", "bit_xor(xxhash64(channel, seq, offset, time, pgn, data))").collect()
        return tuple(found)

    def _read(self, name: str, kind: str, options: Mapping[str, str]) -> DataFrame:
        # Loaded anew every time: a DataFrame keeps the plan of its first use.
        return self._spark.read.format(name).options(path=self._logs.path(kind), **options).load()


def _to_nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def timed_tree(work: Callable[[], object]) -> Cost:
    processor_start, start = tree_processor_s(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - start, tree_processor_s() - processor_start)


def _require(expected: object, found: object, what: str) -> None:
    if expected != found:
        raise WrongRows(f"{what}: {found}, and not {expected}")
