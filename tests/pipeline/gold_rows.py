"""Signals and frames made by hand for the tests of the gold tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidelog.pipeline.sources.columns import FRAMES
from tidelog.pipeline.tables.layouts import SIGNALS_LAYOUT

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
METRES_PER_DEGREE = 6_371_008.8 * 3.141592653589793 / 180
LINEAGE = "ab" * 16

POSITION = 129025
MOTION = 129026
GNSS = 129029


@contextmanager
def tiny_data(spark: SparkSession) -> Iterator[None]:
    """Plans run as they are: for a few thousand rows, compiling them to Java costs far more than running them."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, held in before.items():
            assert held is not None
            spark.conf.set(name, held)


class Signals:
    """Collects rows of `signals`: one call per message, one row per field."""

    def __init__(self, channel: str = "boat-1") -> None:
        self.channel = channel
        self.rows: list[dict[str, Any]] = []
        self.seq = 0

    def message(
        self,
        time: datetime,
        pgn: int,
        *fields: tuple[str, float | str, str | None],
        source: int = 1,
        device: str | None = None,
        instance: int | None = None,
        clock: str = "ok",
    ) -> None:
        self.seq += 1
        for signal, value, unit in fields:
            self.rows.append(
                {
                    "channel": self.channel,
                    "lineage": LINEAGE,
                    "seq": self.seq,
                    "time": time,
                    "clock": clock,
                    "source": source,
                    "device": device,
                    "pgn": pgn,
                    "instance": instance,
                    "signal": signal,
                    "value": None if isinstance(value, str) else float(value),
                    "unit": unit,
                    "text": value if isinstance(value, str) else None,
                    "day": time.date(),
                }
            )

    def position(self, time: datetime, latitude: float, longitude: float, **options: Any) -> None:
        self.message(
            time,
            POSITION,
            ("position_rapid_update.latitude", latitude, "deg"),
            ("position_rapid_update.longitude", longitude, "deg"),
            **options,
        )

    def motion(self, time: datetime, speed_mps: float, course_rad: float, **options: Any) -> None:
        self.message(
            time,
            MOTION,
            ("cog_sog_rapid_update.cog_reference", "True", None),
            ("cog_sog_rapid_update.cog", course_rad, "rad"),
            ("cog_sog_rapid_update.sog", speed_mps, "m/s"),
            **options,
        )

    def voyage(self, start: datetime, legs: Sequence[tuple[int, float]], *, every_s: int = 1) -> None:
        """Northward along a meridian from 50 N, 4 W: legs of (seconds, metres per second)."""
        metres, time = 0.0, start
        for seconds, speed_mps in legs:
            for _ in range(0, seconds, every_s):
                self.position(time, 50 + metres / METRES_PER_DEGREE, -4.0)
                self.motion(time, speed_mps, 0.0)
                metres += speed_mps * every_s
                time += timedelta(seconds=every_s)

    def engine(self, time: datetime, instance: int, rpm: float, **options: Any) -> None:
        self.message(time, 127488, ("engine_parameters_rapid_update.speed", rpm, "rpm"), instance=instance, **options)

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=SIGNALS_LAYOUT.schema)


def frames(
    seqs: Sequence[int],
    start: datetime,
    *,
    channel: str = "boat-1",
    lineage: str | None = LINEAGE,
    every_s: float = 1.0,
    lag_s: float = 0.5,
    path: str = "live",
    clock_off: timedelta = timedelta(0),
) -> pa.Table:
    """Frames on the bus at a steady pace: the frame with seq n at start + n * every_s."""
    rows = [
        {
            "channel": channel,
            "lineage": lineage,
            "seq": seq,
            "offset": seq,
            "epoch": 1,
            "time": start + timedelta(seconds=seq * every_s) + clock_off,
            "priority": 2,
            "pgn": POSITION,
            "source": 1,
            "destination": 255,
            "data": b"\0" * 8,
            "path": path,
            "append_time": start + timedelta(seconds=seq * every_s + lag_s),
        }
        for seq in seqs
    ]
    return pa.Table.from_pylist(rows, schema=FRAMES)
