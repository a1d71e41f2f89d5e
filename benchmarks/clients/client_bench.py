"""`tidelog bench client`: the native client against three nodes over mTLS: producing, fetching, and following.

What every key means and what it must reach is in docs/benchmarks.md.

CCL1  A produced record counts when its ack has come; after each round the channel holds exactly those.
CCL2  Fetched bytes are bytes of blocks that the client has verified. The floor's are looked at by nobody.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.kits.channel_kit import create_channel, delete_channel, dial_node, fresh_name, require_records
from benchmarks.kits.client_floor import connect_floor, floor_serving, receive_floor
from benchmarks.kits.cluster_client import ProducePump, PumpLink
from benchmarks.kits.cluster_kit import OPERATOR, ClusterKit
from benchmarks.kits.measure import Results, Rounds, largest_spread, machine_facts, scratch_folder
from benchmarks.kits.uplink_parties import percentile
from tidelog.client import Client, Producer, Record, connect
from tidelog.errors import QueueFull, WaitTimedOut
from tidelog.transports.link.link import LinkTlsFiles
from tidelog.units import KIB, MIB

NODES: Final = 3
VALUE_BYTES: Final = 128
PACE_S: Final = 0.002
"""Between two records that a subscriber waits for."""
_BURST: Final = 500
"""Records handed over in one turn of the loop, as a busy program would."""
_BLOCK_RECORDS: Final = 256
_STAMP_BYTES: Final = 8
_ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSizes:
    rounds: int = 5
    produce_s: float = 3.0
    fetch_bytes: int = 256 * MIB
    follow_s: float = 10.0


FULL = ClientSizes()
QUICK = ClientSizes(rounds=2, produce_s=1.0, fetch_bytes=64 * MIB, follow_s=3.0)


def bench_client(*, quick: bool = False, folder: str | None = None, sizes: ClientSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        with ClusterKit(Path(scratch) / "cluster", nodes=NODES) as kit:
            kit.start_all()
            results |= asyncio.run(_measure(kit, sizes))
    return results


run = bench_client


async def _measure(kit: ClusterKit, sizes: ClientSizes) -> Results:
    async with kit.caller() as caller:
        await kit.wait_formed(caller)
    async with await _client(kit) as client:
        results = await _produce(kit, client, sizes)
        results |= await _fetch(kit, client, sizes)
        results |= await _follow(kit, client, sizes)
    kit.require_alive()
    return results


async def _client(kit: ClusterKit) -> Client:
    place = kit.folder / "certificates"
    files = LinkTlsFiles(
        certificate=place / f"{OPERATOR}.crt", key=place / f"{OPERATOR}.key", authority=place / "ca.crt"
    )
    return await connect([kit.address(name) for name in kit.names], tls=files)


# --- producing ---------------------------------------------------------------------------------------------


async def _produce(kit: ClusterKit, client: Client, sizes: ClientSizes) -> Results:
    """Record by record with `send`, and in lists with `send_many`, in turn."""
    by_one, by_many = [], []
    for _ in range(sizes.rounds):
        by_one.append(await _produce_round(kit, client, sizes.produce_s, many=False))
        by_many.append(await _produce_round(kit, client, sizes.produce_s, many=True))
    return {
        "produce_records_per_s": round(statistics.median(by_one)),
        "produce_many_records_per_s": round(statistics.median(by_many)),
        "produce_spread": largest_spread(Rounds(tuple(by_one)), Rounds(tuple(by_many))),
    }


async def _produce_round(kit: ClusterKit, client: Client, seconds: float, *, many: bool) -> float:
    """Acknowledged records per second, from the first `send` to the last ack."""
    channel = await create_channel(kit)
    async with client.producer(channel.name) as producer:
        await producer.send(os.urandom(VALUE_BYTES))  # finds the leader and opens the producer
        start = time.perf_counter()
        sent = await _send_for(producer, seconds, many=many)
        await producer.flush()
        elapsed = time.perf_counter() - start
    link = await dial_node(kit, channel.leader)
    try:
        await require_records(link, channel.channel_id, sent + 1)  # CCL1
    finally:
        await link.close()
    await delete_channel(kit, channel.name)
    return sent / elapsed


async def _send_for(producer: Producer, seconds: float, *, many: bool) -> int:
    values = [os.urandom(VALUE_BYTES) for _ in range(_BURST)]
    sent, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        try:
            if many:
                producer.send_many(values)
                sent += len(values)
            else:
                for value in values:
                    producer.send(value)
                    sent += 1
        except QueueFull:
            await producer.send_room(_BURST * VALUE_BYTES)
        await asyncio.sleep(0)
    return sent


# --- fetching ----------------------------------------------------------------------------------------------


async def _fetch(kit: ClusterKit, client: Client, sizes: ClientSizes) -> Results:
    """Raw blocks of a channel to one reader, in turn with a bare TLS socket that sends as many bytes from memory."""
    channel = await create_channel(kit)
    pump = ProducePump(channel, size=KIB, records=_BLOCK_RECORDS, requests=16)
    filler = await PumpLink.connect(kit, channel)
    try:
        await filler.fill(pump, records=sizes.fetch_bytes // KIB)
    finally:
        await filler.close()
    certificates = kit.folder / "certificates"
    ours, bare = [], []
    with floor_serving(certificates, channel.leader) as port:
        floor = await asyncio.to_thread(connect_floor, certificates, OPERATOR, port)
        try:
            for number in range(-1, 2 * sizes.rounds):
                start = time.perf_counter()
                fetched = 0
                async for block in client.fetch(channel.name, range(pump.acked), nearest=False):
                    fetched += block.size
                elapsed = time.perf_counter() - start
                bare_elapsed = await asyncio.to_thread(receive_floor, floor, fetched)
                if number >= 0:
                    ours.append(fetched / elapsed / 1e6)
                    bare.append(fetched / bare_elapsed / 1e6)
        finally:
            floor.close()
    await delete_channel(kit, channel.name)
    ratios = [mine / other for mine, other in zip(ours, bare, strict=True)]
    return {
        "fetch_vs_socket": round(statistics.median(ratios), 3),
        "fetch_vs_socket_min": round(min(ratios), 3),
        "fetch_vs_socket_max": round(max(ratios), 3),
        "fetch_mb_per_s": round(statistics.median(ours), 1),
        "socket_mb_per_s": round(statistics.median(bare), 1),
        "fetch_mib": sizes.fetch_bytes // MIB,
    }


# --- following ---------------------------------------------------------------------------------------------


async def _follow(kit: ClusterKit, client: Client, sizes: ClientSizes) -> Results:
    """From before a record is handed to the producer until a reader of the same channel has it."""
    channel = await create_channel(kit, fresh_name("follow"))
    count = max(1, int(sizes.follow_s / PACE_S))
    took_ms: list[float] = []

    async def subscribe() -> None:
        async with client.reader(channel.name, start="earliest") as reader:
            async for record in reader:
                assert isinstance(record, Record)
                assert record.value is not None
                sent_ns = int.from_bytes(record.value[:_STAMP_BYTES], "little")
                took_ms.append((time.perf_counter_ns() - sent_ns) / 1e6)
                if len(took_ms) >= count:
                    return

    reading = asyncio.create_task(subscribe())
    padding = os.urandom(VALUE_BYTES - _STAMP_BYTES)
    async with client.producer(channel.name) as producer:
        for _ in range(count):
            producer.send(time.perf_counter_ns().to_bytes(_STAMP_BYTES, "little") + padding)
            await asyncio.sleep(PACE_S)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await reading
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the subscriber to have all records", deadline_s=_ANSWER_S) from None
    await delete_channel(kit, channel.name)
    steady = took_ms[count // 10 :]  # without those that waited for the producer to be opened
    return {
        "p50_ms": round(percentile(steady, 0.5), 3),
        "p99_ms": round(percentile(steady, 0.99), 3),
        "followed_records": count,
    }
