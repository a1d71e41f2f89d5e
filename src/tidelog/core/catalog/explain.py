"""Changes and refusals in words, for operators."""

from __future__ import annotations

from typing import Final

from tidelog.core.catalog.changes import (
    AddGrant,
    AddToken,
    AdmitNode,
    AdoptChannel,
    AlterChannel,
    BalanceGroup,
    Batch,
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
    SingleChange,
    UpdateNode,
)
from tidelog.core.catalog.state import State
from tidelog.errors import LogError

_RULE_BY_CODE: Final = {
    "stale_channel_epoch": "C2",
    "leader_outside_isr": "C3",
    "not_in_replicas": "C3",
    "not_in_isr": "C3",
    "node_fenced": "C4",
    "unknown_node": "C4",
    "no_live_leader": "C4",
    "stale_incarnation": "C10",
    "not_electable": "C7",
    "last_holder": "C8",
    "unknown_channel": "C9",
    "channel_exists": "C9",
    "config_mismatch": "C5",
    "node_exists": "C10",
    "node_holds": "C11",
    "catalog_full": "C12",
    "invalid_change": "C12",
    "nothing_to_change": "C1",
    "unknown_producer": "C9",
    "producer_owned": "C9",
    "stale_producer_epoch": "C9",
    "token_exists": "C13",
    "unknown_token": "C13",
    "unknown_grant": "C13",
    "unknown_group": "C15",
    "unknown_member": "C15",
    "member_exists": "C15",
    "member_fenced": "C15",
    "stale_group_epoch": "C15",
}
_LISTED_MAX: Final = 5


def rule_of(error: LogError) -> str:
    """The number of the rule that a refusal keeps."""
    return _RULE_BY_CODE.get(error.code, "C1")


def describe(change: SingleChange | Batch, state: State) -> str:
    """What an acceptable change does, in the infinitive: `fence node 'n1' ...`."""
    if isinstance(change, Batch):
        shown = [_describe(single, state) for single in change.changes[:_LISTED_MAX]]
        more = len(change.changes) - len(shown)
        return "at once " + "; ".join(shown) + (f"; and {more} more" if more else "")
    return _describe(change, state)


def _describe(change: SingleChange, state: State) -> str:
    match change:
        case FoundCluster():
            return f"found cluster {change.cluster_id}"
        case AdmitNode() | RegisterNode() | UpdateNode() | FenceNode() | RemoveNode():
            return _describe_node(change, state)
        case OpenProducer():
            verb = "raise the epoch of" if (change.channel_id, change.name) in state.producer_ids else "open"
            return f"{verb} producer {change.name!r} of {_channel(change.channel_id, state)} for {change.owner}"
        case CloseProducer():
            return f"close producer {change.producer_id}"
        case AddToken():
            return f"let token {change.token!r} do {', '.join(change.scopes)} on {', '.join(change.channels)}"
        case RevokeToken():
            return f"revoke token {change.token!r}"
        case RemoveToken():
            return f"forget token {change.token!r} and what was granted to it"
        case AddGrant():
            return f"let {change.principal} do {change.scope} on {change.channels}"
        case RemoveGrant():
            return f"no longer let {change.principal} do {change.scope} on {change.channels}"
        case ForgetActivity():
            return f"forget the activity up to index {change.upto_index}"
        case JoinGroup() | LeaveGroup() | ExpelMember() | ChangeCoordinator() | BalanceGroup() | DeleteGroup():
            return _describe_group(change)
        case AdoptChannel():
            return f"take over channel {change.name!r} as it lies on {change.node!r}"
        case CreateChannel():
            where = ", ".join(change.replicas)
            return f"create channel {change.name!r} on {where}, led by {change.leader!r}"
        case _:
            return _describe_channel(change, state)


def _describe_node(change: AdmitNode | RegisterNode | UpdateNode | FenceNode | RemoveNode, state: State) -> str:
    match change:
        case AdmitNode():
            return f"expect node {change.node!r}"
        case RegisterNode():
            return f"make node {change.node!r} active as incarnation {change.incarnation}"
        case UpdateNode():
            return f"change the facts about node {change.node!r}"
        case FenceNode():
            led = len(state.led_by.get(change.node, ()))
            return (
                f"fence node {change.node!r}, incarnation {change.expected_incarnation}; "
                f"it leads {led} channels, which then need leaders"
            )
        case RemoveNode():
            held = len(state.replica_of.get(change.node, ()))
            force = " by force" if change.force else ""
            return f"remove node {change.node!r}{force}; its {held} replicas then need other places"


def _describe_group(
    change: JoinGroup | LeaveGroup | ExpelMember | ChangeCoordinator | BalanceGroup | DeleteGroup,
) -> str:
    match change:
        case JoinGroup():
            return f"make {change.member!r} of {change.owner} a member of group {change.group!r}"
        case LeaveGroup():
            return f"let member {change.member!r} leave group {change.group!r}"
        case ExpelMember():
            return f"expel silent member {change.member!r} from group {change.group!r}"
        case ChangeCoordinator():
            return f"let {change.coordinator!r} coordinate group {change.group!r}"
        case BalanceGroup():
            return f"share the channels of group {change.group!r} out anew"
        case DeleteGroup():
            return f"forget group {change.group!r} and its members"


def _describe_channel(
    change: ChangeLeader
    | ShrinkIsr
    | ExpandIsr
    | AlterChannel
    | PauseChannel
    | ResumeChannel
    | SetReadonly
    | RaiseChannelEpoch
    | DeleteChannel,
    state: State,
) -> str:
    channel = _channel(change.channel_id, state)
    match change:
        case ChangeLeader():
            return _describe_election(change, channel)
        case ShrinkIsr():
            return f"take {', '.join(change.members)} ({change.reason.value}) out of the ISR of {channel}"
        case ExpandIsr():
            return f"count {change.member!r}, incarnation {change.incarnation}, in the ISR of {channel}"
        case AlterChannel():
            parts = ["the config"] if change.config is not None else []
            if change.replicas is not None:
                parts.append(f"the replicas to {', '.join(change.replicas)}")
            return f"change {' and '.join(parts)} of {channel}"
        case PauseChannel():
            return f"pause {channel}"
        case ResumeChannel():
            return f"resume {channel} in a new leader epoch"
        case SetReadonly():
            return f"make {channel} {'read-only' if change.readonly else 'writable'}"
        case RaiseChannelEpoch():
            return f"raise the epoch of {channel}"
        case DeleteChannel():
            return f"delete {channel} for good"


def _describe_election(change: ChangeLeader, channel: str) -> str:
    if change.leader is None:
        return f"leave {channel} without a leader"
    elected = f"elect {change.leader!r}, incarnation {change.incarnation}, leader of {channel}"
    if change.operator:
        return f"{elected} by the word of {change.operator}; records that it lacks are lost"
    if change.reports:
        return f"{elected} by the longest log; what no holder has is lost"
    return elected


def _channel(channel_id: int, state: State) -> str:
    record = state.channels.get(channel_id)
    return f"channel {record.name!r}" if record is not None else f"channel id {channel_id}"
