"""Time and place as Spark expressions, shared by all builders.

Time is handled as microseconds in a bigint. Days and hours are cut by arithmetic, not by Spark's date functions,
which follow the time zone of the session (GD3).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name by which every Spark user knows it

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 3_600 * SECOND_US
DAY_US: Final = 24 * HOUR_US

EARTH_RADIUS_M: Final = 6_371_008.8
"""Mean radius. A sphere is within half a percent of the real earth, which is finer than a log line reads."""
METRES_PER_MILE: Final = 1_852.0


def micros(time: str) -> Column:
    return F.unix_micros(F.col(time))


def cut(us: Column, grain_us: int) -> Column:
    """The start of the hour, minute, ... in which a moment lies, still as microseconds."""
    return us - F.pmod(us, F.lit(grain_us))


def moment(us: Column) -> Column:
    return F.timestamp_micros(us)


def day_of(us: Column) -> Column:
    days = (cut(us, DAY_US) / DAY_US).cast("int")
    return F.date_from_unix_date(days)


def metres_between(latitude: Column, longitude: Column, other_latitude: Column, other_longitude: Column) -> Column:
    """Great-circle distance (haversine), exact for short steps and across the date line."""
    north = F.sin(F.radians(other_latitude - latitude) / 2)
    east = F.sin(F.radians(other_longitude - longitude) / 2)
    chord = north * north + F.cos(F.radians(latitude)) * F.cos(F.radians(other_latitude)) * east * east
    # Not `least`, which ignores a null and would put an unknown place on the far side of the earth.
    return 2 * EARTH_RADIUS_M * F.asin(F.sqrt(F.when(chord > 1.0, 1.0).otherwise(chord)))


def bearing_degrees(latitude: Column, longitude: Column, other_latitude: Column, other_longitude: Column) -> Column:
    """The course from one place to the other, 0 to 360 from true north."""
    turn = F.radians(other_longitude - longitude)
    here, there = F.radians(latitude), F.radians(other_latitude)
    east = F.sin(turn) * F.cos(there)
    north = F.cos(here) * F.sin(there) - F.sin(here) * F.cos(there) * F.cos(turn)
    return F.pmod(F.degrees(F.atan2(east, north)) + 360.0, F.lit(360.0))
