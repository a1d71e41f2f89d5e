"""Options, facts and output of a node's core."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.cluster.metadata.member import MetadataOptions, Output, Result
from tidelog.cluster.replication.replicas import ReplicasOutput
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
