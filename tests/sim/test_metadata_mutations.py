"""The metadata's simulator proves itself: break the code on purpose, and it must notice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.sim.mutations import MUTATIONS, plant
from tests.sim.schedules import metadata_schedules as schedules
from tests.sim.schedules.metadata import Schedule
from tidelog.errors import CatalogCorrupt
from tidelog.sim.metadata.model import ClusterBroken, MetadataViolation
from tidelog.sim.metadata.world import run_metadata_world

RUN_MS = 10_000
SEEDS = 60

BY_SCHEDULE: dict[str, tuple[str, Callable[[], Schedule]]] = {
    "acked tail lost in a crash": ("RST1:", schedules.all_lose_power),
    "entries of older terms committed by counting": ("LD1:", schedules.figure_8),
    "read without a round": ("LD2:", schedules.stale_leader_reads),
    "read before an entry of the own term is committed": ("LD2:", schedules.new_leader_reads),
    "two membership changes at once": ("LD3:", schedules.two_leaders_change_members),
    "log not cut where it differs": ("", schedules.figure_8),
    "vote given twice": ("RA1:", schedules.figure_8),
    "snapshot over a newer commit": ("RA3:", schedules.stale_snapshot),
    "snapshot not checked": ("", schedules.mangled_snapshot),
    "damaged log taken for a torn one": ("RST1:", partial(schedules.damaged_log, 0.1)),
    "end of the log not marked": ("RST1:", partial(schedules.damaged_log, 0.999)),
    "quarantine deleted": ("NC1:", partial(schedules.damaged_log, 0.1)),
    "wiped disk keeps its name": ("RST1:", schedules.wiped_voter_is_a_stranger),
    "cluster founded before all have answered": ("O1:", partial(schedules.blank_founder, whole=True)),
    "removed node stays a member": ("14:", schedules.removed_leader_returns),
    "session judged without the proof's age": ("L1:", schedules.renewed_by_a_former_leader),
    "incarnation of the past let in": ("C10:", schedules.sent_again_after_a_restart),
    "lost change told as done": ("MM1:", schedules.proposal_lost),
    "lost change forgotten": ("", schedules.proposals_meet),
    "lost registration not forgotten": ("14:", schedules.registration_lost),
    "removed node hears of no leader": ("14:", schedules.removed_leader_returns),
    "link that was up before its node was known": ("R7:", partial(schedules.all_blank, 3)),
    "message of a term that is not durable": ("RA6:", schedules.single_voter_leads_again),
    "write of a cut log counted": ("RA6:", partial(schedules.cut_while_writing, 1)),
    "answer of a term that is over": ("RA6:", partial(schedules.cut_while_writing, 99)),
}
"""Mutation to the rule that must be named, and the schedule that shows it."""

BY_SEEDS = {
    "vote not persisted": "RST1:",
    "term not persisted": "RST1:",
    "vote told before it is durable": "RA1:",
    "append answered before it is durable": "RA6:",
    "leader counts itself before its write": "LD1:",
    "read served before it is applied": "LD2:",
    "commit above what agrees": "",
    "learner counted as a voter": "LD1:",
    "vote for a log that lacks entries": "RA4:",
    "snapshot with an older membership": "LD3:",
    "session believed too long": "L1:",
    "new leader gives no time": "L1:",
    "fence ignored": "L",
    "incarnation not written down": "NF1:",
    "channel epoch not compared": "C2:",
    "entry skipped": "",
}


def first_violation(seeds: int = SEEDS) -> str:
    for seed in range(seeds):
        try:
            run_metadata_world(seed, duration_ms=RUN_MS)
        except MetadataViolation as violation:
            return violation.problem
    return "nothing"


def test_every_mutation_is_tried() -> None:
    assert sorted([*BY_SCHEDULE, *BY_SEEDS]) == sorted(MUTATIONS)


@pytest.mark.parametrize("name", BY_SCHEDULE)
def test_a_planted_bug_is_noticed_by_a_schedule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, schedule = BY_SCHEDULE[name]
    plant(monkeypatch, *MUTATIONS[name])
    with pytest.raises((ClusterBroken, AssertionError, CatalogCorrupt)) as caught:
        schedule()
    assert str(caught.value).startswith(rule)


@pytest.mark.parametrize("name", BY_SEEDS)
def test_a_planted_bug_is_noticed_in_random_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTATIONS[name])
    problem = first_violation()
    assert problem != "nothing"
    assert problem.startswith(BY_SEEDS[name])


@pytest.mark.parametrize("schedule", dict.fromkeys(schedule for _, schedule in BY_SCHEDULE.values()))
def test_without_a_bug_the_same_schedules_end_well(schedule: Callable[[], Schedule]) -> None:
    schedule()
