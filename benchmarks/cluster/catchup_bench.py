"""`tidelog bench catchup`: a replica that was away is filled while its channel's leader takes writes.

Three nodes over mTLS. One of the followers is killed, a backlog is written without it, and it comes back. What every
key means and what it must reach is in docs/benchmarks.md.

CU1  The writer's rate counts acks, from the first block that the returning replica takes until it is in sync again.
CU2  The budget is measured from when two seconds' worth of it has arrived: its bucket is full at the start, and holds
     one second's worth.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.kits.channel_kit import (
    BenchChannel,
    create_channel,
    describe,
    dial_node,
    fetch,
    require_records,
)
from benchmarks.kits.cluster_client import ProducePump, PumpLink
from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from tidelog.blocks.block import iterate_blocks
from tidelog.core.catalog.channel_config import FRACTION_PPM
from tidelog.errors import LogError
from tidelog.transports.link.link import Link
from tidelog.units import KIB, MIB

NODES: Final = 3
RECORD_BYTES: Final = KIB
RECORDS: Final = 64
"""The records of one block."""
REQUESTS: Final = 32
SHRINK_S: Final = 60.0
CATCH_UP_S: Final = 600.0
BUDGET_PPM: Final = 500_000
_LOOK_S: Final = 0.05
_TICK_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchupSizes:
    backlog_bytes: int = 1_024 * MIB
    budget_bytes: int = 128 * MIB
    """Backlog for the injected peak."""
    peak_bytes_per_s: int = 20_000_000
    alone_s: float = 5.0
    """How long the writer is measured before the replica comes back."""


FULL = CatchupSizes()
QUICK = CatchupSizes(backlog_bytes=64 * MIB, budget_bytes=64 * MIB, alone_s=2.0)


def bench_catchup(*, quick: bool = False, folder: str | None = None, sizes: CatchupSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        with ClusterKit(Path(scratch) / "cluster", nodes=NODES) as kit:
            kit.start_all()
            results |= asyncio.run(_keeping(kit, sizes))
        with ClusterKit(Path(scratch) / "peaked", nodes=NODES) as kit:
            _start_peaked(kit, sizes.peak_bytes_per_s)
            results |= asyncio.run(_budgeted(kit, sizes))
    return results


run = bench_catchup


# --- the leader keeps its pace -------------------------------------------------------------------------------


async def _keeping(kit: ClusterKit, sizes: CatchupSizes) -> Results:
    channel, away = await _channel_without_one(kit)
    client = await PumpLink.connect(kit, channel)
    filler = ProducePump(channel, size=RECORD_BYTES, records=RECORDS, requests=REQUESTS)
    try:
        start = time.perf_counter()
        await client.fill(filler, records=sizes.backlog_bytes // RECORD_BYTES)
        full_per_s = filler.acked / (time.perf_counter() - start)
        pump = PacedPump(channel, records_per_s=full_per_s / 2)
        client.begin(pump)
        pacing = asyncio.create_task(pump.pace(client.link))
        try:
            alone_per_s = await _rate_for(pump, sizes.alone_s)
            kit.start(away)
            beside_per_s, took_s = await _rate_until_whole(kit, channel, away, pump, client)
        finally:
            pacing.cancel()
            await asyncio.gather(pacing, return_exceptions=True)
        await client.end(pump)
        await require_records(client.link, channel.channel_id, filler.acked + pump.acked)
    finally:
        await client.close()
    kit.require_alive()
    return {
        "leader_keeps": round(beside_per_s / (full_per_s / 2), 3),
        "leader_keeps_vs_alone": round(beside_per_s / alone_per_s, 3),
        "catch_up_s": round(took_s, 2),
        "catch_up_mb_per_s": round((filler.acked + pump.acked) * RECORD_BYTES / took_s / 1e6, 1),
        "backlog_mib": sizes.backlog_bytes // MIB,
        "full_records_per_s": round(full_per_s),
        "alone_records_per_s": round(alone_per_s),
        "beside_records_per_s": round(beside_per_s),
    }


class PacedPump(ProducePump):
    """Blocks at an even rate; those that find the window full are sent when there is room, so none is left out."""

    def __init__(self, channel: BenchChannel, *, records_per_s: float) -> None:
        super().__init__(channel, size=RECORD_BYTES, records=RECORDS, requests=REQUESTS)
        self._blocks_per_s = records_per_s / RECORDS

    async def pace(self, link: Link) -> None:
        start = time.perf_counter()
        while True:
            self.allowed = int((time.perf_counter() - start) * self._blocks_per_s)
            self.send_some(link)
            await asyncio.sleep(_TICK_S)


async def _rate_for(pump: PacedPump, seconds: float) -> float:
    acked, start = pump.acked, time.perf_counter()
    await asyncio.sleep(seconds)
    return (pump.acked - acked) / (time.perf_counter() - start)


async def _rate_until_whole(
    kit: ClusterKit, channel: BenchChannel, away: str, pump: PacedPump, client: PumpLink
) -> tuple[float, float]:
    """CU1: records per second, and how long it took."""
    asked = await dial_node(kit, channel.leader)
    returning = await _dial_when_up(kit, away)
    try:
        before = await _end_here(returning, channel.name)

        async def has_begun() -> bool:
            client.require_good()
            return await _end_here(returning, channel.name) > before

        async def is_whole() -> bool:
            client.require_good()
            await asyncio.sleep(_LOOK_S)
            return away in (await describe(asked, channel.name))["isr"]

        await kit.wait(has_begun, deadline_s=SHRINK_S, what=f"{away} to be filled")
        acked, start = pump.acked, time.perf_counter()
        await kit.wait(is_whole, deadline_s=CATCH_UP_S, what=f"{away} to be in sync")
        took_s = time.perf_counter() - start
        return (pump.acked - acked) / took_s, took_s
    finally:
        await asked.close()
        await returning.close()


# --- the budget is kept --------------------------------------------------------------------------------------


def _start_peaked(kit: ClusterKit, peak_bytes_per_s: int) -> None:
    for name in kit.names:
        command = kit.command(name)
        at = command.index("tidelog.cli")
        command[at : at + 1] = ["benchmarks.kits.peaked_node", str(peak_bytes_per_s)]
        kit.nodes[name].command = tuple(command)
        kit.nodes[name].starts += 1  # so that every start is as this one
        kit.start(name)


async def _budgeted(kit: ClusterKit, sizes: CatchupSizes) -> Results:
    channel, away = await _channel_without_one(kit, replication_budget_ppm=BUDGET_PPM)
    client = await PumpLink.connect(kit, channel)
    filler = ProducePump(channel, size=RECORD_BYTES, records=RECORDS, requests=REQUESTS)
    try:
        await client.fill(filler, records=sizes.budget_bytes // RECORD_BYTES)
        record_bytes = await _bytes_per_record(client.link, channel.channel_id)
        kit.start(away)
        returning = await _dial_when_up(kit, away)
        try:
            seen = await _watched(kit, returning, channel.name, end=filler.acked)
        finally:
            await returning.close()
    finally:
        await client.close()
    wanted = sizes.peak_bytes_per_s * BUDGET_PPM / FRACTION_PPM
    steady = [one for one in seen if one[1] * record_bytes >= 2 * wanted]  # CU2
    (first_s, first), (last_s, last) = steady[0], steady[-1]
    rate = (last - first) * record_bytes / (last_s - first_s)
    return {
        "budget_error": round(abs(rate - wanted) / wanted, 4),
        "budget_mb_per_s": round(rate / 1e6, 2),
        "budget_wanted_mb_per_s": round(wanted / 1e6, 2),
        "injected_peak_mb_per_s": round(sizes.peak_bytes_per_s / 1e6, 1),
    }


async def _watched(kit: ClusterKit, link: Link, name: str, *, end: int) -> list[tuple[float, int]]:
    """When the returning replica held how much."""
    seen: list[tuple[float, int]] = []

    async def has_all() -> bool:
        held = await _end_here(link, name)
        if not seen or held > seen[-1][1]:
            seen.append((time.perf_counter(), held))
        await asyncio.sleep(_LOOK_S)
        return held >= end

    await kit.wait(has_all, deadline_s=CATCH_UP_S, what="the backlog to be there")
    return seen


async def _bytes_per_record(link: Link, channel_id: int) -> float:
    """As they lie in the log: what a budget counts."""
    fetched = await fetch(link, channel_id, 1)
    blocks = [block for data in fetched.data for block in iterate_blocks(data)]
    return sum(block.size for block in blocks) / sum(len(block.offsets) for block in blocks)


# --- both ----------------------------------------------------------------------------------------------------


async def _channel_without_one(kit: ClusterKit, **config: object) -> tuple[BenchChannel, str]:
    """A channel of which one follower was killed, and that goes on without it."""
    async with kit.caller() as caller:
        metadata_leader = await kit.wait_formed(caller)
    channel = await create_channel(kit, **config)
    away = next(node for node in channel.replicas if node not in (channel.leader, metadata_leader))
    kit.kill(away)
    link = await dial_node(kit, channel.leader)
    try:

        async def goes_on() -> bool:
            return away not in (await describe(link, channel.name))["isr"]

        await kit.wait(goes_on, deadline_s=SHRINK_S, what=f"the channel to go on without {away}")
    finally:
        await link.close()
    return channel, away


async def _dial_when_up(kit: ClusterKit, name: str) -> Link:
    found: Link | None = None

    async def is_up() -> bool:
        nonlocal found
        try:
            found = await dial_node(kit, name)
        except LogError:
            return False
        return True

    await kit.wait(is_up, deadline_s=SHRINK_S, what=f"{name} to be up")
    assert found is not None
    return found


async def _end_here(link: Link, name: str) -> int:
    """How much the node at the other end of the link holds durably."""
    try:
        here: dict[str, Any] | None = (await describe(link, name))["here"]
    except (LogError, IndexError):
        return 0  # it has not heard of its channels yet
    return 0 if here is None else int(here["held_end"])
