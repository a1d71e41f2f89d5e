"""What other readers find in our tables with a filter on any column: the rows of a plain scan, no more and no fewer.

These readers take the bounds in the table's log at their word. `test_reader_matrix.py` asks all there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from tests.pipeline.reader_kit import ALL_LAYOUTS, Filter, differences, filled, filters, plain_scan
from tests.pipeline.table_kit import frames_batch, frames_table
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.maintenance import optimize
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.table import Table, TableLayout, TableStep

SEED = 17
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


CORE: dict[str, Callable[[Table], Reader]] = {
    "dataset": dataset,
    "duckdb-over-arrow": duckdb_over_arrow,
}


@pytest.mark.parametrize("reader", CORE)
@each_layout
def test_a_filter_on_any_column_finds_the_rows_of_a_plain_scan(
    tmp_path: Path, layout: TableLayout, reader: str
) -> None:
    table = filled(tmp_path, layout, DELTA, seed=SEED, commits=1)
    rows = plain_scan(table)
    assert differences(rows, filters(rows, seed=SEED, values_max=1), CORE[reader](table)) == [], f"seed {SEED}"


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
