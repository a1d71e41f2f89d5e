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

For the same reason a DataFrame, and a view made with `CREATE TEMPORARY VIEW ... USING`, is as of its first plan: used
again, it reads the same pieces. The comment of its first column says so. Every query of a table made with
`CREATE TABLE ... USING` is planned anew. Spark 4.3 gives a source nothing of such a table but its schema, so the
options are in there, with the first column.

SO1  Every row is a committed record of a verified block, in offset order within a task.
SO2  Tasks are planned once; the pieces of each are fixed, so a task that is run again gives the same rows.
SO3  A table in a catalog reads with the options it was made with, and sees the present in each query.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
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
from tidelog.pipeline.sources.source_options import SECTION, SourceOptions, is_of_table, own_options
from tidelog.pipeline.sources.stream_source import TidelogStreamReader

_OPTIONS: Final = "tidelog.options"
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
        options = SourceOptions.parse(self.options)
        made = spark_schema(arrow_schema(options))
        if not options.descriptors:
            made.fields[0].metadata = table_metadata(self.options, options) or {"comment": as_of(datetime.now(UTC))}
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(effective_options(self.options, schema))
        columns = chosen_columns(schema, options)
        # Spark refuses a reader with filter support where `spark.sql.python.filterPushdown.enabled` is off, and passes
        # filters in a separate process; so only there the reader supports them.
        if options.push_filters and "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules:
            return FilteringReader(options, columns)
        return TidelogReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = SourceOptions.parse(effective_options(self.options, schema), streaming=True)
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


# --- tables and views ---------------------------------------------------------------------------------


def as_of(moment: datetime) -> str:
    """The comment of what reads the same records for ever."""
    return (
        f"as of {moment:%Y-%m-%dT%H:%M:%SZ}: a DataFrame, or a view made with USING, reads no later records; make it "
        "anew, or use CREATE TABLE ... USING tidelog, which reads the present in each query"
    )


def table_metadata(given: Mapping[str, str], options: SourceOptions) -> dict[str, Any]:
    """What a table in a catalog keeps with its first column; nothing where no table is made."""
    if not is_of_table(given):
        return {}
    kept = own_options({name.lower(): value for name, value in given.items()})
    # Later queries may come from another folder.
    for name in ("path", "certificate", "key", "authority"):
        if absolute := getattr(options.address, name):
            kept[name] = absolute
    return {_OPTIONS: json.dumps(kept), "comment": "the present in each query"}


def effective_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read. A query of a table in a catalog has only those of its `WITH` clause; the table's are in
    the schema."""
    names = {name.lower() for name in given}
    stored = [field.metadata[_OPTIONS] for field in schema.fields if _OPTIONS in field.metadata]
    if names & {"cluster", "path"}:
        return dict(given)  # the schema may come from some table, the records do not
    if stored:
        return {**json.loads(stored[0]), **{name.lower(): value for name, value in given.items()}}
    if not given:
        problem = (
            "no options came: give a `cluster` or a `path`. A table that was made with a list of columns keeps no "
            "options; make it without the list, and select the columns from it"
        )
        raise InvalidConfig(section=SECTION, problems=[problem])
    return dict(given)


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
