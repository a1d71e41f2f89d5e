"""Rows of a table's files in the columns of its layout, whichever writer made the file.

Our own files hold every column. Files that other writers made in a rearrangement (T7) may lack the partition columns,
which the log has for them, and may have other types of the same values; files of an older layout lack the columns that
came later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.tables.parquet_files import constant
from tidelog.pipeline.tables.table import DataFile, Table, partition_folder
from tidelog.pki.files import translated

READ_ROWS: Final = 1 << 16
_OUR_NAME: Final = re.compile(r"[0-9a-f]{32}\.parquet")


def file_batches(
    table: Table, file: DataFile, columns: Sequence[str] | None = None, *, schema: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one file, some at a time: these columns of the layout, or of `schema`; all without a choice."""
    whole = schema or table.layout.schema
    wanted = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    partition = dict(zip(table.layout.partition_by, file.partition, strict=True))
    path = table.path_of(file)
    with translated("read", path), pq.ParquetFile(path, memory_map=False) as source:
        present = [name for name in wanted.names if name in source.schema_arrow.names]
        for batch in source.iter_batches(READ_ROWS, columns=present):
            yield fitted(batch, wanted, partition)


def file_rows(table: Table, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
    """The same as one table."""
    schema = table.layout.schema
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(
        [
            pa.RecordBatch.from_arrays([_plain(one) for one in batch.columns], schema=wanted)
            for batch in file_batches(table, file, columns)
        ],
        schema=wanted,
    )


def fitted(batch: pa.RecordBatch, wanted: pa.Schema, partition: dict[str, str | None]) -> pa.RecordBatch:
    """The batch in these columns. A partition column that the file lacks has one value, another missing one none."""
    if batch.schema.equals(wanted):
        return batch
    columns = []
    for field in wanted:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(constant(partition_value(partition.get(field.name), field.type), field.type, batch.num_rows))
        else:
            column = batch.column(place)
            columns.append(column if column.type == field.type else column.cast(field.type))
    names = wanted.names
    return pa.RecordBatch.from_arrays(columns, names=names)


def partition_value(text: str | None, kind: pa.DataType) -> Any:
    """A partition's value out of its text in the log."""
    if text is None:
        return None
    return date.fromisoformat(text) if pa.types.is_date(kind) else text


def is_ours(file: DataFile) -> bool:
    """Whether a pipeline wrote this file, by its name: then it has the partition columns."""
    folder, name = str(Path(file.path).parent), Path(file.path).name
    return bool(_OUR_NAME.fullmatch(name)) and folder in (partition_folder(file.partition), ".")


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
