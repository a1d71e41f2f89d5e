"""Changes of channels: creation, the ISR, settings, deletion. Elections are in `election_rules`.

Every function takes the state and one change, writes the outcome, and raises a typed error to refuse it. All changes
of a channel that exists go through `channel_at` (the compare) and `write_channel` (the set), so none can forget
either half (C2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.core.catalog.activity_rules import forget_all
from tidelog.core.catalog.changes import (
    AdoptChannel,
    AlterChannel,
    CreateChannel,
    DeleteChannel,
    ExpandIsr,
    PauseChannel,
    RaiseChannelEpoch,
    ResumeChannel,
    SetReadonly,
    ShrinkIsr,
    ShrinkReason,
)
from tidelog.core.catalog.channel_config import ChannelConfig, Placement, weaker
from tidelog.core.catalog.records import (
    ACTIVITY_CHANNEL,
    ADOPTED_MAX,
    CHANNEL_NAME,
    CHANNELS_MAX,
    TOMBSTONES_MAX,
    ChannelRecord,
    Member,
    Tombstone,
)
from tidelog.core.catalog.state import State
from tidelog.errors import (
    CatalogFull,
    ChannelExists,
    ConfigMismatch,
    InvalidChange,
    LastHolder,
    LeaderOutsideIsr,
    NodeFenced,
    NoLiveLeader,
    NothingToChange,
    NotInIsr,
    NotInReplicas,
    StaleChannelEpoch,
    StaleIncarnation,
    UnknownChannel,
    UnknownNode,
)

# --- the two halves of every compare-and-set ---------------------------------------------------------


def channel_at(state: State, channel_id: int, expected_channel_epoch: int) -> ChannelRecord:
    """The channel, if it has not changed since the proposer saw it (C2)."""
    channel = state.channels.get(channel_id)
    if channel is None:
        gone = " (deleted)" if 0 < channel_id < state.next_channel_id else ""
        raise UnknownChannel(channel=f"id {channel_id}{gone}")
    if channel.channel_epoch != expected_channel_epoch:
        raise StaleChannelEpoch(channel=channel.name, expected=expected_channel_epoch, current=channel.channel_epoch)
    return channel


def write_channel(state: State, before: ChannelRecord, index: int, **fields: Any) -> ChannelRecord:
    """Write the new record with a higher channel epoch, once the rules about holders are kept (C3, C6, C8)."""
    after = replace(before, channel_epoch=before.channel_epoch + 1, changed_index=index, **fields)
    if after.eligible and len(after.isr) >= after.config.effective_min_isr:
        # From here on records can be committed without the eligible replicas (C6).
        after = replace(after, eligible=())
    if after.isr is not before.isr or after.eligible != before.eligible:
        _require_no_holder_lost(state, before, after)
    assert after.isr, "C3: an ISR is never empty"
    assert after.leader is None or after.member(after.leader) is not None, "C3: the leader is in the ISR"
    state.put_channel(after.channel_id, after)
    return after


def _require_no_holder_lost(state: State, before: ChannelRecord, after: ChannelRecord) -> None:
    """A replica may be removed only while a live replica certainly holds everything (C8)."""
    kept = {member.node for member in after.isr} | {member.node for member in after.eligible}
    lost = [member.node for member in (*before.isr, *before.eligible) if member.node not in kept]
    if lost and not any(state.can_lead_now(after)):
        problem = f"letting {', '.join(lost)} go would leave no live replica that certainly holds everything"
        raise LastHolder(channel=before.name, problem=problem)


def in_order(replicas: tuple[str, ...], members: list[Member]) -> tuple[Member, ...]:
    """Members in the order of the replicas, so that equal sets have equal bytes."""
    return tuple(sorted(members, key=lambda member: replicas.index(member.node)))


def require_active(state: State, node: str) -> int:
    """The node's incarnation, if it may take part (C4)."""
    record = state.nodes.get(node)
    if record is None:
        raise UnknownNode(node=node)
    if not state.is_active(node):
        raise NodeFenced(node=node, state=record.state.value)
    return record.incarnation


def require_live(state: State, node: str, incarnation: int) -> None:
    """The node is active in this incarnation and no other (R3, C4)."""
    known = require_active(state, node)
    if known != incarnation:
        raise StaleIncarnation(node=node, given=incarnation, known=known)


# --- creation and deletion -------------------------------------------------------------------------


def create_channel(state: State, change: CreateChannel, index: int) -> None:
    _create(state, change, index, channel_id=state.next_channel_id, leader_epoch=1)


def adopt_channel(state: State, change: AdoptChannel, index: int) -> None:
    """A channel of one replica, which others may join, under the id that its log has already."""
    problems = []
    if change.channel_id < state.next_channel_id:
        problems.append(f"channel id {change.channel_id} was given out already; ids below {state.next_channel_id} are")
    if max(change.channel_id, change.newest_epoch) > ADOPTED_MAX:
        problems.append(f"a channel id and an epoch to go on from are at most {ADOPTED_MAX}")
    if problems:
        raise InvalidChange(kind="adopt_channel", problems=problems)
    created = CreateChannel(
        name=change.name, config=change.config, replicas=(change.node,), leader=change.node, at_ms=change.at_ms
    )
    _create(state, created, index, channel_id=change.channel_id, leader_epoch=change.newest_epoch + 1)


def _create(state: State, change: CreateChannel, index: int, *, channel_id: int, leader_epoch: int) -> None:
    problems = change.config.problems()
    if not CHANNEL_NAME.fullmatch(change.name):
        problems.append(f"{change.name!a} is not a channel name: letters, digits and ._:/- up to 200")
    problems += _replica_problems(change.config, change.replicas)
    if len(change.replicas) > change.config.effective_factor:
        problems.append(f"{len(change.replicas)} replicas for a factor of {change.config.effective_factor}")
    if problems:
        raise InvalidChange(kind="create_channel", problems=problems)
    twin = state.channel_ids.get(change.name.lower())
    if twin is not None:
        raise ChannelExists(channel=state.channels[twin].name)
    if len(state.channels) >= CHANNELS_MAX:
        raise CatalogFull(what="channels", count_max=CHANNELS_MAX)
    if change.leader not in change.replicas:
        raise NotInReplicas(channel=change.name, node=change.leader)
    # All logs are empty, so every replica holds everything.
    isr = tuple(
        Member(node=node, incarnation=require_active(state, node), keeps=change.config.keeps)
        for node in change.replicas
    )
    state.put_number("next_channel_id", channel_id + 1)
    state.put_channel(
        channel_id,
        ChannelRecord(
            channel_id=channel_id,
            name=change.name,
            config=change.config,
            replicas=change.replicas,
            leader=change.leader,
            leader_incarnation=require_active(state, change.leader),
            isr=isr,
            eligible=(),
            leader_epoch=leader_epoch,
            channel_epoch=leader_epoch,  # every leader epoch was a channel epoch (C2)
            paused=False,
            readonly=False,
            created_index=index,
            created_at_ms=change.at_ms,
            changed_index=index,
        ),
    )


def delete_channel(state: State, change: DeleteChannel, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    for producer_id in sorted(state.producers_of.get(channel.channel_id, ())):
        state.put_producer(producer_id, None)
    state.put_channel(channel.channel_id, None)
    if channel.name.lower() == ACTIVITY_CHANNEL:
        forget_all(state)
    if len(state.tombstones) >= TOMBSTONES_MAX:
        oldest = min(state.tombstones.values(), key=lambda stone: (stone.deleted_index, stone.channel_id))
        state.put_tombstone(oldest.channel_id, None)
    stone = Tombstone(channel_id=channel.channel_id, name=channel.name, deleted_index=index, deleted_at_ms=change.at_ms)
    state.put_tombstone(channel.channel_id, stone)


# --- the ISR ---------------------------------------------------------------------------------------


def shrink_isr(state: State, change: ShrinkIsr, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    if not change.members or len(set(change.members)) != len(change.members):
        raise InvalidChange(kind="shrink_isr", problems=["members must name at least one node, each once"])
    withdrawn = change.reason is ShrinkReason.WITHDRAWN
    for node in change.members:
        if channel.member(node) is None and not (withdrawn and channel.eligible_member(node)):
            raise NotInIsr(channel=channel.name, node=node)
        if node == channel.leader:
            raise LeaderOutsideIsr(channel=channel.name, leader=node)
    isr = tuple(member for member in channel.isr if member.node not in change.members)
    if not isr:
        raise LastHolder(channel=channel.name, problem="the ISR would be empty")
    eligible = [member for member in channel.eligible if member.node not in change.members]
    if len(isr) < channel.config.effective_min_isr and not withdrawn:
        # Nothing was committed without them until now, and nothing can be from now on (C6). This does not hold for a
        # replica that may have lost something already (R5).
        eligible += [
            member
            for member in channel.isr
            if member.node in change.members and state.is_trusted(channel.channel_id, member)
        ]
    write_channel(state, channel, index, isr=isr, eligible=in_order(channel.replicas, eligible))


def expand_isr(state: State, change: ExpandIsr, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    if change.member not in channel.replicas:
        raise NotInReplicas(channel=channel.name, node=change.member)
    require_live(state, change.member, change.incarnation)
    if not state.has_live_leader(channel):
        raise NoLiveLeader(channel=channel.name)
    joined = Member(node=change.member, incarnation=change.incarnation, keeps=channel.config.keeps)
    if channel.member(change.member) == joined:
        raise NothingToChange(state=f"node {change.member!r} is in the ISR of channel {channel.name!r}")
    others = [member for member in channel.isr if member.node != change.member]
    write_channel(
        state,
        channel,
        index,
        isr=in_order(channel.replicas, [*others, joined]),
        eligible=tuple(member for member in channel.eligible if member.node != change.member),
    )


# --- settings --------------------------------------------------------------------------------------


def alter_channel(state: State, change: AlterChannel, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    config = channel.config if change.config is None else change.config
    replicas = channel.replicas if change.replicas is None else change.replicas
    if config == channel.config and replicas == channel.replicas:
        raise NothingToChange(state=f"channel {channel.name!r} is so")
    problems = config.problems() if change.config is not None else []
    added = tuple(node for node in replicas if node not in channel.replicas)
    problems += _replica_problems(config, replicas, added)
    if len(replicas) > max(2 * config.effective_factor, len(channel.replicas)):
        problems.append(f"{len(replicas)} replicas are more than two times the factor; move them in smaller steps")
    if problems:
        raise InvalidChange(kind="alter_channel", problems=problems)
    for node in added:
        require_active(state, node)
    if config.persistent != channel.config.persistent:
        raise ConfigMismatch(channel=channel.name, setting="persistent")
    if channel.leader is not None and channel.leader not in replicas:
        raise LeaderOutsideIsr(channel=channel.name, leader=channel.leader)
    isr = _weakened([member for member in channel.isr if member.node in replicas], config)
    least = min(len(channel.isr), config.effective_min_isr)
    if len(isr) < least and len(isr) < len(channel.isr):
        problem = f"the ISR would fall to {len(isr)} and must not fall below {least}"
        raise LastHolder(channel=channel.name, problem=problem)
    write_channel(
        state,
        channel,
        index,
        config=config,
        replicas=replicas,
        isr=in_order(replicas, isr),
        eligible=in_order(
            replicas, _weakened([member for member in channel.eligible if member.node in replicas], config)
        ),
    )


def _weakened(members: list[Member], config: ChannelConfig) -> list[Member]:
    """A weaker fsync counts at once; a stronger one for each member when it is next confirmed with everything synced
    (R5)."""
    return [replace(member, keeps=weaker(member.keeps, config.keeps)) for member in members]


def _replica_problems(
    config: ChannelConfig, replicas: tuple[str, ...], added: tuple[str, ...] | None = None
) -> list[str]:
    found = []
    if not replicas:
        found.append("a channel has at least one replica")
    if len(set(replicas)) != len(replicas):
        found.append("a node is named twice among the replicas")
    if config.placement is Placement.PINNED:
        # Replicas that move away from an older pinned set stay until the new ones have caught up.
        strays = [node for node in (replicas if added is None else added) if node not in config.pinned_nodes]
        found += [f"{node!a} is not one of pinned_nodes" for node in strays]
    return found


def raise_channel_epoch(state: State, change: RaiseChannelEpoch, index: int) -> None:
    write_channel(state, channel_at(state, change.channel_id, change.expected_channel_epoch), index)


def pause_channel(state: State, change: PauseChannel, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    if channel.paused:
        raise NothingToChange(state=f"channel {channel.name!r} is paused")
    write_channel(state, channel, index, paused=True)


def resume_channel(state: State, change: ResumeChannel, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    if not channel.paused:
        raise NothingToChange(state=f"channel {channel.name!r} is running")
    # Its log was closed meanwhile, and a leader never resumes an epoch (R1).
    leader_epoch = channel.leader_epoch + (channel.leader is not None)
    write_channel(state, channel, index, paused=False, leader_epoch=leader_epoch)


def set_readonly(state: State, change: SetReadonly, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    if channel.readonly == change.readonly:
        words = "read-only" if change.readonly else "writable"
        raise NothingToChange(state=f"channel {channel.name!r} is {words}")
    write_channel(state, channel, index, readonly=change.readonly)
