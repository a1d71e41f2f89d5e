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

# isort would give each of these names a statement of its own.
# ruff: noqa: I001

from __future__ import annotations

from tidelog.core.catalog.catalog import (
    Applied as Applied,
    Catalog as Catalog,
    CatalogStatistics as CatalogStatistics,
    Refusal as Refusal,
)
from tidelog.core.catalog.changes import (
    BATCH_MAX as BATCH_MAX,
    CATALOG_VERSION as CATALOG_VERSION,
    CHANGE_BYTES_MAX as CHANGE_BYTES_MAX,
    AddGrant as AddGrant,
    AddToken as AddToken,
    AdmitNode as AdmitNode,
    AdoptChannel as AdoptChannel,
    AlterChannel as AlterChannel,
    BalanceGroup as BalanceGroup,
    Batch as Batch,
    Change as Change,
    ChangeCoordinator as ChangeCoordinator,
    ChangeLeader as ChangeLeader,
    CloseProducer as CloseProducer,
    CreateChannel as CreateChannel,
    DeleteChannel as DeleteChannel,
    DeleteGroup as DeleteGroup,
    ExpandIsr as ExpandIsr,
    ExpelMember as ExpelMember,
    FenceNode as FenceNode,
    ForgetActivity as ForgetActivity,
    FoundCluster as FoundCluster,
    JoinGroup as JoinGroup,
    LeaveGroup as LeaveGroup,
    LogReport as LogReport,
    OpenProducer as OpenProducer,
    PauseChannel as PauseChannel,
    RaiseChannelEpoch as RaiseChannelEpoch,
    RegisterNode as RegisterNode,
    RemoveGrant as RemoveGrant,
    RemoveNode as RemoveNode,
    RemoveToken as RemoveToken,
    ResumeChannel as ResumeChannel,
    RevokeToken as RevokeToken,
    SetReadonly as SetReadonly,
    ShrinkIsr as ShrinkIsr,
    ShrinkReason as ShrinkReason,
    SingleChange as SingleChange,
    UpdateNode as UpdateNode,
    decode_change as decode_change,
    encode_change as encode_change,
    kind_of as kind_of,
)
from tidelog.core.catalog.channel_config import (
    BandwidthClass as BandwidthClass,
    ChannelConfig as ChannelConfig,
    ChannelRetention as ChannelRetention,
    FsyncPolicy as FsyncPolicy,
    Keeps as Keeps,
    Placement as Placement,
    UnderCapacity as UnderCapacity,
)
from tidelog.core.catalog.election_rules import Basis as Basis, Candidates as Candidates
from tidelog.core.catalog.records import (
    ACTIVITY_CHANNEL as ACTIVITY_CHANNEL,
    SCOPES as SCOPES,
    ActivityEvent as ActivityEvent,
    ChannelRecord as ChannelRecord,
    Damage as Damage,
    GrantRecord as GrantRecord,
    GroupMember as GroupMember,
    GroupRecord as GroupRecord,
    Happening as Happening,
    Member as Member,
    NodeRecord as NodeRecord,
    NodeState as NodeState,
    ProducerRecord as ProducerRecord,
    TokenRecord as TokenRecord,
    Tombstone as Tombstone,
    UncleanCause as UncleanCause,
    UncleanElection as UncleanElection,
    group_cursor as group_cursor,
)
from tidelog.core.catalog.state import Touched as Touched
