"""The timeouts and limits of one member of a Raft group."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import InvalidConfig
from tidelog.units import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    heartbeat_ms: int = 100
    """A leader sends to each member at least this often."""
    election_timeout_ms: int = 600
    """A follower that hears no leader for this long, or up to twice as long (drawn anew each time), asks for votes. A
    leader that hears no majority for this long steps down."""
    commit_news_ms: int = 5
    """Followers hear of a commit with the next append, or after this long: an empty message for each would cost as much
    as the change itself. 0 sends it at once."""
    append_bytes_max: int = 256 * KIB
    """The most bytes of entries in one message; a single larger entry is sent alone."""
    inflight_max: int = 64
    """The most unanswered appends to one follower."""
    inflight_bytes_max: int = 4 * MIB
    entry_bytes_max: int = 1 * MIB
    uncommitted_bytes_max: int = 16 * MIB
    """Proposals that a leader keeps before they are committed and durable here; above it they are refused."""
    disk_stall_ms: int = 5_000
    """A leader whose own write takes longer hands over: the others may commit, and it could answer no proposal."""
    reads_max: int = 10_000
    """The most reads that wait for a majority to confirm the leader."""
    snapshot_chunk_bytes: int = 256 * KIB
    snapshot_bytes_max: int = 512 * MIB
    promote_lag_entries: int = 64
    """A learner further behind than this is not made a voter: it would delay commits."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1"
            for name in self.__slots__
            if name not in ("promote_lag_entries", "commit_news_ms") and getattr(self, name) < 1
        ]
        if self.promote_lag_entries < 0 or self.commit_news_ms < 0:
            problems.append("promote_lag_entries and commit_news_ms must not be negative")
        if self.election_timeout_ms < 3 * self.heartbeat_ms:
            problems.append(
                "election_timeout_ms must be at least 3 x heartbeat_ms, or one late heartbeat is an election"
            )
        if problems:
            raise InvalidConfig(section="raft", problems=tuple(problems))
