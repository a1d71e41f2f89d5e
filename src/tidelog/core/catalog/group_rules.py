"""Changes of consumer groups: joining, leaving, expelling, another coordinator, and assigning channels anew.

Every function takes the state and one change, writes the outcome, and raises a typed error to refuse it. Creating or
deleting a channel edits no group, as fencing a node edits no channel: `groups_needing_balance` and
`groups_needing_coordinator` list the groups that need a change of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.core.catalog.changes import (
    BalanceGroup,
    ChangeCoordinator,
    DeleteGroup,
    ExpelMember,
    JoinGroup,
    LeaveGroup,
)
from tidelog.core.catalog.channel_rules import require_active
from tidelog.core.catalog.group_assignment import ChannelNames, Wishes, assign, wishes_of
from tidelog.core.catalog.records import (
    CHANNEL_NAME,
    CHANNEL_PATTERN,
    GROUP_CHANNELS_MAX,
    GROUP_MEMBERS_MAX,
    GROUP_NAME,
    GROUP_PATTERNS_MAX,
    GROUPS_MAX,
    MEMBER_NAME,
    PRINCIPAL,
    GroupMember,
    GroupRecord,
)
from tidelog.core.catalog.state import State
from tidelog.errors import (
    CatalogFull,
    InvalidChange,
    MemberExists,
    MemberFenced,
    NothingToChange,
    StaleGroupEpoch,
    UnknownGroup,
    UnknownMember,
)


def join_group(state: State, change: JoinGroup, index: int) -> None:
    if problems := _join_problems(change):
        raise InvalidChange(kind="join_group", problems=problems)
    group = state.groups.get(change.group)
    if group is None:
        if len(state.groups) >= GROUPS_MAX:
            raise CatalogFull(what="groups", count_max=GROUPS_MAX)
        require_active(state, change.coordinator)
        group = GroupRecord(
            group=change.group,
            epoch=0,
            coordinator=change.coordinator,
            coordinator_epoch=1,
            members=(),
            balanced_index=index,
            created_at_ms=change.at_ms,
            changed_index=index,
        )
    known = group.member(change.member)
    if known is not None and (known.owner != change.owner or not change.again):
        raise MemberExists(group=change.group, member=change.member, owner=known.owner)
    if known is None and len(group.members) >= GROUP_MEMBERS_MAX:
        raise CatalogFull(what="members of one group", count_max=GROUP_MEMBERS_MAX)
    joined = GroupMember(
        member=change.member,
        owner=change.owner,
        channels=change.channels,
        streams=change.streams,
        life=index,
        assigned=() if known is None else known.assigned,
    )
    others = [member for member in group.members if member.member != change.member]
    _write(state, group, sorted([*others, joined], key=lambda member: member.member), index, is_growing=True)


def _join_problems(change: JoinGroup) -> list[str]:
    problems = []
    if not GROUP_NAME.fullmatch(change.group):
        problems.append(f"{change.group!a} is not a name for a group: letters, digits and . _ - up to 56")
    if not MEMBER_NAME.fullmatch(change.member):
        problems.append(f"{change.member!a} is not a name for a member: letters, digits and . _ : / @ - up to 128")
    if not PRINCIPAL.fullmatch(change.owner):
        problems.append(f"{change.owner!a} is not a principal; write it like client:billing")
    if not 1 <= len(change.channels) + len(change.streams) <= GROUP_PATTERNS_MAX:
        problems.append(f"a member reads 1 to {GROUP_PATTERNS_MAX} channels, patterns and streams")
    for what, names in (("channels", change.channels), ("streams", change.streams)):
        if list(names) != sorted(set(names)):
            problems.append(f"{what} must be sorted, each once")
    strays = [name for name in change.channels if not CHANNEL_PATTERN.fullmatch(name)]
    problems += [f"{name!a} is neither a channel's name nor the beginning of one and a star" for name in strays]
    strays = [name for name in change.streams if not CHANNEL_NAME.fullmatch(name)]
    problems += [f"{name!a} is not the name of a stream" for name in strays]
    return problems


def leave_group(state: State, change: LeaveGroup, index: int) -> None:
    group, member = _known_member(state, change.group, change.member)
    if change.life is not None and change.life != member.life:
        raise MemberFenced(group=change.group, member=change.member, life=change.life, newest=member.life)
    _without(state, group, member, index)


def expel_member(state: State, change: ExpelMember, index: int) -> None:
    """Only the coordinator of the current coordinator epoch may expel: another node may hear the member well."""
    group, member = _known_member(state, change.group, change.member)
    if change.coordinator_epoch != group.coordinator_epoch:
        raise StaleGroupEpoch(group=group.group, expected=change.coordinator_epoch, current=group.coordinator_epoch)
    if change.life != member.life:
        raise MemberFenced(group=change.group, member=change.member, life=change.life, newest=member.life)
    _without(state, group, member, index)


def change_coordinator(state: State, change: ChangeCoordinator, index: int) -> None:
    group = _known_group(state, change.group)
    if change.expected_coordinator_epoch != group.coordinator_epoch:
        raise StaleGroupEpoch(
            group=group.group, expected=change.expected_coordinator_epoch, current=group.coordinator_epoch
        )
    if change.coordinator == group.coordinator:
        raise NothingToChange(state=f"group {group.group!r} is coordinated by {group.coordinator!r}")
    require_active(state, change.coordinator)
    state.put_group(
        group.group,
        replace(
            group,
            coordinator=change.coordinator,
            coordinator_epoch=group.coordinator_epoch + 1,
            changed_index=index,
        ),
    )


def balance_group(state: State, change: BalanceGroup, index: int) -> None:
    """Channels came or went since the group last changed."""
    group = _known_group(state, change.group)
    if change.expected_epoch != group.epoch:
        raise StaleGroupEpoch(group=group.group, expected=change.expected_epoch, current=group.epoch)
    if not needs_balance(state, group):
        raise NothingToChange(state=f"the channels of group {group.group!r} are shared out")
    _write(state, group, group.members, index, is_growing=True)


def delete_group(state: State, change: DeleteGroup, index: int) -> None:
    _known_group(state, change.group)
    state.put_group(change.group, None)


def needs_balance(state: State, group: GroupRecord) -> bool:
    """Whether the assignments no longer match the channels that exist."""
    if state.channels_index < group.balanced_index:
        return False  # the same on every node: where the index is higher, all channels are compared
    wanted = wishes_of(group.members, ChannelNames(state.channels, state.channel_ids))
    return wanted.keys() != {channel_id for member in group.members for channel_id in member.assigned}


def _known_group(state: State, name: str) -> GroupRecord:
    group = state.groups.get(name)
    if group is None:
        raise UnknownGroup(group=name)
    return group


def _known_member(state: State, group_name: str, name: str) -> tuple[GroupRecord, GroupMember]:
    group = _known_group(state, group_name)
    member = group.member(name)
    if member is None:
        raise UnknownMember(group=group_name, member=name)
    return group, member


def _without(state: State, group: GroupRecord, member: GroupMember, index: int) -> None:
    """A group without members is deleted."""
    left = [one for one in group.members if one is not member]
    if left:
        _write(state, group, left, index, is_growing=False)
    else:
        state.put_group(group.group, None)


def _write(state: State, group: GroupRecord, members: Sequence[GroupMember], index: int, *, is_growing: bool) -> None:
    """Assign the channels to these members, in a new epoch (C15)."""
    wishes = wishes_of(members, ChannelNames(state.channels, state.channel_ids))
    if len(wishes) > GROUP_CHANNELS_MAX:
        if is_growing:
            raise CatalogFull(what="channels of one group", count_max=GROUP_CHANNELS_MAX)
        wishes = _as_many_as_may_be(wishes, group)  # leaving is never refused
    shares = assign(wishes, {member.member: member.assigned for member in members})
    state.put_group(
        group.group,
        replace(
            group,
            epoch=group.epoch + 1,
            members=tuple(replace(member, assigned=shares[member.member]) for member in members),
            balanced_index=index,
            changed_index=index,
        ),
    )


def _as_many_as_may_be(wishes: Wishes, group: GroupRecord) -> Wishes:
    """Channels that are read already come first."""
    read = {channel_id for member in group.members for channel_id in member.assigned}
    kept = sorted(wishes, key=lambda channel_id: (channel_id not in read, channel_id))[:GROUP_CHANNELS_MAX]
    return {channel_id: wishes[channel_id] for channel_id in kept}
