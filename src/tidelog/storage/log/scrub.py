"""Reading everything again, slowly: finds bit rot before a reader or a failover needs the bytes.

A core in the house shape: `wake(now_ms)` verifies as many bytes as the rate allows since the last
call, `wake_at_ms` says when to call next. Damage becomes placeholders right away.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.errors import BadBlock, BlockCorrupt
from tidelog.storage.log import repair
from tidelog.storage.log.log import Log
from tidelog.storage.log.parts import Segment
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, FileWindow, SegmentHead
from tidelog.units import MIB

_STEP_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubStatistics:
    bytes_checked: int
    passes: int
    """Times the scrubber reached the log end and started over."""
    heads_repaired: int
    damaged: tuple[range, ...]


class Scrubber:
    def __init__(self, log: Log, *, bytes_per_s: int = 8 * MIB) -> None:
        assert bytes_per_s > 0
        self._log = log
        self._bytes_per_s = bytes_per_s
        self._last_ms: int | None = None
        self._allowance_bytes = 0
        """Negative after a block larger than the rate allowed: later calls verify less until it is made up for."""
        self._next_offset = log.log_start
        self._place: tuple[Segment, int, int] | None = None
        """Segment, its version and the position of `_next_offset`, while that is known."""
        self._bytes_checked = 0
        self._passes = 0
        self._heads_repaired = 0
        self._damaged: list[range] = []

    @property
    def log(self) -> Log:
        return self._log

    def statistics(self) -> ScrubStatistics:
        return ScrubStatistics(
            bytes_checked=self._bytes_checked,
            passes=self._passes,
            heads_repaired=self._heads_repaired,
            damaged=tuple(self._damaged),
        )

    def wake(self, now_ms: int) -> list[range]:
        """Check what the rate allows; returns the offsets found damaged in this call."""
        elapsed_ms = _STEP_MS if self._last_ms is None else max(0, now_ms - self._last_ms)
        self._last_ms = now_ms
        # Time without calls is not saved up: a burst after a pause would be what the rate is there to prevent.
        earned_bytes = min(elapsed_ms, 10 * _STEP_MS) * self._bytes_per_s // 1000
        self._allowance_bytes = min(self._allowance_bytes, 0) + earned_bytes
        before = self._bytes_checked
        found = self.check(self._allowance_bytes)
        self._allowance_bytes -= self._bytes_checked - before
        return found

    def wake_at_ms(self) -> int:
        return (self._last_ms or 0) + _STEP_MS

    def check_all(self) -> list[range]:
        """One whole pass, now."""
        self._next_offset = self._log.log_start
        self._place = None
        found: list[range] = []
        passes = self._passes
        while self._passes == passes:
            found += self.check(64 * MIB)
        return found

    def check(self, budget_bytes: int) -> list[range]:
        """Verify about `budget_bytes` more of the log."""
        found: list[range] = []
        log = self._log
        while budget_bytes > 0:
            with log.mutex:
                log.check_usable()
                self._next_offset = max(self._next_offset, log.log_start)
                if self._next_offset >= log.written_end:
                    self._next_offset = log.log_start
                    self._place = None
                    self._passes += 1
                    return found
                # Holding the mutex for one piece keeps truncation and rewriting out of the way.
                checked, damaged = self._check_piece(min(budget_bytes, 1 * MIB))
            budget_bytes -= max(checked, 1)
            self._bytes_checked += checked
            found += damaged
            self._damaged += damaged
        return found

    def _check_piece(self, piece_bytes: int) -> tuple[int, list[range]]:
        """Verify the blocks from `_next_offset` on; returns the bytes checked and the offsets found damaged."""
        log = self._log
        segment = log.segment_of(self._next_offset)
        position, offset = self._position_in(segment)
        if position == SEGMENT_HEAD_BYTES:
            damaged = self._check_head(segment)
            if damaged:
                return SEGMENT_HEAD_BYTES, damaged
        index, limits = segment.index, log.options.limits
        start = position
        try:
            with log.files.use(segment.path) as file:
                window = FileWindow(file, index.size, chunk_bytes=piece_bytes)
                while position < index.size and position - start < piece_bytes:
                    block = Block.parse(window.block_bytes(position, limits), 0, limits)
                    if block.leader.base_offset != offset or block.leader.channel_id != log.channel_id:
                        raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
                    position += block.size
                    offset = block.offsets.stop
        except BadBlock:
            return self._quarantine(segment, position - start)
        self._next_offset = offset
        self._place = (segment, segment.version, position)
        return position - start, []

    def _position_in(self, segment: Segment) -> tuple[int, int]:
        """Where to go on: exactly where the last piece ended, or at the index entry before that."""
        if self._place is not None:
            known, version, position = self._place
            if known is segment and version == segment.version and position < segment.index.size:
                return position, self._next_offset
        entry = segment.index.entry_before(self._next_offset)
        return segment.index.entry_positions[entry], segment.index.entry_offsets[entry]

    def _quarantine(self, segment: Segment, checked: int) -> tuple[int, list[range]]:
        self._place = None
        damaged = repair.quarantine_segment(self._log, segment)
        if not damaged:
            # A second look found the bytes good: a bad cable or bad memory. Go on after this segment, or a segment that
            # reads differently each time would stop the scrubber for ever.
            self._next_offset = segment.index.end_offset
        return checked, damaged

    def _check_head(self, segment: Segment) -> list[range]:
        with self._log.files.use(segment.path) as file:
            head = SegmentHead.unpack(file.read_at(0, SEGMENT_HEAD_BYTES))
        if head is not None and head.base_offset == segment.base_offset and head.channel_id == self._log.channel_id:
            return []
        self._heads_repaired += 1
        self._place = None
        # Where the head is damaged, more may be. If not, the blocks are copied under a new head.
        damaged = repair.quarantine_segment(self._log, segment)
        if not damaged:
            repair.rewrite_segment(self._log, segment, [range(SEGMENT_HEAD_BYTES, segment.index.size)])
        return damaged
