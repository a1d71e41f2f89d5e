"""Captures of other programs: how they are read, and candump text and canboat `.raw`, to and from frame columns.

candump text comes in three spellings: log lines (`candump -L`), console lines, and the bare
`<0x09f80200> [8] e8 fc ...` of old builds, which have no time at all. A canboat line has a whole
message: its fast packets are assembled, so payloads are longer than a CAN frame's eight bytes.

A reader is an iterator of `FrameColumns`. Lines that are well formed but are no NMEA 2000 frame (a PGN that fits no CAN
id, an 11-bit id, a remote frame) are counted in `skipped`, by reason; malformed lines raise `BadJournalFile`, or are
counted as well with `on_malformed="skip"`. Only comments, in whatever encoding, and empty lines are left out uncounted.
One thing that a CAN id cannot hold is dropped: a destination other than everybody on a broadcast (PDU2) PGN.

Other text formats are in `text_captures`, binary ones in `binary_captures`; `capture_kinds` tells them all apart.
"""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import BinaryIO, Final, Literal, NamedTuple, Self

import numpy as np

from tidelog.blocks.columns import PAYLOAD_BYTES_MAX, FrameColumns, UInt8s, UInt32s
from tidelog.blocks.frames import CAN_ID_MAX
from tidelog.compat.lpj import create_foreign, disk_error, finish_foreign, open_foreign, write_all
from tidelog.errors import BadJournalFile, InvalidConfig, InvalidRecord
from tidelog.units import KIB, US_PER_MS, US_PER_S, format_time_us, parse_time_us

CHUNK_FRAMES: Final = 8192
LINE_BYTES_MAX: Final = 16 * KIB
"""A canboat line with the longest payload has less than 6 KiB."""
PGN_MAX: Final = 0x3_FFFF
BROADCAST: Final = 255
CAN_PAYLOAD_BYTES_MAX: Final = 8

_PDU2_FORMAT_MIN: Final = 240
_CAN_ERROR_FLAG: Final = 0x2000_0000


# --- CAN ids -------------------------------------------------------------------------------------


class CanIdColumns(NamedTuple):
    """The parts of many CAN ids."""

    priority: UInt8s
    pgn: UInt32s
    source: UInt8s
    destination: UInt8s


class CanIdParts(NamedTuple):
    """The parts of one CAN id."""

    priority: int
    pgn: int
    source: int
    destination: int


def parts_from_can_id(can_ids: UInt32s) -> CanIdColumns:
    """Split 29-bit ids. A PDU format of 240 or more (PDU2) is a broadcast; its low PGN byte is no address."""
    identifiers = np.asarray(can_ids, dtype=np.uint32)
    specific = (identifiers >> 8) & 0xFF
    addressed = ((identifiers >> 16) & 0xFF) < _PDU2_FORMAT_MIN
    pgn = (identifiers >> 8) & PGN_MAX
    return CanIdColumns(
        priority=((identifiers >> 26) & 7).astype(np.uint8),
        pgn=np.where(addressed, pgn & 0x3_FF00, pgn).astype(np.uint32),
        source=(identifiers & 0xFF).astype(np.uint8),
        destination=np.where(addressed, specific, BROADCAST).astype(np.uint8),
    )


def parts_from_can_id_scalar(can_id: int) -> CanIdParts:
    pgn = (can_id >> 8) & PGN_MAX
    if (pgn >> 8) & 0xFF < _PDU2_FORMAT_MIN:
        return CanIdParts((can_id >> 26) & 7, pgn & 0x3_FF00, can_id & 0xFF, pgn & 0xFF)
    return CanIdParts((can_id >> 26) & 7, pgn, can_id & 0xFF, BROADCAST)


def can_id_from_parts_scalar(priority: int, pgn: int, source: int, destination: int) -> int:
    if not (0 <= priority <= 7 and 0 <= pgn <= PGN_MAX and 0 <= source <= 255 and 0 <= destination <= 255):
        raise InvalidRecord(
            problem=f"priority {priority}, pgn {pgn}, source {source}, destination {destination} fit no 29-bit CAN id"
        )
    if (pgn >> 8) & 0xFF >= _PDU2_FORMAT_MIN:
        return priority << 26 | pgn << 8 | source
    if pgn & 0xFF:
        raise InvalidRecord(problem=f"pgn {pgn} is addressed (PDU format below 240) and must end in a zero byte")
    return priority << 26 | (pgn | destination) << 8 | source


# --- reading -------------------------------------------------------------------------------------


class SkipReason(enum.StrEnum):
    """Why a line gave no frame."""

    MALFORMED = "malformed"
    """Only with `on_malformed="skip"`."""
    PGN_TOO_LARGE = "pgn_too_large"
    """No 29-bit id holds a PGN of more than 18 bits. Gateways use such numbers for their own reports."""
    STANDARD_ID = "standard_id"
    """An 11-bit id; NMEA 2000 has none."""
    REMOTE_FRAME = "remote_frame"
    ERROR_FRAME = "error_frame"
    CAN_FD = "can_fd"
    OTHER_RECORD = "other_record"
    """A record of a gateway or of another interface that holds no frame of the bus."""


class Malformed(Exception):
    """A line or record is malformed; the message says how."""


Row = tuple[int, int, bytes]
LineParser = Callable[[str], Row | SkipReason | None]
"""A line to a frame, to the reason why it is none, or to None if it is not data. Raises `Malformed`."""


class FoundRecord(NamedTuple):
    """What is at one place of a capture."""

    place: int
    """A line number from 1, or a byte."""
    position: int
    content: Row | SkipReason | Malformed


class CaptureReader(Iterator[FrameColumns]):
    """Chunks of frames from a capture file, and counts of what was left out.

    The counts are complete once the iterator is exhausted. The file is closed at its end, or by `close`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        find: Callable[[BinaryIO], Iterator[FoundRecord]],
        *,
        unit: Literal["line", "byte"] = "line",
        chunk_frames: int,
        on_malformed: Literal["raise", "skip"],
    ) -> None:
        if chunk_frames < 1:
            raise InvalidConfig(section="capture", problems=["chunk_frames must be positive"])
        self.path = os.fspath(path)
        self.frame_count = 0
        self.skipped: Counter[SkipReason] = Counter()
        self.first_skipped: dict[SkipReason, int] = {}
        """The place of the first line or record skipped for each reason, in `unit`."""
        self.unit = unit
        self._find = find
        self._chunk_frames = chunk_frames
        self._on_malformed = on_malformed
        self._file = open_foreign(path)
        self._chunks = self._read_chunks()

    def __next__(self) -> FrameColumns:
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._chunks.close()
        self._file.close()

    def _read_chunks(self) -> Generator[FrameColumns, None, None]:
        rows: list[Row] = []
        with self._file:
            for found in self._find(self._file):
                if isinstance(found.content, tuple):
                    rows.append(found.content)
                    self.frame_count += 1
                else:
                    self._skip(found)
                if len(rows) == self._chunk_frames:
                    yield FrameColumns.from_rows(rows)
                    rows = []
        if rows:
            yield FrameColumns.from_rows(rows)

    def _skip(self, found: FoundRecord) -> None:
        reason = found.content
        assert not isinstance(reason, tuple)
        if isinstance(reason, Malformed):
            if self._on_malformed == "raise":
                what = f"line {found.place} has {reason}" if self.unit == "line" else str(reason)
                problem = f"{what}; correct it, or skip malformed {'lines' if self.unit == 'line' else 'records'}"
                raise BadJournalFile(path=self.path, position=found.position, problem=problem)
            reason = SkipReason.MALFORMED
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, found.place)


def in_lines(parse: LineParser) -> Callable[[BinaryIO], Iterator[FoundRecord]]:
    """Finds what `parse` makes of every line. No line is held beyond its limit, whatever the file is."""

    def find(file: BinaryIO) -> Iterator[FoundRecord]:
        position = place = 0
        while line := file.readline(LINE_BYTES_MAX):
            place += 1
            start = position
            position += len(line)
            content = _parsed(parse, line)
            if content is not None:
                yield FoundRecord(place, start, content)
            while len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES_MAX)
                position += len(line)

    return find


def _parsed(parse: LineParser, line: bytes) -> Row | SkipReason | Malformed | None:
    try:
        if len(line) >= LINE_BYTES_MAX:
            raise Malformed(f"more than {LINE_BYTES_MAX} bytes")
        return parse(text_of(line))
    except Malformed as error:
        return error


def text_of(line: bytes) -> str:
    """A line as text. Frames are ASCII; comments are in any encoding, and no pattern of a frame matches their bytes."""
    return line.removeprefix(b"\xef\xbb\xbf").decode("ascii", errors="surrogateescape").strip()


def read_candump(
    path: str | os.PathLike[str],
    *,
    chunk_frames: int = CHUNK_FRAMES,
    on_malformed: Literal["raise", "skip"] = "raise",
    untimed_at_us: int = 0,
) -> CaptureReader:
    """Frames of a candump file. Lines without a time all get `untimed_at_us`."""

    def parse(line: str) -> Row | SkipReason | None:
        return parse_candump(line, untimed_at_us)

    return CaptureReader(path, in_lines(parse), chunk_frames=chunk_frames, on_malformed=on_malformed)


def read_canboat_raw(
    path: str | os.PathLike[str],
    *,
    chunk_frames: int = CHUNK_FRAMES,
    on_malformed: Literal["raise", "skip"] = "raise",
) -> CaptureReader:
    """Messages of a canboat .raw file. Times without a zone are taken as UTC."""
    return CaptureReader(path, in_lines(parse_canboat), chunk_frames=chunk_frames, on_malformed=on_malformed)


_CANDUMP_LOG: Final = re.compile(
    r"\((\d{1,12})\.(\d{1,9})\)\s+\S+\s+([0-9A-Fa-f]{3}|[0-9A-Fa-f]{8})#(#?)([0-9A-Fa-f.R]*)(?:\s+[RT])?"
)
_CANDUMP_CONSOLE: Final = re.compile(
    r"(?:\((\d{1,12})\.(\d{1,9})\)\s+)?(?:[A-Za-z]\S*\s+)?(?:(?:TX|RX)\s+[BE -]*\s+)?"
    r"<?(?:0x)?([0-9A-Fa-f]{3}|[0-9A-Fa-f]{8})>?\s+\[\s*(\d+)\]((?:\s+[0-9A-Fa-f]{2})*|\s+remote request)"
)
_CANDUMP_ABSOLUTE: Final = re.compile(r"\((\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)\.(\d{1,9})\)(.*)")
"""As `candump -t A` writes it, without a zone."""
CANDUMP_BANNER: Final = re.compile(r"interface = \S+, family = .*")


def parse_candump(line: str, untimed_at_us: int = 0) -> Row | SkipReason | None:
    if not line or line.startswith("#") or CANDUMP_BANNER.fullmatch(line):
        return None
    if match := _CANDUMP_ABSOLUTE.fullmatch(line):
        date, clock, digits, rest = match.groups()
        line = f"({second_us(date, clock) // US_PER_S}.{digits}){rest}"
    if match := _CANDUMP_LOG.fullmatch(line):
        seconds, fraction, identifier, flexible, digits = match.groups()
        if flexible:
            return SkipReason.CAN_FD
        if digits.startswith("R"):
            return SkipReason.REMOTE_FRAME
        payload_text = digits.replace(".", "")
        length = len(payload_text) // 2
        time_us = _time_us(seconds, fraction)
    elif match := _CANDUMP_CONSOLE.fullmatch(line):
        seconds, fraction, identifier, length_text, payload_text = match.groups()
        if payload_text.endswith("remote request"):
            return SkipReason.REMOTE_FRAME
        length = int(length_text)
        time_us = untimed_at_us if seconds is None else _time_us(seconds, fraction)
    else:
        raise Malformed("no candump frame")
    can_id = int(identifier, 16)
    if can_id & _CAN_ERROR_FLAG and len(identifier) == 8:
        return SkipReason.ERROR_FRAME
    if len(identifier) == 3:
        return SkipReason.STANDARD_ID
    if can_id > CAN_ID_MAX:
        raise Malformed(f"id {identifier}, which is more than 29 bits")
    payload = hex_payload(payload_text, length)
    if len(payload) > CAN_PAYLOAD_BYTES_MAX:
        raise Malformed(f"{len(payload)} payload bytes, a CAN frame has at most {CAN_PAYLOAD_BYTES_MAX}")
    return time_us, can_id, payload


def _time_us(seconds: str, fraction: str) -> int:
    return int(seconds) * US_PER_S + int(fraction[:6].ljust(6, "0"))


def hex_payload(text: str, length: int) -> bytes:
    try:
        payload = bytes.fromhex(text)
    except ValueError:
        raise Malformed("a payload that is not whole hexadecimal bytes") from None
    if len(payload) != length:
        raise Malformed(f"{len(payload)} payload bytes where it announces {length}")
    return payload


_CANBOAT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[TZ -](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d(?::?\d\d)?)?"
    r",(\d{1,3}),(\d{1,10}),(\d{1,3}),(\d{1,3}),(\d{1,4})((?:,[0-9A-Fa-f]{2})*),?"
)


def parse_canboat(line: str) -> Row | SkipReason | None:
    if not line or line.startswith("#"):
        return None
    match = _CANBOAT.fullmatch(line)
    if match is None:
        raise Malformed("no canboat message")
    date, clock, fraction, zone, *numbers, payload_text = match.groups()
    priority, pgn, source, destination, length = map(int, numbers)
    payload = hex_payload(payload_text.replace(",", " "), length)
    if pgn > PGN_MAX:
        return SkipReason.PGN_TOO_LARGE
    if length > PAYLOAD_BYTES_MAX:
        raise Malformed(f"{length} payload bytes, more than {PAYLOAD_BYTES_MAX}")
    try:
        can_id = can_id_from_parts_scalar(priority, pgn, source, destination)
    except InvalidRecord as error:
        raise Malformed(f"a bad header: {error.problem}") from None
    return second_us(date, clock, zone or "Z") + int((fraction or "0")[:6].ljust(6, "0")), can_id, payload


@lru_cache(maxsize=16)
def second_us(date: str, clock: str, zone: str = "Z") -> int:
    """Cached: many lines share a second, and calendar conversion is slow."""
    try:
        return parse_time_us(f"{date}T{clock}{zone}")
    except InvalidConfig:
        raise Malformed(f"time {date} {clock} {zone}, which is no time") from None


# --- writing -------------------------------------------------------------------------------------


def write_candump(path: str | os.PathLike[str], chunks: Iterable[FrameColumns], *, interface: str = "can0") -> int:
    """Write `candump -L` lines to a new file; the number of frames. Only payloads of up to 8 bytes fit."""

    if not interface.isalnum():
        raise InvalidConfig(section="candump", problems=[f"{interface!r} is no interface name; use one like can0"])

    def line(time_us: int, can_id: int, payload: bytes) -> str:
        if len(payload) > CAN_PAYLOAD_BYTES_MAX:
            raise InvalidRecord(
                problem=f"a payload of {len(payload)} bytes is no CAN frame, candump holds at most "
                f"{CAN_PAYLOAD_BYTES_MAX}; write .raw or .lpj instead"
            )
        if time_us < 0:
            raise InvalidRecord(problem=f"candump cannot write times before 1970 ({format_time_us(time_us)})")
        seconds, fraction = divmod(time_us, US_PER_S)
        return f"({seconds:010d}.{fraction:06d}) {interface} {can_id:08X}#{payload.hex().upper()}\n"

    return _write_lines(path, chunks, line)


def write_canboat_raw(path: str | os.PathLike[str], chunks: Iterable[FrameColumns]) -> int:
    """Write canboat .raw lines to a new file; the number of messages. Milliseconds, or microseconds where needed."""

    def line(time_us: int, can_id: int, payload: bytes) -> str:
        time = format_time_us(time_us)
        if not time.endswith("Z"):
            raise InvalidRecord(problem=f"time {time} is outside the calendar that .raw is written in")
        if time_us % US_PER_MS == 0:
            time = time[:-4] + "Z"
        priority, pgn, source, destination = parts_from_can_id_scalar(can_id)
        data = f",{payload.hex(',')}" if payload else ""
        return f"{time},{priority},{pgn},{source},{destination},{len(payload)}{data}\n"

    return _write_lines(path, chunks, line)


def _write_lines(
    path: str | os.PathLike[str], chunks: Iterable[FrameColumns], line: Callable[[int, int, bytes], str]
) -> int:
    """All or nothing: a file that could not be finished is removed again."""
    name = os.fspath(path)
    count = 0
    file = create_foreign(name)
    try:
        for chunk in chunks:
            chunk.check()
            if len(chunk) and int(chunk.can_ids.max()) > CAN_ID_MAX:
                raise InvalidRecord(problem=f"CAN id {int(chunk.can_ids.max()):#x} has more than 29 bits")
            text = "".join(line(*row) for row in chunk.rows())
            try:
                write_all(file, text.encode("ascii"))
            except OSError as error:
                raise disk_error(error, operation="write", path=name) from error
            count += len(chunk)
        finish_foreign(file, name)
    except BaseException:
        file.close()
        with suppress(OSError):
            os.unlink(name)
        raise
    return count
