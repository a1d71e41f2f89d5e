"""Where one replica stands, at one moment: for status pages, clients and checkers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tidelog.core.replication.roles import Role

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica


class Storage(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    READY = "ready"
    CHANGING = "changing"
    """Being truncated, reset, or looked at after a failure: nothing is appended meanwhile."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatistics:
    """Of a replica on this node."""

    channel_id: int
    name: str
    role: Role
    storage: str
    leader: str | None
    leader_epoch: int
    log_start: int
    log_end: int
    held_end: int
    committed_end: int
    serves: bool
    """Whether it may tell what is committed."""
    lag_records: int
    problem: str


def statistics_of(replica: ChannelReplica) -> ReplicaStatistics:
    record = replica.record
    lag = 0
    if replica.leading is not None:
        lag = replica.leading.lag_records()
    elif replica.following is not None:
        lag = max(0, replica.following.leader_end - replica.held_end)
    return ReplicaStatistics(
        channel_id=replica.channel_id,
        name=replica.name,
        role=replica.role,
        storage=replica.storage.value,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        log_start=replica.log_start,
        log_end=replica.log_end,
        held_end=replica.held_end,
        committed_end=replica.committed_end,
        serves=replica.serves,
        lag_records=lag,
        problem=replica.problem,
    )


def channel_tag(channel_id: int) -> str:
    """How a node advertises that it holds a channel (seed 001)."""
    return f"causal:{channel_id:016x}"
