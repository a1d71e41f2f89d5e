"""The settings of replication that hold for a node and all its channels. `problems` lists all that is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import InvalidConfig
from tidelog.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """Per node; the names in parentheses are those of seed 002."""

    replica_max_lag_ms: int = 5_000
    """(replica.max.lag.time) How long an in-sync replica may be behind before its leader removes it from the ISR."""
    replica_max_leader_timeout_ms: int = 5_000
    """(replica.max.leader.timeout) Reports of a silent leader count together within this time, or within two heartbeats
    of the channel if they take longer (R6)."""
    replica_max_idle_wait_ms: int = 10_000
    """(replica.max.idle.wait) A replica repeats its request after this time, even if nothing happens."""
    chunk_bytes_max: int = 1 * MIB
    """The most bytes of blocks in one answer; the first block always fits."""
    uncommitted_bytes_max: int = 64 * MIB
    """The most uncommitted bytes of a channel at its leader. Beyond it producers are told to wait."""
    tail_bytes_max: int = 8 * MIB
    """The newest bytes of a channel that stay in memory, for replicas and readers at the end of the log."""
    tails_bytes_max: int = 256 * MIB
    """The same for all channels of a node together."""
    commit_notice_ms: int = 4
    """After this time replicas are sent a new committed end, if no records come that could carry it."""
    repeat_ms: int = 500
    """A request to the metadata leader that was not answered is repeated after this time."""
    retry_ms: int = 100
    """Between two attempts after a temporary failure: a leader that does not lead yet, a full disk."""
    withdrawn_retry_ms: int = 30_000
    """A replica that gave up its copy for lack of space checks after this time whether there is room again."""
    load_report_ms: int = 5_000
    """How often the metadata leader gets the facts about a node that placement needs."""
    snapshot_bytes: int = 64 * MIB
    """After this much a leader appends a snapshot of producers and cursors: it bounds what a new leader has to read."""
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    """A producer that wrote nothing for this long is closed by its channel's leader; using it again opens it anew."""
    producer_idle_min_ms: int = 600_000
    """No producer is closed, also to make room, before it was silent for this long: longer than a client retries."""
    channels_max: int = 100_000
    """The most channels of the cluster; creating more is refused."""
    replicas_per_node_max: int = 25_000
    """The most replicas of one node; a channel that would exceed it is refused."""
    cursor_hold_bytes_max: int = 1024 * MIB
    """How much beyond its retention a channel keeps for named cursors (R12)."""

    def __post_init__(self) -> None:
        problems = [f"{name} must be positive" for name in self.__slots__ if getattr(self, name) < 1]
        if self.tails_bytes_max < self.tail_bytes_max:
            problems.append("tails_bytes_max must be at least tail_bytes_max")
        if problems:
            raise InvalidConfig(section="replication", problems=problems)
