"""Requests of the cloud to a boat without lineages (lplex), and what the answers showed.

An lplex boat sends only its head. It counts from 1 again after every restart and keeps the files of the runs before, so
the same seqs may be those of another run. It serves Live from its ring, goes once through its files for the holes that
the Handshake named, and leaves Live when it is more than its largest lag behind.

Nothing here does I/O. All of it is in memory: after a change of leader the boat is asked anew.

LA1  Live is requested from a few frames before the end of what is held, wherever the ring reaches: they show whether
     the run goes on, and frames that the boat has not written to its files yet are included. Where the ring reaches the
     first missing seq, Live is requested from as many frames before that.
LA2  Where the boat would leave Live for its lag, that is done once, for the proof; then Live is requested from nearer
     the head. Without a journal, what is not requested is lost: there it is done for as long as each session comes
     nearer to the head.
LA3  Where the ring does not reach, or the boat may have restarted since the proof and counted past its head of then,
     only the block at the end of what is held is requested first: a later run has another block there.
LA4  Remaining holes are requested again in a later session, at growing intervals: only a Handshake can name them.
LA5  How far behind a boat may be before it leaves Live is a setting of the boat that is not transmitted. A session that
     the boat ended before everything requested came shows that it is less, one that brought everything that it is at
     least as much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.fold import ChannelFold, LineageFold

OVERLAP_FRAMES: Final = 16
"""Held frames that are requested again on Live: they prove that the run goes on."""
_SURE_MS: Final = 60_000
"""A proof that the run goes on is not used for longer than this."""
_TAIL_SEQS: Final = 2**31
"""It is not known where an older run ended."""
_SILENT_SESSIONS: Final = 2
_SILENT_SESSIONS_NO_JOURNAL: Final = 5
"""Sessions without a frame on Live until the ring is assumed to be smaller. Without a journal, frames that are not
requested are lost, so there it takes more of them."""
_EARLY_SESSIONS_NO_JOURNAL: Final = 2
_LAG_GROWS_BY: Final = 8
"""How often a boat is asked for more than its assumed lag: every eighth time."""
_AGAIN_SOON_MS: Final = 1_000
_AGAIN_FIRST_MS: Final = 60_000
_AGAIN_MAX_MS: Final = 960_000
_PASSES_BEFORE_CLOSED: Final = 2
_PROBE_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class OlderAsked:
    """The part of an older lineage that the Handshake named."""

    seqs: RangeSet
    is_whole: bool
    """Everything that the lineage lacks was named."""


class _Proof(NamedTuple):
    """The run was seen to go on: at this time its head was no lower than this."""

    lineage: bytes
    head: int
    at_ms: int
    by_block: bool = False
    """By a block of the boat's files (LA3), not by frames on Live."""


@dataclass(slots=True)
class LplexRequests:
    ring_frames: int
    max_live_lag: int
    bus_frames_per_s: float
    """No run counts faster than this."""
    reach: int = -1
    """How far back the boat's ring is assumed to serve Live."""
    lag: int = -1
    """How far behind its head the boat is assumed to stay on Live; at most the cloud's own limit (LA5)."""
    credit: int = 0
    """Frames that were requested on Live and have not come: they are exempt from the rate limit."""
    probe: range | None = None
    """Only the block with this seq was requested, to see which run it belongs to (LA3)."""
    older: dict[bytes, OlderAsked] = field(default_factory=dict)
    """What was requested in this session of older lineages."""
    shows_run: bool = False
    """Live was requested from before the end of what is held: it shows whether the run goes on (LA1)."""
    undecided: bool = False
    """A block came whose run is not known yet: this pass does not count."""
    left_out: bool = False
    """A block came for which there was no room: its seqs are not lost for that, and are requested later."""
    looked: set[bytes] = field(default_factory=set)
    """Lineages for which the boat has shown how its runs begin: it went through its files for seq 1, which each has."""
    again_at_ms: int | None = None
    """When this session is to end so that the boat gets the remaining holes in a new Handshake (LA4)."""
    _names_all: bool = True
    """The Handshake named something of every older lineage that may lack something."""
    _names_first: bool = False
    """The Handshake named seq 1."""
    _probe_until_ms: int = 0
    _start: int = 1
    _depth: int = 0
    _is_deep: bool = False
    """Live was requested from so far back that the boat leaves for its lag (LA2)."""
    _is_ours: bool = False
    """The cloud ends this session, or must: it shows nothing about the boat's lag."""
    _silent: int = 0
    _early: int = 0
    _proof: _Proof | None = None
    _again_wait_ms: int = _AGAIN_FIRST_MS
    _brought: set[bytes] = field(default_factory=set)
    _passes: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reach = self.ring_frames
        self.lag = self.max_live_lag

    @property
    def believes_files(self) -> bool:
        """Nothing is requested from a ring, and blocks count for the current run unless something shows otherwise: as
        lplex's own cloud does."""
        return not self.ring_frames

    # --- the Handshake ---------------------------------------------------------------------------

    def open(
        self, lineage: bytes, fold: LineageFold, head: int, *, has_journal: bool, live_came: bool, now_ms: int
    ) -> int:
        """A session begins: returns the seq from which Live is requested."""
        self._learn_reach(has_journal=has_journal, live_came=live_came)
        self._learn_lag(has_journal=has_journal, live_came=live_came)
        before, self._is_deep, self._is_ours = self._depth if self._is_deep else 0, False, False
        self.undecided, self.left_out, self.again_at_ms, self.probe = False, False, None, None
        self._names_first, self._names_all, self.shows_run = False, True, False
        self.older.clear()
        self._brought.clear()
        newest = max(1, head)
        if self.believes_files:
            self._start, self._depth, self.credit, self._proof = newest, 0, 0, None
            self.looked.add(lineage)
            return newest
        wanted = min(newest, max(1, fold.held.end - OVERLAP_FRAMES))
        reach = min(self.reach, self.lag)
        missing = fold.cursor + 1
        if has_journal and fold.held.overlap(range(max(1, missing - OVERLAP_FRAMES), missing)):
            missing = max(1, missing - OVERLAP_FRAMES)  # otherwise frames in the hole would come before the proof
        if newest - missing <= reach:
            wanted = min(wanted, missing)
        depth = newest - wanted
        # A proof that was requested and did not come does not count.
        is_sure = (live_came or not before or not fold.held) and self._is_sure(
            lineage, head, now_ms, has_journal=has_journal
        )
        # The boat has just left a deep session: another would end the same way.
        is_block_needed = has_journal and before > 0 and live_came and self.credit > OVERLAP_FRAMES
        start = wanted
        self._proof = None
        if depth > reach:
            comes_nearer = not has_journal and depth < before
            if depth <= self.reach and (not (is_sure or is_block_needed) or comes_nearer):
                self._proof, self._is_deep = _Proof(lineage, head, now_ms), True  # LA2
            else:
                start = max(1, newest - reach)
                if not is_sure and has_journal:
                    at = max(1, fold.held.end)
                    self.probe = range(at, at + 1)
                    self._probe_until_ms = now_ms + _PROBE_MS if fold.held else 0
        self._start, self._depth, self.shows_run = start, newest - start, start == wanted and bool(fold.held)
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

    def _learn_lag(self, *, has_journal: bool, live_came: bool) -> None:
        """LA5. A broken link looks the same, and costs little: what Live is not asked for comes by Backfill. Without a
        journal it is lost, so there it takes one session more, and a proof in vain (LA2)."""
        if not self._depth or not live_came:
            return
        if self.credit <= OVERLAP_FRAMES:
            self._early = 0
            if self._depth >= self.lag:
                self.lag = min(self.max_live_lag, self._depth + self._depth // _LAG_GROWS_BY)
        elif not self._is_deep and not self._is_ours:
            self._early += 1
            if self._early >= (1 if has_journal else _EARLY_SESSIONS_NO_JOURNAL):
                self._early = 0
                self.lag = min(self.max_live_lag, max(min(self.lag, self.reach) // 2, OVERLAP_FRAMES))

    def _is_sure(self, lineage: bytes, head: int, now_ms: int, *, has_journal: bool) -> bool:
        """Whether the run that was proved goes on: a later one cannot have counted up to its head of then.

        Behind a proof by a block, and without a journal, nothing better can be requested: the time alone counts.
        """
        proof = self._proof
        if proof is None or proof.lineage != lineage or head < proof.head:
            return False
        elapsed_ms = now_ms - proof.at_ms
        if elapsed_ms > _SURE_MS:
            return False
        return proof.by_block or not has_journal or 1_000 * proof.head > self.bus_frames_per_s * elapsed_ms

    def holes_named(self, holes: tuple[range, ...], fold: ChannelFold, *, has_journal: bool, count: int) -> list[range]:
        """The ranges that the Handshake names: the holes given, and what older runs lack that the boat's files may
        hold."""
        if self.probe is not None:
            self._names_first = 1 in self.probe
            return [self.probe]
        named = RangeSet(range(hole.start, min(hole.stop, self._start)) for hole in holes if hole.start < self._start)
        left = count
        for lineage in reversed(fold.lineages) if has_journal else ():
            known = fold.lineages[lineage]
            if lineage == fold.current or known.closed or known.boot_id or not known.held:
                continue
            if left <= 0:
                self._names_all = False
                break
            missing = known.newest_holes(count + 1)
            parts = [*missing[-count:], range(known.head + 1, known.head + 1 + _TAIL_SEQS)]
            self.older[lineage] = OlderAsked(RangeSet(parts), is_whole=len(missing) <= count)
            for part in parts:
                named.add(part)
            left -= len(parts)
        self._names_first = 1 in named
        return list(named)

    # --- what comes ------------------------------------------------------------------------------

    def leaves_live_out(self, now_ms: int) -> bool:
        """Whether it is not known yet if Live goes on with the lineage that is held (LA3)."""
        return self.probe is not None and now_ms < self._probe_until_ms

    @property
    def shows_what_is_lost(self) -> bool:
        """Whether this pass shows anything about the holes that it leaves."""
        return self.probe is None and not self.undecided and not self.left_out

    def take_credit(self, frames: int) -> int:
        """How many of these frames the rate limit applies to."""
        free = min(frames, self.credit)
        self.credit -= free
        return frames - free

    def brought(self, lineage: bytes) -> None:
        """A missing part of an older run came."""
        self._brought.add(lineage)

    def come_again(self, now_ms: int) -> None:
        """The boat must soon get a new Handshake."""
        self.again_at_ms = min(self.again_at_ms or now_ms + _AGAIN_SOON_MS, now_ms + _AGAIN_SOON_MS)

    def came_due(self) -> None:
        """This session ends now, so that the boat dials again."""
        self.again_at_ms, self._is_ours = None, True

    def pass_ended(
        self, lineage: bytes, head: int, *, holes_left: bool, settled: bool, now_ms: int
    ) -> list[tuple[bytes, OlderAsked]]:
        """The boat went through its files once. Returns what was requested of older lineages and will not come.

        `settled`: some hole is lost from now on, so others may be named in its place.
        """
        if self.probe is not None or self.undecided:
            if self._names_first:
                self.looked.add(lineage)
            self._proof = _Proof(lineage, head, now_ms, by_block=True)
            self.come_again(now_ms)
            return []
        done = []
        for older, asked in self.older.items() if self.shows_what_is_lost else ():
            self._passes[older] = 0 if older in self._brought else self._passes.get(older, 0) + 1
            if self._passes[older] >= _PASSES_BEFORE_CLOSED:
                self._passes[older] = 0
                done.append((older, asked))
        if settled or done or self._brought:
            self._again_wait_ms = _AGAIN_FIRST_MS
        if holes_left or not self._names_all or sum(asked.is_whole for _, asked in done) < len(self.older):
            if self.again_at_ms is None:
                self.again_at_ms = now_ms + self._again_wait_ms
            self._again_wait_ms = min(2 * self._again_wait_ms, _AGAIN_MAX_MS)
        else:
            self._again_wait_ms = _AGAIN_FIRST_MS
        return done

    def restarted(self, now_ms: int) -> None:
        """A new lineage began within the session: nothing requested is known to belong to it."""
        self.older.clear()
        self.probe, self._is_ours = None, True
        self.come_again(now_ms)
