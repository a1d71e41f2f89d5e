"""Disks that lie in front of an election: nothing that was acked is lost while one in-sync replica is whole."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.sim.mutations import Edit, plant
from tidelog.cluster import channel_elections
from tidelog.cluster.channel_elections import Elections
from tidelog.cluster.replica_following import Following
from tidelog.sim import cluster_lies
from tidelog.sim.cluster_faults import lie, lie_to_all
from tidelog.sim.cluster_lies import LIES, SHORT_LOGS
from tidelog.sim.cluster_schedule import ClusterSchedule
from tidelog.sim.metadata_model import Broken

QUICK = [name for name in LIES if name.endswith(("3 nodes, kill", "5 nodes, crash"))]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LIES]
)
def test_a_disk_that_lost_what_it_had_synced_costs_nobodys_copy(name: str) -> None:
    plan = LIES[name]()
    assert plan.channel.losses == 0
    assert plan.channel.acks


@pytest.mark.parametrize("schedule", SHORT_LOGS, ids=lambda schedule: schedule.__name__)
def test_a_log_that_was_cut_without_a_trace_is_found_out(schedule: Callable[[], ClusterSchedule]) -> None:
    assert schedule().model.checks > 0


@pytest.mark.parametrize("min_isr", [1, 2])
def test_after_a_crash_nobody_leads_before_a_majority_was_compared(min_isr: int) -> None:
    assert cluster_lies.alone_after_a_crash(min_isr).channel.losses == 0


NO_ENDS = Edit(
    channel_elections,
    "most_complete",
    "if (facts[node].last_epoch, facts[node].log_end) == longest",
    "",
)
MUTATIONS: dict[str, tuple[Callable[[], ClusterSchedule], tuple[Edit, ...]]] = {
    "election that ignores ends": (
        cluster_lies.short_among_all,
        (
            NO_ENDS,
            Edit(channel_elections, "most_complete", "facts[node].log_end >= committed_end", "True"),
            Edit(channel_elections, "most_complete", "all_answered or", "True or"),
        ),
    ),
    "follower that cuts below its committed end": (
        cluster_lies.committed_is_kept,
        (Edit(Following, "_must_keep", "if end >= kept_end:", "if True:"),),
    ),
    "unclean replica counted at once": (
        cluster_lies.alone_after_a_crash,
        (Edit(Elections, "_is_certain", "member.incarnation >= record.written_since", "True"),),
    ),
    "remembered ends ignored": (
        cluster_lies.remembered_end,
        (Edit(channel_elections, "most_complete", "all_answered or", "True or"),),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, edits = MUTATIONS[name]
    plant(monkeypatch, *edits)
    with pytest.raises(Broken) as caught:
        schedule()
    assert str(caught.value).startswith(("1:", "4:"))


@pytest.mark.parametrize("fault", [lie, lie_to_all])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))])
def test_random_lies_in_front_of_an_election_lose_nothing(fault: Callable[..., None], seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.choice((3, 5))
    plan = ClusterSchedule(nodes, factor=nodes, min_isr=rng.choice((1, 2)), heartbeat_ms=200, seed=seed + 1)
    producer = plan.producer()
    for _ in range(3):
        plan.written(producer, rng.randint(1, 6))
        plan.until_in_sync(*plan.world.nodes)
        victims = rng.sample(sorted(plan.world.nodes), (nodes - 1) // 2)
        for name in victims:
            plan.node(name).tampered = False  # it is in sync again, and whole
        for name in victims:
            fault(plan.world, plan.node(name))
        order = list(plan.world.nodes)
        rng.shuffle(order)
        for name in order:
            plan.node(name).start()
            plan.run(rng.choice((0, 50, 500, 3_000)))
        # (What cannot be mended in its place is fetched again after half a minute.)
        plan.until(lambda: not plan.world.unrest(), "the cluster comes to rest", 60_000)
        plan.settle()
    assert plan.world.counters["lied"]
    assert plan.channel.losses == 0
