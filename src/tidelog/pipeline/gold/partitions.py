"""Reading and replacing partitions: files of a table as a DataFrame, and comparing new rows with a partition's.

GPA1  A partition is written only if its rows differ from those it holds; the order of rows and the cut into
    files do not count.
GPA2  At most `PARTITIONS_MAX` partitions are held in the driver at once, however many are touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.schemas import GoldLayout
from tidelog.pipeline.tables.parquet_files import PartitionedWriter, split_by_partition
from tidelog.pipeline.tables.reading import file_rows, is_ours
from tidelog.pipeline.tables.table import DataFile, Partition, Table

PARTITIONS_MAX: Final = 32
"""A day of seconds is some 90,000 rows of `tracks`, so this is about 300 MB of the driver's memory."""

_SPARK_TYPES: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def read_files(spark: SparkSession, table: Table, files: Collection[DataFile]) -> DataFrame:
    """The rows of these files. The layout gives the schema, so that Spark opens no file to guess it."""
    schema = ", ".join(f"`{one.name}` {_SPARK_TYPES[one.type]}" for one in table.layout.schema)
    if not files:
        return spark.createDataFrame([], schema)
    ours = [file for file in files if is_ours(file)]
    parts = [_read(spark, table, schema, ours)] if ours else []
    # Files that another writer has rearranged may lack the partition columns.
    for partition in sorted({file.partition for file in files if not is_ours(file)}, key=_sort_key):
        held = [file for file in files if file.partition == partition and not is_ours(file)]
        rows = _read(spark, table, schema, held)
        for name, value in zip(table.layout.partition_by, partition, strict=True):
            rows = rows.withColumn(name, F.lit(value).cast(_SPARK_TYPES[table.layout.schema.field(name).type]))
        parts.append(rows)
    return reduce(DataFrame.unionByName, parts)


def _read(spark: SparkSession, table: Table, schema: str, files: Iterable[DataFile]) -> DataFrame:
    # As text, not as URIs: Spark escapes them itself.
    return spark.read.schema(schema).parquet(*(str(table.path_of(file)) for file in files))


def batches(partitions: Collection[Partition], size: int = PARTITIONS_MAX) -> Iterator[list[Partition]]:
    """The partitions in their order, a few at a time."""
    in_order = sorted(partitions, key=_sort_key)
    for start in range(0, len(in_order), size):
        yield in_order[start : start + size]


@dataclass(slots=True)
class Changes:
    """The partitions to replace in a table: filled by `compare`, then committed at once."""

    files: list[DataFile] = field(default_factory=list)
    replaced: list[Partition] = field(default_factory=list)


def compare(
    changes: Changes, table: Table, layout: GoldLayout, partitions: Collection[Partition], new: pa.Table
) -> None:
    """Write the partitions of `new` that differ from what the table holds. Those without new rows become empty.

    `new` must hold all rows of `partitions`; rows of others are left out.
    """
    wanted = set(partitions)
    fresh: dict[Partition, list[pa.RecordBatch]] = {}
    for batch in arranged([new], layout).combine_chunks().to_batches():
        for partition, rows in split_by_partition(batch, layout.table.partition_by):
            if partition in wanted:
                fresh.setdefault(partition, []).append(rows)
    held: dict[Partition, list[DataFile]] = {}
    for file in table.files(wanted):
        held.setdefault(file.partition, []).append(file)
    with PartitionedWriter(table.folder, layout.table) as writer:
        for partition in sorted(wanted, key=_sort_key):
            parts = fresh.get(partition, [])
            if _same(parts, held.get(partition, []), table, layout):
                continue
            changes.replaced.append(partition)
            for part in parts:
                writer.write(part, partition)
        changes.files += writer.close()


def arranged(tables: Sequence[pa.Table], layout: GoldLayout) -> pa.Table:
    """Rows from anywhere in the columns, types and order of the layout."""
    schema = layout.table.schema
    joined = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    return joined.sort_by([(key, "ascending") for key in layout.keys])


def _same(parts: Sequence[pa.RecordBatch], files: Iterable[DataFile], table: Table, layout: GoldLayout) -> bool:
    held = [file_rows(table, file) for file in files]
    if not parts or not held:
        return not parts and not held
    return bool(arranged(held, layout).equals(pa.Table.from_batches(parts)))


def _sort_key(partition: Partition) -> tuple[str, ...]:
    return tuple(value or "" for value in partition)
