"""Messages between a native client and a node: producing and fetching.

Administration (create, describe, alter ...) travels as JSON requests; these are the two hot paths. Produce messages and
their answers are one-way messages with tokens that the client chooses, so thousands can be in flight without a task for
each.

CM1  Every `Produce` is answered by exactly one `Produced` with its token, while the link is open. If the link ends
     first, the outcome is unknown, and a producer with an id may send the same seqs again (invariant 6).
CM2  A refusal says by its error whether it is definite: nothing of the block is or will be in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tidelog.errors import LogError

Buffer: TypeAlias = bytes | bytearray | memoryview

ANY_OFFSET = -1


class AckPolicy(IntEnum):
    """When a block counts as produced."""

    NONE = 0
    """No ack; the block may be lost."""
    LEADER = 1
    """Durable at the leader; lost if the leader fails before others have it."""
    ALL = 2
    """Committed: durable on every in-sync replica, and on at least min_isr of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """One made block for a channel."""

    token: int
    channel_id: int
    leader_epoch: int
    """The leader epoch that the client knows; 0 leaves it open."""
    ack: AckPolicy
    expected_offset: int = ANY_OFFSET
    """Only if the block would get this offset (optimistic concurrency)."""
    block: Sequence[Buffer]
    """The bytes of a made block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    token: int
    first_offset: int = 0
    """The offset of the block's first record. A block that is already there is answered with its place."""
    error: LogError | None = None
    """Why it was refused; its fields tell the client what to do (`NotChannelLeader` names the leader)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Request committed blocks from `offset` on, from any in-sync replica."""

    channel_id: int
    offset: int
    bytes_max: int
    wait_ms: int
    """How long to wait for the first record; 0 answers at once."""
    leader_epoch: int = 0
    """The newest leader epoch the client has seen; a replica that knows only older ones refuses (KIP-320)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Whole blocks. The first may begin before the requested offset; the caller skips the records before it."""

    leader_epoch: int
    committed_end: int
    log_start: int
    data: Sequence[Buffer] = ()
