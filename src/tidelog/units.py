"""Numbers that people write and read: byte sizes, durations, times.

Inside the code sizes are bytes and times are integer microseconds since 1970 (UTC); only the
edges (flags, files, tables on a terminal) use these functions.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from tidelog.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

US_PER_MS = 1_000
US_PER_S = 1_000_000

_SIZES = {"": 1, "b": 1, "k": KIB, "kb": 1000, "kib": KIB, "m": MIB, "mb": 10**6, "mib": MIB}
_SIZES |= {"g": GIB, "gb": 10**9, "gib": GIB, "t": 1024 * GIB, "tb": 10**12, "tib": 1024 * GIB}
_DURATIONS_US = {"us": 1, "µs": 1, "μs": 1, "ms": US_PER_MS, "s": US_PER_S, "m": 60 * US_PER_S}
_DURATIONS_US |= {"h": 3600 * US_PER_S, "d": 86_400 * US_PER_S, "": US_PER_S}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-zµμ]*)\s*")
_SEVERAL = re.compile(r"\s*(?:[0-9]{1,30}(?:\.[0-9]{1,30})?(?:us|µs|μs|ms|s|m|h|d))+\s*", re.IGNORECASE)
_ONE_OF_SEVERAL = re.compile(r"([0-9.]+)([^0-9.\s]+)")
_ISO_DURATION = re.compile(
    r"\s*P(?=[0-9T])(?:([0-9]{1,30})W)?(?:([0-9]{1,30})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,30})H)?(?:([0-9]{1,30})M)?(?:([0-9]{1,30}(?:\.[0-9]{1,30})?)S)?)?\s*"
)
_ISO_UNITS_US = tuple(days * 86_400 * US_PER_S for days in (7, 1)) + tuple(s * US_PER_S for s in (3600, 60, 1))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_bytes(text: str) -> int:
    """`64MiB`, `64m`, `1.5 GB`, `4096` to bytes."""
    return _parse(text, _SIZES, what="size", example="64MiB")


def parse_duration_us(text: str) -> int:
    """`30s`, `500 ms`, `7d`, `1h30m` (as Go writes it) and `PT1H30M` (ISO 8601) to microseconds.

    A bare number is seconds. Years and months are refused: they have no fixed length.
    """
    iso = _ISO_DURATION.fullmatch(text)
    if iso is not None:
        return round(sum(Fraction(part or 0) * unit for part, unit in zip(iso.groups(), _ISO_UNITS_US, strict=True)))
    if _SEVERAL.fullmatch(text):
        parts = _ONE_OF_SEVERAL.findall(text)
        if len(parts) > 1:
            return round(sum(Fraction(number) * _DURATIONS_US[unit.lower()] for number, unit in parts))
    return _parse(text, _DURATIONS_US, what="duration", example="30s, 1h30m or PT1H30M")


def _parse(text: str, units: dict[str, int], *, what: str, example: str) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise InvalidConfig(section=what, problems=[f"{text!r} is not a {what}; write it like {example}"])
    # Exact arithmetic: a float would change large byte counts.
    value = round(Fraction(match[1]) * units[match[2].lower()])
    if value == 0 and Fraction(match[1]) > 0:
        raise InvalidConfig(section=what, problems=[f"{text!r} is smaller than one unit; write it like {example}"])
    return value


def format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        # 1023.95 KiB would print as 1024.0: it belongs to the next unit.
        if abs(count) < (1023.5 if unit == "B" else 1023.95):
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def parse_time_us(text: str) -> int:
    """ISO 8601 (UTC unless it says otherwise) to microseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfig(
            section="time", problems=[f"{text!r} is not a time; write it like 2026-03-06T10:15:30Z"]
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def format_time_us(time_us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC, or the plain number where a calendar ends."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us}us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
