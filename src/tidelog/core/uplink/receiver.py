"""The cloud's half of the uplink: takes what a boat sends, in any order, and says what it holds.

Nothing here does I/O. The caller passes messages and the time in, appends what `Append` and `Note`
effects ask for to the channel's log, in order, and reports with `committed` how many of them are
committed and durable. The receiver belongs to one channel on its leader; where that runs is not its
business.

What a caller must keep: carry out effects in order; count in `committed` only what every replica that
counts has on disk; after a restart or leader change build a new receiver from the log's fold (F1).

UR1  The cursor and every ack come from the committed fold only, and never go back.
UR2  A record is appended at most once: a block counts only where the appended fold has no data.
UR3  One session per boat: a newer one fences the older (U2).
UR4  What was refused changed nothing in the log.
UR5  Live never splits a hole beyond the limit, and Backfill from the start of a hole never splits one: so however
     many holes there are, an honest boat can fill them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeAlias

from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.budget import TokenBucket
from tidelog.core.uplink.fold import ChannelFold, LineageFold
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillGone,
    BlockT,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Welcome,
)
from tidelog.errors import (
    ConflictingFrames,
    InvalidConfig,
    InvalidRecord,
    LagExceeded,
    RateExceeded,
    SessionFenced,
    TooManyHoles,
)

_PASSES_BEFORE_LOST = 2
_FACTS_PER_NOTE = 1_000
_ACK_HOLES_MAX = 64
"""Holes named in an ack, the newest: a boat has only a few blocks on their way, and every block costs an ack."""
_SEQ_END = 2**63
"""One past the largest seq a boat can use."""


class Via(Enum):
    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverLimits:
    """What a boat may ask of the cloud (seed 000). The rate travels in the Handshake answer."""

    rate_frames_per_s: float = 2_000
    """About 10 % above what a 250 kbit/s bus can carry."""
    burst_frames: int = 500
    max_live_lag: int = 10_000
    ack_interval_ms: int = 5_000
    """An ack leaves at least this often, even when nothing moves."""
    holes_max: int = 100_000
    """Ranges that are remembered for one lineage: held, lost and void."""
    hello_ranges_max: int = 10_000
    """Lost and void ranges that one Hello may name: each is a record in the log, and others wait meanwhile."""
    holes_told_max: int = 1_000
    """Holes named in one answer, the newest; the others are named once these are filled."""

    def __post_init__(self) -> None:
        problems = []
        if self.rate_frames_per_s <= 0 or self.burst_frames <= 0:
            problems.append("rate_frames_per_s and burst_frames must be positive")
        if min(self.max_live_lag, self.ack_interval_ms, self.holes_max, self.holes_told_max) <= 0:
            problems.append("max_live_lag, ack_interval_ms, holes_max and holes_told_max must be positive")
        if self.hello_ranges_max <= 0:
            problems.append("hello_ranges_max must be positive")
        if problems:
            raise InvalidConfig(section="replication", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    lineage: bytes
    head: int
    session: int
    life: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLineage:
    lineage: bytes
    previous: bytes | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareLost:
    lineage: bytes
    seqs: range
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareVoid:
    lineage: bytes
    seqs: range


Fact: TypeAlias = OpenSession | OpenLineage | DeclareLost | DeclareVoid


@dataclass(frozen=True, slots=True)
class Append(Generic[BlockT]):
    """Append this block to the log; only records inside the windows count (none: all of them)."""

    block: BlockT
    windows: tuple[range, ...]
    via: Via


@dataclass(frozen=True, slots=True)
class Note:
    """Append these as one block of control records: the fold must find them in the log (F1)."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    message: Welcome | LiveAck | BackfillAck


Effect: TypeAlias = Append[BlockT] | Note | Reply


@dataclass(slots=True)
class _Pending:
    """Something on its way through the log, or waiting behind what is."""

    lineage: bytes
    session: int
    in_log: bool
    data: list[range] = field(default_factory=list)
    facts: tuple[Fact, ...] = ()
    live_through: int = 0
    answers: bool = False
    """A Backfill message: it counts in `BackfillAck.answered` once settled."""
    reply: Welcome | None = None


class UplinkReceiver(Generic[BlockT]):
    def __init__(self, *, fold: ChannelFold, limits: ReceiverLimits) -> None:
        self._limits = limits
        self._appended = fold.copy()
        self._committed = fold.copy()
        self._pending: deque[_Pending] = deque()
        self._session = fold.session
        self._bucket: TokenBucket | None = None
        self._can_say_gone = True
        self._live_seq = 0
        """Highest seq that came by Live in this session; the cursor may stand far below it (seed 000)."""
        self._live_committed = 0
        self._answered = 0
        self._backfilled_through = 0
        self._passes: dict[int, int] = {}
        self._holes_named = RangeSet()
        """What the Handshake named: an lplex boat hears of no others."""
        self._ack_due_ms: int | None = None
        self._statuses = 0
        self._told = (-1, -1)
        self._conflicting: dict[bytes, bytes] = {}
        """Lives, by lineage, that brought other frames under seqs that are held (F6)."""

    # --- queries ---------------------------------------------------------------------------------

    @property
    def session(self) -> int:
        return self._session

    @property
    def fold(self) -> ChannelFold:
        """What is committed."""
        return self._committed

    @property
    def lineage(self) -> bytes | None:
        return self._appended.current

    @property
    def cursor(self) -> int:
        return self._current(self._committed).cursor

    def holes(self) -> list[range]:
        """What is missing and not on its way through the log."""
        return self._current(self._appended).holes()

    def held_in(self, seqs: range) -> list[range]:
        """Parts of `seqs` that the log holds, committed, of the lineage that speaks."""
        return self._committed.lineage(self._speaking()).held.overlap(seqs)

    @staticmethod
    def _current(fold: ChannelFold) -> LineageFold:
        return fold.lineages.get(fold.current or b"") or LineageFold()

    def _holes_told(self, count: int = _ACK_HOLES_MAX) -> tuple[range, ...]:
        return tuple(self._current(self._appended).newest_holes(min(count, self._limits.holes_told_max)))

    # --- Handshake -------------------------------------------------------------------------------

    def hello(self, hello: Hello, *, new_lineage: bytes, now_ms: int) -> list[Effect[BlockT]]:
        """Open a session, fencing the one before; the `Welcome` follows once it is committed.

        `new_lineage` is used for a boat that brings none of its own and does not fit the one known.
        """
        _check_hello(hello, ranges_max=self._limits.hello_ranges_max)
        effects: list[Effect[BlockT]] = []
        known = self._appended.current is not None
        lineage = self._choose_lineage(hello, new_lineage, effects)
        fork = self._is_rewound(hello) or self._is_conflicting(hello)
        self._can_say_gone = hello.lineage is not None
        # Live starts at the head, for new boats too: history comes by Backfill, which has no rate limit.
        # An lplex boat counts its head as not sent yet.
        live_start = hello.head + 1 if self._can_say_gone else max(1, hello.head)
        self._session += 1
        head, life = (0, b"") if fork else (live_start - 1, hello.life)
        self._note([OpenSession(lineage=lineage, head=head, session=self._session, life=life)], effects)
        if not fork:
            # Else the words are those of another journal: the true one may still bring what this one lacks.
            self._note_declared(lineage, hello, effects)
        limits = self._limits
        self._bucket = TokenBucket(per_s=limits.rate_frames_per_s, burst=limits.burst_frames, now_ms=now_ms)
        self._live_seq = self._live_committed = self._answered = self._backfilled_through = self._statuses = 0
        self._ack_due_ms = now_ms + limits.ack_interval_ms
        self._told = (-1, -1)
        self._pending[-1].reply = Welcome(
            session=self._session,
            cursor=0,
            holes=(),
            live_start=live_start,
            known=known,
            rate_frames_per_s=limits.rate_frames_per_s,
            burst_frames=limits.burst_frames,
            fork=fork,
            orphan_cursors=tuple((orphan, 0) for orphan in hello.orphans),
        )
        return effects

    def _is_rewound(self, hello: Hello) -> bool:
        """Whether the boat's journal is not the one that this lineage is known from: a backup, a cloned card (B7).

        Its head alone does not tell: it may have recorded as many other frames since. So the life that spoke last
        must be in its past, and nothing may be known here that this life cannot have said.
        """
        if hello.lineage is None:
            return False
        fold = self._appended.lineages[hello.lineage]
        if fold.life in (b"", hello.life):
            said_through = hello.sent_through if hello.life else hello.head
        else:
            said_through = dict(hello.earlier).get(fold.life, -1)
        return hello.head < fold.head or said_through < fold.known_end() - 1

    def _is_conflicting(self, hello: Hello) -> bool:
        return hello.lineage is not None and self._conflicting.get(hello.lineage) == hello.life

    def conflict(self, seq: int) -> None:
        """The frame that came under `seq` is not the one that is held: two frames have one number (F6).

        Nothing of it is taken. The next Handshake settles it: a boat with lineages is told to fork, one without has
        restarted, and gets a new lineage.
        """
        lineage = self._speaking()
        self._conflicting[lineage] = self._appended.lineages[lineage].life
        raise ConflictingFrames(lineage=lineage.hex(), seq=seq)

    def _note_declared(self, lineage: bytes, hello: Hello, effects: list[Effect[BlockT]]) -> None:
        fold = self._appended.lineages[lineage]
        void = [DeclareVoid(lineage=lineage, seqs=part) for seqs in hello.void for part in fold.undecided(seqs)]
        self._note(void, effects)
        self._note_missing(lineage, hello.lost, "the boat no longer has it", effects)
        if not self._can_say_gone and hello.journal_bytes == 0:
            # Without journal files nothing before its head will ever come (F5).
            self._note_missing(lineage, [range(1, hello.head)], "the boat keeps no journal", effects)

    def _choose_lineage(self, hello: Hello, new_lineage: bytes, effects: list[Effect[BlockT]]) -> bytes:
        current = self._appended.current
        if hello.lineage is not None:
            if hello.lineage not in self._appended.lineages:
                self._note([OpenLineage(lineage=hello.lineage, previous=current, reason="new lineage")], effects)
            return hello.lineage
        # An lplex boat counts from 1 again after every restart (F6).
        if current is None:
            reason = "new boat"
        elif current in self._conflicting:
            reason = "other frames came under its seqs"
            del self._conflicting[current]
        elif hello.head < self._appended.lineages[current].head:
            reason = "its seq went backwards"
        else:
            return current
        self._note([OpenLineage(lineage=new_lineage, previous=current, reason=reason)], effects)
        return new_lineage

    def _note(self, facts: Sequence[Fact], effects: list[Effect[BlockT]]) -> None:
        """All or nothing of one block of control records; many facts take several."""
        for start in range(0, len(facts), _FACTS_PER_NOTE):
            part = tuple(facts[start : start + _FACTS_PER_NOTE])
            for fact in part:
                apply_fact(self._appended, fact)
            self._pending.append(_Pending(lineage=part[0].lineage, session=self._session, in_log=True, facts=part))
            effects.append(Note(part))

    def _note_missing(self, lineage: bytes, spans: Iterable[range], reason: str, effects: list[Effect[BlockT]]) -> None:
        """Declare lost what of these seqs is not held, void or lost already."""
        fold = self._appended.lineages[lineage]
        parts = RangeSet(part for span in spans for part in fold.undecided(span))
        self._note([DeclareLost(lineage=lineage, seqs=part, reason=reason) for part in parts], effects)

    # --- data ------------------------------------------------------------------------------------

    def live(self, message: LiveData[BlockT], *, now_ms: int) -> list[Effect[BlockT]]:
        """A run of frames on Live."""
        self.check_session(message.session)
        assert self._bucket is not None
        _check_seqs(message.seqs, head=_SEQ_END - 1)
        if not self._bucket.take(len(message.seqs), now_ms):
            raise RateExceeded(frames_per_s=self._limits.rate_frames_per_s, burst=self._limits.burst_frames)
        self._live_seq = max(self._live_seq, message.seqs.stop - 1)
        if self._has_room(message.seqs):
            return self._take(message.block, message.seqs, Via.LIVE)
        # One more hole is one too many. Refusing would keep Backfill from filling those there are, so these frames
        # are left out: they are missing, and Backfill brings them (UR5).
        for fold in (self._appended, self._committed):
            fold.lineage(self._speaking()).announce(message.seqs.stop - 1)
        return self._settle_answer(Via.LIVE, message.seqs)

    def backfill(self, message: BackfillData[BlockT]) -> list[Effect[BlockT]]:
        """A block from the boat's journal, whole: what is held already lies outside its windows."""
        self.check_session(message.session)
        _check_seqs(message.seqs, head=_SEQ_END - 1)
        if not self._has_room(message.seqs):
            raise TooManyHoles(holes_max=self._limits.holes_max)
        self._backfilled_through = max(self._backfilled_through, message.seqs.stop - 1)
        return self._take(message.block, message.seqs, Via.BACKFILL)

    def gone(self, message: BackfillGone) -> list[Effect[BlockT]]:
        """The boat says it can no longer supply these: they are lost, and the cursor may pass them."""
        self.check_session(message.session)
        _check_seqs(message.seqs, head=self._appended.lineages[self._speaking()].head)
        effects: list[Effect[BlockT]] = []
        self._note_missing(self._speaking(), [message.seqs], "the boat no longer has it", effects)
        return effects + self._settle_answer(Via.BACKFILL, range(0))

    def backfill_done(self, session: int) -> list[Effect[BlockT]]:
        """The boat ended its Backfill stream. One that cannot say "gone" gets two passes for each hole (F5)."""
        self.check_session(session)
        effects: list[Effect[BlockT]] = []
        if self._can_say_gone:
            return effects
        # Only those that the Handshake named: it was not asked for the others yet.
        named, through = self._holes_named, self._backfilled_through
        holes = [hole for hole in self.holes() if hole.stop - 1 <= through and named.covers(hole)]
        self._passes = {hole.stop: self._passes.get(hole.stop, 0) + 1 for hole in holes}
        lost = [hole for hole in holes if self._passes[hole.stop] >= _PASSES_BEFORE_LOST]
        reason = "two passes over the boat's journal brought nothing"
        self._note_missing(self._speaking(), lost, reason, effects)
        return effects

    def _has_room(self, seqs: range) -> bool:
        fold = self._appended.lineages[self._speaking()]
        return fold.ranges() < self._limits.holes_max or not fold.would_split_hole(seqs)

    def _take(self, block: BlockT, seqs: range, via: Via) -> list[Effect[BlockT]]:
        lineage = self._speaking()
        missing = self._appended.lineages[lineage].missing_in(seqs)
        if not missing:
            return self._settle_answer(via, seqs)  # all held or on its way: our ack was lost, not their data
        self._appended.data(lineage, missing)
        pending = self._answer(via, seqs)
        pending.data, pending.in_log = missing, True
        self._pending.append(pending)
        whole = len(missing) == 1 and missing[0] == seqs
        windows = () if whole else tuple(range(part.start - seqs.start, part.stop - seqs.start) for part in missing)
        return [Append(block, windows, via)]

    def _answer(self, via: Via, seqs: range) -> _Pending:
        return _Pending(
            lineage=self._speaking(),
            session=self._session,
            in_log=False,
            live_through=seqs.stop - 1 if via is Via.LIVE else 0,
            answers=via is Via.BACKFILL,
        )

    def _settle_answer(self, via: Via, seqs: range) -> list[Effect[BlockT]]:
        """Nothing to append: it is settled as soon as everything before it is committed."""
        self._pending.append(self._answer(via, seqs))
        return self.committed(0)

    def _speaking(self) -> bytes:
        assert self._appended.current is not None, "no session was opened"
        return self._appended.current

    def check_session(self, session: int) -> None:
        """Raise `SessionFenced` unless this session is the one that is open (U2)."""
        if session != self._session or self._bucket is None:
            raise SessionFenced(session=session, newest=self._session)

    # --- what the log says -----------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The fold over all that was handed out, to be appended next; it counts in `committed` like any append (F3).

        Not the committed fold: what is still on its way lies before the snapshot in the log, and whoever folds the
        log takes the snapshot's word for everything before it.
        """
        session = self._session
        self._pending.append(_Pending(lineage=self._appended.current or b"", session=session, in_log=True))
        return self._appended.to_state()

    def committed(self, count: int) -> list[Effect[BlockT]]:
        """The next `count` appends and notes, in the order of their effects, are committed and durable."""
        effects: list[Effect[BlockT]] = []
        answered = False
        while self._pending and (count > 0 or not self._pending[0].in_log):
            pending = self._pending.popleft()
            count -= pending.in_log
            for fact in pending.facts:
                apply_fact(self._committed, fact)
            if pending.data:
                self._committed.data(pending.lineage, pending.data)
            if pending.session == self._session:
                self._live_committed = max(self._live_committed, pending.live_through)
                self._answered += pending.answers
                answered = answered or pending.answers
                if pending.reply is not None:
                    effects.append(Reply(self._welcome(pending.reply)))
        assert count == 0, "committed() for what was never appended"
        if (self.cursor, self._live_committed) != self._told and self._live_seq:
            effects.append(self._live_ack())
        if answered:
            ack = BackfillAck(
                session=self._session, cursor=self.cursor, answered=self._answered, remaining=self._holes_told()
            )
            effects.append(Reply(ack))
        return effects

    def _welcome(self, reply: Welcome) -> Welcome:
        """The answer, with what is committed by now."""
        lineages = self._committed.lineages
        cursors = [(orphan, lineages[orphan].cursor if orphan in lineages else 0) for orphan, _ in reply.orphan_cursors]
        holes = self._holes_told(self._limits.holes_told_max)
        self._holes_named = RangeSet(holes)
        return replace(reply, cursor=self.cursor, holes=holes, orphan_cursors=tuple(cursors))

    def _live_ack(self) -> Reply:
        self._told = (self.cursor, self._live_committed)
        return Reply(
            LiveAck(
                session=self._session,
                cursor=self.cursor,
                committed_through=self._live_committed,
                holes=self._holes_told(),
                statuses=self._statuses,
            )
        )

    # --- status and time -------------------------------------------------------------------------

    def status(self, message: LiveStatus) -> None:
        """The boat's periodic report: belt and braces against a stream that falls behind (seed 000)."""
        self.check_session(message.session)
        self._statuses += 1
        lag = message.head - self._live_seq
        if self._live_seq and lag > self._limits.max_live_lag:
            raise LagExceeded(lag=lag, lag_max=self._limits.max_live_lag)

    def wake(self, now_ms: int) -> list[Effect[BlockT]]:
        """An ack is due even when nothing moved: a quiet bus must not look like a dead link."""
        if self._ack_due_ms is None or now_ms < self._ack_due_ms:
            return []
        self._ack_due_ms = now_ms + self._limits.ack_interval_ms
        if self._committed.session != self._session:
            return []  # the Handshake is not answered yet: the cursor may be that of another lineage
        return [self._live_ack()]

    def wake_at_ms(self) -> int | None:
        return self._ack_due_ms

    def disconnected(self, session: int) -> None:
        """The boat's streams ended; no acks until it shakes hands again."""
        if session == self._session:
            self._ack_due_ms = None
            self._bucket = None


def _check_hello(hello: Hello, *, ranges_max: int) -> None:
    if len(hello.lost) + len(hello.void) > ranges_max:
        raise TooManyHoles(holes_max=ranges_max)
    if not 0 <= hello.head < _SEQ_END or hello.journal_bytes < 0:
        raise InvalidRecord(problem=f"a head of {hello.head} is no seq")
    for seqs in (*hello.lost, *hello.void):
        _check_seqs(seqs, head=hello.head)


def _check_seqs(seqs: range, *, head: int) -> None:
    if seqs.step != 1 or not 1 <= seqs.start < seqs.stop <= head + 1:
        raise InvalidRecord(problem=f"[{seqs.start}, {seqs.stop}) is no range of seqs up to the head {head}")


def apply_fact(fold: ChannelFold, fact: Fact) -> None:
    """What a control record means to the fold."""
    match fact:
        case OpenSession():
            fold.session_opened(fact.lineage, head=fact.head, session=fact.session, life=fact.life)
        case OpenLineage():
            fold.lineage_opened(fact.lineage)
        case DeclareLost():
            fold.lineage(fact.lineage).declare_lost(fact.seqs)
        case DeclareVoid():
            fold.lineage(fact.lineage).declare_void(fact.seqs)
