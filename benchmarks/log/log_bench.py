"""`tidelog bench log`: blocks, log, recovery and store against their floors and peers.

What every key means and what it must reach is in docs/benchmarks.md.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.log.append_bench import measure_appends, measure_channels, measure_group_commit
from benchmarks.log.block_bench import measure_blocks
from benchmarks.log.recovery_bench import measure_open, measure_recovery
from benchmarks.log.size_bench import measure_bytes
from tidelog.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSizes:
    """How much work a run does. Smaller is noisier, never different."""

    rounds: int = 7
    disk_rounds: int = 61
    append_blocks: int = 4
    group_commits: int = 8
    """Short rounds and many of them: a disk has good and bad moments, and both sides must meet the same ones."""
    codec_rounds: int = 15
    """A round of these takes milliseconds."""
    bulk_blocks: int = 128
    sealed_blocks: int = 16
    live_frames: int = 64_000
    log_bytes: int = 1 * GIB
    small_log_bytes: int = 16 * MIB
    channels: int = 1_000
    channel_in_flight: int = 1_000
    channel_appends: int = 247_000
    """What fills a write-ahead file of the default size, 64 MiB."""
    channel_rounds: int = 5
    capture_frames_max: int | None = None


FULL = LogSizes()

QUICK = LogSizes(
    rounds=3,
    disk_rounds=15,
    codec_rounds=5,
    bulk_blocks=32,
    sealed_blocks=4,
    live_frames=16_000,
    log_bytes=128 * MIB,
    small_log_bytes=2 * MIB,
    # An eighth of the channels and of the write-ahead file: a cycle of the same shape.
    channels=125,
    channel_appends=31_000,
    channel_rounds=3,
)


def run(*, quick: bool = False, folder: str | None = None, sizes: LogSizes | None = None) -> Results:
    """Measure everything; one flat object. `folder` says where the scratch files go (default: here)."""
    sizes = sizes or (QUICK if quick else FULL)
    start = time.perf_counter()
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results |= {"quick": quick, "rounds": sizes.rounds}
        results |= measure_appends(_part(scratch, "append"), blocks=sizes.append_blocks, rounds=sizes.disk_rounds)
        results |= measure_group_commit(_part(scratch, "group"), commits=sizes.group_commits, rounds=sizes.disk_rounds)
        results |= measure_blocks(
            bulk_blocks=sizes.bulk_blocks,
            sealed_blocks=sizes.sealed_blocks,
            live_frames=sizes.live_frames,
            rounds=sizes.codec_rounds,
        )
        results |= measure_recovery(
            _part(scratch, "recovery"),
            log_bytes=sizes.log_bytes,
            small_log_bytes=sizes.small_log_bytes,
            rounds=sizes.rounds,
        )
        results |= measure_open(_part(scratch, "open"), log_bytes=sizes.log_bytes, rounds=sizes.rounds)
        results |= measure_channels(
            _part(scratch, "channels"),
            channels=sizes.channels,
            in_flight=sizes.channel_in_flight,
            appends=sizes.channel_appends,
            rounds=sizes.channel_rounds,
        )
        results |= measure_bytes(_part(scratch, "bytes"), frames_max=sizes.capture_frames_max)
    results["run_seconds"] = round(time.perf_counter() - start, 1)
    return results


def _part(scratch: str, name: str) -> str:
    path = os.path.join(scratch, name)
    os.mkdir(path)
    return path
