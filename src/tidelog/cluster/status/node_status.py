"""A node's view of the cluster as plain JSON, for status pages and tools."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.status.chain_holders import advertised_chains
from tidelog.cluster.status.channel_status import channels_summary
from tidelog.core.founding import WaitForVoters
from tidelog.core.membership import node_of


def node_status(core: NodeCore, *, now_ms: int, synced_loss: str = "") -> dict[str, Any]:
    """The state of the cluster as this node knows it now; nothing here is confirmed by others.

    `synced_loss` describes synced data that the store found missing; empty if nothing.
    """
    member, doubt = core.member, core.standing.doubt
    disk_findings = _disk_findings(core.node, doubt=doubt, synced_loss=synced_loss)
    status: dict[str, Any] = {
        "node": core.node,
        "cluster": core.cluster.hex() or None,
        "standing": _standing(core),
        "waiting": core.decision.reason if member is None and isinstance(core.decision, WaitForVoters) else None,
        "refusal": core.registration.refusal,
        "damage": core.damage,
        "metadata_doubt": doubt or None,
        "synced_loss": synced_loss or None,
        "disk_findings": disk_findings,
        "incarnation": core.incarnation,
        "session_valid": core.holder.is_valid(now_ms),
        "leader": core.leader,
        "metadata": None,
        "members": [],
        "nodes": _nodes(core),
        "channels": channels_summary(core),
        "proximity": core.proximity.snapshot(now_ms),
        "findings": [*disk_findings, *core.proximity.explain(now_ms)],
    }
    if member is not None:
        statistics = member.raft.statistics()
        status["metadata"] = {
            "role": statistics.role.value,
            "term": statistics.term,
            "commit": statistics.commit,
            "applied": statistics.applied,
            "last_index": statistics.last_index,
            "snapshot_index": statistics.snapshot_index,
            "log_entries": statistics.log_entries,
            "elections": statistics.elections,
        }
        status["members"] = _members(core)
    return status


def _disk_findings(node: str, *, doubt: str, synced_loss: str) -> list[str]:
    """Losses of this node's own disk, and what to do about them (docs/decisions/0019)."""
    found = []
    if doubt:
        found.append(
            f"the metadata of {node} may be an older copy of itself: {doubt}. Stop it, move .tidelog/metadata away "
            "and start it again: it joins as a new disk"
        )
    if synced_loss:
        found.append(
            f"the disk of {node} lost what it had synced, as its last start found: {synced_loss}. Its replicas count "
            "once they were compared with the others; a disk that does so again is to be replaced"
        )
    return found


def _standing(core: NodeCore) -> str:
    """The node's role in one word: seeking (no metadata), joining (not registered), leader, voter or learner."""
    if core.member is None:
        return "seeking"
    if not core.is_registered:
        return "joining"
    if core.is_leader:
        return "leader"
    return "voter" if core.member.raft.is_voter else "learner"


def _members(core: NodeCore) -> list[dict[str, Any]]:
    assert core.member is not None
    raft = core.member.raft
    found = []
    for name in raft.members.all:
        progress = None if raft.leading is None else raft.leading.progress.get(name)
        match = None if progress is None else progress.match
        found.append(
            {
                "member": name,
                "node": node_of(name),
                "role": "voter" if name in raft.members.voters else "learner",
                "leads": name == raft.leader,
                "match": raft.log.stable if name == raft.me else match,
                "lag": None if match is None else max(0, raft.log.commit - match),
            }
        )
    return found


def _nodes(core: NodeCore) -> list[dict[str, Any]]:
    if core.catalog is None:
        return []
    chains = advertised_chains(core)
    return [
        {
            "node": record.node,
            "state": record.state.value,
            "incarnation": record.incarnation,
            "addresses": dict(record.addresses),
            "host": record.host,
            "tags": list(record.tags),
            "capacity_bytes": record.capacity_bytes,
            "software": record.software,
            "chains": chains.get(record.node),
            "session": core.member_controller.sessions.is_live(record.node) if core.is_leader else None,
        }
        for record in core.catalog.nodes()
    ]


def record_json(value: Any) -> Any:
    """A record of the catalog as JSON."""
    if is_dataclass(value):
        return {field.name: record_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [record_json(each) for each in value]
    return value
