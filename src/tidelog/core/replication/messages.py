"""What the replicas of a channel say to each other, and to the metadata leader, free of any wire.

The names are those of seed 001; what its messages lack for safety (epochs, what is held durably, where histories part)
is added. Offsets are half-open everywhere; `docs/protocols/replication.md` has the bytes and the seed's field names.

MS1  A request and its answer carry the leader epoch; whoever reads an epoch that is not its own drops the message.
MS2  `held_end` is the acknowledgement: everything below it is as durable at the sender as the channel promises.
MS3  An answer without data takes no request away: the leader still owes its sender the next records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A replica to its leader: this is what I hold, send me what follows. It stands until it is answered with data."""

    channel_id: int
    leader_epoch: int
    request_id: int
    """Rises with every request of this replica in this epoch. A refusal of an older one is dropped."""
    fetch_from: int
    """The next offset it can take."""
    last_epoch: int
    """Of the record before `fetch_from`; 0 if it holds none."""
    held_end: int
    """MS2."""
    committed_end: int
    """As far as it knows."""
    incarnation: int
    """Of its node (R3)."""
    channel_epoch: int
    """Of the channel as its sender knows it: it joins the ISR only on what it said in the epoch in which it joins. So
    who withdraws knows, once that epoch is over, that nothing it said before can bring it back in."""
    chunk_bytes_max: int
    again: bool = False
    """Send from `fetch_from` even if that was sent before: it did not arrive, or was cut since. Without it, the request
    may only acknowledge what is held, while more is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """The next blocks, or nothing but how far the channel is committed."""

    channel_id: int
    leader_epoch: int
    request_id: int
    committed_end: int
    log_start: int
    """The leader's: what lies before it is gone."""
    log_end: int
    """The leader's: beyond the data, there is more to ask for at once."""
    first_offset: int = 0
    data: Sequence[Buffer] = ()
    """Whole blocks, one after the other; empty means none."""

    @property
    def data_bytes(self) -> int:
        return sum(map(len, self.data))


class SyncError(Enum):
    """Why a request is not answered with data."""

    NOT_LEADER = 1
    """Of this epoch. The catalog will say who is."""
    BAD_RANGE = 2
    """Retention has removed it: begin anew at `log_start` (R11)."""
    BACKPRESSURE = 3
    """The budget is used up: ask again after `retry_after_ms`."""
    CHANNEL_CLOSED = 4
    """Deleted, paused, or the sender is none of its replicas."""
    DIVERGED = 5
    """The sender's history is not the leader's: `epoch` is the largest one not above the sender's last, and ends at
    `end` (KIP-279)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncNack:
    channel_id: int
    leader_epoch: int
    """The leader's own, as it knows it."""
    request_id: int
    error: SyncError
    log_start: int = 0
    epoch: int = 0
    end: int = 0
    retry_after_ms: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """There is data, and no request of yours stands: ask again. Heals whatever was lost."""

    channel_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSilent:
    """To the metadata leader: the leader of this channel has been silent for three heartbeats (R6)."""

    channel_id: int
    leader: str
    leader_epoch: int
    channel_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign:
    """To the metadata leader: I cannot go on leading this channel (a full disk, a damaged log): elect another (R10)."""

    channel_id: int
    leader_epoch: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """To the metadata leader: I gave up my copy of this channel (under capacity): take me out and place another."""

    channel_id: int
    channel_epoch: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLog:
    """From the metadata leader, before it elects: how far does your log go, what do you know of the others' (R5)?"""

    channel_id: int
    channel_epoch: int
    with_memory: bool = False
    """Whether the answer may hold more than an older version can read: `LogFacts.memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMemory:
    """What a replica knows beside its own log, from what leaders and followers told it, and durably."""

    epoch: int = 0
    """The leader epoch in which it last heard of the others. It says nothing about logs that have gone on since."""
    committed_end: int = 0
    """The largest that a leader ever told it, whether it holds that much or not. An unclean election voids it."""
    ends: tuple[tuple[str, int], ...] = ()
    """(node, end) by name: so far it was durable there, its own node included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The answer: the last epoch and the end of what is held durably, and what it remembers."""

    channel_id: int
    channel_epoch: int
    incarnation: int
    last_epoch: int
    log_end: int
    memory: LogMemory = LogMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeChange:
    """To the metadata leader: bring this change of the catalog about, as encoded by it.

    Nobody answers. Changes of channels are compare-and-set, so the catalog itself shows what became of them.
    """

    change: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoadReport:
    """To the metadata leader, now and then: what placement must know of this node."""

    incarnation: int
    free_bytes: int
    capacity_bytes: int
    chains: tuple[int, ...]
    """Channels of which it holds every retained, committed record: what `causal:<hex>` tags advertise."""


ReplicationMessage: TypeAlias = (
    SyncRequest
    | SyncResponse
    | SyncNack
    | Notify
    | LeaderSilent
    | Resign
    | Withdraw
    | AskLog
    | LogFacts
    | ProposeChange
    | NodeLoadReport
)
