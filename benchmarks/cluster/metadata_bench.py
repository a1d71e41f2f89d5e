"""`tidelog bench metadata`: changes and reads of the cluster's memory, three node processes over mTLS on one disk.

What every key means and what it must reach is in docs/benchmarks.md. `commit_p50_ms` is what the leader itself saw of
the last hundred changes, from the proposal until it was applied. The client is this process, a link away from the
leader: its times include the request and the answer over TLS as well.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.kits.cluster_load import ClusterCaller, MetadataClient
from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.kits.uplink_parties import percentile
from tidelog.core.catalog import ChannelConfig, CreateChannel, PauseChannel, SetReadonly
from tidelog.errors import LogError

IN_FLIGHT: Final = 64
NODES: Final = 3
_SYNC_BYTES: Final = 512
"""About what one change of a channel takes in the log."""
_TIMEOUT_MS: Final = 30_000
_PROBE_MS: Final = 500
"""While the leader is dead, nobody waits longer for an answer of one node."""
_DEADLINE_S: Final = 60.0
_QUIET_S: Final = 0.5
"""After which the cluster has done what the work before left behind, such as settling its marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSizes:
    changes: int = 20_000
    """With `IN_FLIGHT` of them at a time."""
    single_changes: int = 1_000
    rounds: int = 5
    """Into which the single changes and the bare syncs are cut, in turn."""
    reads: int = 1_000
    failovers: int = 5


FULL = MetadataSizes()
QUICK = MetadataSizes(changes=4_000, single_changes=200, rounds=2, reads=200, failovers=1)


def bench_metadata(*, quick: bool = False, folder: str | None = None, sizes: MetadataSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        with ClusterKit(Path(scratch) / "cluster", nodes=NODES) as kit:
            kit.start_all()
            results |= asyncio.run(_measure(kit, Path(scratch), sizes))
    return results


run = bench_metadata


async def _measure(kit: ClusterKit, scratch: Path, sizes: MetadataSizes) -> Results:
    began = time.perf_counter()
    async with kit.caller() as caller:
        leader = await kit.wait_formed(caller)
        results: Results = {"nodes": NODES, "formed_s": round(time.perf_counter() - began, 2)}
        channels = await _channels(caller, leader)
        results |= await _single(kit, caller, leader, channels[0], scratch, sizes)
        results |= await _many(kit, caller, leader, channels, sizes)
        results |= await _reads(kit, caller, leader, sizes)
        results |= await _failovers(kit, caller, channels[0], sizes)
    return results


@dataclass(slots=True)
class _Channel:
    """A channel that one client alone changes, back and forth."""

    name: str
    channel_id: int
    epoch: int = 1
    readonly: bool = False

    def change(self) -> SetReadonly:
        return SetReadonly(channel_id=self.channel_id, expected_channel_epoch=self.epoch, readonly=not self.readonly)

    def changed(self) -> None:
        self.epoch += 1
        self.readonly = not self.readonly


def _client(caller: ClusterCaller, leader: str, *, timeout_ms: int = _TIMEOUT_MS) -> MetadataClient:
    nodes = sorted(caller.nodes, key=lambda name: name != leader)
    return MetadataClient(caller, nodes, timeout_ms=timeout_ms, deadline_s=_DEADLINE_S)


async def _channels(caller: ClusterCaller, leader: str) -> list[_Channel]:
    client = _client(caller, leader)
    found = []
    for number in range(IN_FLIGHT):
        name = f"bench-{number}"
        config = ChannelConfig(factor=1)
        await client.propose(CreateChannel(name=name, config=config, replicas=(leader,), leader=leader, at_ms=0))
        record = await client.read_channel(name)
        assert record is not None, "it was just made"
        # Paused, so that nobody but us changes it, and an election is no part of what is measured.
        await client.propose(PauseChannel(channel_id=record["channel_id"], expected_channel_epoch=1))
        found.append(_Channel(name, record["channel_id"], epoch=2))
    return found


async def _timed_ms(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


async def _change(client: MetadataClient, channel: _Channel) -> None:
    await client.propose(channel.change())
    channel.changed()


async def _single(
    kit: ClusterKit, caller: ClusterCaller, leader: str, channel: _Channel, scratch: Path, sizes: MetadataSizes
) -> Results:
    """One change at a time, in turn with bare syncs while the cluster is idle."""
    client = _client(caller, leader)
    commits_ms: list[float] = []
    at_leader_ms: list[float] = []
    syncs_ms: list[float] = []
    share = sizes.single_changes // sizes.rounds
    for _ in range(sizes.rounds):
        await asyncio.sleep(_QUIET_S)
        syncs_ms += await asyncio.to_thread(bare_syncs_ms, scratch / "bare", share)
        commits_ms += [await _timed_ms(lambda: _change(client, channel)) for _ in range(share)]
        at_leader_ms.append((await _metadata(kit, caller, leader))["commit_p50_ms"])
    fsync_p50_ms = percentile(syncs_ms, 0.5)
    kit.require_alive()
    return {
        "commit_p50_ms": round(statistics.median(at_leader_ms), 3),
        "client_commit_p50_ms": round(percentile(commits_ms, 0.5), 3),
        "client_commit_p99_ms": round(percentile(commits_ms, 0.99), 3),
        "fsync_p50_ms": round(fsync_p50_ms, 3),
        "fsync_p99_ms": round(percentile(syncs_ms, 0.99), 3),
        "commit_p50_max_ms": round(4 * fsync_p50_ms + 1, 3),
    }


def bare_syncs_ms(path: Path, count: int) -> list[float]:
    """Append and sync, without anything around it."""
    found = []
    record = os.urandom(_SYNC_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        end = os.fstat(descriptor).st_size
        for number in range(count):
            start = time.perf_counter()
            os.pwrite(descriptor, record, end + number * len(record))
            os.fdatasync(descriptor)
            found.append((time.perf_counter() - start) * 1000)
    finally:
        os.close(descriptor)
    return found


async def _many(
    kit: ClusterKit, caller: ClusterCaller, leader: str, channels: list[_Channel], sizes: MetadataSizes
) -> Results:
    """`IN_FLIGHT` clients, each with one change under way: what shares an fsync on the leader."""
    took_ms: list[float] = []
    left = sizes.changes

    async def work(channel: _Channel) -> None:
        nonlocal left
        client = _client(caller, leader)
        while left > 0:
            left -= 1
            took_ms.append(await _timed_ms(lambda: _change(client, channel)))

    before = await _metadata(kit, caller, leader)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for channel in channels:
            group.create_task(work(channel))
    elapsed_s = time.perf_counter() - start
    after = await _metadata(kit, caller, leader)
    syncs = after["writes"] + after["settles"] - before["writes"] - before["settles"]
    return {
        "proposals_per_fsync": round(len(took_ms) / max(1, syncs), 2),
        "proposals_per_s": round(len(took_ms) / elapsed_s),
        "proposals_in_flight": IN_FLIGHT,
        "commit_p50_ms_at_64": round(percentile(took_ms, 0.5), 3),
        "commit_p99_ms_at_64": round(percentile(took_ms, 0.99), 3),
    }


async def _metadata(kit: ClusterKit, caller: ClusterCaller, leader: str) -> dict[str, Any]:
    status = await kit.status(caller, leader)
    assert status is not None
    assert status["standing"] == "leader", "the leader moved while it was measured; the machine is too busy"
    counts: dict[str, Any] = status["metadata"]
    return counts


async def _reads(kit: ClusterKit, caller: ClusterCaller, leader: str, sizes: MetadataSizes) -> Results:
    """Linearizable, one at a time: at the leader, and at a follower that asks the leader how far to wait."""
    client = _client(caller, leader)
    follower = next(name for name in kit.names if name != leader)
    took_ms = {
        node: [await _timed_ms(lambda: client.read_channel("bench-0", at=node)) for _ in range(sizes.reads)]  # noqa: B023
        for node in (leader, follower)
    }
    return {
        "read_p50_ms": round(percentile(took_ms[leader], 0.5), 3),
        "read_p99_ms": round(percentile(took_ms[leader], 0.99), 3),
        "read_follower_p50_ms": round(percentile(took_ms[follower], 0.5), 3),
    }


async def _failovers(kit: ClusterKit, caller: ClusterCaller, channel: _Channel, sizes: MetadataSizes) -> Results:
    """kill -9 of the leader to the next acknowledged change."""
    took_ms = []
    for _ in range(sizes.failovers):
        leader = await kit.wait_formed(caller)
        start = time.perf_counter()
        kit.kill(leader)
        await _change_somehow(_client(caller, leader, timeout_ms=_PROBE_MS), channel, deadline_s=_DEADLINE_S)
        took_ms.append((time.perf_counter() - start) * 1000)
        kit.start(leader)
    return {
        "failover_ms": round(statistics.median(took_ms)),
        "failover_max_ms": round(max(took_ms)),
        "failovers": sizes.failovers,
    }


async def _change_somehow(client: MetadataClient, channel: _Channel, *, deadline_s: float) -> None:
    """Until one change is acknowledged; what became of one that was not is looked up."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            await _change(client, channel)
            return
        except LogError as error:
            if error.definite or time.monotonic() >= end:
                raise
        record = await client.read_channel(channel.name)
        assert record is not None, "nobody deletes it"
        channel.epoch, channel.readonly = record["channel_epoch"], record["readonly"]
