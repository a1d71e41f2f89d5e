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
import re
import time
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError
from deltalake.transaction import AddAction, RemoveAction

from tidelog.errors import DiskError, DiskFull, ForeignChange, HistoryGone, TableUnsupported
from tidelog.pipeline.tables.committing import COMMIT_NAME, LAYOUT_NAME, Change, CommittedTable, accepting
from tidelog.pipeline.tables.delta_log import (
    LOG,
    DeltaLog,
    is_ours,
    read_actions,
    rows_in,
    unhandled_feature,
    unhandled_use,
)
from tidelog.pipeline.tables.parquet_files import make_folders, sync_path
from tidelog.pipeline.tables.table import (
    AddedFile,
    DataFile,
    Partition,
    TableLayout,
    TableNews,
    text_mark,
)
from tidelog.pki.files import translated

_LAST_CHECKPOINT: Final = "_last_checkpoint"
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
        self._log = DeltaLog(folder)
        self._known: int | None = None
        """The version up to which every change is known (T7)."""
        self._handled: int | None = None
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
                    configuration={**_CONFIGURATION, LAYOUT_NAME: str(self.layout.version)},
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                if not self.exists():
                    raise
                # Another driver was faster: its table is used if it is the same, which is checked below.
            self._sync_commit(0)
            with translated("sync", self.folder):
                sync_path(self.folder)
        self._bring_up()

    def identity(self) -> str:
        return str(self._latest().metadata().id)

    def committed_at(self) -> datetime | None:
        table = self._latest()
        made_ms = [entry.get("timestamp") for entry in table.history(1)]
        return datetime.fromtimestamp(made_ms[0] / 1000, UTC) if made_ms and made_ms[0] is not None else None

    def set_aside(self) -> str:
        place = self.folder.with_name(f"{self.folder.name}.set-aside-{datetime.now(UTC):%Y%m%dT%H%M%S}")
        with translated("rename", self.folder):
            self.folder.rename(place)
            sync_path(place.parent)
        return str(place)

    def news_since(self, version: int | None) -> TableNews:
        latest = self.version()
        commits = self._log.commits()
        if version is None and 0 not in commits:
            added = [AddedFile(version=latest, file=file) for file in self.files()]
            return TableNews(added=added, is_whole=True)
        start = 0 if version is None else version + 1
        added, removed_at = [], None
        for number in range(start, latest + 1):
            if number not in commits:
                raise HistoryGone(table=self.layout.name, version=start - 1, problem=f"version {number} is cleaned up")
            for action in read_actions(commits[number]):
                if "add" in action and action["add"]["dataChange"]:
                    added.append(AddedFile(version=number, file=self._file_of(action["add"])))
                elif "remove" in action and action["remove"].get("dataChange", True):
                    removed_at = number
        if version is None and removed_at is not None:
            added = [AddedFile(version=latest, file=file) for file in self.files()]
        return TableNews(added=added, removed_at=removed_at, is_whole=version is None and removed_at is not None)

    def files_at(self, version: int) -> list[DataFile]:
        try:
            return self._live(DeltaTable(str(self.folder), version=version), None)
        except (DeltaError, OSError) as error:
            problem = f"version {version} cannot be read: {_words(error)}"
            raise HistoryGone(table=self.layout.name, version=version, problem=problem) from error

    def mark_at(self, version: int) -> int | None:
        path = self._log.path(version)
        if not path.exists():
            return None
        with translated("read", path):
            return text_mark(f"{self.identity()} {path.read_text(encoding='utf-8')}")

    def referenced(self, *, removed_after: datetime) -> set[str]:
        paths = {file.path for file in self.files()}
        oldest_ms = int(removed_after.timestamp() * 1000)
        for commit in self._log.commits().values():
            for action in read_actions(commit):
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
        stores = {COMMIT_NAME: self._version_of(table) + 1, **change.stores}
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),  # with the columns that users have added
            partition_by=list(self.layout.partition_by),
            commit_properties=CommitProperties(
                max_commit_retries=0,
                app_transactions=[Transaction(name, number) for name, number in stores.items()],
            ),
        )

    def _sync_commit(self, version: int) -> None:
        """The library leaves it to the kernel when a commit reaches the disk; the log's cursor must not move before
        that."""
        log = self.folder / LOG
        with translated("sync", log):
            sync_path(self._log.path(version))
            if (checkpoints := list(log.glob(f"{version:020d}.checkpoint*"))) and (log / _LAST_CHECKPOINT).exists():
                # Readers begin there: an empty one would make the table unreadable.
                for path in (*checkpoints, log / _LAST_CHECKPOINT):
                    sync_path(path)
            sync_path(log)

    # --- reading the log -----------------------------------------------------------------------------

    def _load(self) -> DeltaTable:
        try:
            with translated("open", self.folder):
                if self._table is None:
                    self._table = DeltaTable(str(self.folder))
                else:
                    self._table.update_incremental()
        except DeltaProtocolError as error:
            raise self._unsupported(f"its protocol is newer than the Delta library: {_words(error)}") from error
        return self._table

    def _require_handled(self, state: DeltaTable) -> None:
        version = self._version_of(state)
        if self._handled is not None and not self._is_redefined(self._handled, version):
            self._handled = version
            return
        protocol = state.protocol()
        features = [*(protocol.reader_features or ()), *(protocol.writer_features or ())]
        columns = {one.name: one.metadata for one in state.schema().fields}
        problem = unhandled_feature(protocol.min_reader_version, protocol.min_writer_version, features)
        problem = problem or unhandled_use(state.metadata().configuration, columns)
        if problem is not None:
            raise self._unsupported(problem)
        self._require_columns(state, state.metadata().partition_columns)
        self._handled = version

    def _is_redefined(self, before: int, version: int) -> bool:
        """Whether a commit after `before` has changed the protocol, the columns or the properties."""
        for number in range(before + 1, version + 1):
            actions = self._log.actions(number)
            if actions is None or any("metaData" in one or "protocol" in one for one in actions):
                return True
        return version < before

    def _schema(self, state: DeltaTable) -> pa.Schema:
        return pa.schema(state.schema().to_arrow())

    def _layout_version(self, state: DeltaTable) -> int:
        return int(state.metadata().configuration.get(LAYOUT_NAME, "1"))

    def _upgrade(self, state: DeltaTable) -> None:
        """Two commits; the columns first, so that the version says that they are there."""
        table = DeltaTable(str(self.folder))
        missing = Schema.from_arrow(self._missing(table)).fields
        try:
            if missing:
                table.alter.add_columns(missing)
            table.alter.set_table_properties({LAYOUT_NAME: str(self.layout.version)}, raise_if_not_exists=False)
        except CommitFailedError:
            return  # another driver was faster; the caller looks again
        except (DeltaError, OSError) as error:
            raise _disk_error("change the columns of", self.folder, error) from error
        self._sync_commit(self._version_of(table))

    def _require_known(self, state: DeltaTable) -> None:
        version = self._version_of(state)
        start = self._stored(state, COMMIT_NAME) if self._known is None else self._known
        unjudged = []
        for number in range(version, 0 if start is None else start, -1):
            actions = self._log.actions(number)
            if actions is None:
                if start is None:
                    break  # from before `COMMIT_NAME` was stored
                raise self._foreign(number, "a commit that is cleaned up")
            if is_ours(actions):
                break
            unjudged.append((number, actions))
        for number, actions in reversed(unjudged):
            problem = self._log.changed_rows(actions)
            if problem is not None:
                raise self._foreign(number, problem)
        self._known = version

    def _foreign(self, version: int, problem: str) -> ForeignChange:
        name = self.layout.name
        return ForeignChange(table=name, version=version, problem=problem, accepted=accepting(name))

    def _unsupported(self, problem: str) -> TableUnsupported:
        return TableUnsupported(folder=str(self.folder), table=self.layout.name, problem=problem)

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
            actions = self._log.actions(number)
            if actions is None:
                self._positions_held.clear()
                break
            for action in actions:
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
                    rows=self._rows(unquote(path), columns["num_records"][row]),
                    partition=partition,
                    minimums=_without_nulls(columns.get("min", absent)[row]),
                    maximums=_without_nulls(columns.get("max", absent)[row]),
                    nulls=_without_nulls(columns.get("null_count", absent)[row]),
                )
            )
        return files

    def _rows(self, path: str, told: int | None) -> int:
        """Other writers may leave the count out of the log."""
        return told if told is not None else rows_in(self.folder / path) or 0

    def _file_of(self, add: Mapping[str, Any]) -> DataFile:
        statistics = json.loads(add.get("stats") or "{}")
        return DataFile(
            path=unquote(add["path"]),
            bytes=add["size"],
            rows=self._rows(unquote(add["path"]), statistics.get("numRecords")),
            partition=tuple(add["partitionValues"].get(name) for name in self.layout.partition_by),
            minimums=self._parsed(statistics.get("minValues", {})),
            maximums=self._parsed(statistics.get("maxValues", {})),
            nulls=statistics.get("nullCount", {}),
        )

    def _parsed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        parsed = dict(values)
        for name, value in values.items():
            if name not in self.layout.schema.names:
                continue  # a user's
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
    words = _words(error)
    kind = DiskFull if _NO_SPACE.search(words) else DiskError
    return kind(operation=operation, path=str(folder), reason=words)


def _words(error: Exception) -> str:
    return " ".join(_COLOUR.sub("", str(error)).replace("\u21b3", "").split())


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
