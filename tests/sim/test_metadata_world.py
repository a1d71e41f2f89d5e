"""The metadata group in the simulator: random runs, and what the simulator itself must keep."""

from __future__ import annotations

import pytest

from tidelog.cli.sim_commands import run_seeds
from tidelog.sim.lying import Lie
from tidelog.sim.metadata.model import MetadataViolation
from tidelog.sim.metadata.world import SHORT_MS, run_metadata_world

FAST_SEEDS = 300
SLOW_SEEDS = 2_000
SLOW_EVENTS = 10_000_000

RARE = frozenset({"chunk_mangled", *(f"lied_{kind}" for kind in Lie)})
"""Too rare for short runs."""


def check_lane(function: str, first: int, count: int, *, rare: frozenset[str] = frozenset()) -> int:
    """Run these seeds on all cores; returns how many events there were. What is `rare` need not have happened."""
    result = run_seeds("tidelog.sim.metadata.world", function, first=first, count=count)
    assert result["violations"] == [], "replay with: tidelog sim metadata --seed N"
    assert set(result["never"]) <= rare, "the run proves less than it says"
    assert result["seeds"] == count
    assert result["simulated_hours"] > count * SHORT_MS / 3_600_000
    return int(result["events"])


@pytest.mark.timeout(600)
def test_random_runs_of_a_cluster_s_memory_keep_every_promise() -> None:
    assert check_lane("run_short_metadata_seeds", 0, FAST_SEEDS, rare=RARE) > 1_000 * FAST_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_many_random_runs_of_a_cluster_s_memory_keep_every_promise() -> None:
    assert check_lane("run_metadata_seeds", 10_000, SLOW_SEEDS) >= SLOW_EVENTS


def test_a_seed_replays_the_same_run() -> None:
    assert run_metadata_world(7, duration_ms=SHORT_MS) == run_metadata_world(7, duration_ms=SHORT_MS)


def test_a_violation_names_its_seed_and_how_to_see_it_again() -> None:
    violation = MetadataViolation(12, "a vote is gone")
    assert str(violation) == "seed 12: a vote is gone\nreplay: tidelog sim metadata --seed 12"
