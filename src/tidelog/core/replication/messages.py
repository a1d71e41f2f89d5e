"""Messages between the replicas of a channel, and to the metadata leader.

The names are those of seed 001; fields that its messages lack for safety (epochs, durable ends, where histories
diverge) are added. Offsets are half-open everywhere; `docs/protocols/replication.md` has the bytes and the seed's field
names.

MS1  A request and its answer contain the leader epoch; a receiver in another epoch drops the message.
MS2  `held_end` is the acknowledgement: everything below it is as durable at the sender as the channel promises.
MS3  An answer without data does not end a standing request: the leader still owes its sender the next records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A replica to its leader: the end that it holds, and a request for what follows. It stands until it is answered
    with data."""

    channel_id: int
    leader_epoch: int
    request_id: int
    """Rises with every request of this replica in this epoch. A refusal of an older one is dropped."""
    fetch_from: int
    """The next offset that the replica can take."""
    last_epoch: int
    """The epoch of the record before `fetch_from`; 0 if it holds none."""
    held_end: int
    """MS2."""
    committed_end: int
    """The committed end that it knows."""
    incarnation: int
    """The incarnation of its node (R3)."""
    channel_epoch: int
    """The channel epoch that its sender knows: it joins the ISR only by a request sent in the epoch in which it
    joins. So a replica that withdraws knows, once that epoch is over, that none of its earlier requests can bring it
    back in."""
    chunk_bytes_max: int
    again: bool = False
    """Send from `fetch_from` even if that was sent before: it did not arrive, or was cut since. Without it the request
    may only acknowledge records, while more are in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """The next blocks, or only the committed end."""

    channel_id: int
    leader_epoch: int
    request_id: int
    committed_end: int
    log_start: int
    """The leader's log start: records before it are gone."""
    log_end: int
    """The leader's log end: beyond the data, there is more to request at once."""
    first_offset: int = 0
    data: Sequence[Buffer] = ()
    """Whole blocks, one after the other; empty means none."""

    @property
    def data_bytes(self) -> int:
        return sum(map(len, self.data))


class SyncError(Enum):
    """Why a request is not answered with data."""

    NOT_LEADER = 1
    """The receiver does not lead in this epoch. The catalog will name the leader."""
    BAD_RANGE = 2
    """Retention has removed the range: begin anew at `log_start` (R11)."""
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
    """The leader's own channel epoch, as far as it knows it."""
    request_id: int
    error: SyncError
    log_start: int = 0
    epoch: int = 0
    end: int = 0
    retry_after_ms: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """There is data, and no request of this replica stands: request again. Recovers from any lost message."""

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
    """To the metadata leader: this leader cannot go on (a full disk, a damaged log): elect another (R10)."""

    channel_id: int
    leader_epoch: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """To the metadata leader: the sender gave up its copy of this channel (under capacity): remove it and place
    another."""

    channel_id: int
    channel_epoch: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLog:
    """From the metadata leader, before it elects: how far does the log go, and which ends of others are known (R5)?"""

    channel_id: int
    channel_epoch: int
    with_memory: bool = False
    """Whether the answer may have a field that older versions cannot read: `LogFacts.memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMemory:
    """What a replica knows durably beside its own log, from messages of leaders and followers."""

    epoch: int = 0
    """The leader epoch in which it last heard of the others. Logs may have grown since."""
    committed_end: int = 0
    """The largest committed end that a leader ever sent it, whether it holds that much or not. An unclean election
    voids it."""
    ends: tuple[tuple[str, int], ...] = ()
    """(node, durable end) by name, its own node included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The answer: the last epoch, the durable end, and what it knows of the others."""

    channel_id: int
    channel_epoch: int
    incarnation: int
    last_epoch: int
    log_end: int
    memory: LogMemory = LogMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeChange:
    """To the metadata leader: propose this change of the catalog.

    There is no answer. Changes of channels are compare-and-set, so the catalog itself shows the outcome.
    """

    change: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoadReport:
    """To the metadata leader, periodically: the facts about this node that placement needs."""

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
