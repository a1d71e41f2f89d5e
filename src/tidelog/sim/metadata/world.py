"""The world of the metadata group, run by seed: one run, many runs, and what must have happened in many of them."""

from __future__ import annotations

from typing import Final

from tidelog.sim.metadata.faults import FAULTS
from tidelog.sim.metadata.lies import LIES
from tidelog.sim.metadata.model import MetadataViolation
from tidelog.sim.metadata.scene import MetadataWorld
from tidelog.sim.seeds import WorldResult, seeds_runner

DURATION_MS: Final = 27_000
SHORT_MS: Final = 6_000
"""A run long enough to meet most faults, for tests that run many seeds in little time."""
SOMETIMES: Final = (
    "admitted",
    "chunk_mangled",
    "clean_stop",
    "compacted",
    "crash",
    "crash_in_call",
    "cut",
    "damage_found",
    "disk_failed",
    "disk_replaced",
    "duplicated",
    "election",
    "fence",
    "fenced_and_back",
    "full",
    "kill",
    "lied",
    "lied_flipped",
    "lied_gone",
    "lied_removed",
    "lied_zeroed",
    "log_cut",
    "lost_message",
    "node_removed",
    "old_copy_noticed",
    "one_way",
    "outcome_unknown",
    "pause",
    "pre_vote_refused",
    "proposal_lost",
    "read_at_follower",
    "read_waited",
    "removed_leader",
    "restored",
    "rot",
    "session_grace",
    "slow_disk",
    "snapshot_chunk_lost",
    "snapshot_installed",
    "torn_write",
    "transfer",
    "wiped",
    "wiped_metadata",
)
"""What must have happened at least once in a run over many seeds."""


def run_metadata_world(seed: int, *, duration_ms: int = DURATION_MS) -> WorldResult:
    """Live through one seed; raises `MetadataViolation` when a promise is broken."""
    return MetadataWorld(seed).run_seed(duration_ms, FAULTS | LIES, MetadataViolation)


run_metadata_seeds: Final = seeds_runner(run_metadata_world, SOMETIMES)
run_short_metadata_seeds: Final = seeds_runner(run_metadata_world, SOMETIMES, duration_ms=SHORT_MS)
