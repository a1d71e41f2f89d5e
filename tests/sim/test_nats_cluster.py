"""Whole clusters in the simulator, replication over NATS: random runs, the schedules of the links, planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.mutations import Edit, plant
from tests.sim.schedules import cluster_schedules as schedules
from tests.sim.schedules.cluster import ClusterSchedule
from tests.sim.test_cluster_world import check_lane
from tidelog.cluster.nats.exchange import NatsExchange
from tidelog.cluster.replication.following import Following
from tidelog.sim.cluster.model import ClusterViolation, NatsClusterViolation
from tidelog.sim.cluster.nats_server import NATS_SOMETIMES
from tidelog.sim.cluster.world import SHORT_MS, run_nats_cluster_world, run_short_nats_cluster_seeds

FAST_SEEDS = 20
SLOW_SEEDS = 1_000
RARE = frozenset({"nats_parts"})
"""What twenty short runs may miss: few replicas fall so far behind."""
SEEDS = 80
RUN_MS = 8_000
MUTATIONS: dict[str, tuple[Edit, ...]] = {
    "no responders taken for divergence": (
        Edit(
            NatsExchange,
            "_nobody_heard",
            "nobody_listens(channel_id=channel_id, request_id=request_id)",
            "SyncNack(channel_id=channel_id, request_id=request_id, leader_epoch=ask.request.leader_epoch, "
            "error=__import__('tidelog.core.replication.messages').core.replication.messages.SyncError.DIVERGED)",
        ),
        # A follower keeps what it knows to be committed whatever it is told (FW6), and hides the bug with it.
        Edit(Following, "_must_keep", "if end >= kept_end:", "if True:"),
    ),
    "answers go to the first inbox": (
        Edit(NatsExchange, "_note_way", "self._replies[key] = inbox", "self._replies.setdefault(key, inbox)"),
    ),
}


@pytest.mark.timeout(600)
def test_random_runs_over_nats_keep_every_promise() -> None:
    result = run_short_nats_cluster_seeds(0, FAST_SEEDS)
    assert result["violations"] == [], "replay with: tidelog sim cluster --transport nats --seed N"
    assert set(result["never"]) & set(NATS_SOMETIMES) <= RARE, "the run proves less than it says"
    assert result["events"] > 1_000 * FAST_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_many_random_runs_over_nats_keep_every_promise() -> None:
    assert check_lane("run_nats_cluster_seeds", 20_000, SLOW_SEEDS) > 5_000 * SLOW_SEEDS


def test_a_seed_replays_the_same_run() -> None:
    assert run_nats_cluster_world(5, duration_ms=SHORT_MS) == run_nats_cluster_world(5, duration_ms=SHORT_MS)


def test_a_violation_says_how_to_see_it_again() -> None:
    assert "tidelog sim cluster --transport nats --seed 12" in str(NatsClusterViolation(12, "a record is gone"))


@pytest.mark.parametrize("schedule", schedules.SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_the_schedules_of_the_links_end_well_over_nats(
    schedule: Callable[[], ClusterSchedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterSchedule, "transport", "nats")
    plan = schedule()
    assert plan.model.checks > 0
    assert plan.world.counters["nats_sent"] > 0


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTATIONS[name])
    for seed in range(SEEDS):
        try:
            run_nats_cluster_world(seed, duration_ms=RUN_MS)
        except ClusterViolation:
            return
    pytest.fail(f"{SEEDS} seeds did not notice")
