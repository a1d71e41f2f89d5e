"""Tables in the Iceberg format, committed through `pyiceberg` into a catalog file beside the tables.

The positions of pipelines are stored as properties of the table, changed in the same commit as the files; snapshots
could be expired, and the positions with them. Every commit makes a snapshot, even one without files: only then does the
format compare the commit's base with the present state.

The library's own retries are off: it would rebase a plain append onto the winner's commit, and only the caller that
knows the offsets can tell whether that duplicates rows (T4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, PrimitiveType
from sqlalchemy.exc import OperationalError

from tidelog.errors import ForeignChange, HistoryGone, TableUnsupported
from tidelog.pipeline.tables.committing import COMMIT_NAME, LAYOUT_NAME, Change, CommittedTable, accepting
from tidelog.pipeline.tables.parquet_files import make_folders, sync_path
from tidelog.pipeline.tables.synced_io import SYNCED_IO
from tidelog.pipeline.tables.table import (
    AddedFile,
    DataFile,
    Partition,
    TableLayout,
    TableNews,
    text_mark,
)
from tidelog.pki.files import translated

CATALOG_NAME: Final = "catalog.sqlite"
_NAMESPACE: Final = "tidelog"
_METADATA: Final = "metadata"
_REWRITE: Final = "tidelog.rewrite"
_FORMAT_MAX: Final = 2
_OWN_PREFIX: Final = "tidelog/"
_EPOCH_DAY: Final = date(1970, 1, 1)
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "format-version": "2",
}


class IcebergFolder(CommittedTable[IcebergTable]):
    """See `Table` for what each call does."""

    def __init__(self, folder: Path, layout: TableLayout) -> None:
        super().__init__(folder, layout)
        self._name = f"{_NAMESPACE}.{layout.name}"
        self._catalog: Catalog | None = None

    def exists(self) -> bool:
        if not (self.folder.parent / CATALOG_NAME).exists():
            return False
        return bool(self._opened().table_exists(self._name))

    def create(self) -> None:
        with translated("create", self.folder):
            make_folders(self.folder / _METADATA)
        if not self.exists():
            try:
                self._opened().create_namespace(_NAMESPACE)
            except NamespaceAlreadyExistsError:
                pass  # another table's
            try:
                self._create()
            except TableAlreadyExistsError:
                pass  # another driver was faster; whether its table is the same is checked below
            with translated("sync", self.folder.parent):
                self._sync_catalog()
        self._bring_up()

    def _create(self) -> None:
        catalog = self._opened()
        # Column ids are assigned when the table is created; until then the partitions cannot refer to theirs.
        made = catalog.create_table(
            self._name,
            self.layout.schema,
            location=_uri(self.folder),
            properties={**_PROPERTIES, LAYOUT_NAME: str(self.layout.version)},
        )
        with made.transaction() as change:
            if self.layout.partition_by:
                with change.update_spec() as spec:
                    for name in self.layout.partition_by:
                        spec.add_field(name, IdentityTransform(), name)
            mapping = made.schema().name_mapping.model_dump_json()
            change.set_properties({"schema.name-mapping.default": mapping})

    def identity(self) -> str:
        return str(self._latest().metadata.table_uuid)

    def committed_at(self) -> datetime | None:
        return datetime.fromtimestamp(self._latest().metadata.last_updated_ms / 1000, UTC)

    def set_aside(self) -> str:
        # Its files stay where they are; `vacuum` removes them when they are old.
        location = str(self._load().metadata_location)
        self._opened().drop_table(self._name)
        return location

    def news_since(self, version: int | None) -> TableNews:
        table = self._latest()
        latest = self._version_of(table)
        lineage = _lineage(table)
        if version is None and latest and 1 not in lineage:
            added = [AddedFile(version=latest, file=file) for file in self._live(table, None)]
            return TableNews(added=added, is_whole=True)
        start = 1 if version is None else version + 1
        oldest = min(lineage, default=start)
        if oldest > start and (first := lineage[oldest]).parent_snapshot_id is not None:
            problem = f"the snapshot before {first.sequence_number} is expired"
            raise HistoryGone(table=self.layout.name, version=start - 1, problem=problem)
        added, removed_at = [], None
        for number in sorted(one for one in lineage if one >= start):
            snapshot = lineage[number]
            if _is_rewrite(snapshot):
                continue
            added += [AddedFile(version=number, file=file) for file in self._added(table, snapshot)]
            if int(_said(snapshot, "deleted-data-files") or 0):
                removed_at = number
        if version is None and removed_at is not None:
            added = [AddedFile(version=latest, file=file) for file in self._live(table, None)]
        return TableNews(added=added, removed_at=removed_at, is_whole=version is None and removed_at is not None)

    def files_at(self, version: int) -> list[DataFile]:
        table = self._latest()
        lineage = _lineage(table)
        # Versions without a snapshot of the table's own branch changed no rows of it.
        held = [number for number in lineage if number <= version]
        if not held:
            problem = f"the snapshot of version {version} is expired"
            raise HistoryGone(table=self.layout.name, version=version, problem=problem)
        return [self._file_of(table, entry) for entry in self._entries(table, lineage[max(held)])]

    def mark_at(self, version: int) -> int | None:
        table = self._latest()
        snapshot = _lineage(table).get(version)
        return None if snapshot is None else text_mark(f"{table.metadata.table_uuid} {snapshot.snapshot_id}")

    def referenced(self, *, removed_after: datetime) -> set[str]:
        table = self._latest()
        if table.current_snapshot() is not None:
            # The current snapshot is protected by its branch.
            table.maintenance.expire_snapshots().older_than(removed_after).commit()
            table = self._latest()
        paths = set()
        seen = set()
        for snapshot in table.snapshots():
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in seen:
                    seen.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    paths |= {self._relative(entry.data_file.file_path) for entry in entries}
        return paths

    # --- one transaction -----------------------------------------------------------------------------

    def _try(self, state: IcebergTable, change: Change) -> int | None:
        try:
            with translated("commit to", self.folder):
                self._write(state, change)
                self._sync_catalog()
        except (CommitFailedException, OperationalError):
            return None  # somebody else has changed the table, or holds the catalog
        return self._version_of(state)

    def _write(self, table: IcebergTable, change: Change) -> None:
        transaction = table.transaction()
        stores = {COMMIT_NAME: self._version_of(table) + 1, **change.stores}
        transaction.set_properties({name: str(number) for name, number in stores.items()})
        said = {_REWRITE: "true"} if change.is_rewrite else {}
        update = transaction.update_snapshot(snapshot_properties=said)
        added = [parquet_file_to_data_file(table.io, table.metadata, _uri(self.path_of(file))) for file in change.adds]
        if change.removes:
            gone = {file.path for file in change.removes}
            with update.overwrite() as overwrite:
                for entry in self._entries(table):
                    if self._relative(entry.file_path) in gone:
                        overwrite.delete_data_file(entry)
                for file in added:
                    overwrite.append_data_file(file)
        else:
            with update.fast_append() as append:
                for file in added:
                    append.append_data_file(file)
        transaction.commit_transaction()

    def _sync_catalog(self) -> None:
        """The files that it names are on disk by now (TSI1)."""
        sync_path(self.folder.parent / CATALOG_NAME)
        sync_path(self.folder.parent)

    # --- reading -------------------------------------------------------------------------------------

    def _opened(self) -> Catalog:
        if self._catalog is None:
            root = self.folder.parent
            with translated("open", root):
                root.mkdir(parents=True, exist_ok=True)
            self._catalog = SqlCatalog(
                _NAMESPACE,
                uri=f"sqlite:///{root / CATALOG_NAME}",
                warehouse=_uri(root),
                pool_pre_ping="true",
                **{PY_IO_IMPL: SYNCED_IO},
            )
        return self._catalog

    def _load(self) -> IcebergTable:
        return self._opened().load_table(self._name)

    def _require_handled(self, state: IcebergTable) -> None:
        version = state.metadata.format_version
        if version > _FORMAT_MAX:
            raise self._unsupported(f"its format version is {version}, and this Tidelog handles up to {_FORMAT_MAX}")
        snapshot = state.current_snapshot()
        if snapshot is not None and int(_said(snapshot, "total-delete-files") or 0):
            raise self._unsupported("it has delete files, which Tidelog does not read")
        self._require_columns(state, [one.name for one in state.spec().fields])

    def _schema(self, state: IcebergTable) -> pa.Schema:
        return state.schema().as_arrow()

    def _layout_version(self, state: IcebergTable) -> int:
        return int(state.properties.get(LAYOUT_NAME, "1"))

    def _upgrade(self, state: IcebergTable) -> None:
        missing = self._missing(state)
        try:
            with translated("change the columns of", self.folder):
                with state.transaction() as change:
                    if len(missing):
                        with change.update_schema() as schema:
                            schema.union_by_name(missing)
                    change.set_properties({LAYOUT_NAME: str(self.layout.version)})
                self._sync_catalog()
        except (CommitFailedException, OperationalError):
            return  # another driver was faster; the caller looks again

    def _unsupported(self, problem: str) -> TableUnsupported:
        return TableUnsupported(folder=str(self.folder), table=self.layout.name, problem=problem)

    def _require_known(self, state: IcebergTable) -> None:
        """Our latest snapshot must be among the parents of the present one: a table that was put back to an older state
        has lost it. What came after must have kept the rows."""
        committed = self._stored(state, COMMIT_NAME)
        if committed is None and any(name.startswith(_OWN_PREFIX) for name in state.properties):
            return  # filled before `COMMIT_NAME` was stored
        lineage = _lineage(state, committed or 0)
        if committed is not None and committed not in lineage:
            raise self._foreign(self._version_of(state), "an older state was put back")
        for number in sorted(one for one in lineage if one != committed):
            snapshot = lineage[number]
            if not _is_rewrite(snapshot):
                operation = "a change" if snapshot.summary is None else snapshot.summary.operation.value
                raise self._foreign(number, operation)

    def _foreign(self, version: int, problem: str) -> ForeignChange:
        name = self.layout.name
        return ForeignChange(table=name, version=version, problem=problem, accepted=accepting(name))

    def _version_of(self, state: IcebergTable) -> int:
        return int(state.last_sequence_number)

    def _stored(self, state: IcebergTable, name: str) -> int | None:
        found = state.properties.get(name)
        return None if found is None else int(found)

    def _entries(self, table: IcebergTable, snapshot: Snapshot | None = None) -> list[IcebergFile]:
        snapshot = snapshot or table.current_snapshot()
        if snapshot is None:
            return []
        return [
            entry.data_file
            for manifest in snapshot.manifests(table.io)
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        ]

    def _live(self, state: IcebergTable, partitions: Collection[Partition] | None) -> list[DataFile]:
        wanted = None if partitions is None else set(partitions)
        files = [self._file_of(state, entry) for entry in self._entries(state)]
        return [file for file in files if wanted is None or file.partition in wanted]

    def _added(self, table: IcebergTable, snapshot: Snapshot) -> list[DataFile]:
        return [
            self._file_of(table, entry.data_file)
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]

    def _file_of(self, table: IcebergTable, entry: IcebergFile) -> DataFile:
        schema = table.schema()
        held = set(schema.column_names)  # a table of an older layout lacks some
        names = {schema.find_field(name).field_id: name for name in self.layout.bounded if name in held}

        def bounds(values: Mapping[int, bytes] | None) -> dict[str, Any]:
            return {
                names[number]: self._python(names[number], from_bytes(_primitive(schema.find_type(number)), value))
                for number, value in (values or {}).items()
                if number in names
            }

        counts = entry.null_value_counts or {}
        return DataFile(
            path=self._relative(entry.file_path),
            bytes=entry.file_size_in_bytes,
            rows=entry.record_count,
            partition=tuple(
                _text(entry.partition[place], self.layout.schema.field(name).type)
                for place, name in enumerate(self.layout.partition_by)
            ),
            minimums=bounds(entry.lower_bounds),
            maximums=bounds(entry.upper_bounds),
            nulls={name: counts[number] for number, name in names.items() if number in counts},
        )

    def _python(self, name: str, value: Any) -> Any:
        """A bound as pyarrow would give it: the format counts from 1970."""
        kind = self.layout.schema.field(name).type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return pa.scalar(value, pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).cast(kind).as_py()
        return value

    def _relative(self, uri: str) -> str:
        return uri.removeprefix(_uri(self.folder)).lstrip("/")


def _uri(path: Path) -> str:
    """Unescaped: the library takes it for the path as it is, and would make a folder `my%20lake` beside `my lake`."""
    return f"file://{path}"


def _text(value: Any, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    if pa.types.is_date(kind) and isinstance(value, int):
        return str(_EPOCH_DAY + timedelta(days=value))
    return str(value)


def _primitive(kind: IcebergType) -> PrimitiveType:
    assert isinstance(kind, PrimitiveType), "bounds are of plain columns"
    return kind


def _said(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def _lineage(table: IcebergTable, oldest: int = 0) -> dict[int, Snapshot]:
    """The present snapshot and those it was made from, down to a version; other branches and expired ones are not in
    it."""
    by_id = {one.snapshot_id: one for one in table.snapshots()}
    found: dict[int, Snapshot] = {}
    snapshot = table.current_snapshot()
    while snapshot is not None and (snapshot.sequence_number or 0) >= oldest:
        found[snapshot.sequence_number or 0] = snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)
    return found


def _is_rewrite(snapshot: Snapshot) -> bool:
    """Whether it has other files with the same rows: one of ours, or of another writer that counted them."""
    if _said(snapshot, _REWRITE) is not None:
        return True
    if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
        return False
    counts = (_said(snapshot, "added-records"), _said(snapshot, "deleted-records"))
    return None not in counts and counts[0] == counts[1]
