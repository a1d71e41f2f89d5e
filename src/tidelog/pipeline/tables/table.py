"""A table whose transactions store the pipeline's position: the basis of exactly-once.

Spark's checkpoint is a convenience; the table is authoritative. Every transaction stores, beside its files, the
pipeline's position: the next offset of a channel (`frames`), or the version of the source table that it has consumed
(`signals`, gold). A commit is compared with the stored position, so a driver killed anywhere, a lost checkpoint and two
drivers at once all end with each record in the table once.

What a caller must keep: files are complete and on disk before a commit names them, and no file is named by two commits.
Files of failed attempts belong to no version: `vacuum` removes them once they are old.

T1  A range [start, end) is committed if and only if the stored next offset equals `start`.
T2  Ranges that are already stored are skipped silently: a commit without anything new makes no version.
T3  Any other difference between the two is an error; nothing is written.
T4  A transaction that lost the race for its version is checked again against the winner's position, never repeated
    blindly.
T5  Rewriting files (`optimize`) changes neither rows nor positions, and followers do not see it as new rows.
T6  A transaction names only files that are there, in the size they were written, on the file system of the driver.
T7  A change of rows that no pipeline made is neither taken for news nor undone: every call refuses the table, until it
    is built anew (`commit_reset`) or the change is accepted (`accept`).
T8  A table with a feature of its format, or with columns, that Tidelog does not handle is neither read nor written.
    Columns that users add are left alone if they may be null.
T9  A layout only gains columns, which may be null. A table of an older layout is readable as it is, and gains them
    before anything is written; one of a newer layout is refused.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tidelog.errors import CheckpointAhead, PositionMoved

Partition = tuple[str | None, ...]
"""The values of the partition columns, in the order of `TableLayout.partition_by`, as text; None for null."""

_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout of a table: its columns, how it is split into folders, and how its columns are written."""

    name: str
    schema: pa.Schema
    """Including the partition columns. Files hold them too, so that a plain list of files is readable by any reader."""
    partition_by: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    """Numbers that mostly grow from row to row: stored as differences."""
    plain: tuple[str, ...] = ()
    """Columns with many distinct values, where a dictionary would only cost."""
    version: int = 1
    """Raised by one with every change that adds columns to a table that exists in the field (T9)."""

    @property
    def bounded(self) -> tuple[str, ...]:
        """Columns whose smallest and largest value go into the table's log, so that readers skip files.

        All or none: to some readers (pyarrow datasets of `deltalake`) a file with bounds for some columns has no rows
        for a filter on another. Payloads have no useful bounds, and those readers ask for none.
        """
        return tuple(
            one.name for one in self.schema if one.name not in self.partition_by and not pa.types.is_binary(one.type)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file of a table. The path is relative to the table's folder and needs no escaping."""

    path: str
    bytes: int
    rows: int
    partition: Partition = ()
    minimums: Mapping[str, Any] = field(default_factory=dict)
    maximums: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """A half-open range of offsets of one channel, read under one leader epoch."""

    channel: str
    channel_id: int
    leader_epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a pipeline in one channel."""

    channel_id: int
    next_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFiles:
    """All rows of one range: its files are committed together. A range of control records alone has none."""

    range: OffsetRange
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """From one version of the source table to a later one; `start` is None for a new follower."""

    upstream: str
    start: int | None
    end: int
    mark: int | None = None
    """`Table.mark_at` of the source table at `end`, which tells it from another one that comes into its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The result of a commit. `version` is the table's after it, whichever driver made it."""

    version: int
    ranges: tuple[OffsetRange, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0

    @property
    def is_new(self) -> bool:
        return bool(self.ranges or self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file with new rows, and the version that brought it."""

    version: int
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNews:
    """The changes of rows after a version."""

    added: list[AddedFile]
    removed_at: int | None = None
    """The last version that took rows away: what was built from them has to be built anew."""
    is_whole: bool = False
    """Whether `added` does not go back by versions: it lists the live files, all under the latest version."""


class Table(ABC):
    """One table in a folder. Not shared between threads; every call sees the latest version."""

    def __init__(self, folder: Path, layout: TableLayout) -> None:
        self.folder = folder
        self.layout = layout

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def create(self) -> None:
        """Create the table if it does not exist; refuse one with other columns."""

    @abstractmethod
    def columns(self, *, guarded: bool = True) -> pa.Schema:
        """The columns of the layout and behind them those that users have added; unguarded as `unguarded_files`."""

    @abstractmethod
    def identity(self) -> str:
        """Tells this table from another one created later in the same folder."""

    @abstractmethod
    def version(self) -> int:
        """The number of the latest transaction; only grows."""

    @abstractmethod
    def committed_at(self) -> datetime | None:
        """When the latest version was committed."""

    @abstractmethod
    def positions(self, pipeline: str, channel_ids: Iterable[int]) -> dict[int, Position]:
        """The positions of these channels; channels that the table does not know are left out."""

    @abstractmethod
    def channel_id(self, pipeline: str, channel: str) -> int | None:
        """The id the channel of this name had when its rows were last committed."""

    @abstractmethod
    def consumed(self, pipeline: str, upstream: str) -> int | None:
        """The version of the source table that is in this one."""

    @abstractmethod
    def consumed_mark(self, pipeline: str, upstream: str) -> int | None:
        """`mark_at` of the source table at that version, as it was then."""

    @abstractmethod
    def mark_at(self, version: int) -> int | None:
        """A number for this table and the commit of this version; None if that is no longer known."""

    @abstractmethod
    def cluster_mark(self, pipeline: str) -> int | None:
        """`text_mark` of the cluster of these channels: another one may use the same ids."""

    @abstractmethod
    def owner_mark(self, channel: str) -> int | None:
        """`text_mark` of the pipeline that adds this channel's rows; no other may."""

    @abstractmethod
    def commit_append(self, pipeline: str, parts: Sequence[RangeFiles], *, cluster: str = "") -> Commit:
        """Add the files of these ranges, all in one transaction (T1 to T4)."""

    @abstractmethod
    def commit_following(
        self,
        pipeline: str,
        steps: Sequence[TableStep],
        files: Sequence[DataFile],
        *,
        replaced: Collection[Partition] = (),
    ) -> Commit:
        """Add files and steps in one transaction; the present content of `replaced` partitions is removed.

        A step that is already stored makes the whole commit a no-op (T2): files and steps belong together.
        """

    @abstractmethod
    def commit_reset(
        self,
        pipeline: str,
        *,
        positions: Mapping[str, Position] | None = None,
        upstreams: Collection[str] = (),
        files: Sequence[DataFile] = (),
        kept: Collection[str] = (),
        generation: int | None = None,
    ) -> Commit:
        """Remove all live files but `kept`, add `files`, and set where the pipeline goes on: at these positions by
        channel, and at the beginning of the tables `upstreams`. The changes of other writers go with the files (T7).

        It begins the table's next generation, or this one; nothing happens if that has begun already.
        """

    @abstractmethod
    def generation(self, pipeline: str) -> int:
        """How often the table was emptied by `commit_reset`: equal for tables that are filled together."""

    @abstractmethod
    def accept(self) -> int:
        """Take the rows as they are, changes of other writers included (T7); the version from which on they count."""

    @abstractmethod
    def set_aside(self) -> str:
        """Take a table that cannot be used out of the way, so that `create` makes a new one; returns where it is."""

    @abstractmethod
    def files_at(self, version: int) -> list[DataFile]:
        """The files that were live at this version. Raises `HistoryGone` if that is no longer known."""

    @abstractmethod
    def unguarded_files(self) -> list[DataFile]:
        """The live files, also of a table whose rows another writer has changed: for building it anew."""

    @abstractmethod
    def files(self, partitions: Collection[Partition] | None = None) -> list[DataFile]:
        """The live files, of all partitions or of these."""

    @abstractmethod
    def news_since(self, version: int | None) -> TableNews:
        """Files with new rows that came after this version (None: from the beginning), in the order of their coming,
        and whether rows were taken away.

        Raises `HistoryGone` if the table's history no longer reaches back to there.
        """

    def added_since(self, version: int | None) -> list[AddedFile]:
        """The files with new rows alone."""
        return self.news_since(version).added

    @abstractmethod
    def commit_rewrite(self, taken: Sequence[DataFile], files: Sequence[DataFile]) -> bool:
        """Put `files` in the place of `taken`: the same rows, other files (T5). False if `taken` has changed since."""

    @abstractmethod
    def referenced(self, *, removed_after: datetime) -> set[str]:
        """Relative paths of everything a reader may still need: live files, and those removed after that time.

        Drops older versions where the format keeps them until told.
        """

    def hides_rows(self, file: DataFile) -> bool:
        """Whether some readers miss rows of the file for what the table's log says of it; `optimize` rewrites it."""
        return False

    def path_of(self, file: DataFile) -> Path:
        return self.folder / file.path


def text_mark(text: str) -> int:
    """A number for a cluster's identity or a pipeline's name: what is stored are numbers in some formats."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def partition_folder(partition: Partition) -> str:
    """A folder name per partition that needs no escaping anywhere; empty for a table without partitions.

    Not `column=value`: readers of plain file lists would take the value from the name, escaped as it is, and
    percent signs are read differently by different readers. The values are in the files and in the table's log.
    """
    return "/".join(_folder_name(value) for value in partition)


def _folder_name(value: str | None) -> str:
    if value is None:
        return "none"
    if _SAFE_NAME.fullmatch(value):
        return value
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", value)[:80].lstrip(".-_")
    return f"{plain}-{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def judge_ranges(
    parts: Sequence[RangeFiles], positions: Mapping[int, Position], *, table: str, started: bool
) -> list[RangeFiles]:
    """The parts that are new. Raises for the ones that fit neither (T1 to T3).

    `started` means that the caller has tried these ranges before and lost the race: a stored offset in the middle of a
    range then means that another driver is at work, which is temporary.
    """
    new = []
    for part in parts:
        stored = positions.get(part.range.channel_id)
        start, end = part.range.start, part.range.end
        if stored is None or stored.next_offset == start:
            new.append(part)
        elif stored.next_offset >= end:
            continue
        elif stored.next_offset > start or started:
            raise PositionMoved(
                table=table, channel=part.range.channel, stored=stored.next_offset, start=start, end=end
            )
        else:
            raise CheckpointAhead(table=table, channel=part.range.channel, stored=stored.next_offset, start=start)
    return new


def judge_steps(steps: Sequence[TableStep], consumed: Mapping[str, int | None], *, table: str) -> bool:
    """Whether the steps are still to be taken; all of them or none."""
    assert steps, "a commit that follows nothing"
    if all((stored := consumed[step.upstream]) is not None and stored >= step.end for step in steps):
        return False
    for step in steps:
        stored = consumed[step.upstream]
        if stored != step.start:
            raise PositionMoved(
                table=table,
                channel=step.upstream,
                stored=-1 if stored is None else stored,
                start=-1 if step.start is None else step.start,
                end=step.end,
            )
    return True
