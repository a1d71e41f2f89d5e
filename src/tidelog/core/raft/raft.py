"""One member of a Raft group: who leads, what is in the log, what is committed.

Nothing here does I/O, reads a clock or rolls dice. What a caller must keep: the contract of `Ready` (RD1 to RD5);
`now_ms` never goes back; messages are passed in with the member that really sent them; call `tick` when `wake_at_ms`
says so.

RA1  A member votes at most once in a term, and its vote is durable before it is sent (sections 5.2, 5.4.1).
RA2  At most one leader in a term; a leader never overwrites or deletes its own entries (section 5.3).
RA3  Equal (index, term) means equal entries, and equal entries before them (log matching, section 5.3).
RA4  A committed entry is in the log of every later leader (section 5.4.3).
RA5  A member that cannot win raises no other member's term: it sends a pre-vote first (section 9.6 of the
     dissertation), and a member that has heard a leader within an election timeout does not grant it (section 4.2.3).
RA6  The entries that a member reports to hold are durable (`messages_after`). A leader's appends leave before its own
     write of those entries is done (section 10.2.1), since it counts itself only after that; no message leaves before
     its term is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tidelog.core.raft.config import RaftConfig
from tidelog.core.raft.leading import RaftLeading
from tidelog.core.raft.log import RaftLog
from tidelog.core.raft.members import Members, MembersChange
from tidelog.core.raft.messages import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryPlace,
    HardState,
    Message,
    Ready,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from tidelog.core.raft.outbox import Outbox
from tidelog.core.raft.receiving import SnapshotReceiver
from tidelog.errors import NotLeader


class RaftRole(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStatistics:
    role: RaftRole
    term: int
    leader: str | None
    commit: int
    applied: int
    last_index: int
    stable: int
    snapshot_index: int
    log_entries: int
    elections: int
    """How often this member asked for votes."""


class Raft:
    def __init__(
        self,
        *,
        me: str,
        config: RaftConfig,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: Sequence[Entry],
        random_fraction: Callable[[], float],
        now_ms: int,
    ) -> None:
        """Built from the state on disk. `random_fraction` draws from [0, 1): it ends elections that keep colliding."""
        self.me = me
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.role = RaftRole.FOLLOWER
        self.leader: str | None = None
        self.log = RaftLog(snapshot, entries)
        assert self.log.last_term <= self.term
        self._config = config
        self._random_fraction = random_fraction
        self._hard_stored = self._hard_stable = hard_state
        self._outbox = Outbox()
        self._leading: RaftLeading | None = None
        self._votes: dict[str, bool] = {}
        self._heard_ms: int | None = None
        self._receiver = SnapshotReceiver(config.snapshot_bytes_max)
        self._snapshot_new: Snapshot | None = None
        self._number = 0
        self._writing: deque[_Writing] = deque()
        self._elections = 0
        self._now_ms = now_ms
        self._rest(now_ms)

    # --- queries ---------------------------------------------------------------------------------

    @property
    def members(self) -> Members:
        """The membership in force, committed or not."""
        return self.log.members

    @property
    def durable_term(self) -> int:
        """The newest term that is known to be on the disk."""
        return self._hard_stable.term

    @property
    def is_voter(self) -> bool:
        return self.me in self.log.members.voters

    @property
    def may_campaign(self) -> bool:
        """A voter, or a member whose removal is not known to be committed: the others may need its log (section
        4.2.2)."""
        log = self.log
        if self.is_voter or log.members_index <= log.commit:
            return self.is_voter
        return self.me in log.members_at(log.members_index - 1).voters

    @property
    def leading(self) -> RaftLeading | None:
        """The state of this member as leader, or None."""
        return self._leading

    def statistics(self) -> RaftStatistics:
        log = self.log
        return RaftStatistics(
            role=self.role,
            term=self.term,
            leader=self.leader,
            commit=log.commit,
            applied=log.handed,
            last_index=log.last_index,
            stable=log.stable,
            snapshot_index=log.snapshot.head.index,
            log_entries=log.last_index - log.base_index,
            elections=self._elections,
        )

    def wake_at_ms(self) -> int:
        return self._election_at_ms if self._leading is None else self._leading.wake_at_ms()

    # --- what a caller asks for --------------------------------------------------------------------

    def propose(self, data: bytes) -> EntryPlace:
        return self._lead().propose(data)

    def propose_members(self, change: MembersChange) -> EntryPlace:
        leading = self._lead()
        place = leading.propose_members(change)
        leading.advance_commit()
        return place

    def read(self, token: int) -> None:
        """Answered by a `ReadReady` or a `ReadAborted` in a later Ready."""
        self._lead().read(token)

    def transfer(self, target: str, now_ms: int) -> None:
        """Hand leadership to `target`. Given up after an election timeout."""
        self._lead().transfer(target, now_ms)

    def campaign(self, now_ms: int) -> None:
        """Ask for votes now, without waiting for the election timeout: for a founder, which is alone."""
        if self._leading is None and self.may_campaign:
            self._campaign(now_ms, pre=True)

    def compact(self, snapshot: Snapshot, *, keep_from_index: int) -> None:
        """A snapshot of the state machine is durable; entries before `keep_from_index` are dropped."""
        self.log.compact(snapshot, keep_from_index)

    def _lead(self) -> RaftLeading:
        if self._leading is None:
            raise NotLeader(leader=self.leader)
        return self._leading

    # --- time --------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._leading is not None:
            if not self._leading.tick(now_ms):
                self._follow(self.term, None)
            elif self._writing and now_ms - self._writing[0].began_ms > self._config.disk_stall_ms:
                self._leading.hand_over(now_ms)
        elif now_ms >= self._election_at_ms:
            if self.may_campaign:
                self._campaign(now_ms, pre=True)
            else:
                self.leader = None
                self._rest(now_ms)

    def _rest(self, now_ms: int) -> None:
        """Start a new election timeout: between once and twice the configured one, drawn each time (section 5.2)."""
        timeout_ms = self._config.election_timeout_ms
        self._election_at_ms = now_ms + timeout_ms + int(timeout_ms * self._random_fraction())

    # --- roles -------------------------------------------------------------------------------------

    def _follow(self, term: int, leader: str | None) -> None:
        assert term >= self.term, "RA1"
        if self._leading is not None:
            self._leading.abort()
            self._leading = None
        if term > self.term:
            self.term, self.vote = term, None
            self._receiver.clear()
        self.role = RaftRole.FOLLOWER
        self.leader = leader
        self._rest(self._now_ms)

    def _campaign(self, now_ms: int, *, pre: bool, forced: bool = False) -> None:
        """Ask for votes; `pre` only asks whether an election could be won (RA5)."""
        self.leader = None
        self._votes = {self.me: True}
        self._rest(now_ms)
        if pre:
            self.role = RaftRole.PRE_CANDIDATE
        else:
            self.role = RaftRole.CANDIDATE
            self.term, self.vote = self.term + 1, self.me
            self._elections += 1
        if self.members.voters == (self.me,):
            self._won(now_ms)
            return
        request = VoteRequest(
            term=self.term + 1 if pre else self.term,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            pre=pre,
            forced=forced,
        )
        for voter in self.members.voters:
            if voter != self.me:
                # This member's own vote must be durable before any member can count it (RA1).
                (self._outbox.send if pre else self._outbox.send_after)(voter, request)

    def _won(self, now_ms: int) -> None:
        if self.role is RaftRole.PRE_CANDIDATE:
            self._campaign(now_ms, pre=False)
            return
        self.role = RaftRole.LEADER
        self.leader = self.me
        self._leading = RaftLeading(
            me=self.me, term=self.term, config=self._config, log=self.log, outbox=self._outbox, now_ms=now_ms
        )

    # --- messages ----------------------------------------------------------------------------------

    def step(self, sender: str, message: Message, now_ms: int) -> None:
        """Take a message. Late, repeated and reordered ones are harmless."""
        self._now_ms = now_ms
        if message.term > self.term:
            if isinstance(message, VoteRequest):
                if not message.forced and self._has_leader(now_ms):
                    return  # RA5
                if not message.pre:
                    self._follow(message.term, None)
            elif not (isinstance(message, VoteAnswer) and message.pre and message.granted):
                self._follow(message.term, sender if isinstance(message, AppendEntries | SnapshotChunk) else None)
        elif message.term < self.term:
            self._refuse_stale(sender, message)
            return
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, now_ms)
            case VoteAnswer():
                self._on_vote_answer(sender, message, now_ms)
            case _ if self._leading is not None:
                # Another leader of this term cannot exist (RA2); such a message is ignored.
                if isinstance(message, AppendAnswer):
                    self._leading.answered(sender, message)
                    self._resign_if_removed()
                elif isinstance(message, SnapshotAnswer):
                    self._leading.snapshot_answered(sender, message)
            case AppendEntries():
                self._on_append(sender, message, now_ms)
            case SnapshotChunk():
                self._on_snapshot_chunk(sender, message, now_ms)
            case TimeoutNow():
                if self.may_campaign:
                    self._campaign(now_ms, pre=False, forced=True)
            case _:
                pass  # an answer to an earlier leadership of this member

    def _has_leader(self, now_ms: int) -> bool:
        """Whether a leader was heard within an election timeout, or this member leads."""
        if self._leading is not None:
            return True
        heard_ms = self._heard_ms
        return self.leader is not None and heard_ms is not None and now_ms - heard_ms < self._config.election_timeout_ms

    def _refuse_stale(self, sender: str, message: Message) -> None:
        """Send the current term to a leader of an old term, and to a candidate with a pre-vote for an old one."""
        match message:
            case AppendEntries() | SnapshotChunk():
                answer = AppendAnswer(term=self.term, round=0, accepted=False, index=0)
                self._outbox.send_after(sender, answer)
            case VoteRequest(pre=True):
                self._outbox.send_after(sender, VoteAnswer(term=self.term, granted=False, pre=True))
            case _:
                pass

    def _on_vote_request(self, sender: str, request: VoteRequest, now_ms: int) -> None:
        free = self.vote is None and self.leader is None
        granted = (self.vote == sender or free or (request.pre and request.term > self.term)) and self.log.is_at_least(
            request.last_index, request.last_term
        )
        if granted and not request.pre:
            self.vote = sender
            self._rest(now_ms)
        # A granted pre-vote has the term that was asked about; every other message has this member's term.
        term = request.term if granted else self.term
        answer = VoteAnswer(term=term, granted=granted, pre=request.pre)
        self._outbox.send_after(sender, answer)  # RA1

    def _on_vote_answer(self, sender: str, answer: VoteAnswer, now_ms: int) -> None:
        asking = RaftRole.PRE_CANDIDATE if answer.pre else RaftRole.CANDIDATE
        asked_term = self.term + 1 if answer.pre else self.term
        if self.role is not asking or (answer.granted and answer.term != asked_term):
            return
        voters, quorum = self.members.voters, self.members.quorum
        if sender not in voters:
            return
        self._votes.setdefault(sender, answer.granted)
        granted = sum(self._votes.get(voter, False) for voter in voters)
        refused = sum(not self._votes.get(voter, True) for voter in voters)
        if granted >= quorum:
            self._won(now_ms)
        elif refused > len(voters) - quorum:
            self._follow(self.term, None)

    def _heard_leader(self, sender: str, now_ms: int) -> None:
        if self.role is not RaftRole.FOLLOWER:
            self._follow(self.term, sender)
        self.leader = sender
        self._heard_ms = now_ms
        self._rest(now_ms)

    def _on_append(self, sender: str, message: AppendEntries, now_ms: int) -> None:
        self._heard_leader(sender, now_ms)
        log, entries = self.log, message.entries
        last_index = message.previous_index + len(entries)
        if last_index <= log.commit:
            self._accept(sender, message.round, log.commit)  # up to the commit all logs agree
            return
        if message.previous_index < log.commit:
            entries = entries[log.commit - message.previous_index :]
        elif log.term_at(message.previous_index) != message.previous_term:
            index = log.agreed_place(message.previous_index, message.previous_term)
            self._outbox.send_after(
                sender,
                AppendAnswer(
                    term=self.term,
                    round=message.round,
                    accepted=False,
                    index=index,
                    rejected_index=message.previous_index,
                    hint_term=log.term_at(index) or 0,
                ),
            )
            return
        replaced_from = log.accept(entries)
        if replaced_from is not None:
            self._distrust_writes(replaced_from)
        log.commit = max(log.commit, min(message.commit, last_index))
        self._accept(sender, message.round, last_index)

    def _accept(self, sender: str, round_: int, index: int) -> None:
        """Report how far the logs agree. Entries being written are reported once they are durable (RA6)."""
        log = self.log
        if log.stable < index and log.stored < index:
            # New entries: they are in the next Ready, and the answer leaves after them.
            self._outbox.send_after(sender, AppendAnswer(term=self.term, round=round_, accepted=True, index=index))
            return
        answer = AppendAnswer(term=self.term, round=round_, accepted=True, index=min(index, log.stable))
        if self._hard_stable == HardState(self.term, self.vote):
            # A heartbeat is answered even while the disk is slow, or a busy disk would look like a lost follower.
            self._outbox.send(sender, answer)
        else:
            self._outbox.send_after(sender, answer)

    def _on_snapshot_chunk(self, sender: str, chunk: SnapshotChunk, now_ms: int) -> None:
        self._heard_leader(sender, now_ms)
        log, head = self.log, chunk.head
        if head.index <= log.commit:
            self._accept(sender, chunk.round, log.commit)  # a stale snapshot: we have more
            return
        if log.term_at(head.index) == head.term:
            log.commit = head.index  # we hold every entry of it; nothing to replace
            self._accept(sender, chunk.round, head.index)
            return
        snapshot = self._receiver.receive(chunk)
        if snapshot is None:
            answer = SnapshotAnswer(
                term=self.term, round=chunk.round, index=head.index, received_bytes=self._receiver.received_bytes
            )
            self._outbox.send_after(sender, answer)
            return
        log.restore(snapshot)
        self._snapshot_new = snapshot
        self._distrust_writes(0)
        self._outbox.send_after(
            sender, AppendAnswer(term=self.term, round=chunk.round, accepted=True, index=head.index)
        )

    def _distrust_writes(self, from_index: int) -> None:
        """Entries being written from this index on are no longer what the log holds there."""
        for writing in self._writing:
            writing.index = min(writing.index, max(0, from_index - 1))

    def _resign_if_removed(self) -> None:
        """A leader that removed itself leads until that is committed, and no longer (section 4.2.2)."""
        log = self.log
        if self._leading is not None and self.me not in log.members.voters and log.members_index <= log.commit:
            self._leading.flush(self._now_ms)
            self._leading.tell_commit()
            self._follow(self.term, None)

    # --- Ready ---------------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """What is to be done now, or None. Take it after every input, or after a batch of them."""
        if self._leading is not None:
            self._leading.flush(self._now_ms)
        log, outbox, stored = self.log, self._outbox, self._hard_stored
        hard_state = (
            stored if stored.term == self.term and stored.vote == self.vote else HardState(self.term, self.vote)
        )
        hard_new = None if hard_state is stored else hard_state
        snapshot, self._snapshot_new = self._snapshot_new, None
        committed = self._take_committed()
        has_entries = log.stored < log.last_index
        if not (hard_new or snapshot or has_entries or committed or outbox.now or outbox.after or outbox.reads):
            return None
        entries = log.between(log.stored + 1, log.last_index + 1) if has_entries else ()
        must_persist = hard_new is not None or snapshot is not None or bool(entries)
        if must_persist:
            self._number += 1
            self._writing.append(_Writing(self._number, hard_state, log.last_index, self._now_ms))
        self._hard_stored = hard_state
        log.stored = log.last_index
        if not self._writing:
            outbox.now, outbox.after = outbox.now + outbox.after, []
        elif self._hard_stable != hard_state:
            outbox.now, outbox.after = [], outbox.now + outbox.after  # RA6
        ready = Ready(
            number=self._number,
            hard_state=hard_new,
            snapshot=snapshot,
            entries=entries,
            messages=tuple(outbox.now),
            messages_after=tuple(outbox.after),
            committed=committed,
            reads=tuple(outbox.reads),
        )
        outbox.now, outbox.after, outbox.reads = [], [], []
        return ready

    def _take_committed(self) -> tuple[Entry, ...]:
        """Committed entries are applied once they are durable here too, so an applied entry is never lost."""
        log = self.log
        end = min(log.commit, log.stable)
        if end <= log.handed:
            return ()
        committed = log.between(log.handed + 1, end + 1)
        log.handed = end
        return committed

    def persisted(self, number: int) -> None:
        """All Readys up to this one are durable (RD2)."""
        log = self.log
        while self._writing and self._writing[0].number <= number:
            written = self._writing.popleft()
            log.stable = max(log.stable, min(written.index, log.stored))
            self._hard_stable = written.hard_state
        if self._leading is not None:
            self._leading.advance_commit()
            self._resign_if_removed()


class _Writing:
    """A Ready that is being made durable."""

    __slots__ = ("began_ms", "hard_state", "index", "number")

    def __init__(self, number: int, hard_state: HardState, index: int, began_ms: int) -> None:
        self.began_ms = began_ms
        self.number = number
        self.hard_state = hard_state
        self.index = index
        """The log is durable up to here once this is written; lowered if the log is cut meanwhile."""
