"""`tidelog bench fleet`: fifty busy boats into one cloud process, then a thousand that are mostly silent.

What every key means and what it must reach is in docs/benchmarks.md. The cloud is the real process with mTLS and its
store on disk; the boats sail in a process of their own (`fleet_boats`), so on two cores each side has one.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.kits.uplink_parties import Fleet, PartyFailed, ServerProcess, running_cloud
from benchmarks.uplink.fleet_boats import FleetVoyage

_START_S_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSizes:
    boats: int = 50
    frames_per_s: int = 1_800
    """What a full 250 kbit/s bus carries."""
    seconds: float = 60.0
    idle_boats: int = 1_000
    idle_frames_per_s: float = 0.1
    idle_seconds: float = 30.0


FULL = FleetSizes()
QUICK = FleetSizes(seconds=10.0, idle_seconds=10.0)


def run(*, quick: bool = False, folder: str | None = None, sizes: FleetSizes | None = None) -> Results:
    """Measure the busy fleet, then the idle one, each on a cloud of its own; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["load_average"] = round(os.getloadavg()[0], 2)
        results |= {"quick": quick, "boats": sizes.boats, "boat_frames_per_s": sizes.frames_per_s}
        place = Path(scratch)
        fleet = Fleet(place / "tls")
        with running_cloud(fleet, place / "busy") as cloud:
            results |= _busy(place, fleet, cloud, sizes)
        with running_cloud(fleet, place / "quiet") as cloud:
            results |= _idle(place, fleet, cloud, sizes)
    return results


def _busy(place: Path, fleet: Fleet, cloud: ServerProcess, sizes: FleetSizes) -> Results:
    names = [f"boat-{number:04d}" for number in range(sizes.boats)]
    voyage = FleetVoyage(
        port=cloud.port,
        names=names,
        credentials=_write_credentials(place / "busy-tls", fleet, names),
        frames_per_s=sizes.frames_per_s,
        seconds=sizes.seconds,
    )
    processor_start, wall_start = cloud.processor_s(), time.monotonic()
    done = subprocess.run(
        voyage.command(place / "busy.json"), capture_output=True, text=True, timeout=sizes.seconds + _START_S_MAX
    )
    if done.returncode:
        raise PartyFailed(f"the boats failed; their last words: {done.stderr.strip()[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    processor_s = cloud.processor_s() - processor_start
    return measured | {
        "cloud_cpu_fraction": round(processor_s / (time.monotonic() - wall_start), 3),
        "cloud_cpu_s_per_million_frames": round(1e6 * processor_s / max(measured["frames"], 1), 2),
        "cloud_rss_mb": round(cloud.rss_mb(), 1),
    }


def _idle(place: Path, fleet: Fleet, cloud: ServerProcess, sizes: FleetSizes) -> Results:
    names = [f"idle-{number:04d}" for number in range(sizes.idle_boats)]
    voyage = FleetVoyage(
        port=cloud.port,
        names=names,
        credentials=_write_credentials(place / "idle-tls", fleet, names),
        frames_per_s=sizes.idle_frames_per_s,
        seconds=sizes.idle_seconds + _START_S_MAX,
        report=True,
    )
    rss_alone_mb = cloud.rss_mb()
    start = time.monotonic()
    process = subprocess.Popen(
        voyage.command(place / "idle.json"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    connect_s = time.monotonic() - start
    processor_start, wall_start = cloud.processor_s(), time.monotonic()
    if first:
        time.sleep(sizes.idle_seconds)
    cpu_fraction = (cloud.processor_s() - processor_start) / (time.monotonic() - wall_start)
    rss_mb, open_files = cloud.rss_mb(), cloud.open_files()
    said, complaints = process.communicate(b"\n", timeout=_START_S_MAX)
    if process.returncode:
        raise PartyFailed(f"the idle boats failed; their last words: {complaints.decode(errors='replace')[-2000:]}")
    measured = json.loads(said)
    return {
        "idle_boats": sizes.idle_boats,
        "idle_disconnects": measured["disconnects"],
        "idle_rss_mb": round(rss_mb, 1),
        "idle_rss_kb_per_boat": round(1000 * (rss_mb - rss_alone_mb) / max(sizes.idle_boats, 1), 1),
        "idle_cpu_fraction": round(cpu_fraction, 4),
        "idle_open_files": open_files,
        "idle_connect_s": round(connect_s, 1),
        "idle_ack_p99_ms": measured["ack_p99_ms"],
    }


def _write_credentials(folder: Path, fleet: Fleet, names: Sequence[str]) -> str:
    folder.mkdir()
    for name in names:
        mine = fleet.boat(name)
        (folder / f"{name}.crt").write_bytes(mine.certificate)
        (folder / f"{name}.key").write_bytes(mine.key)
        (folder / "ca.crt").write_bytes(mine.trusted)
    return str(folder)
