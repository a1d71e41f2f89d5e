"""A small network of Raft cores, each with a disk in memory, that keeps and watches the contract of `Ready`.

Nothing happens by itself: a test lets time pass, lets messages arrive, stalls disks, cuts links, crashes members. Every
message that leaves is audited against the disk of its sender (persist before send), every applied entry against what
the others applied, every leader against the other leaders of its term. So each test of this folder is also a test
of RA1, RA2, RA4 and RA6, whatever else it is about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    Raft,
    RaftConfig,
    RaftRole,
    ReadAborted,
    ReadReady,
    Ready,
    Snapshot,
    SnapshotHead,
    VoteAnswer,
    VoteRequest,
)

DELIVERIES_MAX = 20_000
"""More than this without coming to rest is a storm, and a bug."""


Sent = TypeVar("Sent", bound=Message, covariant=True)
Wanted = TypeVar("Wanted", bound=Message)


class PacketOf(NamedTuple, Generic[Sent]):
    """A message of a known kind on its way; `Packet` is one of any kind."""

    source: str
    target: str
    message: Sent


Packet: TypeAlias = PacketOf[Message]
Chosen = Callable[[Packet], bool]


def entries_of(*terms: int, first_index: int = 1) -> list[Entry]:
    """A log with these terms; what an entry says follows from its place, so equal places are equal entries."""
    return [
        Entry(index, term, EntryKind.CHANGE, f"{index}.{term}".encode())
        for index, term in enumerate(terms, start=first_index)
    ]


@dataclass
class Disk:
    """What survives a crash."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(SnapshotHead()))
    entries: list[Entry] = field(default_factory=list)

    @property
    def last_index(self) -> int:
        return self.entries[-1].index if self.entries else self.snapshot.head.index

    @property
    def terms(self) -> list[int]:
        return [entry.term for entry in self.entries]

    def write(self, ready: Ready) -> None:
        """RD2 and RD3."""
        if ready.hard_state is not None:
            assert ready.hard_state.term >= self.hard_state.term
            self.hard_state = ready.hard_state
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        if ready.entries:
            first_index = ready.entries[0].index
            assert self.snapshot.head.index < first_index <= self.last_index + 1
            self.entries = [entry for entry in self.entries if entry.index < first_index] + list(ready.entries)

    def copy(self) -> Disk:
        return Disk(self.hard_state, self.snapshot, list(self.entries))


class Member:
    """A core, its disk, its clock, and the state machine: a list of what was applied."""

    def __init__(self, net: Net, name: str, disk: Disk) -> None:
        self.net = net
        self.name = name
        self.disk = disk
        self.now_ms = 0
        self.is_up = False
        self.is_stalled = False
        """The disk takes writes and does not finish them."""
        self.start()

    def start(self) -> None:
        assert not self.is_up
        self.is_up = True
        self.pending: deque[Ready] = deque()
        self.reads: list[ReadReady | ReadAborted] = []
        self.shown = (RaftRole.FOLLOWER, self.disk.hard_state.term)
        self._restore(self.disk.snapshot)
        self.raft = Raft(
            me=self.name,
            config=self.net.config,
            hard_state=self.disk.hard_state,
            snapshot=self.disk.snapshot,
            entries=list(self.disk.entries),
            random_fraction=self.net.random.random,
            now_ms=self.now_ms,
        )

    def crash(self) -> None:
        """What was not durable is gone, and so are the messages that waited for it."""
        self.is_up = self.is_stalled = False
        self.pending.clear()

    def _restore(self, snapshot: Snapshot) -> None:
        self.applied = snapshot.data.split(b"\n") if snapshot.data else []
        self.applied_index = snapshot.head.index

    # --- carrying out Ready ------------------------------------------------------------------------

    def pump(self) -> None:
        while self.is_up and (ready := self.raft.ready()) is not None:
            self.net.watch(self)
            self.pending.append(ready)
            for envelope in ready.messages:
                self.net.post(self, envelope.to, envelope.message)
            self.reads += ready.reads
            for read in ready.reads:
                outcome = (
                    f"may be served at {read.index}" if isinstance(read, ReadReady) else "aborted: ask the new leader"
                )
                self.net.note(f"{self.name} read", f"{read.token} {outcome}")
            for entry in ready.committed:
                self._apply(entry)
            if not self.is_stalled:
                self.flush()

    def flush(self, count: int | None = None) -> None:
        """The disk finishes this many writes, or all."""
        while self.pending and count != 0:
            ready = self.pending.popleft()
            self.disk.write(ready)
            if ready.snapshot is not None:
                self._restore(ready.snapshot)
            if ready.must_persist:
                self.net.note(f"{self.name} disk", describe_write(ready))
                self.raft.persisted(ready.number)
                count = None if count is None else count - 1
            for envelope in ready.messages_after:
                self.net.post(self, envelope.to, envelope.message)

    def _apply(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "RD4"
        assert entry.index <= self.disk.last_index, "applied before it was durable here"
        self.applied_index = entry.index
        if entry.kind is EntryKind.CHANGE:
            self.applied.append(entry.data)
        self.net.applied(self, entry)

    def snapshot(self, *, keep_from_index: int | None = None, padding_bytes: int = 0) -> Snapshot:
        """Let the state machine take one, make it durable, and forget entries."""
        index = self.applied_index
        term = self.raft.log.term_at(index)
        assert term is not None
        changes = list(self.applied)
        if padding_bytes:
            changes.append(b"=" * padding_bytes)
        snapshot = Snapshot(SnapshotHead(index, term, self.raft.log.members_at(index)), b"\n".join(changes))
        self.disk.snapshot = snapshot
        self.disk.entries = [entry for entry in self.disk.entries if entry.index > index]
        self.raft.compact(snapshot, keep_from_index=index + 1 if keep_from_index is None else keep_from_index)
        return snapshot

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.is_up and self.raft.role is RaftRole.LEADER

    @property
    def log_terms(self) -> list[int]:
        log = self.raft.log
        return [entry.term for entry in log.between(log.base_index + 1, log.last_index + 1)]


class Net:
    def __init__(
        self,
        voters: str | Iterable[str],
        *,
        learners: Iterable[str] = (),
        config: RaftConfig | None = None,
        disks: dict[str, Disk] | None = None,
        seed: int = 1,
    ) -> None:
        # Told of commits at once, a group needs no clock to come to rest.
        self.config = config or RaftConfig(commit_news_ms=0)
        self.seed = seed
        self.random = Random(seed)
        self.wire: deque[Packet] = deque()
        self.held: list[Packet] = []
        self.holding: Chosen | None = None
        """What this chooses does not travel on before `release`."""
        self.losing: Chosen | None = None
        """What this chooses is lost."""
        self.cut_links: set[tuple[str, str]] = set()
        self.sent: list[Packet] = []
        """Everything that ever left, in order."""
        self.trace: list[str] | None = None
        self._describe: Callable[[Packet], str] | None = None
        self._leaders: dict[int, str] = {}
        self._history: dict[int, Entry] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self.founders = Members(tuple(sorted(voters)), tuple(sorted(learners)))
        self.members: dict[str, Member] = {}
        for name in self.founders.all:
            disk = (disks or {}).get(name, Disk())
            if disk.snapshot.head.index == 0:
                disk.snapshot = Snapshot(SnapshotHead(0, 0, self.founders))
            self.members[name] = Member(self, name, disk)

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def join(self, name: str, disk: Disk | None = None) -> Member:
        """A new disk that knows of nobody."""
        self.members[name] = Member(self, name, disk or Disk())
        self.members[name].now_ms = max(member.now_ms for member in self.members.values())
        return self.members[name]

    @property
    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_up]

    @property
    def leader(self) -> Member:
        """The one of the newest term."""
        leaders = [member for member in self.up if member.leads]
        assert leaders, f"nobody leads (seed {self.seed})"
        return max(leaders, key=lambda member: member.raft.term)

    # --- the network -------------------------------------------------------------------------------

    def post(self, sender: Member, target: str, message: Message) -> None:
        self._audit(sender, message)
        packet = Packet(sender.name, target, message)
        self.sent.append(packet)
        if isinstance(message, VoteAnswer) and message.granted and not message.pre:
            self._voted(packet)
        if self.holding is not None and self.holding(packet):
            self.held.append(packet)
        else:
            self.wire.append(packet)

    def pump(self) -> None:
        for member in self.up:
            member.pump()

    def deliver(self, packet: Packet) -> None:
        target = self.members.get(packet.target)
        lost = (
            target is None
            or not target.is_up
            or (packet.source, packet.target) in self.cut_links
            or (self.losing is not None and self.losing(packet))
        )
        if self._describe is not None:
            arrow = "-x" if lost else "->"
            self.note(f"{packet.source} {arrow} {packet.target}", self._describe(packet))
        if target is None or lost:
            return
        target.raft.step(packet.source, packet.message, target.now_ms)
        target.pump()

    def settle(self) -> Net:
        """Until nothing is on its way and nobody has anything to do."""
        self.pump()
        for _ in range(DELIVERIES_MAX):
            if not self.wire:
                return self
            self.deliver(self.wire.popleft())
            self.pump()
        raise AssertionError(f"{DELIVERIES_MAX} messages and no rest (seed {self.seed})")

    def release(self, *, order: Callable[[list[Packet]], list[Packet]] = list) -> None:
        """What was held travels on."""
        self.holding = None
        self.wire.extend(order(self.held))
        self.held = []

    def isolate(self, name: str) -> None:
        for other in self.members:
            self.cut(name, other)

    def cut(self, one: str, other: str) -> None:
        self.cut_links |= {(one, other), (other, one)}

    def split(self, *sides: str | Iterable[str]) -> None:
        """Who is not on one side with another does not hear it."""
        groups = [set(side) for side in sides]
        names = set(self.members)
        self.cut_links = {
            (one, other)
            for one in names
            for other in names
            if one != other and not any({one, other} <= group for group in groups)
        }

    def heal(self) -> None:
        self.cut_links.clear()
        self.losing = None

    def crash(self, *names: str) -> None:
        for name in names:
            self[name].crash()

    def restart(self, *names: str) -> None:
        for name in names:
            self[name].start()

    def messages(
        self, kind: type[Wanted], *, source: str | None = None, target: str | None = None
    ) -> list[PacketOf[Wanted]]:
        return [
            PacketOf(packet.source, packet.target, packet.message)
            for packet in self.sent
            if isinstance(packet.message, kind) and source in (None, packet.source) and target in (None, packet.target)
        ]

    # --- time ----------------------------------------------------------------------------------------

    def time_out(self, *names: str) -> None:
        """Long silence for everybody; these notice it first, in this order."""
        now_ms = max(member.now_ms for member in self.members.values()) + 2 * self.config.election_timeout_ms
        for member in self.members.values():
            member.now_ms = now_ms
        for name in names:
            self[name].raft.tick(now_ms)

    def elect(self, name: str) -> Member:
        self.time_out(name)
        self.settle()
        assert self[name].leads, f"{name} was not elected (seed {self.seed})"
        return self[name]

    def heartbeat(self, name: str) -> None:
        member = self[name]
        member.now_ms += self.config.heartbeat_ms
        member.raft.tick(member.now_ms)
        self.settle()

    def run_for(self, span_ms: int) -> None:
        """Time passes for all at the same rate; members are woken when they ask for it, and messages arrive at once."""
        self.settle()
        while self.up:
            member = min(self.up, key=lambda member: member.raft.wake_at_ms() - member.now_ms)
            left_ms = max(0, member.raft.wake_at_ms() - member.now_ms)
            if left_ms > span_ms:
                break
            self._pass(left_ms)
            span_ms -= left_ms
            member.raft.tick(member.now_ms)
            self.settle()
        self._pass(span_ms)

    def _pass(self, span_ms: int) -> None:
        for member in self.members.values():
            member.now_ms += span_ms

    # --- watching ------------------------------------------------------------------------------------

    def watch(self, member: Member) -> None:
        """RA2 and G1; and a line in the trace when a role has changed."""
        raft = member.raft
        if (raft.role, raft.term) != member.shown:
            member.shown = (raft.role, raft.term)
            self.note(f"{member.name} role", f"{raft.role.value}, term {raft.term}")
        if raft.role is RaftRole.LEADER:
            known = self._leaders.setdefault(raft.term, member.name)
            assert known == member.name, f"RA2: {known} and {member.name} lead term {raft.term} (seed {self.seed})"
        log = raft.log
        assert log.handed <= log.commit <= log.last_index, "G1"

    def applied(self, member: Member, entry: Entry) -> None:
        known = self._history.setdefault(entry.index, entry)
        assert known == entry, f"RA4: {member.name} applied {entry}, another {known} (seed {self.seed})"
        if self.trace is not None:
            self.note(f"{member.name} apply", describe_entry(entry))

    def _audit(self, sender: Member, message: Message) -> None:
        """RA1 and RA6: what a message says is on the sender's disk when it leaves."""
        durable, term = sender.disk.hard_state, message.term
        if isinstance(message, VoteRequest) and message.pre:
            term -= 1
        if isinstance(message, VoteAnswer) and message.pre and message.granted:
            return  # a promise of nothing
        assert term <= durable.term, f"RA6: {sender.name} speaks of term {term}, its disk of {durable.term}"
        if isinstance(message, VoteRequest) and not message.pre and term == durable.term:
            assert durable.vote == sender.name, "RA1: asked for votes before its own was durable"
        if isinstance(message, AppendAnswer) and message.accepted and term == durable.term:
            assert message.index <= sender.disk.last_index, f"RA6: {sender.name} claims {message.index}"
        if isinstance(message, AppendEntries) and message.entries:
            assert message.entries[0].index == message.previous_index + 1

    def _voted(self, packet: Packet) -> None:
        """RA1: one vote in a term, whatever was lost between."""
        key = (packet.source, packet.message.term)
        known = self._votes.setdefault(key, packet.target)
        assert known == packet.target, f"RA1: {packet.source} voted twice in term {packet.message.term}"

    # --- the trace -----------------------------------------------------------------------------------

    def start_trace(self, describe: Callable[[Packet], str]) -> None:
        self.trace, self._describe = [], describe

    def note(self, who: str, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{who:<10}{what}")


def describe_entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.EMPTY:
            what = "(new leader)"
        case EntryKind.MEMBERS:
            assert entry.members is not None
            what = f"members {describe_members(entry.members)}"
        case _:
            what = entry.data.decode()
    return f"{entry.index}@{entry.term} {what}"


def describe_members(members: Members) -> str:
    learners = f" learners {' '.join(members.learners)}" if members.learners else ""
    return f"[{' '.join(members.voters)}{learners}]"


def describe_span(entries: tuple[Entry, ...]) -> str:
    first, last = entries[0], entries[-1]
    if first is last:
        return f"{first.index}@{first.term}"
    return f"{first.index}@{first.term} to {last.index}@{last.term}"


def describe_write(ready: Ready) -> str:
    parts = []
    if ready.hard_state is not None:
        vote = ready.hard_state.vote
        parts.append(f"term {ready.hard_state.term}" + (f", vote {vote}" if vote else ""))
    if ready.snapshot is not None:
        parts.append(f"snapshot {ready.snapshot.head.index}@{ready.snapshot.head.term}")
    if ready.entries:
        parts.append(f"log {describe_span(ready.entries)}")
    return "; ".join(parts)
