"""Gold reads signals by name: every name, unit and label it waits for is one that the decoders give."""

from __future__ import annotations

from functools import cache

import pytest

from tidelog.pipeline.gold.columns import (
    CONVERSIONS,
    COURSE,
    COURSE_REFERENCE,
    COURSE_REFERENCE_TEXTS,
    ELECTRICAL,
    ENGINE,
    ENGINE_METER,
    ENVIRONMENT,
    NAVIGATION,
    POSITIONS,
    SPEED,
    TANKS,
    Measure,
)
from tidelog.signals.layouts import FieldLayout, Variant, layouts_of

PGNS = (
    *(129025, 129026, 129029, 127488, 127489, 127506, 127508, 127250, 127505, 128259, 128267),
    *(130306, 130310, 130311, 130312, 130313, 130314, 130316),
)


@cache
def decoded() -> dict[str, tuple[Variant, int, FieldLayout]]:
    """Every signal of the messages that gold reads."""
    return {
        field.signal: (variant, place, field)
        for pgn in PGNS
        for variant in layouts_of(pgn).variants
        for place, field in enumerate(variant.fields)
    }


def labels(signal: str) -> set[str | None]:
    variant, place, field = decoded()[signal]
    assert field.bit_length is not None
    return {variant.label(place, code) for code in range(min(256, 1 << field.bit_length))}


@pytest.mark.parametrize(
    "measure",
    [*ENGINE, ENGINE_METER, *ELECTRICAL, *ENVIRONMENT, *NAVIGATION, *TANKS],
    ids=lambda one: f"{one.column}:{one.signal}",
)
def test_a_measure_reads_what_the_decoders_give(measure: Measure) -> None:
    assert measure.signal in decoded()
    unit = decoded()[measure.signal][2].unit
    assert unit is not None
    assert (unit, measure.unit) in CONVERSIONS
    if measure.qualifier is not None:
        assert labels(measure.qualifier).issuperset(measure.texts)


@pytest.mark.parametrize("measures", [ENGINE, ELECTRICAL, TANKS], ids=["engine", "electrical", "tanks"])
def test_what_is_told_apart_by_instance_has_one(measures: tuple[Measure, ...]) -> None:
    assert all(decoded()[measure.signal][0].instance is not None for measure in measures)


def test_the_track_reads_what_the_decoders_give() -> None:
    units = {name: decoded()[name][2].unit for pair in POSITIONS for name in pair}
    assert set(units.values()) == {"deg"}
    assert decoded()[SPEED][2].unit == "m/s"
    assert decoded()[COURSE][2].unit == "rad"
    assert labels(COURSE_REFERENCE).issuperset(COURSE_REFERENCE_TEXTS)
