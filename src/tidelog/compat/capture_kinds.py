"""All kinds of captures: telling them apart, and opening one.

`sniff` decides by the first bytes or the first data line. What it takes for a kind, `open_capture` reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from tidelog.compat.binary_captures import EBL_STARTS, PCAP_MAGICS, PCAPNG_MAGIC, find_ebl, find_pcap
from tidelog.compat.captures import (
    CANDUMP_BANNER,
    CHUNK_FRAMES,
    CaptureReader,
    LineParser,
    Malformed,
    in_lines,
    parse_canboat,
    parse_candump,
    read_canboat_raw,
    read_candump,
    text_of,
)
from tidelog.compat.lpj import FILE_MAGIC, open_foreign, read_at
from tidelog.compat.text_captures import DAY_US, GARMIN_HEADING, TEXT_PARSERS, Epoch, TrcHeader
from tidelog.units import KIB, US_PER_S

Kind = Literal["lpj", "candump", "canboat", "ydwg", "n2k-ascii", "ikonvert", "garmin", "trc", "pcap", "ebl"]
KINDS: Final[tuple[Kind, ...]] = (
    "lpj",
    "candump",
    "canboat",
    "ydwg",
    "n2k-ascii",
    "ikonvert",
    "garmin",
    "trc",
    "pcap",
    "ebl",
)
NAMES: Final = (
    "an .lpj journal, or a capture of candump, canboat (.raw), Yacht Devices, Actisense (N2K ASCII, .ebl), iKonvert, "
    "Garmin (CSV), PCAN (.trc) or pcap"
)
_DAILY: Final = ("ydwg", "n2k-ascii")
"""Their times are those of a day."""

_SNIFF_BYTES: Final = 64 * KIB
_SYSTEM_TIME, _TIME_DATE = 126992, 129033
_DAYS_MIN: Final = 14_610
"""2010: a receiver that says an earlier day has no fix."""
_DAYS_MAX, _TICKS_MAX = 65_532, 864_009_999


def sniff(path: str | os.PathLike[str]) -> Kind | None:
    """The kind of file that this looks like; None for an unknown one."""
    with open_foreign(path) as file:
        start = read_at(file, 0, _SNIFF_BYTES)
    if start.startswith(FILE_MAGIC):
        return "lpj"
    if start[:4] == PCAPNG_MAGIC or start[:4] in PCAP_MAGICS:
        return "pcap"
    if start.startswith(EBL_STARTS):
        return "ebl"
    for line in start.split(b"\n"):
        text = text_of(line)
        kind = _kind_of_line(text)
        if kind is not None:
            return kind
        if text and not text.startswith(("#", "$PDGY,")) and not CANDUMP_BANNER.fullmatch(text):
            return None
    return None


def _kind_of_line(text: str) -> Kind | None:
    if text.startswith(GARMIN_HEADING):
        return "garmin"
    if text.startswith(";"):
        return "trc"
    parsers: Mapping[Kind, LineParser] = {
        "canboat": parse_canboat,
        "candump": parse_candump,
        "ydwg": TEXT_PARSERS["ydwg"](Epoch()),
        "n2k-ascii": TEXT_PARSERS["n2k-ascii"](Epoch()),
        "ikonvert": TEXT_PARSERS["ikonvert"](Epoch()),
    }
    return next((kind for kind, parse in parsers.items() if _is_data(parse, text)), None)


def _is_data(parse: LineParser, text: str) -> bool:
    try:
        return parse(text) is not None
    except Malformed:
        return False


def open_capture(
    path: str | os.PathLike[str],
    kind: str,
    *,
    chunk_frames: int = CHUNK_FRAMES,
    on_malformed: Literal["raise", "skip"] = "raise",
    start_us: int | None = None,
    untimed_at_us: int = 0,
) -> CaptureReader:
    """A reader of any kind but `lpj`.

    `start_us` is when a file without a date begins: of one with times of day only the day counts. candump lines
    without any time get `untimed_at_us`.
    """
    if kind == "candump":
        return read_candump(path, chunk_frames=chunk_frames, on_malformed=on_malformed, untimed_at_us=untimed_at_us)
    if kind == "canboat":
        return read_canboat_raw(path, chunk_frames=chunk_frames, on_malformed=on_malformed)
    if kind in ("pcap", "ebl"):
        find = find_pcap if kind == "pcap" else find_ebl
        return CaptureReader(path, find, unit="byte", chunk_frames=chunk_frames, on_malformed=on_malformed)
    parser, daily = TEXT_PARSERS[kind], kind in _DAILY

    def reader(epoch: Epoch, malformed: Literal["raise", "skip"]) -> CaptureReader:
        return CaptureReader(path, in_lines(parser(epoch)), chunk_frames=chunk_frames, on_malformed=malformed)

    offset_us = _offset_us(path, kind, start_us, lambda: reader(Epoch(daily=daily), "skip"))
    return reader(Epoch(offset_us=offset_us, daily=daily), on_malformed)


def holds_messages(path: str | os.PathLike[str], kind: str) -> bool:
    """Whether long messages are whole in this capture; frames of the bus must be put together first."""
    if kind == "ebl":
        with open_foreign(path) as file:
            start = read_at(file, 0, _SNIFF_BYTES)
        return b"\x10\x02\x93" in start or b"\x10\x02\xd0" in start
    return kind in ("canboat", "n2k-ascii", "ikonvert", "garmin")


def _offset_us(
    path: str | os.PathLike[str], kind: str, start_us: int | None, undated: Callable[[], CaptureReader]
) -> int:
    """What must be added to the times in the file (`Epoch`)."""
    daily = kind in _DAILY
    if start_us is not None and daily:
        return start_us - start_us % DAY_US
    if start_us is None and kind == "trc" and (said_us := _trc_start_us(path)) is not None:
        return said_us
    if kind == "garmin" and _garmin_has_dates(path):
        return 0
    with undated() as reader:
        for time_us, gps_us in _gps_times(reader, first=start_us is not None):
            if start_us is not None:
                return start_us - time_us
            # Of a time of day only the day is unknown, if the clock is any good.
            days_us = round((gps_us - time_us) / DAY_US) * DAY_US
            return days_us if daily and abs(gps_us - time_us - days_us) < 3_600 * US_PER_S else gps_us - time_us
    return 0


def _gps_times(reader: CaptureReader, *, first: bool) -> Iterator[tuple[int, int]]:
    """The time in the file and that of the GPS, wherever one is sent; `first` gives the first frame instead."""
    for frames in reader:
        for time_us, can_id, payload in frames.rows():
            if first:
                yield time_us, 0
            pgn = can_id >> 8 & 0x3_FFFF
            if pgn not in (_SYSTEM_TIME, _TIME_DATE) or len(payload) < 8:
                continue
            at = 2 if pgn == _SYSTEM_TIME else 0
            days = int.from_bytes(payload[at : at + 2], "little")
            ticks = int.from_bytes(payload[at + 2 : at + 6], "little")
            # Source 5 is a crystal: the clock in doubt.
            is_gps = pgn == _TIME_DATE or payload[1] & 0x0F < 5
            if is_gps and _DAYS_MIN <= days <= _DAYS_MAX and ticks <= _TICKS_MAX:
                yield time_us, days * DAY_US + ticks * 100


def _trc_start_us(path: str | os.PathLike[str]) -> int | None:
    header = TrcHeader()
    for line in _first_lines(path):
        if line.startswith(";"):
            try:
                header.take(line)
            except Malformed:
                continue  # the reader says so, with the number of the line
    return header.start_us


def _garmin_has_dates(path: str | os.PathLike[str]) -> bool:
    return any(line.startswith(GARMIN_HEADING) and "Month_Day_Year" in line for line in _first_lines(path))


def _first_lines(path: str | os.PathLike[str]) -> list[str]:
    with open_foreign(path) as file:
        return [text_of(line) for line in read_at(file, 0, _SNIFF_BYTES).split(b"\n")]
