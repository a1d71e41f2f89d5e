"""Text logs of gateways and analysers: Yacht Devices RAW, Actisense N2K ASCII, iKonvert, Garmin CSV, PCAN `.trc`.

Facts of each format, as its maker or canboat documents them:

    ydwg       `17:33:21.107 R 19F51323 01 2F ...`: time of day, received or transmitted, CAN id, up to 8 bytes
    n2k-ascii  `A173321.107 23FF7 1F513 012F...`: time of day, source destination priority, PGN, whole message
    ikonvert   `!PDGY,127257,3,17,255,0.563,<base64>`: PGN, priority, source, destination, seconds, whole message
    garmin     CSV with a heading; milliseconds, or a date in one field with underscores; whole messages
    trc        PCAN, versions 1.0 to 2.1; milliseconds since `$STARTTIME`

Most have no date. It is found in this order (`Epoch`): the time that the caller gives, the heading of the file, the
first time that a GPS sends in the file itself. A file with none of these begins at 1970, which the tables know as a
clock that was never set. Times of day count on where they pass midnight.

`python-can` reads `.trc` too. It is an optional dependency, and knows neither the number of a bad line nor how to go on
after it; the tests compare with it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.blocks.columns import PAYLOAD_BYTES_MAX
from tidelog.blocks.frames import CAN_ID_MAX
from tidelog.compat.captures import (
    CAN_PAYLOAD_BYTES_MAX,
    PGN_MAX,
    LineParser,
    Malformed,
    Row,
    SkipReason,
    can_id_from_parts_scalar,
    hex_payload,
    second_us,
)
from tidelog.errors import InvalidRecord
from tidelog.units import US_PER_MS, US_PER_S

DAY_US: Final = 86_400 * US_PER_S
_HOUR_US: Final = 3_600 * US_PER_S
_OLE_EPOCH_DAYS: Final = 25_569
"""Days from 1899-12-30, from which PCAN counts, to 1970."""


@dataclass(slots=True)
class Epoch:
    """Where the times of a file begin. One for each pass over a file: it counts the midnights."""

    offset_us: int = 0
    daily: bool = False
    """Times are those of a day and fall back to zero at midnight."""
    _last_us: int = 0
    _midnights_us: int = 0

    def at(self, time_us: int) -> int:
        if self.daily:
            if time_us < self._last_us - DAY_US // 2:
                self._midnights_us += DAY_US
            self._last_us = time_us
        return self.offset_us + self._midnights_us + time_us


def message(time_us: int, priority: int, pgn: int, source: int, destination: int, payload: bytes) -> Row | SkipReason:
    """A whole message as a frame."""
    if pgn > PGN_MAX:
        return SkipReason.PGN_TOO_LARGE
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise Malformed(f"{len(payload)} payload bytes, more than {PAYLOAD_BYTES_MAX}")
    try:
        return time_us, can_id_from_parts_scalar(priority, pgn, source, destination), payload
    except InvalidRecord as error:
        raise Malformed(f"a bad header: {error.problem}") from None


def can_frame(time_us: int, can_id: int, payload: bytes, *, extended: bool) -> Row | SkipReason:
    """A frame of the bus."""
    if not extended:
        return SkipReason.STANDARD_ID
    if can_id > CAN_ID_MAX:
        raise Malformed(f"id {can_id:X}, which is more than 29 bits")
    if len(payload) > CAN_PAYLOAD_BYTES_MAX:
        raise Malformed(f"{len(payload)} payload bytes, a CAN frame has at most {CAN_PAYLOAD_BYTES_MAX}")
    return time_us, can_id, payload


def _day_time_us(hours: str, minutes: str, seconds: str, fraction: str) -> int:
    if int(minutes) > 59 or int(seconds) > 60:
        raise Malformed(f"time {hours}:{minutes}:{seconds}, which is no time")
    whole = int(hours) * 3_600 + int(minutes) * 60 + int(seconds)
    return whole * US_PER_S + int(fraction[:6].ljust(6, "0"))


# --- Yacht Devices ---------------------------------------------------------------------------------

_YDWG: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)\.(\d{1,6})\s+[RT]\s+([0-9A-Fa-f]{8})((?:\s+[0-9A-Fa-f]{2}){0,8})", re.ASCII
)


def ydwg_parser(epoch: Epoch) -> LineParser:
    def parse(line: str) -> Row | SkipReason | None:
        if not line or line.startswith("#"):
            return None
        match = _YDWG.fullmatch(line)
        if match is None:
            raise Malformed("no Yacht Devices frame")
        *clock, identifier, digits = match.groups()
        time_us = _day_time_us(*clock)
        return can_frame(epoch.at(time_us), int(identifier, 16), bytes.fromhex(digits), extended=True)

    return parse


# --- Actisense -------------------------------------------------------------------------------------

_N2K_ASCII: Final = re.compile(
    r"A(\d\d)(\d\d)(\d\d)\.(\d{1,6})\s+([0-9A-F]{2})([0-9A-F]{2})([0-9A-F])\s+([0-9A-F]{5})\s*([0-9A-F]*)",
    re.ASCII | re.IGNORECASE,
)


def n2k_ascii_parser(epoch: Epoch) -> LineParser:
    def parse(line: str) -> Row | SkipReason | None:
        if not line or line.startswith("#"):
            return None
        match = _N2K_ASCII.fullmatch(line)
        if match is None:
            raise Malformed("no N2K ASCII message")
        *clock, source, destination, priority, pgn, digits = match.groups()
        payload = hex_payload(digits, len(digits) // 2)
        time_us = _day_time_us(*clock)
        return message(
            epoch.at(time_us), int(priority, 16), int(pgn, 16), int(source, 16), int(destination, 16), payload
        )

    return parse


# --- Digital Yacht ---------------------------------------------------------------------------------

_IKONVERT: Final = re.compile(
    r"!PDGY,(\d{1,10}),(\d{1,3}),(\d{1,3}),(\d{1,3}),(\d{1,12})(?:\.(\d{1,9}))?,([A-Za-z0-9+/]*={0,2})", re.ASCII
)


def ikonvert_parser(epoch: Epoch) -> LineParser:
    def parse(line: str) -> Row | SkipReason | None:
        # What the gateway says of itself is no data.
        if not line or line.startswith(("#", "$PDGY,")):
            return None
        match = _IKONVERT.fullmatch(line)
        if match is None:
            raise Malformed("no iKonvert message")
        pgn, priority, source, destination, seconds, fraction, text = match.groups()
        try:
            payload = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            raise Malformed("a payload that is not base64") from None
        time_us = int(seconds) * US_PER_S + int((fraction or "0")[:6].ljust(6, "0"))
        return message(epoch.at(time_us), int(priority), int(pgn), int(source), int(destination), payload)

    return parse


# --- Garmin ----------------------------------------------------------------------------------------

GARMIN_HEADING: Final = "Sequence #,"
_GARMIN: Final = re.compile(
    r"\d+,([\d_]+),(\d{1,10}),.*,(\d{1,3}),(\d{1,3}),(\d{1,3}),[01],(\d{1,4}),0x([0-9A-Fa-f]*)", re.ASCII
)
_GARMIN_DATE: Final = re.compile(r"(\d{1,2})_(\d{1,2})_(\d{4})_(\d{1,2})_(\d{1,2})_(\d{1,2})_(\d+)", re.ASCII)


def garmin_parser(epoch: Epoch) -> LineParser:
    def parse(line: str) -> Row | SkipReason | None:
        if not line or line.startswith(("#", GARMIN_HEADING)):
            return None
        match = _GARMIN.fullmatch(line)
        if match is None:
            raise Malformed("no Garmin message")
        time, pgn, source, destination, priority, length, digits = match.groups()
        payload = hex_payload(digits, int(length))
        return message(_garmin_us(time, epoch), int(priority), int(pgn), int(source), int(destination), payload)

    return parse


def _garmin_us(time: str, epoch: Epoch) -> int:
    if time.isdigit():
        return epoch.at(int(time) * US_PER_MS)
    match = _GARMIN_DATE.fullmatch(time)
    if match is None:
        raise Malformed(f"time {time}, which is no time")
    month, day, year, hours, minutes, seconds, ticks = match.groups()
    date, clock = f"{year}-{month:0>2}-{day:0>2}", f"{hours:0>2}:{minutes:0>2}:{seconds:0>2}"
    # The last number counts milliseconds since something else began; its last three digits are all that is used.
    return second_us(date, clock) + int(ticks) % 1000 * US_PER_MS


# --- PCAN ------------------------------------------------------------------------------------------

_TRC_COLUMNS: Final[Mapping[str, str]] = {
    "1.0": "N,O,I,L,D",
    "1.1": "N,O,T,I,L,D",
    "1.2": "N,O,B,T,I,L,D",
    "1.3": "N,O,B,T,I,R,L,D",
    "2.0": "N,O,T,I,d,l,D",
    "2.1": "N,O,T,B,I,d,R,L,D",
}
"""N number, O offset in ms, T type or direction, B bus, I id, d direction, R reserved, L or l length, D data."""
_TRC_KINDS: Final[Mapping[str, SkipReason]] = {
    "RR": SkipReason.REMOTE_FRAME,
    "FD": SkipReason.CAN_FD,
    "FB": SkipReason.CAN_FD,
    "FE": SkipReason.CAN_FD,
    "BI": SkipReason.CAN_FD,
    "ER": SkipReason.ERROR_FRAME,
    "EC": SkipReason.OTHER_RECORD,
    "EV": SkipReason.OTHER_RECORD,
    "ST": SkipReason.OTHER_RECORD,
    "ERROR": SkipReason.ERROR_FRAME,
    "WARNG": SkipReason.OTHER_RECORD,
}


@dataclass(slots=True)
class TrcHeader:
    """What the comments of a `.trc` file say so far."""

    version: str = "1.0"
    columns: str = field(default=_TRC_COLUMNS["1.0"])
    start_us: int | None = None

    def take(self, line: str) -> None:
        name, _, value = line.removeprefix(";").strip().partition("=")
        if name == "$FILEVERSION":
            if value not in _TRC_COLUMNS:
                known = ", ".join(_TRC_COLUMNS)
                raise Malformed(f"version {value} of .trc; {known} are known")
            self.version, self.columns = value, _TRC_COLUMNS[value]
        elif name == "$COLUMNS":
            self.columns = value
        elif name == "$STARTTIME":
            try:
                days = float(value)
            except ValueError:
                raise Malformed(f"a start time {value}, which is no number of days") from None
            self.start_us = round((days - _OLE_EPOCH_DAYS) * 86_400_000) * US_PER_MS


def trc_parser(epoch: Epoch) -> LineParser:
    header = TrcHeader()

    def parse(line: str) -> Row | SkipReason | None:
        if line.startswith(";"):
            header.take(line)
            return None
        return _trc_row(line.split(), header.columns.split(","), epoch) if line else None

    return parse


def _trc_row(words: list[str], columns: list[str], epoch: Epoch) -> Row | SkipReason:
    found = dict(zip(columns, words, strict=False))
    kind = found.get("T", "DT").upper()
    if reason := _TRC_KINDS.get(kind):
        return reason
    identifier, data = found.get("I", ""), words[len(columns) - 1 :]
    if data[:1] == ["RTR"]:
        return SkipReason.REMOTE_FRAME
    if identifier.upper() == "FFFFFFFF":
        return SkipReason.OTHER_RECORD  # how version 1.0 writes a warning
    try:
        offset_ms, length = float(found["O"]), int(found.get("L") or found["l"])
        can_id = int(identifier, 16)
        if kind not in ("DT", "RX", "TX") or len(identifier) > 8 or offset_ms < 0:
            raise ValueError(kind)
    except (KeyError, ValueError):
        raise Malformed("no PCAN frame") from None
    payload = hex_payload(" ".join(data), length)
    return can_frame(epoch.at(round(offset_ms * US_PER_MS)), can_id, payload, extended=len(identifier) > 4)


TEXT_PARSERS: Final[Mapping[str, Callable[[Epoch], LineParser]]] = {
    "ydwg": ydwg_parser,
    "n2k-ascii": n2k_ascii_parser,
    "ikonvert": ikonvert_parser,
    "garmin": garmin_parser,
    "trc": trc_parser,
}
