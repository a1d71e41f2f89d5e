"""The membership of a Raft group: voters count for majorities, learners only receive.

M1  A change adds, promotes, demotes or removes exactly one member, so the majorities of before and after always share a
    voter (section 4.1 of the dissertation).
M2  There is always a voter. No member is voter and learner at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.errors import MembershipRefused

MEMBERS_MAX = 64


@dataclass(frozen=True, slots=True)
class AddLearner:
    member: str


@dataclass(frozen=True, slots=True)
class Promote:
    """A learner becomes a voter."""

    member: str


@dataclass(frozen=True, slots=True)
class Demote:
    """A voter becomes a learner."""

    member: str


@dataclass(frozen=True, slots=True)
class Remove:
    member: str


MembersChange: TypeAlias = AddLearner | Promote | Demote | Remove


@dataclass(frozen=True, slots=True)
class Members:
    """Sorted, so that equal memberships are equal bytes."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    def __contains__(self, member: object) -> bool:
        return member in self.voters or member in self.learners

    def changed(self, change: MembersChange) -> Members:
        """The membership after one change (M1), or `MembershipRefused` with the reason."""
        member, voters, learners = change.member, set(self.voters), set(self.learners)
        match change:
            case AddLearner():
                if member in self:
                    raise MembershipRefused(member=member, reason="it is a member already")
                if len(self.all) >= MEMBERS_MAX:
                    raise MembershipRefused(
                        member=member, reason=f"there are {MEMBERS_MAX} members, the most there can be"
                    )
                learners.add(member)
            case Promote():
                if member not in learners:
                    raise MembershipRefused(member=member, reason="it is not a learner; add it first")
                learners.remove(member)
                voters.add(member)
            case Demote() | Remove():
                if member not in self:
                    raise MembershipRefused(member=member, reason="it is not a member")
                if voters == {member}:
                    raise MembershipRefused(member=member, reason="it is the last voter; promote another one first")
                if isinstance(change, Demote) and member not in voters:
                    raise MembershipRefused(member=member, reason="it is a learner already")
                voters.discard(member)
                learners.discard(member)
                if isinstance(change, Demote):
                    learners.add(member)
        return Members(tuple(sorted(voters)), tuple(sorted(learners)))

    def agreed(self, of: Callable[[str], int]) -> int:
        """The largest number that a majority of the voters has reached."""
        if not self.voters:
            return 0
        return sorted((of(voter) for voter in self.voters), reverse=True)[self.quorum - 1]
