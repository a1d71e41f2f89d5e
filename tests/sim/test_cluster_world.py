"""Whole clusters in the simulator: random runs, and what the simulator itself must keep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.schedules.cluster import ClusterSchedule
from tidelog.cli.sim_commands import run_seeds
from tidelog.sim.cluster.faults import rot_in_log
from tidelog.sim.cluster.model import ClusterViolation
from tidelog.sim.cluster.scene import WRITES_MS
from tidelog.sim.cluster.world import SHORT_MS, run_cluster_world
from tidelog.sim.metadata.model import ClusterBroken

FAST_SEEDS = 200
SLOW_SEEDS = 2_000
SLOW_EVENTS = 20_000_000
RARE = frozenset(
    {
        "backpressure",
        "by_reports",
        "epoch_raised",
        "lied_flipped",
        "lied_gone",
        "lied_removed",
        "lied_zeroed",
        "log_rot",
        "lying_syncs",
        "old_copy",
        "store_stopped",
        "whole_again",
        "wiped",
        "wiped_metadata",
    }
)
"""What two hundred short runs may miss."""


def check_lane(function: str, first: int, count: int, *, rare: frozenset[str] = frozenset()) -> int:
    """Run these seeds on all cores; returns how many events there were."""
    result = run_seeds("tidelog.sim.cluster.world", function, first=first, count=count)
    assert result["violations"] == [], "replay with: tidelog sim cluster --seed N"
    assert set(result["never"]) <= rare, "the run proves less than it says"
    assert result["seeds"] == count
    return int(result["events"])


@pytest.mark.timeout(600)
def test_random_runs_of_whole_clusters_keep_every_promise() -> None:
    assert check_lane("run_short_cluster_seeds", 0, FAST_SEEDS, rare=RARE) > 2_000 * FAST_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_many_random_runs_of_whole_clusters_keep_every_promise() -> None:
    assert check_lane("run_cluster_seeds", 10_000, SLOW_SEEDS) >= SLOW_EVENTS


def test_a_seed_replays_the_same_run() -> None:
    assert run_cluster_world(7, duration_ms=SHORT_MS) == run_cluster_world(7, duration_ms=SHORT_MS)


def test_a_violation_names_its_seed_and_how_to_see_it_again() -> None:
    violation = ClusterViolation(12, "a record is gone")
    assert str(violation) == "seed 12: a record is gone\nreplay: tidelog sim cluster --seed 12"


def look_while_paused(plan: ClusterSchedule, name: str) -> None:
    """As a random run that has healed looks: a channel that takes no write for too long is a violation."""
    plan.world.quiet = False
    plan.node(name).pause(WRITES_MS + 2_000)
    while plan.node(name).paused:
        plan.world.unrest()
        plan.run(100)


@pytest.mark.parametrize(
    ("replicas", "settings"),
    [(("n3",), {"factor": 1}), (("n1", "n2", "n3"), {"min_isr": 3})],
    ids=["its only replica", "all of its replicas"],
)
def test_a_channel_that_needs_a_paused_node_is_not_asked_for_writes(
    replicas: tuple[str, ...], settings: dict[str, Any]
) -> None:
    plan = ClusterSchedule(3, leader="n3", replicas=replicas, **settings)
    look_while_paused(plan, "n3")
    plan.until(lambda: not plan.world.unrest(), "the channel takes writes")


def test_a_channel_that_needs_no_paused_node_is_asked_for_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ClusterSchedule(3, leader="n2", replicas=("n2",), factor=1)
    plan.run(500)  # all have applied what was decided
    monkeypatch.setattr(plan.world, "look_up", lambda _: None)  # no client finds it, and no pause is to blame
    with pytest.raises(ClusterBroken, match="14: c0 took no write"):
        look_while_paused(plan, "n3")


def settled_end(*, missing: slice, damaged: bool) -> tuple[int, int]:
    """Where the account of a channel ended before and after an election that may lose records, if the elected one
    holds all but these blocks."""
    plan = ClusterSchedule(3)
    plan.written(plan.producer(), 6)
    channel, copy = plan.channel, plan.channel.copies["n2"]
    before = channel.end
    del copy.entries[missing]
    copy.damaged = damaged
    plan.world.model._settle(channel, copy)
    return before, channel.end


def test_what_rotted_in_the_log_of_an_elected_leader_is_still_committed() -> None:
    before, after = settled_end(missing=slice(2, 3), damaged=True)
    assert after == before


@pytest.mark.parametrize(
    ("missing", "damaged"), [(slice(2, 3), False), (slice(-1, None), True)], ids=["a hole", "the end"]
)
def test_what_an_elected_leader_never_had_is_lost(missing: slice, damaged: bool) -> None:
    before, after = settled_end(missing=missing, damaged=damaged)
    assert after < before


def test_an_operator_asks_for_no_more_replicas_in_sync_than_there_are_nodes() -> None:
    plan = ClusterSchedule(3, factor=4, min_isr=4)
    plan.world.quiet = False
    plan.until(lambda: not plan.world.unrest(), "the channel takes writes")
    assert plan.channel.record.config.min_isr == 1


@pytest.mark.parametrize("in_last_commit", [True, False])
def test_rot_spares_the_commit_in_which_it_would_pass_for_a_torn_write(
    in_last_commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ClusterSchedule(3)
    plan.written(plan.producer(), 4)
    node, disk = plan.node("n2"), plan.node("n2").disk
    path = next(one for one in node.channel_files() if one.endswith(".wal"))
    before = disk.durable_bytes(path)
    position = len(before) - 1 if in_last_commit else 70  # 64 bytes of head, then the first commit

    def flip(_: str) -> tuple[int, int]:
        disk.flip_bit(path, position, 3)
        return position, 3

    monkeypatch.setattr(disk, "flip_random_bit", flip)
    monkeypatch.setattr(node, "channel_files", lambda: [path])
    rot_in_log(plan.world, node)
    assert (disk.durable_bytes(path) == before) is in_last_commit
    assert node.rotten is not in_last_commit
