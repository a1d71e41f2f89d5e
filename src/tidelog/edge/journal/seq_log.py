"""A boat's frames by seq: the newest from the ring, older ones from the journal.

What a caller must keep: each reader has its own; it is called by the journal's driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal.journal import Journal
from tidelog.edge.journal.ring import Ring
from tidelog.errors import LogError

FRAME_KINDS: Final = (BlockKind.FRAMES, BlockKind.FOREIGN)


@dataclass(frozen=True, slots=True)
class JournalFrames:
    """Frames of the journal with consecutive seqs from `base_seq` on."""

    base_seq: int
    frames: FrameColumns

    @property
    def end_seq(self) -> int:
        """One past the last seq."""
        return self.base_seq + len(self.frames)

    def from_seq(self, seq: int) -> JournalFrames:
        start = max(0, seq - self.base_seq)
        return JournalFrames(self.base_seq + start, self.frames.slice(start, len(self.frames)))


class JournalSeqs:
    def __init__(self, journal: Journal, ring: Ring | None) -> None:
        self._journal = journal
        self._ring = ring
        self._held: JournalFrames | None = None
        """The block that was read last, as columns: callers ask for it in pieces."""
        self._held_lineage = b""
        self._blocks: Iterator[Block] | None = None
        self._blocks_at = (b"", 0)
        """Where `_blocks` goes on: finding a place costs more than reading on."""

    @property
    def head(self) -> int:
        return self._journal.head

    @property
    def lineage(self) -> bytes:
        return self._journal.lineage

    def read(self, seq: int) -> JournalFrames | None:
        """Frames from `seq` on, or from the next one that is held; None if none is, or cannot be read yet."""
        if seq > self.head:
            return None
        if (recent := self._recent(seq)) is not None:
            return recent
        held = self._held
        if held is None or self._held_lineage != self.lineage or not self._reaches(held, seq):
            held = self._held = self._from_journal(seq)
            self._held_lineage = self.lineage
        if held is not None:
            return held.from_seq(seq)
        # Frames that the journal has not written yet are in the ring, unless that is smaller than a second of frames.
        start = self._ring.seqs.start if self._ring is not None else 0
        return self._recent(start) if start > seq else None

    def _recent(self, seq: int) -> JournalFrames | None:
        if self._ring is None or seq not in self._ring.seqs:
            return None
        frames = self._ring.frames(range(seq, min(self._ring.seqs.stop, self.head + 1)))
        return JournalFrames(seq, frames) if frames is not None and len(frames) else None

    @staticmethod
    def _reaches(held: JournalFrames, seq: int) -> bool:
        return held.base_seq <= seq < held.end_seq

    def _from_journal(self, seq: int) -> JournalFrames | None:
        if seq > self._journal.durable_head:
            return None
        if self._blocks is None or self._blocks_at != (self.lineage, seq):
            self._blocks = self._journal.blocks(from_seq=seq, producer=self.lineage, skip_damaged=True)
        try:
            for block in self._blocks:
                if block.maker.kind not in FRAME_KINDS:
                    continue
                found = JournalFrames(block.maker.base_seq, counted_frames(block))
                if found.end_seq > seq:
                    self._blocks_at = (self.lineage, found.end_seq)
                    return found
        except LogError:
            pass  # sealing or retention was faster than this reader: the next look finds the place anew
        self._blocks = None
        return None


def last_frames(journal: Journal, ring: Ring | None, count: int) -> Iterator[JournalFrames]:
    """The newest `count` frames, oldest first."""
    log = JournalSeqs(journal, ring)
    seq, head = max(1, log.head - count + 1), log.head
    while seq <= head and (found := log.read(seq)) is not None:
        frames = found.frames.slice(0, min(len(found.frames), head + 1 - found.base_seq))
        yield JournalFrames(found.base_seq, frames)
        seq = found.base_seq + len(frames)
