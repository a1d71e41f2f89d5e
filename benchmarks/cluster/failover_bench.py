"""`tidelog bench failover`: a channel's leader is struck; how long until the next ack, and is anything lost or doubled?

Three nodes over mTLS, a front before each (`NodeFronts`), and for each channel one idempotent producer of the native
client, which sends a numbered record every few milliseconds throughout. What every key means is in docs/benchmarks.md.

FB1  A failover is timed from before the strike to the first ack of a record that was sent after it.
FB2  Before each strike all is well: every replica is in sync, every node a voter. The victim is, in turn, a node that
     leads nothing but the channel, and the one that leads the metadata as well.
FB3  At the end each channel is read from its start: an acknowledged number that is not there is lost, one that is
     there twice is duplicated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from benchmarks.kits.channel_kit import create_channel, dial_node, wait_whole
from benchmarks.kits.cluster_kit import OPERATOR, ClusterKit
from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.kits.node_fronts import NodeFronts
from benchmarks.nats.load import nats_failover
from benchmarks.nats.peer import NatsPeer, nats_server_version
from tidelog.client import Client, Producer, Receipt, Record, connect
from tidelog.errors import LogError, WaitTimedOut
from tidelog.transports.link.link import LinkTlsFiles

Strike = Literal["kill", "stop", "partition"]
STRIKES: Final[tuple[Strike, ...]] = ("kill", "stop", "partition")
NODES: Final = 3
FAST_HEARTBEAT_MS: Final = 100
SEND_S: Final = 0.005
ACK_S: Final = 60.0
_NUMBER_BYTES: Final = 8
_MOVE_S: Final = 30.0
_SETTLE_S: Final = 1.0
"""Between all being well and the strike: nodes that have just come back have work to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSizes:
    rounds: int = 10
    """The number of strikes of each kind, for each channel."""
    nats_rounds: int = 10


FULL = FailoverSizes()
QUICK = FailoverSizes(rounds=2, nats_rounds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    how: Strike
    seconds: float
    metadata: bool
    """The victim led the metadata as well."""


def bench_failover(*, quick: bool = False, folder: str | None = None, sizes: FailoverSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        place = Path(scratch)
        began = time.perf_counter()
        with ClusterKit(place / "cluster", nodes=NODES) as kit, NodeFronts(kit) as fronts:
            fronts.start_all()
            results |= asyncio.run(_measure(kit, fronts, sizes))
        with NatsPeer(place / "nats") as peer:
            peer.start_all()
            peer.wait_formed()
            theirs = asyncio.run(_nats(peer, sizes))
        results |= {
            "vs_nats": round(_number(results, "struck_p50_s") / statistics.median(theirs), 3),
            "nats_p50_s": round(statistics.median(theirs), 3),
            "nats_max_s": round(max(theirs), 3),
            "nats_server": nats_server_version(),
            "run_seconds": round(time.perf_counter() - began, 1),
        }
    return results


run = bench_failover


async def _nats(peer: NatsPeer, sizes: FailoverSizes) -> list[float]:
    """Nobody can cut them off here, so a partition of ours has no counterpart."""
    found: list[float] = []
    for how in ("kill", "stop"):
        found += (await nats_failover(peer, rounds=sizes.nats_rounds, how=how)).seconds
    return found


async def _measure(kit: ClusterKit, fronts: NodeFronts, sizes: FailoverSizes) -> Results:
    async with kit.caller() as caller:
        await kit.wait_formed(caller)
    normal = await _channel(kit, fronts, "normal", sizes)
    fast = await _channel(kit, fronts, "fast", sizes, heartbeat_ms=FAST_HEARTBEAT_MS)
    plain = [one.seconds for one in normal.failovers]
    results: Results = {
        "p50_s": round(statistics.median(plain), 3),
        "max_s": round(max(plain), 3),
        "fast_p50_s": _median([one.seconds for one in fast.failovers if not one.metadata]),
        "metadata_p50_s": _median([one.seconds for one in fast.failovers if one.metadata]),
        "fast_max_s": round(max(one.seconds for one in fast.failovers), 3),
        "lost": normal.lost + fast.lost,
        "duplicated": normal.duplicated + fast.duplicated,
        "struck_p50_s": _median([one.seconds for one in normal.failovers if one.how != "partition"]),
    }
    for how in STRIKES:
        results[f"{how}_p50_s"] = _median([one.seconds for one in normal.failovers if one.how == how])
        results[f"fast_{how}_p50_s"] = _median(
            [one.seconds for one in fast.failovers if one.how == how and not one.metadata]
        )
    results |= {
        "normal_metadata_p50_s": _median([one.seconds for one in normal.failovers if one.metadata]),
        "failovers": len(normal.failovers) + len(fast.failovers),
        "acked": normal.acked + fast.acked,
    }
    return results


@dataclass(slots=True)
class _Outcome:
    failovers: list[Failover] = field(default_factory=list)
    acked: int = 0
    lost: int = 0
    duplicated: int = 0


async def _channel(kit: ClusterKit, fronts: NodeFronts, name: str, sizes: FailoverSizes, **config: object) -> _Outcome:
    """All strikes at the leader of one channel."""
    outcome = _Outcome()
    await create_channel(kit, name, **config)
    async with await _client(kit) as client:
        stream = _Stream(client.producer(name, timeout_ms=round(ACK_S * 1000)))
        async with stream.running():
            for number in range(sizes.rounds):
                for how in STRIKES:
                    metadata = number % 2 == 1
                    victim = await _ready(kit, client, name, metadata=metadata)
                    await stream.wait_fresh_ack()
                    start = time.perf_counter()
                    async with _struck(kit, fronts, victim, how):
                        await stream.wait_fresh_ack()
                        outcome.failovers.append(
                            Failover(how=how, seconds=time.perf_counter() - start, metadata=metadata)
                        )
        found = await _read_all(client, name)
    outcome.acked = len(stream.acked)
    outcome.lost = sum(number not in found for number in stream.acked)
    outcome.duplicated = sum(count - 1 for count in found.values())
    return outcome


async def _client(kit: ClusterKit) -> Client:
    place = kit.folder / "certificates"
    files = LinkTlsFiles(
        certificate=place / f"{OPERATOR}.crt", key=place / f"{OPERATOR}.key", authority=place / "ca.crt"
    )
    return await connect([kit.address(name) for name in kit.names], tls=files)


@contextlib.asynccontextmanager
async def _struck(kit: ClusterKit, fronts: NodeFronts, victim: str, how: Strike) -> AsyncIterator[None]:
    if how == "kill":
        kit.kill(victim)
    elif how == "stop":
        kit.pause(victim)
    else:
        fronts.isolate(victim)
    try:
        yield
    finally:
        if how == "kill":
            kit.start(victim)
        elif how == "stop":
            kit.resume(victim)
        else:
            fronts.heal()


async def _ready(kit: ClusterKit, client: Client, name: str, *, metadata: bool) -> str:
    """All is well, and the channel's leader leads the metadata or does not, as asked for (FB2); returns it."""
    end = time.monotonic() + _MOVE_S
    async with kit.caller() as caller:
        while True:
            metadata_leader = await kit.wait_formed(caller)
            link = await dial_node(kit, metadata_leader)
            try:
                channel = await wait_whole(kit, link, name)
            finally:
                await link.close()
            if (channel.leader == metadata_leader) == metadata:
                await asyncio.sleep(_SETTLE_S)
                return channel.leader
            if time.monotonic() >= end:
                raise WaitTimedOut(waiting_for=f"another leader of {name}", deadline_s=_MOVE_S)
            heir = metadata_leader if metadata else next(one for one in channel.replicas if one != metadata_leader)
            with contextlib.suppress(LogError):
                await client.elect(name, leader=heir)
            await asyncio.sleep(0.1)


async def _read_all(client: Client, name: str) -> Counter[int]:
    found: Counter[int] = Counter()
    async with client.reader(name, start="earliest", follow=False) as reader:
        async for record in reader:
            assert isinstance(record, Record)
            assert record.value is not None
            found[int.from_bytes(record.value[:_NUMBER_BYTES], "little")] += 1
    return found


class _Stream:
    """A numbered record every few milliseconds, and the numbers that were acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acked: list[int] = []
        self._next = 0
        self._failure: BaseException | None = None
        self._moved = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._producer.flush()
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        padding = os.urandom(56)
        while True:
            number, self._next = self._next, self._next + 1
            receipt = self._producer.send(number.to_bytes(_NUMBER_BYTES, "little") + padding)

            receipt.when_done(partial(self._done, number, receipt))
            await asyncio.sleep(SEND_S)

    def _done(self, number: int, receipt: Receipt) -> None:
        try:
            receipt.result()
        except LogError as error:
            self._failure = error
        else:
            self.acked.append(number)
        self._moved.set()

    async def wait_fresh_ack(self) -> None:
        """Until a record is acknowledged that was sent after this call (FB1)."""
        first = self._next
        end = time.monotonic() + ACK_S
        while not self.acked or self.acked[-1] < first:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() >= end:
                raise WaitTimedOut(waiting_for="an ack of a new leader", deadline_s=ACK_S)
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._moved.wait()


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def _number(results: Results, key: str) -> float:
    value = results[key]
    assert isinstance(value, float)
    return value
