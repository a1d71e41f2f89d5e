"""The coordinator of a group: it receives the members' heartbeats and expels silent members.

Nothing here does I/O. The times of heartbeats are kept in memory alone: losing them gives silent members a fresh
timeout, nothing more. Expelling goes through the catalog, so members, coordinators and channels agree on it.

What a caller must keep: call `follow` with the groups that this node coordinates by its catalog, and then `wake`, every
`tick_ms`.

GC1  A member is expelled only if the coordinator that expels it did not hear it for the whole timeout.
GC2  A new coordinator, a new member and a new member generation begin with a fresh timeout.
GC3  A coordinator that was not woken in time cannot tell silence from its own pause, and restarts all timeouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.core.catalog import ExpelMember, GroupRecord
from tidelog.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The timeouts of members of groups that a node coordinates. Liftbridge's names and defaults."""

    consumer_timeout_ms: int = 15_000
    """A member that did not ask for its assignments for this long is expelled."""
    coordinator_timeout_ms: int = 15_000
    """Members that could not reach their coordinator for this long report it; reports older than this do not count."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value} ms; choose at least 100 ms"
            for name, value in (
                ("consumer_timeout_ms", self.consumer_timeout_ms),
                ("coordinator_timeout_ms", self.coordinator_timeout_ms),
            )
            if value < 100
        ]
        if problems:
            raise InvalidConfig(section="groups", problems=problems)

    @property
    def tick_ms(self) -> int:
        return max(20, min(250, self.consumer_timeout_ms // 10))


class _Key(NamedTuple):
    group: str
    member: str
    life: int
    coordinator_epoch: int


class GroupCoordinator:
    """All groups that one node coordinates."""

    def __init__(self, options: GroupOptions) -> None:
        self._options = options
        self._heard_ms: dict[_Key, int] = {}
        self._woken_ms: int | None = None

    def follow(self, groups: Iterable[GroupRecord], now_ms: int) -> None:
        """The groups that this node coordinates now."""
        present = [
            _Key(group.group, member.member, member.life, group.coordinator_epoch)
            for group in groups
            for member in group.members
        ]
        self._heard_ms = {key: self._heard_ms.get(key, now_ms) for key in present}  # GC2

    def heard(self, group: GroupRecord, member: str, now_ms: int) -> None:
        """A member of a group that this node coordinates was heard."""
        known = group.member(member)
        assert known is not None, "a member that the group does not have was heard"
        self._heard_ms[_Key(group.group, member, known.life, group.coordinator_epoch)] = now_ms

    def wake(self, now_ms: int) -> list[ExpelMember]:
        """Members to expel. Returned by every wake until the catalog shows that they are gone."""
        timeout_ms = self._options.consumer_timeout_ms
        if self._woken_ms is not None and now_ms - self._woken_ms > timeout_ms // 2:
            self._heard_ms = dict.fromkeys(self._heard_ms, now_ms)  # GC3
        self._woken_ms = now_ms
        return [
            ExpelMember(group=key.group, member=key.member, life=key.life, coordinator_epoch=key.coordinator_epoch)
            for key, heard_ms in self._heard_ms.items()
            if now_ms - heard_ms >= timeout_ms  # GC1
        ]

    def silence_ms(self, group: GroupRecord, member: str, now_ms: int) -> int | None:
        """For status pages: since when a member is silent; None where it is not coordinated here."""
        known = group.member(member)
        if known is None:
            return None
        heard_ms = self._heard_ms.get(_Key(group.group, member, known.life, group.coordinator_epoch))
        return None if heard_ms is None else now_ms - heard_ms
