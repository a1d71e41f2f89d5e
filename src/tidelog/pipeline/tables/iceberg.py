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
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, PrimitiveType
from sqlalchemy.exc import OperationalError

from tidelog.errors import HistoryGone, TableDiffers
from tidelog.pipeline.tables.committing import Change, CommittedTable
from tidelog.pipeline.tables.parquet_files import make_folders, sync_path
from tidelog.pipeline.tables.synced_io import SYNCED_IO
from tidelog.pipeline.tables.table import (
    AddedFile,
    DataFile,
    Partition,
    TableLayout,
)
from tidelog.pki.files import translated

CATALOG_NAME: Final = "catalog.sqlite"
_NAMESPACE: Final = "tidelog"
_METADATA: Final = "metadata"
_REWRITE: Final = "tidelog.rewrite"
_FIRST_FIELD: Final = 1000
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
        table = self._latest()
        found = [one.name for one in table.schema().fields]
        if found != self.layout.schema.names:
            raise TableDiffers(folder=str(self.folder), problem=f"its columns are {', '.join(found)}")
        split = tuple(one.name for one in table.spec().fields)
        if split != self.layout.partition_by:
            raise TableDiffers(folder=str(self.folder), problem=f"it is split by {split}")

    def _create(self) -> None:
        catalog = self._opened()
        # Column ids are assigned when the table is created; until then the partitions cannot refer to theirs.
        made = catalog.create_table(
            self._name, self.layout.schema, location=_uri(self.folder), properties=dict(_PROPERTIES)
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

    def added_since(self, version: int | None) -> list[AddedFile]:
        table = self._latest()
        snapshots = {one.sequence_number or 0: one for one in table.snapshots()}
        latest = self._version_of(table)
        if version is None and latest and 1 not in snapshots:
            return [AddedFile(version=latest, file=file) for file in self._live(table, None)]
        start = 1 if version is None else version + 1
        added = []
        for number in range(start, latest + 1):
            snapshot = snapshots.get(number)
            if snapshot is None:
                problem = f"snapshot {number} is expired"
                raise HistoryGone(table=self.layout.name, version=start - 1, problem=problem)
            if _said(snapshot, _REWRITE) is None:
                added += [AddedFile(version=number, file=file) for file in self._added(table, snapshot)]
        return added

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
        if change.stores:
            transaction.set_properties({name: str(number) for name, number in change.stores.items()})
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

    def _latest(self) -> IcebergTable:
        return self._opened().load_table(self._name)

    def _version_of(self, state: IcebergTable) -> int:
        return int(state.last_sequence_number)

    def _stored(self, state: IcebergTable, name: str) -> int | None:
        found = state.properties.get(name)
        return None if found is None else int(found)

    def _entries(self, table: IcebergTable) -> list[IcebergFile]:
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        return [
            entry.data_file
            for manifest in snapshot.manifests(table.io)
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
        names = {schema.find_field(name).field_id: name for name in self.layout.bounded}

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
