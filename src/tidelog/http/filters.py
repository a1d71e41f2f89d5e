"""Which frames a reader wants: lplex's query parameters, applied to whole blocks.

Parameters may be repeated: values of one parameter are alternatives, different parameters must all hold. The facts in a
source's NAME (manufacturer, instance, name) are looked up in the registry at that moment; a source that has not claimed
an address has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from tidelog.blocks.columns import FrameColumns, UInt8s, UInt32s
from tidelog.compat.captures import PGN_MAX, parts_from_can_id
from tidelog.errors import RequestRefused
from tidelog.http.frames import Rows
from tidelog.nmea.devices import Device, Name, manufacturer_name

SOURCE_MAX: Final = 255
INSTANCE_MAX: Final = 255
NAME_DIGITS_MAX: Final = 16
_SOURCES: Final = 256

_Value = TypeVar("_Value")
_Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFilter:
    """Empty sets match everything."""

    pgns: frozenset[int] = frozenset()
    excluded_pgns: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    manufacturers: frozenset[str] = frozenset()
    """Names in lower case, and codes as digits."""
    instances: frozenset[int] = frozenset()
    names: frozenset[int] = frozenset()
    excluded_names: frozenset[int] = frozenset()
    buses: frozenset[str] = frozenset()
    """Frames have no bus here, so naming one matches none of them."""

    @property
    def passes_all(self) -> bool:
        return self == EVERYTHING

    def rows(self, frames: FrameColumns, devices: Callable[[], Iterable[Device]]) -> Rows | None:
        """The frames that pass, in their order; None when all do."""
        if self.passes_all:
            return None
        parts = parts_from_can_id(frames.can_ids)
        passed = self.passed(parts.pgn, parts.source, devices)
        return None if bool(passed.all()) else np.flatnonzero(passed)

    def passed(self, pgns: UInt32s, sources: UInt8s, devices: Callable[[], Iterable[Device]]) -> npt.NDArray[np.bool_]:
        """For each pair of PGN and source, whether it passes."""
        passed = np.full(len(pgns), not self.buses)
        if self.pgns:
            passed &= np.isin(pgns, list(self.pgns))
        if self.excluded_pgns:
            passed &= ~np.isin(pgns, list(self.excluded_pgns))
        if self.sources:
            passed &= np.isin(sources, list(self.sources))
        if self._asks_devices:
            passed &= self._sources_passed(devices())[sources]
        return passed

    @property
    def _asks_devices(self) -> bool:
        return bool(self.manufacturers or self.instances or self.names or self.excluded_names)

    def _sources_passed(self, devices: Iterable[Device]) -> npt.NDArray[np.bool_]:
        asks_for_some = bool(self.manufacturers or self.instances or self.names)
        passed = np.full(_SOURCES, not asks_for_some)
        for device in devices:
            if device.name:
                passed[device.source] = self._device_passes(device.name)
        return passed

    def _device_passes(self, name: int) -> bool:
        fields = Name.from_int(name)
        made_by = {manufacturer_name(fields.manufacturer_code).lower(), str(fields.manufacturer_code)}
        return (
            (not self.manufacturers or not self.manufacturers.isdisjoint(made_by))
            and (not self.instances or fields.device_instance in self.instances)
            and (not self.names or name in self.names)
            and name not in self.excluded_names
        )


EVERYTHING: Final = FrameFilter()


def filter_from_query(query: _Query) -> FrameFilter:
    """Raises `RequestRefused` (400) for an invalid value."""
    _refuse_decode(query)
    return FrameFilter(
        pgns=_values(query, "pgn", _pgn),
        excluded_pgns=_values(query, "exclude_pgn", _pgn),
        sources=_values(query, "src", _source),
        manufacturers=_values(query, "manufacturer", _manufacturer),
        instances=_values(query, "instance", _instance),
        names=_values(query, "name", _name),
        excluded_names=_values(query, "exclude_name", _name),
        buses=_values(query, "bus", _bus),
    )


def bad_parameter(name: str, text: str, wanted: str) -> RequestRefused:
    shown = ascii(text if len(text) <= 80 else text[:80])
    return RequestRefused(status=400, reason="bad_parameter", detail=f"{name}={shown} is not {wanted}")


def whole_number(name: str, text: str, *, smallest: int, largest: int) -> int:
    # isdecimal alone would accept digits of other scripts.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or not smallest <= int(text) <= largest:
        raise bad_parameter(name, text, f"a whole number from {smallest} to {largest}")
    return int(text)


def _refuse_decode(query: _Query) -> None:
    if any(text.lower() not in ("", "0", "false") for text in query.get("decode", ())):
        raise RequestRefused(
            status=400,
            reason="not_available",
            detail="decoding is not available here; leave out decode and read the hex in data",
        )


def _values(query: _Query, name: str, parse: Callable[[str, str], _Value]) -> frozenset[_Value]:
    return frozenset(parse(name, text) for text in query.get(name, ()))


def _pgn(name: str, text: str) -> int:
    return whole_number(name, text, smallest=0, largest=PGN_MAX)


def _source(name: str, text: str) -> int:
    return whole_number(name, text, smallest=0, largest=SOURCE_MAX)


def _instance(name: str, text: str) -> int:
    return whole_number(name, text, smallest=0, largest=INSTANCE_MAX)


def _manufacturer(name: str, text: str) -> str:
    if not text.strip():
        raise bad_parameter(name, text, "a manufacturer's name or code")
    return text.strip().lower()


def _name(name: str, text: str) -> int:
    digits = text.lower().removeprefix("0x")
    if not 1 <= len(digits) <= NAME_DIGITS_MAX or not set(digits) <= set("0123456789abcdef"):
        raise bad_parameter(name, text, "a NAME of up to 16 hex digits")
    return int(digits, 16)


def _bus(name: str, text: str) -> str:
    if not text:
        raise bad_parameter(name, text, "the name of a bus")
    return text
