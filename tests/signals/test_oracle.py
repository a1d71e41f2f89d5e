"""Every layout of the database against the package's own decoder, with payloads of any content."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.signals.frames_kit import frames_batch, oracle_fields, rows_by_seq
from tidelog.signals.decode import decode_signals
from tidelog.signals.layouts import FieldKind, FieldLayout, Variant, layouts_of, snake_case

backend = pytest.importorskip("nmea2000.backend", reason="signals need the `spark` extra (nmea2000)")

GROUP_FUNCTIONS = 126208
"""Its values are fields of other PGNs, which are counted as `variable` and not decoded."""

DIFFERENT = {
    ("fusionSiriusxmPresets", "values"): "the package takes the count of presets for a number of bits",
    ("fusionTuner", "track"): "the package reads it in the character set of RDS",
    ("fusionMarineTuner", "name"): "as above",
    ("fusionRdsData", "rds"): "as above",
}

PGNS = sorted({info.pgn for info in backend.DATABASE.pgns()})


def payload_of(variant: Variant, rng: random.Random) -> bytes:
    """Random bytes, many of them 0xff, that are of the variant and hold all of its fields."""
    bits = sum(field.bit_length or 64 for field in variant.fields)
    size = min(223, max(8, (bits + 7) // 8 + (0 if variant.fixed else rng.randrange(40))))
    absent = rng.choice((0.0, 0.4))
    number = int.from_bytes(bytes(0xFF if rng.random() < absent else rng.randrange(256) for _ in range(size)), "little")
    for place, length, raw in variant.matches:
        number = number & ~((1 << length) - 1 << place) | raw << place
    return number.to_bytes(size, "little")


def agrees(field: FieldLayout, theirs: Any, row: dict[str, Any]) -> bool:
    value = theirs.value
    if field.kind is FieldKind.LOOKUP:
        return bool(row["text"] == value and row["value"] == theirs.raw_value)
    if field.kind is FieldKind.BITS:
        return bool((row["text"] or "") == value)
    if field.kind is FieldKind.NAME:
        return bool(row["text"] == f"{value:016x}")
    if isinstance(value, dt.date):
        return bool(row["text"] == value.isoformat())
    if isinstance(value, dt.time):
        return bool(abs(row["value"] - theirs.raw_value) <= field.scale / 2)
    if isinstance(value, int | float):
        if field.bit_length == 64 and not field.signed and value < 0:
            value += 2**64  # The package reads unsigned numbers of 64 bits as signed ones.
        return abs(row["value"] - value) <= max(field.scale / 2, abs(value) * 1e-12) or is_pgn(field, value, row)
    if isinstance(value, str):
        # Behind a zero lies what was left in the sender's memory; the package shows it in some kinds of text.
        return row["text"] == value.rstrip("\uffff @") or "\0" in value
    return isinstance(value, bytes) and row["text"] == value.hex()


def is_pgn(field: FieldLayout, value: float, row: dict[str, Any]) -> bool:
    """The package clears the low byte of an addressed PGN; we say what was sent."""
    return field.id.lower().endswith("pgn") and int(row["value"]) & ~0xFF == value


def may_be_missing(field: FieldLayout, theirs: Any, *, at_the_end: bool) -> bool:
    if theirs.value is None or at_the_end:
        # The package reads numbers that the payload cuts off as if the rest were zero; we do not believe them.
        return True
    if isinstance(theirs.value, dt.time):
        return bool(theirs.raw_value >= 86_400)
    if isinstance(theirs.value, str):
        return "\0" in theirs.value
    # The package checks the low end of a range only.
    return field.unit == "deg" and isinstance(theirs.value, float) and abs(theirs.value) > 90


def compare(variant: Variant, payload: bytes, rows: list[dict[str, Any]], fields: dict[tuple[str, int], Any]) -> None:
    ours = {}
    for row in rows:
        _, name, *number = row["signal"].split(".")
        ours[name, int(number[0]) if number else 0] = row
    by_id = {field.id: field for field in variant.fields}
    repeated = {variant.fields[place].id for run in variant.sets for place in range(run.first, run.first + run.fields)}
    sets = max((number for _, number in fields), default=0)
    for (identifier, set_number), theirs in fields.items():
        field = by_id.get(identifier)
        if field is None or field.kind in (FieldKind.SKIPPED, FieldKind.VARIABLE):
            continue
        if (variant.id, identifier) in DIFFERENT or unaligned(field) or cut_in_bits(field, fields):
            ours.pop((snake_case(identifier), set_number), None)
            continue
        # With a count that is not available the package does not call its first set a set.
        number = max(set_number, 1) if identifier in repeated else set_number
        mine = ours.pop((snake_case(identifier), number), None)
        context = f"{variant.pgn} {variant.id} {identifier}.{number} of {payload.hex()}: {theirs.value!r}, we {mine}"
        if mine is None:
            # Behind a text of any length every field may be the one that the payload cuts off.
            cut_off = field.bit_offset is None or field.bit_offset + (field.bit_length or 8) > 8 * len(payload)
            at_the_end = cut_off or (identifier in repeated and set_number == sets)
            assert may_be_missing(field, theirs, at_the_end=at_the_end), context
        elif field.kind is FieldKind.DYNAMIC:
            # Of a key that it knows the package takes as many bytes as the value has.
            assert mine["text"].startswith(theirs.raw_value.hex()), context
        else:
            assert theirs.value is not None or field.kind is FieldKind.LOOKUP, context
            assert agrees(field, theirs, mine), context
    # The bytes of a value are kept even where the package cannot tell its type, and what follows them is read on.
    dynamic = {snake_case(field.id) for field in variant.fields if field.kind is FieldKind.DYNAMIC}
    ours = {key: row for key, row in ours.items() if key[0] not in dynamic and not (dynamic and key[1] > 1)}
    assert not ours, f"{variant.pgn} {variant.id} of {payload.hex()}: only we have {list(ours)}"


def cut_in_bits(field: FieldLayout, fields: dict[tuple[str, int], Any]) -> bool:
    """Where the number of bits is not available, or not of whole bytes, the package clears bits that we keep."""
    bits = next((item.value for (name, _), item in fields.items() if name.startswith("numberOfBits")), None)
    return field.kind is FieldKind.BINARY and field.bit_length is None and (bits is None or bits % 8 != 0)


def unaligned(field: FieldLayout) -> bool:
    """The package gives the bytes around a binary that does not lie at a byte's edge; we give its bits."""
    return field.kind is FieldKind.BINARY and bool((field.bit_length or 0) % 8 or (field.bit_offset or 0) % 8)


def check(pgns: list[int], seed: int, payloads_each: int) -> None:
    rng = random.Random(seed)
    cases = [
        (variant, payload_of(variant, rng))
        for pgn in pgns
        for variant in layouts_of(pgn).variants
        for _ in range(payloads_each)
    ]
    decoded = decode_signals(frames_batch([(variant.pgn, 1, payload) for variant, payload in cases]))
    assert decoded.decoded + sum(item.frames for item in decoded.undecoded) == len(cases)
    rows = rows_by_seq(decoded.signals)
    for seq, (wanted, payload) in enumerate(cases, 1):
        identifier, fields = oracle_fields(wanted.pgn, payload)
        # Random bytes may be of another variant that stands before the wanted one.
        variant = next(item for item in layouts_of(wanted.pgn).variants if item.id == identifier)
        found = rows.get(seq, [])
        assert {row["signal"].split(".")[0] for row in found} <= {snake_case(variant.id)}, (seed, payload.hex())
        if wanted.pgn != GROUP_FUNCTIONS:
            compare(variant, payload, found, fields)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pgns=st.lists(st.sampled_from(PGNS), min_size=1, max_size=12, unique=True), seed=st.integers(0, 2**32))
def test_any_payload_decodes_as_the_package_decodes_it(pgns: list[int], seed: int) -> None:
    check(pgns, seed, 3)


def test_every_layout_of_the_database_decodes_as_the_package_decodes_it() -> None:
    check(PGNS, 6, 1)


def test_only_one_layout_of_the_database_cannot_be_reached() -> None:
    hidden = [name for pgn in PGNS for name in layouts_of(pgn).unreachable]
    assert hidden == ["simnetEvent"], "simnetAlarm stands before it and has the same match fields"


@settings(max_examples=50, deadline=None)
@given(pgn=st.sampled_from([*PGNS, 1, 65_000, 126_990, 131_071, 262_386]), payload=st.binary(max_size=230))
def test_no_payload_raises_and_every_frame_is_decoded_or_counted(pgn: int, payload: bytes) -> None:
    decoded = decode_signals(frames_batch([(pgn, 3, payload)]))
    assert decoded.decoded + sum(item.frames for item in decoded.undecoded) == 1
    decoded.signals.validate(full=True)
