"""One file of blocks: its name, its header, and how it is scanned.

A segment is `{base offset, 20 digits}.seg`: a 64-byte header that says which channel, offset and
generation it belongs to, then blocks end to end. Only the newest segment of a log is ever written;
the others are sealed, synced and have their index beside them.

Scanning is how a log learns what really is in a file. It checks every byte, expects each block to
continue the offsets of the one before it (a block in the wrong place is damage, however valid), and
after damage searches for the next block that fits, eight bytes at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.block import Block
from tidelog.blocks.header import HEAD_BYTES, MAGIC, WINDOW_BYTES, BlockLimits
from tidelog.errors import BadBlock, BlockTruncated
from tidelog.storage.disk import File
from tidelog.storage.index import SegmentIndex
from tidelog.units import MIB

SEGMENT_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".index"
SEGMENT_MAGIC: Final = b"TLSEG\x01\x00\x00"
SEGMENT_HEAD_BYTES: Final = 64
_HEAD: Final = struct.Struct("<8sQQQq20s")
_SCAN_BYTES: Final = 4 * MIB


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SEGMENT_SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """The base offset in a segment's file name, or None for any other file."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot + suffix == SEGMENT_SUFFIX and len(stem) == 20 and stem.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHead:
    channel_id: int
    base_offset: int
    generation: int
    created_us: int

    def pack(self) -> bytes:
        fields = (SEGMENT_MAGIC, self.channel_id, self.base_offset, self.generation, self.created_us, bytes(20))
        head = _HEAD.pack(*fields)
        return head + struct.pack("<I", crc32c(head))

    @staticmethod
    def unpack(data: bytes) -> SegmentHead | None:
        if len(data) < SEGMENT_HEAD_BYTES or crc32c(data[:60]) != struct.unpack_from("<I", data, 60)[0]:
            return None
        magic, channel_id, base_offset, generation, created_us, _ = _HEAD.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            return None
        return SegmentHead(channel_id=channel_id, base_offset=base_offset, generation=generation, created_us=created_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a segment that are not the blocks they should be."""

    start: int
    end: int
    """Where the next good block begins, or where the file ends."""
    first_offset: int
    end_offset: int | None
    """Offset of that next good block; None when none follows."""
    problem: str


@dataclass(slots=True)
class Scan:
    """What a scan found. `index` folds the good blocks up to the first damage only."""

    index: SegmentIndex
    damages: list[Damage] = field(default_factory=list)
    file_bytes: int = 0
    durable_end: int = 0
    """The largest sync mark in any good block, those after damage included."""


def scan_segment(file: File, *, channel_id: int, base_offset: int, interval_bytes: int, limits: BlockLimits) -> Scan:
    """Verify every byte of a segment after its header."""
    index = SegmentIndex(base_offset=base_offset, size=SEGMENT_HEAD_BYTES, interval_bytes=interval_bytes)
    scan = Scan(index=index, file_bytes=file.size())
    window = FileWindow(file, scan.file_bytes)
    position, expected = SEGMENT_HEAD_BYTES, base_offset
    while position < scan.file_bytes:
        found = _block_at(window, position, channel_id, limits)
        if isinstance(found, Block) and found.leader.base_offset == expected and found.counted:
            if not scan.damages:
                index.add(found.maker, found.leader, found.windows, found.size)
            scan.durable_end = max(scan.durable_end, found.leader.durable_end)
            expected = found.offsets.stop
            position += found.size
            continue
        problem = found if isinstance(found, str) else "a block that belongs elsewhere lies here"
        resumed = _next_block(window, position + 8, channel_id, expected, limits)
        scan.damages.append(
            Damage(
                start=position,
                end=resumed[0] if resumed else scan.file_bytes,
                first_offset=expected,
                end_offset=resumed[1] if resumed else None,
                problem=problem,
            )
        )
        if resumed is None:
            break
        position, expected = resumed
    return scan


def _block_at(window: FileWindow, position: int, channel_id: int, limits: BlockLimits) -> Block | str:
    try:
        block = Block.parse(window.block_bytes(position, limits), 0, limits)
    except BadBlock as error:
        return error.problem
    if block.leader.channel_id != channel_id:
        return f"a block of channel {block.leader.channel_id} lies here"
    return block


def _next_block(
    window: FileWindow, position: int, channel_id: int, expected: int, limits: BlockLimits
) -> tuple[int, int] | None:
    """Position and offset of the first block after damage that may follow on `expected`."""
    while (position := window.find_magic(position)) >= 0:
        found = _block_at(window, position, channel_id, limits)
        if isinstance(found, Block) and found.leader.base_offset >= expected and found.counted:
            return position, found.leader.base_offset
        position += 8
    return None


class FileWindow:
    """A view of the file that moves forward in large reads."""

    def __init__(self, file: File, end: int, *, chunk_bytes: int = _SCAN_BYTES) -> None:
        self._file = file
        self._end = end
        self._chunk_bytes = chunk_bytes
        self._start = 0
        self._raw = b""
        self._data = memoryview(self._raw)

    def view(self, position: int, length: int) -> memoryview:
        """At least `length` bytes from `position`, fewer only at the end."""
        inside = position - self._start
        if not 0 <= inside <= len(self._data) - length:
            wanted = min(max(length, self._chunk_bytes), self._end - position)
            self._raw = self._file.read_at(position, wanted)
            self._data = memoryview(self._raw)
            self._start, inside = position, 0
        return self._data[inside:]

    def block_bytes(self, position: int, limits: BlockLimits) -> memoryview:
        """Enough bytes for the block that claims to start at `position`, never more than it may have."""
        head = self.view(position, HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            raise BlockTruncated(problem=f"{len(head)} bytes are left where a block should start")
        stored, windows = struct.unpack_from("<I", head, 56)[0], struct.unpack_from("<I", head, 104)[0]
        if stored > limits.stored_bytes_max or windows > limits.windows_max:
            return head[:HEAD_BYTES]
        return self.view(position, HEAD_BYTES + WINDOW_BYTES * windows + ((stored + 7) & ~7))

    def find_magic(self, position: int) -> int:
        """The next eight-byte boundary at or after `position` where a block may start, or -1."""
        while position < self._end:
            self.view(position, min(HEAD_BYTES, self._end - position))
            inside = position - self._start
            found = self._raw.find(MAGIC, inside)
            while found >= 0 and (found - inside) % 8:
                found = self._raw.find(MAGIC, found + 1)
            if found >= 0:
                return self._start + found
            position += max(8, (len(self._raw) - inside - 4) & ~7)
        return -1
