"""`tidelog bench cluster`: three nodes over mTLS against three nats-servers, on one machine, in turn, round by round.

What every key means and what it must reach is in docs/benchmarks.md. Both sides are there all the time, one of them at
work. Clients on both sides are raw and pipelined, connected to the leader, and count nothing but acks; every round has
a channel and a stream of its own. Every doubt is decided for the peer: it speaks without TLS, and of its three ways to
take many records at a time the fastest of each round counts.

CCB1  After each round the channel holds exactly what was acknowledged, read back over the link and verified.
CCB2  A ratio is the median of the ratios of single rounds: both sides of one met the same machine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.kits.channel_kit import BenchChannel, create_channel, delete_channel, require_records
from benchmarks.kits.cluster_client import ChannelPump, ProducePump, PublishPump, PumpLink
from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.kits.uplink_parties import percentile
from benchmarks.nats.load import IN_FLIGHT, RECORDS, REQUESTS, nats_batched, nats_latency, nats_single
from benchmarks.nats.peer import NatsPeer, nats_server_version

NODES: Final = 3
SIZES: Final = (64, 1_024)
"""Bytes of a record that is one of many in a request."""
SINGLE_SIZE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSizes:
    rounds: int = 5
    seconds: float = 2.0
    """The duration of each measurement; each of the peer's ways to take batches has as much."""
    warm_up_s: float = 0.5


FULL = ClusterSizes()
QUICK = ClusterSizes(rounds=2, seconds=1.0, warm_up_s=0.3)


class TooBusy(RuntimeError):
    """A round measured nothing."""


@dataclass(slots=True)
class Pairs:
    """What both sides did, round by round."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """CCB2."""
        return statistics.median(self.ratios)


def bench_cluster(*, quick: bool = False, folder: str | None = None, sizes: ClusterSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        place = Path(scratch)
        with ClusterKit(place / "cluster", nodes=NODES) as kit, NatsPeer(place / "nats") as peer:
            kit.start_all()
            peer.start_all()
            results |= asyncio.run(_measure(kit, peer, sizes))
    return results


run = bench_cluster


async def _measure(kit: ClusterKit, peer: NatsPeer, sizes: ClusterSizes) -> Results:
    began = time.perf_counter()
    async with kit.caller() as caller:
        await kit.wait_formed(caller)
    await asyncio.to_thread(peer.wait_formed)
    single, latency, overhead = Pairs(), Pairs(), Pairs()
    batched = {size: Pairs() for size in SIZES}
    for number in range(sizes.rounds):
        ours_first = number % 2 == 0
        await _pair(single, lambda: _single(kit, sizes), lambda: _nats_single(peer, sizes), ours_first)
        for size, pairs in batched.items():
            await _pair(
                pairs,
                lambda size=size: our_rate(kit, _blocks(size), sizes),  # type: ignore[misc]
                lambda size=size: _nats_batched(peer, size, sizes),  # type: ignore[misc]
                ours_first,
            )
        await _pair(latency, lambda: our_latency(kit, sizes), lambda: _nats_latency(peer, sizes), ours_first)
        await _pair(
            overhead,
            lambda: our_rate(kit, _blocks(SIZES[0]), sizes, factor=1),
            lambda: our_rate(kit, _blocks(SIZES[0]), sizes),
            ours_first,
        )
        kit.require_alive()
        peer.require_alive()
    results: Results = {
        "batched_vs_nats": round(min(pairs.ratio for pairs in batched.values()), 3),
        "single_vs_nats": round(single.ratio, 3),
        "latency_p50_vs_nats": round(latency.ratio, 3),
        "replication_overhead": round(overhead.ratio, 3),
    }
    for size, pairs in batched.items():
        results |= _told(f"batched_{size}b", pairs, "records_per_s", digits=0)
    results |= _told("single", single, "records_per_s", digits=0)
    results |= _told("latency", latency, "p50_ms", digits=3)
    results |= {
        "one_replica_records_per_s": round(statistics.median(overhead.ours)),
        "three_replicas_records_per_s": round(statistics.median(overhead.theirs)),
        "rounds": sizes.rounds,
        "nats_server": nats_server_version(),
        "run_seconds": round(time.perf_counter() - began, 1),
    }
    return results


async def _pair(
    pairs: Pairs, ours: Callable[[], Awaitable[float]], theirs: Callable[[], Awaitable[float]], ours_first: bool
) -> None:
    """One round of both; the first one is second in the next."""
    cases = [(pairs.ours, ours), (pairs.theirs, theirs)]
    for found, case in cases if ours_first else reversed(cases):
        value = await case()
        if value <= 0:
            raise TooBusy("not one ack came in a whole round; measure again on a quieter machine")
        found.append(value)


def _told(name: str, pairs: Pairs, unit: str, *, digits: int) -> Results:
    """Medians of both, and how far the rounds lie apart."""
    return {
        f"{name}_vs_nats": round(pairs.ratio, 3),
        f"{name}_vs_nats_min": round(min(pairs.ratios), 3),
        f"{name}_vs_nats_max": round(max(pairs.ratios), 3),
        f"{name}_{unit}": round(statistics.median(pairs.ours), digits),
        f"nats_{name}_{unit}": round(statistics.median(pairs.theirs), digits),
    }


# --- ours --------------------------------------------------------------------------------------------------


def _blocks(size: int) -> Callable[[BenchChannel], ChannelPump]:
    return lambda channel: ProducePump(channel, size=size, records=RECORDS, requests=REQUESTS)


async def _single(kit: ClusterKit, sizes: ClusterSizes) -> float:
    return await our_rate(kit, lambda channel: PublishPump(channel, size=SINGLE_SIZE, in_flight=IN_FLIGHT), sizes)


async def our_rate(
    kit: ClusterKit, pump_for: Callable[[BenchChannel], ChannelPump], sizes: ClusterSizes, **config: object
) -> float:
    """Acknowledged records per second into a channel of its own (CCB1)."""
    channel = await create_channel(kit, **config)
    client = await PumpLink.connect(kit, channel)
    try:
        rate = await client.run(pump_for(channel), seconds=sizes.seconds, warm_up_s=sizes.warm_up_s)
        await require_records(client.link, channel.channel_id, rate.acked)
    finally:
        await client.close()
    await delete_channel(kit, channel.name)
    return rate.records_per_s


async def our_latency(kit: ClusterKit, sizes: ClusterSizes) -> float:
    """Milliseconds from before one record is sent until its ack is read; the median."""
    channel = await create_channel(kit)
    client = await PumpLink.connect(kit, channel)
    took_ms: list[float] = []
    sent = 0
    try:
        begin = time.perf_counter() + sizes.warm_up_s
        end = begin + sizes.seconds
        while not took_ms or time.perf_counter() < end:
            start = time.perf_counter()
            took_s = await client.once(PublishPump(channel, size=SINGLE_SIZE, in_flight=1))
            sent += 1
            if start >= begin:
                took_ms.append(took_s * 1000)
        await require_records(client.link, channel.channel_id, sent)
    finally:
        await client.close()
    await delete_channel(kit, channel.name)
    return percentile(took_ms, 0.5)


# --- the peer ----------------------------------------------------------------------------------------------


async def _nats_single(peer: NatsPeer, sizes: ClusterSizes) -> float:
    rate = await nats_single(peer, size=SINGLE_SIZE, seconds=sizes.seconds, warm_up_s=sizes.warm_up_s)
    return rate.records_per_s


async def _nats_batched(peer: NatsPeer, size: int, sizes: ClusterSizes) -> float:
    batched = await nats_batched(peer, size=size, seconds=sizes.seconds, warm_up_s=sizes.warm_up_s)
    return batched.best.records_per_s


async def _nats_latency(peer: NatsPeer, sizes: ClusterSizes) -> float:
    return (await nats_latency(peer, size=SINGLE_SIZE, seconds=sizes.seconds, warm_up_s=sizes.warm_up_s)).p50_ms
