"""What other readers find in our tables with a filter on any column: the rows of a plain scan, no more and no fewer.

The fast tests ask readers that take the bounds in the table's log at their word, the slow ones ask all.

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

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg import expressions
from pyiceberg.expressions import parser
from pyiceberg.table import StaticTable

from tests.pipeline.reader_kit import ALL_LAYOUTS, Filter, differences, expected, filled, filters, plain_scan
from tests.pipeline.table_kit import frames_batch, frames_table
from tidelog.pipeline.tables import DELTA, ICEBERG, open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.maintenance import optimize
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.table import Table, TableLayout, TableStep

SEED = 17
PEERS = Path(__file__).with_name("peer_readers.py")
TOOLS = os.environ.get("TIDELOG_READER_TOOLS", "")
Reader = Callable[[Filter], int]

each_layout = pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=lambda layout: layout.name)


def dataset(table: Table) -> Reader:
    rows = DeltaTable(str(table.folder)).to_pyarrow_dataset()
    return lambda one: rows.to_table(filter=one.expression()).num_rows


def duckdb_over_arrow(table: Table) -> Reader:
    rows = DeltaTable(str(table.folder)).to_pyarrow_dataset()
    database = duckdb.connect()
    database.register("rows", rows)

    def counted(one: Filter) -> int:
        (found,) = database.sql(f"select count(*) from rows where {one.sql()}").fetchall()
        return int(found[0])

    return counted


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


CORE: dict[str, Callable[[Table], Reader]] = {
    "dataset": dataset,
    "duckdb-over-arrow": duckdb_over_arrow,
}
OTHERS: dict[str, Callable[[Table], Reader]] = {
    **CORE,
    "pandas": pandas,
    "query-builder": query_builder,
    "polars": polars_itself,
    "polars-over-arrow": polars_over_arrow,
}
OF_ICEBERG: dict[str, Callable[[Table], Reader]] = {"pyiceberg": pyiceberg, "polars": polars_iceberg}


@pytest.mark.parametrize("reader", CORE)
@each_layout
def test_a_filter_on_any_column_finds_the_rows_of_a_plain_scan(
    tmp_path: Path, layout: TableLayout, reader: str
) -> None:
    table = filled(tmp_path, layout, DELTA, seed=SEED, commits=1)
    rows = plain_scan(table)
    assert differences(rows, filters(rows, seed=SEED, values_max=1), CORE[reader](table)) == [], f"seed {SEED}"


@pytest.mark.slow
@pytest.mark.parametrize("reader", OTHERS)
@each_layout
def test_every_reader_of_delta_finds_the_rows_of_a_plain_scan(tmp_path: Path, layout: TableLayout, reader: str) -> None:
    table = filled(tmp_path, layout, DELTA, seed=SEED)
    rows = plain_scan(table)
    assert differences(rows, filters(rows, seed=SEED), OTHERS[reader](table)) == [], f"seed {SEED}"


@pytest.mark.slow
@pytest.mark.parametrize("reader", OF_ICEBERG)
@each_layout
def test_every_reader_of_iceberg_finds_the_rows_of_a_plain_scan(
    tmp_path: Path, layout: TableLayout, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    table = filled(tmp_path, layout, ICEBERG, seed=SEED)
    rows = plain_scan(table)
    assert differences(rows, filters(rows, seed=SEED), OF_ICEBERG[reader](table)) == [], f"seed {SEED}"


@pytest.mark.slow
@pytest.mark.skipif(not TOOLS, reason="TIDELOG_READER_TOOLS names no folder; see tests/pipeline/peer_readers.py")
@pytest.mark.parametrize("reader", ["duckdb-delta", "delta-spark"])
def test_readers_with_code_of_their_own_find_the_rows_of_a_plain_scan(tmp_path: Path, reader: str) -> None:
    asked: dict[str, list[str]] = {}
    there: dict[str, list[int]] = {}
    for layout in ALL_LAYOUTS:
        table = filled(tmp_path, layout, DELTA, seed=SEED, commits=2)
        rows = plain_scan(table)
        of_table = list(filters(rows, seed=SEED, values_max=1))
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


def test_files_are_still_skipped_by_their_bounds(tmp_path: Path) -> None:
    table = frames_table(tmp_path)
    for number in range(4):
        with PartitionedWriter(table.folder, table.layout) as writer:
            writer.write_split(frames_batch(number * 10, number * 10 + 10))
            step = TableStep(upstream="test", start=number or None, end=number + 1)
            table.commit_following("test", [step], writer.close())
    rows = DeltaTable(str(table.folder)).to_pyarrow_dataset()
    asked = Filter(column="offset", operator="=", value=25)
    assert len(list(rows.get_fragments(filter=asked.expression()))) == 1


def test_optimize_makes_files_of_earlier_versions_readable(tmp_path: Path) -> None:
    table = frames_table(tmp_path)
    with PartitionedWriter(table.folder, table.layout) as writer:
        writer.write_split(frames_batch(0, 100))
        table.commit_following("test", [TableStep(upstream="test", start=None, end=1)], writer.close())
    _forget_bounds(table, keep=("seq", "offset", "time", "pgn", "source", "append_time"))
    asked = Filter(column="priority", operator="=", value=2)
    assert dataset(table)(asked) == 0
    again = open_table(tmp_path, FRAMES_LAYOUT)
    assert optimize(again).files_after == 1
    assert dataset(again)(asked) == 100
    assert optimize(again).files_after == 0


def _forget_bounds(table: Table, *, keep: tuple[str, ...]) -> None:
    """What Tidelog wrote before it wrote the bounds of all columns."""
    commit = max((table.folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            told = json.loads(action["add"]["stats"])
            for what in ("minValues", "maxValues", "nullCount"):
                told[what] = {name: value for name, value in told[what].items() if name in keep}
            action["add"]["stats"] = json.dumps(told)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


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
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, list[int]] = json.loads((folder / "found.json").read_text())
    return found
