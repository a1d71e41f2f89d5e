"""Messages between boat and cloud. Seqs are half-open ranges, heads and cursors inclusive.

The uplink has three conversations: the Handshake (`Hello`, `Welcome`), Live (`LiveData`, `LiveStatus`; `LiveAck`) and
Backfill (`BackfillData`, `BackfillGone`, `BackfillDone`; `BackfillAck`). `Refused` ends a session. `BlockT` is the type
of the block with the frames; the cores look at seqs only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

BlockT = TypeVar("BlockT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A boat's Handshake. An lplex boat has no lineage and cannot report lost seqs."""

    head: int
    lineage: bytes | None = None
    journal_bytes: int = 0
    boot_id: bytes = b""
    """The boot id: a random name of the journal's opening (B7)."""
    sent_through: int = 0
    """The newest seq that this boot, or one before it, may have sent or declared."""
    earlier: tuple[tuple[bytes, int], ...] = ()
    """Boot ids since the last one that was answered, each with the newest seq it may have sent."""
    lost: tuple[range, ...] = ()
    void: tuple[range, ...] = ()
    orphans: tuple[bytes, ...] = ()
    """Older lineages in the boat's journal of which it no longer knows what the cloud holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer: what is held, what is missing, and the limits of the session (U4)."""

    session: int
    cursor: int
    holes: tuple[range, ...]
    live_start: int
    known: bool
    rate_frames_per_s: float
    burst_frames: int
    fork: bool = False
    """The boat's journal is behind what is held of its lineage: it must start a new one (B7)."""
    orphan_cursors: tuple[tuple[bytes, int], ...] = ()
    """For each lineage that the Hello asked about: its cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveData(Generic[BlockT]):
    session: int
    seqs: range
    block: BlockT


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    session: int
    head: int
    journal_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillData(Generic[BlockT]):
    session: int
    seqs: range
    block: BlockT
    lost: range = range(0)
    """Seqs that follow these and that the block should hold but does not: its records are damaged there (lplex)."""
    problem: str = ""
    """What is wrong with them."""
    lineage: bytes | None = None
    """The lineage of the frames, where it is not the current one."""
    file_offset: int | None = None
    """Where the block begins in its file on the boat, as information for an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillUnread:
    """A block of an lplex boat that cannot be read: the boat's pass came by there, without frames."""

    session: int
    seqs: range
    """As the boat reports them."""
    time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillGone:
    """The boat no longer has these."""

    session: int
    seqs: range


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDone:
    """The boat has gone once through its journal. Sent only by a boat that cannot say "gone" (F5)."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAck:
    """The cursor, how far Live itself is committed (U1: it clocks the stream), and what is missing (U3)."""

    session: int
    cursor: int
    committed_through: int
    holes: tuple[range, ...]
    statuses: int | None = None
    """How many reports of this session arrived. Acks on a timer alone would hide a dead link from boat to cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillAck:
    session: int
    cursor: int
    answered: int
    """Blocks and gone ranges of this session that are settled, counted from its start."""
    remaining: tuple[range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The cloud ends the session; `code` is that of a typed error."""

    session: int
    code: str
    detail: str = ""


FromSession: TypeAlias = (
    LiveData[BlockT] | LiveStatus | BackfillData[BlockT] | BackfillUnread | BackfillGone | BackfillDone
)
ToCloud: TypeAlias = Hello | FromSession[BlockT]
ToBoat: TypeAlias = Welcome | LiveAck | BackfillAck | Refused
