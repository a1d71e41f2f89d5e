"""The layout of every gold table, in Arrow.

All are partitioned by (day, channel). `keys` name the columns that order and identify the rows of a
partition: written in this order, so that equal content is equal bytes on comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.pipeline.gold.columns import ELECTRICAL, ENGINE, ENVIRONMENT, NAVIGATION, Measure, column_names
from tidelog.pipeline.tables.table import TableLayout

_TIME: Final = pa.timestamp("us", tz="UTC")
_PARTITION: Final = [pa.field("channel", pa.string()), pa.field("day", pa.date32())]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldLayout:
    """A gold table and the order of its rows."""

    table: TableLayout
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.table.name


def _layout(name: str, fields: Iterable[tuple[str, pa.DataType]], *keys: str) -> GoldLayout:
    own = [pa.field(column, kind) for column, kind in fields]
    table = TableLayout(name=name, schema=pa.schema(_PARTITION + own), partition_by=("day", "channel"))
    return GoldLayout(table=table, keys=("day", "channel", *keys))


def _measured(measures: Iterable[Measure]) -> list[tuple[str, pa.DataType]]:
    names = column_names(measures)
    return [(f"{name}_{what}", pa.float64()) for name in names for what in ("min", "mean", "max")]


TRACKS: Final = _layout(
    "tracks",
    [
        ("grain", pa.string()),  # "second" | "minute"
        ("time", _TIME),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("speed_mps", pa.float64()),
        ("course_deg", pa.float64()),
        ("distance_m", pa.float64()),  # since the first position of the day
        ("clock", pa.string()),  # "ok", or "placed" where the boat's clock was wrong and the time is a guess
    ],
    "grain",
    "time",
)

TRIPS: Final = _layout(
    "trips",  # in the partition of the day on which the trip began
    [
        ("start_time", _TIME),
        ("end_time", _TIME),
        ("start_latitude", pa.float64()),
        ("start_longitude", pa.float64()),
        ("end_latitude", pa.float64()),
        ("end_longitude", pa.float64()),
        ("miles", pa.float64()),  # nautical
        ("speed_max_mps", pa.float64()),
        ("engine_hours", pa.float64()),  # of all engines together; null where none was heard
        ("ended", pa.bool_()),  # false: the data ends before ten minutes of rest were seen
    ],
    "start_time",
)

ENGINE_HOURS: Final = _layout(
    "engine",
    [
        ("hour", _TIME),
        ("instance", pa.int32()),
        ("running_seconds", pa.float64()),  # null where no speed was heard
        *_measured(ENGINE),
        ("samples", pa.int64()),
    ],
    "hour",
    "instance",
)

ENGINE_METERS: Final = _layout(
    "engine_meters",
    [
        ("instance", pa.int32()),
        ("meter_h_first", pa.float64()),  # hours that the engine has run in all, as it counts them
        ("meter_h_last", pa.float64()),
        ("samples", pa.int64()),
    ],
    "instance",
)

ELECTRICAL_HOURS: Final = _layout(
    "electrical",
    [("hour", _TIME), ("instance", pa.int32()), *_measured(ELECTRICAL), ("samples", pa.int64())],
    "hour",
    "instance",
)

ENVIRONMENT_HOURS: Final = _layout(
    "environment",
    [("hour", _TIME), *_measured(ENVIRONMENT), ("samples", pa.int64())],
    "hour",
)

SENSOR_HOURS: Final = _layout(
    "sensors",
    [
        ("hour", _TIME),
        ("quantity", pa.string()),  # a column of `environment` without _min, _mean, _max; or depth_below_transducer_m
        ("signal", pa.string()),
        ("reference", pa.string()),  # what the message says that it measures, such as "Apparent"
        ("instance", pa.int32()),
        ("device", pa.string()),
        ("source", pa.int16()),  # of several, the lowest
        ("primary", pa.bool_()),
        ("min", pa.float64()),
        ("mean", pa.float64()),
        ("max", pa.float64()),
        ("samples", pa.int64()),
    ],
    "hour",
    "quantity",
    "signal",
    "reference",
    "instance",
    "device",
    "source",
)

NAVIGATION_MINUTES: Final = _layout(
    "navigation",
    [
        ("time", _TIME),  # the minute; angles in degrees, 0 to 360
        *((name, pa.float64()) for name in column_names(NAVIGATION)),
        ("samples", pa.int64()),
    ],
    "time",
)

TANK_HOURS: Final = _layout(
    "tanks",
    [
        ("hour", _TIME),
        ("fluid", pa.string()),
        ("instance", pa.int32()),
        *((f"level_percent_{what}", pa.float64()) for what in ("min", "mean", "max")),
        ("capacity_l", pa.float64()),
        ("samples", pa.int64()),
    ],
    "hour",
    "fluid",
    "instance",
)

AIS_TARGETS: Final = _layout(
    "ais_targets",
    [
        ("mmsi", pa.int64()),
        ("kind", pa.string()),  # class A, class B, base station, aid to navigation, aircraft
        ("own", pa.bool_()),  # the boat's own transponder
        ("name", pa.string()),
        ("callsign", pa.string()),
        ("ship_type", pa.string()),
        ("destination", pa.string()),
        ("nav_status", pa.string()),
        ("length_m", pa.float64()),
        ("beam_m", pa.float64()),
        ("draft_m", pa.float64()),
        ("first_time", _TIME),
        ("last_time", _TIME),
        ("positions", pa.int64()),
        ("position_time", _TIME),  # of the last position, speed and course
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("speed_mps", pa.float64()),
        ("course_deg", pa.float64()),
        ("speed_max_mps", pa.float64()),
        ("messages", pa.int64()),
    ],
    "mmsi",
)

COVERAGE: Final = _layout(
    "coverage",  # what `frames` holds, one row per lineage and hour; fleet_health is made from it
    [
        ("hour", _TIME),
        ("lineage", pa.string()),
        ("seq_first", pa.int64()),
        ("seq_last", pa.int64()),
        ("time_first", _TIME),
        ("time_last", _TIME),
        ("held", pa.int64()),
        ("live", pa.int64()),
        ("backfill", pa.int64()),
        ("publish", pa.int64()),
        ("wrong_clock", pa.int64()),  # counted into the hour of their arrival
        ("lag_p50_s", pa.float64()),
        ("lag_max_s", pa.float64()),
        ("live_lag_p50_s", pa.float64()),
        ("live_lag_max_s", pa.float64()),
    ],
    "hour",
    "lineage",
)

FLEET_HEALTH: Final = _layout(
    "fleet_health",
    [
        ("hour", _TIME),
        ("held", pa.int64()),
        ("holes", pa.int64()),  # frames that exist on the boat, as far as anybody knows, and not here
        ("lost", pa.int64()),  # frames that can no longer be had
        ("coverage", pa.float64()),  # held / (held + holes + lost)
        ("live", pa.int64()),
        ("backfill", pa.int64()),
        ("publish", pa.int64()),
        ("wrong_clock", pa.int64()),
        ("lag_p50_s", pa.float64()),  # seconds from the bus to the leader's append
        ("lag_max_s", pa.float64()),
        ("live_lag_p50_s", pa.float64()),
        ("live_lag_max_s", pa.float64()),
    ],
    "hour",
)

LAYOUTS: Final = (
    TRACKS,
    TRIPS,
    ENGINE_HOURS,
    ENGINE_METERS,
    ELECTRICAL_HOURS,
    ENVIRONMENT_HOURS,
    SENSOR_HOURS,
    NAVIGATION_MINUTES,
    TANK_HOURS,
    AIS_TARGETS,
    COVERAGE,
    FLEET_HEALTH,
)
