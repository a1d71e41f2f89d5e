"""The cloud's half of the uplink: takes what a boat sends, in any order, and acknowledges what is held.

Nothing here does I/O. The caller passes messages and the time in, appends what `AppendBlock` and `Note` effects ask for
to the channel's log, in order, and reports with `committed` how many of them are committed and durable. One receiver
belongs to one channel, on its leader.

What a caller must keep: carry out effects in order; count in `committed` only what every replica that
counts has on disk; after a restart or leader change build a new receiver from the log's fold (F1).

UR1  The cursor and every ack come from the committed fold only, and never go back.
UR2  A record is appended at most once: a block counts only where the appended fold has no data.
UR3  One session per boat: a newer one fences the older (U2).
UR4  A refused message changes nothing in the log.
UR5  Live never splits a hole beyond the limit, and Backfill from the start of a hole never splits one: so however many
     holes there are, an honest boat can fill them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeAlias

from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.budget import TokenBucket
from tidelog.core.uplink.checks import SEQ_END, check_hello, check_seqs
from tidelog.core.uplink.facts import (
    CloseLineage,
    DeclareLost,
    DeclareVoid,
    Fact,
    OpenLineage,
    OpenSession,
    apply_fact,
)
from tidelog.core.uplink.fold import ChannelFold, LineageFold
from tidelog.core.uplink.lplex_requests import LplexRequests
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillGone,
    BackfillUnread,
    BlockT,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Refused,
    Welcome,
)
from tidelog.errors import (
    ConflictingFrames,
    HolesLeft,
    InvalidConfig,
    LagExceeded,
    RateExceeded,
    SessionFenced,
    TooManyHoles,
)

_PASSES_BEFORE_LOST = 2
_NOTHING_CAME = "two passes over the boat's journal brought nothing"
_FACTS_PER_NOTE = 1_000
_ACK_HOLES_MAX = 64
"""Holes named in an ack, the newest: a boat has only a few blocks in flight, and every block costs an ack."""


class Via(Enum):
    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverLimits:
    """The limits of one boat's requests (seed 000). The rate is sent in the Handshake answer."""

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
    ring_frames: int = 60_000
    """How far back Live is requested from an lplex boat: its ring has 65,536, and its bus goes on meanwhile. With 0
    Live begins at the head, and blocks of its files count for the current run unless something shows otherwise."""

    def __post_init__(self) -> None:
        problems = []
        if self.rate_frames_per_s <= 0 or self.burst_frames <= 0:
            problems.append("rate_frames_per_s and burst_frames must be positive")
        if min(self.max_live_lag, self.ack_interval_ms, self.holes_max, self.holes_told_max) <= 0:
            problems.append("max_live_lag, ack_interval_ms, holes_max and holes_told_max must be positive")
        if self.hello_ranges_max <= 0 or self.ring_frames < 0:
            problems.append("hello_ranges_max must be positive, and ring_frames not negative")
        if problems:
            raise InvalidConfig(section="replication", problems=problems)


@dataclass(frozen=True, slots=True)
class AppendBlock(Generic[BlockT]):
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
    message: Welcome | LiveAck | BackfillAck | Refused


Effect: TypeAlias = AppendBlock[BlockT] | Note | Reply


@dataclass(slots=True)
class _Pending:
    """An append that is on its way through the log, or waits behind one."""

    lineage: bytes
    session: int
    in_log: bool
    data: list[range] = field(default_factory=list)
    span_us: tuple[int, int] | None = None
    facts: tuple[Fact, ...] = ()
    live_through: int = 0
    answers: bool = False
    """A Backfill message: it counts in `BackfillAck.answered` once settled."""
    reply: Welcome | None = None


class UplinkReceiver(Generic[BlockT]):
    def __init__(
        self,
        *,
        fold: ChannelFold,
        limits: ReceiverLimits,
        span_of: Callable[[BlockT], tuple[int, int] | None] = lambda _: None,
    ) -> None:
        """`span_of` is the oldest and the newest time of a block."""
        self._limits = limits
        self._span_of = span_of
        self._appended = fold.copy()
        self._committed = fold.copy()
        self._pending: deque[_Pending] = deque()
        self._session = fold.session
        self._bucket: TokenBucket | None = None
        self.can_say_gone = True
        """False for the boat of a session without lineages and without a message for lost seqs: lplex."""
        self.lplex = LplexRequests(
            ring_frames=limits.ring_frames,
            max_live_lag=limits.max_live_lag,
            bus_frames_per_s=limits.rate_frames_per_s,
        )
        self._live_seq = 0
        """Highest seq that came by Live in this session; the cursor may stand far below it (seed 000)."""
        self._live_committed = 0
        self._answered = 0
        self._backfilled_through = 0
        self._passes: dict[int, int] = {}
        self._has_journal = True
        self.head_said = 0
        """The head that the boat sent in this session's Handshake."""
        self._holes_named = RangeSet()
        """The holes that the Handshake named: an lplex boat hears of no others."""
        self._ack_due_ms: int | None = None
        self._statuses = 0
        self._told = (-1, -1)
        self._conflicting: dict[bytes, bytes] = {}
        """Boot ids, by lineage, that sent other frames under seqs that are held (F6)."""

    # --- queries ---------------------------------------------------------------------------------

    @property
    def session(self) -> int:
        return self._session

    @property
    def fold(self) -> ChannelFold:
        """The committed fold."""
        return self._committed

    @property
    def appended(self) -> ChannelFold:
        """The appended fold: committed or on its way."""
        return self._appended

    @property
    def lineage(self) -> bytes | None:
        return self._appended.current

    @property
    def cursor(self) -> int:
        return self._current(self._committed).cursor

    def holes(self) -> list[range]:
        """Seqs that are missing and not on their way through the log."""
        return self._current(self._appended).holes()

    def held_in(self, seqs: range) -> list[range]:
        """Parts of `seqs` of the current lineage that the log holds, committed."""
        return self._committed.lineage(self._speaking()).held.overlap(seqs)

    def held_of(self, lineage: bytes) -> RangeSet:
        """The committed seqs of a lineage that the log holds."""
        known = self._committed.lineages.get(lineage)
        return RangeSet() if known is None else known.held

    @staticmethod
    def _current(fold: ChannelFold) -> LineageFold:
        return fold.lineages.get(fold.current or b"") or LineageFold()

    def _holes_told(self, count: int = _ACK_HOLES_MAX) -> tuple[range, ...]:
        return tuple(self._current(self._appended).newest_holes(min(count, self._limits.holes_told_max)))

    # --- Handshake -------------------------------------------------------------------------------

    def hello(self, hello: Hello, *, new_lineage: bytes, now_ms: int) -> list[Effect[BlockT]]:
        """Open a session, fencing the one before; the `Welcome` follows once it is committed.

        `new_lineage` is used for a boat that has no lineage of its own and does not fit the known one.
        """
        check_hello(hello, ranges_max=self._limits.hello_ranges_max)
        effects: list[Effect[BlockT]] = []
        known = self._appended.current is not None
        lineage = self._choose_lineage(hello, new_lineage, effects)
        fork = self._is_rewound(hello) or self._is_conflicting(hello)
        self.can_say_gone = hello.lineage is not None
        # Live starts at the head, for new boats too: history comes by Backfill, which has no rate limit.
        live_start = hello.head + 1
        if not self.can_say_gone:
            live_start = self.lplex.open(
                lineage,
                self._appended.lineages[lineage],
                hello.head,
                has_journal=hello.journal_bytes > 0,
                live_came=self._live_seq > 0,
                now_ms=now_ms,
            )
        self._session += 1
        head, boot_id = (0, b"") if fork else (live_start - 1, hello.boot_id)
        self._note([OpenSession(lineage=lineage, head=head, session=self._session, boot_id=boot_id)], effects)
        if not fork:
            # Otherwise these declarations are those of another journal: the true one may still send what this one
            # lacks.
            self._note_declared(lineage, hello, live_start, effects)
        limits = self._limits
        self._bucket = TokenBucket(per_s=limits.rate_frames_per_s, burst=limits.burst_frames, now_ms=now_ms)
        self._live_seq = self._live_committed = self._answered = self._backfilled_through = self._statuses = 0
        self._ack_due_ms = now_ms + limits.ack_interval_ms
        self._told = (-1, -1)
        self._has_journal, self.head_said = hello.journal_bytes > 0, hello.head
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
        """Whether this journal is not the one that the lineage is known from: a restored backup or a cloned card (B7).

        The head alone does not show it, since the journal may have recorded as many other frames since. So the boot id
        that was heard last must be in the journal's past, and nothing may be known here that this boot cannot have
        sent.
        """
        if hello.lineage is None:
            return False
        fold = self._appended.lineages[hello.lineage]
        if fold.boot_id in (b"", hello.boot_id):
            said_through = hello.sent_through if hello.boot_id else hello.head
        else:
            said_through = dict(hello.earlier).get(fold.boot_id, -1)
        return hello.head < fold.head or said_through < fold.known_end() - 1

    def _is_conflicting(self, hello: Hello) -> bool:
        return hello.lineage is not None and self._conflicting.get(hello.lineage) == hello.boot_id

    def conflict(self, seq: int) -> None:
        """The frame that came under `seq` is not the one that is held: two frames have one number (F6).

        Nothing of it is taken. The next Handshake resolves it: the boat is told to fork. One without lineages has
        restarted (`restarted`).
        """
        lineage = self._speaking()
        self._conflicting[lineage] = self._appended.lineages[lineage].boot_id
        raise ConflictingFrames(lineage=lineage.hex(), seq=seq)

    def restarted(self, new_lineage: bytes, *, now_ms: int) -> list[Effect[BlockT]]:
        """An lplex boat sends a later run than the one that is held: a new lineage begins, and the session goes on.

        The Handshake named holes of the run before; holes of the new run must be named in another (F6).
        """
        effects: list[Effect[BlockT]] = []
        reason = "other frames came under its seqs: the boat has restarted"
        previous = self._speaking()
        self._note([OpenLineage(lineage=new_lineage, previous=previous, reason=reason)], effects)
        self._note([OpenSession(lineage=new_lineage, head=0, session=self._session)], effects)
        self._holes_named = RangeSet()
        self._backfilled_through = 0
        self.lplex.restarted(now_ms)
        return effects

    def _note_declared(self, lineage: bytes, hello: Hello, live_start: int, effects: list[Effect[BlockT]]) -> None:
        fold = self._appended.lineages[lineage]
        void = [DeclareVoid(lineage=lineage, seqs=part) for seqs in hello.void for part in fold.undecided(seqs)]
        self._note(void, effects)
        self._note_missing(lineage, hello.lost, "the boat no longer has it", effects)
        if not self.can_say_gone and hello.journal_bytes == 0 and live_start > 1:
            # Without journal files nothing will ever come from before the start of Live (F5).
            self._note_missing(lineage, [range(1, live_start)], "the boat keeps no journal", effects)

    def _choose_lineage(self, hello: Hello, new_lineage: bytes, effects: list[Effect[BlockT]]) -> bytes:
        current = self._appended.current
        if hello.lineage is not None:
            if hello.lineage not in self._appended.lineages:
                self._note([OpenLineage(lineage=hello.lineage, previous=current, reason="new lineage")], effects)
            return hello.lineage
        # An lplex boat counts from 1 again after every restart (F6).
        if current is None:
            reason = "new boat"
        elif hello.head < max(self._appended.lineages[current].head, self.head_said):
            reason = "its seq went backwards"
        else:
            return current
        self._note([OpenLineage(lineage=new_lineage, previous=current, reason=reason)], effects)
        return new_lineage

    def _note(self, facts: Sequence[Fact], effects: list[Effect[BlockT]]) -> None:
        """Append all records of one block of control records or none; many facts take several blocks."""
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
        check_seqs(message.seqs, head=SEQ_END - 1)
        charged = len(message.seqs) if self.can_say_gone else self.lplex.take_credit(len(message.seqs))
        if charged and not self._bucket.take(charged, now_ms):
            raise RateExceeded(frames_per_s=self._limits.rate_frames_per_s, burst=self._limits.burst_frames)
        self._live_seq = max(self._live_seq, message.seqs.stop - 1)
        if not self.can_say_gone and self.lplex.leaves_live_out(now_ms):
            # It is not known yet whether these continue what is held. They stay in the boat's ring for a while.
            return self._settle_answer(Via.LIVE, message.seqs)
        if self._has_room(self._speaking(), message.seqs):
            return self._take(message.block, message.seqs, Via.LIVE, self._speaking())
        # This would exceed the limit of holes. Refusing would keep Backfill from filling the holes, so these frames are
        # left out: they are missing, and Backfill sends them (UR5).
        for fold in (self._appended, self._committed):
            fold.lineage(self._speaking()).announce(message.seqs.stop - 1)
        return self._settle_answer(Via.LIVE, message.seqs)

    def backfill(self, message: BackfillData[BlockT]) -> list[Effect[BlockT]]:
        """A block from the boat's journal, whole: what is held already lies outside its windows."""
        self.check_session(message.session)
        check_seqs(message.seqs, head=SEQ_END - 1)
        speaking = self._speaking()
        lineage = speaking if message.lineage is None else message.lineage
        fold = self._appended.lineage(lineage)
        if not self._has_room(lineage, message.seqs):
            if self.can_say_gone:
                raise TooManyHoles(holes_max=self._limits.holes_max)
            self.lplex.left_out = True  # refusing would end Live at every pass: an lplex boat sends what its files have
            return self._settle_answer(Via.BACKFILL, range(0))
        if lineage == speaking:
            self._backfilled_through = max(self._backfilled_through, message.seqs.stop - 1)
        elif fold.missing_in(message.seqs):
            self.lplex.brought(lineage)
        effects = self._take(message.block, message.seqs, Via.BACKFILL, lineage)
        if message.lost:
            self._note_missing(lineage, [message.lost], f"damaged in the boat's journal: {message.problem}", effects)
        return effects

    def unread(self, message: BackfillUnread, *, is_current: bool) -> list[Effect[BlockT]]:
        """An lplex boat sent a block that cannot be read: its pass came by there (F5)."""
        self.check_session(message.session)
        check_seqs(message.seqs, head=SEQ_END - 1)
        if is_current:
            head = self._appended.lineages[self._speaking()].head
            self._backfilled_through = max(self._backfilled_through, min(head, message.seqs.stop - 1))
        return self._settle_answer(Via.BACKFILL, range(0))

    def undecided(self, session: int) -> list[Effect[BlockT]]:
        """A block came whose run is not known yet. It is left out; the boat will be asked for it again."""
        self.check_session(session)
        self.lplex.undecided = True
        return self._settle_answer(Via.BACKFILL, range(0))

    def gone(self, message: BackfillGone) -> list[Effect[BlockT]]:
        """The boat reports that it can no longer supply these: they are lost, and the cursor may pass them."""
        self.check_session(message.session)
        check_seqs(message.seqs, head=self._appended.lineages[self._speaking()].head)
        effects: list[Effect[BlockT]] = []
        self._note_missing(self._speaking(), [message.seqs], "the boat no longer has it", effects)
        return effects + self._settle_answer(Via.BACKFILL, range(0))

    def backfill_done(self, session: int, *, now_ms: int) -> list[Effect[BlockT]]:
        """The boat ended its Backfill stream. One that cannot say "gone" gets two passes for each hole (F5)."""
        self.check_session(session)
        effects: list[Effect[BlockT]] = []
        if self.can_say_gone:
            return effects
        lplex, speaking = self.lplex, self._speaking()
        lost: list[range] = []
        if lplex.shows_what_is_lost:
            # Only those that the Handshake named: the boat was not asked for the others yet.
            named, through = self._holes_named, self._backfilled_through
            holes = [hole for hole in self.holes() if hole.stop - 1 <= through and named.covers(hole)]
            self._passes = {hole.stop: self._passes.get(hole.stop, 0) + 1 for hole in holes}
            lost = [hole for hole in holes if self._passes[hole.stop] >= _PASSES_BEFORE_LOST]
            self._note_missing(speaking, lost, _NOTHING_CAME, effects)
        head = max(self._appended.lineages[speaking].head, self.head_said)
        left, settled = bool(self.holes()), bool(lost)
        for older, asked in lplex.pass_ended(speaking, head, holes_left=left, settled=settled, now_ms=now_ms):
            lost = [hole for hole in self._appended.lineages[older].holes() if asked.seqs.covers(hole)]
            self._note_missing(older, lost, _NOTHING_CAME, effects)
            if asked.is_whole:
                self._note([CloseLineage(lineage=older, reason=_NOTHING_CAME)], effects)
        return effects

    def _has_room(self, lineage: bytes, seqs: range) -> bool:
        fold = self._appended.lineage(lineage)
        return fold.ranges() < self._limits.holes_max or not fold.would_split_hole(seqs)

    def _take(self, block: BlockT, seqs: range, via: Via, lineage: bytes) -> list[Effect[BlockT]]:
        missing = self._appended.lineage(lineage).missing_in(seqs)
        if not missing:
            return self._settle_answer(via, seqs)  # all held or on its way: our ack was lost, not their data
        span_us = self._span_of(block)
        self._appended.data(lineage, missing, span_us)
        pending = self._answer(via, seqs)
        pending.lineage, pending.data, pending.span_us, pending.in_log = lineage, missing, span_us, True
        self._pending.append(pending)
        whole = len(missing) == 1 and missing[0] == seqs
        windows = () if whole else tuple(range(part.start - seqs.start, part.stop - seqs.start) for part in missing)
        return [AppendBlock(block, windows, via)]

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
        """The fold over everything that was returned so far, to be appended next; it counts in `committed` like any
        append (F3).

        Not the committed fold: appends on their way lie before the snapshot in the log, and a reader that folds the log
        uses the snapshot for everything before it.
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
                self._committed.data(pending.lineage, pending.data, pending.span_us)
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
        """The answer, with the present committed state."""
        lineages = self._committed.lineages
        cursors = [(orphan, lineages[orphan].cursor if orphan in lineages else 0) for orphan, _ in reply.orphan_cursors]
        holes = self._holes_told(self._limits.holes_told_max)
        self._holes_named = RangeSet(holes)
        if not self.can_say_gone:
            count = self._limits.holes_told_max
            named = self.lplex.holes_named(holes, self._appended, has_journal=self._has_journal, count=count)
            holes = tuple(named)
            self._holes_named = self._holes_named.intersection(RangeSet(named))
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
        """The boat's periodic report: a second check against a stream that falls behind (seed 000)."""
        self.check_session(message.session)
        self._statuses += 1
        lag = message.head - self._live_seq
        if self._live_seq and lag > self._limits.max_live_lag:
            raise LagExceeded(lag=lag, lag_max=self._limits.max_live_lag)

    def wake(self, now_ms: int) -> list[Effect[BlockT]]:
        """An ack is due even when nothing moved: a quiet bus must not look like a dead link."""
        again_at_ms = self.lplex.again_at_ms
        if again_at_ms is not None and now_ms >= again_at_ms and not self.can_say_gone:
            self.lplex.came_due()
            error = HolesLeft()
            return [Reply(Refused(session=self._session, code=error.code, detail=str(error)))]
        if self._ack_due_ms is None or now_ms < self._ack_due_ms:
            return []
        self._ack_due_ms = now_ms + self._limits.ack_interval_ms
        if self._committed.session != self._session:
            return []  # the Handshake is not answered yet: the cursor may be that of another lineage
        return [self._live_ack()]

    def wake_at_ms(self) -> int | None:
        again_at_ms = None if self.can_say_gone else self.lplex.again_at_ms
        return min((at for at in (self._ack_due_ms, again_at_ms) if at is not None), default=None)

    def disconnected(self, session: int) -> None:
        """The boat's streams ended; no acks until it shakes hands again."""
        if session == self._session:
            self._ack_due_ms = self.lplex.again_at_ms = None
            self._bucket = None
