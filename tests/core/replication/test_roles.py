"""The table of roles, both ways: what it allows, and that it allows nothing else (RO1, RO2)."""

from __future__ import annotations

import itertools

import pytest

from tidelog.core.replication.roles import TRANSITIONS, WITHDRAWAL, Cause, Role, check_transition
from tidelog.errors import InvalidTransition, WrongCause

SEED = {
    (Role.IDLE, Role.REPLICA, Cause.CAPABILITY_SELECTED),
    (Role.REPLICA, Role.CANDIDATE, Cause.MISSED_HEARTBEATS),
    (Role.CANDIDATE, Role.LEADER, Cause.ELECTION_WON),
    (Role.CANDIDATE, Role.REPLICA, Cause.ELECTION_LOST),
    (Role.LEADER, Role.REPLICA, Cause.PEER_LEADER_OBSERVED),
    (Role.LEADER, Role.IDLE, Cause.GRACEFUL_RELINQUISH),
    (Role.REPLICA, Role.IDLE, Cause.DISK_PRESSURE_WITHDRAW),
    (Role.LEADER, Role.IDLE, Cause.LEADER_DISK_PRESSURE_WITHDRAW),
    (Role.CANDIDATE, Role.IDLE, Cause.CANDIDATE_DISK_PRESSURE_WITHDRAW),
    *((role, Role.IDLE, Cause.CHANNEL_CLOSE) for role in Role),
    *((role, Role.IDLE, Cause.PLACEMENT_DESELECTED) for role in Role if role is not Role.IDLE),
}
"""The table of reference/redex.md, section 2."""

OURS = {
    (Role.REPLICA, Role.CANDIDATE, Cause.ELECTION_CALLED),
    (Role.CANDIDATE, Role.REPLICA, Cause.LEADER_HEARD),
}


@pytest.mark.parametrize(("before", "after", "cause"), list(itertools.product(Role, Role, Cause)))
def test_the_table_is_the_seeds_and_two_causes_more(before: Role, after: Role, cause: Cause) -> None:
    if (before, after, cause) in SEED | OURS:
        check_transition("spray", before, after, cause)
        return
    pairs = {(one, other) for one, other, _ in SEED | OURS}
    expected = WrongCause if (before, after) in pairs else InvalidTransition
    with pytest.raises(expected) as caught:
        check_transition("spray", before, after, cause)
    assert type(caught.value) is expected
    assert "spray" in str(caught.value)
    assert caught.value.definite


def test_ro1_only_a_candidate_becomes_leader() -> None:
    assert [before for before, after in TRANSITIONS if after is Role.LEADER] == [Role.CANDIDATE]


def test_ro2_from_idle_only_a_placement_leads_on() -> None:
    assert {after for before, after in TRANSITIONS if before is Role.IDLE} == {Role.REPLICA, Role.IDLE}
    assert TRANSITIONS[(Role.IDLE, Role.REPLICA)] == {Cause.CAPABILITY_SELECTED}


def test_every_role_with_a_copy_has_a_cause_to_withdraw_by() -> None:
    assert set(WITHDRAWAL) == set(Role) - {Role.IDLE}
    for role, cause in WITHDRAWAL.items():
        check_transition("spray", role, Role.IDLE, cause)


def test_the_numbers_of_roles_are_those_of_the_seeds_wire() -> None:
    assert [(role.name, role.value) for role in Role] == [("LEADER", 0), ("REPLICA", 1), ("CANDIDATE", 2), ("IDLE", 3)]
