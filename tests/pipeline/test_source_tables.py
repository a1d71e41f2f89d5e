"""Tables and views over channels: what a source makes of all that Spark passes, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.pipeline.folders import BLOCK_ROWS, NOW_US, frame_blocks, put, small_store
from tidelog.errors import InvalidConfig
from tidelog.pipeline.sources.source import TidelogSource

OF_TABLE = {"provider": "tidelog", "owner": "skipper", "location": "file:/lake", "team": "sea", "header": "true"}
"""What Spark 4.3 adds in `CREATE TABLE`: properties of the table, those of the user among them."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(tmp_path / "node", "boat-1", 2)
    add(tmp_path / "node", "boat-2", 2)
    return tmp_path / "node"


def add(folder: Path, channel: str, blocks: int) -> None:
    store = small_store(folder)
    put(store, channel, frame_blocks(blocks))
    store.close(NOW_US)


def created(**options: str) -> StructType:
    """The schema that Spark stores for a table with these options, and gives back."""
    repeated = {f"option.{name}": value for name, value in options.items() if name != "path"}
    made = TidelogSource({**OF_TABLE, **options, **repeated}).schema()
    return StructType.fromJson(json.loads(made.json()))


def rows(source: TidelogSource, schema: StructType) -> int:
    reader = source.reader(schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    return sum(batch.num_rows for batch in batches)  # type: ignore[union-attr]


def test_a_table_is_read_with_the_options_it_was_made_with(folder: Path) -> None:
    schema = created(path=f"file:{folder}", channels="boat-1")
    assert rows(TidelogSource({}), schema) == 2 * BLOCK_ROWS
    assert rows(TidelogSource({"channels": "boat-*"}), schema) == 4 * BLOCK_ROWS, "WITH goes before"
    elsewhere = TidelogSource({"path": str(folder)})
    assert rows(elsewhere, schema) == 4 * BLOCK_ROWS, "a schema alone narrows no read of something else"


def test_each_query_of_a_table_sees_the_present_and_a_plan_is_as_of_its_making(folder: Path) -> None:
    schema = created(path=str(folder))
    planned = TidelogSource({}).reader(schema)
    tasks = planned.partitions()
    add(folder, "boat-1", 1)
    assert sum(batch.num_rows for task in tasks for batch in planned.read(task)) == 4 * BLOCK_ROWS  # type: ignore[union-attr]
    assert rows(TidelogSource({}), schema) == 5 * BLOCK_ROWS


def test_the_schema_says_whether_it_is_as_of_a_moment_or_the_present(folder: Path) -> None:
    view = TidelogSource({"path": str(folder)}).schema()
    assert view.fields[0].metadata["comment"].startswith("as of 20")
    assert "CREATE TABLE" in view.fields[0].metadata["comment"]
    assert created(path=str(folder)).fields[0].metadata["comment"] == "the present in each query"
    assert all(not field.metadata for field in view.fields[1:])


def test_sparks_own_properties_are_no_typos_and_slips_among_them_are(folder: Path) -> None:
    for slip, words in (({"chanels": "boat-1"}, "did you mean 'channels'"), ({"teem": "x"}, "'teem' is not known")):
        with pytest.raises(InvalidConfig, match=words):
            created(path=str(folder), **slip)
    with pytest.raises(InvalidConfig, match="channels is a property of the table, and no option; write it under"):
        TidelogSource({**OF_TABLE, "path": str(folder), "channels": "boat-1"}).schema()
    with pytest.raises(InvalidConfig, match="'owner' is not known"):
        TidelogSource({"path": str(folder), "owner": "skipper"}).schema()


def test_a_table_with_a_list_of_columns_is_told_what_to_do(folder: Path) -> None:
    schema = TidelogSource({"path": str(folder)}).schema()
    with pytest.raises(InvalidConfig, match="make it without the list, and select the columns"):
        TidelogSource({}).reader(schema)


def test_certificates_of_a_table_are_named_by_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schema = created(cluster="n1:9500", certificate="op.crt", key="op.key", authority="ca.crt")
    kept = json.loads(schema.fields[0].metadata["tidelog.options"])
    assert kept["certificate"] == str(tmp_path / "op.crt")
    assert kept["cluster"] == "n1:9500"
    assert not set(kept) & set(OF_TABLE)
