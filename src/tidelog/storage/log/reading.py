"""Reading a log: find the place by offset, seq or time, verify every block, stop before damage.

Positions are looked up under the log's mutex; the file is read and checked without it, so a slow disk
does not hold up appends. If a segment was truncated or rewritten meanwhile, its version has changed
and the look-up starts over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from tidelog.blocks.block import Block, counted_records
from tidelog.blocks.header import HEAD_BYTES, WINDOW_BYTES, BlockKind, parse_head
from tidelog.errors import BadBlock, BlockCorrupt, DamagedRange, DiskError, LogClosed, OffsetOutOfRange
from tidelog.storage.log import repair
from tidelog.storage.log.parts import Segment
from tidelog.storage.log.segments import LogSegments
from tidelog.storage.log.span import window_of
from tidelog.units import MIB

READ_BYTES = 1 * MIB


class Search(TypedDict, total=False):
    """The fields of `WantedBlocks`, for functions that pass them on."""

    from_seq: int | None
    before_seq: int | None
    from_time_us: int | None
    before_time_us: int | None
    producer: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBlocks:
    """Which blocks a search is after: those that reach into each range given (B2). Ranges may be open at an end."""

    from_seq: int | None = None
    before_seq: int | None = None
    from_time_us: int | None = None
    before_time_us: int | None = None
    producer: bytes | None = None

    @property
    def by_index(self) -> bool:
        bounds = (self.from_seq, self.before_seq, self.from_time_us, self.before_time_us)
        return any(bound is not None for bound in bounds)

    def matches(self, block: Block) -> bool:
        maker = block.maker
        if self.from_seq is not None and (not maker.base_seq or block.counted_seqs()[-1].stop <= self.from_seq):
            return False
        if self.before_seq is not None and (not maker.base_seq or block.counted_seqs()[0].start >= self.before_seq):
            return False
        if self.from_time_us is not None and maker.time_max_us < self.from_time_us:
            return False
        if self.before_time_us is not None and maker.time_min_us >= self.before_time_us:
            return False
        return self.producer is None or maker.producer == self.producer


def read(log: LogSegments, offset: int, *, bytes_max: int, end: int | None) -> list[Block]:
    while True:
        with log.mutex:
            if log.closed:
                raise LogClosed(log=log.folder)
            if not log.log_start <= offset <= log.log_end:
                raise OffsetOutOfRange(offset=offset, log_start=log.log_start, log_end=log.log_end)
            stop = log.log_end if end is None else min(end, log.log_end)
            if offset >= stop:
                return []
            if offset >= log.written_end:
                return _read_staged(log, offset, bytes_max, stop)
            segment = log.segment_of(offset)
            place = _Place(segment, offset)
        found = _read_segment(log, place, bytes_max, stop)
        if found is not None:
            return found


class _Place:
    """Where to start reading, as it was when the mutex was last held."""

    __slots__ = ("expected", "limit", "offset", "position", "segment", "version")

    def __init__(self, segment: Segment, offset: int) -> None:
        index = segment.index
        self.segment = segment
        self.version = segment.version
        self.offset = offset
        entry = index.entry_before(offset)
        self.position = index.entry_positions[entry]
        self.expected = index.entry_offsets[entry]
        self.limit = index.size


def _read_staged(log: LogSegments, offset: int, bytes_max: int, stop: int) -> list[Block]:
    found: list[Block] = []
    for block in log.staged_blocks():
        if block.leader.base_offset >= stop or bytes_max <= 0:
            break
        if block.offsets.stop > offset:
            if block.maker.kind == BlockKind.MISSING:
                if found:
                    break
                raise DamagedRange(start=offset, end=block.offsets.stop, problem="quarantined")
            found.append(block)
            bytes_max -= block.size
    return found


def _read_segment(log: LogSegments, place: _Place, bytes_max: int, stop: int) -> list[Block] | None:
    """The blocks, or None when the segment changed meanwhile and the caller should look again."""
    limits = log.options.limits
    found: list[Block] = []
    position, expected, budget = place.position, place.expected, bytes_max
    try:
        with log.files.use(place.segment.path) as file:
            chunk_bytes = max(bytes_max, log.options.index_interval_bytes)
            window = window_of(file, position, place.limit, bytes_max=chunk_bytes)
            while position < place.limit and budget > 0:
                data = window.block_bytes(position, limits)
                # Blocks before the wanted one are stepped over by their head alone.
                maker, leader, windows = parse_head(data, limits)
                size = HEAD_BYTES + WINDOW_BYTES * len(windows) + maker.padded_bytes
                if leader.base_offset != expected or leader.channel_id != log.channel_id:
                    raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
                if leader.base_offset >= stop:
                    break
                expected += counted_records(maker, windows)
                if expected > place.offset:
                    if maker.kind == BlockKind.MISSING:
                        break
                    block = Block.with_head(data, maker, leader, windows)
                    block.position = position
                    found.append(block)
                    budget -= size
                position += size
    except (BadBlock, DiskError) as error:
        return _read_failed(log, place, found, error)
    return found or _nothing_there(log, place)


def _nothing_there(log: LogSegments, place: _Place) -> list[Block] | None:
    """The wanted offset is a placeholder's, or the segment changed under the reader."""
    with log.mutex:
        if place.segment.version == place.version and place.segment in log.segments:
            _raise_if_missing(place, "quarantined")
            repair.quarantine_segment(log, place.segment)  # or the index is wrong
        return None


def _raise_if_missing(place: _Place, problem: str) -> None:
    for part in place.segment.index.missing:
        if part.start <= place.offset < part.stop:
            raise DamagedRange(start=place.offset, end=part.stop, problem=problem)


def _read_failed(
    log: LogSegments, place: _Place, found: list[Block], error: BadBlock | DiskError
) -> list[Block] | None:
    with log.mutex:
        if place.segment.version != place.version or place.segment not in log.segments:
            return None
        if isinstance(error, DiskError):
            raise error
        repair.quarantine_segment(log, place.segment)
        if not found:
            _raise_if_missing(place, error.problem)
        # Either something good came before the damage, or a second look found the bytes good.
        return found or None


def blocks(
    log: LogSegments, start: int | None, end: int | None, *, wanted: WantedBlocks, skip_damaged: bool
) -> Iterator[Block]:
    offset = log.log_start if start is None else start
    stop = log.log_end if end is None else min(end, log.log_end)
    while offset < stop:
        if wanted.by_index:
            offset = _next_entry(log, offset, wanted)
            if offset >= stop:
                return
        try:
            found = read(log, offset, bytes_max=READ_BYTES, end=stop)
        except DamagedRange as damage:
            if not skip_damaged:
                raise
            offset = damage.end
            continue
        if not found:
            return  # truncated meanwhile
        yield from filter(wanted.matches, found)
        offset = found[-1].offsets.stop


def _next_entry(log: LogSegments, offset: int, wanted: WantedBlocks) -> int:
    """The next offset at or after `offset` whose index entry may hold what is wanted."""
    with log.mutex:
        offset = max(offset, log.log_start)
        while offset < log.written_end:
            index = log.segment_of(offset).index
            entry = index.first_entry_in(
                index.entry_before(offset),
                seqs=(wanted.from_seq, wanted.before_seq),
                times_us=(wanted.from_time_us, wanted.before_time_us),
            )
            if entry is not None:
                return max(offset, index.entry_offsets[entry])
            offset = index.end_offset
        return offset
