"""The tables that follow a log directly: `frames` and `lost_ranges` from channels, and those decoded from frames.

The layouts of gold tables are in `gold.schemas`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidelog.pipeline.sources.columns import FRAMES
from tidelog.pipeline.tables.table import TableLayout
from tidelog.signals.devices import DEVICES_SCHEMA

_TIME: Final = pa.timestamp("us", tz="UTC")

FRAMES_LAYOUT: Final = TableLayout(
    name="frames",
    schema=FRAMES.append(pa.field("append_day", pa.date32())),
    # The leader's day, never the boat's: a wrong clock must not make partitions of 1970 (B1, P3).
    partition_by=("append_day", "channel"),
    rising=("seq", "offset", "time", "append_time"),
    plain=("data",),
)
LOST_RANGES_LAYOUT: Final = TableLayout(
    name="lost_ranges",
    schema=pa.schema(
        [
            ("channel", pa.string()),
            ("lineage", pa.string()),
            ("seq_start", pa.int64()),  # half-open
            ("seq_end", pa.int64()),
            ("kind", pa.string()),  # lost, or void
        ]
    ),
    partition_by=("channel",),
)
CLOCK_SHIFTS_LAYOUT: Final = TableLayout(
    name="clock_shifts",
    schema=pa.schema(
        [
            ("channel", pa.string()),
            ("lineage", pa.string()),
            ("seq_start", pa.int64()),  # half-open; offsets where the lineage is null
            ("seq_end", pa.int64()),
            ("shift_us", pa.int64()),  # what was added to the times of these frames
            ("clock", pa.string()),  # gps or placed
            ("time_start", _TIME),  # placed
            ("time_end", _TIME),
        ]
    ),
    partition_by=("channel",),
)
SIGNALS_LAYOUT: Final = TableLayout(
    name="signals",
    schema=pa.schema(
        [
            ("channel", pa.string()),
            ("lineage", pa.string()),
            ("seq", pa.int64()),
            ("time", _TIME),  # placed: the time that the frame's clock should have shown
            ("clock", pa.string()),  # ok, gps or placed
            ("source", pa.int16()),
            ("destination", pa.int16()),  # 255 for everybody; null in rows of version 1
            ("device", pa.string()),  # the NAME, 16 hex digits; null while unknown
            ("pgn", pa.int32()),
            ("instance", pa.int32()),
            ("signal", pa.string()),
            ("value", pa.float64()),
            ("unit", pa.string()),
            ("text", pa.string()),
            ("day", pa.date32()),  # of `time`
        ]
    ),
    partition_by=("day", "channel"),
    rising=("seq", "time"),
    plain=(),
    version=2,
)
UNDECODED_LAYOUT: Final = TableLayout(
    name="undecoded",
    schema=pa.schema(
        [
            ("channel", pa.string()),
            ("day", pa.date32()),
            ("pgn", pa.int32()),
            ("reason", pa.string()),
            ("frames", pa.int64()),
        ]
    ),
)
DEVICES_LAYOUT: Final = TableLayout(
    name="devices",
    schema=DEVICES_SCHEMA,
    partition_by=("channel",),
)
