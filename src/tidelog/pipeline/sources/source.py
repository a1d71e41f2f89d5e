"""`spark.read.format("tidelog")`: channels as rows, from a cluster or a folder of logs.

Spark builds these objects in several processes: one that plans, without a Spark session, and those that run tasks.
Nothing here keeps a connection; each process opens the log when it needs it (`LogsAddress.open_shared`).

Only the requested columns are read: `.schema("offset bigint, time timestamp")` reads those two and opens no more of a
block than they need. A column that cannot be null is declared so, since Java then need not check every value; one that
is requested as nullable stays that. `channels`, `starting`, `ending` and `pgns` narrow what is read at all. With
`push_filters` the source also gets the query's own filters on channel, offset, seq, time and pgn and skips whole
channels, ranges and blocks; Spark still applies the filters exactly. That is off by default, because Spark 4.3 keeps
one plan per DataFrame: after a filtered query the same DataFrame, unfiltered or filtered in another way, silently reads
only the rows of the first filter. Load anew for every such query.

For the same reason a DataFrame is a snapshot: used again, it reads the pieces of its first plan.

SO1  Every row is a committed record of a verified block, in offset order within a task.
SO2  Tasks are planned once; the pieces of each are fixed, so a task that is run again gives the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.errors import InvalidConfig
from tidelog.pipeline.sources.columns import FRAMES, MESSAGES
from tidelog.pipeline.sources.planning import Bounds, piece_between, split, tightened, within
from tidelog.pipeline.sources.rows import DESCRIPTORS, rows_of
from tidelog.pipeline.sources.source_options import SECTION, SourceOptions
from tidelog.pipeline.sources.stream_source import TidelogStreamReader

_NEVER_NULL: Final = frozenset(
    {"channel", "offset", "epoch", "time", "priority", "pgn", "source", "destination", "data", "append_time"}
)

# Planners have no session, so types are built by hand and not from DDL.
_SPARK_TYPES: Final[Mapping[pa.DataType, DataType]] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    MESSAGES.field("headers").type: ArrayType(
        StructType([StructField("name", StringType()), StructField("value", BinaryType())])
    ),
}


class TidelogSource(DataSource):
    """Found by Spark through `pyspark_tidelog`; options in `tidelog.pipeline.sources.source_options`."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return spark_schema(arrow_schema(SourceOptions.parse(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        columns = chosen_columns(schema, options)
        # Spark refuses a reader with filter support where `spark.sql.python.filterPushdown.enabled` is off, and passes
        # filters in a separate process; so only there the reader supports them.
        if options.push_filters and "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules:
            return FilteringReader(options, columns)
        return TidelogReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = SourceOptions.parse(self.options, streaming=True)
        return TidelogStreamReader(options, chosen_columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tidelog.pipeline.sinks.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from tidelog.pipeline.sinks.sink import stream_writer

        return stream_writer(self.options, schema)


class TidelogReader(DataSourceReader):
    """One batch: the channels as they stand when it is planned."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._bounds: dict[str, Bounds] = {}

    def partitions(self) -> list[InputPartition]:
        options = self._options
        logs = options.address.open_shared()
        pieces = [
            piece_between(ends, options.starting, options.ending, logs, on_trimmed=options.on_trimmed)
            for ends in logs.channels(options.channels)
        ]
        return [InputPartition(task) for task in split(within(pieces, self._bounds), options.split_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition.value, self._options, self._columns, self._bounds)


class FilteringReader(TidelogReader):
    """The same, with filters from Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            attribute: tuple[str, ...] = getattr(one, "attribute", ())
            if len(attribute) == 1:
                tightened(self._bounds, type(one).__name__, attribute[0], getattr(one, "value", None))
        return filters  # all of them: the source's are coarser, Spark's are exact


# --- schemas -----------------------------------------------------------------------------------------


def arrow_schema(options: SourceOptions) -> pa.Schema:
    if options.descriptors:
        return DESCRIPTORS
    return MESSAGES if options.records == "messages" else FRAMES


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema in Spark's types."""
    return StructType(
        [StructField(field.name, _SPARK_TYPES[field.type], field.name not in _NEVER_NULL) for field in schema]
    )


def chosen_columns(schema: StructType, options: SourceOptions) -> pa.Schema:
    """The requested columns; a column of another name or type is refused with the available ones."""
    held = arrow_schema(options)
    offered: dict[str, Any] = {field.name: field.dataType for field in spark_schema(held).fields}
    problems = []
    for field in schema.fields:
        if field.name not in offered:
            problems.append(f"there is no column {field.name!r}; there are {', '.join(offered)}")
        elif field.dataType != offered[field.name]:
            wanted, given = field.dataType.simpleString(), offered[field.name].simpleString()
            problems.append(f"column {field.name!r} is {given}, not {wanted}; read it as that and cast it")
        elif not field.nullable and field.name not in _NEVER_NULL:
            problems.append(f"column {field.name!r} may be null; ask for it without NOT NULL")
    if problems:
        raise InvalidConfig(section=SECTION, problems=problems)
    return pa.schema([held.field(field.name).with_nullable(field.nullable) for field in schema.fields])
