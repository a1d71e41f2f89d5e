"""Building a table anew: `frames` and `lost_ranges` from the log, the others from the table below.

A table is emptied, and the place where it goes on is set back, in one transaction (`Table.commit_reset`); the next run
fills it again by the usual rules. So a rebuild may be killed anywhere and be repeated at any time: before the
transaction nothing has happened, after it the table's own position is where any run goes on. Tables above notice that
rows were taken away and follow (SJ4, GJ3). Readers see fewer rows until it is filled.

A table with a feature or with columns that Tidelog does not handle (T8) cannot be emptied. It is set aside, whole, and
made again.

What a caller must keep: no other driver of this pipeline runs. One that does is refused by the positions (T3).

RB1  Rows that cannot be had again are not removed: rows below the log's start, and of channels that the log does not
     have. They stay only if the caller says so, by `origin`.
RB2  Changes of other writers in the table below are accepted only if the caller names that table as `origin`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from tidelog.blocks.header import BlockKind
from tidelog.errors import ForeignChange, RebuildRefused, TableDiffers, TableUnsupported
from tidelog.pipeline.gold.gold_job import gold_sources
from tidelog.pipeline.jobs.cursors import cursor_name
from tidelog.pipeline.jobs.lost_ranges import ControlWatch, LostRanges, SaidRange
from tidelog.pipeline.jobs.signals_job import empty_signals
from tidelog.pipeline.settings import PipelineSettings
from tidelog.pipeline.sources.logs import SKIP, BlockFilter, ChannelEnds, Logs, Piece
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import (
    CLOCK_SHIFTS_LAYOUT,
    DEVICES_LAYOUT,
    FRAMES_LAYOUT,
    LOST_RANGES_LAYOUT,
    SIGNALS_LAYOUT,
    UNDECODED_LAYOUT,
)
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.reading import file_batches, file_rows
from tidelog.pipeline.tables.table import DataFile, Position, Table, TableLayout
from tidelog.pki.files import translated

EARLIEST: Final = "earliest"
_CONTROL: Final = BlockFilter(kinds=frozenset({int(BlockKind.CONTROL)}))
_DECODED: Final = (SIGNALS_LAYOUT, UNDECODED_LAYOUT, DEVICES_LAYOUT, CLOCK_SHIFTS_LAYOUT)


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """What was emptied. The next run fills it."""

    tables: list[str]
    accepted: list[str] = field(default_factory=list)
    """Tables whose changes by other writers were accepted."""
    set_aside: dict[str, str] = field(default_factory=dict)
    """By table: where its old content is."""
    kept_rows: dict[str, int] = field(default_factory=dict)
    """By channel: rows of `frames` that stayed as they are."""


def rebuild(settings: PipelineSettings, name: str, origin: str | None = None) -> Rebuilt:
    """Empty the table of this name and whatever is made together with it. `origin` is the table below, to accept the
    changes of other writers in it; for `frames` an offset, `{"channel": offset}`, or "earliest": from there on."""
    if name == FRAMES_LAYOUT.name:
        return _rebuild_frames(settings, origin)
    if name == LOST_RANGES_LAYOUT.name:
        _require_no(origin, name, "is built from the log alone")
        return _rebuild_lost_ranges(settings)
    done = Rebuilt(tables=[])
    if name in {layout.name for layout in _DECODED}:
        _take_below(settings, name, [FRAMES_LAYOUT], origin, done)
        for layout in _DECODED:
            _usable(settings, layout, done)
        empty_signals(settings.signals)
        done.tables = [layout.name for layout in _DECODED]
        return done
    known = gold_sources()
    if name not in known:
        names = [FRAMES_LAYOUT.name, LOST_RANGES_LAYOUT.name, *(one.name for one in _DECODED), *known]
        raise RebuildRefused(table=name, problem=f"there is no such table; choose one of {', '.join(names)}")
    layout, sources, others = known[name]
    _take_below(settings, name, [*sources, *others], origin, done)
    table = _usable(settings, layout, done)
    table.commit_reset(settings.name, upstreams=[source.name for source in sources])
    done.tables = [name]
    return done


def _require_no(origin: str | None, name: str, why: str) -> None:
    if origin is not None:
        raise RebuildRefused(table=name, problem=f"it {why}, not from {origin!r}; leave -from out")


def _open(settings: PipelineSettings, layout: TableLayout) -> Table:
    return open_table(settings.tables, layout, table_format=settings.table_format)


def _take_below(
    settings: PipelineSettings, name: str, below: Sequence[TableLayout], origin: str | None, done: Rebuilt
) -> None:
    """The tables below must be whole; the one that is named may have been changed by others (RB2)."""
    names = [layout.name for layout in below]
    if origin is not None and origin not in names:
        raise RebuildRefused(table=name, problem=f"it is built from {' and '.join(names)}, not from {origin!r}")
    for layout in below:
        table = _open(settings, layout)
        if not table.exists():
            continue
        try:
            table.version()
        except ForeignChange:
            if layout.name != origin:
                raise
            table.accept()
            done.accepted.append(layout.name)


def _usable(settings: PipelineSettings, layout: TableLayout, done: Rebuilt) -> Table:
    """The table, made again if it was set aside."""
    table = _open(settings, layout)
    try:
        if table.exists():
            table.unguarded_files()
            return table
    except (TableUnsupported, TableDiffers):
        done.set_aside[layout.name] = table.set_aside()
        table = _open(settings, layout)
    table.create()
    return table


# --- from the log ------------------------------------------------------------------------------------


def _rebuild_frames(settings: PipelineSettings, origin: str | None) -> Rebuilt:
    options, done = settings.frames, Rebuilt(tables=[FRAMES_LAYOUT.name])
    logs = options.address.open()
    try:
        found = logs.channels(options.channels)
        starts = _starts(found, origin)
        table = _open(settings, FRAMES_LAYOUT)
        files = _held(table, found, origin)
        if files is None:
            table = _usable(settings, FRAMES_LAYOUT, done)
            empty_signals(settings.signals)  # its steps are of the table that was set aside
            files = []
        kept, fresh = _cut(table, files, starts, done)
        # Before the transaction: with a checkpoint that is ahead, a run without new records would find nothing to do.
        _remove_checkpoint(Path(options.checkpoint))
        if options.keep_cursor:
            logs.set_cursors(cursor_name(options.pipeline), starts)  # the log keeps what is about to be read again
        table.commit_reset(options.pipeline, positions=_positions(found, starts), files=fresh, kept=kept)
    finally:
        logs.close()
    return done


def _starts(found: Sequence[ChannelEnds], origin: str | None) -> dict[str, int]:
    """The first offset to read again, by channel; rows below the log's start cannot be had again."""
    wanted = {ends.channel: 0 for ends in found}
    if origin is not None and origin != EARLIEST:
        wanted = _wanted(origin, [ends.channel for ends in found])
    return {
        ends.channel: max(ends.log_start, min(wanted[ends.channel], ends.committed_end))
        for ends in found
        if ends.channel in wanted
    }


def _wanted(origin: str, channels: Sequence[str]) -> dict[str, int]:
    try:
        given = json.loads(origin)
    except ValueError:
        given = None
    if isinstance(given, int) and given >= 0:
        return dict.fromkeys(channels, given)
    if isinstance(given, dict) and all(isinstance(one, int) and one >= 0 for one in given.values()):
        unknown = sorted(set(given) - set(channels))
        if not unknown:
            return given
        raise RebuildRefused(table=FRAMES_LAYOUT.name, problem=f"the log has no channel {unknown[0]!r}")
    problem = f'-from {origin!r} is no position of the log; give "earliest", an offset, or {{"channel": offset}}'
    raise RebuildRefused(table=FRAMES_LAYOUT.name, problem=problem)


def _held(table: Table, found: Sequence[ChannelEnds], origin: str | None) -> list[DataFile] | None:
    """The live files, if the table can be used; without an origin the log must have all of their rows (RB1)."""
    log_starts = {ends.channel: ends.log_start for ends in found}
    try:
        files = table.unguarded_files() if table.exists() else []
    except (TableUnsupported, TableDiffers):
        trimmed = sorted(channel for channel, start in log_starts.items() if start)
        if trimmed and origin is None:
            problem = (
                f"the log of {trimmed[0]!r} begins at offset {log_starts[trimmed[0]]}, and the present table can "
                f"only be set aside as a whole; give -from {EARLIEST} to have only what the log holds"
            )
            raise RebuildRefused(table=table.layout.name, problem=problem) from None
        return None
    if origin is None:
        for file in files:
            channel = _channel(file)
            start = log_starts.get(channel)
            if start is None:
                problem = f"it has rows of channel {channel!r}, which the log does not have"
            elif start and _bounds(table, file)[0] < start:
                problem = f"it has rows of {channel!r} from before offset {start}, where the log begins"
            else:
                continue
            problem += f"; give -from {EARLIEST} to keep such rows as they are and read the others again"
            raise RebuildRefused(table=table.layout.name, problem=problem)
    return files


def _cut(
    table: Table, files: Sequence[DataFile], starts: Mapping[str, int], done: Rebuilt
) -> tuple[Collection[str], list[DataFile]]:
    """The files that stay, and new ones with the rows below the starts of files that do not."""
    kept: set[str] = set()
    columns = table.layout.schema if not files else table.columns(guarded=False)
    with PartitionedWriter(table.folder, replace(table.layout, schema=columns)) as writer:
        for file in files:
            channel = _channel(file)
            start = starts.get(channel)
            first, last = _bounds(table, file)
            if start is None or last < start:
                kept.add(file.path)
                done.kept_rows[channel] = done.kept_rows.get(channel, 0) + file.rows
            elif first < start:
                for batch in file_batches(table, file, schema=columns):
                    below = batch.filter(pc.less(batch.column("offset"), start))
                    writer.write(below, file.partition)
                    done.kept_rows[channel] = done.kept_rows.get(channel, 0) + below.num_rows
        return kept, writer.close()


def _channel(file: DataFile) -> str:
    return str(file.partition[FRAMES_LAYOUT.partition_by.index("channel")])


def _bounds(table: Table, file: DataFile) -> tuple[int, int]:
    """The smallest and the largest offset of a file; of the rows themselves, if the log does not have them."""
    low, high = file.minimums.get("offset"), file.maximums.get("offset")
    if low is None or high is None:
        found = pc.min_max(file_rows(table, file, ["offset"])["offset"]).as_py()
        low, high = found["min"], found["max"]
    return (-1, -1) if low is None or high is None else (int(low), int(high))


def _positions(found: Sequence[ChannelEnds], starts: Mapping[str, int]) -> dict[str, Position]:
    return {
        ends.channel: Position(
            channel_id=ends.channel_id, next_offset=starts[ends.channel], leader_epoch=ends.leader_epoch
        )
        for ends in found
        if ends.channel in starts
    }


def _remove_checkpoint(folder: Path) -> None:
    with translated("remove", folder):
        if folder.is_dir():
            shutil.rmtree(folder)


def _rebuild_lost_ranges(settings: PipelineSettings) -> Rebuilt:
    options, done = settings.frames, Rebuilt(tables=[LOST_RANGES_LAYOUT.name])
    logs = options.address.open()
    try:
        # All that the log declares, before anything is removed. Fold snapshots repeat what was trimmed (F3).
        found = logs.channels(options.channels)
        said = [one for ends in found for one in _said(logs, ends, options.on_damaged)]
    finally:
        logs.close()
    _usable(settings, LOST_RANGES_LAYOUT, done)
    lost = LostRanges(options.tables, pipeline=options.pipeline, table_format=options.table_format)
    lost.replace([ends.channel for ends in found], said)
    return done


def _said(logs: Logs, ends: ChannelEnds, on_damaged: str) -> list[SaidRange]:
    piece = Piece(
        channel=ends.channel,
        channel_id=ends.channel_id,
        leader_epoch=ends.leader_epoch,
        start=ends.log_start,
        end=ends.committed_end,
    )
    control = ControlWatch(ends.channel)
    for _ in control.watched(logs.blocks(piece, wanted=_CONTROL, on_trimmed=SKIP, on_damaged=on_damaged)):
        pass
    return control.said()
