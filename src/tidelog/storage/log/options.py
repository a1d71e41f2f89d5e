"""How a log is kept: sizes, durability, retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tidelog.blocks.header import BlockLimits
from tidelog.errors import InvalidConfig
from tidelog.units import GIB, KIB, MIB

MEMORY_LOG_BYTES_MAX = 3 * GIB
"""The hard cap of a memory log (seed 001)."""


class Fsync(Enum):
    ALWAYS = "always"
    """An ack means durable: one fdatasync for all that is waiting, then the acks."""
    INTERVAL = "interval"
    """An ack means written; a sync follows within `fsync_interval_ms`."""
    NEVER = "never"
    """An ack means written; the operating system decides when it reaches the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What may be trimmed from the front of a log. None means no limit of that kind."""

    max_age_ms: int | None = None
    """By the append time of the leader, never by the clock of a boat (B1)."""
    max_bytes: int | None = None
    max_events: int | None = None

    def __post_init__(self) -> None:
        values = {"max_age_ms": self.max_age_ms, "max_bytes": self.max_bytes, "max_events": self.max_events}
        problems = [f"{name} must be positive" for name, value in values.items() if value is not None and value <= 0]
        if problems:
            raise InvalidConfig(section="retention", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Per log; the same for all replicas of a channel where it says so."""

    segment_bytes_max: int = 64 * MIB
    """A segment is sealed before it would grow beyond this. Retention works in whole segments."""
    segment_age_max_ms: int | None = None
    """A segment is sealed once its first block is older than this."""
    segment_events_max: int | None = None
    """A segment is sealed before it would hold more records than this; one larger block has one of its own."""
    index_interval_bytes: int = 64 * KIB
    """Bytes of blocks that share one index entry: larger is smaller in memory, slower to seek."""
    fsync: Fsync = Fsync.ALWAYS
    fsync_interval_ms: int = 1_000
    retention: Retention = field(default_factory=Retention)
    retention_interval_ms: int = 10_000
    """How often retention runs by itself."""
    reserve_bytes: int = 16 * MIB
    """Disk space that appends leave alone, so that truncation and metadata still work when it is full (S4)."""
    limits: BlockLimits = field(default_factory=BlockLimits)

    def __post_init__(self) -> None:
        problems = []
        if self.segment_bytes_max < 4 * KIB:
            problems.append("segment_bytes_max must be at least 4 KiB")
        if self.index_interval_bytes < 1:
            problems.append("index_interval_bytes must be positive")
        if self.segment_age_max_ms is not None and self.segment_age_max_ms <= 0:
            problems.append("segment_age_max_ms must be positive")
        if self.segment_events_max is not None and self.segment_events_max < 1:
            problems.append("segment_events_max must be positive")
        if self.fsync_interval_ms <= 0 or self.retention_interval_ms <= 0:
            problems.append("intervals must be positive")
        if self.reserve_bytes < 0:
            problems.append("reserve_bytes must not be negative")
        if problems:
            raise InvalidConfig(section="log", problems=problems)
