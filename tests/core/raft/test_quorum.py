"""Memberships and majorities against a second implementation that is too simple to be wrong."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.core.raft import AddLearner, Demote, Members, MembersChange, Promote, Remove
from tidelog.core.raft.members import MEMBERS_MAX
from tidelog.errors import MembershipRefused

NAMES = "abcdefgh"

memberships = st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True).flatmap(
    lambda names: st.integers(1, len(names)).map(
        lambda count: Members(tuple(sorted(names[:count])), tuple(sorted(names[count:])))
    )
)
changes: st.SearchStrategy[MembersChange] = st.builds(
    lambda kind, name: kind(name), st.sampled_from([AddLearner, Promote, Demote, Remove]), st.sampled_from(NAMES)
)


def majorities(voters: tuple[str, ...]) -> list[set[str]]:
    """Every set of voters with more in it than outside it."""
    subsets = chain.from_iterable(combinations(voters, size) for size in range(len(voters) + 1))
    return [set(subset) for subset in subsets if len(subset) > len(voters) - len(subset)]


def reached_by_a_majority(voters: tuple[str, ...], reached: dict[str, int]) -> int:
    """Try every number and every majority."""
    best = 0
    for number in range(max(reached.values(), default=0) + 1):
        if any(all(reached[voter] >= number for voter in majority) for majority in majorities(voters)):
            best = number
    return best


def changed_dumbly(members: Members, change: MembersChange) -> Members | None:
    """One letter per member, by cases; None where the change makes no sense."""
    roles = dict.fromkeys(members.voters, "V") | dict.fromkeys(members.learners, "L")
    role = roles.get(change.member, "-")
    table = {
        (AddLearner, "-"): "L",
        (Promote, "L"): "V",
        (Demote, "V"): "L",
        (Remove, "V"): "-",
        (Remove, "L"): "-",
    }
    after = table.get((type(change), role))
    if after is None:
        return None
    roles[change.member] = after
    if "V" not in roles.values():
        return None
    return Members(
        tuple(sorted(name for name, role in roles.items() if role == "V")),
        tuple(sorted(name for name, role in roles.items() if role == "L")),
    )


@given(members=memberships, numbers=st.lists(st.integers(0, 6), min_size=8, max_size=8))
@settings(max_examples=150, deadline=None)
def test_agreed_is_what_some_majority_has_reached(members: Members, numbers: list[int]) -> None:
    """5.3: the largest index that a majority of the voters holds; learners may hold what they like."""
    reached = dict(zip(NAMES, numbers, strict=True))
    voters = {voter: reached[voter] for voter in members.voters}
    assert members.agreed(lambda voter: reached[voter]) == reached_by_a_majority(members.voters, voters)


@given(members=memberships)
@settings(max_examples=100, deadline=None)
def test_a_quorum_is_the_smallest_majority(members: Members) -> None:
    assert members.quorum == min(len(majority) for majority in majorities(members.voters))


@given(members=memberships, change=changes)
@settings(max_examples=250, deadline=None)
def test_a_change_does_what_a_table_says(members: Members, change: MembersChange) -> None:
    """M1 and M2."""
    expected = changed_dumbly(members, change)
    if expected is None:
        with pytest.raises(MembershipRefused):
            members.changed(change)
    else:
        assert members.changed(change) == expected


@given(members=memberships, change=changes)
@settings(max_examples=150, deadline=None)
def test_majorities_before_and_after_a_change_always_meet(members: Members, change: MembersChange) -> None:
    """4.1: that is why one change at a time needs no joint consensus."""
    if changed_dumbly(members, change) is None:
        return
    after = members.changed(change)
    for before_majority in majorities(members.voters):
        for after_majority in majorities(after.voters):
            assert before_majority & after_majority


@given(members=memberships, sequence=st.lists(changes, max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_sequence_of_changes_leaves_a_voter_and_nobody_twice(
    members: Members, sequence: list[MembersChange]
) -> None:
    """M2."""
    for change in sequence:
        with suppress(MembershipRefused):
            members = members.changed(change)
        assert members.voters
        assert len(set(members.all)) == len(members.all)
        assert list(members.voters) == sorted(members.voters)
        assert list(members.learners) == sorted(members.learners)


def test_nobody_has_agreed_where_nobody_votes() -> None:
    assert Members().agreed(lambda voter: 5) == 0


def test_a_full_group_takes_nobody_but_changes_otherwise() -> None:
    full = Members(tuple(sorted(f"v{number:02}" for number in range(MEMBERS_MAX))))
    with pytest.raises(MembershipRefused):
        full.changed(AddLearner("x"))
    assert full.changed(Demote("v00")).learners == ("v00",)
