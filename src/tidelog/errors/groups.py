"""Errors of consumer groups: membership, coordination, and stale members and epochs."""

from __future__ import annotations

from tidelog.errors.base import LogError


class UnknownGroup(LogError):
    """There is no group of this name: nobody has joined it, or its last member has left. Join it first."""

    template = "there is no group {group!r}; join it first"
    group: str


class UnknownMember(LogError):
    """The group has no such member: it left, or was expelled because it sent no heartbeat in time. Join again, and read
    from the committed positions."""

    template = "group {group!r} has no member {member!r}; join again, then read from the committed positions"
    group: str
    member: str


class MemberExists(LogError):
    """The group already has a member of this name, which belongs to another principal or must not be replaced. Choose
    another name, or wait until that member is expelled."""

    template = "group {group!r} has a member {member!r}, of {owner}; choose another name for this one"
    group: str
    member: str
    owner: str


class MemberFenced(LogError):
    """Another process joined later under this member's name. Only the newest one counts; stop this one."""

    template = (
        "member {member!r} of group {group!r} joined again as {newest}, after this one as {life}; stop this one, or "
        "give it a name of its own"
    )
    group: str
    member: str
    life: int
    newest: int


class NotAssigned(LogError):
    """The channel is assigned to another member at the moment, which reads on from the committed position. Nothing was
    committed; stop reading the channel."""

    template = (
        "channel {channel!r} is not assigned to member {member!r} of group {group!r} at epoch {epoch}; ask for the "
        "assignments again"
    )
    group: str
    member: str
    channel: str
    epoch: int


class StaleGroupEpoch(LogError):
    """The group has changed since the request was prepared. Read its state again."""

    template = "group {group!r} is at epoch {current}, not {expected}; read its state again"
    group: str
    expected: int
    current: int


class NotGroupCoordinator(LogError):
    """Another node coordinates the group. Ask that one."""

    retriable = True
    template = "group {group!r} is coordinated by {coordinator!r}; ask there"
    group: str
    coordinator: str
