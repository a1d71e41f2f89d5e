"""The layout of the fields of a parameter group, learned from the `nmea2000` package.

The package's database has the offset, length and scale of a field. It does not have whether a field is signed, which
raw values mean "not available", which fields tell the variants of a PGN apart, or the label of a code. The package's
decoder knows all of that, so it is probed: a payload with every field unavailable is made once for each variant (the
probe), one field in it is set, and the decoded value is read. A PGN is learned when it is first seen, which takes about
a millisecond for each variant; labels are looked up one code at a time.

The package costs 0.1 to 0.3 s and 16 MB to import (it brings gateways and serial ports along), so nothing here imports
it before the first PGN is needed.

Invariants:
Y1  A variant's layout depends on the package's version alone, never on the data that was seen.
Y2  The raw values of a number that count are one run, `raw_min` to `raw_max`.
Y3  Every frame of a PGN goes to the first variant, in the database's order, whose match fields all agree; to the
    fallback of its range when none does.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, Final

from tidelog.extras import optional

Match = tuple[int, int, int]
"""Bit offset, bit length and the raw value that a variant's payloads have there."""

_PGN_MAX: Final = 0x3_FFFF
"""Beyond are the messages that gateways make."""

LABELS_MAX: Final = 8_192
"""Labels that a variant remembers. Noise on a field of 32 bits would otherwise fill the memory."""

_LOCK: Final = Lock()


class FieldKind(enum.Enum):
    """How the bits of a field are read."""

    NUMBER = enum.auto()
    LOOKUP = enum.auto()
    """A code with a label."""
    BITS = enum.auto()
    """Flags, each with a label."""
    DATE = enum.auto()
    """Days since 1970."""
    FLOAT = enum.auto()
    DECIMAL = enum.auto()
    """Two decimal digits in every byte."""
    TEXT_FIXED = enum.auto()
    TEXT_LAU = enum.auto()
    """A length that counts itself, an encoding, then text."""
    TEXT_LZ = enum.auto()
    """A length, text, and a closing zero."""
    BINARY = enum.auto()
    NAME = enum.auto()
    """A device's 64-bit NAME."""
    DYNAMIC = enum.auto()
    """A value whose type is in another field's code; see `values`."""
    VARIABLE = enum.auto()
    """A value of a field of another PGN, or a field that is not always there, in group functions: what follows has no
    fixed place. See `values`."""
    SKIPPED = enum.auto()
    """Reserved and spare bits."""


_KINDS: Final = {
    "LOOKUP": FieldKind.LOOKUP,
    "INDIRECT_LOOKUP": FieldKind.LOOKUP,
    "DYNAMIC_FIELD_KEY": FieldKind.LOOKUP,
    "BITLOOKUP": FieldKind.BITS,
    "DATE": FieldKind.DATE,
    "FLOAT": FieldKind.FLOAT,
    "DECIMAL": FieldKind.DECIMAL,
    "STRING_FIX": FieldKind.TEXT_FIXED,
    "STRING_LAU": FieldKind.TEXT_LAU,
    "STRING_LZ": FieldKind.TEXT_LZ,
    "BINARY": FieldKind.BINARY,
    "ISO_NAME": FieldKind.NAME,
    "DYNAMIC_FIELD_VALUE": FieldKind.DYNAMIC,
    "VARIABLE": FieldKind.VARIABLE,
    "RESERVED": FieldKind.SKIPPED,
    "SPARE": FieldKind.SKIPPED,
}
"""By the database's type; every other one is a number (MMSI, PGN, DURATION, TIME, ADDRESS ...)."""

_RAW_KINDS: Final = (FieldKind.NUMBER, FieldKind.DATE)
_INDIRECT: Final = {"deviceFunction": "deviceClass", "value": "id"}
"""Which field an indirect lookup also depends on, by the lookup's own id; the database does not say."""

_LIMITS: Final = {"GEOGRAPHICAL_LATITUDE": 90.0, "GEOGRAPHICAL_LONGITUDE": 180.0, "TIME": 86_400.9999}
"""Highest value by physical quantity; a leap second belongs to its day."""

_FALLBACKS: Final = (
    (0xEF00, 0xEF00), (0xFF00, 0xFFFF), (0x1EF00, 0x1EF00), (0x1FF00, 0x1FFFF),
)  # fmt: skip
"""Ranges that NMEA leaves to manufacturers: an unknown one of these is proprietary, any other is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLayout:
    """One field. Offsets are in bits from the payload's first byte, least significant bit first."""

    id: str
    signal: str
    kind: FieldKind
    bit_offset: int | None
    """None after a field of variable length."""
    bit_length: int | None
    """None where the payload itself has it."""
    signed: bool = False
    scale: float = 1.0
    shift: float = 0.0
    """value = raw * scale + shift"""
    unit: str | None = None
    raw_min: int = 0
    raw_max: int = 0
    indirect: int | None = None
    """Index of the field that the label also depends on."""
    probe_bit: int = 0
    """Where the field lies in the variant's probe."""
    bits: str | None = None
    """Name of the table of flags."""
    key: int | None = None
    """Index of the field whose code tells the type of this value; None where nothing known tells it."""
    teller: int | None = None
    """Index of the field with the length of this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSet:
    """A run of fields that comes once, many times, or not at all."""

    first: int
    fields: int
    count_field: int | None
    """The index of the field with the count; None where sets go on to the end of the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One layout of a PGN."""

    pgn: int
    id: str
    matches: tuple[Match, ...]
    fields: tuple[FieldLayout, ...]
    sets: tuple[RepeatedSet, ...]
    instance: int | None
    """Index of the field that tells two engines, batteries or tanks apart."""
    told_from: int | None
    """Index of the field from which on no place is fixed, since what lies there is of another PGN."""
    proprietary: bool
    """Only the manufacturer is known."""
    probe: bytes
    labels: dict[tuple[int, int, int], str | None] = field(default_factory=dict, compare=False)
    """Cache: (field, code, code of the indirect field) to label."""
    told: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False)
    """Cache of `values`."""

    @property
    def fixed(self) -> bool:
        """Whether every field lies at the same place in every payload."""
        return not self.sets and all(
            item.bit_offset is not None and item.bit_length is not None for item in self.fields
        )

    def label(self, place: int, code: int, other: int = 0) -> str | None:
        """The label of a code, or of a set of flags; None where it has none."""
        key = (place, code, other)
        if key not in self.labels:
            if len(self.labels) >= LABELS_MAX:
                self.labels.clear()
            self.labels[key] = self._ask_label(place, code, other)
        return self.labels[key]

    def _ask_label(self, place: int, code: int, other: int) -> str | None:
        item = self.fields[place]
        if item.bits is not None:
            flags = database().bit_lookup(item.bits)
            return ", ".join(name for bit, name in flags if code >> bit & 1) or None
        assert item.bit_length is not None, "codes have fixed lengths"
        payload = with_bits(self.probe, item.probe_bit, item.bit_length, code)
        if item.indirect is not None:
            master = self.fields[item.indirect]
            assert master.bit_length is not None, "codes have fixed lengths"
            payload = with_bits(payload, master.probe_bit, master.bit_length, other)
        value = _answers(self.pgn, payload).get(item.id)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PgnLayouts:
    """All layouts of a PGN: its variants in the database's order, then the fallback if it has one."""

    pgn: int
    variants: tuple[Variant, ...]
    unreachable: tuple[str, ...] = ()
    """Variants that the package itself never decodes, as another one hides them or they cannot be probed."""


@cache
def layouts_of(pgn: int) -> PgnLayouts:
    """The layout of a PGN's payloads; no variants for an unknown one."""
    # The cache may be filled by two threads at once; the package's objects are then only read by one.
    with _LOCK:
        found, hidden = [], []
        for info in database().pgn_variants(pgn):
            if _is_fallback(info.id):
                continue
            variant = _learn(info, pgn)
            if variant is None:
                hidden.append(info.id)
            else:
                found.append(variant)
        # More conditions do not win: the database's order decides (Y3).
        if any(first <= pgn <= last for first, last in _FALLBACKS):
            fallback = next((item for item in _fallback_infos() if _range_of(item.pgn) == _range_of(pgn)), None)
            variant = None if fallback is None else _learn(fallback, pgn)
            found += [] if variant is None else [variant]
        return PgnLayouts(pgn=pgn, variants=tuple(found), unreachable=tuple(hidden))


@cache
def fast_packet_pgns() -> frozenset[int]:
    """The PGNs of the bus that the database knows as fast packets: those it names, and the ranges that are by rule."""
    found = set()
    for info in database().pgns():
        if info.packet_type != "Fast" or info.pgn > _PGN_MAX:
            continue
        found.add(info.pgn)
        if _is_fallback(info.id):
            first, last = _fallback_range(info.id)
            # Below PDU format 240 the low byte of a PGN is a destination, and no part of it.
            found.update(range(first, last + 1, 1 if first & 0xFF00 >= 0xF000 else 256))
    return frozenset(found)


def snake_case(name: str) -> str:
    """`gnssPositionData` and `3AxisOffset` as words joined by underscores; a fallback loses its range."""
    name = re.sub(r"^0x[0-9a-f]{4,5}(0x[0-9a-f]{4,5})?(?=[A-Z])", "", name)
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+[a-z]*", name)
    return "_".join(words).lower()


# --- asking the package ---------------------------------------------------------------------------


@cache
def package() -> Any:
    # Imported by name and late: it has no types, and costs time for gateways that are not needed here.
    with optional("decoding values"):
        return import_module("nmea2000.backend")


def database() -> Any:
    return package().DATABASE


@cache
def _fallback_infos() -> tuple[Any, ...]:
    return tuple(info for info in database().pgns() if _is_fallback(info.id))


def _is_fallback(identifier: str) -> bool:
    return identifier.startswith("0x")


def _fallback_range(identifier: str) -> tuple[int, int]:
    """The first and the last PGN, which are in the name: `0x1ff000x1ffffManufacturerSpecific...`."""
    match = re.match(r"0x([0-9a-f]{4,5})(?:0x([0-9a-f]{4,5}))?(?=[A-Z])", identifier)
    assert match is not None, f"a range in {identifier}"
    first = int(match[1], 16)
    return first, first if match[2] is None else int(match[2], 16)


def _range_of(pgn: int) -> tuple[int, int] | None:
    return next(((first, last) for first, last in _FALLBACKS if first <= pgn <= last), None)


def _answers(pgn: int, payload: bytes) -> dict[str, Any]:
    """The fields of a payload by id as the package decodes it, including those of the first repeated set."""
    message = package().decode(pgn, payload, units="si")
    if message is None:
        return {}
    found = {"": message.id}
    for item in message.fields:
        if isinstance(item.value, list):
            for name, inner in (item.value[0] if item.value else {}).items():
                found.setdefault(name, inner.value)
        else:
            found.setdefault(item.id, item.value)
    return found


def _learn(info: Any, pgn: int) -> Variant | None:
    probe = _probe(info)
    if probe is None or _answers(pgn, probe).get("") != info.id:
        return None
    places = list(_places(info, probe))
    width = max((start + (length or 0) + 7) // 8 for start, length in places)
    probe = probe.ljust(width, b"\xff")
    fields = tuple(_learn_field(info, place, start, length, probe, pgn) for place, (start, length) in enumerate(places))
    fields = tuple(
        replace(item, kind=FieldKind.VARIABLE) if _is_optional(info, place) else item
        for place, item in enumerate(fields)
    )
    matches = tuple(_matches(info, fields, probe, pgn))
    # A match field has one value by definition; other values would mean other variants.
    fixed_raws = {bit: raw for bit, _, raw in matches}
    fields = tuple(
        replace(item, raw_min=fixed_raws[item.bit_offset], raw_max=fixed_raws[item.bit_offset], signed=False)
        if item.bit_offset in fixed_raws and item.bit_length
        else item
        for item in fields
    )
    sets = tuple(RepeatedSet(first=first, fields=count, count_field=by) for first, count, by in info.repeating_sets)
    return Variant(
        pgn=pgn,
        id=info.id,
        matches=matches,
        fields=fields,
        sets=sets,
        instance=_instance(fields, sets),
        told_from=_told_from(fields, sets),
        proprietary=_is_fallback(info.id),
        probe=probe,
    )


def _probe(info: Any) -> bytes | None:
    """A payload with only the match fields of this variant; None where the package cannot make one."""
    canboat = package().canboat
    values: dict[str, Any] = {}
    for item in info.fields:
        if item.field_type in ("DYNAMIC_FIELD_KEY", "DYNAMIC_FIELD_LENGTH"):
            values[item.id] = canboat.Raw(1)
        elif item.field_type == "DYNAMIC_FIELD_VALUE":
            values[item.id] = b"\xff"
        elif item.field_type == "STRING_LZ":
            values[item.id] = ""
        elif item.field_type == "BINARY" and item.bit_length and item.bit_length < 64 and item.bit_length % 8:
            # Left to itself the encoder rounds these to whole bytes, and all fields behind it slip.
            values[item.id] = canboat.Raw((1 << item.bit_length) - 1)
    repeated = {place for first, count, _ in info.repeating_sets for place in range(first, first + count)}
    inside = {info.fields[place].id for place in repeated}
    outside = {name: value for name, value in values.items() if name not in inside}
    one_each = [
        [{item.id: values[item.id] for item in info.fields[first : first + count] if item.id in values}]
        for first, count, _ in info.repeating_sets
    ]
    for sets in (one_each or None, None):
        try:
            return bytes(database().encode(info.id, outside, sets=sets))
        except (canboat.EncodeError, TypeError, ValueError, OverflowError):
            continue
    return None


def _places(info: Any, probe: bytes) -> Iterator[tuple[int, int | None]]:
    """Where each field lies in the probe, and how long it is where the layout says so."""
    at = 0
    for item in info.fields:
        yield at, item.bit_length
        if item.bit_length is not None:
            at += item.bit_length
        elif item.field_type == "STRING_LAU":
            at += 8 * max(2, probe[at // 8] if at // 8 < len(probe) else 2)
        elif item.field_type == "STRING_LZ":
            at += 8 * (1 + (probe[at // 8] if at // 8 < len(probe) else 0))


def _learn_field(info: Any, place: int, start: int, length: int | None, probe: bytes, pgn: int) -> FieldLayout:
    item = info.fields[place]
    kind = _KINDS.get(item.field_type or "", FieldKind.NUMBER)
    if item.field_type == "STRING_LZ" and length is not None:
        length = item.bit_length
    signed, raw_min, raw_max = False, 0, (1 << (length or 0)) - 1
    if kind in _RAW_KINDS and length is not None and length <= 64:
        bits = length

        def value(raw: int) -> Any:
            payload = with_bits(probe, start, bits, raw & (1 << bits) - 1)
            return _answers(pgn, payload).get(item.id)

        ask = ProbedNumber(value=value, length=bits)
        signed = length > 1 and ask.negative(raw_max)
        raw_min, raw_max = ask.bounds(signed=signed)
        # The package checks a range's low end only.
        limit = _LIMITS.get(item.physical_quantity or "") if item.field_type in ("NUMBER", "TIME") else None
        raw_max = raw_max if limit is None else min(raw_max, round(limit / item.resolution))
    names = [other.id for other in info.fields]
    indirect = names.index(_INDIRECT[item.id]) if item.field_type == "INDIRECT_LOOKUP" else None
    key = teller = None
    if kind is FieldKind.DYNAMIC:
        before = [info.fields[other].field_type for other in range(place)]
        key = _last(before, "DYNAMIC_FIELD_KEY")
        teller = _last(before, "DYNAMIC_FIELD_LENGTH")
    return FieldLayout(
        id=item.id,
        signal=f"{snake_case(info.id)}.{snake_case(item.id)}",
        kind=kind,
        bit_offset=item.bit_offset,
        bit_length=length,
        signed=signed,
        scale=float(item.resolution or 1.0),
        shift=float(item.offset or 0),
        unit=item.unit,
        raw_min=raw_min,
        raw_max=raw_max,
        indirect=indirect,
        probe_bit=start,
        bits=item.lookup_bit_enumeration,
        key=key,
        teller=teller,
    )


def _last(kinds: list[str | None], kind: str) -> int | None:
    return max((place for place, one in enumerate(kinds) if one == kind), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedNumber:
    """A number of `length` bits of which the package is asked; a raw value may be negative."""

    value: Callable[[int], Any]
    length: int

    def negative(self, raw: int) -> bool:
        """All bits set are -1 to a signed field and "not available" to an unsigned one."""
        value = self.value(raw)
        return isinstance(value, int | float) and value < 0

    def bounds(self, *, signed: bool) -> tuple[int, int]:
        """The lowest and the highest raw value that count (Y2)."""
        lowest = -(1 << self.length - 1) if signed else 0
        highest = (1 << self.length - int(signed)) - 1
        return -self._edge(0, -lowest, sign=-1), self._edge(max(lowest, 0), highest, sign=1)

    def _edge(self, inside: int, outside: int, *, sign: int) -> int:
        for near in range(outside, max(inside, outside - 4), -1):
            if self.value(sign * near) is not None:
                return near
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if self.value(sign * middle) is not None:
                inside = middle
            else:
                outside = middle
        return inside


def _matches(info: Any, fields: tuple[FieldLayout, ...], probe: bytes, pgn: int) -> Iterator[Match]:
    """The fields that make a payload this variant: with one changed, the package decodes another."""
    repeated = {place for first, count, _ in info.repeating_sets for place in range(first, first + count)}
    for place, item in enumerate(fields):
        if place in repeated or item.bit_offset is None or item.bit_length is None or item.bit_length > 64:
            continue
        if item.kind not in (FieldKind.NUMBER, FieldKind.LOOKUP):
            continue
        raw = int.from_bytes(probe, "little") >> item.probe_bit & (1 << item.bit_length) - 1
        changed = with_bits(probe, item.probe_bit, item.bit_length, raw ^ 1)
        if _answers(pgn, changed).get("") != info.id:
            yield item.bit_offset, item.bit_length, raw


def _is_optional(info: Any, place: int) -> bool:
    """Whether a field is there in some payloads only: its length is fixed, yet the start of the next is not known."""
    if place + 1 >= len(info.fields) or any(first + count == place + 1 for first, count, _ in info.repeating_sets):
        return False
    item, following = info.fields[place], info.fields[place + 1]
    return item.bit_offset is not None and item.bit_length is not None and following.bit_offset is None


def _told_from(fields: tuple[FieldLayout, ...], sets: tuple[RepeatedSet, ...]) -> int | None:
    first = next((place for place, item in enumerate(fields) if item.kind is FieldKind.VARIABLE), None)
    inside = (one.first for one in sets if first is not None and one.first <= first < one.first + one.fields)
    return next(inside, first)


def _instance(fields: tuple[FieldLayout, ...], sets: tuple[RepeatedSet, ...]) -> int | None:
    repeated = {place for item in sets for place in range(item.first, item.first + item.fields)}
    for place, item in enumerate(fields):
        named = item.id == "instance" or item.id.endswith("Instance")
        if named and item.id != "systemInstance" and place not in repeated and item.bit_offset is not None:
            return place
    return None


def with_bits(payload: bytes, start: int, length: int, raw: int) -> bytes:
    number = int.from_bytes(payload, "little")
    number = number & ~((1 << length) - 1 << start) | raw << start
    return number.to_bytes(max(len(payload), (start + length + 7) // 8), "little")
