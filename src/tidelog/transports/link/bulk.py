"""Large bodies on a link: sent in chunks within the peer's credit, received into one buffer each.

Nothing here does I/O. Both halves are parts of `LinkMux`, which turns their answers into frames.

A transfer is one large body in flight. Its sender announces the whole length and may send `initial_credit` bytes at
once; the rest waits for the receiver's CREDIT. The receiver first reserves memory for the whole body, oldest transfer
first: so a transfer that got credit can always be finished, and there is no deadlock. Then it gives credit gradually,
never more at a time than the bandwidth-delay product: bytes in buffers on the way delay every heartbeat behind them.

LB1  A receiver holds at most `bulk_bytes_max` that it granted, and `initial_credit` for each of `transfers_max` more.
LB2  Nothing is sent beyond the credit, nor accepted beyond it: a peer that tries is refused.
LB3  Transfers take turns, one chunk each, so a long one does not hold up a short one.
LB4  Ids rise and are never reused, so a frame that crosses with an abort can be told from a protocol violation.
LB5  Unused credit covers the round trip and `_QUEUE_US` more at the measured speed, within limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import BadFrame
from tidelog.transports.link.frames import CHUNK_BYTES_MAX, HEAD, LARGE, RECORD_BYTES, TRANSFER, FrameType
from tidelog.transports.link.memory import BodyMemory
from tidelog.units import MIB

_JOIN_BYTES_MAX: Final = 4096
"""Pieces below this are copied together: a write of their own would cost more than the copy."""
_METER_WINDOW_US: Final = 50_000
_QUEUE_US: Final = 3_000
_WINDOW_BYTES_MIN: Final = MIB
_WINDOW_BYTES_MAX: Final = 32 * MIB
_GRANTS_PER_WINDOW: Final = 2
"""A credit is at least this part of the window: smaller ones would cost more frames than they are worth."""


@dataclass(slots=True, kw_only=True, eq=False)
class OutgoingBody:
    """A large body to send."""

    frame_type: int
    kind: int
    number: int
    """The number of the call, for a request or an answer."""
    pieces: deque[memoryview]
    left: int
    """Bytes not yet put into chunks."""
    transfer: int = 0
    credit: int = 0
    is_open: bool = False

    def head(self) -> bytes:
        """The frame that announces it."""
        body = TRANSFER.pack(self.transfer, self.left)
        return HEAD.pack(len(body), self.frame_type, LARGE, self.kind, self.number) + body

    def take(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, as views of the pieces."""
        self.left -= size
        self.credit -= size
        while size:
            piece = self.pieces.popleft()
            if len(piece) > size:
                self.pieces.appendleft(piece[size:])
                piece = piece[:size]
            size -= len(piece)
            yield piece


class BulkSender:
    """All transfers of one direction of a link."""

    def __init__(self, *, transfers_max: int, initial_credit: int) -> None:
        self._transfers_max = transfers_max
        self._initial_credit = initial_credit
        self._waiting: deque[OutgoingBody] = deque()
        """Not announced yet: the peer accepts only so many at once."""
        self._ready: deque[OutgoingBody] = deque()
        self._open: dict[int, OutgoingBody] = {}
        """Announced transfers by id: in `_ready`, or out of credit."""
        self._next_id = 1
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._open)

    @property
    def has_work(self) -> bool:
        """Whether `next_chunk` would return something."""
        return bool(self._ready) or (bool(self._waiting) and len(self._open) < self._transfers_max)

    def add(self, outgoing: OutgoingBody) -> None:
        self.queued_bytes += outgoing.left
        self._waiting.append(outgoing)

    def credited(self, transfer: int, count: int) -> None:
        """The peer has room for so many more bytes of a transfer."""
        if not 0 < transfer < self._next_id:
            raise BadFrame(problem=f"credit came for transfer {transfer}, which was never begun")
        outgoing = self._open.get(transfer)
        if outgoing is None:
            return  # aborted meanwhile
        if count > outgoing.left - outgoing.credit or not count:
            raise BadFrame(problem=f"credit of {count} bytes came for {outgoing.left - outgoing.credit} that need it")
        if outgoing.credit == 0:
            self._ready.append(outgoing)
        outgoing.credit += count

    def find(self, frame_type: int, number: int) -> OutgoingBody | None:
        """The request or answer of a call, while a part of it has not left."""
        for outgoing in (*self._waiting, *self._open.values()):
            if outgoing.number == number and outgoing.frame_type == frame_type:
                return outgoing
        return None

    def has_only_answers(self) -> bool:
        """Whether no outgoing transfer is in flight."""
        return all(one.frame_type == FrameType.ANSWER for one in (*self._waiting, *self._open.values()))

    def abort(self, outgoing: OutgoingBody) -> int | None:
        """Drop a transfer; returns its id if the peer has to be told."""
        if outgoing.left == 0:
            return None
        self.queued_bytes -= outgoing.left
        if not outgoing.is_open:
            self._waiting.remove(outgoing)
            return None
        del self._open[outgoing.transfer]
        if outgoing.credit:
            self._ready.remove(outgoing)
        return outgoing.transfer

    def next_chunk(self, chunk_bytes: int, prefix: list[bytes]) -> list[memoryview]:
        """One chunk of the next transfer in turn, behind `prefix`, as the buffers to write."""
        if len(self._open) < self._transfers_max and self._waiting:
            outgoing = self._begin(self._waiting.popleft())
            prefix.append(outgoing.head())
        else:
            outgoing = self._ready.popleft()
        size = min(chunk_bytes, outgoing.left, outgoing.credit)
        assert size > 0, "LB2: a transfer in the queue has credit"
        prefix.append(HEAD.pack(size, FrameType.DATA, 0, 0, outgoing.transfer))
        self.queued_bytes -= size
        buffers = _filled(prefix, outgoing.take(size))
        if outgoing.left == 0:
            del self._open[outgoing.transfer]
        elif outgoing.credit:
            self._ready.append(outgoing)  # LB3
        return buffers

    def _begin(self, outgoing: OutgoingBody) -> OutgoingBody:
        outgoing.transfer, self._next_id = self._next_id, self._next_id + 1
        outgoing.credit = min(self._initial_credit, outgoing.left)
        outgoing.is_open = True
        self._open[outgoing.transfer] = outgoing
        return outgoing


def _filled(prefix: list[bytes], pieces: Iterator[memoryview]) -> list[memoryview]:
    """The prefix filled up to whole TLS records with the first bytes of the pieces, then the pieces as they are."""
    joined: list[bytes | memoryview] = list(prefix)
    room = -sum(map(len, prefix)) % RECORD_BYTES
    buffers: list[memoryview] = []
    for piece in pieces:
        if room:
            joined.append(piece[:room])
            piece, room = piece[room:], max(0, room - len(piece))
        if not piece:
            continue
        if len(piece) <= _JOIN_BYTES_MAX:
            joined.append(piece)
            continue
        buffers += [memoryview(b"".join(joined)), piece] if joined else [piece]
        joined = []
    if joined:
        buffers.append(memoryview(b"".join(joined)))
    return buffers


@dataclass(slots=True, kw_only=True, eq=False)
class IncomingBody:
    """A large body that arrives."""

    frame_type: int
    kind: int
    number: int
    body: memoryview
    granted: int
    filled: int = 0
    """Bytes that have been placed; the last DATA frame of them may still be arriving."""
    is_reserved: bool = False
    """Its memory is counted in `held_bytes`."""


@dataclass(slots=True, kw_only=True)
class BulkReceiver:
    """All transfers of the other direction."""

    memory: BodyMemory
    bulk_bytes_max: int
    body_bytes_max: int
    transfers_max: int
    initial_credit: int
    held_bytes: int = 0
    """The bytes of bodies that are granted or whole, and not yet released."""
    window_bytes: int = _WINDOW_BYTES_MIN
    _expected_bytes: int = 0
    """Bytes granted and not yet received."""
    _open: dict[int, IncomingBody] = field(default_factory=dict)
    _unreserved: deque[int] = field(default_factory=deque)
    """Waiting for memory, oldest first."""
    _rationed: deque[int] = field(default_factory=deque)
    """Transfers with memory that wait for the rest of their credit, in turn."""
    _last_id: int = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self.bulk_bytes_max

    def announced(self, frame_type: int, kind: int, number: int, announcement: memoryview) -> IncomingBody:
        """The peer begins a transfer."""
        if len(announcement) != TRANSFER.size:
            raise BadFrame(problem=f"a transfer is announced in {len(announcement)} bytes")
        transfer, total = TRANSFER.unpack(announcement)
        if transfer <= self._last_id:
            raise BadFrame(problem=f"transfer {transfer} begins after {self._last_id}")
        if not 0 < total <= self.body_bytes_max:
            raise BadFrame(problem=f"a body of {total} bytes is announced and the limit is {self.body_bytes_max}")
        if len(self._open) >= self.transfers_max:
            raise BadFrame(problem=f"more than {self.transfers_max} transfers are open")
        self._last_id = transfer
        incoming = IncomingBody(
            frame_type=frame_type,
            kind=kind,
            number=number,
            body=self.memory.take(total),
            granted=min(total, self.initial_credit),
        )
        self._open[transfer] = incoming
        self._expected_bytes += incoming.granted
        if incoming.granted < total:
            self._unreserved.append(transfer)
        else:
            self._reserve(incoming)
        return incoming

    def place(self, transfer: int, length: int) -> memoryview:
        """Where the bytes of a DATA frame go."""
        incoming = self._open.get(transfer)
        if incoming is None:
            raise BadFrame(problem=f"DATA came for transfer {transfer}, which is not open")
        stop = incoming.filled + length
        if stop > incoming.granted:
            raise BadFrame(problem=f"transfer {transfer} sent {stop} bytes with credit for {incoming.granted}")  # LB2
        start, incoming.filled = incoming.filled, stop
        self._expected_bytes -= length
        return incoming.body[start:stop]

    def landed(self, transfer: int) -> IncomingBody | None:
        """A DATA frame is complete; returns the transfer, if that made it whole. Its memory is held until `release`."""
        incoming = self._open[transfer]
        if incoming.filled < len(incoming.body):
            return None
        del self._open[transfer]
        return incoming

    def aborted(self, transfer: int) -> IncomingBody | None:
        """The peer gives a transfer up."""
        if not 0 < transfer <= self._last_id:
            raise BadFrame(problem=f"transfer {transfer} is aborted and was never begun")
        incoming = self._open.pop(transfer, None)
        if incoming is not None:
            self._expected_bytes -= incoming.granted - incoming.filled
            if incoming.is_reserved:
                self.release(len(incoming.body))
        return incoming

    def release(self, count: int) -> None:
        """The body of a transfer is no longer needed."""
        self.held_bytes -= count
        assert self.held_bytes >= 0, "LB1: more is released than was held"

    def measured(self, bytes_per_s: float, rtt_us: int) -> None:
        """The throughput of arriving bodies, and the round trip."""
        worth = int(bytes_per_s * (rtt_us + _QUEUE_US) / 1e6)
        self.window_bytes = min(_WINDOW_BYTES_MAX, max(_WINDOW_BYTES_MIN, worth))

    def grants(self) -> Iterator[tuple[int, int]]:
        """The transfers that may continue, and by how many bytes."""
        while self._unreserved:
            incoming = self._open.get(self._unreserved[0])
            if incoming is not None:
                total = len(incoming.body)
                # One body always fits, whatever the limits: otherwise a large one would wait for ever.
                if self.held_bytes and self.held_bytes + total > self.bulk_bytes_max:
                    break
                self._reserve(incoming)
                self._rationed.append(self._unreserved[0])
            self._unreserved.popleft()
        # Whole chunks, or each credit would end with a small one; and at least one, or this loop would never end.
        step = max(1, self.window_bytes // _GRANTS_PER_WINDOW // CHUNK_BYTES_MAX) * CHUNK_BYTES_MAX
        while self._rationed and self.window_bytes - self._expected_bytes >= step:
            transfer = self._rationed.popleft()
            incoming = self._open.get(transfer)
            if incoming is None:
                continue  # aborted
            count = min(step, len(incoming.body) - incoming.granted)
            incoming.granted += count
            self._expected_bytes += count
            if incoming.granted < len(incoming.body):
                self._rationed.append(transfer)
            yield transfer, count

    def _reserve(self, incoming: IncomingBody) -> None:
        incoming.is_reserved = True
        self.held_bytes += len(incoming.body)


@dataclass(slots=True)
class BulkMeter:
    """Bytes per second of large bodies, from the times between chunks while one is under way."""

    bytes_per_s: float = 0.0
    peak_bytes_per_s: float = 0.0
    _bytes: int = 0
    _busy_us: int = 0
    _last_us: int | None = None

    def moved(self, count: int, now_us: int, *, is_last: bool) -> bool:
        """A chunk arrived; `is_last` if nothing more is in flight, so that a pause does not count as slowness.

        Returns whether there is a new measurement.
        """
        if self._last_us is not None:
            self._bytes += count
            self._busy_us += now_us - self._last_us
        self._last_us = None if is_last else now_us
        # A window long enough that a socket's buffer, read at once after a pause, does not look like a fast network.
        if self._busy_us < _METER_WINDOW_US:
            return False
        self.bytes_per_s = self._bytes * 1e6 / self._busy_us
        self.peak_bytes_per_s = max(self.peak_bytes_per_s, self.bytes_per_s)
        self._bytes = self._busy_us = 0
        return True
