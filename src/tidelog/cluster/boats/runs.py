"""Finds the run of an lplex boat that a block of its files belongs to.

lplex counts from 1 again after every restart and keeps its old files. When asked for missing seqs of the current run,
it sends every block with such seqs, of any run. The protocol does not name the run, so it is found by content and time.

RU1  A block that has other frames, by id and payload, than a lineage under any common seq does not belong to it. Times
     are not compared for that: after a step back of the clock the times in lplex's journal are too late. Where
     retention deleted the held frames, the oldest and newest time of the lineage are compared with that of the first
     frame.
RU2  Equal ids and payloads alone do not assign a block to a lineage, since a steady bus sends the same in every run:
     its times must be the held ones, or later by steps that only grow from its first frame on, whose time is right. A
     lineage with equal times is preferred to one whose times differ.
RU3  Where nothing overlaps, times decide: in one run they rise with the seqs, and runs follow each other. Where a
     lineage's own times go back, they decide nothing.
RU4  Blocks that continue each other in one pass belong to one run: lplex goes through its files in the order of time,
     and a later run begins at or below the end of the one before it. Its beginning is known only to lie between the two
     blocks that show it.
RU5  Two blocks of one session that share a seq, and no time, are of two runs. This tells blocks apart from those that
     are on their way into the log, and cannot be compared yet.
RU6  A block whose run is not known yet is not taken.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.header import BlockLimits
from tidelog.core.uplink.receiver import UplinkReceiver

_STORED_COMPARED_MAX: Final = 64
"""How many stored blocks are read for one comparison: live ones may be of one frame each."""
_REMEMBERED_MAX: Final = 4_096

Held: TypeAlias = Callable[[bytes, int], Block | None]
"""The committed block of a lineage in which this seq counts, if it can be read."""


class Verdict(Enum):
    """The run of a block that belongs to no known lineage."""

    UNDECIDED = "undecided"
    """The run is not known yet (RU6)."""
    UNSEEN = "unseen"
    """An older run that is not known here: it gets a lineage of its own."""
    RESTARTED = "restarted"
    """A later run than the current lineage: the boat has restarted unnoticed."""


class Match(Enum):
    NOTHING = "nothing"
    SAME = "same"
    LATE = "late"
    """The same frames, if the times of lplex's journal are too late."""
    OLDER = "older"
    NEWER = "newer"


class _Found(NamedTuple):
    """A block that came: the seqs that it should hold, its times, and the frames that could be read."""

    seqs: range
    first_us: int
    last_us: int
    frames: FrameColumns | None

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.seqs.start, self.seqs.stop, self.first_us, self.last_us


class RunJudge:
    """The run finder of one channel. Its memory is only a cache: everything needed is in the log."""

    def __init__(self, *, receiver: UplinkReceiver[MadeBlock], held: Held, limits: BlockLimits) -> None:
        self._receiver = receiver
        self._held = held
        self._limits = limits
        self._live: tuple[int, int] | None = None
        """Seq and time of the first frame that came by Live in this session."""
        self._last: tuple[_Found, bytes | Verdict] | None = None
        self._began_us: set[tuple[int, int]] = set()
        """A run began after the first of these times, and at or before the second."""
        self._sent: dict[bytes, list[tuple[int, int, int, int]]] = {}
        """By lineage, the seqs and times of the blocks that this session's passes brought, by seq (RU5)."""
        self._placed: dict[tuple[int, int, int, int], bytes] = {}
        """The lineages of blocks that may not be committed yet: lplex sends a block once for every hole that it
        touches."""
        self._undecided: set[tuple[int, int, int, int]] = set()
        self._waited: set[tuple[int, int, int, int]] = set()
        """Blocks that could not be assigned in a pass that has ended: everything sent beside them has been seen."""
        self._times: dict[tuple[bytes, int], int | None] = {}

    def session_opened(self) -> None:
        self._live = self._last = None
        self._placed.clear()
        self._sent.clear()
        self._undecided.clear()

    def pass_ended(self) -> None:
        """The boat went once through its files."""
        if len(self._waited) >= _REMEMBERED_MAX:
            self._waited.clear()
        self._waited |= self._undecided

    # --- Live ------------------------------------------------------------------------------------

    def is_later_run(self, frames: FrameColumns, seqs: range) -> bool:
        """Whether Live frames show that the boat has restarted since it sent the held frames with their seqs."""
        lineage, is_compared = self._receiver.lineage or b"", False
        for _, ours, theirs in self._pairs(lineage, frames, seqs):
            # Held times may be late (RU1), never early.
            if not is_same_content(ours, theirs) or bool(np.any(theirs.times_us > ours.times_us)):
                return True
            is_compared = True
        return self._match_times(lineage, frames, seqs) is Match.NEWER or (
            not is_compared and self._comes_before_and_is_later(lineage, frames, seqs)
        )

    def _comes_before_and_is_later(self, lineage: bytes, frames: FrameColumns, seqs: range) -> bool:
        """RU3: frames whose seqs come before some that are held, and whose times come after all that are held. A step
        back of the clock within one run shows the same; two lineages of one run do less harm than two runs in one."""
        span_us = self._span(lineage)
        if span_us is None or seqs.start >= self._receiver.held_of(lineage).end or not len(frames):
            return False
        return int(frames.times_us[0]) > span_us[1]

    def live_came(self, frames: FrameColumns, seqs: range) -> None:
        if self._live is None and len(frames):
            self._live = seqs.start, int(frames.times_us[0])

    def restarted(self) -> None:
        """A new lineage is current from here on: what was learned in this session was about the one before."""
        self._live = None

    # --- Backfill --------------------------------------------------------------------------------

    def home(self, frames: FrameColumns | None, seqs: range, *, first_us: int, last_us: int) -> bytes | Verdict:
        """The lineage of these frames, or why none can be named."""
        found = _Found(seqs, first_us, last_us, frames)
        key = found.key
        home = self._placed.get(key) or self._judge(found)
        if isinstance(home, bytes):
            self.placed(key, home)
        elif home is not Verdict.UNSEEN and len(self._undecided) < _REMEMBERED_MAX:
            self._undecided.add(key)
        # A restart is seen once; blocks that continue this one belong to the same run, which is not known yet.
        self._last = found, Verdict.UNDECIDED if home is Verdict.RESTARTED else home
        if home is Verdict.UNDECIDED and self._is_shown_by_live(found):
            self._last = None  # blocks that continue it can be assigned as soon as Live comes
        return home

    def placed(self, key: tuple[int, int, int, int], lineage: bytes) -> None:
        """A block with these seqs and times was assigned to this lineage."""
        if len(self._placed) >= _REMEMBERED_MAX:
            self._placed.clear()
            self._sent.clear()
        if key not in self._placed:
            insort(self._sent.setdefault(lineage, []), key)
        self._placed[key] = lineage
        if self._last is not None and isinstance(self._last[1], Verdict):
            self._last = self._last[0], lineage

    def _judge(self, found: _Found) -> bytes | Verdict:
        current = self._receiver.lineage or b""
        excluded = self._note_run_change(found)
        match = self._match(current, found)
        if match is Match.SAME:
            return current
        matches = {lineage: self._match(lineage, found) for _, lineage in self._older_lineages(current)}
        matches.pop(excluded or b"", None)
        if (same := self._same(current, match, matches)) is not None:
            return same
        continued = self._continued(found)
        if isinstance(continued, bytes) and {**matches, current: match}.get(continued, Match.NOTHING) is Match.NOTHING:
            return continued
        if match is Match.NOTHING:
            if isinstance(continued, Verdict):
                return continued
            fits = self._fits_current(current, found, matches)
            if fits is None:
                return Verdict.UNDECIDED
            if fits:
                return current
        # Lineages with other frames under these seqs are excluded.
        possible = [item for item in self._older_lineages(current) if matches.get(item[1]) is Match.NOTHING]
        if (older := _within(possible, found)) is not None:
            return older
        if match is Match.NEWER:
            return Verdict.RESTARTED
        return self._tail_of(possible, found) or self._start_of(possible, found) or Verdict.UNSEEN

    @staticmethod
    def _same(current: bytes, match: Match, matches: dict[bytes, Match]) -> bytes | None:
        """The lineage that has these frames (RU2)."""
        exact = next((lineage for lineage, other in matches.items() if other is Match.SAME), None)
        if exact is not None:
            return exact
        if match is Match.LATE:
            return current
        return next((lineage for lineage, other in matches.items() if other is Match.LATE), None)

    def _note_run_change(self, found: _Found) -> bytes | None:
        """RU4: the lineage that this block cannot belong to, since a later run has begun in this pass."""
        if found.seqs.start == 1:
            self._note_beginning(found.first_us - 1, found.first_us)
        if self._last is None:
            return None
        before, home = self._last
        is_again = found.seqs == before.seqs and found.first_us == before.first_us
        if found.seqs.start >= before.seqs.stop or found.first_us < before.last_us or is_again:
            return None
        self._note_beginning(before.last_us, found.first_us)
        return home if isinstance(home, bytes) else None

    def _note_beginning(self, after_us: int, by_us: int) -> None:
        if any(after_us <= start_us and end_us <= by_us for start_us, end_us in self._began_us):
            return  # a beginning that is known at least as precisely may be the same one
        wider = {(start_us, end_us) for start_us, end_us in self._began_us if start_us <= after_us and by_us <= end_us}
        self._began_us -= wider
        if len(self._began_us) >= _REMEMBERED_MAX:
            self._began_us.clear()
        self._began_us.add((after_us, by_us))

    def _has_begun(self, after_us: int, by_us: int) -> bool | None:
        """Whether a run began after the one time and at or before the other; None if that is not certain."""
        if any(after_us <= start_us and end_us <= by_us for start_us, end_us in self._began_us):
            return True
        wide = [(start_us, end_us) for start_us, end_us in self._began_us if start_us < by_us and after_us < end_us]
        known = self._known_beginnings(after_us, by_us) if wide else []
        for start_us, end_us in wide:
            if not any(start_us <= known_us and until_us <= end_us for known_us, until_us in known):
                return None
        return False

    def _lies_between(self, lineage: bytes, after_us: int, by_us: int) -> bool:
        """Whether another lineage has frames between these times: runs follow each other (RU3)."""
        spans_us = (span_us for span_us, other in self._older_lineages(b"") if other != lineage)
        return any(after_us < oldest_us < by_us for oldest_us, _ in spans_us)

    def _known_beginnings(self, after_us: int, by_us: int) -> list[tuple[int, int]]:
        """When the runs of known lineages began, except those outside these times: any of them may be the run that two
        blocks showed."""
        spans_us = sorted(span_us for span_us, _ in self._older_lineages(b""))
        between = [(before[1], after[0]) for before, after in pairwise(spans_us) if before[1] < after[0]]
        return [(start_us, end_us) for start_us, end_us in between if end_us <= after_us or by_us <= start_us]

    def _continued(self, found: _Found) -> bytes | Verdict | None:
        if self._last is None:
            return None
        before, home = self._last
        # Whatever their times, since the clock may have been set back between them; but no run begins within a run.
        if found.seqs.start != before.seqs.stop or self._has_begun(before.last_us, found.first_us):
            return None
        return home

    def _fits_current(self, current: bytes, found: _Found, matches: dict[bytes, Match]) -> bool | None:
        """RU3, for the current lineage; None if it cannot be decided."""
        below, above = self._neighbours(current, found.seqs, self._live)
        if self._is_shown_by_live(found):
            return None
        lineages = self._older_lineages(current)
        possible = [item for item in lineages if matches.get(item[1]) is Match.NOTHING]
        if below is not None and above is not None and below > above:
            return _within(possible, found) is None
        span_us = self._span(current)
        if below is not None:
            # Not only after its neighbour: the clock may have been set back between them, within the run.
            return found.last_us >= (below if span_us is None else min(below, span_us[0]))
        if above is None and span_us is None:
            # A block beyond the boat's head belongs to another run.
            is_beyond = found.seqs.start > self._receiver.head_said
            if self._receiver.lplex.believes_files:
                return not is_beyond
            return False if is_beyond and self._were_beginnings_seen(current, found) else None
        held = self._receiver.appended.lineage(current).held
        if span_us is not None and held.end_before(found.seqs.start):
            return found.last_us >= span_us[0]  # what is held below it is on its way, or trimmed
        if above is None:
            if span_us is None:
                return None
            above = span_us[0]  # it is on its way, or trimmed
        if found.last_us > above:
            return _within(possible, found) is None
        # It precedes everything held of this run, in seqs and in time: so do the blocks of every older one.
        begun = self._has_begun(found.last_us, above)
        if begun or any(found.last_us <= newest_us for (_, newest_us), _ in lineages):
            return False
        return True if begun is False and self._were_beginnings_seen(current, found) else None

    def _is_shown_by_live(self, found: _Found) -> bool:
        """Whether the block is newer than all that is held, and Live will show if that run goes on or a later one
        counted past it."""
        if self._live is not None or not self._receiver.lplex.shows_run:
            return False
        span_us = self._span(self._receiver.lineage or b"")
        return span_us is not None and found.last_us > span_us[1]

    def _were_beginnings_seen(self, current: bytes, found: _Found) -> bool:
        """Whether the boat has sent the blocks of its other runs with these seqs: each later run has such a block, or
        one of seq 1, behind this one. A pass for other seqs shows nothing of a short run."""
        return current in self._receiver.lplex.looked or found.key in self._waited

    def _older_lineages(self, current: bytes) -> list[tuple[tuple[int, int], bytes]]:
        """Oldest and newest time, and name, of each lineage of older runs, the newest first."""
        known = []
        for lineage, fold in self._receiver.appended.lineages.items():
            if lineage != current and not fold.boot_id and fold.held:
                span_us = self._span(lineage)
                if span_us is not None:
                    known.append((span_us, lineage))
        return sorted(known, reverse=True)

    def _tail_of(self, lineages: list[tuple[tuple[int, int], bytes]], found: _Found) -> bytes | Verdict | None:
        """The run before, if the block can be what followed all that is known of it."""
        before = next(((span_us, lineage) for span_us, lineage in lineages if span_us[1] < found.first_us), None)
        if before is None:
            return None
        (_, newest_us), lineage = before
        fold = self._receiver.appended.lineage(lineage)
        begun = self._lies_between(lineage, newest_us, found.first_us) or self._has_begun(newest_us, found.first_us)
        if found.seqs.start < fold.held.end or begun:
            return None
        if found.seqs.start == fold.known_end():
            return lineage
        # It may be of a run between whose first blocks the boat has deleted: nothing can show that.
        return None if found.key in self._waited else Verdict.UNDECIDED

    def _start_of(self, lineages: list[tuple[tuple[int, int], bytes]], found: _Found) -> bytes | Verdict | None:
        """The older run that followed, if the block can precede everything known of it.

        Where a gap lies between, it can also be of a run between the two: then it gets a lineage of its own.
        """
        after = [(span_us, lineage) for span_us, lineage in lineages if span_us[0] > found.last_us]
        if not after:
            return None
        (oldest_us, _), lineage = after[-1]
        held = self._receiver.appended.lineage(lineage).held
        begun = self._lies_between(lineage, found.last_us, oldest_us) or self._has_begun(found.last_us, oldest_us)
        if found.seqs.stop > held.start or begun:
            return None
        if found.seqs.stop == held.start:
            return lineage
        return None if found.key in self._waited else Verdict.UNDECIDED

    # --- what is held ----------------------------------------------------------------------------

    def _match(self, lineage: bytes, found: _Found) -> Match:
        """RU1 and RU2, over all that both have."""
        if found.frames is None:
            return self._match_unread(lineage, found)
        start = found.seqs.start
        if (other := self._match_sent(lineage, found)) is not Match.NOTHING:
            return other
        match, late_before_us = Match.NOTHING, None
        for first, ours, theirs in self._pairs(lineage, found.frames, range(start, start + len(found.frames))):
            late_us = theirs.times_us - ours.times_us
            is_same = is_same_content(ours, theirs) and (first > start or int(late_us[0]) == 0)
            if is_same and not bool(late_us.any()):
                # Possibly of this very block, taken before: then its times are as late, and show nothing about the
                # others.
                match = Match.SAME if match is Match.NOTHING else match
                continue
            limit_us = int(late_us[-1]) if late_before_us is None else late_before_us
            steps_us = np.diff(late_us, append=limit_us)
            if not is_same or bool(np.any(late_us < 0)) or bool(np.any(steps_us < 0)):
                return Match.NEWER if int(late_us[0]) > 0 else Match.OLDER
            match, late_before_us = Match.LATE, int(late_us[0])
        return self._match_times(lineage, found.frames, found.seqs) if match is Match.NOTHING else match

    def _match_sent(self, lineage: bytes, found: _Found) -> Match:
        """RU5."""
        sent = self._sent.get(lineage, [])
        place = bisect_left(sent, (found.seqs.stop,)) - 1
        if place < 0:
            return Match.NOTHING
        _, stop, first_us, last_us = sent[place]
        if stop <= found.seqs.start:
            return Match.NOTHING
        if found.first_us > last_us:
            return Match.NEWER
        return Match.OLDER if found.last_us < first_us else Match.NOTHING

    def _match_times(self, lineage: bytes, frames: FrameColumns, seqs: range) -> Match:
        """RU1, where the held frames cannot be read any more: the first time is right, and runs do not overlap."""
        span_us = self._receiver.appended.lineage(lineage).span_us
        both = self._receiver.held_of(lineage).overlap(range(seqs.start, seqs.start + len(frames)))
        if span_us is None or not both:
            return Match.NOTHING
        place = both[0].start - seqs.start
        time_us = int(frames.times_us[place])
        if time_us > span_us[1]:
            return Match.NOTHING if place else Match.NEWER  # another than the first may be told too late
        return Match.OLDER if time_us < span_us[0] else Match.SAME

    def _match_unread(self, lineage: bytes, found: _Found) -> Match:
        """Nothing of the block could be read but the time of its first frame. Held times may be late, never early."""
        is_held = bool(self._receiver.held_of(lineage).overlap(found.seqs[:1]))
        held_us = self._time_at(lineage, found.seqs.start) if is_held else None
        return Match.NEWER if held_us is not None and found.first_us > held_us else Match.NOTHING

    def _pairs(
        self, lineage: bytes, frames: FrameColumns, seqs: range
    ) -> Iterator[tuple[int, FrameColumns, FrameColumns]]:
        """The first seq, the held frame and the received one, for common seqs, the newest first."""
        left = _STORED_COMPARED_MAX
        for part in reversed(self._receiver.held_of(lineage).overlap(seqs)):
            stop = part.stop
            while stop > part.start and left:
                left -= 1
                stored = self._held(lineage, stop - 1)
                if stored is None:
                    break  # trimmed, or damaged on disk: nothing to compare with
                counted = next(span for span in stored.counted_seqs() if stop - 1 in span)
                both = range(max(counted.start, part.start), stop)
                base = stored.maker.base_seq
                ours = decode_block_frames(stored.made(), self._limits).slice(both.start - base, both.stop - base)
                yield both.start, ours, frames.slice(both.start - seqs.start, both.stop - seqs.start)
                stop = both.start

    def _neighbours(self, lineage: bytes, seqs: range, live: tuple[int, int] | None) -> tuple[int | None, int | None]:
        """Times of the nearest frames of a lineage below and above these seqs."""
        held = self._receiver.held_of(lineage)
        last = min(held.end_before(seqs.start), seqs.start) - 1
        following = held.next_held(seqs.stop)
        below = self._time_at(lineage, last) if last >= 1 else None
        above = self._time_at(lineage, following) if following is not None else None
        if live is not None:
            if live[0] < seqs.start and (below is None or live[0] > last):
                below = live[1]
            if live[0] >= seqs.stop and (above is None or following is None or live[0] < following):
                above = live[1]
        return below, above

    def _span(self, lineage: bytes) -> tuple[int, int] | None:
        """Oldest and newest time of a lineage; older logs do not record them, so their blocks are read."""
        fold = self._receiver.appended.lineage(lineage)
        if fold.span_us is not None or not fold.held:
            return fold.span_us
        held = self._receiver.held_of(lineage)
        oldest, newest = self._time_at(lineage, held.start), self._time_at(lineage, held.end - 1)
        return None if oldest is None or newest is None else (oldest, newest)

    def _time_at(self, lineage: bytes, seq: int) -> int | None:
        key = (lineage, seq)
        if key not in self._times:
            if len(self._times) >= _REMEMBERED_MAX:
                self._times.clear()
            stored = self._held(lineage, seq)
            if stored is None:
                return None
            frames = decode_block_frames(stored.made(), self._limits)
            self._times[key] = int(frames.times_us[seq - stored.maker.base_seq])
        return self._times[key]


def _within(lineages: list[tuple[tuple[int, int], bytes]], found: _Found) -> bytes | None:
    """The lineage whose times the block shares."""
    for (oldest_us, newest_us), lineage in lineages:
        if oldest_us <= found.last_us and found.first_us <= newest_us:
            return lineage
    return None


def is_same_content(ours: FrameColumns, theirs: FrameColumns) -> bool:
    """Ids and payloads; not times (RU1)."""
    return (
        np.array_equal(ours.can_ids, theirs.can_ids)
        and np.array_equal(ours.payload_offsets, theirs.payload_offsets)
        and np.array_equal(ours.payload, theirs.payload)
    )
