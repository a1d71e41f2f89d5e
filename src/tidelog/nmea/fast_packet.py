"""Whole messages from raw CAN frames: NMEA 2000 fast packets, and ISO 11783 transport by its helper.

A fast packet is up to 32 frames. The first byte of each has a sequence counter (3 bits, which tells
messages of one sender apart) and a frame number (5 bits); frame 0 has the length (at most 223) and
6 bytes, the others 7 bytes each. Nothing here does I/O or reads a clock: time comes with each frame.

Invariants:
NFP1  A frame of a PGN that is not a fast packet, and a payload longer than 8 bytes (assembled already), pass unchanged.
NFP2  Frames of one message may come in any order and more than once; those of different senders, destinations, PGNs and
      sequence counters never mix.
NFP3  A message comes out at most once for every frame 0 that came in, at the time of the frame that made it whole, so
      times that went in rising come out rising.
NFP4  No input raises, and no more than `open_max` messages are held; a dropped frame or message is counted under its
      reason.

What cannot be told apart: when a sender repeats a sequence counter within the timeout, the older message
lost a frame and the newer one lost its frame 0, then the newer frames look like late ones of the older
message. The rules on frame 0 (`_joins`) keep this to that one case.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import InvalidConfig, InvalidRecord
from tidelog.nmea.pgns import FAST_PACKET_PGNS, ISO_TRANSPORT_CONTROL, ISO_TRANSPORT_DATA, pgn_of
from tidelog.nmea.transport import Row, TransportAssembler, TransportDrop
from tidelog.units import US_PER_MS

FAST_PACKET_BYTES_MAX: Final = 223
TIMEOUT_US: Final = 750 * US_PER_MS
OPEN_MAX: Final = 1024
"""A full bus of 252 senders has a few dozen open at once."""
REORDER_US: Final = 50 * US_PER_MS
"""How late frame 0 may come behind its other frames; a frame takes half a millisecond on the bus."""

_FRAME_BYTES_MAX: Final = 8
_FIRST_BYTES: Final = 6
_LATER_BYTES: Final = 7
_ID_MASK: Final = 0x3FF_FFFF
"""All of a CAN id but its priority: PGN, destination and source."""


def split_message(pgn: int, payload: bytes, *, counter: int) -> list[bytes]:
    """The CAN frames of a message: one for a single-frame PGN of up to 8 bytes, else a fast packet.

    `counter` (0 to 7) tells this message apart from the sender's one before.
    """
    if pgn not in FAST_PACKET_PGNS and len(payload) <= _FRAME_BYTES_MAX:
        return [payload]
    if len(payload) > FAST_PACKET_BYTES_MAX:
        raise InvalidRecord(problem=f"a fast packet has at most {FAST_PACKET_BYTES_MAX} bytes, not {len(payload)}")
    frames = [bytes([counter << 5, len(payload)]) + payload[:_FIRST_BYTES]]
    for number, start in enumerate(range(_FIRST_BYTES, len(payload), _LATER_BYTES), 1):
        frames.append(bytes([counter << 5 | number]) + payload[start : start + _LATER_BYTES])
    return [frame.ljust(_FRAME_BYTES_MAX, b"\xff") for frame in frames]


class FastPacketDrop(enum.StrEnum):
    """Why a frame or a message was dropped."""

    DUPLICATE = "duplicate"
    """A frame that its message has already."""
    MALFORMED = "malformed"
    """A frame without content, with a length of 0 or above 223, behind the end of its message, or too short."""
    SUPERSEDED = "superseded"
    """A message that lacked frames when its sender began another with the same counter."""
    TIMED_OUT = "timed_out"
    """A message that got no further frame in time."""
    EVICTED = "evicted"
    """The oldest open message, when one more would have been too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblerStatistics:
    passed: int
    """Frames that were no part of anything."""
    assembled: int
    """Fast packets that came out whole."""
    open: int
    """Fast packets that wait for frames."""
    dropped: dict[FastPacketDrop, int]
    """Frames for `DUPLICATE` and `MALFORMED`, messages for the others."""
    transport_assembled: int
    transport_open: int
    transport_dropped: dict[TransportDrop, int]


@dataclass(slots=True)
class _Message:
    """Frames of one message. A finished one is kept until it times out, to recognise late copies."""

    began_us: int
    newest_us: int
    can_id: int
    parts: dict[int, bytes] = field(default_factory=dict)
    """Content by frame number, without the counter byte and, in frame 0, without the length."""
    length: int = 0
    """0 as long as frame 0 is missing."""
    last_number: int = -1
    done: bool = False

    @property
    def frame_count(self) -> int:
        return 1 + max(0, -(-(self.length - _FIRST_BYTES) // _LATER_BYTES))


class FastPacketAssembler:
    """Feed it every frame of one bus; it gives back frames and whole messages."""

    def __init__(self, *, timeout_us: int = TIMEOUT_US, open_max: int = OPEN_MAX) -> None:
        if timeout_us < 1 or open_max < 1:
            raise InvalidConfig(section="fast packets", problems=["timeout_us and open_max must be positive"])
        self._timeout_us = timeout_us
        self._open_max = open_max
        self._transport = TransportAssembler()
        # In order of their newest frame, so the ones to drop come first.
        self._messages: dict[tuple[int, int], _Message] = {}
        self._dropped: Counter[FastPacketDrop] = Counter()
        self._passed = 0
        self._assembled = 0

    def receive(self, time_us: int, can_id: int, payload: bytes) -> Row | None:
        """The frame itself, the message that it made whole, or None while one is incomplete."""
        pgn = pgn_of(can_id)
        if len(payload) <= _FRAME_BYTES_MAX:
            if pgn in FAST_PACKET_PGNS:
                return self._receive_part(time_us, can_id, payload)
            if pgn in (ISO_TRANSPORT_CONTROL, ISO_TRANSPORT_DATA):
                return self._transport.receive(time_us, can_id, payload)
        self._passed += 1
        return time_us, can_id, payload

    def wake(self, now_us: int) -> None:
        """Drop what has waited too long. Optional for correctness: `receive` does it as it goes."""
        self._expire(now_us)
        self._transport.wake(now_us)

    def wake_at_us(self) -> int | None:
        """When the next message times out; None while nothing is open."""
        oldest = next(iter(self._messages.values()), None)
        times_us = [] if oldest is None else [oldest.newest_us + self._timeout_us + 1]
        transport_us = self._transport.wake_at_us()
        return min([*times_us, *([] if transport_us is None else [transport_us])], default=None)

    def statistics(self) -> AssemblerStatistics:
        transport = self._transport.statistics()
        return AssemblerStatistics(
            passed=self._passed + transport.passed,
            assembled=self._assembled,
            open=sum(not message.done for message in self._messages.values()),
            dropped=dict(self._dropped),
            transport_assembled=transport.assembled,
            transport_open=transport.open,
            transport_dropped=transport.dropped,
        )

    # --- one frame --------------------------------------------------------------------------------

    def _receive_part(self, time_us: int, can_id: int, payload: bytes) -> Row | None:
        self._expire(time_us)
        number = payload[0] & 0x1F if payload else 0
        if not _is_part(number, payload):
            self._dropped[FastPacketDrop.MALFORMED] += 1
            return None
        key = (can_id & _ID_MASK, payload[0] >> 5)
        message = self._messages.get(key)
        if message is not None and self._expired(message, time_us):
            # Not the first in line: the clock was set back in between.
            self._give_up(key, FastPacketDrop.TIMED_OUT)
            message = None
        if message is not None and _is_copy(message, number, payload):
            self._dropped[FastPacketDrop.DUPLICATE] += 1
            return None
        if message is not None and not _joins(message, number, payload, time_us):
            self._give_up(key, FastPacketDrop.SUPERSEDED)
            message = None
        if message is None:
            self._make_room()
            message = _Message(began_us=time_us, newest_us=time_us, can_id=can_id)
        elif message.length and number >= message.frame_count:
            self._dropped[FastPacketDrop.MALFORMED] += 1
            return None
        # To the end of the line.
        self._messages.pop(key, None)
        self._messages[key] = message
        return self._add(key, message, number, payload, time_us)

    def _add(self, key: tuple[int, int], message: _Message, number: int, payload: bytes, time_us: int) -> Row | None:
        if number == 0:
            message.length = payload[1]
        message.parts[number] = payload[2:] if number == 0 else payload[1:]
        message.last_number = number
        message.newest_us = time_us
        if not message.length or len(message.parts) < message.frame_count:
            return None
        content = _join(message)
        if content is None:
            del self._messages[key]
            self._dropped[FastPacketDrop.MALFORMED] += 1
            return None
        message.done = True
        self._assembled += 1
        return time_us, message.can_id, content

    # --- giving up --------------------------------------------------------------------------------

    def _expire(self, now_us: int) -> None:
        while self._messages:
            key, message = next(iter(self._messages.items()))
            if not self._expired(message, now_us):
                return
            self._give_up(key, FastPacketDrop.TIMED_OUT)

    def _expired(self, message: _Message, now_us: int) -> bool:
        # Both ways: after a clock was set back, a message would otherwise stay open until it catches up.
        return abs(now_us - message.newest_us) > self._timeout_us

    def _make_room(self) -> None:
        while len(self._messages) >= self._open_max:
            self._give_up(next(iter(self._messages)), FastPacketDrop.EVICTED)

    def _give_up(self, key: tuple[int, int], reason: FastPacketDrop) -> None:
        if not self._messages.pop(key).done:
            self._dropped[reason] += 1


def _is_part(number: int, payload: bytes) -> bool:
    if number == 0:
        return len(payload) >= 2 and 1 <= payload[1] <= FAST_PACKET_BYTES_MAX
    return len(payload) >= 2


def _is_copy(message: _Message, number: int, payload: bytes) -> bool:
    """Whether the message has exactly this frame.

    A controller repeats a frame at once, so only a frame 0 right behind its twin is a copy; later, or
    behind a finished message, it opens a new message that happens to begin alike.
    """
    if number == 0:
        again = message.last_number == 0 and not message.done
        return again and message.length == payload[1] and message.parts[0] == payload[2:]
    return message.parts.get(number) == payload[1:]


def _joins(message: _Message, number: int, payload: bytes, time_us: int) -> bool:
    """Whether the frame can be a missing one of this message."""
    if message.done or number in message.parts:
        return False
    if number != 0:
        return True
    beyond = -(-(payload[1] - _FIRST_BYTES) // _LATER_BYTES)
    return time_us - message.began_us <= REORDER_US and max(message.parts) <= beyond


def _join(message: _Message) -> bytes | None:
    """The content, or None where a frame is too short to be what it claims."""
    content = bytearray()
    for number in range(message.frame_count):
        room = _FIRST_BYTES if number == 0 else _LATER_BYTES
        part = message.parts[number][: min(room, message.length - len(content))]
        if len(part) < min(room, message.length - len(content)):
            return None
        content += part
    return bytes(content)
