"""The whole pipeline: its stages in order, once or continuously, and its status.

Once: all present records go through `frames`, `signals` and the gold tables, then the run ends. Running: a stream fills
`frames` at every trigger, decoding follows each of its commits, gold and the rewriting of small files have intervals
and a thread of their own. A stage that fails is started again after growing pauses (`supervisor`); the others go on
meanwhile.

Every stage may be killed at any moment, on its own or with the process: the tables have the position to continue from.

Threads of a running pipeline: Spark's callbacks run the batches of `frames`, the caller's thread decodes and restarts
the stream, and `slow_stages` has the rest. An open table and a supervisor belong to one thread each; threads share
tables only on disk, by the rules of `table`. `progress` of the jobs is replaced whole, so that any thread may read it.

JR1  However long gold and rewriting take, the stream is restarted when needed and decoding follows its commits.
JR2  An error that ends a stage for good ends `run_until` with that error, whichever thread it was in.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import StageFailed, StageRefused
from tidelog.pipeline.gold.gold_job import GoldOptions, gold_status, run_gold
from tidelog.pipeline.gold.schemas import LAYOUTS as GOLD_LAYOUTS
from tidelog.pipeline.jobs.frames_job import FramesJob, lag_of
from tidelog.pipeline.jobs.signals_job import SignalsJob
from tidelog.pipeline.jobs.slow_stages import SlowStage, SlowStages, now_ms
from tidelog.pipeline.jobs.supervisor import Supervisor, failure_of
from tidelog.pipeline.settings import PipelineSettings
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import (
    CLOCK_SHIFTS_LAYOUT,
    DEVICES_LAYOUT,
    FRAMES_LAYOUT,
    LOST_RANGES_LAYOUT,
    SIGNALS_LAYOUT,
    UNDECODED_LAYOUT,
)
from tidelog.pipeline.tables.maintenance import Optimized, gather, optimize, vacuum
from tidelog.pipeline.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LAYOUTS: Final = (
    FRAMES_LAYOUT,
    LOST_RANGES_LAYOUT,
    SIGNALS_LAYOUT,
    UNDECODED_LAYOUT,
    DEVICES_LAYOUT,
    CLOCK_SHIFTS_LAYOUT,
)
_LOOK_S: Final = 0.1
_SLOW_POOL: Final = "tidelog-slow"
ENGINE_SETTINGS: Final = {
    # Else the stream's jobs wait behind all that gold has asked for (JR1).
    "spark.scheduler.mode": "FAIR",
    # Gold reads files that the table's log names, hundreds of small ones between two rewrites. Above 32 Spark would
    # look each of them up in a task of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # And it would give a few megabytes of them to many tasks. One task leaves the other core to the stream; what is
    # large is still cut, at 128 MiB.
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.files.minPartitionNum": "1",
    # Both of Spark's ways to write a checkpoint rename a file that is whole. The usual one also starts a process for
    # each, to set its rights: 50 ms of every batch, and more on a machine that has work.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For the session of a pipeline that runs."""
_MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The result of one run."""

    frames: int
    frames_bytes: int
    signals: int
    gold_tables_changed: int
    seconds: float


class PipelineRunner:
    """One pipeline on one Spark session. Use it as a context."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings) -> None:
        self._spark = spark
        self.settings = settings
        self.frames = FramesJob(spark, settings.frames)
        self.signals = SignalsJob(spark, settings.signals)
        self._supervisors = {
            stage: Supervisor(stage=stage, restarts_max=settings.restarts_max, wait_max_ms=settings.restart_wait_max_ms)
            for stage in ("frames", "signals", "gold", "optimize")
        }
        self._query: StreamingQuery | None = None
        self._slow: SlowStages | None = None
        self._commits_seen = 0

    def __enter__(self) -> PipelineRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop_streaming()
        self.frames.close()

    def run_once(self, *, gold: bool = True) -> RunSummary:
        """Bring every table up to date with the log. A stage that fails temporarily is run again."""
        began_s = time.monotonic()
        changed = 0
        self._until_done("frames", self._frames_once)
        self._until_done("signals", lambda: self.signals.run())
        if gold:
            outcomes = self._until_done("gold", lambda: run_gold(self._spark, gold_options(self.settings)))
            changed = sum(one.is_new for one in outcomes)
        return RunSummary(
            frames=self.frames.progress.frames,
            frames_bytes=self.frames.progress.bytes,
            signals=self.signals.progress.rows,
            gold_tables_changed=changed,
            seconds=time.monotonic() - began_s,
        )

    def run_until(self, stop: threading.Event, *, on_look: Callable[[PipelineRunner], None] | None = None) -> None:
        """Run until `stop` is set, or raise when a stage cannot go on (JR2)."""
        self._slow = slow = self._slow_stages()
        slow.start()
        try:
            while not stop.is_set():
                slow.raise_failure()
                self._keep_streaming()
                self._attempt("signals", lambda: self.signals.run(), news=self._has_new_frames())
                if on_look is not None:
                    on_look(self)
                stop.wait(_LOOK_S)
        finally:
            try:
                self._stop_streaming()
            finally:
                slow.stop()
        slow.raise_failure()
        self.close()

    # --- stages --------------------------------------------------------------------------------------

    def _slow_stages(self) -> SlowStages:
        settings, context = self.settings, self._spark.sparkContext
        wanted: list[tuple[str, Callable[[], object], int | None, int]] = [
            ("gold", self._gold_while_filled, settings.gold_every_ms, 0),
            ("optimize", lambda: keep_fit(settings), settings.optimize_every_ms, settings.optimize_every_ms or 0),
        ]
        stages = [
            SlowStage(work=work, every_ms=every_ms, supervisor=self._supervisors[name], due_ms=now_ms() + first_ms)
            for name, work, every_ms, first_ms in wanted
            if every_ms is not None
        ]

        # A job group of its own for every run: once it is cancelled, jobs of that name are refused for good.
        group = f"{_SLOW_POOL}-{uuid.uuid4().hex[:8]}"

        def begin() -> None:
            # A property of the calling thread. Pools count only where Spark uses fair scheduling.
            context.setJobGroup(group, "gold tables", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", _SLOW_POOL)

        def give_up() -> None:
            # Not cancelJobGroup, which PySpark has: between two jobs it would cancel nothing.
            context._jsc.sc().cancelJobGroupAndFutureJobs(group)

        return SlowStages(stages, begin=begin, give_up=give_up)

    def _gold_while_filled(self) -> None:
        """Gold over tables that a stream fills: it opens each file several times, so small ones are joined first."""
        settings, slow = self.settings, self._slow
        assert slow is not None, "its thread calls this"
        for layout in (FRAMES_LAYOUT, SIGNALS_LAYOUT):
            table = open_table(settings.tables, layout, table_format=settings.table_format)
            if table.exists():
                gather(table)
                slow.breathe()
        run_gold(self._spark, gold_options(settings), breathe=slow.breathe)

    def _stop_streaming(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def _frames_once(self) -> None:
        query = self.frames.start()
        try:
            query.awaitTermination()
        except Exception:
            query.stop()
            raise
        # Spark's own thread may die of a failed batch without notifying its waiters.
        if self.frames.failure is not None:
            raise self.frames.failure

    def _keep_streaming(self) -> None:
        """Keep the stream running: start it, notice that it died, start it again when it is time."""
        supervisor = self._supervisors["frames"]
        query = self._query
        if query is not None and not query.isActive:
            self._query = None
            error = query.exception() or RuntimeError("the stream ended by itself")
            supervisor.failed(failure_of(self.frames.failure, error), now_ms())
        elif query is not None and self.frames.progress.commits > self._commits_seen:
            supervisor.succeeded()
        if self._query is None and now_ms() >= supervisor.due_ms:
            try:
                self._query = self.frames.start(interval_s=self.settings.trigger_ms / 1000)
            except Exception as error:
                supervisor.failed(failure_of(error), now_ms())

    def _has_new_frames(self) -> bool:
        """Whether the stream has committed since decoding last looked, or decoding failed and is due again."""
        commits = self.frames.progress.commits
        is_new = commits > self._commits_seen or not self.signals.progress.steps
        self._commits_seen = commits
        return is_new or self._supervisors["signals"].failures > 0

    def _attempt(self, stage: str, work: Callable[[], Any], *, news: bool = True) -> None:
        """Do a stage's work if it is due; temporary failures are left for later."""
        supervisor = self._supervisors[stage]
        if not news or now_ms() < supervisor.due_ms:
            return
        try:
            work()
        except (StageFailed, StageRefused):
            raise
        except Exception as error:
            supervisor.failed(failure_of(error), now_ms())
        else:
            supervisor.succeeded()

    def _until_done(self, stage: str, work: Callable[[], Any]) -> Any:
        supervisor = self._supervisors[stage]
        while True:
            try:
                result = work()
            except Exception as error:
                behind = self.frames.failure if stage == "frames" else None
                due_ms = supervisor.failed(failure_of(behind, error), now_ms())
                time.sleep(max(0, due_ms - now_ms()) / 1000)
            else:
                supervisor.succeeded()
                return result

    @property
    def gold_runs(self) -> int:
        """The progress of `run_until` so far."""
        return 0 if self._slow is None else self._slow.runs("gold")

    def failures(self) -> dict[str, str]:
        """The stages that wait to be started again, with the reason."""
        return {
            stage: one.last.message for stage, one in self._supervisors.items() if one.failures and one.last is not None
        }


# --- without Spark -----------------------------------------------------------------------------------


def tables_of(settings: PipelineSettings) -> Iterator[Table]:
    """Every table that exists."""
    for layout in (*_LAYOUTS, *(gold.table for gold in GOLD_LAYOUTS)):
        table = open_table(settings.tables, layout, table_format=settings.table_format)
        if table.exists():
            yield table


def keep_fit(settings: PipelineSettings) -> dict[str, tuple[Optimized, int]]:
    """Rewrite small files and remove orphans, table by table: what was rewritten, how many files were removed."""
    return {
        table.layout.name: (
            optimize(table, target_bytes=settings.file_bytes),
            len(vacuum(table, keep_hours=settings.keep_files_ms / _MS_PER_HOUR)),
        )
        for table in tables_of(settings)
    }


def gold_options(settings: PipelineSettings) -> GoldOptions:
    return GoldOptions(tables=settings.tables, pipeline=settings.name, table_format=settings.table_format)


def pipeline_status(settings: PipelineSettings) -> dict[str, Any]:
    """The status of the pipeline, by stage; reads the log and the tables, and needs no Spark."""
    frames = open_table(settings.tables, FRAMES_LAYOUT, table_format=settings.table_format)
    signals = open_table(settings.tables, SIGNALS_LAYOUT, table_format=settings.table_format)
    logs = settings.frames.address.open()
    try:
        found = logs.channels(settings.frames.channels)
        positions = frames.positions(settings.name, [ends.channel_id for ends in found]) if frames.exists() else {}
        lags = lag_of(found, positions, logs)
    finally:
        logs.close()
    consumed = signals.consumed(settings.name, FRAMES_LAYOUT.name) if signals.exists() else None
    frames_version = frames.version() if frames.exists() else None
    return {
        "pipeline": settings.name,
        "frames": {
            **_table_status(frames),
            "lag_records": sum(lags.values()),
            "channels": {
                ends.channel: {
                    "channel_id": ends.channel_id,
                    "next_offset": positions[ends.channel_id].next_offset if ends.channel_id in positions else None,
                    "committed_end": ends.committed_end,
                    "log_start": ends.log_start,
                    "lag_records": lags[ends.channel],
                }
                for ends in found
            },
        },
        "signals": {
            **_table_status(signals),
            "consumed_version": consumed,
            "is_current": frames_version is None or _nothing_after(frames, consumed),
        },
        "gold": {
            name: {"consumed_version": stored, "source_version": version}
            for name, (stored, version) in gold_status(gold_options(settings)).items()
        },
    }


def _nothing_after(table: Table, version: int | None) -> bool:
    """Whether no rows came after this version; rewrites make versions too."""
    news = table.news_since(version)
    return not news.added and news.removed_at is None


def _table_status(table: Table) -> dict[str, Any]:
    if not table.exists():
        return {"version": None, "rows": 0, "files": 0, "bytes": 0, "committed_at": None}
    files = table.files()
    committed_at = table.committed_at()
    return {
        "version": table.version(),
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "committed_at": None if committed_at is None else committed_at.isoformat(),
    }
