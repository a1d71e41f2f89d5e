"""Options, facts and output of a node's core."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.cluster.metadata.member import MetadataOptions, Output, Result
from tidelog.cluster.node.node_file import NodeFile
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.core.catalog import CATALOG_VERSION, RegisterNode
from tidelog.core.catalog.records import DAMAGED_MAX
from tidelog.core.liveness import LivenessConfig
from tidelog.core.membership import VOTERS_MAX
from tidelog.core.node_messages import NodeMessage
from tidelog.core.replication.options import ReplicationOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    metadata: MetadataOptions = field(default_factory=MetadataOptions)
    liveness: LivenessConfig = field(default_factory=LivenessConfig)
    voters_max: int = VOTERS_MAX
    replication: ReplicationOptions = field(default_factory=ReplicationOptions)
    serves_channels: bool = True
    """False: a node of the metadata alone, which holds no replicas and elects no leaders: to study the group by
    itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts about this node that its registration puts into the catalog."""

    addresses: tuple[tuple[str, str], ...] = ()
    host: str = ""
    tags: tuple[str, ...] = ()
    capacity_bytes: int = 0
    software: str = ""
    verified: bool = True
    """Every channel on the disk was checked and is whole, except `damaged_channels`."""
    damaged_channels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutput:
    messages: tuple[tuple[str, NodeMessage], ...]
    """Messages to nodes."""
    member: Output | None
    """Output of the metadata group; its messages are among those above."""
    results: tuple[Result, ...]
    lines: tuple[str, ...]
    """Lines for the log."""
    replicas: ReplicasOutput | None = None
    """Orders and outcomes of the channels; their messages are among those above."""


def registration(
    node: str, incarnation: int, file: NodeFile, facts: NodeFacts, *, disk_id: str, process_id: str, at_ms: int
) -> RegisterNode:
    """Losses that the process found at its start are reported until the catalog knows them: losing the session later
    removes no copy (R5). The catalog takes at most `DAMAGED_MAX` channels: beyond that the whole disk is reported as
    unverified."""
    damaged = () if file.is_told else facts.damaged_channels
    is_countable = len(damaged) <= DAMAGED_MAX
    return RegisterNode(
        node=node,
        incarnation=incarnation,
        known_incarnation=file.known_incarnation,
        disk_id=disk_id,
        process_id=process_id,
        clean_incarnation=file.clean_incarnation,
        verified=(facts.verified and is_countable) or file.is_told,
        damaged_channels=damaged if is_countable else (),
        addresses=facts.addresses,
        host=facts.host,
        tags=facts.tags,
        capacity_bytes=facts.capacity_bytes,
        software=facts.software,
        catalog_version=CATALOG_VERSION,
        at_ms=at_ms,
    )
