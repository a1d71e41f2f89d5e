"""Administration of consumer groups: joining, leaving, deleting, and reports of a coordinator that cannot be reached.

Carried out on the node that leads the metadata, like that of channels (see `channel_admin`, which passes requests on).
Everything becomes a change of the catalog.

What a caller must keep: `principal` is who a certificate says, never what a request says.

GM1  Who joins may read everything that it names (`read:data`); who deletes a group may administer all that its
     members name.
GM2  Nobody but a member's owner, or an operator, speaks for the member.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.cluster.clients.access import ADMIN, READ, ClientAccess
from tidelog.cluster.clients.requests import GroupOperation, GroupRequest, read_group
from tidelog.cluster.local_channels import LocalChannels
from tidelog.core.catalog import Change, DeleteGroup, GroupMember, GroupRecord, JoinGroup, LeaveGroup
from tidelog.core.groups.controller import CoordinatorReports, choose_coordinator, move_to, reads_streams
from tidelog.core.groups.coordinator import GroupOptions
from tidelog.errors import AccessDenied, NotGroupCoordinator, NotLeader, StaleGroupEpoch, UnknownGroup, UnknownMember

REQUEST_MS: Final = 10_000


class GroupAdmin:
    def __init__(self, channels: LocalChannels, *, access: ClientAccess, options: GroupOptions) -> None:
        self._channels = channels
        self._access = access
        self._options = options
        self._reports = CoordinatorReports(window_ms=options.coordinator_timeout_ms)

    async def carry_out(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        request = read_group(plain)
        match request.operation:
            case GroupOperation.JOIN:
                return await self._join(request, principal)
            case GroupOperation.LEAVE:
                return await self._leave(request, principal)
            case GroupOperation.REPORT:
                return await self._report(request, principal)
            case _:
                return await self._delete(request, principal)

    async def _join(self, request: GroupRequest, principal: str) -> dict[str, Any]:
        for name in (*request.channels, *request.streams):
            # A pattern is allowed only by a grant that covers all it can ever match: as a name it is one of those.
            self._access.require(principal, name, READ)  # GM1
        coordinator = choose_coordinator(self._channels.catalog, for_streams=bool(request.streams))
        if coordinator is None:
            raise NotLeader(leader=None)
        generation = await self._propose(
            JoinGroup(
                group=request.group,
                member=request.member,
                owner=principal,
                channels=tuple(sorted(set(request.channels))),
                streams=tuple(sorted(set(request.streams))),
                again=request.again,
                coordinator=coordinator,
                at_ms=self._channels.wall_ms(),
            )
        )
        # The index of a join is the member generation, so the answer belongs to this join and to no other.
        group = self._known(request.group)
        return {
            "group": group.group,
            "member": request.member,
            "life": generation,
            "epoch": group.epoch,
            "coordinator": group.coordinator,
            "coordinator_epoch": group.coordinator_epoch,
            "consumer_timeout_ms": self._options.consumer_timeout_ms,
            "coordinator_timeout_ms": self._options.coordinator_timeout_ms,
            "index": generation,
        }

    async def _leave(self, request: GroupRequest, principal: str) -> dict[str, Any]:
        group = self._known(request.group)
        self._require_owner(group, request.member, principal)
        index = await self._propose(LeaveGroup(group=request.group, member=request.member, life=request.life))
        return {"index": index}

    async def _report(self, request: GroupRequest, principal: str) -> dict[str, Any]:
        group = self._known(request.group)
        self._require_owner(group, request.member, principal)
        if request.coordinator != group.coordinator:
            raise NotGroupCoordinator(group=group.group, coordinator=group.coordinator)
        if request.epoch != group.epoch:
            raise StaleGroupEpoch(group=group.group, expected=request.epoch, current=group.epoch)
        self._reports.forget(self._channels.catalog)
        moved = False
        if self._reports.report(group, request.member, self._channels.now_ms()):
            heir = choose_coordinator(
                self._channels.catalog, for_streams=reads_streams(group), other_than=group.coordinator
            )
            if heir is not None:
                await self._propose(move_to(group, heir))
                moved = True
        return {"moved": moved, "index": self._channels.catalog.applied_index}

    async def _delete(self, request: GroupRequest, principal: str) -> dict[str, Any]:
        group = self._known(request.group)
        for member in group.members:
            for name in (*member.channels, *member.streams):
                self._access.require(principal, name, ADMIN)  # GM1
        return {"index": await self._propose(DeleteGroup(group=request.group))}

    def _known(self, name: str) -> GroupRecord:
        group = self._channels.catalog.group(name)
        if group is None:
            raise UnknownGroup(group=name)
        return group

    def _require_owner(self, group: GroupRecord, member: str, principal: str) -> None:
        require_owner(self._access, group, member, principal)

    async def _propose(self, change: Change) -> int:
        return await self._channels.propose(change, timeout_ms=REQUEST_MS)


def sees_group(access: ClientAccess, group: GroupRecord, principal: str) -> bool:
    """Whether somebody may know of a group: operators, and who is a member or may read something that a member reads.
    To all others it is as good as unknown."""
    return access.may_everything(principal) or any(
        member.owner == principal
        or any(access.allows(principal, name, READ) for name in (*member.channels, *member.streams))
        for member in group.members
    )


def require_owner(access: ClientAccess, group: GroupRecord, name: str, principal: str) -> GroupMember:
    """The member, if the principal may speak for it (GM2)."""
    member = group.member(name)
    if member is None:
        raise UnknownMember(group=group.group, member=name)
    if member.owner != principal and not access.may_everything(principal):
        raise AccessDenied(principal=principal, scope=f"speak for {member.owner}", channel=f"group {group.group}")
    return member
