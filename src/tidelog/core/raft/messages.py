"""Messages between members of a Raft group, and what the core orders from its caller.

Indexes are from 1; index 0 with term 0 is the place before the first entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from tidelog.core.raft.members import Members


class EntryKind(IntEnum):
    EMPTY = 0
    """A leader's first entry of its term: once it is committed, so are all entries before it (section 5.4.2)."""
    CHANGE = 1
    """For the state machine."""
    MEMBERS = 2
    """A membership, in force from the moment it is in the log (section 4.1 of the dissertation)."""


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of a proposal: it is committed if the entry applied at this index has this term, else it is not."""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind
    data: bytes = b""
    members: Members | None = None
    """The membership in a MEMBERS entry."""

    @property
    def size_bytes(self) -> int:
        return len(self.data) + 32


@dataclass(frozen=True, slots=True)
class HardState:
    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The last entry that a snapshot covers, and the membership at that entry."""

    index: int = 0
    term: int = 0
    members: Members = field(default_factory=Members)


@dataclass(frozen=True, slots=True)
class Snapshot:
    head: SnapshotHead
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    term: int
    last_index: int
    last_term: int
    pre: bool
    """A pre-vote: it changes no term and no vote (section 9.6 of the dissertation)."""
    forced: bool = False
    """The leader itself asked for this election, so its lease does not protect it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteAnswer:
    term: int
    granted: bool
    pre: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries:
    """Entries that follow (previous_index, previous_term); without entries, a heartbeat."""

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int
    round: int
    """Answers repeat it: a majority of answers to a round proves that the leader still led when it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAnswer:
    term: int
    round: int
    accepted: bool
    index: int
    """Accepted: held and durable up to here. Rejected: where the follower may agree, see `hint_term`."""
    rejected_index: int = 0
    """The previous_index that did not match."""
    hint_term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk:
    term: int
    round: int
    head: SnapshotHead
    size_bytes: int
    checksum: int
    """CRC-32 of the whole snapshot."""
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAnswer:
    term: int
    round: int
    index: int
    """The bytes received so far of the snapshot."""
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow:
    """The leader hands over to this member: ask for votes at once."""

    term: int


Message: TypeAlias = (
    VoteRequest | VoteAnswer | AppendEntries | AppendAnswer | SnapshotChunk | SnapshotAnswer | TimeoutNow
)


class Envelope(NamedTuple):
    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class ReadReady:
    """The read may be served from the state machine as soon as it has applied `index`."""

    token: int
    index: int


@dataclass(frozen=True, slots=True)
class ReadAborted:
    """The leader stepped down before a majority confirmed it: ask the new one."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the caller must do now.

    RD1  `messages` may leave at once.
    RD2  `hard_state`, `snapshot` and `entries` are made durable in this order, of all Readys in the order of their
         numbers; one fsync may cover many. Then, and only then, call `persisted(number)` and send `messages_after`.
    RD3  A snapshot replaces the whole log and the state machine. Entries replace whatever the log holds from the
         index of the first of them on.
    RD4  `committed` is applied in order, after the snapshot of this or an earlier Ready.
    RD5  After a failed write or sync nothing of this Ready was done: stop, and start again from what the disk holds.
    """

    number: int
    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    messages: tuple[Envelope, ...]
    messages_after: tuple[Envelope, ...]
    committed: tuple[Entry, ...]
    reads: tuple[ReadReady | ReadAborted, ...]

    @property
    def must_persist(self) -> bool:
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)
