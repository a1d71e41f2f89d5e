"""Binary captures: pcap and pcapng with SocketCAN frames, and Actisense `.ebl`.

pcap files hold frames as SocketCAN has them (link type 227, or 113 and 276 of a capture on all interfaces): id and
flags big-endian, length, data. Packets of other interfaces are counted as other records.

An `.ebl` file is what a gateway sent, with tags between: `ESC SOH tag data ESC LF`, every ESC doubled. Tag 3 is the
time in 100 ns since 1601; tag 7 is one message of a W2K-1, the rest of the stream is messages between `DLE STX` and
`DLE ETX`, every DLE doubled. Of the messages, 0x93 and 0xD0 are whole NMEA 2000 messages, 0x95 are CAN frames with a
counter of milliseconds, which counts on from the time before it; the others are the gateway's own.

A record that is cut or does not add up is malformed, and the reader goes on behind it where that can be found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

from tidelog.compat.captures import FoundRecord, Malformed, Row, SkipReason
from tidelog.compat.text_captures import can_frame, message
from tidelog.units import MIB, US_PER_MS, US_PER_S

PCAP_MAGICS: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 1),
    b"\xa1\xb2\xc3\xd4": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1000),
}
"""The order of bytes, and what the fraction of a second is divided by for microseconds."""
PCAPNG_MAGIC: Final = b"\x0a\x0d\x0d\x0a"
EBL_STARTS: Final = (b"\x1b\x01", b"\x10\x02")

_RECORD_BYTES_MAX: Final = 16 * MIB
_CAN_LINK, _COOKED_LINK, _COOKED_LINK_2 = 227, 113, 276
_CAN_PROTOCOLS: Final = (0x000C, 0x000D)
_EXTENDED, _REMOTE, _ERROR = 1 << 31, 1 << 30, 1 << 29
_FD_FLAG: Final = 0x04


# --- pcap ------------------------------------------------------------------------------------------


def find_pcap(file: BinaryIO) -> Iterator[FoundRecord]:
    """Frames of a pcap or pcapng file."""
    magic = file.read(4)
    if magic == PCAPNG_MAGIC:
        yield from _pcapng(file)
    elif magic in PCAP_MAGICS:
        yield from _pcap(file, *PCAP_MAGICS[magic])
    else:
        yield FoundRecord(0, 0, Malformed("this is neither a pcap nor a pcapng file"))


def _pcap(file: BinaryIO, order: str, divisor: int) -> Iterator[FoundRecord]:
    head = file.read(20)
    if len(head) < 20:
        yield FoundRecord(0, 0, Malformed("the file ends in its heading"))
        return
    link = struct.unpack_from(f"{order}I", head, 16)[0] & 0xFFFF
    record = struct.Struct(f"{order}IIII")
    position = 24
    while start := file.read(record.size):
        content: Row | SkipReason | Malformed
        if len(start) < record.size:
            yield FoundRecord(position, position, Malformed("the file ends in a packet"))
            return
        seconds, fraction, held, _ = record.unpack(start)
        packet = file.read(held) if held <= _RECORD_BYTES_MAX else b""
        if len(packet) < held:
            yield FoundRecord(position, position, Malformed("the file ends in a packet"))
            return
        content = _packet(seconds * US_PER_S + fraction // divisor, link, packet)
        yield FoundRecord(position, position, content)
        position += record.size + held


def _pcapng(file: BinaryIO) -> Iterator[FoundRecord]:
    order = "<"
    interfaces: list[tuple[int, int]] = []
    position = 0
    file.seek(0)
    while start := file.read(8):
        if start[:4] == PCAPNG_MAGIC:
            mark = file.read(4)
            file.seek(-len(mark), 1)
            order = ">" if mark == b"\x1a\x2b\x3c\x4d" else "<"
            interfaces = []
        kind, length = struct.unpack(f"{order}II", start) if len(start) == 8 else (0, 0)
        sound = len(start) == 8 and 12 <= length <= _RECORD_BYTES_MAX and length % 4 == 0
        body = file.read(length - 8) if sound else b""
        if not sound or len(body) < length - 8:
            yield FoundRecord(position, position, Malformed("the file ends in a block, or the block is damaged"))
            return
        if kind == 1:
            interfaces.append((struct.unpack_from(f"{order}H", body)[0], _ticks_per_s(body[8:-4], order)))
        elif kind == 6:
            yield FoundRecord(position, position, _enhanced(body, order, interfaces))
        elif kind in (2, 3):
            yield FoundRecord(
                position, position, SkipReason.OTHER_RECORD
            )  # packets without a time, and an obsolete kind
        position += length


def _enhanced(body: bytes, order: str, interfaces: list[tuple[int, int]]) -> Row | SkipReason | Malformed:
    if len(body) < 24:
        return Malformed("a packet without its heading")
    interface, high, low, held = struct.unpack_from(f"{order}IIII", body)
    if interface >= len(interfaces) or 20 + held > len(body):
        return Malformed("a packet that does not fit its block or names no interface")
    link, ticks_per_s = interfaces[interface]
    ticks = high << 32 | low
    return _packet(ticks * US_PER_S // ticks_per_s, link, body[20 : 20 + held])


def _ticks_per_s(options: bytes, order: str) -> int:
    """By the option `if_tsresol`; microseconds without it."""
    place = 0
    while place + 4 <= len(options):
        code, length = struct.unpack_from(f"{order}HH", options, place)
        if code == 9 and length == 1:
            value = options[place + 4]
            return 1 << (value & 0x7F) if value & 0x80 else 10 ** int(value)
        place += 4 + length + -length % 4
    return US_PER_S


def _packet(time_us: int, link: int, packet: bytes) -> Row | SkipReason | Malformed:
    if link in (_COOKED_LINK, _COOKED_LINK_2):
        protocol, size = (14, 16) if link == _COOKED_LINK else (0, 20)
        if len(packet) < size or struct.unpack_from(">H", packet, protocol)[0] not in _CAN_PROTOCOLS:
            return SkipReason.OTHER_RECORD
        packet = packet[size:]
    elif link != _CAN_LINK:
        return SkipReason.OTHER_RECORD
    if len(packet) < 8:
        return Malformed("a CAN frame without its heading")
    identifier, length, flags = struct.unpack_from(">IBB", packet)
    if identifier & _ERROR:
        return SkipReason.ERROR_FRAME
    if identifier & _REMOTE:
        return SkipReason.REMOTE_FRAME
    if flags & _FD_FLAG or length > 8:
        return SkipReason.CAN_FD
    if len(packet) < 8 + length:
        return Malformed("a CAN frame that is cut")
    extended = bool(identifier & _EXTENDED)
    return can_frame(time_us, identifier & 0x1FFF_FFFF, packet[8 : 8 + length], extended=extended)


# --- Actisense -------------------------------------------------------------------------------------

_ESC, _SOH, _LF = 0x1B, 0x01, 0x0A
_DLE, _STX, _ETX = 0x10, 0x02, 0x03
_TAG_TIME, _TAG_MESSAGE = 0x03, 0x07
_WHOLE, _FRAME, _WHOLE_D0 = 0x93, 0x95, 0xD0
_PART_BYTES_MAX: Final = 2048
_FILETIME_EPOCH_US: Final = 11_644_473_600 * US_PER_S
_READ_BYTES: Final = 1 * MIB


def find_ebl(file: BinaryIO) -> Iterator[FoundRecord]:
    """Messages and frames of an `.ebl` file."""
    clock = _EblClock()
    for position, tag, data in _ebl_parts(file):
        found: Row | SkipReason | Malformed | None = None
        if isinstance(data, Malformed):
            found = data
        elif tag == _TAG_TIME and len(data) == 8:
            clock.set(int.from_bytes(data, "little") // 10 - _FILETIME_EPOCH_US)
        elif tag == _TAG_TIME:
            found = Malformed("a time that is not eight bytes")
        elif tag in (None, _TAG_MESSAGE):
            try:
                found = _bst(data, clock, is_framed=tag is None)
            except Malformed as error:
                found = error
        if found is not None:
            yield FoundRecord(position, position, found)


class _EblClock:
    """The time of the file, and the counter of its frames, which has 16 bits of milliseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self._counter: int | None = None

    def set(self, now_us: int) -> None:
        self.now_us = now_us
        self._counter = None

    def count(self, counter: int) -> int:
        if self._counter is not None:
            self.now_us += ((counter - self._counter) & 0xFFFF) * US_PER_MS
        self._counter = counter
        return self.now_us


_Part = tuple[int, int | None, bytes | Malformed]
"""Where it begins, the number of the tag (None for a message of the stream), and what is in it."""


def _ebl_parts(file: BinaryIO) -> Iterator[_Part]:
    """Tags, and the messages of the stream between them. A tag may be in the middle of a message."""
    stream = _Framed(escape=_DLE, start=_STX, end=_ETX)
    tags = _Framed(escape=_ESC, start=_SOH, end=_LF)
    position = 0
    while chunk := file.read(_READ_BYTES):
        for place, byte in enumerate(chunk, position):
            outside = tags.take(place, byte)
            if tags.done is not None:
                begun, data = tags.done
                yield (begun, None, data) if isinstance(data, Malformed) else (begun, data[0] if data else -1, data[1:])
            if outside is not None:
                stream.take(place, outside)
                if stream.done is not None:
                    begun, data = stream.done
                    yield begun, None, data
        position += len(chunk)
    for open_ended in (tags, stream):
        if open_ended.is_open:
            yield open_ended.begun, None, Malformed("the file ends in a record")


class _Framed:
    """Records between `escape start` and `escape end`, in which the escape is doubled."""

    def __init__(self, *, escape: int, start: int, end: int) -> None:
        self._escape, self._start, self._end = escape, start, end
        self._held = bytearray()
        self._escaped = False
        self.is_open = False
        self.begun = 0
        self.done: tuple[int, bytes | Malformed] | None = None
        """The record that the last byte completed."""

    def take(self, position: int, byte: int) -> int | None:
        """Returns the byte if it is outside of all records."""
        self.done = None
        if not self._escaped and byte == self._escape:
            self._escaped = True
            return None
        if self._escaped and byte != self._escape:
            self._escaped = False
            self._mark(position, byte)
            return None
        self._escaped = False
        if not self.is_open:
            return byte
        self._held.append(byte)
        if len(self._held) > _PART_BYTES_MAX:
            self._give_up("a record that does not end")
        return None

    def _mark(self, position: int, byte: int) -> None:
        if byte == self._start:
            if self.is_open:
                self._give_up("a record that does not end")
            self._held.clear()
            self.is_open, self.begun = True, position - 1
        elif byte == self._end and self.is_open:
            self.done = (self.begun, bytes(self._held))
            self.is_open = False
        elif self.is_open:
            self._give_up(f"an escape before {byte:#04x}")

    def _give_up(self, problem: str) -> None:
        self.done = (self.begun, Malformed(problem))
        self.is_open = False


def _bst(data: bytes, clock: _EblClock, *, is_framed: bool) -> Row | SkipReason:
    """One message. In the stream its last byte makes the sum of all a multiple of 256; in a tag that may be missing."""
    kind = data[0] if data else 0
    if kind not in (_WHOLE, _FRAME, _WHOLE_D0):
        return SkipReason.OTHER_RECORD
    # Two kinds announce what follows, the third what it has without its sum.
    size = int.from_bytes(data[1:3], "little") if kind == _WHOLE_D0 else int.from_bytes(data[1:2]) + 2
    summed = len(data) == size + 1
    if not summed and (is_framed or len(data) != size):
        raise Malformed(f"{len(data)} bytes in a message that announces {size}")
    if summed and sum(data) & 0xFF:
        raise Malformed("a message whose sum is wrong")
    body = data[:size]
    if kind == _FRAME and size >= 8:
        counter, can_id = struct.unpack_from("<HI", body, 2)
        return can_frame(clock.count(counter), can_id & 0x1FFF_FFFF, body[8:], extended=True)
    if kind == _WHOLE and size >= 13 and size == 13 + body[12]:
        pgn = int.from_bytes(body[3:6], "little")
        return message(clock.now_us, body[2], pgn, body[7], body[6], body[13:])
    if kind == _WHOLE_D0 and size >= 13:
        group, pdu_format, pages = body[5], body[6], body[7]
        pgn = (pages & 3) << 16 | pdu_format << 8 | (group if pdu_format >= 240 else 0)
        return message(clock.now_us, pages >> 2 & 7, pgn, body[4], body[3], body[13:])
    raise Malformed("a message that does not have its parts")
