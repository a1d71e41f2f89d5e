"""A part of a segment for an answer: read into one piece of memory that is used again, and checked while it is warm.

Blocks that lie side by side in the file then lie side by side in memory too, and leave in whole TLS records. Fresh
memory would cost a page fault for every 4 KiB, more than reading the bytes from the page cache.

SN1  A byte of the file is read once for each answer; what a span cannot hold begins a new one.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from tidelog.blocks.header import BlockLimits
from tidelog.storage.disk import File
from tidelog.storage.log.segment import FileWindow, block_view
from tidelog.transports.link.memory import BodyMemory
from tidelog.units import KIB, MIB

_STEP_BYTES: Final = 512 * KIB
"""How much is read at a time: the bytes are still in the processor's cache when their checksum is taken."""
_SPAN_BYTES_MIN: Final = 256 * KIB
"""Smaller reads are cheaper as plain bytes."""
_MORE_BYTES_MAX: Final = MIB
"""Room for the block that reaches beyond what was asked for."""

_memory: Final = BodyMemory(bytes_max=32 * MIB)


@runtime_checkable
class FillingFile(Protocol):
    """A file that reads into memory it is given."""

    def read_into(self, position: int, room: memoryview) -> int: ...


def window_of(file: File, position: int, end: int, *, bytes_max: int) -> FileWindow | Span:
    """How blocks from `position` on are read, where about `bytes_max` are wanted."""
    if bytes_max >= _SPAN_BYTES_MIN and isinstance(file, FillingFile):
        return Span(file, position, end, bytes_max=bytes_max)
    return FileWindow(file, end, chunk_bytes=bytes_max)


class Span:
    """Reads forward from `position`, never beyond `end`."""

    def __init__(self, file: FillingFile, position: int, end: int, *, bytes_max: int) -> None:
        self._file = file
        self._end = end
        self._begin(position, bytes_max + min(bytes_max // 4, _MORE_BYTES_MAX))

    def block_bytes(self, position: int, limits: BlockLimits) -> memoryview:
        """Enough bytes for the block that claims to start at `position`, never more than it may have."""
        return block_view(self._view, position, limits)

    def _view(self, position: int, length: int) -> memoryview:
        """At least `length` bytes from `position`, fewer only at the end."""
        length = min(length, self._end - position)
        inside = position - self._start
        if inside + length > len(self._room):
            self._begin(position, length)
            inside = 0
        while self._filled < inside + length:
            stop = min(len(self._room), max(inside + length, self._filled + _STEP_BYTES))
            came = self._file.read_into(self._start + self._filled, self._room[self._filled : stop])
            if not came:
                break  # shorter than its index says: the caller finds a block cut off
            self._filled += came
        return self._room[inside : self._filled]

    def _begin(self, position: int, size: int) -> None:
        self._start = position
        self._room = _memory.take(max(1, min(size, self._end - position)))
        self._filled = 0
