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
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.block import Block
from tidelog.blocks.header import HEAD_BYTES, MAGIC, WINDOW_BYTES, BlockLimits
from tidelog.errors import BadBlock, BlockTruncated
from tidelog.storage.disk import File
from tidelog.storage.log.index import SegmentIndex
from tidelog.units import MIB

SEGMENT_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".index"
SEGMENT_MAGIC: Final = b"TLSEG\x01\x00\x00"
SEGMENT_HEAD_BYTES: Final = 64
_HEAD: Final = struct.Struct("<8sQQQqQ12s")
OFFSET_LIMIT: Final = 2**64 - 1
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
    epoch: int = 0
    """The newest leader epoch when the segment was made: a log that retention emptied must not forget it."""

    def pack(self) -> bytes:
        place = (self.channel_id, self.base_offset, self.generation, self.created_us, self.epoch)
        head = _HEAD.pack(SEGMENT_MAGIC, *place, bytes(12))
        return head + struct.pack("<I", crc32c(head))

    @staticmethod
    def unpack(data: bytes) -> SegmentHead | None:
        if len(data) < SEGMENT_HEAD_BYTES or crc32c(data[:60]) != struct.unpack_from("<I", data, 60)[0]:
            return None
        magic, channel_id, base_offset, generation, created_us, epoch, _ = _HEAD.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            return None
        return SegmentHead(
            channel_id=channel_id, base_offset=base_offset, generation=generation, created_us=created_us, epoch=epoch
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDamage:
    """Bytes of a segment that are not the blocks they should be."""

    start: int
    end: int
    """Where the next good block begins, or where the file ends."""
    first_offset: int
    end_offset: int | None
    """Offset of that next good block; None when none follows."""
    epoch: int
    """Leader epoch of the good block before; 0 when there is none."""
    problem: str

    @property
    def is_garbage(self) -> bool:
        """No records are missing: what follows continues the offsets of what came before."""
        return self.end_offset == self.first_offset


@dataclass(slots=True)
class Scan:
    """What a scan found. `index` folds the good blocks up to the first damage only."""

    index: SegmentIndex
    damages: list[SegmentDamage] = field(default_factory=list)
    file_bytes: int = 0
    durable_end: int = 0
    """The largest sync mark in any good block, those after damage included."""
    end_offset: int = 0
    """Offset after the last good block."""
    epoch: int = 0
    """Leader epoch of that block."""

    def damages_up_to(self, end_offset: int) -> list[SegmentDamage]:
        """All that is wrong with a segment that should reach to `end_offset`; an early end is damage too."""
        open_ended = bool(self.damages) and self.damages[-1].end_offset is None
        if open_ended or self.end_offset >= end_offset:
            return list(self.damages)
        early_end = SegmentDamage(
            start=self.file_bytes,
            end=self.file_bytes,
            first_offset=self.end_offset,
            end_offset=None,
            epoch=self.epoch,
            problem="the segment ends before the records that were synced to it",
        )
        return [*self.damages, early_end]


def scan_segment(
    file: File,
    *,
    channel_id: int,
    base_offset: int,
    interval_bytes: int,
    limits: BlockLimits,
    offset_limit: int = OFFSET_LIMIT,
) -> Scan:
    """Check every byte of a segment file from its header on. Blocks that reach past `offset_limit` are not its own."""
    index = SegmentIndex(base_offset=base_offset, size=SEGMENT_HEAD_BYTES, interval_bytes=interval_bytes)
    scan = Scan(index=index, file_bytes=file.size(), end_offset=base_offset)
    window = FileWindow(file, scan.file_bytes)
    position = SEGMENT_HEAD_BYTES
    problem = ""
    while position < scan.file_bytes:
        found = _block_at(window, position, channel_id, limits)
        if isinstance(found, str):
            problem = found
            break
        if found.leader.base_offset != scan.end_offset or not found.counted or found.offsets.stop > offset_limit:
            problem = "a block that belongs elsewhere lies here"
            break
        index.add(found.maker, found.leader, found.windows, found.size)
        scan.durable_end = max(scan.durable_end, _mark(found))
        scan.end_offset, scan.epoch = found.offsets.stop, found.leader.leader_epoch
        position += found.size
    if position < scan.file_bytes:
        runs = _runs_after(window, position, channel_id, range(scan.end_offset, offset_limit + 1), limits)
        _note_damages(scan, position, _best_chain(runs), problem)
    return scan


def _mark(block: Block) -> int:
    """The sync mark of a block. What a block says about offsets after itself is not believed."""
    return min(block.leader.durable_end, block.leader.base_offset)


def _block_at(window: FileWindow, position: int, channel_id: int, limits: BlockLimits) -> Block | str:
    try:
        block = Block.parse(window.block_bytes(position, limits), 0, limits)
    except BadBlock as error:
        return error.problem
    if block.leader.channel_id != channel_id:
        return f"a block of channel {block.leader.channel_id} lies here"
    return block


@dataclass(slots=True, kw_only=True)
class _Run:
    """Good blocks after damage that follow each other, in the file and in their offsets."""

    start: int
    end: int
    first_offset: int
    end_offset: int
    durable_end: int
    epoch: int
    blocks: int = 1


def _runs_after(window: FileWindow, position: int, channel_id: int, offsets: range, limits: BlockLimits) -> list[_Run]:
    """Every good block from `position` on whose offsets may belong here, wherever it begins."""
    runs: list[_Run] = []
    while (position := window.find_magic(position)) >= 0:
        found = _block_at(window, position, channel_id, limits)
        if isinstance(found, str) or not found.counted or found.offsets.start not in offsets:
            position += 8
            continue
        if found.offsets.stop not in offsets:
            position += 8
            continue
        end = position + found.size
        if runs and runs[-1].end == position and runs[-1].end_offset == found.offsets.start:
            run = runs[-1]
            run.end, run.end_offset, run.blocks = end, found.offsets.stop, run.blocks + 1
            run.durable_end, run.epoch = max(run.durable_end, _mark(found)), found.leader.leader_epoch
        else:
            run = _Run(
                start=position,
                end=end,
                first_offset=found.offsets.start,
                end_offset=found.offsets.stop,
                durable_end=_mark(found),
                epoch=found.leader.leader_epoch,
            )
            runs.append(run)
        position = end
    return runs


def _best_chain(runs: list[_Run]) -> list[_Run]:
    """The runs with the most blocks in all whose offsets rise with their places; the lower offsets if in doubt.

    A misdirected write leaves a good block in a wrong place. Taking the first good block after damage
    for the continuation would give up all the blocks between that place and the right one.
    """
    ends: list[int] = []  # of the best chains, rising together with their blocks
    counts: list[int] = []
    chains: list[int] = []
    previous: list[int] = []
    for number, run in enumerate(runs):
        place = bisect_right(ends, run.first_offset) - 1
        previous.append(chains[place] if place >= 0 else -1)
        count = run.blocks + (counts[place] if place >= 0 else 0)
        start = bisect_right(ends, run.end_offset)
        if start and counts[start - 1] >= count:
            continue
        start = bisect_left(ends, run.end_offset)
        stop = bisect_right(counts, count, lo=start)
        ends[start:stop], counts[start:stop], chains[start:stop] = [run.end_offset], [count], [number]
    chain: list[_Run] = []
    number = chains[-1] if chains else -1
    while number >= 0:
        chain.append(runs[number])
        number = previous[number]
    return chain[::-1]


def _note_damages(scan: Scan, position: int, chain: list[_Run], problem: str) -> None:
    for run in chain:
        scan.damages.append(
            SegmentDamage(
                start=position,
                end=run.start,
                first_offset=scan.end_offset,
                end_offset=run.first_offset,
                epoch=scan.epoch,
                problem=problem,
            )
        )
        scan.durable_end = max(scan.durable_end, run.durable_end)
        position, scan.end_offset, scan.epoch = run.end, run.end_offset, run.epoch
        problem = "no block that continues the offsets lies here"
    if position < scan.file_bytes:
        scan.damages.append(
            SegmentDamage(
                start=position,
                end=scan.file_bytes,
                first_offset=scan.end_offset,
                end_offset=None,
                epoch=scan.epoch,
                problem=problem,
            )
        )


def block_view(view: Callable[[int, int], memoryview], position: int, limits: BlockLimits) -> memoryview:
    """The bytes of the block that claims to start at `position`, by way of `view(position, length)`."""
    head = view(position, HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        raise BlockTruncated(problem=f"{len(head)} bytes are left where a block should start")
    stored, windows = struct.unpack_from("<I", head, 56)[0], struct.unpack_from("<I", head, 104)[0]
    if stored > limits.stored_bytes_max or windows > limits.windows_max:
        return head[:HEAD_BYTES]
    return view(position, HEAD_BYTES + WINDOW_BYTES * windows + ((stored + 7) & ~7))


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
        """At least `length` bytes from `position`, fewer only at the end, none behind it."""
        inside = position - self._start
        if not 0 <= inside <= len(self._data) - length:
            wanted = max(0, min(max(length, self._chunk_bytes), self._end - position))
            self._raw = self._file.read_at(position, wanted)
            self._data = memoryview(self._raw)
            self._start, inside = position, 0
        return self._data[inside:]

    def block_bytes(self, position: int, limits: BlockLimits) -> memoryview:
        """Enough bytes for the block that claims to start at `position`, never more than it may have."""
        return block_view(self.view, position, limits)

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
