"""The leader's half of Raft: replication to each member, commit, safe reads, handing over.

One `RaftLeading` exists for one leadership; nothing of it is kept after the term. Nothing here does I/O.

LD1  An entry is committed once a majority of the voters holds it durably and it is of the leader's own term; older
     entries are committed with it, never by counting (section 5.4.2, figure 8).
LD2  A read is served at an index only after a majority has answered a round that began after the read arrived, and
     after an entry of this term is committed (section 6.4 of the dissertation).
LD3  One membership change at a time, and none before an entry of this term is committed (section 4.1 and its erratum).
LD4  What is in flight to a follower is bounded, in messages and in bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidelog.core.raft.config import RaftConfig
from tidelog.core.raft.log import RaftLog
from tidelog.core.raft.members import Members, MembersChange, Promote
from tidelog.core.raft.messages import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    EntryPlace,
    Message,
    ReadAborted,
    ReadReady,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
)
from tidelog.core.raft.outbox import Outbox
from tidelog.core.raft.progress import MemberProgress, Pace
from tidelog.errors import (
    LeadershipMoving,
    MembershipPending,
    MembershipRefused,
    ProposalTooLarge,
    TooManyProposals,
    TooManyReads,
)

_ROUNDS_MAX: Final = 64
"""The most heartbeats that are remembered while none is answered; the leader steps down long before."""


class RaftLeading:
    def __init__(self, *, me: str, term: int, config: RaftConfig, log: RaftLog, outbox: Outbox, now_ms: int) -> None:
        self.me = me
        self.term = term
        self._config = config
        self._log = log
        self._outbox = outbox
        self._round = 0
        self._rounds: deque[tuple[int, int]] = deque()
        """(round, when it began) of heartbeats that no majority has answered yet."""
        self.confirmed_ms: int | None = None
        """When the newest round began that a majority has answered: no other member had become leader by then."""
        self._heartbeat_at_ms = now_ms + config.heartbeat_ms
        self._quorum_at_ms = now_ms + config.election_timeout_ms
        self._transfer: tuple[str, int] | None = None
        """The target of a handover, and until when it is tried."""
        self._transfer_told = False
        self._reads_new: list[int] = []
        """Reads that belong to no round yet."""
        self._reads: deque[tuple[int, int, int]] = deque()
        """(token, index, round): waiting for a majority to answer that round."""
        self._uncommitted_bytes = 0
        self.progress: dict[str, MemberProgress] = {}
        self.first_index = log.last_index + 1
        self._follow_members(self.first_index)
        self._settled = log.last_index
        """Up to here nothing counts as uncommitted: it is committed, and durable here, so that it can be applied."""
        self._take(EntryKind.EMPTY)
        self._tell_at_ms: int | None = None
        """When followers that have not heard of the newest commit are told, if no other message tells them before."""

    # --- members ---------------------------------------------------------------------------------

    def _follow_members(self, next_index: int) -> None:
        """New members are first asked whether they hold the entry before `next_index`."""
        members = self._log.members
        for member in members.all:
            if member != self.me and member not in self.progress:
                self.progress[member] = MemberProgress(next_index)
        for member in [member for member in self.progress if member not in members]:
            del self.progress[member]
        if self._transfer is not None and self._transfer[0] not in members.voters:
            self._transfer = None

    @property
    def has_committed(self) -> bool:
        """An entry of this term is committed, so everything before it is known to be."""
        return self._log.commit >= self.first_index

    def propose_members(self, change: MembersChange) -> EntryPlace:
        log = self._log
        self._refuse_while_moving()
        if not self.has_committed:
            raise MembershipPending(reason="this leader is new and has committed nothing yet")  # LD3
        if log.members_index > log.commit:
            raise MembershipPending(reason="the change before is not committed yet")  # LD3
        members = log.members.changed(change)
        if isinstance(change, Promote):
            behind = self.lag_of(change.member)
            if behind > 0:
                reason = f"it is {behind} entries too far behind; wait until it caught up"
                raise MembershipRefused(member=change.member, reason=reason)
            if not self.progress[change.member].heard:
                raise MembershipPending(reason=f"{change.member} has not been heard lately")
        place = self._take(EntryKind.MEMBERS, members=members)
        self._follow_members(place.index)
        return place

    def lag_of(self, learner: str) -> int:
        """How many entries it lacks before it may be made a voter; 0 or less when it may."""
        match = self.progress[learner].match
        # A member that never answered may not even exist, however short the log: its promotion could never be
        # committed.
        return max(1, self._log.commit) if match == 0 else self._log.commit - match - self._config.promote_lag_entries

    # --- proposals -------------------------------------------------------------------------------

    def match_of(self, member: str) -> int:
        """How far a member holds this leader's log durably, by its own report; 0 if that is not known."""
        progress = self.progress.get(member)
        return 0 if progress is None else progress.match

    def propose(self, data: bytes) -> EntryPlace:
        config = self._config
        self._refuse_while_moving()
        if len(data) > config.entry_bytes_max:
            raise ProposalTooLarge(size_bytes=len(data), bytes_max=config.entry_bytes_max)
        if self._uncommitted_bytes and self._uncommitted_bytes + len(data) > config.uncommitted_bytes_max:
            raise TooManyProposals(bytes_max=config.uncommitted_bytes_max)
        return self._take(EntryKind.CHANGE, data)

    def _refuse_while_moving(self) -> None:
        if self._transfer is not None:
            raise LeadershipMoving(target=self._transfer[0])

    def _take(self, kind: EntryKind, data: bytes = b"", members: Members | None = None) -> EntryPlace:
        entry = Entry(self._log.last_index + 1, self.term, kind, data, members)
        self._log.append(entry)
        self._uncommitted_bytes += entry.size_bytes
        return EntryPlace(entry.index, entry.term)

    # --- what leaves -----------------------------------------------------------------------------

    def flush(self, now_ms: int) -> None:
        """Send what has gathered: entries, a round for waiting reads. News of a commit can wait."""
        self._start_reads()
        log = self._log
        for member, progress in self.progress.items():
            if progress.next <= log.last_index:
                self._send_appends(member, progress)
            if self._tell_at_ms is None and self._lacks_news(progress):
                self._tell_at_ms = now_ms + self._config.commit_news_ms
        if self._config.commit_news_ms == 0:
            self.tell_commit()

    def tell_commit(self) -> None:
        """Send the newest commit to followers that have not received it with another message."""
        self._tell_at_ms = None
        for member, progress in self.progress.items():
            if self._lacks_news(progress):
                self._send_append(member, progress, ())

    def _lacks_news(self, progress: MemberProgress) -> bool:
        """It was sent every entry, and has not heard that the newest are committed."""
        log = self._log
        return progress.told < log.commit and progress.next > log.last_index and progress.pace is Pace.REPLICATE

    def _send_appends(self, member: str, progress: MemberProgress) -> None:
        config, log = self._config, self._log
        while progress.next <= log.last_index and progress.pace is not Pace.SNAPSHOT:
            if progress.pace is Pace.PROBE and progress.probed:
                return
            if not progress.has_room(config.inflight_max, config.inflight_bytes_max):
                return  # LD4
            if progress.next <= log.base_index:
                break
            self._send_append(member, progress, log.some_from(progress.next, config.append_bytes_max))
        if progress.next <= log.base_index and progress.pace is not Pace.SNAPSHOT:
            progress.send_snapshot(log.snapshot)
            self._send_chunk(member, progress)

    def _send_append(self, member: str, progress: MemberProgress, entries: tuple[Entry, ...]) -> None:
        log = self._log
        previous_index = progress.next - 1
        previous_term = log.term_at(previous_index)
        assert previous_term is not None
        self._outbox.send(
            member,
            AppendEntries(
                term=self.term,
                previous_index=previous_index,
                previous_term=previous_term,
                entries=entries,
                commit=log.commit,
                round=self._round,
            ),
        )
        progress.told = log.commit
        if progress.pace is Pace.PROBE:
            progress.probed = True
        elif entries:
            progress.sent(entries[-1].index, sum(entry.size_bytes for entry in entries))

    def _send_chunk(self, member: str, progress: MemberProgress) -> None:
        snapshot = progress.snapshot
        assert snapshot is not None
        offset = progress.snapshot_received
        progress.probed = True
        self._outbox.send(
            member,
            SnapshotChunk(
                term=self.term,
                round=self._round,
                head=snapshot.head,
                size_bytes=len(snapshot.data),
                checksum=progress.snapshot_checksum,
                offset=offset,
                data=snapshot.data[offset : offset + self._config.snapshot_chunk_bytes],
            ),
        )

    def _heartbeat(self, member: str, progress: MemberProgress) -> None:
        """Empty appends detect loss too: one that does not fit is rejected, and the follower is probed again."""
        progress.probed = False
        if progress.pace is Pace.SNAPSHOT:
            self._send_chunk(member, progress)
        elif progress.next <= self._log.base_index:
            progress.send_snapshot(self._log.snapshot)
            self._send_chunk(member, progress)
        else:
            entries: tuple[Entry, ...] = ()
            if progress.pace is Pace.PROBE and progress.next <= self._log.last_index:
                entries = self._log.some_from(progress.next, self._config.append_bytes_max)
            self._send_append(member, progress, entries)

    # --- time ------------------------------------------------------------------------------------

    def wake_at_ms(self) -> int:
        moments = [self._heartbeat_at_ms, self._quorum_at_ms]
        if self._transfer is not None:
            moments.append(self._transfer[1])
        if self._tell_at_ms is not None:
            moments.append(self._tell_at_ms)
        return min(moments)

    def tick(self, now_ms: int) -> bool:
        """False when no majority has been heard for an election timeout: then this leadership is over."""
        if self._transfer is not None and now_ms >= self._transfer[1]:
            self._transfer = None
        if now_ms >= self._quorum_at_ms:
            self._quorum_at_ms = now_ms + self._config.election_timeout_ms
            if not self._hears_a_majority():
                return False
        if now_ms >= self._heartbeat_at_ms:
            self._heartbeat_at_ms = now_ms + self._config.heartbeat_ms
            self._begin_round(now_ms)
            for member, progress in self.progress.items():
                self._heartbeat(member, progress)
        if self._tell_at_ms is not None and now_ms >= self._tell_at_ms:
            self.tell_commit()
        return True

    def _begin_round(self, now_ms: int) -> None:
        self._round += 1
        self._rounds.append((self._round, now_ms))
        if len(self._rounds) > _ROUNDS_MAX:
            self._rounds.popleft()
        self._confirm()

    def _hears_a_majority(self) -> bool:
        members = self._log.members
        heard = sum(voter == self.me or self.progress[voter].heard for voter in members.voters)
        for progress in self.progress.values():
            progress.heard = False
        return heard >= members.quorum

    # --- answers ---------------------------------------------------------------------------------

    def answered(self, sender: str, answer: AppendAnswer) -> None:
        progress = self._heard(sender, answer.round)
        if progress is None:
            return
        if answer.accepted:
            if answer.index <= self._log.last_index:
                progress.accepted(answer.index)
                self._advance_transfer(sender, progress)
                self.advance_commit()
            return
        if progress.pace is Pace.SNAPSHOT or answer.rejected_index <= progress.match:
            return  # late: it has agreed with more since
        if progress.pace is Pace.REPLICATE:
            progress.probe_from(progress.match + 1)
        elif answer.rejected_index == progress.next - 1:
            agreed = self._log.agreed_place(answer.index, answer.hint_term)
            progress.probe_from(min(agreed, answer.rejected_index - 1) + 1)

    def snapshot_answered(self, sender: str, answer: SnapshotAnswer) -> None:
        progress = self._heard(sender, answer.round)
        if progress is None or progress.snapshot is None or answer.index != progress.snapshot.head.index:
            return
        if answer.received_bytes <= len(progress.snapshot.data):
            moved = answer.received_bytes != progress.snapshot_received
            progress.snapshot_received = answer.received_bytes
            # The same position twice is an answer to a repeated chunk: the next heartbeat repeats the chunk, which
            # avoids a storm.
            if moved and answer.received_bytes < len(progress.snapshot.data):
                self._send_chunk(sender, progress)

    def _heard(self, sender: str, round_: int) -> MemberProgress | None:
        progress = self.progress.get(sender)
        if progress is not None:
            progress.heard = True
            if progress.round < round_ <= self._round:
                progress.round = round_
                self._confirm()
        return progress

    def advance_commit(self) -> None:
        """Advance the commit: after an answer, after a local write, after a change of the members."""
        log = self._log
        index = log.members.agreed(self._match)
        if index > log.commit and log.term_at(index) == self.term:  # LD1
            log.commit = index
        settled = max(self._settled, min(log.commit, log.stable))
        self._uncommitted_bytes -= sum(entry.size_bytes for entry in log.between(self._settled + 1, settled + 1))
        self._settled = settled

    def _match(self, voter: str) -> int:
        return self._log.stable if voter == self.me else self.progress[voter].match

    # --- reads -----------------------------------------------------------------------------------

    def read(self, token: int) -> None:
        if len(self._reads) + len(self._reads_new) >= self._config.reads_max:
            raise TooManyReads(reads_max=self._config.reads_max)
        self._reads_new.append(token)

    def _start_reads(self) -> None:
        """All reads that came since the last flush share a round (LD2)."""
        if not self._reads_new or not self.has_committed:
            return
        self._round += 1
        for token in self._reads_new:
            self._reads.append((token, self._log.commit, self._round))
        self._reads_new.clear()
        for member, progress in self.progress.items():
            if progress.pace is Pace.SNAPSHOT:
                # The round alone: the chunk in flight need not be repeated for every read.
                nothing = AppendEntries(
                    term=self.term, previous_index=0, previous_term=0, entries=(), commit=0, round=self._round
                )
                self._outbox.send(member, nothing)
            else:
                self._heartbeat(member, progress)
        self._confirm()

    def _confirm(self) -> None:
        """A majority has answered some round: reads that began before it are safe (LD2)."""
        members = self._log.members
        confirmed = members.agreed(lambda voter: self._round if voter == self.me else self.progress[voter].round)
        while self._rounds and self._rounds[0][0] <= confirmed:
            self.confirmed_ms = self._rounds.popleft()[1]
        while self._reads and self._reads[0][2] <= confirmed:
            token, index, _ = self._reads.popleft()
            self._outbox.reads.append(ReadReady(token, index))

    def abort(self) -> None:
        """This leadership is over."""
        waiting = [token for token, _, _ in self._reads] + self._reads_new
        self._outbox.reads.extend(ReadAborted(token) for token in waiting)

    # --- handing over ----------------------------------------------------------------------------

    @property
    def transferring_to(self) -> str | None:
        return None if self._transfer is None else self._transfer[0]

    def transfer(self, target: str, now_ms: int) -> None:
        self._refuse_while_moving()
        if target == self.me or target not in self._log.members.voters:
            raise MembershipRefused(member=target, reason="leadership moves to another voter only")
        self._transfer = (target, now_ms + self._config.election_timeout_ms)
        self._transfer_told = False
        self._advance_transfer(target, self.progress[target])

    def hand_over(self, now_ms: int) -> None:
        """Hand over to the voter that holds most, if there is one and no handover is under way."""
        voters = [voter for voter in self._log.members.voters if voter != self.me]
        if self._transfer is None and voters:
            self.transfer(max(voters, key=lambda voter: (self.progress[voter].match, voter)), now_ms)

    def _advance_transfer(self, member: str, progress: MemberProgress) -> None:
        if self._transfer is None or self._transfer[0] != member or self._transfer_told:
            return
        if progress.match == self._log.last_index:
            self._transfer_told = True
            handover: Message = TimeoutNow(term=self.term)
            self._outbox.send(member, handover)
