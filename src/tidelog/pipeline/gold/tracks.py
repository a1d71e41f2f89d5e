"""`tracks`: the boat's position, once a second and once a minute.

A boat has several receivers, metres apart, and some of them err. One is preferred all day, and another is used only
while it is silent: switching between them would draw a zigzag and add miles. A position that no boat could have reached
is dropped. Positions whose time is only a guess (clock "placed") fill silences and never compete with those whose time
is known.

TS1  At most one position per channel and second, and the minute's position is one of the seconds'.
TS2  The preferred receiver of a day is the one with most seconds; a tie is broken by the kind of message, then by a
     number of the device, so every run prefers the same. Frames before a device's claim are its own (`senders`).
TS3  Distance grows only while the boat moves, or where it has moved during a silence: the noise of a receiver at anchor
     adds many miles a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from tidelog.pipeline.gold.columns import COURSE, COURSE_REFERENCE, COURSE_REFERENCE_TEXTS, POSITIONS, SPEED
from tidelog.pipeline.gold.moments import (
    EARTH_RADIUS_M,
    MINUTE_US,
    SECOND_US,
    bearing_degrees,
    cut,
    day_of,
    metres_between,
    micros,
    moment,
)
from tidelog.pipeline.gold.senders import with_claims

SILENCE_S: Final = 10
"""How long the preferred receiver must be silent, before and after, for another to be used."""
NEIGHBOURS: Final = 5
"""Positions before and after that a position is compared with."""
SPEED_MAX_MPS: Final = 40.0
OUTLIER_MARGIN_M: Final = 50.0
"""The error of a good receiver."""
DRIFT_MPS_MAX: Final = 0.3
"""Below this a boat is at rest, and changes of its position are noise of the receiver."""
HOLE_S: Final = 60
"""A longer step is a hole in the data: the boat may have moved though it rests at both ends."""
HOLE_METRES_MIN: Final = 100.0
DERIVED_S: Final = 30
"""Without messages of speed and course, they are computed from the track this long before and after."""

_DAY: Final = ("channel", "day")


def build_tracks(signals: DataFrame) -> DataFrame:
    """The rows of `tracks` for the days of `signals`."""
    fixes = _without_outliers(_one_per_second(_positions(signals)))
    motion = _one_per_second(_motion(signals)).drop("clock")
    placed = _with_motion(fixes, motion)
    in_order = Window.partitionBy(*_DAY).orderBy("second_us")
    measured = with_steps(placed, in_order).withColumn(
        "distance_m", F.sum("step_m").over(in_order.rowsBetween(Window.unboundedPreceding, 0))
    )
    # Both grains in one pass: the first second of a minute appears twice.
    minute_us = cut(F.col("second_us"), MINUTE_US)
    begins = F.coalesce(cut(F.col("before.second_us"), MINUTE_US) < minute_us, F.lit(True))
    both, one = F.array(F.lit("second"), F.lit("minute")), F.array(F.lit("second"))
    grains = measured.withColumn("grain", F.explode(F.when(begins, both).otherwise(one)))
    time = moment(F.col("second_us")).alias("time")
    place = ("latitude", "longitude", "speed_mps", "course_deg", "distance_m", "clock")
    return grains.select("channel", "day", "grain", time, *place)


def with_steps(seconds: DataFrame, in_order: WindowSpec) -> DataFrame:
    """Adds the row `before`, `since_s` and `metres` from it, null for the first, and `step_m`, the distance made good
    (TS3).

    Columns of the rows: second_us, latitude, longitude, speed_mps.
    """
    before = F.lag(F.struct("second_us", "latitude", "longitude", "speed_mps")).over(in_order)
    made_good = F.try_divide(F.col("metres"), F.col("since_s"))
    moved = F.coalesce(F.greatest("speed_mps", "before.speed_mps"), made_good) >= DRIFT_MPS_MAX
    moved_unseen = (F.col("since_s") > HOLE_S) & (F.col("metres") >= HOLE_METRES_MIN)
    places = [F.col(name) for name in ("before.latitude", "before.longitude", "latitude", "longitude")]
    return (
        seconds.withColumn("before", before)
        .withColumn("since_s", (F.col("second_us") - F.col("before.second_us")) / SECOND_US)
        .withColumn("metres", metres_between(*places))
        .withColumn("step_m", F.coalesce(F.when(moved | moved_unseen, F.col("metres")), F.lit(0.0)))
    )


# --- from signals to one sample a second ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Value:
    """A number whose first sample of a second is wanted: kept in whole steps, from `low` on."""

    name: str
    low: float
    high: float
    step: float

    def packed(self, value: Column) -> Column:
        """The moment within the second, then the value, as one integer: the smallest is the first sample.

        So that a second is found by hashing alone. Any other way to find the first row makes Spark sort every sample.
        """
        steps = F.round((value - self.low) / self.step).cast("bigint")
        moment_us = F.pmod(micros("time"), F.lit(SECOND_US))
        return F.min(F.when(value.between(self.low, self.high), moment_us * _PACKED + steps)).alias(self.name)

    def unpacked(self) -> Column:
        # Divided, not multiplied by the step: 50 degrees come out as 50.
        steps = F.pmod(F.col(self.name), F.lit(_PACKED)) + round(self.low / self.step)
        return (steps / round(1 / self.step)).alias(self.name)


_PACKED: Final = 1 << 33
_LATITUDE: Final = _Value("latitude", -90, 90, 1e-7)  # a centimetre
_LONGITUDE: Final = _Value("longitude", -180, 180, 1e-7)
_SPEED: Final = _Value("speed_mps", 0, SPEED_MAX_MPS, 1e-4)
_COURSE: Final = _Value("course_deg", 0, 360, 1e-4)
_SENDER: Final = ("guessed", "pgn", "sender")


def _samples(signals: DataFrame, names: list[str], *values: Column) -> DataFrame:
    """One row per sender and second: the first value of each kind, packed."""
    guessed = F.when(F.col("clock") == "placed", 1).otherwise(0)
    second_us = cut(micros("time"), SECOND_US)
    keys = (guessed.alias("guessed"), "pgn", "source", "device", second_us.alias("second_us"))
    seconds = signals.filter(F.col("signal").isin(names)).groupBy("channel", *keys).agg(*values)
    kinds = [name for name in seconds.columns if name not in ("channel", "guessed", "pgn", "source", "device")]
    sender = F.xxhash64(F.coalesce(F.col("device"), F.col("source").cast("string")))
    # The second in which a claim comes has two rows of one sender.
    return (
        with_claims(seconds.withColumn("day", day_of(F.col("second_us"))), "second_us")
        .groupBy(*_DAY, "guessed", "pgn", sender.alias("sender"), "second_us")
        .agg(*(F.min(name).alias(name) for name in kinds if name != "second_us"))
    )


def _positions(signals: DataFrame) -> DataFrame:
    latitude = F.when(F.col("signal").isin([pair[0] for pair in POSITIONS]), F.col("value"))
    longitude = F.when(F.col("signal").isin([pair[1] for pair in POSITIONS]), F.col("value"))
    names = [name for pair in POSITIONS for name in pair]
    found = _samples(signals, names, _LATITUDE.packed(latitude), _LONGITUDE.packed(longitude))
    known = found.dropna(subset=["latitude", "longitude"])
    places = known.select(*_DAY, *_SENDER, "second_us", _LATITUDE.unpacked(), _LONGITUDE.unpacked())
    # A receiver without a fix that cannot mark it sends 0, 0.
    return places.filter((F.col("latitude") != 0) | (F.col("longitude") != 0))


def _motion(signals: DataFrame) -> DataFrame:
    says_true = F.col("text").isin(list(COURSE_REFERENCE_TEXTS))
    found = _samples(
        signals,
        [SPEED, COURSE, COURSE_REFERENCE],
        _SPEED.packed(F.when(F.col("signal") == SPEED, F.col("value"))),
        _COURSE.packed(F.when(F.col("signal") == COURSE, F.degrees("value"))),
        F.max(F.when((F.col("signal") == COURSE_REFERENCE) & ~says_true, 1)).alias("magnetic"),
    )
    course = F.when(F.col("magnetic").isNull(), _COURSE.unpacked()).alias("course_deg")
    return found.dropna(subset=["speed_mps"]).select(*_DAY, *_SENDER, "second_us", _SPEED.unpacked(), course)


def _one_per_second(samples: DataFrame) -> DataFrame:
    """The preferred sender's sample of every second, another's where it is silent (TS1, TS2)."""
    covered = F.count("*").over(Window.partitionBy(*_DAY, *_SENDER))
    preference = Window.partitionBy(*_DAY).orderBy("guessed", F.desc("seconds"), "pgn", "sender")
    around = Window.partitionBy(*_DAY).orderBy("second_us").rangeBetween(-SILENCE_S * SECOND_US, SILENCE_S * SECOND_US)
    return (
        samples.withColumn("seconds", covered)
        .withColumn("rank", F.dense_rank().over(preference))
        .withColumn("best", F.min("rank").over(around))
        .filter(F.col("rank") == F.col("best"))
        .withColumn("clock", F.when(F.col("guessed") == 1, "placed").otherwise("ok"))
        .drop(*_SENDER, "seconds", "rank", "best")
    )


# --- along the track ------------------------------------------------------------------------------------


def _without_outliers(fixes: DataFrame) -> DataFrame:
    """Drop positions that are further from the median of their neighbours than a fast boat gets in that time.

    The median is taken of each coordinate in space, so the date line and the poles need no special case.
    """
    around = Window.partitionBy(*_DAY).orderBy("second_us").rowsBetween(-NEIGHBOURS, NEIGHBOURS)
    latitude, longitude = F.radians("latitude"), F.radians("longitude")
    space = {
        "x": F.cos(latitude) * F.cos(longitude),
        "y": F.cos(latitude) * F.sin(longitude),
        "z": F.sin(latitude),
        "us": F.col("second_us"),
    }
    near = {name: F.sort_array(F.collect_list(value).over(around)) for name, value in space.items()}
    judged = fixes.select("*", *(values.alias(f"near_{name}") for name, values in near.items()))
    off = [space[name] - F.element_at(f"near_{name}", _middle(f"near_{name}")) for name in "xyz"]
    metres = EARTH_RADIUS_M * F.sqrt(reduce(Column.__add__, [part * part for part in off]))
    earliest, latest = F.element_at("near_us", 1), F.element_at("near_us", -1)
    seconds = F.greatest(F.col("second_us") - earliest, latest - F.col("second_us")) / SECOND_US
    return judged.filter(metres <= seconds * SPEED_MAX_MPS + OUTLIER_MARGIN_M).select(*fixes.columns)


def _middle(values: str) -> Column:
    return ((F.size(values) + 1) / 2).cast("int")


def _with_motion(fixes: DataFrame, motion: DataFrame) -> DataFrame:
    """Speed and course as sent; without such messages, from the track around."""
    around = Window.partitionBy(*_DAY).orderBy("second_us").rangeBetween(-DERIVED_S * SECOND_US, DERIVED_S * SECOND_US)
    place = F.struct("latitude", "longitude", "second_us")
    ends = [F.col(f"{end}.{name}") for end in ("earliest", "latest") for name in ("latitude", "longitude")]
    derived = (
        fixes.withColumn("earliest", F.first(place).over(around))
        .withColumn("latest", F.last(place).over(around))
        .withColumn("span_s", (F.col("latest.second_us") - F.col("earliest.second_us")) / SECOND_US)
        .withColumn("derived_mps", F.try_divide(metres_between(*ends), F.col("span_s")))
        .withColumn("derived_deg", F.when(F.col("derived_mps") >= DRIFT_MPS_MAX, bearing_degrees(*ends)))
    )
    return (
        derived.join(motion, [*_DAY, "second_us"], "left")
        .withColumn("speed_mps", F.coalesce("speed_mps", "derived_mps"))
        .withColumn("course_deg", F.coalesce("course_deg", "derived_deg"))
    )
