"""Every reader of Delta and Iceberg, every table, a filter on every column: the rows of a plain scan.

`delta-spark` and DuckDB's extension for Delta need versions of their own and run in a program beside this one, with
what is in the folder TIDELOG_READER_TOOLS; tests/pipeline/peer_readers.py says what to install there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg import expressions
from pyiceberg.expressions import parser
from pyiceberg.table import StaticTable

from tests.pipeline.reader_kit import ALL_LAYOUTS, Filter, differences, expected, filled, filters, plain_scan
from tests.pipeline.test_readers import CORE, SEED, Reader, each_layout
from tidelog.pipeline.tables import DELTA, ICEBERG
from tidelog.pipeline.tables.table import Table, TableLayout

PEERS = Path(__file__).with_name("peer_readers.py")
TOOLS = os.environ.get("TIDELOG_READER_TOOLS", "")
PEERS_S = 1_500
"""Spark plans a second for each of some hundred queries."""

pytestmark = pytest.mark.slow


def pandas(table: Table) -> Reader:
    rows = DeltaTable(str(table.folder))
    return lambda one: len(rows.to_pandas(filters=one.expression()))


def query_builder(table: Table) -> Reader:
    asked = QueryBuilder().register("rows", DeltaTable(str(table.folder)))

    def counted(one: Filter) -> int:
        found = asked.execute(f"select count(*) from rows where {one.sql()}").read_all()
        return int(pa.table(found).column(0)[0].as_py())

    return counted


def polars_itself(table: Table) -> Reader:
    rows = polars.scan_delta(str(table.folder))
    return lambda one: _of_polars(rows, one)


def polars_over_arrow(table: Table) -> Reader:
    rows = polars.scan_delta(str(table.folder), use_pyarrow=True)
    return lambda one: _of_polars(rows, one)


def pyiceberg(table: Table) -> Reader:
    rows = StaticTable.from_metadata(_metadata(table))
    return lambda one: rows.scan(row_filter=_of_iceberg(one)).to_arrow().num_rows


def polars_iceberg(table: Table) -> Reader:
    rows = polars.scan_iceberg(_metadata(table))
    return lambda one: _of_polars(rows, one)


OTHERS: dict[str, Callable[[Table], Reader]] = {
    **CORE,
    "pandas": pandas,
    "query-builder": query_builder,
    "polars": polars_itself,
    "polars-over-arrow": polars_over_arrow,
}
OF_ICEBERG: dict[str, Callable[[Table], Reader]] = {"pyiceberg": pyiceberg, "polars": polars_iceberg}


@pytest.mark.parametrize("reader", OTHERS)
@each_layout
def test_every_reader_of_delta_finds_the_rows_of_a_plain_scan(tmp_path: Path, layout: TableLayout, reader: str) -> None:
    table = filled(tmp_path, layout, DELTA, seed=SEED)
    rows = plain_scan(table)
    assert differences(rows, filters(rows, seed=SEED), OTHERS[reader](table)) == [], f"seed {SEED}"


@pytest.mark.parametrize("reader", OF_ICEBERG)
@each_layout
def test_every_reader_of_iceberg_finds_the_rows_of_a_plain_scan(
    tmp_path: Path, layout: TableLayout, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = filled(tmp_path, layout, ICEBERG, seed=SEED)
    rows = plain_scan(table)
    assert differences(rows, filters(rows, seed=SEED), OF_ICEBERG[reader](table)) == [], f"seed {SEED}"


@pytest.mark.timeout(PEERS_S + 100)
@pytest.mark.skipif(not TOOLS, reason="TIDELOG_READER_TOOLS names no folder; see tests/pipeline/peer_readers.py")
@pytest.mark.parametrize("reader", ["duckdb-delta", "delta-spark"])
def test_readers_with_code_of_their_own_find_the_rows_of_a_plain_scan(tmp_path: Path, reader: str) -> None:
    asked: dict[str, list[str]] = {}
    there: dict[str, list[int]] = {}
    for layout in ALL_LAYOUTS:
        table = filled(tmp_path, layout, DELTA, seed=SEED, commits=2)
        rows = plain_scan(table)
        of_table = [one for one in filters(rows, seed=SEED, values_max=1) if one.operator in ("=", "is null")]
        if reader == "delta-spark":
            # Its Parquet reader looks for 0.0 among a row group's values and does not find -0.0 there.
            of_table = [one for one in of_table if not (isinstance(one.value, float) and one.value == 0)]
        words = {"quote": "`"} if reader == "delta-spark" else {"binary": "unhex('{}')"}
        asked[str(table.folder)] = [one.sql(**words) for one in of_table]
        there[str(table.folder)] = [expected(rows, one) for one in of_table]
    found = _ask_peer(tmp_path, reader, asked)
    wrong = [
        f"{folder}: {where}: {seen} rows instead of {right}"
        for folder, wheres in asked.items()
        for where, right, seen in zip(wheres, there[folder], found[folder], strict=True)
        if right != seen
    ]
    assert wrong == [], f"seed {SEED}"


def _of_polars(rows: polars.LazyFrame, one: Filter) -> int:
    column = polars.col(one.column)
    if one.value is None:
        asked = column.is_null() if one.operator == "is null" else column.is_not_null()
    else:
        asked = {"=": column.eq, "!=": column.ne, "<": column.lt, "<=": column.le, ">": column.gt, ">=": column.ge}[
            one.operator
        ](polars.lit(one.value))
    return int(rows.filter(asked).select(polars.len()).collect().item())


def _of_iceberg(one: Filter) -> str | expressions.BooleanExpression:
    column = expressions.Reference(one.column)
    if one.value is None:
        return f"{one.column} {one.operator}"
    asked = {
        "=": expressions.EqualTo,
        "!=": expressions.NotEqualTo,
        "<": expressions.LessThan,
        "<=": expressions.LessThanOrEqual,
        ">": expressions.GreaterThan,
        ">=": expressions.GreaterThanOrEqual,
    }[one.operator](column, one.value)
    # Other than in SQL, null differs from every value.
    return expressions.And(asked, parser.parse(f"{one.column} is not null")) if one.operator == "!=" else asked


def _metadata(table: Table) -> str:
    return max((table.folder / "metadata").glob("*.metadata.json")).as_uri()


def _ask_peer(folder: Path, reader: str, asked: dict[str, list[str]]) -> dict[str, list[int]]:
    (folder / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, str(PEERS), reader, str(folder / "asked.json"), str(folder / "found.json")],
        env={**os.environ, "PYTHONPATH": TOOLS},
        capture_output=True,
        text=True,
        timeout=PEERS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, list[int]] = json.loads((folder / "found.json").read_text())
    return found
