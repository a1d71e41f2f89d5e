"""Rows for every table that Tidelog writes, and a filter on every column with the rows that it must find.

The rows are made from the schemas alone, so that a new table or column is in the matrix of readers by itself. Every
column has nulls in some files, and one file in which it is all null; texts are longer than a bound may be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.gold.schemas import LAYOUTS as GOLD
from tidelog.pipeline.tables import layouts, open_table
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.table import Table, TableLayout, TableStep

ALL_LAYOUTS = tuple(
    {
        layout.name: layout
        for layout in (*vars(layouts).values(), *(gold.table for gold in GOLD))
        if isinstance(layout, TableLayout)
    }.values()
)
ROWS = 30
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_START = datetime(2026, 6, 1, 22, 30, tzinfo=UTC)
_TEXTS = ("second", "minute", "", "é", "\U0010ffff" * 40, "long " * 20, "long " * 20 + "er")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """`column operator value`; without a value the column is null, or is not."""

    column: str
    operator: str
    value: Any = None

    def expression(self) -> pc.Expression:
        field = pc.field(self.column)
        match self.operator:
            case "is null":
                return field.is_null()
            case "is not null":
                return field.is_valid()
            case operator:
                return OPERATORS[operator](field, pa.scalar(self.value))

    def sql(self, *, quote: str = '"', binary: str = "x'{}'") -> str:
        name = f"{quote}{self.column}{quote}"
        return f"{name} {self.operator}" + ("" if self.value is None else f" {_literal(self.value, binary)}")


def filled(folder: Path, layout: TableLayout, table_format: str, *, seed: int, commits: int = 5) -> Table:
    """The table with a few commits, each with a file for every partition."""
    rng = random.Random(seed)
    table = open_table(folder, layout, table_format=table_format)
    table.create()
    for number in range(commits):
        empty = set() if number % 2 else {rng.choice(layout.bounded)}
        with PartitionedWriter(table.folder, layout) as writer:
            writer.write_split(_rows(layout, rng, empty))
            step = TableStep(upstream="test", start=number or None, end=number + 1)
            table.commit_following("test", [step], writer.close())
    return table


def plain_scan(table: Table) -> pa.Table:
    """Every row of the live files, read without any metadata of the table."""
    read = [pq.ParquetFile(table.path_of(file)).read().select(table.layout.schema.names) for file in table.files()]
    return pa.concat_tables([one.cast(table.layout.schema) for one in read])


def filters(rows: pa.Table, *, seed: int, values_max: int = 2) -> Iterator[Filter]:
    """On every column: equal to and on either side of values that some rows have, null, and not null."""
    rng = random.Random(seed)
    for name in rows.column_names:
        values = [value for value in rows.column(name).unique().to_pylist() if value is not None]
        for value in rng.sample(values, min(values_max, len(values))):
            others = rng.sample(sorted({*OPERATORS} - {"="}), values_max)
            yield from (Filter(column=name, operator=one, value=value) for one in ("=", *others))
        yield Filter(column=name, operator="is null")
        yield Filter(column=name, operator="is not null")


def expected(rows: pa.Table, one: Filter) -> int:
    return int(rows.filter(one.expression()).num_rows)


def differences(rows: pa.Table, asked: Iterable[Filter], reader: Callable[[Filter], int]) -> list[str]:
    """Filters for which a reader finds another number of rows than a plain scan, in words."""
    found = []
    for one in asked:
        there, seen = expected(rows, one), reader(one)
        if there != seen:
            found.append(f"{one.sql()}: {seen} rows instead of {there}")
    return found


def _rows(layout: TableLayout, rng: random.Random, empty: set[str]) -> pa.RecordBatch:
    columns = {}
    for field in layout.schema:
        may_be_null = field.name not in layout.partition_by and rng.random() < 0.5
        values = [None if may_be_null and rng.random() < 0.3 else _value(field, rng) for _ in range(ROWS)]
        columns[field.name] = pa.array([None] * ROWS if field.name in empty else values, field.type)
    return pa.RecordBatch.from_pydict(columns, schema=layout.schema)


def _value(field: pa.Field, rng: random.Random) -> Any:
    kind = field.type
    if field.name == "channel":
        return rng.choice(["boat-1", "a/b:c"])
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        bits = rng.choice([2, kind.bit_width - 2, kind.bit_width]) - 1
        return rng.randrange(-(1 << bits), 1 << bits)
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -0.0, 0.1, -273.15, 1e300, rng.gauss(0, 1)])
    if pa.types.is_timestamp(kind):
        return _START + timedelta(microseconds=rng.randrange(3_600_000_000 * 3))
    if pa.types.is_date(kind):
        return date(2026, 6, 1) + timedelta(days=rng.randrange(2))
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randrange(1, 9))
    assert pa.types.is_string(kind), f"a value for {field}"
    return rng.choice(_TEXTS)


def _literal(value: Any, binary: str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return f"timestamp '{value:%Y-%m-%d %H:%M:%S.%f}+00:00'"
        case date():
            return f"date '{value}'"
        case bytes():
            return binary.format(value.hex())
        case str():
            return "'" + value.replace("'", "''") + "'"
        case float():
            return f"cast('{value!r}' as double)"
    return str(value)
