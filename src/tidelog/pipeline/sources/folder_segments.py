"""Segment files of one log, read without changing them, also while another process appends to them.

Opening a log repairs it, and a reader must not. So the files are read as they are: an index beside a segment shows
where to begin and is used only if a fitting block is really there; the newest segment is followed to its last whole
block, and that position is kept for the next look.

FS1  Every block is verified and continues the offsets of the one before it; other bytes are damage, reported with its
     offsets, or an incomplete block at the end of the newest segment.
FS2  Nothing is opened for writing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tidelog.blocks.block import Block, counted_records
from tidelog.blocks.header import DEFAULT_LIMITS, HEAD_BYTES, WINDOW_BYTES, BlockKind, parse_head
from tidelog.errors import BadBlock, BlockCorrupt, DamagedRange, FileMissing, NotALog
from tidelog.pipeline.sources.logs import READ_BYTES
from tidelog.storage.atomic import read_either_mark
from tidelog.storage.disk import Disk
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.log import META_NAME
from tidelog.storage.log.segment import (
    INDEX_SUFFIX,
    OFFSET_LIMIT,
    SEGMENT_HEAD_BYTES,
    FileWindow,
    Scan,
    SegmentHead,
    base_offset_of,
    scan_segment,
    segment_name,
)

_INTERVAL_BYTES = 64 << 10


@dataclass(slots=True)
class Tail:
    """How far a segment is known to be good."""

    position: int
    offset: int
    epoch: int
    file_bytes: int


class SegmentFiles:
    """The segments of one log. `look` again to see what was added or trimmed since."""

    def __init__(self, disk: Disk, folder: str, *, channel_id: int | None = None) -> None:
        self._disk = disk
        self._folder = folder
        self._given_id = channel_id
        self._tails: dict[str, Tail] = {}
        self._behind_damage: dict[tuple[int, int], int] = {}
        """The next good block after damage, by segment and offset."""
        self.look()

    def look(self) -> None:
        """Find the segments that are there now."""
        meta = read_either_mark(self._disk, _join(self._folder, META_NAME)) or {}
        if meta and meta.get("format") != 1:
            raise NotALog(path=self._folder, problem=f"log format {meta.get('format')} needs a newer Tidelog")
        generation = int(meta.get("generation", 0))
        self._segment_folder = _join(self._folder, f"generation-{generation}") if generation else self._folder
        try:
            names = self._disk.list_folder(self._segment_folder)
        except FileMissing:
            names = []
        self.bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        if self._given_id is not None:
            self.channel_id = self._given_id
        elif "channel_id" in meta:
            self.channel_id = int(meta["channel_id"])
        else:
            self.channel_id = self._first_channel_id()

    @property
    def log_start(self) -> int:
        return self.bases[0] if self.bases else 0

    def tail(self) -> Tail:
        """Where the newest segment ends: after its last whole block that continues the ones before it."""
        if not self.bases:
            return Tail(0, 0, 0, 0)
        base = self.bases[-1]
        path = self._path(base)
        with _Opened(self._disk, path) as opened:
            known = self._tails.get(path)
            if known is None or known.file_bytes > opened.size:
                known = self._known(opened, path, base)
            if opened.size > known.file_bytes:
                self._follow(opened, known)
                self._tails = {path: known}
            return known

    def _known(self, opened: _Opened, path: str, base: int) -> Tail:
        """Where to begin following a segment: at the last position in its index, since an index covers only synced
        blocks. Following a long segment of small blocks then costs little."""
        tail = Tail(SEGMENT_HEAD_BYTES, base, _head_epoch(opened), 0)
        found = self._indexed(FileWindow(opened.file, opened.size), path, base, OFFSET_LIMIT)
        if found is not None:
            tail.position, tail.offset, index = found
            tail.epoch = max([tail.epoch, *(epoch for epoch, first in index.epochs if first <= tail.offset)])
        return tail

    def _follow(self, opened: _Opened, tail: Tail) -> None:
        window = FileWindow(opened.file, opened.size)
        while tail.position < opened.size:
            try:
                block = self._whole_block(window, tail.position, tail.offset)
            except BadBlock:
                break
            tail.position += block.size
            tail.offset = block.end
            tail.epoch = max(tail.epoch, block.leader.leader_epoch)
        if tail.position < opened.size:
            self._pass_damage(opened, tail)
        tail.file_bytes = tail.position

    def _pass_damage(self, opened: _Opened, tail: Tail) -> None:
        """Bytes that are no block end the log, unless a later block shows that they were durable (B4)."""
        scan = self._scan(opened, self.bases[-1], OFFSET_LIMIT)
        if scan.durable_end > tail.offset:
            is_open = scan.damages[-1].end_offset is None
            tail.position = scan.damages[-1].start if is_open else scan.file_bytes
            tail.offset, tail.epoch = scan.end_offset, max(tail.epoch, scan.epoch)

    def blocks(self, start: int, end: int) -> Iterator[list[Block]]:
        """Blocks that reach into [start, end), some at a time, as far as the segments go. Raises `DamagedRange` where
        one is missing, and after that can be called again behind it."""
        expected = start
        first = max(0, bisect_right(self.bases, start) - 1)
        for base, following in zip_longest(self.bases[first:], self.bases[first + 1 :]):
            if expected >= end or base >= end:
                return
            if base > expected:
                raise DamagedRange(start=expected, end=min(base, end), problem="the segment that held them is missing")
            stop = end if following is None else min(end, following)
            for run in self._segment(base, expected, stop, newest=following is None):
                yield run
                expected = run[-1].end
            if following is not None and expected < stop:
                raise DamagedRange(start=expected, end=stop, problem=f"{segment_name(base)} ends before them")

    def _segment(self, base: int, start: int, stop: int, *, newest: bool) -> Iterator[list[Block]]:
        path = self._path(base)
        try:
            opened = _Opened(self._disk, path)
        except FileMissing:
            raise DamagedRange(start=start, end=stop, problem=f"{segment_name(base)} was removed meanwhile") from None
        with opened:
            window = FileWindow(opened.file, opened.size, chunk_bytes=READ_BYTES)
            position, expected = self._place(window, path, base, start)
            run: list[Block] = []
            run_bytes = 0
            while position < opened.size and expected < stop:
                try:
                    data = window.block_bytes(position, DEFAULT_LIMITS)
                    # Blocks before the wanted one are stepped over by their head alone.
                    maker, leader, windows = parse_head(data)
                    if leader.base_offset != expected or leader.channel_id != self.channel_id:
                        raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
                    end = expected + counted_records(maker, windows)
                    if end > start:
                        if maker.kind == BlockKind.MISSING:
                            raise _Missing(end=end)
                        run.append(Block.with_head(data, maker, leader, windows))
                        run_bytes += run[-1].size
                except (BadBlock, _Missing) as error:
                    if run:
                        yield run
                    raise self._damage(opened, base, max(start, expected), stop, newest, error) from error
                position += HEAD_BYTES + WINDOW_BYTES * len(windows) + maker.padded_bytes
                expected = end
                if run_bytes >= READ_BYTES:
                    yield run
                    run, run_bytes = [], 0
            if run:
                yield run

    def _place(self, window: FileWindow, path: str, base: int, start: int) -> tuple[int, int]:
        """Where to begin reading for `start`: by the index if it is right, else at the first block."""
        behind_damage = self._behind_damage.get((base, start))
        if behind_damage is not None:
            return behind_damage, start
        found = self._indexed(window, path, base, start) if start > base else None
        return (SEGMENT_HEAD_BYTES, base) if found is None else found[:2]

    def _indexed(self, window: FileWindow, path: str, base: int, start: int) -> tuple[int, int, SegmentIndex] | None:
        """Position and offset of a block at or before `start`, if there is an index and it is right."""
        index = self._index(path)
        if index is None or index.base_offset != base or not index.entry_positions:
            return None
        entry = index.entry_before(start)
        position, offset = index.entry_positions[entry], index.entry_offsets[entry]
        try:
            _, leader, _ = parse_head(window.block_bytes(position, DEFAULT_LIMITS))
        except BadBlock:
            return None  # damage, or an old index: reading from the first block on shows which
        is_so = leader.base_offset == offset and leader.channel_id == self.channel_id
        return (position, offset, index) if is_so else None

    def _index(self, path: str) -> SegmentIndex | None:
        try:
            with _Opened(self._disk, path + INDEX_SUFFIX) as opened:
                return SegmentIndex.unpack(opened.file.read_at(0, opened.size))
        except FileMissing:
            return None

    def _damage(
        self, opened: _Opened, base: int, start: int, stop: int, newest: bool, error: BadBlock | _Missing
    ) -> DamagedRange:
        """From `start` to the next good block, or to where the segment should reach."""
        if isinstance(error, _Missing):
            return DamagedRange(start=start, end=min(error.end, stop), problem="they were lost before, and quarantined")
        limit = OFFSET_LIMIT if newest else self.bases[self.bases.index(base) + 1]
        scan = self._scan(opened, base, limit)
        end = stop
        for part in scan.damages:
            if part.end_offset is not None and start < part.end_offset <= stop:
                end = part.end_offset
                self._behind_damage[(base, end)] = part.end
                break
        return DamagedRange(start=start, end=end, problem=f"{segment_name(base)}: {error.problem}")

    def _scan(self, opened: _Opened, base: int, offset_limit: int) -> Scan:
        return scan_segment(
            opened.file,
            channel_id=self.channel_id,
            base_offset=base,
            interval_bytes=_INTERVAL_BYTES,
            limits=DEFAULT_LIMITS,
            offset_limit=offset_limit,
        )

    def _whole_block(self, window: FileWindow, position: int, expected: int) -> Block:
        block = Block.parse(window.block_bytes(position, DEFAULT_LIMITS))
        if block.leader.base_offset != expected or block.leader.channel_id != self.channel_id or not block.counted:
            raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
        return block

    def _first_channel_id(self) -> int:
        for base in self.bases:
            with _Opened(self._disk, self._path(base)) as opened:
                head = SegmentHead.unpack(opened.file.read_at(0, SEGMENT_HEAD_BYTES))
                if head is not None:
                    return head.channel_id
        return 0

    def _path(self, base: int) -> str:
        return _join(self._segment_folder, segment_name(base))


class _Missing(Exception):
    """A placeholder stands here."""

    def __init__(self, *, end: int) -> None:
        super().__init__()
        self.end = end


class _Opened:
    """One file, open for reading, and its size at that moment."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.file = disk.open(path, writable=False)
        self.size = self.file.size()

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def _head_epoch(opened: _Opened) -> int:
    head = SegmentHead.unpack(opened.file.read_at(0, SEGMENT_HEAD_BYTES))
    return head.epoch if head is not None else 0


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
