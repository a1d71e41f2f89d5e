"""The invariants of a metadata group: a plain account of everything that was committed, and the checks against it.

The model knows no messages in flight and no roles. It hears of every finished write of every disk, of every message
as it leaves, and looks at a member after each of its events. The letters are those of the modules under test; numbers
alone are those of design.md, section 10.

RA1  One vote in a term, and term and vote never go back. State in a message is durable when the message leaves.
RA2  One leader in a term.
RA3  Members commit the same entries in the same places, and their catalogs answer the same.
RA4  A leader holds everything that was committed in terms before its own.
LD1  What is committed lies durably on a majority of the voters.
LD2  A read sees all that was acked before it was asked, and nothing that goes back.
LD3  One membership change at a time, of one voter at most.
MM1  An outcome reported to a client, applied or lost, is true.
RST1  What a disk holds after a restart is what was written, or a first part of the write in progress.
C2   Of two changes for one channel epoch one lands. C10: an incarnation only rises.
L1   A node that relies on its session is not fenced. L4: a fenced incarnation is not renewed.
O1   One cluster is founded, once.
NC3  A folder restored from an older copy takes no part in the group while a member is there that remembers more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Any

from tidelog.cluster.metadata.member import MetadataMember
from tidelog.core.catalog import Applied, Batch, Catalog, FenceNode, RegisterNode, RemoveNode, decode_change
from tidelog.core.raft import (
    AppendAnswer,
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    Raft,
    Ready,
    Snapshot,
    SnapshotHead,
    VoteAnswer,
    VoteRequest,
)
from tidelog.sim.metadata.stored_state import StoredState, state_after_compaction, states_of_write
from tidelog.sim.seeds import WorldBroken, WorldViolation
from tidelog.storage.raft.storage import RaftStorage, gathered


class MetadataViolation(WorldViolation):
    """The metadata group broke a promise."""

    world = "metadata"


class ClusterBroken(WorldBroken):
    """A check failed; the world adds the seed."""


class Durable:
    """The state of one member's disk, according to finished writes."""

    def __init__(self, state: StoredState) -> None:
        self.hard_state = state.hard_state
        self.snapshot = state.snapshot
        self.entries = list(state.entries)
        self.possible: list[StoredState] = []
        """Every state that a call in progress may leave behind; empty while there is none."""
        self.is_gone = False
        """The disk was wiped or has flipped bits."""
        self.is_old = False
        """The folder was restored to an earlier state: the process that opens it is not that member any more (NC3)."""
        self.before: Durable | None = None
        """What an old copy was put in the place of. Its leader may still count what that disk once said that it held,
        as it counts a disk that was wiped since."""
        self._doing: list[Ready] | Snapshot | None = None

    @property
    def state(self) -> StoredState:
        return StoredState(self.hard_state, self.snapshot, tuple(self.entries))

    @property
    def last_index(self) -> int:
        return self.snapshot.head.index + len(self.entries)

    @property
    def members(self) -> Members:
        """The newest membership on the disk, committed or not."""
        changed = (entry.members for entry in reversed(self.entries) if entry.members is not None)
        return next(changed, self.snapshot.head.members)

    def term_at(self, index: int) -> int | None:
        place = index - self.snapshot.head.index
        if place == 0:
            return self.snapshot.head.term
        return self.entries[place - 1].term if 0 < place <= len(self.entries) else None

    def begin_write(self, readys: list[Ready]) -> None:
        # All states that a crash may leave are worked out only if one does.
        self._doing = readys

    def begin_save(self, snapshot: Snapshot) -> None:
        self._doing = snapshot

    def finish(self) -> bool:
        """The call in progress returned. Tells whether entries were replaced."""
        doing, self._doing = self._doing, None
        if isinstance(doing, Snapshot):
            covered = doing.head.index - self.snapshot.head.index
            if covered > 0:
                del self.entries[:covered]
                self.snapshot = doing
            return False
        assert doing is not None
        hard_state, snapshot, entries = gathered(doing)
        self.hard_state = hard_state or self.hard_state
        if snapshot is not None:
            self.snapshot, self.entries = snapshot, []
        if not entries:
            return False
        replaced = entries[0].index <= self.last_index
        del self.entries[entries[0].index - self.snapshot.head.index - 1 :]
        self.entries += entries
        return replaced

    def interrupted(self) -> None:
        """The call in progress failed, or the power went in it."""
        doing, self._doing = self._doing, None
        if doing is None:
            self.possible = [self.state]
        elif isinstance(doing, Snapshot):
            self.possible = [self.state, state_after_compaction(self.state, doing)]
        else:
            self.possible = states_of_write(self.state, doing)


class View:
    """What was last seen of a member in one run of its process."""

    __slots__ = ("applied", "commit", "leading_term", "members_index", "seen", "term", "vote")

    def __init__(self) -> None:
        self.seen: tuple[Any, ...] = ()
        self.term = self.commit = self.applied = self.leading_term = self.members_index = 0
        self.vote: str | None = None


class MetadataModel:
    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.checks = 0
        self.cluster = b""
        self.members = Members()
        """The newest committed membership."""
        self.entries: dict[int, Entry] = {}
        """Everything that was ever committed."""
        self.last_index = 0
        self.reference = Catalog()
        self.durable: dict[str, Durable] = {}
        self.floor = 0
        """The newest index that any client has seen the effect of."""
        self.leaders: dict[int, str] = {}
        self.fenced: dict[str, tuple[int, int]] = {}
        """Node to the newest fenced incarnation, and the index of the fence."""
        self._commit_terms: list[tuple[int, int]] = []
        """(term, last index) of who committed: rising in both."""
        self._refusals: dict[int, str | None] = {}
        self._last_change: dict[int, int] = {}
        self._landed: set[tuple[int, int]] = set()
        self._incarnations: dict[str, int] = {}
        self._registering: dict[tuple[str, int], str] = {}
        self._memberships: list[tuple[int, Members]] = []
        self._registered: dict[str, tuple[str, str]] = {}
        """Node to the disk and the process that last registered."""
        self._kept: dict[str, tuple[tuple[str, str], tuple[int, int, int]]] = {}
        """Node to the disk and the process of its record, and since when the catalog trusts it."""
        self._snapshots: dict[int, bytes] = {}
        self._histories: dict[str, list[tuple[int, int]]] = {}
        self.on_fence: Callable[[str, int], None] = lambda node, incarnation: None

    # --- disks -------------------------------------------------------------------------------------

    def born(self, member: str, storage: RaftStorage) -> None:
        """A member's storage was made: by the founder, or blank."""
        if member in self.durable:
            raise ClusterBroken(f"NC1: {member} was born twice")
        self.durable[member] = Durable(_state_of(storage))
        head = storage.snapshot.head
        if head.index == 0:
            return
        if self.cluster:
            raise ClusterBroken(f"O1: {member} founds a cluster beside {self.cluster.hex()}")
        self.cluster = storage.identity.cluster
        self.members = head.members
        self._memberships.append((head.index, head.members))
        self.last_index = head.index
        self.reference = Catalog.restore(storage.snapshot.data)
        self.entries[head.index] = Entry(head.index, head.term, EntryKind.EMPTY)
        self._last_change[head.index] = self.reference.applied_index
        self._commit_terms.append((head.term, head.index))

    def reopened(self, member: str, storage: RaftStorage) -> None:
        """RST1. A disk that lost or changed anything must not come back under its name."""
        self.checks += 1
        known = self.durable.get(member)
        if known is None:
            raise ClusterBroken(f"RST1: {member} comes back and was never there")
        found = _state_of(storage)
        if known.is_old:
            # Its peers must notice before it says anything; see `check_message`.
            self.durable[member] = old = Durable(found)
            old.is_old = old.is_gone = True
            old.before = known.before or known
            return
        possible = known.possible or [known.state]
        if found not in possible:
            raise ClusterBroken(f"RST1: {member} comes back with {_words(found)}, not with {_words(possible[-1])}")
        self.counters["torn_write"] += found != known.state
        self.durable[member] = Durable(found)

    # --- messages as they leave ----------------------------------------------------------------------

    def check_message(self, member: str, target: str, message: Message, raft: Raft) -> None:
        """RA1, RA6: the state in the message is on the disk."""
        durable = self.durable[member]
        hard = durable.hard_state
        if durable.is_old and _promises(message):
            raise ClusterBroken(f"NC3: {member} says {message} for an older copy of its disk")
        if isinstance(message, VoteRequest):
            if message.pre:
                if message.term > hard.term + 1:
                    raise ClusterBroken(f"RA6: {member} asks ahead for term {message.term}, its disk knows {hard.term}")
                return
            if _denies(hard, message.term, member):
                raise ClusterBroken(f"RA1: {member} asks for votes in term {message.term}; its disk has {hard}")
        elif isinstance(message, VoteAnswer):
            if message.pre:
                self.counters["pre_vote_refused"] += not message.granted
                if message.granted:
                    return  # it speaks of the term that was asked about
            elif message.granted and _denies(hard, message.term, target):
                raise ClusterBroken(f"RA1: {member} votes for {target} in term {message.term}; its disk has {hard}")
        elif isinstance(message, AppendAnswer) and message.accepted:
            if message.index > durable.last_index:
                raise ClusterBroken(
                    f"RA6: {member} says it holds {message.index}; its disk ends at {durable.last_index}"
                )
            disk = durable.term_at(message.index)
            own = raft.log.term_at(message.index) if raft.term == message.term else disk
            if disk is not None and (disk > message.term or own not in (None, disk)):
                raise ClusterBroken(f"RA6: {member} says it holds {message.index}; its disk has another entry there")
        if message.term > hard.term:
            raise ClusterBroken(f"RA6: {member} speaks of term {message.term}, its disk of {hard.term}")

    def check_register(self, change: RegisterNode) -> None:
        """NF1: no two processes of a node ever use one incarnation."""
        key = (change.node, change.incarnation)
        if self._registering.setdefault(key, change.process_id) != change.process_id:
            raise ClusterBroken(f"NF1: incarnation {change.incarnation} of {change.node} is used by two processes")

    def forget_incarnations(self, node: str) -> None:
        """Its disk is gone, with its state: the catalog resolves two nodes of one name."""
        self._registering = {key: process for key, process in self._registering.items() if key[0] != node}

    def check_renewed(self, sender: str, node: str, incarnation: int, applied_index: int) -> None:
        """L4: a leader that knows of the fence does not renew."""
        fenced = self.fenced.get(node)
        if fenced is not None and incarnation <= fenced[0] and applied_index >= fenced[1]:
            raise ClusterBroken(f"L4: {sender} renews incarnation {incarnation} of {node}, which it knows to be fenced")

    # --- a member after an event -----------------------------------------------------------------------

    def watch(self, member: MetadataMember, view: View) -> None:
        raft = member.raft
        log = raft.log
        leading = raft.leading
        seen = (raft.term, raft.vote, log.commit, member.applied_index, leading is None, log.members_index)
        if seen == view.seen:
            return
        view.seen = seen
        self.checks += 1
        if raft.term < view.term or (raft.term == view.term and view.vote not in (None, raft.vote)):
            raise ClusterBroken(
                f"RA1: {raft.me} goes from term {view.term}, vote {view.vote} to {raft.term}, {raft.vote}"
            )
        view.term, view.vote = raft.term, raft.vote
        if leading is not None:
            self._watch_leader(raft, view)
        if log.commit != view.commit:
            self._watch_commit(raft, view)
        if member.applied_index != view.applied:
            self._watch_applied(member, view)
        view.members_index = log.members_index

    def _watch_leader(self, raft: Raft, view: View) -> None:
        log = raft.log
        if view.leading_term != raft.term:
            view.leading_term = raft.term
            if self.leaders.setdefault(raft.term, raft.me) != raft.me:
                raise ClusterBroken(f"RA2: {raft.me} and {self.leaders[raft.term]} lead in term {raft.term}")
            self.counters["election"] += 1
            place = bisect_right(self._commit_terms, (raft.term - 1, 1 << 62)) - 1
            index = self._commit_terms[place][1] if place >= 0 else 0
            held = log.term_at(index)
            if index > log.last_index or (held is not None and held != self.entries[index].term):
                raise ClusterBroken(f"RA4: {raft.me} leads in term {raft.term} without the committed entry {index}")
        elif log.members_index > view.members_index > view.commit:
            raise ClusterBroken(
                f"LD3: {raft.me} changes the members at {log.members_index}, {view.members_index} is open"
            )

    def _watch_commit(self, raft: Raft, view: View) -> None:
        log = raft.log
        if log.commit < view.commit:
            raise ClusterBroken(f"RA3: the commit of {raft.me} goes back from {view.commit} to {log.commit}")
        if log.commit > log.last_index:
            raise ClusterBroken(f"RA3: {raft.me} commits {log.commit} and holds {log.last_index}")
        start = max(view.commit, log.base_index)
        if start > self.last_index or (start and log.term_at(start) != self.entries[start].term):
            raise ClusterBroken(f"RA3: {raft.me} begins at {start}, which was not committed so")
        fresh = log.commit > self.last_index
        if fresh:
            self._check_majority(raft)
        for entry in log.between(start + 1, log.commit + 1):
            known = self.entries.get(entry.index)
            if known is None:
                self._commit(entry)
            elif known is not entry and known != entry:
                raise ClusterBroken(f"RA3: {raft.me} commits another entry at {entry.index} (term {entry.term})")
        if fresh:
            if self._commit_terms and self._commit_terms[-1][0] == raft.term:
                self._commit_terms[-1] = (raft.term, log.commit)
            else:
                self._commit_terms.append((raft.term, log.commit))
        view.commit = log.commit

    def _check_majority(self, raft: Raft) -> None:
        """LD1. The first to commit is the leader, and it committed this very entry."""
        log = raft.log
        index, members = log.commit, log.members
        term = log.term_at(index)
        if raft.leading is None and self.leaders.get(raft.term) != raft.me:
            raise ClusterBroken(f"LD1: {raft.me} commits {index}, which no leader has committed")
        if term != raft.term:
            raise ClusterBroken(f"LD1: {raft.me} commits {index} of term {term} in term {raft.term} by counting")
        holders = 0
        for voter in members.voters:
            durable = self.durable.get(voter)
            durable = durable and (durable.before or durable)
            if durable is not None and durable.last_index >= index and durable.term_at(index) in (None, term):
                holders += 1
        if holders < members.quorum:
            raise ClusterBroken(f"LD1: {raft.me} commits {index} of term {term}; {holders} of {members.voters} hold it")

    def _watch_applied(self, member: MetadataMember, view: View) -> None:
        applied = member.applied_index
        if applied < view.applied or applied > member.raft.log.commit:
            raise ClusterBroken(f"RA3: {member.member} has applied {applied} after {view.applied}")
        if member.catalog.applied_index != self._last_change[applied]:
            found, wanted = member.catalog.applied_index, self._last_change[applied]
            raise ClusterBroken(
                f"RA3: the catalog of {member.member} is at {found}, at {applied} it should be at {wanted}"
            )
        view.applied = applied

    # --- what is committed -------------------------------------------------------------------------------

    def _commit(self, entry: Entry) -> None:
        self.entries[entry.index] = entry
        self.last_index = entry.index
        if entry.kind is EntryKind.MEMBERS:
            assert entry.members is not None
            if len(set(self.members.voters) ^ set(entry.members.voters)) > 1:
                raise ClusterBroken(f"LD3: the voters go from {self.members.voters} to {entry.members.voters}")
            self.members = entry.members
            self._memberships.append((entry.index, entry.members))
        elif entry.kind is EntryKind.CHANGE:
            applied = self.reference.apply(entry.index, decode_change(entry.data))
            self._refusals[entry.index] = None if applied.refusal is None else applied.refusal.code
            if applied.refusal is None:
                self._landed_change(applied)
        if self.reference.applied_index < entry.index:
            self.reference.advance(entry.index)
        self._last_change[entry.index] = self.reference.applied_index

    def _landed_change(self, applied: Applied) -> None:
        changes = applied.change.changes if isinstance(applied.change, Batch) else (applied.change,)
        for change in changes:
            epoch = getattr(change, "expected_channel_epoch", None)
            if epoch is not None:
                key = (change.channel_id, epoch)  # type: ignore[union-attr]
                if key in self._landed:
                    raise ClusterBroken(f"C2: two changes land on epoch {epoch} of channel {key[0]}")
                self._landed.add(key)
            if isinstance(change, RegisterNode):
                self._count_return(change)
                if change.incarnation <= self._incarnations.get(change.node, 0):
                    raise ClusterBroken(f"C10: {change.node} registers as {change.incarnation} again")
                self._incarnations[change.node] = change.incarnation
            elif isinstance(change, FenceNode):
                self.counters["fence"] += 1
                self.fenced[change.node] = (change.expected_incarnation, applied.index)
                self.on_fence(change.node, change.expected_incarnation)
            elif isinstance(change, RemoveNode):
                self.counters["node_removed"] += 1
                self._kept.pop(change.node, None)
        for name in {channel.name for channel in self.reference.channels()} | self._histories.keys():
            channel = self.reference.channel(name)
            epoch = 0 if channel is None else channel.channel_epoch
            history = self._histories.setdefault(name, [(0, 0)])
            if history[-1][1] != epoch:
                history.append((applied.index, epoch))

    def _count_return(self, change: RegisterNode) -> None:
        disk, process = self._registered.get(change.node, (change.disk_id, ""))
        self.counters["disk_replaced"] += disk != change.disk_id
        self.counters["fenced_and_back"] += process == change.process_id
        self._registered[change.node] = (change.disk_id, change.process_id)
        self._check_kept(change)

    def _check_kept(self, change: RegisterNode) -> None:
        """R5: a node that registers again without having stopped, after a lost session, has lost nothing."""
        record = self.reference.node(change.node)
        if record is None or record.incarnation != change.incarnation:
            return  # what came of it is undone in the same step
        self.checks += 1
        process = change.disk_id, change.process_id
        kept = record.memory_since, record.written_since, record.synced_since
        before = self._kept.get(change.node)
        if before is not None and before[0] == process and before[1] != kept:
            raise ClusterBroken(
                f"R5: {change.node} lost its session, and the catalog takes it for one that lost records"
            )
        self._kept[change.node] = process, kept

    def check_applied(self, member: str, applied: Applied) -> None:
        """RA3: every catalog gives every change the same answer."""
        self.checks += 1
        code = None if applied.refusal is None else applied.refusal.code
        if self._refusals.get(applied.index, "nothing") != code:
            wanted = self._refusals.get(applied.index, "nothing")
            raise ClusterBroken(f"RA3: {member} answers {code} to the change at {applied.index}, others {wanted}")

    def check_snapshot(self, member: str, head: SnapshotHead, data: bytes) -> None:
        """C14: equal places are equal bytes."""
        self.checks += 1
        if self._snapshots.setdefault(head.index, data) != data:
            raise ClusterBroken(f"C14: the snapshot of {member} at {head.index} is not the one of others")
        wanted = next(members for index, members in reversed(self._memberships) if index <= head.index)
        if head.members != wanted:
            raise ClusterBroken(f"LD3: the snapshot of {member} at {head.index} names {head.members}, not {wanted}")

    # --- clients ---------------------------------------------------------------------------------------

    def check_done(self, data: bytes, applied: Applied, floor: int) -> None:
        """MM1: the change stands where it is said to stand, after all that its client knew."""
        self.checks += 1
        entry = self.entries.get(applied.index)
        if entry is None or entry.data != data:
            raise ClusterBroken(
                f"MM1: a client was told that its change stands at {applied.index}; something else does"
            )
        if applied.index <= floor:
            raise ClusterBroken(f"LD2: a change asked for after {floor} was seen stands at {applied.index}")
        if self._refusals[applied.index] != (None if applied.refusal is None else applied.refusal.code):
            raise ClusterBroken(f"MM1: a client was told another answer for {applied.index} than the catalog gave")

    def check_lost(self, index: int, term: int) -> None:
        self.checks += 1
        entry = self.entries.get(index)
        if entry is None or entry.term == term:
            raise ClusterBroken(f"MM1: a client was told that its change at {index} is lost; it is not")

    def check_read(self, node: str, channel: str, epoch: int, index: int, floor: int) -> None:
        """LD2: at least everything that anybody knew when it was asked for, and the truth."""
        self.checks += 1
        if index < floor:
            raise ClusterBroken(f"LD2: a read at {node} saw {index}, after {floor} was known")
        history = self._histories.get(channel, [(0, 0)])
        wanted = history[bisect_right(history, (index, 1 << 62)) - 1][1]
        if epoch != wanted:
            raise ClusterBroken(
                f"LD2: a read at {node} saw epoch {epoch} of {channel} at {index}, where it was {wanted}"
            )
        self.floor = max(self.floor, index)

    # --- the end ---------------------------------------------------------------------------------------

    def check_end(self, member: MetadataMember) -> None:
        """Everything that was committed is in this catalog."""
        self.checks += 1
        if member.applied_index != self.last_index:
            raise ClusterBroken(f"14: {member.member} has applied {member.applied_index} of {self.last_index}")
        if member.catalog.digest() != self.reference.digest():
            raise ClusterBroken(f"RA3: the catalog of {member.member} differs at {self.last_index}")
        if found := member.catalog.contradictions():
            raise ClusterBroken(f"C3: the catalog of {member.member} contradicts itself: {found[0]}")


def _promises(message: Message) -> bool:
    """Whether others count on it: a vote, a candidacy, an entry that is held."""
    if isinstance(message, VoteRequest):
        return not message.pre
    if isinstance(message, VoteAnswer):
        return message.granted and not message.pre
    return isinstance(message, AppendAnswer) and message.accepted


def _denies(hard: HardState, term: int, vote: str) -> bool:
    """Whether a disk that holds this may yet vote for somebody else in that term. A later term ends them all."""
    return hard.term < term or (hard.term == term and hard.vote != vote)


def _state_of(storage: RaftStorage) -> StoredState:
    return StoredState(storage.hard_state, storage.snapshot, tuple(storage.entries))


def _words(state: StoredState) -> str:
    head = state.snapshot.head
    return f"{state.hard_state}, snapshot {head.index}, {len(state.entries)} entries"
