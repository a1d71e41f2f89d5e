"""Read-only access to the files of one log: its marks, its segments, its blocks.

Opening a log repairs it; tools that look must not. So nothing here opens a file for writing, and what
recovery would decide (where the torn tail is cut, what counts as damage) is worked out from the same
scan without carrying it out.

FI1  Only blocks that passed `Block.parse` and continue the offsets are handed out.
FI2  Bytes above the sync point that are no block are a torn tail: reading ends there, as after recovery.
    Below it they are damage, handed out as `BrokenBytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

from tidelog.blocks.block import Block
from tidelog.blocks.header import DEFAULT_LIMITS
from tidelog.errors import BadBlock, BlockCorrupt, FileMissing, NotALog
from tidelog.storage.atomic import COPY_SUFFIX, read_mark
from tidelog.storage.disk import Disk
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.log import META_NAME, STATE_NAME
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.segment import (
    OFFSET_LIMIT,
    SEGMENT_HEAD_BYTES,
    FileWindow,
    Scan,
    SegmentDamage,
    SegmentHead,
    base_offset_of,
    scan_segment,
    segment_name,
)

INDEX_SUFFIX = ".index"
_INTERVAL_BYTES = LogOptions().index_interval_bytes


@dataclass(frozen=True, slots=True)
class BlockInFile:
    """A verified block and where it lies."""

    file: str
    position: int | None
    """None for a block that is in a store's write-ahead file only."""
    block: Block


@dataclass(frozen=True, slots=True)
class BrokenBytes:
    """Bytes that should be blocks and are not."""

    file: str
    position: int | None
    first_offset: int
    end_offset: int | None
    """Offset of the next good block; None when none follows."""
    problem: str

    @classmethod
    def from_damage(cls, file: str, damage: SegmentDamage) -> BrokenBytes:
        return cls(file, damage.start, damage.first_offset, damage.end_offset, damage.problem)

    def __str__(self) -> str:
        place = self.file if self.position is None else f"{self.file} at byte {self.position}"
        offsets = f"offsets from {self.first_offset}" + ("" if self.end_offset is None else f" to {self.end_offset}")
        return f"{place}: {self.problem} ({offsets})"


Item = BlockInFile | BrokenBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A small checksummed file, or the copy that stands in for it."""

    value: dict[str, Any]
    absent: bool = False
    """There is neither the file nor a copy of it."""
    problems: tuple[tuple[str, str], ...] = ()
    """Path and problem of each that should be good and is not."""


def load_mark(disk: Disk, path: str) -> CheckedFile:
    copy = path + COPY_SUFFIX
    held = [candidate for candidate in (path, copy) if disk.exists(candidate)]
    values = {candidate: read_mark(disk, candidate) for candidate in held}
    problems = [(candidate, "its checksum does not match") for candidate in held if values[candidate] is None]
    if held == [copy]:
        problems.append((path, "it is missing; only its copy is there"))
    value = next((value for value in values.values() if value is not None), {})
    return CheckedFile(value=value, absent=not held, problems=tuple(problems))


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


class SegmentFile:
    """One segment file. `known_end` is the offset that it should reach: the next segment's base, or what is
    known to have been durable."""

    def __init__(self, disk: Disk, path: str, *, base_offset: int, channel_id: int, newest: bool) -> None:
        self.disk = disk
        self.path = path
        self.base_offset = base_offset
        self.channel_id = channel_id
        self.newest = newest
        self.known_end = base_offset
        self.offset_limit = OFFSET_LIMIT
        file = disk.open(path, writable=False)
        try:
            self.size = file.size()
        finally:
            file.close()
        self.head = read_segment_head(disk, path)

    @property
    def head_fits(self) -> bool:
        head = self.head
        return head is not None and head.base_offset == self.base_offset and head.channel_id == self.channel_id

    @cached_property
    def index_bytes(self) -> bytes | None:
        try:
            file = self.disk.open(self.path + INDEX_SUFFIX, writable=False)
        except FileMissing:
            return None
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    @cached_property
    def index(self) -> SegmentIndex | None:
        """What the file beside the segment says; None when there is none or it is damaged."""
        return SegmentIndex.unpack(self.index_bytes) if self.index_bytes is not None else None

    @cached_property
    def scan(self) -> Scan:
        """The result of checking every byte."""
        interval_bytes = self.index.interval_bytes if self.index else _INTERVAL_BYTES
        file = self.disk.open(self.path, writable=False)
        try:
            return scan_segment(
                file,
                channel_id=self.channel_id,
                base_offset=self.base_offset,
                interval_bytes=max(1, interval_bytes),
                limits=DEFAULT_LIMITS,
                offset_limit=self.offset_limit,
            )
        finally:
            file.close()

    def durable_end(self) -> int:
        """The largest sync mark in the segment, from its index where that can be trusted."""
        if self.index is not None and self.index.size == self.size and not self.newest:
            return self.index.durable_end
        return self.scan.durable_end

    def items(self, sync_point: SyncPoint) -> Iterator[Item]:
        """Blocks and damage in file order, up to the torn tail (FI2)."""
        file = self.disk.open(self.path, writable=False)
        try:
            window = FileWindow(file, self.size)
            position, expected = SEGMENT_HEAD_BYTES, self.base_offset
            while position < self.size:
                try:
                    block = self._block(window, position, expected)
                except BadBlock:
                    damage = next((part for part in self.damages(sync_point()) if part.start == position), None)
                    if damage is None:
                        return
                    yield BrokenBytes.from_damage(self.path, damage)
                    if damage.end_offset is None:
                        return
                    position, expected = damage.end, damage.end_offset
                    continue
                yield BlockInFile(self.path, position, block)
                position += block.size
                expected = block.offsets.stop
        finally:
            file.close()
        if expected < self.known_end:
            yield from (BrokenBytes.from_damage(self.path, part) for part in self.damages(self.known_end)[-1:])

    def _block(self, window: FileWindow, position: int, expected: int) -> Block:
        block = Block.parse(window.block_bytes(position, DEFAULT_LIMITS), 0, DEFAULT_LIMITS)
        if block.leader.channel_id != self.channel_id or block.leader.base_offset != expected or not block.counted:
            raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
        if block.offsets.stop > self.offset_limit:
            raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
        return block

    def damages(self, sync_point: int) -> list[SegmentDamage]:
        """What recovery would quarantine: everything, or in the newest segment what lies before the torn tail."""
        known = self.scan.damages_up_to(sync_point if self.newest else self.known_end)
        torn = self._torn(known, sync_point)
        return known[: known.index(torn)] if torn else known

    def torn_bytes(self, sync_point: int) -> int:
        """Bytes that recovery would cut off: from the first gap above the sync point on (B4)."""
        torn = self._torn(self.scan.damages_up_to(sync_point), sync_point)
        return self.size - torn.start if torn else 0

    def _torn(self, known: list[SegmentDamage], sync_point: int) -> SegmentDamage | None:
        if not self.newest:
            return None
        return next((part for part in known if part.first_offset >= sync_point and not part.is_garbage), None)


class SyncPoint:
    """The sync point of a log, computed only if somebody asks: it may need every segment scanned."""

    def __init__(self, log: LogFiles) -> None:
        self._log = log

    def __call__(self) -> int:
        return self._log.sync_point


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """What the store in front of a channel's log knows of it."""

    channel_id: int
    clean: bool
    synced_end: int
    waiting: tuple[BlockInFile, ...] = ()
    """Blocks that are in the write-ahead file and not yet in a segment."""


class LogFiles:
    """One log: a folder of segments with its marks, or a lone segment file."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        name: str | None = None,
        managed: Managed | None = None,
        known_synced_end: int = 0,
        only: str | None = None,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.name = name
        self.managed = managed
        self.lone = only is not None
        self.meta_mark = self.state_mark = CheckedFile(value={}, absent=True)
        if only is None:
            self.meta_mark = load_mark(disk, join(folder, META_NAME))
            self.state_mark = load_mark(disk, join(folder, STATE_NAME))
        self.meta, self.state = self.meta_mark.value, self.state_mark.value
        if self.meta and self.meta.get("format") != 1:
            raise NotALog(path=folder, problem=f"log format {self.meta.get('format')} needs a newer Tidelog")
        self.generation = int(self.meta.get("generation", 0))
        self.segment_folder = join(folder, f"generation-{self.generation}") if self.generation else folder
        self.segments = self._lone_segment(only) if only else self._find_segments()
        self._known_end = max(known_synced_end, int(self.state.get("log_end", 0)) if self.clean else 0)
        if managed is not None:
            self._known_end = managed.synced_end
        elif self.lone:
            # A copied file may have been copied with its index, which was written after the segment was synced.
            index = self.segments[0].index
            self._known_end = index.end_offset if index and index.base_offset == self.segments[0].base_offset else 0
        if self.segments:
            self.segments[-1].known_end = self._known_end

    @property
    def clean(self) -> bool:
        """Closed properly, as far as the marks tell."""
        if self.managed is not None:
            return self.managed.clean
        return not self.lone and bool(self.state.get("clean"))

    @property
    def channel_id(self) -> int:
        return self.segments[0].channel_id if self.segments else int(self.meta.get("channel_id", 0))

    @property
    def log_start(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def total_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @cached_property
    def sync_point(self) -> int:
        if self.managed is not None:
            return self.managed.synced_end
        return max([self._known_end, *(segment.durable_end() for segment in self.segments)])

    def torn_bytes(self) -> int:
        return self.segments[-1].torn_bytes(self.sync_point) if self.segments else 0

    def end_offset(self) -> int:
        """Where the readable log ends; needs a scan of the newest segment."""
        end = self.log_start
        for item in self.items(self.segments[-1].base_offset if self.segments else 0):
            end = max(end, _end_of(item) or 0)
        return max(end, self.segments[-1].known_end if self.segments else 0)

    def items(self, start: int = 0) -> Iterator[Item]:
        """Blocks and damage in offset order, from the segment that holds `start` on."""
        end = self.log_start
        for segment, following in zip_longest(self.segments, self.segments[1:]):
            if following is not None and following.base_offset <= start:
                continue
            end = segment.base_offset
            for item in segment.items(SyncPoint(self)):
                end = _end_of(item) or segment.known_end
                yield item
        for placed in self.managed.waiting if self.managed else ():
            if placed.block.offsets.stop > end:
                yield from self._gap_before(placed, end)
                yield placed
                end = placed.block.offsets.stop

    def _gap_before(self, placed: BlockInFile, end: int) -> Iterator[BrokenBytes]:
        first = placed.block.leader.base_offset
        if first > end:
            yield BrokenBytes(placed.file, None, end, first, "a block is missing in the write-ahead file")

    def _lone_segment(self, name: str) -> list[SegmentFile]:
        """A segment file on its own, under whatever name: its header says what it is."""
        path = join(self.folder, name)
        head = read_segment_head(self.disk, path)
        base = head.base_offset if head else base_offset_of(name)
        channel_id = head.channel_id if head else _first_channel_id(self.disk, path)
        if base is None or channel_id is None:
            raise NotALog(path=path, problem="its header is damaged and no block follows it; it is no segment")
        return [SegmentFile(self.disk, path, base_offset=base, channel_id=channel_id, newest=True)]

    def _find_segments(self) -> list[SegmentFile]:
        try:
            names = self.disk.list_folder(self.segment_folder)
        except FileMissing:
            return []
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        channel_id = self._channel_id(bases)
        segments = []
        for base, following in zip_longest(bases, bases[1:]):
            path = join(self.segment_folder, segment_name(base))
            segment = SegmentFile(self.disk, path, base_offset=base, channel_id=channel_id, newest=following is None)
            if following is not None:
                segment.known_end = segment.offset_limit = following
            segments.append(segment)
        return segments

    def _channel_id(self, bases: list[int]) -> int:
        """From the store, the meta file, or else the first segment that can tell: its head or its first block."""
        if self.managed is not None:
            return self.managed.channel_id
        if "channel_id" in self.meta:
            return int(self.meta["channel_id"])
        for base in bases:
            path = join(self.segment_folder, segment_name(base))
            head = read_segment_head(self.disk, path)
            channel_id = head.channel_id if head else _first_channel_id(self.disk, path)
            if channel_id is not None:
                return channel_id
        return 0


def _end_of(item: Item) -> int | None:
    """The offset after a block or damage; None for damage that nothing follows."""
    return item.block.offsets.stop if isinstance(item, BlockInFile) else item.end_offset


def read_segment_head(disk: Disk, path: str) -> SegmentHead | None:
    file = disk.open(path, writable=False)
    try:
        return SegmentHead.unpack(file.read_at(0, SEGMENT_HEAD_BYTES))
    finally:
        file.close()


def _first_channel_id(disk: Disk, path: str) -> int | None:
    """What the first block of a segment says, for one whose header is damaged."""
    file = disk.open(path, writable=False)
    try:
        size = file.size()
        if size <= SEGMENT_HEAD_BYTES:
            return None
        return Block.parse(FileWindow(file, size).block_bytes(SEGMENT_HEAD_BYTES, DEFAULT_LIMITS)).leader.channel_id
    except BadBlock:
        return None
    finally:
        file.close()
