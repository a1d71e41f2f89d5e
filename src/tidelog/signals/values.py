"""Values whose type only the payload tells: of a key, or of a field of the PGN that a group function names.

The package decodes them, from its own database. For a key it is asked a few times, for each number of bytes that is
seen; if its answers lie on a line, such values are numbers and read over whole columns from then on. For everything
else, group functions above all, it is asked payload by payload: there are few, and they repeat.

Invariants:
SV1  A value is a number only if the package's answers at both ends of its range and between them lie on one line.
SV2  What the package cannot tell stays as its bytes, and is told apart from "not available".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from tidelog.signals.layouts import FieldKind, ProbedNumber, Variant, database, package, with_bits

NUMBER_BYTES_MAX: Final = 7
"""So that every number fits a signed one of 64 bits."""

ANSWERS_MAX: Final = 8_192

Answer = TypeVar("Answer")

_LOOKUP: Final = 1
_BITS: Final = 3
_AS_DECODED: Final = 10
"""How the package's codec is to give a field: a label and its code, flags, or canboat's own value."""
_MODES: Final = {"LOOKUP": _LOOKUP, "INDIRECT_LOOKUP": _LOOKUP, "DYNAMIC_FIELD_KEY": _LOOKUP, "BITLOOKUP": _BITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLayout:
    """A key's value that is a number."""

    signed: bool
    scale: float
    shift: float
    raw_min: int
    raw_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A value as the package tells it; without number and text it is not available."""

    number: float | None = None
    text: str | None = None
    is_opaque: bool = False
    """Whether the text is only its bytes (SV2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldField:
    """One field of a payload: its place in the variant, and the number of its set, 0 outside of sets."""

    place: int
    number: int
    told: Told
    unit: str | None


def value_layout(variant: Variant, place: int, key: int, size: int) -> ValueLayout | None:
    """The layout of a value of `size` bytes under this key; None where it is no number."""
    return _kept(variant, (place, key, size), lambda: _learn_value(variant, place, key, size))


def told_value(variant: Variant, place: int, key: int, content: bytes) -> Told:
    """The value of these bytes under this key."""
    return _kept(variant, (place, key, content), lambda: _told(_value(variant, place, key, content), content))


def told_fields(variant: Variant, payload: bytes, first: int) -> tuple[list[ToldField], bool]:
    """The fields from `first` on, and whether the package could tell them all."""
    return _kept(variant, (first, payload), lambda: _ask_fields(variant, payload, first))


def _kept(variant: Variant, key: tuple[Any, ...], ask: Callable[[], Answer]) -> Answer:
    """An answer is asked for once; noise must not fill the memory with them."""
    if key not in variant.told:
        if len(variant.told) >= ANSWERS_MAX:
            variant.told.clear()
        variant.told[key] = ask()
    answer: Answer = variant.told[key]
    return answer


def _learn_value(variant: Variant, place: int, key: int, size: int) -> ValueLayout | None:
    if not 0 < size <= NUMBER_BYTES_MAX:
        return None
    length = size * 8

    def value(raw: int) -> Any:
        told = _value(variant, place, key, (raw & (1 << length) - 1).to_bytes(size, "little"))
        return told if isinstance(told, int | float) else None

    if value(0) is None or value(1) is None:
        return None
    asked = ProbedNumber(value=value, length=length)
    signed = asked.negative((1 << length) - 1)
    raw_min, raw_max = asked.bounds(signed=signed)
    shift = float(value(0))
    scale = float(value(1)) - shift
    scale = float(f"{scale:.10g}") if shift else scale
    for raw in (raw_min, raw_min // 2, raw_max // 3, raw_max // 2, raw_max):
        expected, found = raw * scale + shift, value(raw)
        if found is None or abs(found - expected) > abs(scale) / 2 + abs(expected) * 1e-9:
            return None
    return ValueLayout(signed=signed, scale=scale, shift=shift, raw_min=raw_min, raw_max=raw_max)


def _ask_fields(variant: Variant, payload: bytes, first: int) -> tuple[list[ToldField], bool]:
    message = _decoded(variant, payload)
    if message is None:
        return [], False
    found: list[ToldField] = []
    values_expected = {
        place for place, field in enumerate(variant.fields) if field.kind is FieldKind.VARIABLE and place >= first
    }
    is_whole = True
    commanded = next((item.value for item in message.fields if item.id == "1"), None)
    for number, fields in _by_set(message):
        parameter: Any = None
        for name, item in fields.items():
            place = int(name)
            if place < first or variant.fields[place].kind is FieldKind.SKIPPED:
                continue
            unit = variant.fields[place].unit
            if variant.fields[place].kind is FieldKind.VARIABLE and number:
                unit = _unit_of(commanded, parameter)
            else:
                parameter = item.value
            found.append(ToldField(place=place, number=number, told=_told(item.value, b"", item.raw_value), unit=unit))
        # A parameter without a value ends what can be read: the length of a value is the commanded field's.
        wanted = {place + 1 for place in map(int, fields)} & values_expected
        is_whole &= not number or wanted <= set(map(int, fields))
    return found, is_whole


def _by_set(message: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for item in message.fields:
        if isinstance(item.value, list):
            yield from enumerate(item.value, 1)
        else:
            yield 0, {item.id: item}


@cache
def _unit_of(pgn: Any, parameter: Any) -> str | None:
    """The unit of the field with this number, from 1; None where the variants of the PGN do not agree."""
    if not isinstance(pgn, int) or not isinstance(parameter, int):
        return None
    units = {
        info.fields[parameter - 1].unit if 0 < parameter <= len(info.fields) else None
        for info in database().pgn_variants(pgn)
    }
    return units.pop() if len(units) == 1 else None


# --- asking the package ---------------------------------------------------------------------------


def _value(variant: Variant, place: int, key: int, content: bytes) -> Any:
    """What the package makes of a value: a number, a label, bytes, None."""
    item = variant.fields[place]
    assert item.key is not None, "the value of a key"
    by = variant.fields[item.key]
    assert by.bit_length is not None, "keys have fixed lengths"
    payload = with_bits(variant.probe, by.probe_bit, by.bit_length, key)
    if item.teller is not None:
        teller = variant.fields[item.teller]
        assert teller.bit_length is not None, "lengths have fixed lengths"
        between = variant.fields[item.teller + 1 : place]
        told = len(content) + sum(field.bit_length or 0 for field in between) // 8
        if told >> teller.bit_length:
            return content
        payload = with_bits(payload, teller.probe_bit, teller.bit_length, told)
    message = _decoded(variant, payload[: item.probe_bit // 8] + content)
    if message is None:
        return content
    for _, fields in _by_set(message):
        if str(place) in fields:
            return fields[str(place)].value
    return content


def _told(value: Any, content: bytes, raw: Any = None) -> Told:
    match value:
        case None:
            return Told()
        case int() | float():
            return Told(number=float(value))
        case str():
            code = raw if isinstance(raw, int) else None
            if code is None and 0 < len(content) <= 4:
                code = int.from_bytes(content, "little")
            return Told(number=None if code is None else float(code), text=value or None)
        case bytes():
            return Told(text=value.hex() or None, is_opaque=True)
        case dt.date():
            return Told(number=float((value - dt.date(1970, 1, 1)).days), text=value.isoformat())
        case dt.time():
            return Told(number=value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6)
    return Told(text=str(value))


def _decoded(variant: Variant, payload: bytes) -> Any:
    try:
        message = _codec().decode(variant.pgn, payload, 0, 255, 6)
    except package().canboat.DecodeError:
        return None  # the same to us as a payload of another variant
    return message if message.id == variant.id else None


@cache
def _codec() -> Any:
    """The package's codec with places for ids, and with the values of keys as its database understands them.

    The package's own `decode` gives those as bytes.
    """

    def template(identifier: str) -> tuple[None, None, list[tuple[Any, ...]]]:
        rows: list[tuple[Any, ...]] = []
        for place, item in enumerate(database().pgn_info(identifier).fields):
            mode = _MODES.get(item.field_type or "", _AS_DECODED)
            rows.append((str(place), "", None, None, None, None, False, mode, None, 0.0, False))
        return None, None, rows

    parts = package()
    return parts.canboat.MessageCodec(template, parts.NMEA2000Field, parts.NMEA2000Message, "si")
