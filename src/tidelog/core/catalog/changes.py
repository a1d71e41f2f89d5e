"""The changes of the catalog: each is a frozen record with canonical bytes, which Raft replicates.

A change contains everything that its effect depends on: the names, the epoch or incarnation that was seen, and the time
where one is recorded (`at_ms`, given by the proposer: the catalog has no clock). Applying it is then the same on every
node.

What a caller must keep: `decode_change` raises `CatalogVersion` for changes that only newer software knows, and
`CatalogCorrupt` for bytes that are no change. Both mean stop, never skip: a node that leaves out one change differs
from all others from then on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from tidelog.core.catalog.channel_config import ChannelConfig
from tidelog.core.catalog.codec import ITEMS_MAX, BadValue, dump, load, sequence_converter, tagged_converter
from tidelog.errors import CatalogCorrupt, CatalogVersion, InvalidChange
from tidelog.units import MIB

CATALOG_VERSION: Final = 1
"""The version of changes and snapshots. A node that reads version n reads every lower one too."""
CHANGE_BYTES_MAX: Final = 1 * MIB
BATCH_MAX: Final = ITEMS_MAX
_VERSION: Final = "v"


# --- the cluster and its nodes ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCluster:
    """Give the cluster its identity, once and for ever."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitNode:
    """An operator or the founder expects this node. One that was removed may be admitted again."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode:
    """A node registers with a new incarnation.

    What the node must keep (R5): it writes `incarnation` to its disk, synced, before it proposes this. When it stops
    cleanly, all synced, it leaves a mark that names the incarnation under which it was last registered; a process that
    never registered leaves the mark that it found, or none. The mark is removed, synced, before anything else is
    written.
    """

    node: str
    incarnation: int
    """Above the incarnation that the catalog knows."""
    known_incarnation: int
    """The highest its disk knew before this one. Below the catalog's, the disk is a copy from the past."""
    disk_id: str
    """Random, once per data folder."""
    process_id: str
    """Random, once per process: a node that registers again in the same process has lost nothing."""
    clean_incarnation: int | None
    """The incarnation in the mark of a clean stop; None without a mark."""
    verified: bool
    """Every log on the disk was checked and is whole, except those in `damaged_channels`."""
    damaged_channels: tuple[int, ...]
    """Sorted. If a node has more than are allowed, it sends `verified=False` instead."""
    addresses: tuple[tuple[str, str], ...]
    host: str
    tags: tuple[str, ...]
    capacity_bytes: int
    software: str
    catalog_version: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNode:
    """New facts about a node. None leaves a fact as it is."""

    node: str
    expected_incarnation: int
    addresses: tuple[tuple[str, str], ...] | None = None
    host: str | None = None
    tags: tuple[str, ...] | None = None
    capacity_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceNode:
    """The node's session was lost. It has no part in any decision until it registers again."""

    node: str
    expected_incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode:
    """The node is gone for good."""

    node: str
    force: bool = False
    """Remove it even if it leads or is the last replica that holds everything."""


# --- channels: each carries the channel epoch it was decided on (C2) ------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateChannel:
    name: str
    config: ChannelConfig
    replicas: tuple[str, ...]
    leader: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptChannel:
    """Take over a log that was on a node's disk before there was a catalog, under the id that its blocks name."""

    name: str
    config: ChannelConfig
    node: str
    channel_id: int
    newest_epoch: int
    """The newest epoch in that log: its leader begins above it (R1)."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """How far one replica's log goes, as the replica itself reports."""

    node: str
    incarnation: int
    last_epoch: int
    log_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLeader:
    """Elect a leader; None deposes the present one and elects nobody.

    Without `reports` and `operator` only a replica that certainly holds every committed record can be elected.
    """

    channel_id: int
    expected_channel_epoch: int
    leader: str | None
    incarnation: int
    """The leader's incarnation; 0 with None."""
    at_ms: int
    reports: tuple[LogReport, ...] = ()
    """Reports of every ISR and eligible member, for when all of them may have lost records (R5)."""
    operator: str = ""
    """The operator who accepts that records may be lost. Makes the election unclean, and is recorded for ever."""


class ShrinkReason(Enum):
    LAGGING = "lagging"
    FENCED = "fenced"
    STOPPING = "stopping"
    WITHDRAWN = "withdrawn"
    """It gave up its copy, so it does not become eligible, and no longer is if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkIsr:
    channel_id: int
    expected_channel_epoch: int
    members: tuple[str, ...]
    reason: ShrinkReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandIsr:
    """A replica has caught up in this incarnation. Also confirms a member that came back or may have lost records (R3,
    R5)."""

    channel_id: int
    expected_channel_epoch: int
    member: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterChannel:
    """A new config, new replicas, or both. None leaves it as it is."""

    channel_id: int
    expected_channel_epoch: int
    config: ChannelConfig | None = None
    replicas: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChannel:
    channel_id: int
    expected_channel_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeChannel:
    """The logs of its replicas were closed, so the leader leads in a new epoch (R1)."""

    channel_id: int
    expected_channel_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReadonly:
    channel_id: int
    expected_channel_epoch: int
    readonly: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseChannelEpoch:
    """Only raises the channel epoch: changes that were proposed on the old one can no longer take effect (R3)."""

    channel_id: int
    expected_channel_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteChannel:
    channel_id: int
    expected_channel_epoch: int
    at_ms: int


# --- producers, tokens, grants ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenProducer:
    """Allocate a producer id for a name in a channel, or raise the epoch of the one that has it."""

    channel_id: int
    name: str
    owner: str
    at_ms: int
    expected_epoch: int | None = None
    """Only if the producer has this epoch, so that a repeated proposal counts once; 0 for one that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseProducer:
    producer_id: int
    expected_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddToken:
    token: str
    digest: str
    """SHA-256 of the secret in hex."""
    scopes: tuple[str, ...]
    channels: tuple[str, ...]
    at_ms: int
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    token: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveToken:
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGrant:
    principal: str
    scope: str
    channels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGrant:
    principal: str
    scope: str
    channels: str


# --- groups ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """A reader becomes a member of a group; the first one makes the group."""

    group: str
    member: str
    owner: str
    channels: tuple[str, ...]
    streams: tuple[str, ...]
    again: bool
    """Whether a member of this name and owner joins again in a new generation; False refuses a member that is there."""
    coordinator: str
    """The group's coordinator, if the group is new."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """A member leaves; the group is deleted with its last member."""

    group: str
    member: str
    life: int | None
    """Only if the member has this generation; None for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpelMember:
    """The coordinator has not heard the member for too long."""

    group: str
    member: str
    life: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCoordinator:
    """Another node coordinates the group from now on."""

    group: str
    expected_coordinator_epoch: int
    coordinator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceGroup:
    """Channels were created or deleted: assign them anew."""

    group: str
    expected_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a group with its members. Positions in channels stay."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetActivity:
    """Everything that was recorded up to this index is published."""

    upto_index: int


ChannelChange: TypeAlias = (
    ChangeLeader
    | ShrinkIsr
    | ExpandIsr
    | AlterChannel
    | PauseChannel
    | ResumeChannel
    | SetReadonly
    | RaiseChannelEpoch
    | DeleteChannel
)
SingleChange: TypeAlias = (
    FoundCluster
    | AdmitNode
    | RegisterNode
    | UpdateNode
    | FenceNode
    | RemoveNode
    | CreateChannel
    | AdoptChannel
    | ChannelChange
    | OpenProducer
    | CloseProducer
    | AddToken
    | RevokeToken
    | RemoveToken
    | AddGrant
    | RemoveGrant
    | JoinGroup
    | LeaveGroup
    | ExpelMember
    | ChangeCoordinator
    | BalanceGroup
    | DeleteGroup
    | ForgetActivity
)

_SINGLE_TYPES: Final[tuple[type[Any], ...]] = (
    FoundCluster,
    AdmitNode,
    RegisterNode,
    UpdateNode,
    FenceNode,
    RemoveNode,
    CreateChannel,
    AdoptChannel,
    ChangeLeader,
    ShrinkIsr,
    ExpandIsr,
    AlterChannel,
    PauseChannel,
    ResumeChannel,
    SetReadonly,
    RaiseChannelEpoch,
    DeleteChannel,
    OpenProducer,
    CloseProducer,
    AddToken,
    RevokeToken,
    RemoveToken,
    AddGrant,
    RemoveGrant,
    JoinGroup,
    LeaveGroup,
    ExpelMember,
    ChangeCoordinator,
    BalanceGroup,
    DeleteGroup,
    ForgetActivity,
)


def _kind_name(change_type: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", change_type.__name__).lower()


_SINGLE_KINDS: Final = {_kind_name(change_type): change_type for change_type in _SINGLE_TYPES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Several changes, all or none: fencing a node and electing leaders for what it led is one step."""

    changes: tuple[SingleChange, ...] = field(
        metadata={"converter": sequence_converter(tagged_converter(_SINGLE_KINDS))}
    )


Change: TypeAlias = SingleChange | Batch

KINDS: Final = {**_SINGLE_KINDS, _kind_name(Batch): Batch}
_ANY_CHANGE: Final = tagged_converter(KINDS)


def kind_of(change: Change) -> str:
    """The name of a change on the wire and in messages."""
    return _kind_name(type(change))


def encode_change(change: Change) -> bytes:
    """Canonical bytes. Raises `InvalidChange` for a change that has none: a wrong type, too large."""
    try:
        plain = _ANY_CHANGE.encode(change)
    except BadValue as error:
        raise InvalidChange(kind=kind_of(change), problems=[str(error)]) from None
    data = dump({**plain, _VERSION: CATALOG_VERSION})
    if len(data) > CHANGE_BYTES_MAX:
        problem = f"it takes {len(data)} bytes, at most {CHANGE_BYTES_MAX} are allowed; split it"
        raise InvalidChange(kind=kind_of(change), problems=[problem])
    return data


def decode_change(data: bytes) -> Change:
    """The change in these bytes. Its errors mean stop, never skip."""
    if len(data) > CHANGE_BYTES_MAX:
        raise CatalogCorrupt(problem=f"a change of {len(data)} bytes is over the limit of {CHANGE_BYTES_MAX}")
    plain = load(data)
    if type(plain) is not dict or type(plain.get(_VERSION)) is not int:
        raise CatalogCorrupt(problem="a change does not say its version")
    version = plain.pop(_VERSION)
    if version != CATALOG_VERSION:
        raise CatalogVersion(
            problem=f"a change is of version {str(version)[:20]}, this software reads {CATALOG_VERSION}"
        )
    change: Change = _ANY_CHANGE.decode(plain)
    return change
