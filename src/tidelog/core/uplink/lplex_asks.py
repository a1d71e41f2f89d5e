"""What the cloud asks of a boat without lineages (lplex), and what it has learned from the answers.

An lplex boat says only its head. It counts from 1 again after every restart and keeps the files of the runs before, so
the same seqs may be those of another run. It serves Live from its ring, goes once through its files for the holes that
the Handshake named, and leaves Live when it is more than its largest lag behind.

Nothing here does I/O. All of it is in memory: after a change of leader the boat is asked anew.

LA1  Live is asked from a few frames before the end of what is held, wherever the ring reaches: they show whether the
     run goes on, and what the boat has not written to its files yet comes along. Where it reaches the first seq that is
     missing, it is asked from there.
LA2  Where the boat would leave for its lag, that is done once, for the proof; then Live is asked from nearer the head.
LA3  Where the ring does not reach, only the block at the end of what is held is asked for first: a later run has
     another one there.
LA4  Holes that are left are asked for again in a later session, at growing distances: the boat hears of them in a
     Handshake only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.fold import ChannelFold, LineageFold

OVERLAP_FRAMES: Final = 16
"""Held frames that Live is asked for again: the proof that the run goes on."""
_SURE_MS: Final = 60_000
"""No boat restarts and counts past what is known of it, by more than its largest lag, in so little time."""
_TAIL_SEQS: Final = 2**31
"""Of an older run nobody knows where it ended."""
_SILENT_SESSIONS: Final = 2
_SILENT_SESSIONS_NO_JOURNAL: Final = 5
"""Sessions without a frame on Live until the ring is believed to be smaller. What a boat without a journal is not asked
for is lost, so there it takes more of them."""
_AGAIN_SOON_MS: Final = 1_000
_AGAIN_FIRST_MS: Final = 60_000
_AGAIN_MAX_MS: Final = 960_000
_PASSES_BEFORE_CLOSED: Final = 2
_PROBE_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class OlderAsked:
    """What the Handshake named of an older lineage."""

    seqs: RangeSet
    is_whole: bool
    """All that it lacks."""


@dataclass(slots=True)
class LplexAsks:
    ring_frames: int
    max_live_lag: int
    reach: int = -1
    """How far back the boat's ring is believed to serve Live."""
    credit: int = 0
    """Frames that were asked for on Live and have not come: the rate limit is not for them."""
    probe: range | None = None
    """Only the block with this seq was asked for, to see whose it is (LA3)."""
    older: dict[bytes, OlderAsked] = field(default_factory=dict)
    """What was asked for in this session of older lineages."""
    undecided: bool = False
    """A block came of which nobody can tell the run yet: this pass counts for nothing."""
    looked: set[bytes] = field(default_factory=set)
    """Lineages for which the boat has shown how its runs begin."""
    again_at_ms: int | None = None
    """When this session is to end so that the boat hears of the holes that are left (LA4)."""
    _probe_until_ms: int = 0
    _start: int = 1
    _depth: int = 0
    _silent: int = 0
    _sure: tuple[bytes, int, int] | None = None
    _again_wait_ms: int = _AGAIN_FIRST_MS
    _brought: set[bytes] = field(default_factory=set)
    _passes: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reach = self.ring_frames

    @property
    def believes_files(self) -> bool:
        """Nothing is asked of a ring, and blocks are of the run that speaks unless something shows otherwise: as
        lplex's own cloud does."""
        return not self.ring_frames

    # --- the Handshake ---------------------------------------------------------------------------

    def open(
        self, lineage: bytes, fold: LineageFold, head: int, *, has_journal: bool, live_came: bool, now_ms: int
    ) -> int:
        """A session begins: the seq from which Live is asked."""
        self._learn_reach(has_journal=has_journal, live_came=live_came)
        self.undecided, self.again_at_ms, self.probe = False, None, None
        self.older.clear()
        self._brought.clear()
        newest = max(1, head)
        if self.believes_files:
            self._start, self._depth, self.credit, self._sure = newest, 0, 0, None
            self.looked.add(lineage)
            return newest
        wanted = min(newest, max(1, fold.held.end - OVERLAP_FRAMES))
        reach = min(self.reach, self.max_live_lag)
        if newest - fold.cursor - 1 <= reach:
            wanted = min(wanted, fold.cursor + 1)
        depth = newest - wanted
        is_sure = self._is_sure(lineage, head, now_ms)
        start = wanted
        self._sure = None
        if depth > reach:
            if depth <= self.reach and not is_sure:
                self._sure = lineage, head, now_ms  # LA2
            else:
                start = max(1, newest - reach)
                if not is_sure and has_journal:
                    at = max(1, fold.held.end)
                    self.probe = range(at, at + 1)
                    self._probe_until_ms = now_ms + _PROBE_MS if fold.held else 0
        self._start, self._depth = start, newest - start
        self.credit = newest + 1 - start
        return start

    def _learn_reach(self, *, has_journal: bool, live_came: bool) -> None:
        if live_came or not self._depth:
            self._silent = 0
            if self._depth:
                self.reach = min(self.ring_frames, 2 * self.reach)
            return
        self._silent += 1
        if self._silent >= (_SILENT_SESSIONS if has_journal else _SILENT_SESSIONS_NO_JOURNAL):
            self._silent, self.reach = 0, max(self._depth // 4, OVERLAP_FRAMES)

    def _is_sure(self, lineage: bytes, head: int, now_ms: int) -> bool:
        if self._sure is None:
            return False
        known, known_head, at_ms = self._sure
        return known == lineage and head >= known_head and now_ms - at_ms <= _SURE_MS

    def holes_named(self, holes: tuple[range, ...], fold: ChannelFold, *, has_journal: bool, count: int) -> list[range]:
        """What the Handshake names: the holes given, and what older runs lack that the boat's files may hold."""
        if self.probe is not None:
            return [self.probe]
        named = RangeSet(range(hole.start, min(hole.stop, self._start)) for hole in holes if hole.start < self._start)
        left = count
        for lineage in reversed(fold.lineages) if has_journal else ():
            known = fold.lineages[lineage]
            if lineage == fold.current or known.closed or known.life or not known.held or left <= 0:
                continue
            missing = known.newest_holes(count + 1)
            parts = [*missing[-count:], range(known.head + 1, known.head + 1 + _TAIL_SEQS)]
            self.older[lineage] = OlderAsked(RangeSet(parts), is_whole=len(missing) <= count)
            for part in parts:
                named.add(part)
            left -= len(parts)
        return list(named)

    # --- what comes ------------------------------------------------------------------------------

    def leaves_live_out(self, now_ms: int) -> bool:
        """Whether nobody knows yet if Live goes on with the lineage that is held (LA3)."""
        return self.probe is not None and now_ms < self._probe_until_ms

    def take_credit(self, frames: int) -> int:
        """How many of these frames the rate limit is for."""
        free = min(frames, self.credit)
        self.credit -= free
        return frames - free

    def brought(self, lineage: bytes) -> None:
        """Something of an older run came that was missing."""
        self._brought.add(lineage)

    def come_again(self, now_ms: int) -> None:
        """The boat has to hear of something soon."""
        self.again_at_ms = min(self.again_at_ms or now_ms + _AGAIN_SOON_MS, now_ms + _AGAIN_SOON_MS)

    def pass_ended(self, lineage: bytes, head: int, *, holes_left: bool, now_ms: int) -> list[tuple[bytes, OlderAsked]]:
        """The boat went through its files once. What was asked for of older lineages, and is not to be expected."""
        if self.probe is not None or self.undecided:
            self.looked.add(lineage)
            self._sure = lineage, head, now_ms
            self.come_again(now_ms)
            return []
        done = []
        for older, asked in self.older.items():
            self._passes[older] = 0 if older in self._brought else self._passes.get(older, 0) + 1
            if self._passes[older] >= _PASSES_BEFORE_CLOSED:
                self._passes[older] = 0
                done.append((older, asked))
        if holes_left or sum(asked.is_whole for _, asked in done) < len(self.older):
            if self.again_at_ms is None:
                self.again_at_ms = now_ms + self._again_wait_ms
            self._again_wait_ms = min(2 * self._again_wait_ms, _AGAIN_MAX_MS)
        else:
            self._again_wait_ms = _AGAIN_FIRST_MS
        return done

    def restarted(self, now_ms: int) -> None:
        """A new lineage began within the session: nothing that was asked for is known to be of it."""
        self.older.clear()
        self.probe = None
        self.come_again(now_ms)
