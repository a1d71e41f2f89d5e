"""Trips of the days that changed: loads more days until every trip at an edge is settled (see `trip_days`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.partitions import read_files
from tidelog.pipeline.gold.schemas import TRIPS
from tidelog.pipeline.gold.trip_days import ChannelDays, DayStretch, merged
from tidelog.pipeline.gold.trips import build_trips
from tidelog.pipeline.tables.table import Partition, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrips:
    """All trips that begin on the days of `partitions`."""

    partitions: set[Partition]
    rows: pa.Table


def find_trips(spark: SparkSession, tracks: Table, signals: Table, touched: Collection[Partition]) -> FoundTrips:
    """The trips of the touched days and of the days around them that they may reach into."""
    days = _days_of(tracks, {channel for _, channel in touched if channel is not None})
    pending = [
        DayStretch(channel=channel, places=places)
        for channel, known in days.items()
        for places in known.around({date.fromisoformat(day) for day, name in touched if day and name == channel})
    ]
    settled: list[DayStretch] = []
    rows = [TRIPS.table.schema.empty_table()]
    while pending:
        found = _built(spark, tracks, signals, days, pending)
        again = []
        for number, stretch in enumerate(pending):
            trips = found.filter(pc.equal(found.column("stretch"), number)).sort_by("start_time")
            grown = _grown(stretch, trips, days[stretch.channel])
            if grown == stretch:
                settled.append(stretch)
                rows.append(trips.select(TRIPS.table.schema.names).cast(TRIPS.table.schema))
            else:
                again.append(grown)
        pending = _merged(again)
    # Two stretches may have grown into each other, or over one that was settled: their trips are the same (GT1).
    partitions = {_partition(stretch.channel, day) for stretch in settled for day in _days(stretch, days)}
    joined = pa.concat_tables(rows)
    return FoundTrips(partitions=partitions, rows=joined.group_by(joined.column_names).aggregate([]))


def _days_of(tracks: Table, channels: Collection[str]) -> dict[str, ChannelDays]:
    rows: dict[str, dict[date, int]] = {channel: {} for channel in channels}
    for file in tracks.files():
        day, channel = file.partition
        if day is not None and channel in rows:
            at = date.fromisoformat(day)
            rows[channel][at] = rows[channel].get(at, 0) + file.rows
    return {channel: ChannelDays(found) for channel, found in rows.items()}


def _built(
    spark: SparkSession, tracks: Table, signals: Table, days: dict[str, ChannelDays], stretches: list[DayStretch]
) -> pa.Table:
    members = [
        (stretch.channel, day, number) for number, stretch in enumerate(stretches) for day in _days(stretch, days)
    ]
    partitions = {_partition(channel, day) for channel, day, _ in members}
    marks = F.broadcast(spark.createDataFrame(members, "channel string, day date, stretch int"))
    seconds: DataFrame = read_files(spark, tracks, tracks.files(partitions)).join(marks, ["channel", "day"])
    return build_trips(seconds, read_files(spark, signals, signals.files(partitions))).toArrow()


def _grown(stretch: DayStretch, trips: pa.Table, known: ChannelDays) -> DayStretch:
    if not trips.num_rows:
        return stretch
    before = not trips.column("settled_before")[0].as_py()
    after = not trips.column("settled_after")[-1].as_py()
    return DayStretch(channel=stretch.channel, places=known.grown(stretch.places, before=before, after=after))


def _merged(stretches: list[DayStretch]) -> list[DayStretch]:
    by_channel: dict[str, list[range]] = {}
    for stretch in stretches:
        by_channel.setdefault(stretch.channel, []).append(stretch.places)
    return [DayStretch(channel=name, places=places) for name, ranges in by_channel.items() for places in merged(ranges)]


def _days(stretch: DayStretch, days: dict[str, ChannelDays]) -> list[date]:
    return [days[stretch.channel].days[place] for place in stretch.places]


def _partition(channel: str, day: date) -> Partition:
    return day.isoformat(), channel
