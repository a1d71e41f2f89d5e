"""What the demo asks of its tables, and how it knows that the answers are right.

The answers come from the tables as anybody would ask them: Spark SQL over `environment` and `signals`. What they must
be comes from elsewhere: the strongest wind from the raw bytes of the wind messages in `frames`, without the decoders;
the last position from the voyage itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.units import US_PER_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.tables.table import TableLayout

WIND_PGN: Final = 130_306
"""Wind data: a byte of sequence, then the speed as 16 bits of 0.01 m/s."""
WIND_ERROR_MAX: Final = 0.005
POSITION_ERROR_MAX: Final = 1e-6
MAX_WIND_SQL: Final = """\
SELECT channel, hour, apparent_wind_mps_max AS wind FROM environment
WHERE apparent_wind_mps_max IS NOT NULL ORDER BY channel, hour"""
_POSITION_SQL: Final = """\
SELECT channel, max_by(time, seq) AS time, max_by(value, seq) AS value, signal FROM signals
WHERE signal IN ('position_rapid_update.latitude', 'position_rapid_update.longitude') GROUP BY channel, signal"""
_HOUR_US: Final = 3_600 * US_PER_S

Hours = dict[tuple[str, int], float]
"""By channel and hour (since 1970)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoatPosition:
    time_us: int
    latitude: float
    longitude: float

    def __str__(self) -> str:
        north, east = "N" if self.latitude >= 0 else "S", "E" if self.longitude >= 0 else "W"
        return f"{abs(self.latitude):.5f} {north}, {abs(self.longitude):.5f} {east}"


def max_wind(spark: SparkSession, tables: Path) -> Hours:
    """The answer of `MAX_WIND_SQL`."""
    from tidelog.pipeline.gold.schemas import ENVIRONMENT_HOURS

    _view(spark, tables, ENVIRONMENT_HOURS.table)
    rows = spark.sql(MAX_WIND_SQL).collect()
    return {(row["channel"], _us(row["hour"]) // _HOUR_US): float(row["wind"]) for row in rows}


def max_wind_in_bytes(tables: Path) -> Hours:
    """The same from the bytes of the frames, without decoder and without Spark."""
    import pyarrow.parquet as pq

    from tidelog.pipeline.tables import open_table
    from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT

    found: Hours = {}
    table = open_table(tables, FRAMES_LAYOUT)
    for file in table.files():
        with pq.ParquetFile(table.path_of(file)) as opened:
            rows = opened.read(columns=["channel", "time", "pgn", "data"])
        rows = rows.filter(np.asarray(rows["pgn"]) == WIND_PGN)
        payloads = np.frombuffer(b"".join(rows["data"].to_pylist()), dtype=np.uint8).reshape(-1, 8)
        speeds = np.ascontiguousarray(payloads[:, 1:3]).view("<u2")[:, 0] * 0.01
        hours = rows["time"].to_numpy().astype("datetime64[h]").astype(np.int64)
        for channel, hour, speed in zip(rows["channel"].to_pylist(), hours.tolist(), speeds.tolist(), strict=True):
            found[channel, hour] = max(found.get((channel, hour), 0.0), speed)
    return found


def wrong_winds(answered: Hours, measured: Hours) -> list[str]:
    """Hours in which the two do not agree."""
    return [
        f"the strongest wind of {channel} in hour {hour} is {answered.get((channel, hour))} by SQL, "
        f"{measured.get((channel, hour))} in the frames"
        for channel, hour in sorted(answered.keys() | measured.keys())
        if abs(answered.get((channel, hour), -1.0) - measured.get((channel, hour), -1.0)) > WIND_ERROR_MAX
    ]


def last_positions(spark: SparkSession, tables: Path) -> Mapping[str, BoatPosition]:
    """Where each boat was when its newest position was measured, from `signals`."""
    from tidelog.pipeline.tables.layouts import SIGNALS_LAYOUT

    _view(spark, tables, SIGNALS_LAYOUT)
    parts: dict[str, dict[str, tuple[int, float]]] = {}
    for row in spark.sql(_POSITION_SQL).collect():
        parts.setdefault(row["channel"], {})[row["signal"].partition(".")[2]] = _us(row["time"]), float(row["value"])
    return {
        channel: BoatPosition(time_us=both["latitude"][0], latitude=both["latitude"][1], longitude=both["longitude"][1])
        for channel, both in sorted(parts.items())
        if len(both) == 2
    }


def _view(spark: SparkSession, tables: Path, layout: TableLayout) -> None:
    """The table's live files under its name in SQL."""
    from tidelog.pipeline.gold.partitions import read_files
    from tidelog.pipeline.tables import open_table

    table = open_table(tables, layout)
    read_files(spark, table, table.files()).createOrReplaceTempView(layout.name)


def _us(moment: datetime) -> int:
    """Spark gives local times without a zone."""
    return round(moment.astimezone().timestamp() * US_PER_S)
