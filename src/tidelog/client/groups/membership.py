"""This process as a member of a consumer group: joining, the heartbeat, leaving.

A request for assignments is the heartbeat; any node relays it to the group's coordinator.

GB1  A member whose requests failed for the whole timeout counts itself as expelled: others may have its channels.
GB2  Positions are read and moved only with the claim of this member generation, so a channel's leader refuses commits
     for channels that are no longer assigned.
"""

from __future__ import annotations

from typing import Any

from tidelog.client.calls import Calls, now_ms
from tidelog.client.reading.reader import offset_or_none
from tidelog.codecs.client_codec import CURSOR, GROUP, GROUP_ASK
from tidelog.core.catalog import group_cursor
from tidelog.errors import BadMessage, LogError, UnknownGroup, UnknownMember

_HEARTBEAT_MS_MAX = 1_000
_ASK_MS_MIN = 2_000


class Membership:
    """Made by a group; call `join` first."""

    def __init__(self, calls: Calls, *, group: str, member: str, channels: tuple[str, ...]) -> None:
        self._calls = calls
        self.group = group
        self.member = member
        self._channels = channels
        self.life = 0
        self.epoch = 0
        """The epoch of the known assignments; 0 for none."""
        self.coordinator = ""
        self.consumer_timeout_ms = 1
        self._coordinator_timeout_ms = 1
        self._contact_ms = 0
        """When the newest answered request was sent."""
        self._reported_ms = 0

    @property
    def heartbeat_ms(self) -> int:
        return max(10, min(_HEARTBEAT_MS_MAX, self.consumer_timeout_ms // 5))

    @property
    def is_fresh(self) -> bool:
        """Whether the member is certainly not expelled yet (GB1)."""
        return now_ms() - self._contact_ms < self.consumer_timeout_ms

    def claim(self) -> dict[str, Any]:
        return {"group": self.group, "member": self.member, "life": self.life, "epoch": self.epoch}

    async def join(self) -> None:
        """Join the group, or join again in a new generation."""
        asked_ms = now_ms()
        answer = await self._calls.ask(
            GROUP,
            {
                "op": "join",
                "group": self.group,
                "member": self.member,
                "channels": list(self._channels),
                "streams": [],
                "again": True,
            },
            what=f"to join group {self.group!r}",
            attempt_ms=self._calls.options.commit_ms,
        )
        try:
            self.life = int(answer["life"])
            self.coordinator = str(answer["coordinator"])
            self.consumer_timeout_ms = int(answer["consumer_timeout_ms"])
            self._coordinator_timeout_ms = int(answer["coordinator_timeout_ms"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(problem=f"an answer to joining a group cannot be read: {error!r}") from error
        self.epoch = 0
        self._contact_ms = asked_ms

    async def heartbeat(self) -> dict[str, int] | None:
        """Ids of the assigned channels, by name, if that changed; else None."""
        asked_ms = now_ms()
        try:
            answer = await self._calls.ask(
                GROUP_ASK,
                {"op": "assignments", "as": self.claim()},
                what=f"the assignments of group {self.group!r}",
                timeout_ms=max(_ASK_MS_MIN, 2 * self.heartbeat_ms),
            )
        except LogError as error:
            if error.retriable:
                await self._report()
            raise
        try:
            epoch, channels = int(answer["epoch"]), answer["channels"]
            self.coordinator = str(answer["coordinator"])
            found = None if channels is None else {str(name): int(channel_id) for channel_id, name in channels}
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(problem=f"assignments of a group cannot be read: {error!r}") from error
        self._contact_ms = asked_ms
        if found is not None:
            self.epoch = epoch
        return found

    async def _report(self) -> None:
        """Report that the coordinator cannot be reached. If most members do, another node takes its place."""
        now = now_ms()
        if min(now - self._contact_ms, now - self._reported_ms) < self._coordinator_timeout_ms:
            return
        self._reported_ms = now
        request = {"op": "report", "group": self.group, "member": self.member, "coordinator": self.coordinator}
        try:
            await self._calls.ask(
                GROUP,
                {**request, "epoch": self.epoch},
                what=f"a report of the coordinator of group {self.group!r}",
                timeout_ms=_ASK_MS_MIN,
            )
        except LogError:
            return  # the group has changed, or no node answers; the next heartbeat shows which

    async def leave(self) -> None:
        try:
            await self._calls.ask(
                GROUP,
                {"op": "leave", "group": self.group, "member": self.member, "life": self.life},
                what=f"to leave group {self.group!r}",
                attempt_ms=self._calls.options.commit_ms,
                settled=lambda error: isinstance(error, UnknownMember | UnknownGroup),
            )
        except (UnknownMember, UnknownGroup):
            return  # it was expelled meanwhile, which has the same effect

    # --- positions -----------------------------------------------------------------------------------------

    async def position(self, channel: str, channel_id: int) -> int | None:
        """The group's position in an assigned channel; None if it never committed anything there."""
        return offset_or_none(await self._cursor(channel, channel_id, {"op": "get"}))

    async def commit(self, channel: str, channel_id: int, offset: int, *, timeout_ms: int | None = None) -> None:
        """Commit `offset` as the group's position. Raises `NotAssigned`, `MemberFenced` or `UnknownMember` (GB2), and
        `ChannelDeleted` or `ChannelRecreated` if the channel is gone: its offsets mean nothing in another (CQ4)."""
        await self._cursor(channel, channel_id, {"op": "set", "offset": offset}, timeout_ms=timeout_ms)

    async def _cursor(
        self, channel: str, channel_id: int, more: dict[str, Any], *, timeout_ms: int | None = None
    ) -> dict[str, Any]:
        claim, name = self.claim(), group_cursor(self.group)
        return await self._calls.ask_leader(
            channel,
            CURSOR,
            lambda route: {"channel_id": route.channel_id, "name": name, "as": claim, **more},
            what=f"the position of group {self.group!r} in {channel!r}",
            timeout_ms=timeout_ms,
            channel_id=channel_id,
        )
