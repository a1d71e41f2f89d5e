"""`frames` into `signals`, and beside it `undecoded`, `devices` and `clock_shifts`: a step follows new files, in tasks.

A step goes from the version of `frames` that is decoded to a later one. Its files are distributed by channel, a task
decodes each channel from its stored state, and four tables are committed, `signals` last: its stored version is the
position of the job. A step that failed half way is repeated from the same version to the same version, and skips the
tables that already have it.

SJ1  The rows of a step are in each table once, whatever failed and was run again (T1 to T4).
SJ2  A run without new frames commits nothing.
SJ3  Late frames only add rows: no row of `signals` is changed or removed.
SJ4  Where frames were taken away (`frames` was built anew, or a change of another writer was accepted), everything is
     decoded again from the frames that are there.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidelog.pipeline.jobs.signals_state import forget_states
from tidelog.pipeline.jobs.signals_tasks import ChannelFrames, SignalsOrder, SignalsWritten, write_signals
from tidelog.pipeline.jobs.task_runs import carried_out, workplace_of
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.following import require_same
from tidelog.pipeline.tables.layouts import (
    CLOCK_SHIFTS_LAYOUT,
    DEVICES_LAYOUT,
    FRAMES_LAYOUT,
    SIGNALS_LAYOUT,
    UNDECODED_LAYOUT,
)
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import AddedFile, DataFile, Table, TableNews, TableStep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPSTREAM: Final = FRAMES_LAYOUT.name
DEVICE_NEWS: Final = timedelta(seconds=60)
"""A device that was only heard again is written anew when its last entry in the table is this old."""
_LABELS: Final = ("manufacturer", "device_function", "model", "serial", "software")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsOptions:
    """The folder of the tables, and the size of one step."""

    pipeline: str = "main"
    tables: str
    table_format: str = DELTA
    step_frames_max: int = 20_000_000
    driver_frames_max: int | None = None
    """Steps up to this many frames are decoded by the driver itself, without a job; None: as `task_runs` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsProgress:
    """The progress of this driver since it started."""

    steps: int = 0
    frames: int = 0
    rows: int = 0
    bytes: int = 0
    version: int = -1
    committed_at_s: float | None = None


class SignalsJob:
    """One driver of `signals` and the three tables beside it."""

    def __init__(self, spark: SparkSession, options: SignalsOptions) -> None:
        self._spark = spark
        self.options = options
        tables, table_format = options.tables, options.table_format
        self.frames: Table = open_table(tables, FRAMES_LAYOUT, table_format=table_format)
        self.signals: Table = open_table(tables, SIGNALS_LAYOUT, table_format=table_format)
        self.undecoded: Table = open_table(tables, UNDECODED_LAYOUT, table_format=table_format)
        self.devices: Table = open_table(tables, DEVICES_LAYOUT, table_format=table_format)
        self.clocks: Table = open_table(tables, CLOCK_SHIFTS_LAYOUT, table_format=table_format)
        self.progress = SignalsProgress()

    def run(self) -> SignalsProgress:
        """Take steps until everything that `frames` holds now is decoded."""
        if not self.frames.exists():
            return self.progress
        for table in (self.signals, self.undecoded, self.devices, self.clocks):
            table.create()
        require_same(self.frames, self.signals, self.options.pipeline)
        _follow_generation(self.options.pipeline, self.signals, (self.undecoded, self.devices, self.clocks))
        while self._step():
            pass
        return self.progress

    def reset(self) -> None:
        """Empty the three tables, so that the next step decodes everything."""
        empty_signals(self.options)

    def _step(self) -> bool:
        """One step; False if there was nothing to do."""
        pipeline = self.options.pipeline
        start, beside, begun = self._reached()
        news = self.frames.news_since(start)
        if news.removed_at is not None and (start is not None or any(one < news.removed_at for one in begun)):
            self.reset()
            start, beside, begun = self._reached()
            news = self.frames.news_since(start)
        if start is None:
            forget_states(self.signals.folder, pipeline)  # of before the tables were emptied
        end, taken = self._taken(news, begun)
        if end is None:
            return False
        written = merged(self._decoded(taken, start, end))
        self._commit_beside(self.undecoded, beside[0], end, self._undecoded_files(written.undecoded))
        replaced, files = self._device_files(written.devices)
        self._commit_beside(self.devices, beside[1], end, files, replaced)
        self._commit_beside(self.clocks, beside[2], end, _written_rows(self.clocks, written.clocks))
        commit = self.signals.commit_following(
            pipeline,
            [TableStep(upstream=UPSTREAM, start=start, end=end, mark=self.frames.mark_at(end))],
            written.files,
        )
        done = self.progress
        self.progress = replace(
            done,
            steps=done.steps + 1,
            frames=done.frames + written.frames,
            rows=done.rows + commit.rows,
            bytes=done.bytes + commit.bytes,
            version=commit.version,
            committed_at_s=time.time(),
        )
        return True

    def _reached(self) -> tuple[int | None, list[int | None], list[int]]:
        """The version that is decoded, that of the tables beside, and the end of a step that failed half way: those
        that are committed first show it."""
        pipeline = self.options.pipeline
        start = self.signals.consumed(pipeline, UPSTREAM)
        beside = [table.consumed(pipeline, UPSTREAM) for table in (self.undecoded, self.devices, self.clocks)]
        return start, beside, [one for one in beside if one is not None and (start is None or one > start)]

    def _taken(self, news: TableNews, begun: Sequence[int]) -> tuple[int | None, list[DataFile]]:
        """The end of the next step and its files. A step that was begun is taken again to the same end."""
        if news.is_whole:
            # One step, however large: what came in which version is no longer known.
            end = max(begun) if begun else max((one.version for one in news.added), default=None)
            return end, [] if end is None else self.frames.files_at(end)
        end = max(begun) if begun else step_end(news.added, self.options.step_frames_max)
        return end, [] if end is None else [one.file for one in news.added if one.version <= end]

    def _commit_beside(
        self,
        table: Table,
        start: int | None,
        end: int,
        files: Sequence[DataFile],
        replaced: Iterable[tuple[str | None, ...]] = (),
    ) -> None:
        """A table beside `signals` commits the step only if it has rows: a version per step is enough."""
        if files and (start is None or start < end):
            step = TableStep(upstream=UPSTREAM, start=start, end=end)
            table.commit_following(self.options.pipeline, [step], files, replaced=set(replaced))

    def _decoded(self, files: Sequence[DataFile], start: int | None, end: int) -> list[SignalsWritten]:
        # One after the other: decoding is Python work alone, and threads would only slow the stream down.
        workplace = workplace_of(
            self._spark,
            records=sum(file.rows for file in files),
            driver_records_max=self.options.driver_frames_max,
            at_once=1,
        )
        orders = [
            SignalsOrder(
                pipeline=self.options.pipeline,
                channels=tuple(group),
                folder=str(self.signals.folder),
                start=start,
                end=end,
            )
            for group in deal_channels(self.frames, files, tasks=workplace.at_once)
        ]
        return carried_out(workplace, orders, write_signals, folder=self.signals.folder)

    # --- the tables beside -----------------------------------------------------------------------------

    def _undecoded_files(self, counts: Mapping[tuple[str, date, int, str], int]) -> list[DataFile]:
        rows = [
            {"channel": channel, "day": day, "pgn": pgn, "reason": reason, "frames": frames}
            for (channel, day, pgn, reason), frames in sorted(counts.items())
        ]
        return _written_rows(self.undecoded, rows)

    def _device_files(self, found: Sequence[dict[str, Any]]) -> tuple[set[tuple[str | None, ...]], list[DataFile]]:
        """Partitions of `devices` with new facts, and their files: everything known about those channels."""
        replaced: set[tuple[str | None, ...]] = set()
        rows: list[dict[str, Any]] = []
        by_channel: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in found:
            by_channel[row["channel"]].append(row)
        for channel, news in sorted(by_channel.items()):
            known = _rows_of(self.devices, (channel,))
            joined = join_devices([*known, *news])
            if is_device_news(join_devices(known), joined):
                replaced.add((channel,))
                rows += joined
        return replaced, _written_rows(self.devices, rows)


def empty_signals(options: SignalsOptions) -> None:
    """Empty the tables, so that the next run decodes everything. `signals` first: a run that finds the others in an
    earlier generation empties them too."""
    signals, *beside = (
        open_table(options.tables, layout, table_format=options.table_format)
        for layout in (SIGNALS_LAYOUT, UNDECODED_LAYOUT, DEVICES_LAYOUT, CLOCK_SHIFTS_LAYOUT)
    )
    if signals.exists():
        signals.commit_reset(options.pipeline, upstreams=[UPSTREAM])
        _follow_generation(options.pipeline, signals, [table for table in beside if table.exists()])


def _follow_generation(pipeline: str, signals: Table, beside: Iterable[Table]) -> None:
    generation = signals.generation(pipeline)
    for table in beside:
        if table.generation(pipeline) < generation:
            table.commit_reset(pipeline, upstreams=[UPSTREAM], generation=generation)


# --- arithmetic --------------------------------------------------------------------------------------


def step_end(added: Sequence[AddedFile], frames_max: int) -> int | None:
    """The last version whose frames still fit into one step; at least one version, None if there is none."""
    by_version: Counter[int] = Counter()
    for one in added:
        by_version[one.version] += one.file.rows
    end: int | None = None
    frames = 0
    for version, rows in sorted(by_version.items()):
        if end is not None and frames + rows > frames_max:
            break
        frames += rows
        end = version
    return end


def deal_channels(table: Table, files: Sequence[DataFile], *, tasks: int) -> list[list[ChannelFrames]]:
    """Channels for each task, so that tasks have about the same number of frames. A channel is never split."""
    place = table.layout.partition_by.index("channel")
    by_channel: dict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        by_channel[str(file.partition[place])].append(file)
    groups: list[list[ChannelFrames]] = [[] for _ in range(min(tasks, len(by_channel)))]
    loads = [0] * len(groups)
    for channel, held in sorted(by_channel.items(), key=lambda item: (-sum(file.rows for file in item[1]), item[0])):
        lightest = loads.index(min(loads))
        ordered = sorted(held, key=lambda file: (file.minimums.get("offset", 0), file.path))
        paths = tuple(str(table.path_of(file)) for file in ordered)
        groups[lightest].append(ChannelFrames(channel=channel, paths=paths))
        loads[lightest] += sum(file.rows for file in held)
    return groups


def merged(results: Sequence[SignalsWritten]) -> SignalsWritten:
    whole = SignalsWritten()
    for one in results:
        whole.files += one.files
        whole.undecoded.update(one.undecoded)
        whole.devices += one.devices
        whole.clocks += one.clocks
        whole.frames += one.frames
    return whole


def join_devices(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each NAME and source of a channel: first and last heard, and its latest product information."""
    joined: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = (row["name"], row["source"])
        known = joined.get(key)
        if known is None:
            joined[key] = dict(row)
            continue
        is_newer = row["last_time"] >= known["last_time"]
        for label in _LABELS:
            if row[label] is not None and (is_newer or known[label] is None):
                known[label] = row[label]
        known["first_time"] = min(known["first_time"], row["first_time"])
        known["last_time"] = max(known["last_time"], row["last_time"])
    return [joined[key] for key in sorted(joined)]


def is_device_news(known: Sequence[dict[str, Any]], joined: Sequence[dict[str, Any]]) -> bool:
    """Whether the rows have more than a known device that was heard again just now."""
    if len(known) != len(joined):
        return True
    for old, new in zip(known, joined, strict=True):
        if new["last_time"] - old["last_time"] >= DEVICE_NEWS:
            return True
        if {**new, "last_time": None} != {**old, "last_time": None}:
            return True
    return False


def _rows_of(table: Table, partition: tuple[str | None, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in table.files({partition}):
        rows += file_rows(table, file).to_pylist()
    return rows


def _written_rows(table: Table, rows: Sequence[dict[str, Any]]) -> list[DataFile]:
    if not rows:
        return []
    with PartitionedWriter(table.folder, table.layout) as writer:
        writer.write_split(pa.RecordBatch.from_pylist(list(rows), schema=table.layout.schema))
        return writer.close()
