"""Directed schedules of the metadata group: the promises hold where random runs seldom go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.schedules import metadata_schedules as schedules
from tests.sim.schedules.metadata import Schedule


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.figure_8,
        schedules.stale_leader_reads,
        schedules.new_leader_reads,
        schedules.proposal_lost,
        schedules.proposals_meet,
        schedules.registration_lost,
        schedules.single_voter_leads_again,
        schedules.removed_leader_returns,
        schedules.two_leaders_change_members,
        schedules.wiped_voter_is_a_stranger,
        schedules.sent_again_after_a_restart,
        schedules.stale_snapshot,
        schedules.mangled_snapshot,
        schedules.all_lose_power,
        schedules.os_crash_and_pauses,
        schedules.two_blank_of_five,
        schedules.renewed_by_a_former_leader,
    ],
    ids=lambda schedule: schedule.__name__,
)
def test_a_directed_schedule_ends_well(schedule: Callable[[], Schedule]) -> None:
    assert schedule().model.checks > 0


def test_an_entry_of_an_older_term_on_a_majority_is_replaced() -> None:
    """Figure 8: what three of five held is not what was committed there."""
    plan = schedules.figure_8()
    assert len(plan.model.leaders) >= 4
    assert plan.world.counters["log_cut"] > 0


def test_a_removed_leader_hands_over_first() -> None:
    plan = schedules.removed_leader_returns()
    assert plan.world.counters["node_removed"] == 1
    assert plan.world.counters["fence"] == 0


@pytest.mark.parametrize("batch", [1, 99])
def test_a_write_speaks_only_for_what_it_wrote(batch: int) -> None:
    plan = schedules.cut_while_writing(batch)
    assert plan.world.counters["log_cut"] > 0


@pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
def test_a_bit_flipped_in_the_log_makes_a_new_disk(place: float) -> None:
    plan = schedules.damaged_log(place)
    assert plan.world.counters["damage_found"] == 1
    assert plan.world.counters["disk_replaced"] == 1


@pytest.mark.parametrize("seed", range(8))
def test_blank_nodes_found_one_cluster_in_any_order(seed: int) -> None:
    plan = schedules.all_blank(seed)
    assert len(plan.model.members.voters) == 5, f"seed {seed}"


@pytest.mark.parametrize("whole", [True, False])
def test_a_founder_that_lost_its_disk_joins(whole: bool) -> None:
    plan = schedules.blank_founder(whole=whole)
    assert len(plan.model.members.voters) == 3
    assert plan.world.counters["disk_replaced"] == 1
