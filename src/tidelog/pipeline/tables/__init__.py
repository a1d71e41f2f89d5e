"""Tables of Delta or Iceberg: transactions that hold rows and positions together.

Modules:

    committing     The common part of tables of every format
    delta          Tables in the Delta format, committed through `deltalake`
    delta_log      The commits of a Delta log: who made them, and what they did to the rows
    following      Whether the table below is still the one that a table was built from
    iceberg        Tables in the Iceberg format, committed through `pyiceberg` into a catalog file beside the tables
    layouts        The tables that follow a log directly
    maintenance    Joining small files and removing orphans
    parquet_files  Arrow batches into Parquet files of a table
    reading        Rows of a table's files in the columns of its layout, whichever writer made the file
    shared_folder  Proof that a task works in the same folder as the driver
    synced_io      Iceberg's metadata files, each on disk before anything refers to it
    table          A table whose transactions store the pipeline's position
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidelog.errors import InvalidConfig
from tidelog.extras import optional
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.tables.table import Table, TableLayout

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (DELTA, ICEBERG)
_ODD_LETTERS: Final = {DELTA: "%", ICEBERG: "%#?"}
"""In URIs they begin an escape, a fragment and a query. The libraries do not agree when a path is one."""


def open_table(tables: Path | str, layout: TableLayout, *, table_format: str = DELTA) -> Table:
    """The table of this layout in a folder of tables. It need not exist yet; see `Table.create`."""
    folder = Path(local_path(tables, name="tables")) / layout.name
    if odd := [letter for letter in _ODD_LETTERS.get(table_format, "") if letter in str(folder)]:
        where = str(folder.parent)
        problem = f"tables are in {where!r}: readers of tables take {odd[0]} for an escape; rename the folder"
        raise InvalidConfig(section="pipeline", problems=[problem])
    if table_format == DELTA:
        with optional("a Delta table"):
            from tidelog.pipeline.tables.delta import DeltaFolder

        return DeltaFolder(folder, layout)
    if table_format == ICEBERG:
        with optional("an Iceberg table"):
            from tidelog.pipeline.tables.iceberg import IcebergFolder

        return IcebergFolder(folder, layout)
    raise InvalidConfig(section="pipeline", problems=[f"{table_format!r} is no table format; choose delta or iceberg"])
