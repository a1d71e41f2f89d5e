"""Orders of replicas to their node's storage, and the results. The writer's thread carries orders out, in order.

Every order names the log generation that it is for: a log that was closed and opened again is another generation, and
results of an earlier one are dropped.

What a caller must keep: orders of one channel are carried out in the order they were given; reads may overtake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.blocks.block import Block
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.core.catalog import ChannelConfig
from tidelog.errors import LogError
from tidelog.storage.store.channel_logs import LogState


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLog:
    channel_id: int
    generation: int
    name: str
    config: ChannelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBlocks:
    """Stamped blocks that continue the log."""

    channel_id: int
    generation: int
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Cut everything at or after `offset`; with nothing there to cut it only tells the state."""

    channel_id: int
    generation: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Throw everything away and go on, empty, at `base_offset`."""

    channel_id: int
    generation: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLog:
    """Apply retention, never at or above `floor`."""

    channel_id: int
    generation: int
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAtLog:
    """Only tell the state: a read may have found damage."""

    channel_id: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldLog:
    """Read the log from its last snapshot on and fold it; `hint` may know where that is. Damage fails it, but for
    damage that begins below `skip_below`."""

    channel_id: int
    generation: int
    hint: int | None
    skip_below: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterLog:
    channel_id: int
    generation: int
    name: str
    config: ChannelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLog:
    channel_id: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLog:
    """The channel was deleted, or has no replica here any more."""

    channel_id: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBlocks:
    """Old blocks for a replica that is behind; by any thread."""

    channel_id: int
    generation: int
    peer: str
    request_id: int
    offset: int
    bytes_max: int
    end: int


StorageOrder: TypeAlias = (
    OpenLog
    | AppendBlocks
    | TruncateLog
    | ResetLog
    | SweepLog
    | LookAtLog
    | FoldLog
    | AlterLog
    | CloseLog
    | DeleteLog
    | ReadBlocks
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReady:
    """The log was opened, truncated, reset, swept or looked at: this is what it is now."""

    channel_id: int
    generation: int
    state: LogState | None
    error: LogError | None = None
    swept: bool = False
    """After retention, a repair, or a look at the log: appends and truncations may have been ordered since, so the log
    end in `state` may be out of date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The durable end of the log, or the reason why blocks were refused, with the end of the log."""

    channel_id: int
    generation: int
    held_end: int
    log_end: int
    error: LogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    channel_id: int
    generation: int
    fold: ReplicaFold | None
    error: LogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRead:
    channel_id: int
    generation: int
    peer: str
    request_id: int
    offset: int
    blocks: Sequence[Block]
    error: LogError | None = None


StorageResult: TypeAlias = LogReady | Appended | Folded | BlocksRead
