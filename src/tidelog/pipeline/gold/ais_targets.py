"""`ais_targets`: the vessels, stations and marks that a boat heard by AIS, one row for each and day.

What does not move (name, call sign, type, size, destination) is the last that was heard that day, so a row may have a
name and no position or the other way round. The boat's own transponder is a target as well, marked `own`.

AIS1  A number that no target has (0, or more than nine digits) makes no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import AIS_NUMBERS, AIS_PGNS, AIS_TEXTS
from tidelog.pipeline.gold.moments import day_of, micros, moment

MMSI_MAX: Final = 999_999_999
SPEED_MPS_MAX: Final = 52.5
"""102 knots: what is faster says that it does not know."""
_OWN: Final = ("Own information not broadcast", "Channel A VDL transmission", "Channel B VDL transmission")
_LAST_TEXTS: Final = ("name", "callsign", "ship_type", "destination", "nav_status")
_LAST_NUMBERS: Final = ("length_m", "beam_m", "draft_m")


def build_ais_targets(signals: DataFrame) -> DataFrame:
    """The rows of `ais_targets` for the days of `signals`."""
    messages = _messages(signals)
    placed = messages["latitude"].between(-90, 90) & messages["longitude"].between(-180, 180)
    place = F.when(placed, F.struct("us", "latitude", "longitude", "course_rad", "speed_mps"))
    speed = F.when(F.col("speed_mps").between(0, SPEED_MPS_MAX), F.col("speed_mps"))
    targets = messages.groupBy("channel", "day", "mmsi").agg(
        F.max(F.struct("us", "kind"))["kind"].alias("kind"),
        F.max(F.col("heard_on").isin(list(_OWN)).cast("int")).alias("own"),
        *(_last(name).alias(name) for name in (*_LAST_TEXTS, *_LAST_NUMBERS)),
        F.min("us").alias("first_us"),
        F.max("us").alias("last_us"),
        F.count(place).alias("positions"),
        F.max(place).alias("place"),
        F.max(speed).alias("speed_max_mps"),
        F.count("*").alias("messages"),
    )
    return targets.select(
        "channel",
        "day",
        "mmsi",
        "kind",
        (F.coalesce("own", F.lit(0)) == 1).alias("own"),
        *_LAST_TEXTS,
        *_LAST_NUMBERS,
        moment(F.col("first_us")).alias("first_time"),
        moment(F.col("last_us")).alias("last_time"),
        "positions",
        moment(F.col("place.us")).alias("position_time"),
        F.col("place.latitude").alias("latitude"),
        F.col("place.longitude").alias("longitude"),
        F.when(F.col("place.speed_mps") <= SPEED_MPS_MAX, F.col("place.speed_mps")).alias("speed_mps"),
        F.degrees("place.course_rad").alias("course_deg"),
        "speed_max_mps",
        "messages",
    )


def _messages(signals: DataFrame) -> DataFrame:
    """One row per message of AIS: channel, day, us, mmsi, kind, and its fields as columns."""
    field = F.substring_index("signal", ".", -1)
    own = signals.filter(F.col("pgn").isin(list(AIS_PGNS)) & field.isin([*AIS_NUMBERS, *AIS_TEXTS]))
    numbers = [_field(field, AIS_NUMBERS, name, "value") for name in dict.fromkeys(AIS_NUMBERS.values())]
    texts = [_field(field, AIS_TEXTS, name, "text") for name in dict.fromkeys(AIS_TEXTS.values())]
    # Messages of a producer without seqs are told apart by time, sender and kind.
    message = ("channel", "lineage", "seq", micros("time").alias("us"), "source", "pgn")
    found = own.groupBy(*message).agg(*numbers, *texts)
    kinds = F.create_map(*(F.lit(part) for pair in AIS_PGNS.items() for part in pair))
    return (
        found.filter(F.col("mmsi").between(1, MMSI_MAX))
        .withColumn("mmsi", F.col("mmsi").cast("bigint"))
        .withColumn("kind", kinds[F.col("pgn")])
        .withColumn("day", day_of(F.col("us")))
    )


def _field(field: Column, names: Mapping[str, str], name: str, column: str) -> Column:
    fields = [own for own, wanted in names.items() if wanted == name]
    return F.max(F.when(field.isin(fields), F.col(column))).alias(name)


def _last(name: str) -> Column:
    return F.max(F.when(F.col(name).isNotNull(), F.struct("us", name)))[name]
