"""`tidelog bench doors`: Liftbridge's API on three nodes against the native client, and replication over NATS.

What every key means and what it must reach is in docs/benchmarks.md. Everything speaks TLS and shows certificates, but
for NATS, which speaks as its server does by itself. Clients are processes of their own; all that is compared is
measured in turn, round by round.

DB1  After each round of publishing the channel holds exactly what was acknowledged, read back and verified.
DB2  A ratio is the median of the ratios of single rounds: both sides of one met the same machine.
DB3  Over NATS means over NATS: not one message of replication took the link instead.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.clients.gateway_parties import PACED_PER_S, VALUE_BYTES, Measured, Party
from benchmarks.cluster.cluster_bench import ClusterSizes as RateSizes
from benchmarks.cluster.cluster_bench import Pairs, our_rate
from benchmarks.kits.channel_kit import (
    BenchChannel,
    WrongRecords,
    count_records,
    create_channel,
    delete_channel,
    dial_node,
)
from benchmarks.kits.cluster_client import ProducePump, PumpLink
from benchmarks.kits.cluster_kit import HOST, OPERATOR, ClusterKit
from benchmarks.kits.measure import Results, machine_facts, scratch_folder, serving_process
from benchmarks.nats.load import RECORDS, REQUESTS
from benchmarks.nats.peer import NatsPeer, nats_server_version
from tidelog.cli.demo.ports import free_port
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import channel_of
from tidelog.errors import WaitTimedOut

NODES: Final = 3
PUBLISHERS: Final = 4
PARTITIONS: Final = 6
_MODULE: Final = "benchmarks.clients.gateway_parties"
_PARTY_S: Final = 120.0
_COMMIT_S: Final = 10.0
_BLOCK_RECORDS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySizes:
    rounds: int = 5
    seconds: float = 2.0
    warm_up_s: float = 0.5
    records: int = 400_000
    """To subscribe to."""
    grpcio_records: int = 40_000
    """The same for grpcio's client, which takes longer for each."""


FULL = GatewaySizes()
QUICK = GatewaySizes(rounds=2, seconds=1.0, warm_up_s=0.3, records=100_000, grpcio_records=10_000)


class GatewayPartyFailed(RuntimeError):
    """A client's process did not do its part."""


def bench_gateway(*, quick: bool = False, folder: str | None = None, sizes: GatewaySizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    began = time.perf_counter()
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        place = Path(scratch)
        with ClusterKit(place / "cluster", nodes=NODES) as kit:
            gateways = _start(kit)
            results |= asyncio.run(_measure(kit, gateways, sizes))
        with ClusterKit(place / "link", nodes=NODES) as linked, NatsPeer(place / "nats", nodes=1) as peer:
            peer.start_all()
            (server,) = peer.nodes.values()
            over = ("-transport", "nats", "-nats-servers", f"nats://{HOST}:{server.port}")
            with ClusterKit(place / "over-nats", nodes=NODES, settings=over) as carried:
                linked.start_all()
                carried.start_all()
                results |= asyncio.run(_transports(linked, carried, sizes))
    results |= {
        "rounds": sizes.rounds,
        "nats_server": nats_server_version(),
        "run_seconds": round(time.perf_counter() - began, 1),
    }
    return results


run = bench_gateway


def _start(kit: ClusterKit) -> dict[str, int]:
    """All nodes with their gateways; the ports of those."""
    place = kit.folder / "certificates"
    taken = {node.port for node in kit.nodes.values()}
    rng = random.Random()
    gateways: dict[str, int] = {}
    for name in kit.names:
        gateways[name] = free_port(rng, taken=taken | set(gateways.values()))
        settings = ["-liftbridge-listen", f"{HOST}:{gateways[name]}"]
        settings += ["-liftbridge-link-cert", str(place / f"{OPERATOR}.crt")]
        settings += ["-liftbridge-link-key", str(place / f"{OPERATOR}.key")]
        kit.start(name, *settings)
    return gateways


# --- the gateway ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One way to publish."""

    key: str
    kind: str
    policy: int
    publishers: int = 1
    is_keyed: bool = False
    partitions: int = 1


_LEADER_1: Final = _Case(key="publish_async_leader_1", kind="raw", policy=pb.LEADER)
_LEADER_4: Final = _Case(key="publish_async_leader_4", kind="raw", policy=pb.LEADER, publishers=PUBLISHERS)
_ALL_1: Final = _Case(key="publish_async_all_1", kind="raw", policy=pb.ALL)
_ALL_4: Final = _Case(key="publish_async_all_4", kind="raw", policy=pb.ALL, publishers=PUBLISHERS)
_KEYED: Final = _Case(key="publish_async_keyed", kind="raw", policy=pb.LEADER, is_keyed=True)
_SPREAD: Final = _Case(key="publish_async_spread", kind="raw", policy=pb.LEADER, partitions=PARTITIONS)
_GRPCIO: Final = _Case(key="grpcio_publish", kind="grpcio", policy=pb.ALL)
_NATIVE: Final = _Case(key="native_publish", kind="native", policy=pb.ALL)
_CASES: Final = (_LEADER_1, _LEADER_4, _ALL_1, _ALL_4, _KEYED, _SPREAD, _GRPCIO, _NATIVE)


async def _measure(kit: ClusterKit, gateways: dict[str, int], sizes: GatewaySizes) -> Results:
    async with kit.caller() as caller:
        await kit.wait_formed(caller)
    rates: dict[str, list[float]] = {case.key: [] for case in _CASES}
    echoes: dict[str, list[float]] = {"raw": [], "grpcio": []}
    reads: dict[str, list[float]] = {"raw": [], "grpcio": [], "native": []}
    paced: list[Measured] = []
    filled = await _filled(kit, sizes)
    for _ in range(sizes.rounds):
        for case in _CASES:
            rates[case.key].append(await _publish(kit, gateways, case, sizes))
        paced.append(await _paced(kit, gateways, sizes))
        for kind, found in echoes.items():
            found.append(await _echo(kit, kind, sizes))
        for kind, found in reads.items():
            found.append(await _subscribe(kit, gateways, filled, kind, sizes))
        kit.require_alive()
    await delete_channel(kit, filled.name)
    leader, whole = rates[_LEADER_1.key], rates[_ALL_1.key]
    four = _ratios(rates[_LEADER_4.key], leader), _ratios(rates[_ALL_4.key], whole)
    results: Results = {
        "publish_async_per_s": round(statistics.median(whole)),
        "subscribe_per_s": round(statistics.median(reads["raw"])),
        "api_vs_native": _median(whole, rates[_NATIVE.key]),
        "subscribe_vs_native": _median(reads["raw"], reads["native"]),
        "four_vs_one": round(min(map(statistics.median, four)), 3),
        "api_vs_echo": _median(leader, echoes["raw"]),
        "api_vs_grpcio_echo": _median(leader, echoes["grpcio"]),
        "keyed_vs_plain": _median(rates[_KEYED.key], leader),
        "spread_vs_plain": _median(rates[_SPREAD.key], leader),
        "paced_p50_ms": round(statistics.median(found.p50_ms for found in paced), 2),
        "paced_p99_ms": round(statistics.median(found.p99_ms for found in paced), 2),
        "paced_per_s": PACED_PER_S,
    }
    results |= {f"{key}_per_s": round(statistics.median(found)) for key, found in rates.items()}
    results |= {
        "echo_per_s": round(statistics.median(echoes["raw"])),
        "grpcio_echo_per_s": round(statistics.median(echoes["grpcio"])),
        "grpcio_subscribe_per_s": round(statistics.median(reads["grpcio"])),
        "native_read_per_s": round(statistics.median(reads["native"])),
        "value_bytes": VALUE_BYTES,
    }
    return results


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def _median(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """DB2."""
    return round(statistics.median(_ratios(ours, theirs)), 3)


async def _publish(kit: ClusterKit, gateways: dict[str, int], case: _Case, sizes: GatewaySizes) -> float:
    """Acknowledged messages per second of all publishers, at the gateway of the leader (DB1)."""
    channels = [channel := await create_channel(kit)]
    for partition in range(1, case.partitions):
        name = channel_of(channel.name, partition)
        channels.append(await create_channel(kit, name, leader_pinned=channel.leader))
    party = _party(kit, "publish", case.kind, gateways[channel.leader], channel, sizes, policy=case.policy)
    party = replace(party, is_keyed=case.is_keyed, partitions=case.partitions)
    measured = await asyncio.to_thread(_carried_out, [party] * case.publishers)
    await _require(kit, channels, sum(found.acked for found in measured))
    for one in channels:
        await delete_channel(kit, one.name)
    return sum(found.records / found.seconds for found in measured)


async def _paced(kit: ClusterKit, gateways: dict[str, int], sizes: GatewaySizes) -> Measured:
    """How long acks of all take for messages that come one by one, at a rate that is no load."""
    channel = await create_channel(kit)
    party = _party(kit, "publish", "paced", gateways[channel.leader], channel, sizes, policy=pb.ALL)
    (measured,) = await asyncio.to_thread(_carried_out, [party])
    await _require(kit, [channel], measured.acked)
    await delete_channel(kit, channel.name)
    return measured


async def _require(kit: ClusterKit, channels: Sequence[BenchChannel], acked: int) -> None:
    """What a leader alone has acknowledged is committed a moment later. All channels have the same leader."""
    link = await dial_node(kit, channels[0].leader)
    held = 0

    async def are_there() -> bool:
        nonlocal held
        held = sum([await count_records(link, channel.channel_id) for channel in channels])
        return held >= acked

    try:
        await kit.wait(are_there, deadline_s=_COMMIT_S, what=f"{acked} records in {channels[0].name}")
    finally:
        await link.close()
    if held != acked:
        raise WrongRecords(f"{channels[0].name} holds {held} records, acknowledged were {acked}")


async def _echo(kit: ClusterKit, kind: str, sizes: GatewaySizes) -> float:
    """The floor: the same publisher at a server that answers without doing anything."""
    certificates = str(kit.folder / "certificates")
    server = Party(role="echo", kind=kind, certificates=certificates, name=kit.names[0])

    def measure() -> float:
        with serving_process(_MODULE, server.told()) as port:
            party = Party(
                role="publish",
                kind="raw",
                certificates=certificates,
                port=port,
                stream="echo",
                warm_up_s=sizes.warm_up_s,
                seconds=sizes.seconds,
            )
            (found,) = _carried_out([party])
            return found.records / found.seconds

    return await asyncio.to_thread(measure)


async def _filled(kit: ClusterKit, sizes: GatewaySizes) -> BenchChannel:
    """A channel with enough to read."""
    channel = await create_channel(kit)
    pump = ProducePump(channel, size=VALUE_BYTES, records=_BLOCK_RECORDS, requests=16)
    filler = await PumpLink.connect(kit, channel)
    try:
        await filler.fill(pump, records=sizes.records)
    finally:
        await filler.close()
    return channel


async def _subscribe(
    kit: ClusterKit, gateways: dict[str, int], channel: BenchChannel, kind: str, sizes: GatewaySizes
) -> float:
    """Messages per second that one reader takes from the leader."""
    records = sizes.grpcio_records if kind == "grpcio" else sizes.records
    party = _party(kit, "subscribe", kind, gateways[channel.leader], channel, sizes, records=records)
    (found,) = await asyncio.to_thread(_carried_out, [party])
    return found.records / found.seconds


def _party(
    kit: ClusterKit,
    role: str,
    kind: str,
    port: int,
    channel: BenchChannel,
    sizes: GatewaySizes,
    *,
    policy: int = 0,
    records: int = 0,
) -> Party:
    return Party(
        role=role,
        kind=kind,
        certificates=str(kit.folder / "certificates"),
        addresses=tuple(kit.address(name) for name in kit.names),
        port=port,
        stream=channel.name,
        policy=policy,
        warm_up_s=sizes.warm_up_s,
        seconds=sizes.seconds,
        records=records,
    )


def _carried_out(parties: Sequence[Party]) -> list[Measured]:
    """All at the same time, each in a process of its own, begun together."""
    processes = [
        subprocess.Popen([sys.executable, "-m", _MODULE, party.told()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for party in parties
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise GatewayPartyFailed(f"a client ended with {process.wait()} before it was ready")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        found = []
        for process in processes:
            said, _ = process.communicate(timeout=_PARTY_S)
            if process.returncode:
                raise GatewayPartyFailed(f"a client ended with {process.returncode}")
            found.append(Measured(**json.loads(said)))
        return found
    except subprocess.TimeoutExpired:
        raise WaitTimedOut(waiting_for="a client to end", deadline_s=_PARTY_S) from None
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# --- replication over NATS -----------------------------------------------------------------------------------


async def _transports(linked: ClusterKit, carried: ClusterKit, sizes: GatewaySizes) -> Results:
    """Batched appends for all replicas over NATS, in turn with the same over the links."""
    for kit in (linked, carried):
        async with kit.caller() as caller:
            await kit.wait_formed(caller)
    await _wait_up(carried)
    pairs = Pairs()
    rates = RateSizes(rounds=sizes.rounds, seconds=sizes.seconds, warm_up_s=sizes.warm_up_s)
    before = await _counts(carried)
    for number in range(sizes.rounds):
        order = [(carried, pairs.ours), (linked, pairs.theirs)]
        for kit, found in order if number % 2 == 0 else reversed(order):
            found.append(await our_rate(kit, _blocks, rates))
            kit.require_alive()
    after = await _counts(carried)
    if after["fallbacks"] != before["fallbacks"] or after["sent"] <= before["sent"]:
        raise GatewayPartyFailed(f"replication was not over NATS alone: {before} became {after}")  # DB3
    return {
        "nats_transport_vs_link": round(pairs.ratio, 3),
        "nats_transport_vs_link_min": round(min(pairs.ratios), 3),
        "nats_transport_vs_link_max": round(max(pairs.ratios), 3),
        "nats_transport_records_per_s": round(statistics.median(pairs.ours)),
        "link_records_per_s": round(statistics.median(pairs.theirs)),
        "nats_messages": after["sent"] - before["sent"],
        "nats_fallbacks": after["fallbacks"] - before["fallbacks"],
    }


def _blocks(channel: BenchChannel) -> ProducePump:
    return ProducePump(channel, size=VALUE_BYTES, records=RECORDS, requests=REQUESTS)


async def _wait_up(kit: ClusterKit) -> None:
    async with kit.caller() as caller:

        async def is_up() -> bool:
            statuses = [await kit.status(caller, name) for name in kit.names]
            return all(status is not None and status["transport"].get("up") for status in statuses)

        await kit.wait(is_up, deadline_s=60.0, what="all nodes to reach the NATS server")


async def _counts(kit: ClusterKit) -> dict[str, int]:
    counts = {"sent": 0, "fallbacks": 0}
    async with kit.caller() as caller:
        for name in kit.names:
            status = await kit.status(caller, name)
            if status is None:
                raise GatewayPartyFailed(f"{name} does not say how it stands")
            for key in counts:
                counts[key] += status["transport"][key]
    return counts
