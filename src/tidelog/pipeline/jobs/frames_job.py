"""Channels into the table `frames`: Spark plans, retries and triggers; the table records what is done.

A stream of descriptors gives exact ranges of offsets. The driver distributes them to tasks, each task reads, checks and
writes its own files, and one transaction of the table adds them together with the next offset of each channel. The
bytes never pass through the JVM or the driver.

Spark's checkpoint is a convenience. A batch that is run again, by this driver or another one, is first reduced to what
the table lacks, so it writes only missing rows. Without a checkpoint the stream begins at the table's position.

What a caller must keep: one checkpoint folder per table and pipeline, on a file system that driver and tasks share, as
the tables' folder is.

FJ1  A record is in the table once, whatever failed and was run again (T1 to T4).
FJ2  The named cursor of a channel moves only after the table has committed what is below it (R12, P1).
FJ3  A run that could lose or duplicate records is refused before anything is read: see `require_fitting`.
FJ4  A few control records make no version: moving a cursor writes one into the log, which would cause a version,
     another move of the cursor, and so on for ever. Lost ranges in them are kept all the same (JLR1).
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.errors import (
    ChannelRecreated,
    ChannelTaken,
    CommittedLost,
    HistoryRewritten,
    SourceChanged,
)
from tidelog.pipeline.jobs.checkpoint import batch_offsets, require_checkpoint
from tidelog.pipeline.jobs.cursors import cursor_name
from tidelog.pipeline.jobs.frames_tasks import FramesOrder, PiecesWritten, write_pieces
from tidelog.pipeline.jobs.lost_ranges import LostRanges
from tidelog.pipeline.jobs.task_runs import carried_out, workplace_of
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import FAIL, FRAME_KINDS, SKIP, BlockFilter, ChannelEnds, Logs, Piece, trimmed
from tidelog.pipeline.sources.planning import pieces_of_batch
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.table import DataFile, OffsetRange, Position, RangeFiles, Table, text_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ACCEPT: Final = "accept"
_ASKED_AT_ONCE: Final = 8
_TASK_RECORDS_MIN: Final = 250_000
_FRAMELESS_MIN: Final = 1_000
"""How many records without frames make a version: a channel of messages moves on in such steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesOptions:
    """The sources and the target of the job."""

    pipeline: str = "main"
    address: LogsAddress
    channels: tuple[str, ...] = ("*",)
    tables: str
    table_format: str = DELTA
    checkpoint: str
    on_trimmed: str = FAIL
    on_damaged: str = FAIL
    on_recreated: str = FAIL
    batch_records_max: int = 20_000_000
    """The most records of one batch: the bound of what a crash costs and of one transaction."""
    task_records_max: int = 2_000_000
    """Records of one task."""
    driver_records_max: int | None = None
    """Batches up to this many records are written by the driver itself, without a job; None: as `task_runs` says."""
    keep_cursor: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesProgress:
    """The progress of this driver since it started."""

    batches: int = 0
    commits: int = 0
    frames: int = 0
    bytes: int = 0
    version: int = -1
    committed_at_s: float | None = None
    cursor_problem: str = ""
    """Why the log's cursor could not be moved: nothing is lost, the log only keeps more than needed."""


class FramesJob:
    """One driver of `frames`. `prepare` first, then `start`."""

    def __init__(self, spark: SparkSession, options: FramesOptions) -> None:
        self._spark = spark
        self.options = options = replace(options, checkpoint=local_path(options.checkpoint, name="checkpoint"))
        self.table: Table = open_table(options.tables, FRAMES_LAYOUT, table_format=options.table_format)
        self.lost = LostRanges(options.tables, pipeline=options.pipeline, table_format=options.table_format)
        self._logs: Logs | None = None
        self.progress = FramesProgress()
        self.failure: BaseException | None = None
        """The exception that ended the last batch: Spark passes on only its text."""

    def prepare(self) -> dict[str, int]:
        """Make the table, check that everything fits, set the cursors; returns the offsets to begin with (FJ3)."""
        self.table.create()
        logs = self._open()
        found = logs.channels(self.options.channels)
        require_cluster(self.table, self.options.pipeline, logs.identity)
        positions = self.table.positions(self.options.pipeline, [ends.channel_id for ends in found])
        for ends in found:
            if self.table.owner_mark(ends.channel) not in (None, text_mark(self.options.pipeline)):
                raise ChannelTaken(channel=ends.channel, pipeline=self.options.pipeline, tables=str(self.table.folder))
            known = self.table.channel_id(self.options.pipeline, ends.channel)
            require_fitting(ends, positions.get(ends.channel_id), known, self.options)
        self._require_checkpoint(logs.identity)
        starts = {
            ends.channel: max(ends.log_start, positions[ends.channel_id].next_offset)
            if ends.channel_id in positions
            else ends.log_start
            for ends in found
        }
        self._move_cursors({ends.channel: starts[ends.channel] for ends in found if ends.channel_id not in positions})
        return starts

    def start(self, *, interval_s: float | None = None) -> StreamingQuery:
        """Start the stream: every `interval_s`, or once through all present records."""
        self.failure = None
        starts = self.prepare()
        reader = self._spark.readStream.format("tidelog")
        for name, value in source_options(self.options, starts).items():
            reader = reader.option(name, value)
        writer = (
            reader.load()
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", self.options.checkpoint)
            # A session takes a name once, and two drivers of one pipeline may run in one session.
            .queryName(f"{self.options.pipeline}-frames-{uuid.uuid4().hex[:8]}")
        )
        if interval_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds").start()

    def lag_records(self) -> dict[str, int]:
        """Committed records of each channel that the table does not hold yet."""
        logs = self._open()
        found = logs.channels(self.options.channels)
        return lag_of(found, self.table.positions(self.options.pipeline, [ends.channel_id for ends in found]), logs)

    def close(self) -> None:
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    # --- one batch -----------------------------------------------------------------------------------

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self.commit_batch(self._pieces(frame, batch_id))
        except BaseException as error:
            self.failure = error
            raise

    def _pieces(self, frame: DataFrame, batch_id: int) -> list[Piece]:
        """The end of the batch. From the checkpoint if it is there, since a job would wait for a free core."""
        offsets = batch_offsets(Path(self.options.checkpoint), batch_id)
        if offsets is None:
            return [Piece(**row.asDict()) for row in frame.collect()]
        return pieces_of_batch(*offsets)

    def commit_batch(self, pieces: Sequence[Piece]) -> None:
        """Write the rows of these pieces that the table lacks and commit them; may be repeated at any time."""
        options = self.options
        stored = self.table.positions(options.pipeline, {piece.channel_id for piece in pieces})
        left, ranges = cut(pieces, stored)
        files: dict[int, list[DataFile]] = defaultdict(list)
        results = self._written(left)
        for written in (one for result in results for one in result.files):
            files[written.channel_id].append(written.file)
        self.lost.add([one for result in results for one in result.said])
        parts = [
            RangeFiles(range=one, files=tuple(files[one.channel_id]))
            for one in ranges
            if files[one.channel_id] or one.end - one.start >= _FRAMELESS_MIN
        ]
        self.progress = replace(self.progress, batches=self.progress.batches + 1)
        if not parts:
            return
        commit = self.table.commit_append(options.pipeline, parts, cluster=self._open().identity)
        if commit.is_new:
            done = self.progress
            self.progress = replace(
                done,
                commits=done.commits + 1,
                frames=done.frames + commit.rows,
                bytes=done.bytes + commit.bytes,
                version=commit.version,
                committed_at_s=time.time(),
            )
        self._move_cursors({one.channel: one.end for one in commit.ranges})

    def _written(self, pieces: Sequence[Piece]) -> list[PiecesWritten]:
        """The results of the tasks; only of attempts that won."""
        records = sum(piece.end - piece.start for piece in pieces)
        workplace = workplace_of(
            self._spark,
            records=records,
            driver_records_max=self.options.driver_records_max,
            # Channels of a cluster are read concurrently; the files of a folder are for one thread.
            at_once=_ASKED_AT_ONCE if self.options.address.cluster else 1,
        )
        orders = [
            FramesOrder(
                address=self.options.address,
                pieces=tuple(dealt),
                folder=str(self.table.folder),
                on_trimmed=self.options.on_trimmed,
                on_damaged=self.options.on_damaged,
            )
            for dealt in deal(pieces, tasks=workplace.at_once, records_max=self.options.task_records_max)
        ]
        return carried_out(workplace, orders, write_pieces, folder=self.table.folder)

    def _move_cursors(self, offsets: Mapping[str, int]) -> None:
        """FJ2. A cursor that stays behind costs the log space, never data, so the next commit tries again."""
        if not self.options.keep_cursor:
            return
        problems = self._open().set_cursors(cursor_name(self.options.pipeline), offsets)
        said = [f"{channel}: {error}" for channel, error in problems.items()]
        self.progress = replace(self.progress, cursor_problem=said[-1] if said else "")

    def _open(self) -> Logs:
        if self._logs is None:
            self._logs = self.options.address.open()
        return self._logs

    def _require_checkpoint(self, cluster: str) -> None:
        """Spark would use a checkpoint of something else, and records would be missing."""
        identity = {"pipeline": self.options.pipeline, "table": self.table.identity(), "cluster": cluster}
        require_checkpoint(Path(self.options.checkpoint), identity)


def source_options(options: FramesOptions, starts: Mapping[str, int]) -> dict[str, str]:
    """The stream of descriptors, with the options of `format("tidelog")`."""
    address = options.address
    said = {
        "cluster": ",".join(address.cluster),
        "path": address.path,
        "certificate": address.certificate,
        "key": address.key,
        "authority": address.authority,
        "insecure": "true" if address.insecure else "",
        "channels": ",".join(options.channels),
        "starting": json.dumps(starts) if starts else "earliest",
        "descriptors": "true",
        "split_records": str(options.task_records_max),
        "on_trimmed": options.on_trimmed,
        "on_damaged": options.on_damaged,
        "max_records_per_trigger": str(options.batch_records_max),
    }
    return {name: value for name, value in said.items() if value}


# --- what must fit -----------------------------------------------------------------------------------


def require_fitting(ends: ChannelEnds, position: Position | None, known_id: int | None, options: FramesOptions) -> None:
    """Refuse a channel whose log is not the one that the table was filled from (FJ3)."""
    if known_id is not None and known_id != ends.channel_id and options.on_recreated != ACCEPT:
        error = ChannelRecreated(channel=ends.channel, expected_id=known_id, found_id=ends.channel_id)
        error.add_note(
            "the table holds rows of the old channel; on-recreated = accept adds those of the new one, "
            "another pipeline.tables begins afresh"
        )
        raise error
    if position is None:
        return
    if ends.unclean_epoch > position.leader_epoch:
        raise HistoryRewritten(
            channel=ends.channel,
            offset=min(position.next_offset, ends.committed_end),
            leader_epoch=position.leader_epoch,
            found_epoch=ends.unclean_epoch,
        )
    if ends.committed_end < position.next_offset:
        raise CommittedLost(
            channel=ends.channel,
            offset=position.next_offset,
            committed_end=ends.committed_end,
            leader_epoch=ends.leader_epoch,
        )
    if position.next_offset < ends.log_start and options.on_trimmed != SKIP:
        raise trimmed(ends.channel, position.next_offset, ends.log_start)


def require_cluster(table: Table, pipeline: str, cluster: str) -> None:
    """Channel ids are small numbers that another cluster assigns too."""
    mark = table.cluster_mark(pipeline)
    if mark is not None and mark != (text_mark(cluster) if cluster else None):
        raise SourceChanged(
            problem=f"table {table.layout.name!r} in {table.folder} was filled from another cluster than "
            f"{cluster or 'a folder'}"
        )


# --- arithmetic --------------------------------------------------------------------------------------


def cut(pieces: Iterable[Piece], stored: Mapping[int, Position]) -> tuple[list[Piece], list[OffsetRange]]:
    """The parts to read of these pieces, and the resulting range of each channel.

    A channel is read from the table's position, whatever the checkpoint says: records in the table are left out, and
    records that it lacks are read although the checkpoint is ahead of it (FJ1).
    """
    left: list[Piece] = []
    ranges: dict[int, OffsetRange] = {}
    for piece in sorted(pieces, key=lambda piece: (piece.channel, piece.start)):
        position, known = stored.get(piece.channel_id), ranges.get(piece.channel_id)
        assert known is None or known.end == piece.start, "the pieces of a channel follow each other"
        start = piece.start if position is None or known is not None else position.next_offset
        if start >= piece.end:
            continue
        left.append(replace(piece, start=start))
        ranges[piece.channel_id] = OffsetRange(
            channel=piece.channel,
            channel_id=piece.channel_id,
            leader_epoch=piece.leader_epoch,
            start=start if known is None else known.start,
            end=piece.end,
        )
    return left, list(ranges.values())


def deal(pieces: Sequence[Piece], *, tasks: int, records_max: int) -> list[list[Piece]]:
    """The pieces of each task: about as many tasks as run at once, each with neighbours of one channel if it can.

    Fewer, larger tasks make fewer files, since every task leaves one per channel and day; so a piece is cut only where
    each part is worth a task.
    """
    total = sum(piece.end - piece.start for piece in pieces)
    share = max(1, min(records_max, -(-total // max(1, tasks))))
    dealt: list[list[Piece]] = []
    held = 0
    for piece in pieces:
        for part in _parts(piece, max(share, _TASK_RECORDS_MIN)):
            size = part.end - part.start
            if not dealt or held + size // 2 > share:
                dealt.append([])
                held = 0
            dealt[-1].append(part)
            held += size
    return dealt


def _parts(piece: Piece, records_max: int) -> list[Piece]:
    return [
        replace(piece, start=start, end=min(start + records_max, piece.end))
        for start in range(piece.start, piece.end, records_max)
    ]


def lag_of(found: Iterable[ChannelEnds], positions: Mapping[int, Position], logs: Logs) -> dict[str, int]:
    """Committed records of each channel that the table does not hold; of a few, only those that are frames (FJ4)."""
    lags = {}
    for ends in found:
        position = positions.get(ends.channel_id)
        start = ends.log_start if position is None else max(ends.log_start, position.next_offset)
        lag = max(0, ends.committed_end - start)
        if 0 < lag < _FRAMELESS_MIN:
            piece = Piece(
                channel=ends.channel,
                channel_id=ends.channel_id,
                leader_epoch=ends.leader_epoch,
                start=start,
                end=ends.committed_end,
            )
            lag = _frames_in(logs, piece)
        lags[ends.channel] = lag
    return lags


def _frames_in(logs: Logs, piece: Piece) -> int:
    wanted = BlockFilter(kinds=FRAME_KINDS)
    blocks = (block for run in logs.blocks(piece, wanted=wanted, on_trimmed=SKIP, on_damaged=SKIP) for block in run)
    return sum(min(block.end, piece.end) - max(block.leader.base_offset, piece.start) for block in blocks)
