"""ISO 11783 transport: messages of 9 to 1785 bytes, overheard on the bus.

A sender announces length and PGN in a control frame (PGN 60416): to everybody (BAM) or to one receiver (RTS). Numbered
data frames (PGN 60160) of 7 bytes follow. Tidelog only listens: the receiver's answers (CTS, end of message) pass as
frames of their own and change nothing, except that an abort ends the message. Used by `fast_packet`, which states the
invariants of both.

A sender has one message open per destination: a new announcement ends the one before.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tidelog.blocks.columns import PAYLOAD_BYTES_MAX
from tidelog.nmea.pgns import ISO_TRANSPORT_DATA, pgn_of
from tidelog.units import US_PER_MS

Row = tuple[int, int, bytes]
"""(time_us, can_id, payload)"""

OPEN_MAX: Final = 512
TIMEOUT_US: Final = 750 * US_PER_MS
ADDRESSED_TIMEOUT_US: Final = 1250 * US_PER_MS
"""A receiver may pause its sender, so the standard allows more between two frames."""

_RTS: Final = 16
_BAM: Final = 32
_ABORT: Final = 255
_EVERYBODY: Final = 255
_DATA_BYTES: Final = 7
_BYTES_MIN: Final = 9
_PDU2_MIN: Final = 0xF000


class TransportDrop(enum.StrEnum):
    MALFORMED = "malformed"
    """An announcement or data frame that is invalid, by number or length."""
    UNANNOUNCED = "unannounced"
    """A data frame of a message whose announcement was not heard."""
    SUPERSEDED = "superseded"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    passed: int
    assembled: int
    open: int
    dropped: dict[TransportDrop, int]
    """Frames for `MALFORMED` and `UNANNOUNCED`, messages for the others."""


@dataclass(slots=True)
class _Message:
    can_id: int
    length: int
    timeout_us: int
    newest_us: int
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def frame_count(self) -> int:
        return -(-self.length // _DATA_BYTES)


class TransportAssembler:
    def __init__(self, *, open_max: int = OPEN_MAX) -> None:
        self._open_max = open_max
        self._messages: dict[tuple[int, int], _Message] = {}
        """By source and destination."""
        self._dropped: Counter[TransportDrop] = Counter()
        self._passed = 0
        self._assembled = 0

    def receive(self, time_us: int, can_id: int, payload: bytes) -> Row | None:
        """A frame of one of the two transport PGNs; its own row back when it is neither announcement nor data."""
        self.wake(time_us)
        source, destination = can_id & 0xFF, can_id >> 8 & 0xFF
        if pgn_of(can_id) == ISO_TRANSPORT_DATA:
            return self._data(time_us, source, destination, payload)
        kind = payload[0] if payload else None
        if kind == (_BAM if destination == _EVERYBODY else _RTS):
            self._announce(time_us, can_id, payload)
            return None
        if kind == _ABORT:
            # Either side may send it.
            self._give_up((source, destination), TransportDrop.ABORTED)
            self._give_up((destination, source), TransportDrop.ABORTED)
        self._passed += 1
        return time_us, can_id, payload

    def wake(self, now_us: int) -> None:
        late = [key for key, message in self._messages.items() if abs(now_us - message.newest_us) > message.timeout_us]
        for key in late:
            self._give_up(key, TransportDrop.TIMED_OUT)

    def wake_at_us(self) -> int | None:
        return min((message.newest_us + message.timeout_us + 1 for message in self._messages.values()), default=None)

    def statistics(self) -> TransportStatistics:
        return TransportStatistics(
            passed=self._passed,
            assembled=self._assembled,
            open=len(self._messages),
            dropped=dict(self._dropped),
        )

    def _announce(self, time_us: int, can_id: int, payload: bytes) -> None:
        source, destination = can_id & 0xFF, can_id >> 8 & 0xFF
        length = int.from_bytes(payload[1:3], "little")
        pgn = int.from_bytes(payload[5:8], "little")
        possible = len(payload) == 8 and _BYTES_MIN <= length <= PAYLOAD_BYTES_MAX and pgn <= 0x3_FFFF
        if not possible or payload[3] != -(-length // _DATA_BYTES):
            self._dropped[TransportDrop.MALFORMED] += 1
            return
        self._give_up((source, destination), TransportDrop.SUPERSEDED)
        while len(self._messages) >= self._open_max:
            oldest = min(self._messages, key=lambda key: self._messages[key].newest_us)
            self._give_up(oldest, TransportDrop.EVICTED)
        # A broadcast PGN has no room for the destination it was sent to; captures drop it by the same rule.
        target = pgn if pgn & 0xFF00 >= _PDU2_MIN else pgn & 0x3_FF00 | destination
        self._messages[source, destination] = _Message(
            can_id=can_id & 0x1C00_0000 | target << 8 | source,
            length=length,
            timeout_us=TIMEOUT_US if destination == _EVERYBODY else ADDRESSED_TIMEOUT_US,
            newest_us=time_us,
        )

    def _data(self, time_us: int, source: int, destination: int, payload: bytes) -> Row | None:
        message = self._messages.get((source, destination))
        if message is None:
            self._dropped[TransportDrop.UNANNOUNCED] += 1
            return None
        number = payload[0] if payload else 0
        room = min(_DATA_BYTES, message.length - _DATA_BYTES * (number - 1))
        if not 1 <= number <= message.frame_count or len(payload) - 1 < room:
            self._dropped[TransportDrop.MALFORMED] += 1
            return None
        # A frame may be requested and sent again; the newest copy counts.
        message.parts[number] = payload[1 : 1 + room]
        message.newest_us = time_us
        if len(message.parts) < message.frame_count:
            return None
        del self._messages[source, destination]
        self._assembled += 1
        content = b"".join(message.parts[place] for place in range(1, message.frame_count + 1))
        return time_us, message.can_id, content

    def _give_up(self, key: tuple[int, int], reason: TransportDrop) -> None:
        if self._messages.pop(key, None) is not None:
            self._dropped[reason] += 1
