"""What a node says of its replicas: how far they are behind, for the metrics; what it holds, for the placement."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.statistics import Storage
from tidelog.core.replication.messages import NodeLoadReport
from tidelog.core.replication.roles import Role


def observe_lag(replica: ChannelReplica, silence_of: Callable[[str, int], int], now_ms: int) -> None:
    """Bytes are records of average size."""
    leading, following = replica.leading, replica.following
    record_bytes = replica.log_bytes // max(1, replica.log_end - replica.log_start)
    if leading is not None:
        # Seed 001: the longest silence of a replica. Nodes speak in pairs, so either sign of life counts (R7).
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
