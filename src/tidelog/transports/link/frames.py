"""Frames of the link between nodes: their bytes, and a reader that finds them in pieces of any size.

A frame is a head of 16 bytes and a body. A body of up to `SMALL_BYTES_MAX` is inside its frame. A larger one is
announced by the same frame with the flag `LARGE`, and follows in DATA frames, cut so that others can go in between.
docs/protocols/link.md has the tables. Nothing here does I/O.

What a caller must keep: receive into `room()`, then tell `received` how many bytes came, before asking for room again.

LF1  A length is checked before a byte of the body is awaited, so a reader never holds more than its buffer.
LF2  A small body owns its memory: it stays good after the next `received`, and does not hold the buffer.
LF3  The bytes of a DATA frame go straight to where `place` says; only what shares a read with a head is copied.
LF4  After a `BadFrame` the reader cannot be used: nothing after a wrong length can be found again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from tidelog.errors import BadFrame
from tidelog.units import KIB

Buffers: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview]
"""A body, whole or in pieces. Large pieces are written without a copy: do not change them until they are sent."""

Frame: TypeAlias = tuple[int, int, int, int, memoryview]
"""Type, flags, kind, id, body. A plain tuple, since one is made for every message that arrives.

A DATA frame has its length in place of the kind, and no body: its bytes are already in place.
"""

HEAD: Final = struct.Struct("<IBBHQ")
"""Length of the body, type, flags, kind, id."""
HEAD_BYTES: Final = HEAD.size
SMALL_BYTES_MAX: Final = 16 * KIB
RECORD_BYTES: Final = 16 * KIB
"""What TLS carries in one record; writes that fill whole ones cost least."""
CHUNK_BYTES_MAX: Final = 16 * RECORD_BYTES - HEAD_BYTES
CHUNK_BYTES_MIN: Final = RECORD_BYTES - HEAD_BYTES
LARGE: Final = 1
"""The body is a `TRANSFER`; the real one follows in DATA frames under the transfer's id."""
TRANSFER: Final = struct.Struct("<QQ")
"""Id of the transfer, length of the whole body."""
CREDIT: Final = struct.Struct("<Q")
KIND_MAX: Final = 0xFFFF
BUFFER_BYTES: Final = 64 * KIB

EMPTY: Final = memoryview(b"")


class FrameType(IntEnum):
    HELLO = 1
    READY = 2
    REFUSED = 3
    MESSAGE = 4
    REQUEST = 5
    ANSWER = 6
    FAILURE = 7
    CANCEL = 8
    DATA = 9
    CREDIT = 10
    ABORT = 11
    PING = 12
    PONG = 13
    DRAIN = 14
    DONE = 15


_TYPE_MAX: Final = max(FrameType)
_DATA: Final = int(FrameType.DATA)


def frame(frame_type: int, *, body: bytes = b"", flags: int = 0, kind: int = 0, number: int = 0) -> bytes:
    """A whole small frame."""
    assert len(body) <= SMALL_BYTES_MAX, "LF1: a larger body goes in DATA frames"
    return HEAD.pack(len(body), frame_type, flags, kind, number) + body


def pieces_of(body: Buffers) -> tuple[list[memoryview], int]:
    """The pieces of a body as views of single bytes, and how long they are together."""
    parts = [body] if isinstance(body, bytes | bytearray | memoryview) else body
    pieces = [_byte_view(part) for part in parts if len(part)]
    return pieces, sum(map(len, pieces))


def _byte_view(part: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class FrameReader:
    """Bytes in, frames out. `place(id, length)` says where the bytes of a DATA frame go, or raises `BadFrame`."""

    def __init__(self, place: Callable[[int, int], memoryview]) -> None:
        self._place = place
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._target: memoryview | None = None
        self._target_id = self._target_bytes = 0

    def room(self) -> memoryview:
        """Where the next bytes are to be received; never empty."""
        if self._target is not None:
            return self._target
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = end = 0
        elif BUFFER_BYTES - end < RECORD_BYTES:
            # What is left is less than one small frame, so after the move there is room for two records.
            self._buffer[: end - start] = self._buffer[start:end]
            self._start, self._end = 0, end - start
            end -= start
        return self._buffer[end:]

    def close(self) -> None:
        """Nothing more is received: release the buffer now. The owner of this reader may exist until a garbage
        collection."""
        self._buffer = EMPTY
        self._target = None
        self._start = self._end = 0

    @property
    def is_direct(self) -> bool:
        """Whether `room()` is a part of a large body, and all of it is welcome."""
        return self._target is not None

    def received(self, count: int) -> Iterator[Frame]:
        """`count` bytes were put into `room()`; the frames that are whole now. Take all of them.

        One at a time, because a frame may announce what the next one is placed by.
        """
        if self._target is not None:
            rest = self._target[count:]
            self._target = rest or None
            if not rest:
                yield _DATA, 0, self._target_bytes, self._target_id, EMPTY
            return
        self._end += count
        buffer, start, end = self._buffer, self._start, self._end
        unpack_head = HEAD.unpack_from
        while end - start >= HEAD_BYTES:
            length, frame_type, flags, kind, number = unpack_head(buffer, start)
            body = start + HEAD_BYTES
            if frame_type == _DATA:
                taken = self._take_data(number, length, buffer[body:end])
                start = body + taken
                if taken < length:
                    break
                yield _DATA, 0, length, number, EMPTY
                continue
            if length > SMALL_BYTES_MAX or not 0 < frame_type <= _TYPE_MAX:
                raise BadFrame(problem=f"a frame of type {frame_type} says it has {length} bytes")
            stop = body + length
            if stop > end:
                break
            yield frame_type, flags, kind, number, memoryview(buffer[body:stop].tobytes()) if length else EMPTY
            start = stop
        self._start = start

    def _take_data(self, number: int, length: int, present: memoryview) -> int:
        """Copy what is here already; the rest is received where it belongs (LF3)."""
        if not 0 < length <= CHUNK_BYTES_MAX:
            raise BadFrame(problem=f"a DATA frame says it has {length} bytes")
        target = self._place(number, length)
        taken = min(length, len(present))
        target[:taken] = present[:taken]
        if taken < length:
            self._target, self._target_id, self._target_bytes = target[taken:], number, length
        return taken
