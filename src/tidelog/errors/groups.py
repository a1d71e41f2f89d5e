"""Errors of consumer groups: who is a member, who coordinates, and who may still move a position."""

from __future__ import annotations

from tidelog.errors.base import LogError


class UnknownGroup(LogError):
    """There is no group of this name: it was never joined, or its last member has left. Join it."""

    code = "unknown_group"

    def __init__(self, *, group: str) -> None:
        super().__init__(f"there is no group {group!r}; join it first")
        self.group = group


class UnknownMember(LogError):
    """The group has no such member: it left, or was expelled because it was silent for too long. Join again, and read
    from the committed positions."""

    code = "unknown_member"

    def __init__(self, *, group: str, member: str) -> None:
        super().__init__(
            f"group {group!r} has no member {member!r}; join again, then read from the committed positions"
        )
        self.group = group
        self.member = member


class MemberExists(LogError):
    """The group has a member of this name already, and the request was to add a new one, or it belongs to somebody
    else. Choose another name, or wait until the silent one is expelled."""

    code = "member_exists"

    def __init__(self, *, group: str, member: str, owner: str) -> None:
        super().__init__(f"group {group!r} has a member {member!r}, of {owner}; choose another name for this one")
        self.group = group
        self.member = member
        self.owner = owner


class MemberFenced(LogError):
    """Another process has joined under this member's name since. Only the newest one counts; stop this one."""

    code = "member_fenced"

    def __init__(self, *, group: str, member: str, life: int, newest: int) -> None:
        super().__init__(
            f"member {member!r} of group {group!r} joined anew as {newest}, after this one as {life}; "
            "stop this one, or give it a name of its own"
        )
        self.group = group
        self.member = member
        self.life = life
        self.newest = newest


class NotAssigned(LogError):
    """The channel is not this member's to read at the moment: another member has it, and goes on from the committed
    position. Nothing was committed; leave the channel to the other."""

    code = "not_assigned"

    def __init__(self, *, group: str, member: str, channel: str, epoch: int) -> None:
        super().__init__(
            f"channel {channel!r} is not assigned to member {member!r} of group {group!r} at epoch {epoch}; "
            "ask for the assignments again"
        )
        self.group = group
        self.member = member
        self.channel = channel
        self.epoch = epoch


class StaleGroupEpoch(LogError):
    """The group has changed since this was decided. Look at it again."""

    code = "stale_group_epoch"

    def __init__(self, *, group: str, expected: int, current: int) -> None:
        super().__init__(f"group {group!r} is at epoch {current}, not {expected}; look at it again")
        self.group = group
        self.expected = expected
        self.current = current


class NotGroupCoordinator(LogError):
    """Another node coordinates the group. Ask that one."""

    code = "not_group_coordinator"
    retriable = True

    def __init__(self, *, group: str, coordinator: str) -> None:
        super().__init__(f"group {group!r} is coordinated by {coordinator!r}; ask there")
        self.group = group
        self.coordinator = coordinator
