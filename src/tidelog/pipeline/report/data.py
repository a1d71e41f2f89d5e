"""The data of the report: the newest days of the gold tables, read without Spark.

Gold is small: an hour is a row, a minute of track is a row. Files are chosen by the table's own log, so only those of
the asked days are opened. A table that is not there yet reads as empty.

DA1  At most `days_max` days, and positions of all boats together up to `POINTS_MAX` and no fewer than
     `BOAT_POINTS_MIN` of each, are shown, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.gold.schemas import (
    ELECTRICAL_HOURS,
    ENGINE_HOURS,
    ENVIRONMENT_HOURS,
    FLEET_HEALTH,
    TRACKS,
    TRIPS,
    GoldLayout,
)
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import DataFile, Table

DAYS_MAX: Final = 31
POINTS_MAX: Final = 50_000
"""A position is some 60 bytes of the page; more would make the page slow."""
BOAT_POINTS_MIN: Final = 200
_METRES_PER_MILE: Final = 1852.0

Row = dict[str, Any]
_SHOWN: Final = (TRACKS, TRIPS, ENGINE_HOURS, ELECTRICAL_HOURS, ENVIRONMENT_HOURS, FLEET_HEALTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Rows of every table by boat, in order of time. Every boat is in every mapping."""

    boats: Sequence[str]
    first_day: date | None
    last_day: date | None
    tracks: dict[str, list[Row]]
    """One position a minute, or fewer."""
    miles: dict[str, float]
    """The distance over all days shown, for boats that have positions."""
    trips: dict[str, list[Row]]
    engine: dict[str, list[Row]]
    electrical: dict[str, list[Row]]
    environment: dict[str, list[Row]]
    health: dict[str, list[Row]]


def read_report_data(tables: Path, *, table_format: str = DELTA, days_max: int = DAYS_MAX) -> ReportData:
    """The newest `days_max` days that any gold table has."""
    assert days_max > 0
    opened = {layout.name: open_table(tables, layout.table, table_format=table_format) for layout in _SHOWN}
    files = {name: table.files() if table.exists() else [] for name, table in opened.items()}
    days = {date.fromisoformat(file.partition[0]) for found in files.values() for file in found if file.partition[0]}
    last_day = max(days, default=None)
    first_shown = date.min if last_day is None else last_day - timedelta(days=days_max - 1)
    rows: dict[str, dict[str, list[Row]]] = {}
    miles: dict[str, float] = {}
    for layout in _SHOWN:
        shown = [
            file
            for file in files[layout.name]
            if file.partition[0] and date.fromisoformat(file.partition[0]) >= first_shown
        ]
        table = _read(opened[layout.name], layout, shown)
        if layout is TRACKS:
            miles = _miles(table)
            table = thinned(table, points_max=max(BOAT_POINTS_MIN, POINTS_MAX // max(1, len(miles))))
        rows[layout.name] = _by_boat(table)
    boats = sorted({boat for found in rows.values() for boat in found})
    full = {name: {boat: found.get(boat, []) for boat in boats} for name, found in rows.items()}
    return ReportData(
        boats=boats,
        first_day=min((day for day in days if day >= first_shown), default=None),
        last_day=last_day,
        tracks=full[TRACKS.name],
        miles=miles,
        trips=full[TRIPS.name],
        engine=full[ENGINE_HOURS.name],
        electrical=full[ELECTRICAL_HOURS.name],
        environment=full[ENVIRONMENT_HOURS.name],
        health=full[FLEET_HEALTH.name],
    )


def thinned(tracks: pa.Table, *, points_max: int) -> pa.Table:
    """Each n-th position of every boat, and its last one, so that no more than the limit are left (DA1)."""
    found = [tracks.slice(0, 0)]
    for boat in pc.unique(tracks.column("channel")):
        own = tracks.filter(pc.equal(tracks.column("channel"), boat))
        stride = -(-own.num_rows // (points_max - 1))
        if stride > 1:
            own = own.take([*range(0, own.num_rows - 1, stride), own.num_rows - 1])
        found.append(own)
    return pa.concat_tables(found)


def _miles(tracks: pa.Table) -> dict[str, float]:
    by_day = tracks.group_by(["channel", "day"]).aggregate([("distance_m", "max")])
    sums = by_day.group_by("channel").aggregate([("distance_m_max", "sum")])
    return {row["channel"]: row["distance_m_max_sum"] / _METRES_PER_MILE for row in sums.to_pylist()}


def _read(table: Table, layout: GoldLayout, files: Iterable[DataFile]) -> pa.Table:
    tables = [layout.table.schema.empty_table()]
    for file in files:
        rows = file_rows(table, file)
        tables.append(rows.filter(pc.equal(rows["grain"], "minute")) if layout is TRACKS else rows)
    return pa.concat_tables(tables).sort_by([(key, "ascending") for key in layout.keys])


def _by_boat(table: pa.Table) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in table.to_pylist():
        found.setdefault(row["channel"], []).append(row)
    return found
