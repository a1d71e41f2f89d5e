"""Frames of an older lineage that the cluster never got, recorded again in the current one.

A journal that had to start a new lineage (a cloned card, a lost meta file) may hold frames of the old one that exist
nowhere else. Their seqs may belong to other frames in the cluster, so they get new seqs, with their own times and
content, a block at a time.

What a caller must keep: call `step` from time to time, and put what it returns into the ring; one `ReRecording` per
journal, made right after it was opened.

JC1  A frame is re-recorded once, whatever happens: the old and new seqs of a step are written down before they are
     used, and after a crash the journal itself shows how many of them were.
JC2  The old frames stay until they are durable under their new numbers; then retention may have them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.blocks.columns import FrameColumns
from tidelog.edge.journal.journal import Journal
from tidelog.edge.journal.recorded import recorded_runs
from tidelog.edge.journal.ring import Row

FRAMES_MAX = 400
_KEPT = "carry"


@dataclass(frozen=True, slots=True)
class ReRecordStep:
    """Old seqs that are recorded again, from `new_start` on."""

    old_lineage: bytes
    old_seqs: range
    new_lineage: bytes
    new_start: int


class ReRecording:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._exhausted: set[bytes] = set()
        self._open = _read_step(journal)
        self._settle()

    @property
    def pending(self) -> bool:
        return self._open is not None or bool(self._older())

    def _older(self) -> list[bytes]:
        """Older lineages that may have frames left, and of which it is known what the cluster has."""
        journal = self._journal
        if len(journal.lineages()) == 1:
            return []
        done = {journal.lineage, *self._exhausted, *journal.orphans}
        return [lineage for lineage in journal.lineages() if lineage not in done]

    def step(self, now_us: int, *, frames_max: int = FRAMES_MAX) -> tuple[range, FrameColumns] | None:
        """Record some old frames again; their new seqs and content, or None when there are none left.

        Raises the journal's error when the disk refuses; frames already taken are then in memory, and still safe in
        their old form.
        """
        journal = self._journal
        if self._open is not None:
            journal.flush(now_us)
            self._settle()
        for lineage in self._older():
            found = self._next(lineage, min(frames_max, FRAMES_MAX))
            if found is None:
                self._exhausted.add(lineage)
                continue
            old_seqs, frames = found
            journal.flush(now_us)
            step = ReRecordStep(lineage, old_seqs, journal.lineage, journal.head + 1)
            journal.keep(_KEPT, _to_kept(step))
            self._open = step
            new_seqs = journal.record_many(frames, now_us)
            if journal.durable_head >= new_seqs[-1]:
                self._settle()
            return new_seqs, frames
        if journal.kept.get(_KEPT):
            journal.keep(_KEPT, None)
        return None

    def _settle(self) -> None:
        """Release the old frames of the open step (JC2). Frames that a power cut took are re-recorded again: their new
        seqs are void.

        Compared by content: when the disk refused the step, frames of the bus may have got the new seqs.
        """
        step, self._open = self._open, None
        if step is None:
            return
        old = self._rows(step.old_lineage, step.old_seqs)
        new = self._rows(step.new_lineage, range(step.new_start, step.new_start + len(step.old_seqs)))
        carried = 0
        for place, seq in enumerate(step.old_seqs):
            if seq not in old or old[seq] != new.get(step.new_start + place):
                break
            carried += 1
        if carried:
            self._journal.acknowledge(step.old_seqs[carried - 1], step.old_lineage)

    def _rows(self, lineage: bytes, seqs: range) -> dict[int, Row]:
        rows: dict[int, Row] = {}
        for start, frames in recorded_runs(self._journal, lineage, from_seq=seqs.start, before_seq=seqs.stop):
            rows.update(enumerate(frames.rows(), start))
        return rows

    def _next(self, lineage: bytes, frames_max: int) -> tuple[range, FrameColumns] | None:
        unacked = recorded_runs(self._journal, lineage, from_seq=self._journal.acked_of(lineage) + 1)
        start, frames = next(unacked, (0, None))
        if frames is None:
            return None
        frames = frames.slice(0, min(frames_max, len(frames)))
        return range(start, start + len(frames)), frames


def _to_kept(step: ReRecordStep) -> list[str | int]:
    return [step.old_lineage.hex(), step.old_seqs.start, step.old_seqs.stop, step.new_lineage.hex(), step.new_start]


def _read_step(journal: Journal) -> ReRecordStep | None:
    kept = journal.kept.get(_KEPT)
    if not kept:
        return None
    old_lineage, start, stop, new_lineage, new_start = kept
    return ReRecordStep(bytes.fromhex(old_lineage), range(start, stop), bytes.fromhex(new_lineage), new_start)
