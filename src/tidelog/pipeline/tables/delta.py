"""Tables in the Delta format, committed through `deltalake`: no JVM, no jars.

The positions of pipelines are stored as application transactions of the format itself, in the same commit as the files
(their names: `committing`). They survive checkpoints of the log and its clean-up.

The library's own retries are off: it would rebase a plain append onto the winner's commit, and only the caller that
knows the offsets can tell whether that duplicates rows (T4). Its compaction and vacuum are not used either: they lose
the column encodings, and its vacuum takes live files for orphans where a path has a percent sign (1.6.6).
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidelog.errors import DiskError, DiskFull, HistoryGone, TableDiffers
from tidelog.pipeline.tables.committing import Change, CommittedTable
from tidelog.pipeline.tables.parquet_files import make_folders, sync_path
from tidelog.pipeline.tables.table import (
    AddedFile,
    DataFile,
    Partition,
    TableLayout,
)
from tidelog.pki.files import translated

_LOG: Final = "_delta_log"
_LAST_CHECKPOINT: Final = "_last_checkpoint"
_COMMIT_NAME: Final = re.compile(r"(\d{20})\.json")
_CONFIGURATION: Final = {
    # Commits may come every two seconds; followers a week behind are built anew.
    "delta.logRetentionDuration": "interval 7 days",
    "delta.checkpointInterval": "100",
}
_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_NO_SPACE: Final = re.compile(rf"os error ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EFBIG})\b")
_TEXT_BOUND: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeltaFolder(CommittedTable[DeltaTable]):
    """See `Table` for what each call does."""

    def __init__(self, folder: Path, layout: TableLayout) -> None:
        super().__init__(folder, layout)
        self._table: DeltaTable | None = None
        self._positions_held: dict[str, int | None] = {}
        self._positions_version: int | None = None

    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(str(self.folder)))

    def create(self) -> None:
        if not self.exists():
            with translated("create", self.folder):
                make_folders(self.folder)
            try:
                DeltaTable.create(
                    str(self.folder),
                    self.layout.schema,
                    mode="error",
                    partition_by=list(self.layout.partition_by),
                    name=self.layout.name,
                    configuration=dict(_CONFIGURATION),
                )
            except DeltaError:
                if not self.exists():
                    raise
                # Another driver was faster: its table is used if it is the same, which is checked below.
            self._sync_commit(0)
            with translated("sync", self.folder):
                sync_path(self.folder)
        table = self._latest()
        found = pa.schema(table.schema().to_arrow())
        if [(one.name, one.type) for one in found] != [(one.name, one.type) for one in self.layout.schema]:
            raise TableDiffers(folder=str(self.folder), problem=f"its columns are {', '.join(found.names)}")
        if tuple(table.metadata().partition_columns) != self.layout.partition_by:
            raise TableDiffers(folder=str(self.folder), problem=f"it is split by {table.metadata().partition_columns}")

    def identity(self) -> str:
        return str(self._latest().metadata().id)

    def committed_at(self) -> datetime | None:
        table = self._latest()
        made_ms = [entry.get("timestamp") for entry in table.history(1)]
        return datetime.fromtimestamp(made_ms[0] / 1000, UTC) if made_ms and made_ms[0] is not None else None

    def added_since(self, version: int | None) -> list[AddedFile]:
        latest = self.version()
        commits = self._commits()
        if version is None and 0 not in commits:
            return [AddedFile(version=latest, file=file) for file in self.files()]
        start = 0 if version is None else version + 1
        added = []
        for number in range(start, latest + 1):
            if number not in commits:
                raise HistoryGone(table=self.layout.name, version=start - 1, problem=f"version {number} is cleaned up")
            for action in _actions(commits[number]):
                if "add" in action and action["add"]["dataChange"]:
                    added.append(AddedFile(version=number, file=self._file_of(action["add"])))
        return added

    def referenced(self, *, removed_after: datetime) -> set[str]:
        paths = {file.path for file in self.files()}
        oldest_ms = int(removed_after.timestamp() * 1000)
        for commit in self._commits().values():
            for action in _actions(commit):
                removed = action.get("remove")
                if removed and removed.get("deletionTimestamp", oldest_ms) >= oldest_ms:
                    paths.add(unquote(removed["path"]))
        return paths

    def hides_rows(self, file: DataFile) -> bool:
        # A file as earlier versions of Tidelog described it: the bounds of some columns, and nothing of the others.
        return any(name not in file.nulls for name in self.layout.bounded)

    # --- one transaction -----------------------------------------------------------------------------

    def _try(self, state: DeltaTable, change: Change) -> int | None:
        try:
            self._write(state, change)
        except CommitFailedError:
            return None  # somebody else has the version
        except (DeltaError, OSError) as error:
            raise _disk_error("commit to", self.folder, error) from error
        version = self._version_of(state) + 1
        self._sync_commit(version)
        return version

    def _write(self, table: DeltaTable, change: Change) -> None:
        now_ms = time.time_ns() // 1_000_000
        data_change = not change.is_rewrite
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, data_change, now_ms, size=file.bytes, partition_values=self._values(file))
            for file in change.removes
        ]
        actions += [
            AddAction(file.path, file.bytes, self._values(file), now_ms, data_change, _statistics(file, self.layout))
            for file in change.adds
        ]
        table.create_write_transaction(
            actions,
            "append",
            self.layout.schema,
            partition_by=list(self.layout.partition_by),
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=[Transaction(name, number) for name, number in change.stores.items()],
            ),
        )

    def _sync_commit(self, version: int) -> None:
        """The library leaves it to the kernel when a commit reaches the disk; the log's cursor must not move before
        that."""
        log = self.folder / _LOG
        with translated("sync", log):
            sync_path(log / f"{version:020d}.json")
            if (checkpoints := list(log.glob(f"{version:020d}.checkpoint*"))) and (log / _LAST_CHECKPOINT).exists():
                # Readers begin there: an empty one would make the table unreadable.
                for path in (*checkpoints, log / _LAST_CHECKPOINT):
                    sync_path(path)
            sync_path(log)

    # --- reading the log -----------------------------------------------------------------------------

    def _latest(self) -> DeltaTable:
        with translated("open", self.folder):
            if self._table is None:
                self._table = DeltaTable(str(self.folder))
            else:
                self._table.update_incremental()
        return self._table

    def _version_of(self, state: DeltaTable) -> int:
        return int(state.version())

    def _stored(self, state: DeltaTable, name: str) -> int | None:
        """The latest number stored under a name.

        The library reads the log for every such query, milliseconds each; so answers are cached, and updated from the
        commits since then.
        """
        version = self._version_of(state)
        for number in range(
            (self._positions_version if self._positions_version is not None else version) + 1, version + 1
        ):
            commit = self.folder / _LOG / f"{number:020d}.json"
            if not commit.exists():
                self._positions_held.clear()
                break
            for action in _actions(commit):
                if "txn" in action:
                    self._positions_held[action["txn"]["appId"]] = int(action["txn"]["version"])
        self._positions_version = version
        if name not in self._positions_held:
            found = state.transaction_version(name)
            self._positions_held[name] = None if found is None else int(found)
        return self._positions_held[name]

    def _live(self, state: DeltaTable, partitions: Collection[Partition] | None) -> list[DataFile]:
        found = pa.table(state.get_add_actions())
        columns = {name: found.column(name).to_pylist() for name in found.column_names}
        wanted = None if partitions is None else set(partitions)
        absent: list[Any] = [None] * found.num_rows
        files = []
        for row, path in enumerate(columns["path"]):
            values = columns.get("partition", absent)[row] or {}
            partition = tuple(None if values[name] is None else str(values[name]) for name in self.layout.partition_by)
            if wanted is not None and partition not in wanted:
                continue
            files.append(
                DataFile(
                    path=unquote(path),
                    bytes=columns["size_bytes"][row],
                    rows=columns["num_records"][row],
                    partition=partition,
                    minimums=_without_nulls(columns.get("min", absent)[row]),
                    maximums=_without_nulls(columns.get("max", absent)[row]),
                    nulls=_without_nulls(columns.get("null_count", absent)[row]),
                )
            )
        return files

    def _commits(self) -> dict[int, Path]:
        log = self.folder / _LOG
        with translated("list", log):
            names = os.listdir(log)
        return {int(match[1]): log / name for name in names if (match := _COMMIT_NAME.fullmatch(name))}

    def _file_of(self, add: Mapping[str, Any]) -> DataFile:
        statistics = json.loads(add.get("stats") or "{}")
        return DataFile(
            path=unquote(add["path"]),
            bytes=add["size"],
            rows=statistics.get("numRecords", 0),
            partition=tuple(add["partitionValues"].get(name) for name in self.layout.partition_by),
            minimums=self._parsed(statistics.get("minValues", {})),
            maximums=self._parsed(statistics.get("maxValues", {})),
            nulls=statistics.get("nullCount", {}),
        )

    def _parsed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        parsed = dict(values)
        for name, value in values.items():
            kind = self.layout.schema.field(name).type
            if pa.types.is_timestamp(kind):
                parsed[name] = datetime.fromisoformat(value)
            elif pa.types.is_date(kind):
                parsed[name] = date.fromisoformat(value)
        return parsed

    def _values(self, file: DataFile) -> dict[str, str | None]:
        return dict(zip(self.layout.partition_by, file.partition, strict=True))


def _disk_error(operation: str, folder: Path, error: Exception) -> DiskError:
    """The library reports over several lines, in colours, and gives error numbers only in its text."""
    words = " ".join(_COLOUR.sub("", str(error)).replace("\u21b3", "").split())
    kind = DiskFull if _NO_SPACE.search(words) else DiskError
    return kind(operation=operation, path=str(folder), reason=words)


def _actions(commit: Path) -> Iterator[dict[str, Any]]:
    with translated("read", commit), open(commit, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _statistics(file: DataFile, layout: TableLayout) -> str:
    """What the log says of a file's rows.

    The library's pyarrow datasets take a column without bounds for one without values, unless no column has any.
    """
    said: dict[str, Any] = {"numRecords": file.rows}
    if all(_is_bounded(file, name) for name in layout.bounded):
        said["minValues"] = {name: _bound(value, up=False) for name, value in file.minimums.items()}
        said["maxValues"] = {name: _bound(value, up=True) for name, value in file.maximums.items()}
    said["nullCount"] = dict(file.nulls)
    # Without escapes: the library reads the pairs that stand for characters of the higher planes wrongly (1.6.6).
    return json.dumps(said, allow_nan=False, ensure_ascii=False)


def _is_bounded(file: DataFile, name: str) -> bool:
    if name not in file.minimums or name not in file.maximums:
        return file.nulls.get(name) == file.rows
    # JSON has no number that is infinite.
    return all(not isinstance(one, float) or isfinite(one) for one in (file.minimums[name], file.maximums[name]))


def _bound(value: Any, *, up: bool) -> Any:
    """A bound as the log writes it: no narrower than the value. Times have milliseconds there, so the upper one is the
    next whole millisecond; of long texts the beginning is enough."""
    if isinstance(value, str) and len(value) > _TEXT_BOUND:
        end = _TEXT_BOUND
        while up and value[end : end + 1] == _LAST_CHARACTER:
            end += 1
        return value[:end] + (_LAST_CHARACTER if up else "")
    if isinstance(value, datetime):
        whole_ms, rest = divmod((value - _EPOCH) // timedelta(microseconds=1), 1000)
        rounded = _EPOCH + timedelta(milliseconds=whole_ms + (1 if up and rest else 0))
        return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return value


def _without_nulls(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if values is None else {name: value for name, value in values.items() if value is not None}
