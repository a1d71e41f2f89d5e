"""Arrow batches into Parquet files of a table: one open file per partition, rows in the order they came.

Encodings are chosen per column, because bytes per frame decide the cost of years of a fleet: growing numbers are stored
as differences, names as dictionaries, payloads unencoded under zstd. The statistics of the footer are copied into the
table's log, so readers skip files without opening them.

What a caller must keep: `close` before committing a file. A writer that is abandoned leaves a file that no version
names; `vacuum` removes it.

PF1  At most `row_group_rows` rows in all and `open_files_max` files are held, however much is written.
PF2  A file that `close` returned is on disk, name and all: the log may be trimmed once a table has committed it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.tables.table import DataFile, Partition, TableLayout, partition_folder
from tidelog.pki.files import translated

ROW_GROUP_ROWS: Final = 1 << 19
FILE_ROWS: Final = 1 << 24
OPEN_FILES_MAX: Final = 16
ZSTD_LEVEL: Final = 1
SUFFIX: Final = ".parquet"


class PartitionedWriter:
    """Writes batches into new files under a table's folder. Use it as a context; then `close` returns the files."""

    def __init__(
        self,
        folder: Path,
        layout: TableLayout,
        *,
        row_group_rows: int = ROW_GROUP_ROWS,
        file_rows: int = FILE_ROWS,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        assert row_group_rows > 0
        assert open_files_max > 0
        self._folder = folder
        self._layout = layout
        self._row_group_rows = row_group_rows
        self._file_rows = file_rows
        self._open_files_max = open_files_max
        self._open: dict[Partition, _OpenFile] = {}  # the least recently used first
        self._done: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        # Without names: files that were not closed belong to no version.
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def write(self, batch: pa.RecordBatch, partition: Partition) -> None:
        """Rows of one partition. The batch has the columns of the layout in its order; texts may be dictionaries."""
        if not batch.num_rows:
            return
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= self._open_files_max:
                self._finish(next(iter(self._open)))
            file = _OpenFile(self._folder, self._layout, partition)
        self._open[partition] = file
        file.hold(batch)
        if sum(one.held_rows for one in self._open.values()) >= self._row_group_rows:
            max(self._open.values(), key=lambda one: one.held_rows).flush()
        if file.rows >= self._file_rows:
            self._finish(partition)

    def write_split(self, batch: pa.RecordBatch) -> None:
        """Rows of any partitions: split by the values of the partition columns, which are few."""
        for partition, rows in split_by_partition(batch, self._layout.partition_by):
            self.write(rows, partition)

    def close(self) -> list[DataFile]:
        """Everything that was written, complete and on disk (PF2), in the order it was finished."""
        for partition in list(self._open):
            self._finish(partition)
        done, self._done = self._done, []
        return done

    def _finish(self, partition: Partition) -> None:
        self._done.append(self._open.pop(partition).finish())


class _OpenFile:
    def __init__(self, folder: Path, layout: TableLayout, partition: Partition) -> None:
        self._layout = layout
        self._partition = partition
        self._relative = str(Path(partition_folder(partition)) / f"{uuid.uuid4().hex}{SUFFIX}")
        self._path = folder / self._relative
        self._held: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None
        self.held_rows = 0
        self.rows = 0

    def hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self.held_rows += batch.num_rows
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Write the buffered rows as one row group."""
        if not self._held:
            return
        table = _joined(self._held)
        self._held.clear()
        self.held_rows = 0
        with translated("write", self._path):
            if self._writer is None:
                make_folders(self._path.parent)
                self._writer = _parquet_writer(self._path, table.schema, self._layout)
            elif table.schema != self._writer.schema:
                table = _in_schema(table, self._writer.schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self) -> DataFile:
        self.flush()
        assert self._writer is not None
        with translated("close", self._path):
            self._writer.close()
            sync_path(self._path)
            sync_path(self._path.parent)
            size = self._path.stat().st_size
            footer = pq.read_metadata(self._path)
        return describe(footer, self._relative, size, self._partition, self._layout)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _parquet_writer(path: Path, schema: pa.Schema, layout: TableLayout) -> pq.ParquetWriter:
    dictionary = [name for name in layout.schema.names if name not in (*layout.rising, *layout.plain)]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=dictionary,
        column_encoding=dict.fromkeys(layout.rising, "DELTA_BINARY_PACKED"),
        # Bounds of payloads are useless and cost a fifth of writing them. Partition columns need theirs: Iceberg takes
        # the partition of a file from them.
        write_statistics=[*layout.bounded, *layout.partition_by],
        store_schema=False,  # every reader sees Parquet's own types, dictionaries or not
    )


def describe(footer: pq.FileMetaData, relative: str, size: int, partition: Partition, layout: TableLayout) -> DataFile:
    """The facts about a file in its footer."""
    places = {footer.schema.column(place).path: place for place in range(footer.num_columns)}
    minimums: dict[str, Any] = {}
    maximums: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in layout.bounded:
        found = [footer.row_group(group).column(places[name]).statistics for group in range(footer.num_row_groups)]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounded = [one for one in found if one.has_min_max]
        if len(bounded) == sum(one.num_values > 0 for one in found) and bounded:
            minimums[name] = min(one.min for one in bounded)
            maximums[name] = max(one.max for one in bounded)
    return DataFile(
        path=relative,
        bytes=size,
        rows=footer.num_rows,
        partition=partition,
        minimums=minimums,
        maximums=maximums,
        nulls=nulls,
    )


def split_by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each partition, in the order of its first row."""
    if not columns:
        yield (), batch
        return
    column, *rest = columns
    values = batch.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    distinct = pc.unique(values)
    for value in distinct:
        chosen = batch
        if len(distinct) > 1:
            is_value = pc.equal(values, value) if value.is_valid else pc.is_null(values)
            chosen = batch.filter(pc.fill_null(is_value, False))
        text = str(value.as_py()) if value.is_valid else None
        for others, rows in split_by_partition(chosen, rest):
            yield (text, *others), rows


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.DictionaryArray:
    """One value over many rows without writing it out: a dictionary of one, or of none for null."""
    if value is None:
        return pa.nulls(rows, pa.dictionary(pa.int32(), kind))
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value], kind))


def sync_path(path: Path) -> None:
    """A file's content, or a folder's names, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(folder: Path) -> None:
    """The folder and its parents, as far as they are missing, their names on disk."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    schema = batches[0].schema
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    same = [table if table.schema == schema else _in_schema(table, schema) for table in tables]
    joined = pa.concat_tables(same)
    if any(pa.types.is_dictionary(field.type) for field in schema):
        joined = joined.unify_dictionaries()
    return joined


def _in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with dictionaries where the first rows had them, and nowhere else."""
    assert table.schema.names == schema.names, "batches of one table differ in columns"
    columns = []
    for field in schema:
        column = table.column(field.name)
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
