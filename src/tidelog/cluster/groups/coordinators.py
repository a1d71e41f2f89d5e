"""A node's part in consumer groups: it hears the members of those that it coordinates, and checks who moves cursors.

The shell around `GroupCoordinator`: a task that wakes it and proposes what it says. Questions of members are answered
where the group is coordinated; any other node passes them on there, one hop.

What a caller must keep: `start` once the node runs, `stop` before it is stopped.

NG1  A group's cursor is read and moved, for a member, only while the channel is assigned to that generation of it by
     the catalog of the channel's leader; and that catalog is not older than what the member has seen. So once a new
     reader has asked where to begin, the one before cannot move the position any more.
NG2  A request about an unknown group is answered only after a read barrier: the member may have just joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tidelog.cluster.clients.access import READ, ClientAccess
from tidelog.cluster.clients.requests import (
    GroupAskRequest,
    GroupClaim,
    GroupQuestion,
    pass_on,
    read_group_ask,
    read_passed_on,
)
from tidelog.cluster.groups.admin import require_owner, sees_group
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.client_codec import GROUP_ASK, decode_answer, encode_json
from tidelog.core.catalog import GroupMember, GroupRecord
from tidelog.core.groups.coordinator import GroupCoordinator, GroupOptions
from tidelog.errors import (
    AccessDenied,
    BadMessage,
    LogError,
    MemberFenced,
    NotAssigned,
    NotGroupCoordinator,
    UnknownGroup,
    UnknownMember,
)

EXPEL_MS: Final = 5_000
RELAY_MS: Final = 2_000
LISTED_MAX: Final = 1_000
_EXPELS_MAX: Final = 32
"""Proposed at once: the rest is said again with the next tick."""


class NodeGroups:
    def __init__(
        self, channels: LocalChannels, options: GroupOptions, *, access: ClientAccess, say: Callable[..., None]
    ) -> None:
        """`say` writes a line for the log."""
        self._channels = channels
        self._say = say
        self.options = options
        self._access = access
        self.coordinator = GroupCoordinator(options)
        self._task: asyncio.Task[None] | None = None
        self._expelled = 0

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        # Kept here, and cancelled by `stop`.
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.options.tick_ms / 1000)
            catalog = self._channels.known_catalog
            if catalog is None or not self._channels.is_registered:
                continue
            now_ms = self._channels.now_ms()
            self.coordinator.follow(catalog.groups_coordinated_by(self._channels.node), now_ms)
            silent = self.coordinator.wake(now_ms)[:_EXPELS_MAX]
            if silent:
                await asyncio.gather(*(self._expel(change) for change in silent))

    async def _expel(self, change: Any) -> None:
        try:
            await self._channels.propose(change, timeout_ms=EXPEL_MS)
        except LogError as error:
            self._say("not expelled", group=change.group, member=change.member, reason=error.code)
        else:
            self._expelled += 1
            self._say("member expelled", group=change.group, member=change.member)

    # --- what members ask --------------------------------------------------------------------------------------

    async def ask(self, plain: dict[str, Any], principal: str) -> dict[str, Any]:
        """A question of a client; one about assignments is passed on to the coordinator."""
        request = read_group_ask(plain)
        if request.question is not GroupQuestion.ASSIGNMENTS:
            await self._channels.read_barrier()
            return self._described(request, principal)
        try:
            return await self.assignments(_claimed(request), principal)
        except NotGroupCoordinator as error:
            body = encode_json(pass_on(principal, plain))
            return decode_answer(await self._channels.ask_node(error.coordinator, GROUP_ASK, body, timeout_ms=RELAY_MS))

    async def answer_node(self, plain: dict[str, Any]) -> dict[str, Any]:
        """A question that another node passed on."""
        passed = read_passed_on(plain)
        return await self.assignments(_claimed(read_group_ask(passed.request)), passed.principal)

    async def assignments(self, claim: GroupClaim, principal: str) -> dict[str, Any]:
        """What the member reads, if that is news to it. Asking is its heartbeat."""
        group, member = await self._member(claim, principal)
        me = self._channels.node
        if group.coordinator != me:
            raise NotGroupCoordinator(group=group.group, coordinator=group.coordinator)
        self.coordinator.heard(group, member.member, self._channels.now_ms())
        found: dict[str, Any] = {
            "epoch": group.epoch,
            "coordinator": group.coordinator,
            "coordinator_epoch": group.coordinator_epoch,
            "channels": None,
        }
        if claim.epoch != group.epoch:
            found["channels"] = self._channels_of(member)
        return found

    async def _member(self, claim: GroupClaim, principal: str) -> tuple[GroupRecord, GroupMember]:
        """The group and the member, as somebody knows them who has seen `claim.epoch` (NG2)."""
        group = self._channels.catalog.group(claim.group)
        member = None if group is None else group.member(claim.member)
        if group is None or member is None or group.epoch < claim.epoch or member.life < claim.life:
            await self._channels.read_barrier()
            group = self._channels.catalog.group(claim.group)
        if group is None:
            raise UnknownMember(group=claim.group, member=claim.member)  # it went with its last member
        member = require_owner(self._access, group, claim.member, principal)
        if member.life != claim.life:
            raise MemberFenced(group=group.group, member=member.member, life=claim.life, newest=member.life)
        return group, member

    def _channels_of(self, member: GroupMember) -> list[list[Any]]:
        """Ids and names; those that were deleted since are left out."""
        catalog = self._channels.catalog
        records = [catalog.channel(channel_id) for channel_id in member.assigned]
        return [[record.channel_id, record.name] for record in records if record is not None]

    # --- who may move a cursor -----------------------------------------------------------------------------------

    async def require_reader(self, claim: GroupClaim, channel_id: int, principal: str) -> None:
        """Raise unless the channel is this member's to read (NG1)."""
        group, member = await self._member(claim, principal)
        if not member.reads(channel_id):
            record = self._channels.catalog.channel(channel_id)
            name = f"id {channel_id}" if record is None else record.name
            raise NotAssigned(group=group.group, member=member.member, channel=name, epoch=group.epoch)

    # --- for people ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, int]:
        """Groups of the catalog as this node knows it, and what it does for them."""
        catalog = self._channels.known_catalog
        groups = [] if catalog is None else catalog.groups()
        return {
            "total": len(groups),
            "members": sum(len(group.members) for group in groups),
            "coordinated": 0 if catalog is None else catalog.group_count(self._channels.node),
            "expelled": self._expelled,
        }

    def _described(self, request: GroupAskRequest, principal: str) -> dict[str, Any]:
        catalog = self._channels.catalog
        if request.question is GroupQuestion.LIST:
            seen = [group for group in catalog.groups() if sees_group(self._access, group, principal)]
            return {"groups": [_summary(group) for group in seen[:LISTED_MAX]], "count": len(seen)}
        group = catalog.group(request.group)
        if group is None:
            raise UnknownGroup(group=request.group)
        if not sees_group(self._access, group, principal):
            raise AccessDenied(principal=principal, scope=READ, channel=f"those of group {group.group}")
        members = [
            {
                "member": member.member,
                "owner": member.owner,
                "reads": list(member.channels),
                "streams": list(member.streams),
                "life": member.life,
                "channels": self._channels_of(member),
                "silence_ms": self.coordinator.silence_ms(group, member.member, self._channels.now_ms()),
            }
            for member in group.members
        ]
        return {"group": {**_summary(group), "members": members}}


def _claimed(request: GroupAskRequest) -> GroupClaim:
    if request.claim is None:
        raise BadMessage(problem="only questions about assignments are passed on")
    return request.claim


def _summary(group: GroupRecord) -> dict[str, Any]:
    return {
        "group": group.group,
        "epoch": group.epoch,
        "coordinator": group.coordinator,
        "coordinator_epoch": group.coordinator_epoch,
        "members": len(group.members),
        "channels": sum(len(member.assigned) for member in group.members),
        "created_at_ms": group.created_at_ms,
    }
