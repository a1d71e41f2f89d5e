"""The newest blocks of a channel in memory: replicas and readers at the end of the log cost no disk.

TL1  The blocks continue each other; the last one ends where the log does, unless there is none.
TL2  At most `bytes_max` bytes stay, the newest; a single larger block stays alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tidelog.blocks.block import Block

_COMPACT_AT = 256


class BlockTail:
    __slots__ = ("_bases", "_blocks", "_bytes_max", "_first", "bytes")

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: list[Block] = []
        self._bases: list[int] = []
        self._first = 0
        """Index of the oldest that is kept: dropping from the front of a list costs too much to do each time."""
        self.bytes = 0

    def push(self, block: Block) -> None:
        self._blocks.append(block)
        self._bases.append(block.leader.base_offset)
        self.bytes += block.size
        if self.bytes > self._bytes_max:
            self._shrink(self._bytes_max)

    def _shrink(self, bytes_max: int) -> None:
        first, last = self._first, len(self._blocks) - 1
        while self.bytes > bytes_max and first < last:
            self.bytes -= self._blocks[first].size
            first += 1
        self._first = first
        if first >= _COMPACT_AT and 2 * first >= len(self._blocks):
            del self._blocks[:first], self._bases[:first]
            self._first = 0
        elif first:
            # The references themselves must go at once, or the memory would stay.
            for index in range(first - 1, -1, -1):
                if self._blocks[index] is _GONE:
                    break
                self._blocks[index] = _GONE

    def clear(self) -> None:
        self._blocks.clear()
        self._bases.clear()
        self._first = self.bytes = 0

    def truncate(self, offset: int) -> None:
        """Forget every block at or after `offset`."""
        while len(self._blocks) > self._first and self._bases[-1] >= offset:
            self.bytes -= self._blocks[-1].size
            del self._blocks[-1], self._bases[-1]

    def take(self, offset: int, *, bytes_max: int, end: int) -> Sequence[Block] | None:
        """Blocks from the one that holds `offset`, up to `end`, at least one; None if that one is not here."""
        place = bisect_right(self._bases, offset, lo=self._first) - 1
        if place < self._first or place >= len(self._blocks):
            return None
        taken: list[Block] = []
        total = 0
        for index in range(place, len(self._blocks)):
            block = self._blocks[index]
            stop = block.end
            if stop > end or (taken and total + block.size > bytes_max):
                break
            if not taken and stop <= offset:
                return None
            taken.append(block)
            total += block.size
        return taken or None


_GONE: Block = None  # type: ignore[assignment]  # stands for a block that was let go
