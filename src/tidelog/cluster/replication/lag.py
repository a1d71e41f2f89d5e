"""What a node reports of its replicas: where each stands, how far it is behind, and which chains are held here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.state import Storage
from tidelog.core.replication.messages import NodeLoadReport
from tidelog.core.replication.roles import Role


def observe_lag(replica: ChannelReplica, silence_of: Callable[[str, int], int], now_ms: int) -> None:
    """Bytes are records of average size."""
    leading, following = replica.leading, replica.following
    record_bytes = replica.log_bytes // max(1, replica.log_end - replica.log_start)
    if leading is not None:
        # Seed 001: the longest silence of a replica. Nodes speak in pairs, so a message of either kind counts (R7).
        silence_ms = max(
            (min(now_ms - heard_ms, silence_of(peer, now_ms)) for peer, heard_ms in leading.heard_ms().items()),
            default=0,
        )
        records = leading.lag_records()
        replica.counts.observe_leader(silence_us=silence_ms * 1000, records=records, byte_count=records * record_bytes)
    elif following is not None:
        records = max(0, following.leader_end - replica.held_end)
        replica.counts.observe_replica(
            silence_us=following.silence_ms(now_ms) * 1000, records=records, byte_count=records * record_bytes
        )
    else:
        replica.counts.observe_nothing()


def load_report_of(
    node: str, replicas: Iterable[ChannelReplica], incarnation: int, free_bytes: int, capacity_bytes: int
) -> NodeLoadReport:
    held = [
        replica.channel_id
        for replica in replicas
        if replica.storage is Storage.READY
        and not replica.damaged
        and (replica.role is Role.LEADER or replica.record.member(node) is not None)
    ]
    return NodeLoadReport(
        incarnation=incarnation, free_bytes=free_bytes, capacity_bytes=capacity_bytes, chains=tuple(sorted(held))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatistics:
    """Where a replica on this node stands."""

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
        leader=replica.record.leader,
        leader_epoch=replica.record.leader_epoch,
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
