"""What JetStream does on this machine: the figures that ours are held against.

    with NatsPeer(folder) as peer:
        peer.start_all()
        peer.wait_formed()
        rate = await nats_single(peer, size=64, seconds=3.0)
        batched = await nats_batched(peer, size=64, seconds=3.0)

Every doubt is decided for the peer: each measurement has a fresh stream with nothing but what it needs switched on,
the client is connected to the stream's leader, no record carries an id to find repeats by, and of the three ways to
publish 64 records at a time the fastest is the one to beat.

NL1  A rate counts acknowledged records only, and the stream holds exactly those afterwards.
NL2  A failover is timed from before the signal to the first ack of a record that was sent after it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.kits.uplink_parties import percentile
from benchmarks.nats.client import AtomicPump, FastPump, NatsClient, NobodyThere, Pump, Rate, SinglePump
from benchmarks.nats.peer import NatsPeer
from tidelog.errors import WaitTimedOut

Way = Literal["pipelined", "atomic", "fast"]
"""How 64 records go out at a time: as publishes with an ack each, as an atomic batch, as fast ingest."""
Strike = Literal["kill", "stop"]

WAYS: Final[tuple[Way, ...]] = ("pipelined", "atomic", "fast")
IN_FLIGHT: Final = 4_000
RECORDS: Final = 64
REQUESTS: Final = 48
"""Batches in flight; a stream takes at most 50 atomic ones."""
WARM_UP_S: Final = 0.5
RETRY_S: Final = 0.05
"""After which a record is sent anew while there may be no leader; the ack of any of them counts."""
FAILOVER_S: Final = 60.0
_PUBLISH_S: Final = 10.0

_names = itertools.count(1)


class CountsDiffer(RuntimeError):
    """The stream holds another number of records than were acknowledged."""


@dataclass(frozen=True, slots=True)
class NatsBatched:
    """A rate for each way that was measured."""

    rates: dict[Way, Rate]

    @property
    def best_way(self) -> Way:
        return max(self.rates, key=lambda way: self.rates[way].records_per_s)

    @property
    def best(self) -> Rate:
        """The one to compare with."""
        return self.rates[self.best_way]


@dataclass(frozen=True, slots=True)
class NatsLatency:
    """The latency of one publish at a time, from before it is sent until its ack is read."""

    p50_ms: float
    p99_ms: float
    publishes: int


@dataclass(frozen=True, slots=True)
class NatsFailovers:
    """From the strike at the stream's leader to the first new ack, round by round."""

    seconds: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def max_s(self) -> float:
        return max(self.seconds)


async def nats_single(
    peer: NatsPeer, *, size: int, seconds: float, in_flight: int = IN_FLIGHT, warm_up_s: float = WARM_UP_S
) -> Rate:
    """One record per publish, so many in flight."""
    return await _rate(
        peer,
        lambda stream: SinglePump(subject=stream, size=size, in_flight=in_flight),
        seconds=seconds,
        warm_up_s=warm_up_s,
    )


async def nats_batched(
    peer: NatsPeer,
    *,
    size: int,
    seconds: float,
    records: int = RECORDS,
    requests: int = REQUESTS,
    ways: Sequence[Way] = WAYS,
    warm_up_s: float = WARM_UP_S,
) -> NatsBatched:
    """`records` per request and `requests` of them in flight, each way in turn for `seconds`."""
    rates: dict[Way, Rate] = {}
    for way in ways:
        if way == "pipelined":
            rates[way] = await _rate(
                peer,
                lambda stream: SinglePump(subject=stream, size=size, in_flight=requests * records, records=records),
                seconds=seconds,
                warm_up_s=warm_up_s,
            )
        elif way == "atomic":
            rates[way] = await _rate(
                peer,
                lambda stream: AtomicPump(subject=stream, size=size, requests=requests, records=records),
                seconds=seconds,
                warm_up_s=warm_up_s,
                allow_atomic=True,
            )
        else:
            rates[way] = await _rate(
                peer,
                lambda stream: FastPump(subject=stream, size=size, requests=requests, records=records),
                seconds=seconds,
                warm_up_s=warm_up_s,
                allow_batched=True,
            )
    return NatsBatched(rates)


async def nats_latency(peer: NatsPeer, *, size: int, seconds: float, warm_up_s: float = WARM_UP_S) -> NatsLatency:
    """One publish at a time for `seconds`."""
    payload = os.urandom(size)
    took_ms: list[float] = []
    async with _fresh_stream(peer) as (stream, client):
        begin = time.perf_counter() + warm_up_s
        end = begin + seconds
        while not took_ms or time.perf_counter() < end:
            start = time.perf_counter()
            await client.publish(stream, payload, timeout_s=_PUBLISH_S)
            if start >= begin:
                took_ms.append((time.perf_counter() - start) * 1000)
    return NatsLatency(percentile(took_ms, 0.5), percentile(took_ms, 0.99), len(took_ms))


async def nats_failover(
    peer: NatsPeer, *, rounds: int, how: Strike, size: int = 64, deadline_s: float = FAILOVER_S
) -> NatsFailovers:
    """Strike the stream's leader so many times; a client at another server waits for its next ack.

    Between the rounds every copy is there again and level with its leader.
    """
    seconds = []
    async with _fresh_stream(peer) as (stream, _):
        for _ in range(rounds):
            leader = await asyncio.to_thread(peer.wait_stream, stream)
            client = await peer.connect(next(name for name in peer.running if name != leader))
            try:
                # What was sent before the strike is over, so an ack that comes is a new one (NL2).
                await client.publish(stream, os.urandom(size), timeout_s=_PUBLISH_S)
                start = time.perf_counter()
                if how == "kill":
                    peer.kill(leader)
                else:
                    peer.pause(leader)
                await _first_ack(client, stream, os.urandom(size), deadline_s=deadline_s)
                seconds.append(time.perf_counter() - start)
            finally:
                client.close()
                if how == "kill":
                    peer.start_all()
                else:
                    peer.resume(leader)
    return NatsFailovers(tuple(seconds))


async def _first_ack(client: NatsClient, stream: str, payload: bytes, *, deadline_s: float) -> None:
    """Send a record again and again, until one of them is acknowledged."""
    end = time.monotonic() + deadline_s
    tries: set[asyncio.Task[int]] = set()
    try:
        while time.monotonic() < end:
            tries.add(asyncio.create_task(client.publish(stream, payload, timeout_s=deadline_s)))
            done, tries = await asyncio.wait(tries, timeout=RETRY_S, return_when=asyncio.FIRST_COMPLETED)
            if any(_is_acked(task) for task in done):
                return
            if done:
                # Refused at once; the next try is as far away as if it had been silence.
                await asyncio.sleep(RETRY_S)
    finally:
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    raise WaitTimedOut(waiting_for="an ack of a new leader of the stream", deadline_s=deadline_s)


def _is_acked(task: asyncio.Task[int]) -> bool:
    try:
        task.result()
    except NobodyThere:
        return False
    return True


async def _rate(
    peer: NatsPeer, pump_for: Callable[[str], Pump], *, seconds: float, warm_up_s: float, **config: object
) -> Rate:
    async with _fresh_stream(peer, **config) as (stream, client):
        rate = await client.run(pump_for(stream), seconds=seconds, warm_up_s=warm_up_s)
        held = await peer.stream_records(stream)
        if held != rate.acked:
            raise CountsDiffer(f"the stream holds {held} records, acknowledged were {rate.acked} (NL1)")
    return rate


@asynccontextmanager
async def _fresh_stream(peer: NatsPeer, **config: object) -> AsyncIterator[tuple[str, NatsClient]]:
    """An empty stream and a connection to its leader; both are gone afterwards."""
    stream = f"bench{next(_names)}"
    await peer.create_stream(stream, **config)
    leader = await asyncio.to_thread(peer.wait_stream, stream)
    client = await peer.connect(leader)
    try:
        yield stream, client
    finally:
        client.close()
    # Only when all went well: after a failure the error that was is more telling than a cluster that cannot delete.
    await asyncio.to_thread(peer.wait_formed)
    await peer.delete_stream(stream)
