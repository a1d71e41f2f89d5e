"""What a segment holds, folded from its block headers: sparse index, bounds, epochs.

One entry stands for a run of blocks (about `interval_bytes` of file) with the smallest and largest
seq and time in it, because blocks lie in arrival order and neither is monotonic in offset (B2). A
sealed segment's index lies beside it as a file with a checksum. It is a cache: when it is missing,
damaged or does not fit the segment, it is folded again from the segment.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.block import counted_records
from tidelog.blocks.header import BlockKind, Leader, Maker

INDEX_MAGIC: Final = b"TLIX"
INDEX_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIQQQQQQqqqqIIII")
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1


Bounds: TypeAlias = tuple[int | None, int | None]


def _column(values: array[int]) -> npt.NDArray[Any]:
    """A copy: an array that lends its memory could not grow."""
    return np.array(values)


class SegmentIndex:
    """A fold over the headers of one segment's blocks. `add` must see them in file order."""

    __slots__ = (
        "append_max_us",
        "append_min_us",
        "base_offset",
        "blocks",
        "durable_end",
        "end_offset",
        "entry_offsets",
        "entry_positions",
        "entry_seq_max",
        "entry_seq_min",
        "entry_time_max",
        "entry_time_min",
        "epochs",
        "interval_bytes",
        "missing",
        "records",
        "size",
        "time_max_us",
        "time_min_us",
    )

    def __init__(self, *, base_offset: int, size: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = size
        """Bytes of the segment file that this index describes."""
        self.interval_bytes = interval_bytes
        self.blocks = 0
        self.records = 0
        self.durable_end = 0
        """The largest `durable_end` stamped into any of the blocks: a sync point (B4)."""
        self.time_min_us, self.time_max_us = _INT64_MAX, _INT64_MIN
        self.append_min_us, self.append_max_us = _INT64_MAX, _INT64_MIN
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset in this segment), ascending."""
        self.missing: list[range] = []
        """Offsets that placeholders stand for."""
        self.entry_offsets = array("Q")
        self.entry_positions = array("Q")
        self.entry_seq_min = array("Q")
        self.entry_seq_max = array("Q")
        self.entry_time_min = array("q")
        self.entry_time_max = array("q")

    def add(self, maker: Maker, leader: Leader, windows: tuple[range, ...], block_bytes: int) -> None:
        """Fold in the block that begins at `size` and moves it on."""
        counted = counted_records(maker, windows)
        base = leader.base_offset
        if not self.entry_positions or self.size - self.entry_positions[-1] >= self.interval_bytes:
            self.entry_offsets.append(base)
            self.entry_positions.append(self.size)
            self.entry_seq_min.append(_UINT64_MAX)
            self.entry_seq_max.append(0)
            self.entry_time_min.append(_INT64_MAX)
            self.entry_time_max.append(_INT64_MIN)
        if maker.kind == BlockKind.MISSING:
            self.missing.append(range(base, base + counted))
            # Whatever was there may match any search, so an entry over a placeholder matches all.
            self.entry_seq_min[-1], self.entry_seq_max[-1] = 0, _UINT64_MAX
            self.entry_time_min[-1], self.entry_time_max[-1] = _INT64_MIN, _INT64_MAX
        else:
            self._widen(maker)
            self.append_min_us = min(self.append_min_us, leader.append_time_us)
            self.append_max_us = max(self.append_max_us, leader.append_time_us)
        if not self.epochs or leader.leader_epoch > self.epochs[-1][0]:
            self.epochs.append((leader.leader_epoch, base))
        if leader.durable_end > self.durable_end:
            self.durable_end = leader.durable_end
        self.blocks += 1
        self.records += counted
        self.end_offset = base + counted
        self.size += block_bytes

    def _widen(self, maker: Maker) -> None:
        if maker.base_seq:
            last_seq = maker.base_seq + maker.record_count - 1
            if maker.base_seq < self.entry_seq_min[-1]:
                self.entry_seq_min[-1] = maker.base_seq
            if last_seq > self.entry_seq_max[-1]:
                self.entry_seq_max[-1] = last_seq
        if maker.time_min_us < self.entry_time_min[-1]:
            self.entry_time_min[-1] = maker.time_min_us
        if maker.time_max_us > self.entry_time_max[-1]:
            self.entry_time_max[-1] = maker.time_max_us
        if maker.time_min_us < self.time_min_us:
            self.time_min_us = maker.time_min_us
        if maker.time_max_us > self.time_max_us:
            self.time_max_us = maker.time_max_us

    def entry_before(self, offset: int) -> int:
        """Number of the entry whose run of blocks holds `offset`."""
        return max(0, bisect_right(self.entry_offsets, offset) - 1)

    def entry_end(self, entry: int) -> int:
        """Where the run of blocks of this entry ends in the file."""
        return self.entry_positions[entry + 1] if entry + 1 < len(self.entry_positions) else self.size

    def first_entry_in(self, entry: int, *, seqs: Bounds, times_us: Bounds) -> int | None:
        """The first entry from `entry` on that may hold a record inside both ranges (from, before)."""
        may_hold = np.ones(len(self.entry_positions) - entry, bool)
        for (start, stop), low, high in (
            (seqs, self.entry_seq_min, self.entry_seq_max),
            (times_us, self.entry_time_min, self.entry_time_max),
        ):
            if start is not None:
                may_hold &= _column(high)[entry:] >= start
            if stop is not None:
                may_hold &= _column(low)[entry:] < stop
        found = int(may_hold.argmax()) if len(may_hold) else 0
        return entry + found if len(may_hold) and may_hold[found] else None

    # --- the file beside the segment -------------------------------------------------------------

    def pack(self) -> bytes:
        head = _HEAD.pack(
            INDEX_MAGIC,
            INDEX_VERSION,
            self.base_offset,
            self.end_offset,
            self.size,
            self.blocks,
            self.records,
            self.durable_end,
            self.time_min_us,
            self.time_max_us,
            self.append_min_us,
            self.append_max_us,
            len(self.entry_positions),
            len(self.epochs),
            len(self.missing),
            self.interval_bytes,
        )
        epochs = array("Q", [number for epoch in self.epochs for number in epoch])
        missing = array("Q", [edge for part in self.missing for edge in (part.start, part.stop)])
        body = b"".join((head, *(column.tobytes() for column in self._columns()), epochs.tobytes(), missing.tobytes()))
        return body + struct.pack("<I", crc32c(body))

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """The index in these bytes, or None when they are damaged or of another version."""
        if len(data) < _HEAD.size + 4 or crc32c(data[:-4]) != struct.unpack_from("<I", data, len(data) - 4)[0]:
            return None
        head = _HEAD.unpack_from(data)
        entries, epochs, missing, interval_bytes = head[12:]
        if head[0] != INDEX_MAGIC or head[1] != INDEX_VERSION:
            return None
        if len(data) != _HEAD.size + 48 * entries + 16 * (epochs + missing) + 4:
            return None
        index = cls(base_offset=head[2], size=head[4], interval_bytes=interval_bytes)
        index.end_offset, index.blocks, index.records, index.durable_end = head[3], head[5], head[6], head[7]
        index.time_min_us, index.time_max_us, index.append_min_us, index.append_max_us = head[8:12]
        position = _HEAD.size
        for column in index._columns():
            column.frombytes(data[position : position + 8 * entries])
            position += 8 * entries
        numbers = array("Q", data[position:-4]).tolist()
        index.epochs = [(numbers[2 * i], numbers[2 * i + 1]) for i in range(epochs)]
        index.missing = [range(numbers[2 * i], numbers[2 * i + 1]) for i in range(epochs, epochs + missing)]
        return index

    def _columns(self) -> tuple[array[int], ...]:
        return (
            self.entry_offsets,
            self.entry_positions,
            self.entry_seq_min,
            self.entry_seq_max,
            self.entry_time_min,
            self.entry_time_max,
        )
