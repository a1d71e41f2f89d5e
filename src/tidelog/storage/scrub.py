"""Reading everything again, slowly: finds bit rot before a reader or a failover needs the bytes.

A core in the house shape: `wake(now_ms)` verifies as many bytes as the rate allows since the last
call, `wake_at_ms` says when to call next. Damage becomes placeholders right away.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.errors import BadBlock
from tidelog.storage import repair
from tidelog.storage.log import Log, Segment
from tidelog.storage.segment import SEGMENT_HEAD_BYTES, FileWindow, SegmentHead
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
        self._next_offset = log.log_start
        self._bytes_checked = 0
        self._passes = 0
        self._heads_repaired = 0
        self._damaged: list[range] = []

    def statistics(self) -> ScrubStatistics:
        return ScrubStatistics(
            bytes_checked=self._bytes_checked,
            passes=self._passes,
            heads_repaired=self._heads_repaired,
            damaged=tuple(self._damaged),
        )

    def wake(self, now_ms: int) -> list[range]:
        """Check what the rate allows; returns the offsets found damaged in this call."""
        elapsed_ms = _STEP_MS if self._last_ms is None else min(now_ms - self._last_ms, 10 * _STEP_MS)
        self._last_ms = now_ms
        return self.check(max(0, elapsed_ms) * self._bytes_per_s // 1000)

    def wake_at_ms(self) -> int:
        return (self._last_ms or 0) + _STEP_MS

    def check_all(self) -> list[range]:
        """One whole pass, now."""
        self._next_offset = self._log.log_start
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
                offset = max(self._next_offset, log.log_start)
                if offset >= log.written_end:
                    self._next_offset = log.log_start
                    self._passes += 1
                    return found
                segment = log.segment_of(offset)
                # Holding the mutex for one piece keeps truncation and rewriting out of the way.
                checked, damaged = self._check_piece(segment, offset, min(budget_bytes, 1 * MIB))
            budget_bytes -= max(checked, 1)
            self._bytes_checked += checked
            found += damaged
            self._damaged += damaged
        return found

    def _check_piece(self, segment: Segment, offset: int, piece_bytes: int) -> tuple[int, list[range]]:
        log, index = self._log, segment.index
        limits = log.options.limits
        position = index.entry_positions[index.entry_before(offset)]
        start = position
        try:
            with log.files.use(segment.path) as file:
                if position == SEGMENT_HEAD_BYTES:
                    self._check_head(segment, file.read_at(0, SEGMENT_HEAD_BYTES))
                window = FileWindow(file, index.size, chunk_bytes=piece_bytes)
                while position < index.size and position - start < piece_bytes:
                    block = Block.parse(window.block_bytes(position, limits), 0, limits)
                    position += block.size
                    self._next_offset = block.offsets.stop
        except BadBlock:
            return position - start, repair.quarantine_segment(log, segment)
        return position - start, []

    def _check_head(self, segment: Segment, data: bytes) -> None:
        head = SegmentHead.unpack(data)
        if head is None or head.base_offset != segment.base_offset or head.channel_id != self._log.channel_id:
            repair.rewrite_segment(self._log, segment, [range(SEGMENT_HEAD_BYTES, segment.index.size)])
            self._heads_repaired += 1
