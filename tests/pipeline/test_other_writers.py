"""Other writers on every table of the pipeline between two runs: afterwards all rows are right, or the run is refused
in words and a rebuild makes them right.

delta-spark is tried where an environment has it: TIDELOG_DELTA_SPARK names a folder with `bin/python` (a virtual
environment with pyspark 4.2.0) and `jars` (io.delta:delta-spark_4.2_2.13:4.4.0, io.delta:delta-storage:4.4.0 and
org.antlr:antlr4-runtime:4.13.1). No connector exists for the PySpark that Tidelog uses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.pipeline.folders import NOW_US, put, small_store
from tests.pipeline.test_rebuild import run, settings_of
from tidelog.blocks.control import RangeLost, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import ForeignChange, TableUnsupported
from tidelog.pipeline.engine import find_java
from tidelog.pipeline.gold.gold_job import run_gold
from tidelog.pipeline.gold.schemas import LAYOUTS
from tidelog.pipeline.jobs.rebuild import rebuild
from tidelog.pipeline.jobs.runner import gold_options, tables_of
from tidelog.pipeline.settings import PipelineSettings
from tidelog.pipeline.tables.reading import file_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US: Final = NOW_US - 600_000_000
"""Before its arrival: clocks that must be moved are moved by what a step knows, which differs from step to step."""
PART_S: Final = 70
"""More than a device must be silent for its row to be written anew."""
LINEAGE: Final = b"\xab" * 16

# A column that tells rows apart, and a condition that some rows of the table meet.
_ROWS: Final = {
    "frames": ("offset", "offset < 20"),
    "lost_ranges": ("seq_start", "seq_start > 0"),
    "signals": ("seq", "seq < 20"),
    "undecoded": ("pgn", "frames >= 0"),
    "devices": ("source", "source >= 0"),
    "clock_shifts": ("seq_start", "seq_start < 1000"),
    "tracks": ("time", "grain = 'second'"),
}
TABLES: Final = {**_ROWS, **{one.name: _ROWS.get(one.name, ("day", "day IS NOT NULL")) for one in LAYOUTS}}

pytestmark = pytest.mark.slow


def lengthen(log: Path, number: int) -> None:
    """One more part of the boat's trip, with a hole that is said to be lost."""
    store = small_store(log)
    start_us = START_US + number * PART_S * 1_000_000
    columns = Voyage(seed=1, start_us=START_US).frames(start_us, start_us + PART_S * 1_000_000)
    first_seq = number * 1_000_000 + 1
    put(store, "boat-1", [encode_frames(columns, base_seq=first_seq, producer=LINEAGE)])
    lost = RangeLost(lineage=LINEAGE.hex(), start=first_seq + 900_000, end=first_seq + 900_010)
    put(store, "boat-1", [encode_control([lost], time_us=NOW_US)])
    store.close(NOW_US)


def run_all(spark: SparkSession, settings: PipelineSettings) -> None:
    run(settings)
    run_gold(spark, gold_options(settings))


def content(settings: PipelineSettings, *names: str) -> dict[str, pa.Table]:
    """The rows of these tables, or of all, in an order that does not depend on files."""
    found = {}
    for table in tables_of(settings):
        if names and table.layout.name not in names:
            continue
        rows = pa.concat_tables([table.layout.schema.empty_table(), *(file_rows(table, one) for one in table.files())])
        if table.layout.name == "undecoded":  # counted step by step
            keys = [name for name in rows.column_names if name != "frames"]
            rows = rows.group_by(keys).aggregate([("frames", "sum")])
        columns = sorted(rows.column_names)
        found[table.layout.name] = rows.select(columns).sort_by([(name, "ascending") for name in columns])
    return found


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, pa.Table]]:
    """Log and tables after two runs, with a third part in the log; and the content after a third run."""
    folder = tmp_path_factory.mktemp("writers")
    settings = settings_of(folder)
    for number in range(3):
        lengthen(folder / "log", number)
        if number < 2:
            run_all(spark, settings)
    undisturbed = folder.with_name("undisturbed")
    shutil.copytree(folder, undisturbed)
    expected_settings = settings_of(undisturbed)
    run_all(spark, expected_settings)
    expected = content(expected_settings)
    assert set(expected) == set(TABLES), "every table is in the matrix"
    return folder, expected


Writer = Callable[[str, Path, str], None]
"""Takes an operation, a table's folder and name."""


def by_deltalake(operation: str, folder: Path, name: str) -> None:
    key, condition = TABLES[name]
    table = DeltaTable(str(folder))
    match operation:
        case "DELETE":
            table.delete(condition)
        case "UPDATE":
            table.update(updates={"channel": "'boat-9'"}, predicate=condition)
        case "MERGE":
            rows = pa.table(table.to_pyarrow_table(columns=[key])).group_by(key).aggregate([]).slice(0, 3)
            merger = table.merge(rows, f"t.{key} = s.{key}", source_alias="s", target_alias="t")
            merger.when_matched_delete().execute()
        case "OPTIMIZE":
            table.optimize.compact()
        case "RESTORE":
            if table.version() > 1:
                table.restore(1)
        case "COLUMN":
            from deltalake import Field
            from deltalake.schema import PrimitiveType

            table.alter.add_columns([Field("note", PrimitiveType("string"))])
        case _:
            raise AssertionError(operation)


class DeltaSpark:
    """Another PySpark, in a process of its own."""

    def __init__(self, place: Path) -> None:
        environment = {**os.environ, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"}
        for dropped in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
            environment.pop(dropped, None)
        script = Path(__file__).with_name("delta_spark_writer.py")
        self._process = subprocess.Popen(
            [place / "bin" / "python", script, place / "jars"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._answer()["ready"]

    def sql(self, statement: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        error = self._answer()["error"]
        assert error is None, f"{statement}: {error}"

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError("the other Spark has ended")

    def __call__(self, operation: str, folder: Path, name: str) -> None:
        key, condition = TABLES[name]
        table = f"delta.`{folder}`"
        match operation:
            case "DELETE":
                self.sql(f"DELETE FROM {table} WHERE {condition}")
            case "UPDATE":
                self.sql(f"UPDATE {table} SET channel = 'boat-9' WHERE {condition}")
            case "MERGE":
                rows = f"SELECT DISTINCT {key} FROM {table} ORDER BY {key} LIMIT 3"
                self.sql(f"MERGE INTO {table} t USING ({rows}) s ON t.{key} = s.{key} WHEN MATCHED THEN DELETE")
            case "OPTIMIZE":
                self.sql(f"OPTIMIZE {table}")
            case "RESTORE":
                if DeltaTable(str(folder)).version() > 1:
                    self.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")
            case "COLUMN":
                self.sql(f"ALTER TABLE {table} ADD COLUMNS (note STRING)")
            case "VECTORS":
                self.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
                self.sql(f"DELETE FROM {table} WHERE {condition}")
            case _:
                raise AssertionError(operation)


@pytest.fixture(scope="module")
def delta_spark() -> Iterator[DeltaSpark]:
    place = os.environ.get("TIDELOG_DELTA_SPARK")
    if place is None:
        pytest.skip("TIDELOG_DELTA_SPARK names no environment with delta-spark")
    opened = DeltaSpark(Path(place))
    yield opened
    opened.close()


def versions_of(settings: PipelineSettings) -> dict[str, int]:
    return {table.layout.name: DeltaTable(str(table.folder)).version() for table in tables_of(settings)}


FOLLOWED: Final = ("OPTIMIZE", "COLUMN")
REBUILT: Final = ("DELETE", "MERGE", "RESTORE", "VECTORS")
"""Not UPDATE, which leaves frames of a channel that the log does not have: those are never taken away unasked (RB1)."""


def check(
    spark: SparkSession, lake: tuple[Path, dict[str, pa.Table]], folder: Path, write: Writer, operation: str
) -> None:
    """Every table is changed by the other writer: the pipeline follows, or refuses each of them until it is rebuilt."""
    made, expected = lake
    shutil.copytree(made, folder, dirs_exist_ok=True)
    settings = settings_of(folder)
    before = content(settings)
    for name in TABLES:
        write(operation, settings.tables / name, name)
    disturbed = versions_of(settings)
    refused = [name for name in TABLES if is_refused(settings, name, before[name])]
    assert bool(refused) == (operation not in FOLLOWED), f"{operation} refused {refused}"
    if refused:
        with pytest.raises((ForeignChange, TableUnsupported)):
            run_all(spark, settings)
        assert versions_of(settings) == disturbed, "nothing was written into any of them"
        if operation not in REBUILT:
            return
        for name in refused:
            rebuild(settings, name)
    run_all(spark, settings)
    found = content(settings)
    for one in TABLES:
        assert found[one].equals(expected[one]), f"{one} differs after {operation}"


def is_refused(settings: PipelineSettings, name: str, before: pa.Table) -> bool:
    """Whether a reader of the table is sent to `rebuild`. If not, it reads the rows that were there."""
    refusal, found = "", before
    try:
        found = content(settings, name)[name]
    except (ForeignChange, TableUnsupported) as error:
        refusal = str(error)
    assert not refusal or f"tidelog pipeline rebuild {name}" in refusal
    assert found.equals(before), f"{name} has other rows, and is not refused"
    return bool(refusal)


OPERATIONS: Final = ("DELETE", "UPDATE", "MERGE", "OPTIMIZE", "RESTORE", "COLUMN")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_deltalake_every_row_is_right_or_the_table_is_refused(
    spark: SparkSession, lake: tuple[Path, dict[str, pa.Table]], tmp_path: Path, operation: str
) -> None:
    check(spark, lake, tmp_path, by_deltalake, operation)


@pytest.mark.parametrize("operation", [*OPERATIONS, "VECTORS"])
def test_after_delta_spark_every_row_is_right_or_the_table_is_refused(
    spark: SparkSession,
    lake: tuple[Path, dict[str, pa.Table]],
    delta_spark: DeltaSpark,
    tmp_path: Path,
    operation: str,
) -> None:
    check(spark, lake, tmp_path, delta_spark, operation)
