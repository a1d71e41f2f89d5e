"""Real nodes, real clients, replicated channels, and everything that can go wrong at once (anchors A4, RP rows).

What was acknowledged is there, in order, once; readers saw each committed record once; replicas are the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import socketserver
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kits.fault_proxy import HOST, FaultProxy

from tests.cluster.chaos_checks import Records, log_on_disk, reader_violations, record_violations, replica_violations
from tests.cluster.chaos_faults import STOP_S, WHOLE_S, Faults
from tests.cluster.chaos_load import ChaosChannel, ChaosLoad, Seen, Sent, plain, value_of
from tests.cluster.chaos_world import ChaosWorld, chaos_world
from tests.uplink.processes import seed_of_the_day
from tidelog.units import KIB

CHAOS_S = float(os.environ.get("TIDELOG_CHAOS_S", "120"))
SETTLE_S = 180.0
"""Until all is well after the last fault: a replica without space tries again after half a minute."""
GOES_ON = 20
EVENTS = (
    "elects channel",
    "elects by reports",
    "node fenced",
    "truncates",
    "begins anew",
    "append refused",
    "withdraw",
)
"""Lines of nodes that are worth counting: what a run has never seen, it has not tested."""

CHANNELS = (
    ChaosChannel(name="default", config={}),
    ChaosChannel(name="fast", config={"heartbeat_ms": 100}),
    ChaosChannel(name="evict", config={"on_under_capacity": "evict_oldest", "retention": {"max_bytes": 512 * KIB}}),
    ChaosChannel(name="two", config={"factor": 2}),
    ChaosChannel(name="memory", config={"persistent": False}),
)


async def under_faults(world: ChaosWorld, *, seed: int, kinds: Sequence[str] = (), lasting_s: float = 0.0) -> None:
    """The whole run: these faults, or any for so long; then everything is compared."""
    rng = random.Random(seed)
    world.start_all()
    async with world.kit.caller() as caller:
        await world.kit.wait_formed(caller)
        async with await world.connect() as client:
            load = ChaosLoad(world, client, list(CHANNELS), seed=seed)
            faults = Faults(world, load, caller, rng)
            await load.create()
            await world.wait_whole(client, deadline_s=WHOLE_S)
            load.begin()
            try:
                await load.wait_acked(GOES_ON, deadline_s=WHOLE_S)
                listed = [kind for kind in kinds if kind in faults.kinds]
                await faults.run(listed)
                end = time.monotonic() + lasting_s
                while time.monotonic() < end and not load.problems:
                    await faults.run([rng.choice(list(faults.kinds))])
                assert not load.problems, load.problems[:5]
                await settle(world, load)
                load.transports = await world.transports(caller)
                await judge(world, load)
            except BaseException as error:
                error.add_note(f"seed {seed}\n{story(world, load, faults)}")
                raise
            finally:
                await load.stop()
            print(story(world, load, faults))


async def settle(world: ChaosWorld, load: ChaosLoad) -> None:
    """Faults are over: all replicas are in sync, every channel takes records, and then everybody comes to an end."""
    world.heal()
    await world.wait_whole(load.client, deadline_s=SETTLE_S)
    await load.wait_acked(GOES_ON, deadline_s=WHOLE_S)
    await load.end_producers(deadline_s=WHOLE_S)
    await world.wait_whole(load.client, deadline_s=SETTLE_S)


async def judge(world: ChaosWorld, load: ChaosLoad) -> None:
    records = await world.wait_level(list(load.channels), deadline_s=WHOLE_S)
    ends = {name: next(iter(record["ends"]))[0] for name, record in records.items()}
    await load.end_readers(ends, deadline_s=WHOLE_S)
    found = list(load.problems)
    for name, channel in load.channels.items():
        unclean = records[name]["unclean"]
        if unclean and not channel.is_memory:
            found.append(f"{name}: unclean elections {unclean}")
        held, log_start = await everything(load, name)
        lost_before_ms = max((one["at_ms"] for one in unclean), default=0)
        found += record_violations(load.sent[name], held, log_start=log_start, lost_before_ms=lost_before_ms)
        for seen in load.seen:
            if seen.channel == name:
                found += reader_violations(seen, held, is_lossy=bool(unclean))
        knowing = await world.who_knows_the_end(records[name])
        if len(knowing) != 1:
            found.append(f"{name}: {knowing} answer for its committed end")
        if channel.is_memory:
            logs = await world.logs_in_memory(records[name], end=ends[name])
            found += replica_violations(name, logs, end=ends[name])
    await load.client.close()
    for name in world.names:
        world.kit.terminate(name)
    for name in world.names:
        code = await asyncio.to_thread(world.kit.wait_ended, name, deadline_s=STOP_S)
        if code != 0:
            found.append(f"{name} stopped with {code}: {world.kit.said(name)[-2_000:]}")
    for name, channel in load.channels.items():
        if not channel.is_memory:
            logs = {
                node: log_on_disk(world.kit.nodes[node].data, name, end=ends[name])
                for node in records[name]["replicas"]
            }
            found += replica_violations(name, logs, end=ends[name])
    assert not found, "\n".join(found[:20])


async def everything(load: ChaosLoad, channel: str) -> tuple[Records, int]:
    """All committed records of a channel, as its leader gives them out, and where it begins."""
    held = []
    log_start = (await load.client.offsets(channel)).log_start
    async with load.client.reader(channel, follow=False, on_trim="skip") as reader:
        while records := await reader.read():
            held += plain(records)
    return held, max(log_start, held[0][0] if held else 0)


def story(world: ChaosWorld, load: ChaosLoad, faults: Faults) -> str:
    """What was done, and what clients noticed of it."""
    lines = [f"{len(faults.done)} faults on {len(world.names)} nodes"]
    if not world.disks:
        lines.append("no file system can be mounted here: no disk was filled")
    by_kind: dict[str, list[float]] = {}
    began_ns = faults.done[0].at_ns if faults.done else 0
    for struck in faults.done:
        recovered = load.recovery_ms(struck.at_ns)
        by_kind.setdefault(struck.kind, []).extend(recovered.values())
        shown = ", ".join(f"{name} {took_ms:.0f}" for name, took_ms in recovered.items())
        lines.append(f"  {(struck.at_ns - began_ns) / 1e9:6.1f} s {struck.words}; next ack ms: {shown}")
    for kind, times_ms in by_kind.items():
        if times_ms:
            lines.append(f"recovery {kind}: p50 {statistics.median(times_ms):.0f} ms, max {max(times_ms):.0f} ms")
    said = {words: sum(world.kit.said(name).count(words) for name in world.names) for words in EVENTS}
    lines += [
        f"what nodes said: {said}",
        f"records: {load.counts()}",
        f"what clients saw: {load.troubles}",
        f"transports of the last processes: {load.transports}",
        f"problems: {load.problems[:10]}",
    ]
    return "\n".join(lines)


@pytest.mark.timeout(600)
def test_acknowledged_records_survive_every_kind_of_fault(tmp_path: Path) -> None:
    seed = seed_of_the_day(5_000)
    kinds = ["kill leader", "pause leader", "one-way cut", "two-way cut", "kill metadata leader", "kill and pause"]
    kinds += ["all killed", "rolling restart"]
    # A replica that gave up for want of space waits half a minute: at the end, so that it is waited for once.
    last = ["nearly full disk", "full disk"]
    rng = random.Random(seed)
    rng.shuffle(kinds)
    rng.shuffle(last)
    with chaos_world(tmp_path, nodes=3) as world:
        asyncio.run(under_faults(world, seed=seed, kinds=[*kinds, *last]))


@pytest.mark.slow
@pytest.mark.timeout(CHAOS_S + 1_200)
@pytest.mark.parametrize(("transport", "nodes"), [("link", 3), ("link", 5), ("nats", 3)])
def test_acknowledged_records_survive_minutes_of_chaos(transport: str, nodes: int, tmp_path: Path) -> None:
    """Half of TIDELOG_CHAOS_S seconds of faults on each cluster; `make chaos` says 600."""
    seed = seed_of_the_day(6_000 + nodes)
    with chaos_world(tmp_path, nodes=nodes, transport=transport) as world:
        asyncio.run(under_faults(world, seed=seed, lasting_s=CHAOS_S / 2))


# --- the checker itself ------------------------------------------------------------------------------------


def sent(number: int, outcome: str, offset: int = -1) -> Sent:
    return Sent("p", number, 0, outcome, offset, 0, 10)


def held(*numbers: int) -> Records:
    return [(place, value_of("p", number, 3)) for place, number in enumerate(numbers)]


def test_a_good_history_is_found_good() -> None:
    entries = [sent(1, "acked", 0), sent(2, "unknown"), sent(3, "acked", 1), sent(4, "unknown"), sent(5, "refused")]
    assert not list(record_violations(entries, held(1, 3, 4)))
    assert not list(reader_violations(Seen("c", "r", list(held(1, 3, 4))), held(1, 3, 4)))


@pytest.mark.parametrize(
    ("entry", "values", "words"),
    [
        (sent(2, "acked", 1), held(1), "gone"),
        (sent(2, "acked", 1), held(2, 1), "comes after"),
        (sent(2, "acked", 1), held(1, 2, 2), "again"),
        (sent(2, "acked", 7), held(1, 2), "is at 1"),
        (sent(2, "refused"), held(1, 2), "certainly refused"),
        (sent(2, "acked", 1), held(1, 2, 9), "never sent"),
    ],
)
def test_the_checker_notices(entry: Sent, values: Records, words: str) -> None:
    found = list(record_violations([sent(1, "acked", 0), entry], values))
    assert found
    assert words in found[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [(held(1, 2)[::-1], "after"), (held(1), "not given"), (held(1, 3), "not there any more")],
)
def test_the_checker_notices_what_a_reader_was_given(given: Records, words: str) -> None:
    found = list(reader_violations(Seen("c", "r", list(given)), held(1, 2)))
    assert words in found[0]


def test_the_checker_notices_other_bytes_on_a_replica() -> None:
    same: dict[int, Any] = {0: b"a", 4: b"b"}
    assert not list(replica_violations("c", {"n1": same, "n2": dict(same), "n3": {4: b"b"}}, end=8))
    (found,) = replica_violations("c", {"n1": same, "n2": same | {4: b"x"}}, end=8)
    assert "differ at 4" in found


# --- the network itself --------------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a node that gives back what it is given."""

    class Echo(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                while data := self.request.recv(1_024):
                    self.request.sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server((HOST, 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def hears(connection: socket.socket, *, timeout_s: float) -> bytes:
    connection.settimeout(timeout_s)
    try:
        return connection.recv(1_024)
    except TimeoutError:
        return b""


@pytest.mark.parametrize("way", [("n1", "n2"), ("n2", "n1")])
def test_a_stalled_way_keeps_everything_until_it_heals(way: tuple[str, str], echo: int) -> None:
    with FaultProxy(lambda: {"n1": os.getpid()}) as proxy:
        proxy_port = proxy.open_proxy_port("n2", echo)
        with socket.create_connection((HOST, proxy_port)) as connection:
            connection.sendall(b"one")
            assert hears(connection, timeout_s=10) == b"one"
            proxy.stall(way)
            connection.sendall(b"two")
            assert hears(connection, timeout_s=0.2) == b""
            proxy.heal()
            assert hears(connection, timeout_s=10) == b"two"


def test_only_the_pair_that_was_named_is_cut(echo: int) -> None:
    with FaultProxy(lambda: {"n1": os.getpid()}) as proxy:
        cut_port, good_port = proxy.open_proxy_port("n2", echo), proxy.open_proxy_port("n3", echo)
        with socket.create_connection((HOST, cut_port)) as cut, socket.create_connection((HOST, good_port)) as good:
            for connection in (cut, good):
                connection.sendall(b"one")
                assert hears(connection, timeout_s=10) == b"one"
            proxy.cut(["n1"], ["n2"])
            good.sendall(b"two")
            assert hears(good, timeout_s=10) == b"two"
            with pytest.raises(ConnectionError):
                hears(cut, timeout_s=10)
            with socket.create_connection((HOST, cut_port)) as again, pytest.raises(ConnectionError):
                hears(again, timeout_s=10)
            proxy.heal()
            with socket.create_connection((HOST, cut_port)) as healed:
                healed.sendall(b"three")
                assert hears(healed, timeout_s=10) == b"three"


def test_clients_are_nobodys_peer(echo: int) -> None:
    with FaultProxy(dict) as proxy:
        proxy_port = proxy.open_proxy_port("n2", echo)
        proxy.cut(["n1"], ["n2"])
        proxy.stall(("n1", "n2"), ("n2", "n1"))
        with socket.create_connection((HOST, proxy_port)) as connection:
            connection.sendall(b"one")
            assert hears(connection, timeout_s=10) == b"one"
