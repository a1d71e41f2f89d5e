"""Tables of an older layout under newer code (T9), and columns that users add beside ours (T8)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.pipeline.table_kit import in_other_hands, written
from tidelog.errors import TableDiffers
from tidelog.pipeline.tables import FORMATS, open_table
from tidelog.pipeline.tables.delta_log import LOG
from tidelog.pipeline.tables.maintenance import optimize
from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import Table, TableLayout, TableStep

OLD = TableLayout(
    name="readings",
    schema=pa.schema([("channel", pa.string()), ("seq", pa.int64()), ("value", pa.float64())]),
    partition_by=("channel",),
)
NEW = replace(
    OLD,
    schema=pa.schema(
        [
            ("channel", pa.string()),
            ("seq", pa.int64()),
            ("unit", pa.string()),
            ("value", pa.float64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("level", pa.int16()),
        ]
    ),
    version=2,
)


def add(table: Table, first: int, *, unit: str = "m") -> None:
    count = 5
    every = {
        "channel": ["boat-1"] * count,
        "seq": list(range(first, first + count)),
        "unit": [unit] * count,
        "value": [0.5] * count,
        "at": [None] * count,
        "level": [7] * count,
    }
    schema = table.layout.schema
    batch = pa.RecordBatch.from_pydict({name: every[name] for name in schema.names}, schema=schema)
    start = table.consumed("main", "log")
    step = TableStep(upstream="log", start=start, end=(start or 0) + 1)
    table.commit_following("main", [step], written(table, batch))


def rows(table: Table) -> pa.Table:
    return pa.concat_tables(file_rows(table, file) for file in table.files()).sort_by("seq")


def as_others_read_it(table: Table, table_format: str) -> pa.Table:
    if table_format == "iceberg":
        return in_other_hands(table).scan().to_arrow().sort_by("seq")
    return pa.table(DeltaTable(str(table.folder)).to_pyarrow_table()).sort_by("seq")


def made_before_layouts_had_versions(folder: Path, table_format: str) -> Table:
    """As the release before this one left it: without the property."""
    table = open_table(folder, OLD, table_format=table_format)
    table.create()
    add(table, 0)
    if table_format == "iceberg":
        with in_other_hands(table).transaction() as change:
            change.remove_properties("tidelog.layout")
    else:
        for commit in (table.folder / LOG).glob("*.json"):
            commit.write_text(commit.read_text().replace('"tidelog.layout":"1"', '"unknown":"1"'))
    return open_table(folder, OLD, table_format=table_format)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_of_an_older_layout_gains_the_columns_and_reads_right(tmp_path: Path, table_format: str) -> None:
    made_before_layouts_had_versions(tmp_path, table_format)
    newer = open_table(tmp_path, NEW, table_format=table_format)
    before = rows(newer)
    assert before["unit"].null_count == before["level"].null_count == 5, "readable before anything is changed"
    newer.create()
    add(newer, 5)
    for _ in range(2):
        found = rows(open_table(tmp_path, NEW, table_format=table_format))
        assert found["seq"].to_pylist() == list(range(10))
        assert found["unit"].to_pylist() == [None] * 5 + ["m"] * 5
        assert found["level"].to_pylist() == [None] * 5 + [7] * 5
        assert found.schema == NEW.schema
        others = as_others_read_it(newer, table_format)
        assert others["unit"].to_pylist() == [None] * 5 + ["m"] * 5
        assert others["value"].to_pylist() == [0.5] * 10
        optimize(newer)
    assert len(newer.files()) == 1


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_commit_brings_the_table_up_without_create(tmp_path: Path, table_format: str) -> None:
    made_before_layouts_had_versions(tmp_path, table_format)
    add(open_table(tmp_path, NEW, table_format=table_format), 5)
    assert as_others_read_it(open_table(tmp_path, NEW, table_format=table_format), table_format)["unit"].null_count == 5


@pytest.mark.parametrize("table_format", FORMATS)
def test_older_code_refuses_a_table_of_a_newer_layout(tmp_path: Path, table_format: str) -> None:
    table = open_table(tmp_path, NEW, table_format=table_format)
    table.create()
    with pytest.raises(TableDiffers, match=r"layout is 2.*knows 1; use a newer Tidelog"):
        open_table(tmp_path, OLD, table_format=table_format).files()


@pytest.mark.parametrize("table_format", FORMATS)
def test_drivers_that_bring_a_table_up_at_once_add_each_column_once(tmp_path: Path, table_format: str) -> None:
    made_before_layouts_had_versions(tmp_path, table_format)
    failed: list[BaseException] = []

    def bring_up() -> None:
        try:
            open_table(tmp_path, NEW, table_format=table_format).create()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=bring_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    newer = open_table(tmp_path, NEW, table_format=table_format)
    assert sorted(newer.columns().names) == sorted(NEW.schema.names)


def test_an_upgrade_that_died_between_its_commits_is_finished(tmp_path: Path) -> None:
    table = made_before_layouts_had_versions(tmp_path, "delta")
    DeltaTable(str(table.folder)).alter.add_columns([Field("unit", PrimitiveType("string"))])
    newer = open_table(tmp_path, NEW)
    newer.create()
    add(newer, 5)
    assert rows(newer)["unit"].null_count == 5


@pytest.mark.parametrize("table_format", FORMATS)
def test_values_in_columns_of_users_survive_our_rewrites(tmp_path: Path, table_format: str) -> None:
    table = open_table(tmp_path, NEW, table_format=table_format)
    table.create()
    add(table, 0)
    if table_format == "iceberg":
        with in_other_hands(table).update_schema() as change:
            change.union_by_name(pa.schema([("note", pa.string())]))
        theirs = in_other_hands(table)
        noted = theirs.scan().to_arrow()
        place = noted.schema.get_field_index("note")
        theirs.overwrite(
            noted.set_column(place, noted.schema.field("note"), pa.array(["checked"] * 5, pa.large_string()))
        )
    else:
        DeltaTable(str(table.folder)).alter.add_columns([Field("note", PrimitiveType("string"))])
        DeltaTable(str(table.folder)).update(updates={"note": "'checked'"})
    table.accept()
    add(table, 5)
    assert optimize(table).files_after == 1
    assert as_others_read_it(table, table_format)["note"].to_pylist() == ["checked"] * 5 + [None] * 5
    assert rows(table)["seq"].to_pylist() == list(range(10))
