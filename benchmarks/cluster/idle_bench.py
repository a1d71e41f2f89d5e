"""`tidelog bench idle`: thousands of replicated channels on three nodes, and nobody uses them.

What every key means and what it must reach is in docs/benchmarks.md. Processor time and memory are the system's own
counts of each node's process (`/proc`), threads and all; the worst node is the one that counts.

IB1  The clock of `create_s` runs until every channel has a leader that serves and all its replicas in sync.
IB2  What is measured as idle is idle: no client is connected.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.kits.channel_kit import ask, create_channels, dial_node
from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from tidelog.codecs.client_codec import DESCRIBE
from tidelog.errors import LogError
from tidelog.transports.link.link import Link

NODES: Final = 3
WHOLE_S: Final = 300.0
_PAGE: Final = 1_000
_KIB: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSizes:
    channels: int = 5_000
    settle_s: float = 10.0
    """After the last channel is whole; nodes note what they hold."""
    seconds: float = 30.0


FULL = IdleSizes()
QUICK = IdleSizes(channels=500, settle_s=3.0, seconds=5.0)


def bench_idle(*, quick: bool = False, folder: str | None = None, sizes: IdleSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        with ClusterKit(Path(scratch) / "cluster", nodes=NODES) as kit:
            kit.start_all()
            results |= asyncio.run(_measure(kit, sizes))
    return results


run = bench_idle


async def _measure(kit: ClusterKit, sizes: IdleSizes) -> Results:
    async with kit.caller() as caller:
        leader = await kit.wait_formed(caller)
    empty_mb = max(rss_mb(kit, name) for name in kit.names)
    link = await dial_node(kit, leader)
    try:
        start = time.perf_counter()
        await create_channels(link, [f"idle-{number:05d}" for number in range(sizes.channels)])
        made_s = time.perf_counter() - start
        await kit.wait(lambda: _are_whole(link, sizes.channels), deadline_s=WHOLE_S, what="all channels")
        create_s = time.perf_counter() - start
    finally:
        await link.close()  # IB2
    await asyncio.sleep(sizes.settle_s)
    before = {name: processor_s(kit, name) for name in kit.names}
    start = time.perf_counter()
    await asyncio.sleep(sizes.seconds)
    elapsed_s = time.perf_counter() - start
    used = {name: (processor_s(kit, name) - before[name]) / elapsed_s for name in kit.names}
    kit.require_alive()
    return {
        "channels": sizes.channels,
        "cpu_fraction": round(max(used.values()), 4),
        "rss_mb": round(max(rss_mb(kit, name) for name in kit.names), 1),
        "create_s": round(create_s, 2),
        "created_s": round(made_s, 2),
        "cpu_fraction_metadata_leader": round(used[leader], 4),
        "cpu_fraction_least": round(min(used.values()), 4),
        "rss_empty_mb": round(empty_mb, 1),
        "seconds": round(elapsed_s, 1),
    }


async def _are_whole(link: Link, count: int) -> bool:
    """IB1."""
    after, found = "", 0
    while True:
        try:
            page = await ask(link, DESCRIBE, {"channels": None, "barrier": False, "after": after, "limit": _PAGE})
        except LogError as error:
            if not error.retriable:
                raise
            return False
        channels: Iterable[dict[str, Any]] = page["channels"]
        for channel in channels:
            if channel["leader"] is None or len(channel["isr"]) < len(channel["replicas"]):
                return False
            found += 1
        after = page["next"] or ""
        if not after:
            return found == count


def processor_s(kit: ClusterKit, name: str) -> float:
    """Processor seconds of a node so far, all its threads."""
    process = kit.nodes[name].process
    assert process is not None
    with open(f"/proc/{process.pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(kit: ClusterKit, name: str) -> float:
    process = kit.nodes[name].process
    assert process is not None
    with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / _KIB
    raise AssertionError("a process without memory")
