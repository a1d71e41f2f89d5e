"""`tidelog bench uplink`: one boat and one cloud over mTLS, against bare gRPC, rsync and lplex's way of sending.

What every key means and what it must reach is in docs/benchmarks.md.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.kits.uplink_parties import Fleet
from benchmarks.uplink.backfill import measure_backfill
from benchmarks.uplink.live import measure_acks, measure_live
from benchmarks.uplink.wire import measure_wire
from tidelog.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkSizes:
    """How much work a run does. Smaller is noisier, never different."""

    live_blocks: int = 800
    live_rounds: int = 15
    ack_seconds: float = 30.0
    ack_frames_per_s: int = 1_800
    """What a full 250 kbit/s bus carries."""
    backfill_bytes: int = 1 * GIB
    backfill_rounds: int = 3
    wire_seconds: float = 60.0


FULL = UplinkSizes()
QUICK = UplinkSizes(live_rounds=7, ack_seconds=10.0, backfill_bytes=128 * MIB, wire_seconds=10.0)


def run(*, quick: bool = False, folder: str | None = None, sizes: UplinkSizes | None = None) -> Results:
    """Measure everything; one flat object. `folder` says where the scratch files go (default: here)."""
    sizes = sizes or (QUICK if quick else FULL)
    start = time.perf_counter()
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results |= {"quick": quick, "load_average": round(os.getloadavg()[0], 2)}
        place = Path(scratch)
        fleet = Fleet(place / "tls")
        results |= measure_live(place, fleet, blocks=sizes.live_blocks, rounds=sizes.live_rounds)
        results |= measure_acks(place, fleet, seconds=sizes.ack_seconds, frames_per_s=sizes.ack_frames_per_s)
        results |= measure_wire(place, fleet, seconds=sizes.wire_seconds)
        results |= measure_backfill(place, fleet, journal_bytes=sizes.backfill_bytes, rounds=sizes.backfill_rounds)
    results["run_seconds"] = round(time.perf_counter() - start, 1)
    return results
