"""The settings of replication that a node has, whatever the channel. Says everything wrong at once."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import InvalidConfig
from tidelog.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Per node; the names in parentheses are those of seed 002."""

    replica_max_lag_ms: int = 5_000
    """(replica.max.lag.time) How long an in-sync replica may be behind before its leader goes on without it."""
    replica_max_leader_timeout_ms: int = 5_000
    """(replica.max.leader.timeout) Reports of a silent leader count together within so long, or within two heartbeats
    of the channel if they take longer (R6)."""
    replica_max_idle_wait_ms: int = 10_000
    """(replica.max.idle.wait) A replica repeats its request after so long, even if nothing happens."""
    chunk_bytes_max: int = 1 * MIB
    """Of blocks in one answer; the first block always fits."""
    uncommitted_bytes_max: int = 64 * MIB
    """Of a channel, at its leader. Beyond it producers are told to wait."""
    tail_bytes_max: int = 8 * MIB
    """Of the newest blocks of a channel that stay in memory, for replicas and readers at the end of the log."""
    tails_bytes_max: int = 256 * MIB
    """... of all channels of a node together."""
    commit_notice_ms: int = 4
    """After so long replicas are told of a new committed end, if no records come along that could carry it."""
    repeat_ms: int = 500
    """What was asked of the metadata leader, and went unheard, is asked again after so long."""
    retry_ms: int = 100
    """Between two tries of what failed for a moment: a leader that does not lead yet, a full disk."""
    withdrawn_retry_ms: int = 30_000
    """A replica that gave up its copy for want of space looks after so long whether there is room again."""
    load_report_ms: int = 5_000
    """How often the metadata leader hears what placement must know of a node."""
    snapshot_bytes: int = 64 * MIB
    """After so much a leader appends a snapshot of producers and cursors: it bounds what a new leader has to read."""
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    """A producer that wrote nothing for so long is closed by its channel's leader; who uses it again opens it anew."""
    producer_idle_min_ms: int = 600_000
    """... and none is closed, also to make room, before it was silent for so long: longer than a client sends again."""
    channels_max: int = 100_000
    """Of the cluster; more are refused when they are created."""
    replicas_per_node_max: int = 25_000
    """... and a channel that would give a node more replicas than this."""
    cursor_hold_bytes_max: int = 1024 * MIB
    """How much beyond its retention a channel keeps for named cursors (R12)."""

    def __post_init__(self) -> None:
        problems = [f"{name} must be positive" for name in self.__slots__ if getattr(self, name) < 1]
        if self.tails_bytes_max < self.tail_bytes_max:
            problems.append("tails_bytes_max must be at least tail_bytes_max")
        if problems:
            raise InvalidConfig(section="replication", problems=problems)
