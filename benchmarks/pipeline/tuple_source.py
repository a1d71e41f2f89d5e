"""The Spark source as it would be if it gave out tuples: what Arrow batches are worth.

Everything but the last step is the source itself; the last step makes Python values of the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.sources.source import TidelogReader, TidelogSource, chosen_columns
from tidelog.pipeline.sources.source_options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

NAME = "tidelog_tuples"


class TupleSource(TidelogSource):
    """`spark.dataSource.register(TupleSource)`, then `format(NAME)` with the options of the source."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options)
        return TupleReader(options, chosen_columns(schema, options))


class TupleReader(TidelogReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
