"""The catalog: the state machine that Raft applies. `catalog` states the rules by number.

Modules:

    access_rules      Changes of producers, tokens and grants
    activity_rules    Events of channels and groups, kept until they are published
    catalog           The catalog and its rules
    changes           The changes that can be proposed
    channel_config    How one channel is replicated and kept
    channel_rules     Changes of channels
    codec             Records and changes as canonical JSON, driven by the types of their fields
    election_rules    Which replica may lead a channel
    group_assignment  Which member of a group reads which channel
    group_rules       Changes of consumer groups
    node_rules        Changes of nodes
    records           The records of the catalog
    refusals          The invariant that a refusal protects
    snapshot          The whole catalog as bytes
    state             The tables of the catalog, with rollback
"""

from __future__ import annotations

from tidelog.core.catalog.catalog import Applied, Catalog, CatalogStatistics, Refusal
from tidelog.core.catalog.changes import (
    BATCH_MAX,
    CATALOG_VERSION,
    CHANGE_BYTES_MAX,
    AddGrant,
    AddToken,
    AdmitNode,
    AdoptChannel,
    AlterChannel,
    BalanceGroup,
    Batch,
    Change,
    ChangeCoordinator,
    ChangeLeader,
    CloseProducer,
    CreateChannel,
    DeleteChannel,
    DeleteGroup,
    ExpandIsr,
    ExpelMember,
    FenceNode,
    ForgetActivity,
    FoundCluster,
    JoinGroup,
    LeaveGroup,
    LogReport,
    OpenProducer,
    PauseChannel,
    RaiseChannelEpoch,
    RegisterNode,
    RemoveGrant,
    RemoveNode,
    RemoveToken,
    ResumeChannel,
    RevokeToken,
    SetReadonly,
    ShrinkIsr,
    ShrinkReason,
    SingleChange,
    UpdateNode,
    decode_change,
    encode_change,
    kind_of,
)
from tidelog.core.catalog.channel_config import (
    BandwidthClass,
    ChannelConfig,
    ChannelRetention,
    FsyncPolicy,
    Keeps,
    Placement,
    UnderCapacity,
)
from tidelog.core.catalog.election_rules import Basis, Candidates
from tidelog.core.catalog.records import (
    ACTIVITY_CHANNEL,
    SCOPES,
    ActivityEvent,
    ChannelRecord,
    Damage,
    GrantRecord,
    GroupMember,
    GroupRecord,
    Happening,
    Member,
    NodeRecord,
    NodeState,
    ProducerRecord,
    TokenRecord,
    Tombstone,
    UncleanCause,
    UncleanElection,
    group_cursor,
)
from tidelog.core.catalog.state import Touched

__all__ = [
    "ACTIVITY_CHANNEL",
    "BATCH_MAX",
    "CATALOG_VERSION",
    "CHANGE_BYTES_MAX",
    "SCOPES",
    "ActivityEvent",
    "AddGrant",
    "AddToken",
    "AdmitNode",
    "AdoptChannel",
    "AlterChannel",
    "Applied",
    "BalanceGroup",
    "BandwidthClass",
    "Basis",
    "Batch",
    "Candidates",
    "Catalog",
    "CatalogStatistics",
    "Change",
    "ChangeCoordinator",
    "ChangeLeader",
    "ChannelConfig",
    "ChannelRecord",
    "ChannelRetention",
    "CloseProducer",
    "CreateChannel",
    "Damage",
    "DeleteChannel",
    "DeleteGroup",
    "ExpandIsr",
    "ExpelMember",
    "FenceNode",
    "ForgetActivity",
    "FoundCluster",
    "FsyncPolicy",
    "GrantRecord",
    "GroupMember",
    "GroupRecord",
    "Happening",
    "JoinGroup",
    "Keeps",
    "LeaveGroup",
    "LogReport",
    "Member",
    "NodeRecord",
    "NodeState",
    "OpenProducer",
    "PauseChannel",
    "Placement",
    "ProducerRecord",
    "RaiseChannelEpoch",
    "Refusal",
    "RegisterNode",
    "RemoveGrant",
    "RemoveNode",
    "RemoveToken",
    "ResumeChannel",
    "RevokeToken",
    "SetReadonly",
    "ShrinkIsr",
    "ShrinkReason",
    "SingleChange",
    "TokenRecord",
    "Tombstone",
    "Touched",
    "UncleanCause",
    "UncleanElection",
    "UnderCapacity",
    "UpdateNode",
    "decode_change",
    "encode_change",
    "group_cursor",
    "kind_of",
]
