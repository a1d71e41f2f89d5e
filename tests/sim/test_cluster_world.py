"""Whole clusters in the simulator: random lives, and what the simulator itself must keep."""

from __future__ import annotations

import pytest

from tidelog.cli.sim_commands import run_seeds
from tidelog.sim.cluster_model import ClusterViolation
from tidelog.sim.cluster_world import SHORT_MS, run_cluster_world

FAST_SEEDS = 200
SLOW_SEEDS = 2_000
SLOW_EVENTS = 20_000_000
RARE = frozenset({"backpressure", "by_reports", "epoch_raised", "store_stopped", "wiped", "wiped_metadata"})
"""What two hundred short lives may miss."""


def check_lane(function: str, first: int, count: int, *, rare: frozenset[str] = frozenset()) -> int:
    """Run these seeds on all cores; returns how many events there were."""
    result = run_seeds("tidelog.sim.cluster_world", function, first=first, count=count)
    assert result["violations"] == [], "replay with: tidelog sim cluster --seed N"
    assert set(result["never"]) <= rare, "the run proves less than it says"
    assert result["seeds"] == count
    return int(result["events"])


@pytest.mark.timeout(600)
def test_random_lives_of_whole_clusters_keep_every_promise() -> None:
    assert check_lane("run_short_cluster_seeds", 0, FAST_SEEDS, rare=RARE) > 2_000 * FAST_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_many_random_lives_of_whole_clusters_keep_every_promise() -> None:
    assert check_lane("run_cluster_seeds", 10_000, SLOW_SEEDS) >= SLOW_EVENTS


def test_a_seed_replays_the_same_life() -> None:
    assert run_cluster_world(7, duration_ms=SHORT_MS) == run_cluster_world(7, duration_ms=SHORT_MS)


def test_a_violation_names_its_seed_and_how_to_see_it_again() -> None:
    violation = ClusterViolation(12, "a record is gone")
    assert str(violation) == "seed 12: a record is gone\nreplay: tidelog sim cluster --seed 12"
