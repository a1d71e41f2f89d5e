"""The world of whole clusters, run by seed: one run, many runs, and what must have happened in many of them."""

from __future__ import annotations

from typing import Final

from tidelog.sim.cluster.faults import FAULTS
from tidelog.sim.cluster.model import ClusterViolation, NatsClusterViolation
from tidelog.sim.cluster.nats_server import NATS_FAULTS, NATS_SOMETIMES
from tidelog.sim.cluster.scene import ClusterWorld
from tidelog.sim.seeds import WorldResult, seeds_runner

DURATION_MS: Final = 11_500
SHORT_MS: Final = 4_000
"""For tests that run many seeds in little time."""
SOMETIMES: Final = (
    "acked",
    "administered",
    "append_refused",
    "backpressure",
    "boat_backfill",
    "boat_crash",
    "boat_live",
    "boat_moved_node",
    "boat_reconnected",
    "boat_relayed",
    "boat_repeated",
    "by_reports",
    "channel_election",
    "crash",
    "crash_in_call",
    "cut",
    "cut_from_followers",
    "epoch_raised",
    "error_leadership_lost",
    "error_not_channel_leader",
    "error_not_enough_replicas",
    "error_too_many_in_flight",
    "fence",
    "fenced_and_back",
    "full",
    "handed_back",
    "isr_expand",
    "isr_shrink",
    "kill",
    "lied",
    "lied_flipped",
    "lied_gone",
    "lied_removed",
    "lied_zeroed",
    "link_reset",
    "log_rot",
    "lost_by_policy",
    "lying_syncs",
    "old_blocks_read",
    "old_copy",
    "one_way",
    "pause",
    "read_at_leader",
    "read_at_replica",
    "records_lost",
    "repeated",
    "reset",
    "resigned",
    "rolling_restart",
    "skip_ahead",
    "slow_store",
    "store_stopped",
    "swept",
    "truncated",
    "whole_again",
    "wiped",
    "wiped_metadata",
    "withdrawn",
)
"""What must have happened at least once in a run over many seeds."""


def run_cluster_world(seed: int, *, duration_ms: int = DURATION_MS) -> WorldResult:
    """Live through one seed; raises `ClusterViolation` when a promise is broken."""
    return ClusterWorld(seed).run_seed(duration_ms, FAULTS, ClusterViolation)


def run_nats_cluster_world(seed: int, *, duration_ms: int = DURATION_MS) -> WorldResult:
    """As `run_cluster_world`, with replication over a NATS server that has faults of its own."""
    return ClusterWorld(seed, transport="nats").run_seed(duration_ms, FAULTS | NATS_FAULTS, NatsClusterViolation)


_NATS_TOO: Final = (*SOMETIMES, *NATS_SOMETIMES)
run_cluster_seeds: Final = seeds_runner(run_cluster_world, SOMETIMES)
run_short_cluster_seeds: Final = seeds_runner(run_cluster_world, SOMETIMES, duration_ms=SHORT_MS)
run_nats_cluster_seeds: Final = seeds_runner(run_nats_cluster_world, _NATS_TOO)
run_short_nats_cluster_seeds: Final = seeds_runner(run_nats_cluster_world, _NATS_TOO, duration_ms=SHORT_MS)
