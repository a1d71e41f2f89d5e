"""One member of the metadata group: the Raft core, the catalog, and the proposals and reads that wait.

No I/O happens here and no clock is read, so it runs unchanged under the simulator. What a caller must keep: after every
input `poll` until it returns None, and carry each `Output` out: send its messages, write its Ready (in order; one fsync
may cover many), call `written` afterwards; make and save its snapshot, then call `saved`.

MM1  A proposal's outcome is reported once, and only when it is certain: applied, refused, or replaced by another
     leader's entry. If it can no longer be known, the outcome is "unknown".
MM2  A read is reported ready once everything that was committed at its start is applied here.
MM3  Messages that promise durable state leave after it is durable (RD2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidelog.core.catalog import Applied, Catalog, Change, decode_change, encode_change
from tidelog.core.raft import (
    EntryKind,
    Envelope,
    HardState,
    MembersChange,
    Message,
    Raft,
    RaftConfig,
    ReadAborted,
    ReadReady,
    Ready,
    Snapshot,
    SnapshotHead,
)
from tidelog.core.raft.messages import Entry, EntryPlace
from tidelog.errors import LogError, NotLeader, OutcomeUnknown, ProposalLost, TooManyReads
from tidelog.units import MIB

WAITING_MAX: Final = 10_000
"""The most unanswered proposals and reads of this member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    raft: RaftConfig = field(default_factory=RaftConfig)
    snapshot_entries: int = 4_096
    """A snapshot is made after so many entries, or so many bytes of them."""
    snapshot_bytes: int = 8 * MIB
    keep_entries: int = 1_024
    """Entries kept behind a snapshot, so that a follower that was away for a moment needs no snapshot."""


@dataclass(frozen=True, slots=True)
class Done:
    """The proposal was committed and applied; `applied.refusal` says whether the catalog took it."""

    token: int
    applied: Applied


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The catalog here holds everything that was committed when the read was asked for."""

    token: int
    index: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    token: int
    error: LogError


Result: TypeAlias = Done | ReadDone | RequestFailed


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Make a snapshot of the catalog as it was, later and in any thread, and save it. With thousands of channels it
    takes long enough to delay heartbeats."""

    head: SnapshotHead
    make: Callable[[], bytes]
    keep_from_index: int
    """The first index to keep in the log."""

    def snapshot(self) -> Snapshot:
        return Snapshot(self.head, self.make())


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    messages: tuple[Envelope, ...]
    write: Ready | None
    save: SaveOrder | None
    results: tuple[Result, ...]
    applied: tuple[Applied, ...]


class MetadataMember:
    def __init__(
        self,
        *,
        member: str,
        options: MetadataOptions,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: list[Entry],
        random_fraction: Callable[[], float],
        now_ms: int,
    ) -> None:
        self.member = member
        self.catalog = Catalog.restore(snapshot.data) if snapshot.data else Catalog()
        self.raft = Raft(
            me=member,
            config=options.raft,
            hard_state=hard_state,
            snapshot=snapshot,
            entries=entries,
            random_fraction=random_fraction,
            now_ms=now_ms,
        )
        self._options = options
        self._applied_index = snapshot.head.index
        self._entries_since = self._bytes_since = 0
        self._saving = False
        self.restores = 0
        """How often a leader's snapshot replaced the catalog."""
        self._is_touched = True
        """Whether there was input since `poll` last returned None."""
        self._held: deque[Ready] = deque()
        """Readys that are being written, and the messages that wait for them."""
        self._places: dict[int, dict[int, int]] = {}
        """Index to term to token of proposals whose outcome is open. One index may have several: a member that lost
        its leadership and its entries and became leader again proposes there anew, and either entry may yet be
        committed."""
        self._reads: deque[tuple[int, int]] = deque()
        """(index, token) of reads that wait for that index to be applied."""
        self._asked: set[int] = set()
        self._committed: list[Entry] = []
        """Entries to be applied with the next `poll` that has nothing to write."""
        self._messages: list[Envelope] = []
        self._results: list[Result] = []
        self._applied: list[Applied] = []

    # --- queries -----------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Leads and knows everything that was ever committed."""
        leading = self.raft.leading
        return leading is not None and leading.has_committed and self._applied_index >= leading.first_index

    @property
    def applied_index(self) -> int:
        return self._applied_index

    def wake_at_ms(self) -> int:
        return self.raft.wake_at_ms()

    # --- inputs --------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now_ms: int) -> None:
        self._is_touched = True
        self.raft.step(sender, message, now_ms)

    def tick(self, now_ms: int) -> None:
        self._is_touched = True
        self.raft.tick(now_ms)

    def propose(self, change: Change, token: int) -> None:
        """The outcome comes as a result with this token; or a typed error is raised now, and nothing was proposed."""
        self._is_touched = True
        data = encode_change(change)
        if len(self._places) >= WAITING_MAX:
            raise TooManyReads(reads_max=WAITING_MAX)
        self._await(self.raft.propose(data), token)

    def propose_members(self, change: MembersChange) -> None:
        """No caller waits for it: the membership itself shows the outcome."""
        self._is_touched = True
        self.raft.propose_members(change)

    def _await(self, place: EntryPlace, token: int) -> None:
        self._places.setdefault(place.index, {})[place.term] = token

    def transfer(self, heir: str, now_ms: int) -> None:
        """Hand leadership of the group over."""
        self._is_touched = True
        self.raft.transfer(heir, now_ms)

    def campaign(self, now_ms: int) -> None:
        """Stand for election now."""
        self._is_touched = True
        self.raft.campaign(now_ms)

    def read(self, token: int) -> None:
        """Ask for a linearizable read. `ReadDone` or `RequestFailed` follows."""
        self._is_touched = True
        if len(self._asked) + len(self._reads) >= WAITING_MAX:
            raise TooManyReads(reads_max=WAITING_MAX)
        self.raft.read(token)
        self._asked.add(token)

    def wait_applied(self, index: int, token: int) -> None:
        """`ReadDone` follows once this index is applied here: for a read that the leader has confirmed elsewhere."""
        self._is_touched = True
        if len(self._asked) + len(self._reads) >= WAITING_MAX:
            raise TooManyReads(reads_max=WAITING_MAX)
        self._reads.append((index, token))
        self._finish_reads()

    def forget(self, *tokens: int) -> None:
        """The caller no longer waits. The proposals may still be applied."""
        self._is_touched = True
        gone = frozenset(tokens)
        self._asked -= gone
        self._reads = deque(pair for pair in self._reads if pair[1] not in gone)
        for index, waiting in list(self._places.items()):
            kept = {term: other for term, other in waiting.items() if other not in gone}
            if kept:
                self._places[index] = kept
            else:
                del self._places[index]

    # --- outputs ---------------------------------------------------------------------------------------

    def poll(self) -> Output | None:
        if not self._is_touched:
            return None  # channels poll a node thousands of times a second; the group has output far less often
        output = self._poll()
        self._is_touched = output is not None
        return output

    def _poll(self) -> Output | None:
        ready = self.raft.ready()
        if ready is not None:
            self._messages += ready.messages
            for read in ready.reads:
                self._read_answered(read)
            self._committed += ready.committed
            if ready.must_persist or self._held:
                self._held.append(ready)
            else:
                self._messages += ready.messages_after
        write = ready if ready is not None and ready.must_persist else None
        if write is None:
            # Entries to write go first: the disk works while the catalog applies.
            for entry in self._committed:
                self._apply(entry)
            self._committed.clear()
        self._finish_reads()
        save = self._due_snapshot()
        if not (self._messages or write or save or self._results or self._applied):
            return None
        output = Output(
            messages=tuple(self._messages),
            write=write,
            save=save,
            results=tuple(self._results),
            applied=tuple(self._applied),
        )
        self._messages, self._results, self._applied = [], [], []
        return output

    def written(self, number: int) -> None:
        """All Readys up to this one are durable."""
        self._is_touched = True
        self.raft.persisted(number)
        while self._held and self._held[0].number <= number:
            ready = self._held.popleft()
            if ready.snapshot is not None:
                self._restore(ready.snapshot)
            # MM3. One write may cover a later term too, in which a new leader's entries replaced those that an earlier
            # answer refers to. Messages of a past term are useless, so they are not sent.
            self._messages += [sent for sent in ready.messages_after if sent.message.term >= self.raft.term]

    def saved(self, snapshot: Snapshot, keep_from_index: int) -> None:
        """The snapshot of the catalog is durable."""
        self._is_touched = True
        self._saving = False
        if snapshot.head.index > self.raft.log.snapshot.head.index:
            self.raft.compact(snapshot, keep_from_index=keep_from_index)

    # --- the catalog -----------------------------------------------------------------------------------

    def _apply(self, entry: Entry) -> None:
        self._applied_index = entry.index
        self._entries_since += 1
        self._bytes_since += entry.size_bytes
        applied = None
        if entry.kind is EntryKind.CHANGE:
            # An unreadable entry must not be skipped: this member stops here, or it would differ from the others from
            # here on.
            applied = self.catalog.apply(entry.index, decode_change(entry.data))
            self._applied.append(applied)
        else:
            self.catalog.advance(entry.index)
        for term, token in self._places.pop(entry.index, {}).items():
            if term != entry.term:
                self._results.append(RequestFailed(token, ProposalLost(index=entry.index, term=term)))
            elif applied is not None:
                self._results.append(Done(token, applied))

    def _restore(self, snapshot: Snapshot) -> None:
        """A leader's snapshot skips entries, and with them outcomes that callers wait for."""
        self.catalog = Catalog.restore(snapshot.data) if snapshot.data else Catalog()
        self.restores += 1
        self._committed.clear()
        self._applied_index = snapshot.head.index
        self._entries_since = self._bytes_since = 0
        for index in [index for index in self._places if index <= snapshot.head.index]:
            for token in self._places.pop(index).values():
                self._results.append(RequestFailed(token, OutcomeUnknown(what=f"the change at index {index}")))

    def _due_snapshot(self) -> SaveOrder | None:
        options = self._options
        due = self._entries_since >= options.snapshot_entries or self._bytes_since >= options.snapshot_bytes
        if not due or self._saving:
            return None
        log, index = self.raft.log, self._applied_index
        term = log.term_at(index)
        if term is None:
            return None
        self._saving = True
        self._entries_since = self._bytes_since = 0
        head = SnapshotHead(index, term, log.members_at(index))
        return SaveOrder(head, self.catalog.snapshot_of_now(), max(1, index + 1 - options.keep_entries))

    # --- reads -------------------------------------------------------------------------------------------

    def _read_answered(self, read: ReadReady | ReadAborted) -> None:
        if read.token not in self._asked:
            return
        self._asked.discard(read.token)
        if isinstance(read, ReadReady):
            self._reads.append((read.index, read.token))
        else:
            self._results.append(RequestFailed(read.token, NotLeader(leader=self.raft.leader)))

    def _finish_reads(self) -> None:
        if not self._reads:
            return
        ready = [pair for pair in self._reads if pair[0] <= self._applied_index]
        if ready:
            self._reads = deque(pair for pair in self._reads if pair[0] > self._applied_index)
            self._results += [ReadDone(token, index) for index, token in ready]
