"""The peer of our benchmarks is real, promises what we promise, is counted right, and is gone afterwards."""

from __future__ import annotations

import asyncio
import functools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.nats import load as nats_load
from benchmarks.nats import peer as nats_peer
from benchmarks.nats.client import (
    AtomicPump,
    FastPump,
    NatsClient,
    NatsLost,
    NatsRefused,
    NobodyThere,
    Pump,
    Rate,
    SinglePump,
)
from benchmarks.nats.load import NatsBatched, Strike, Way
from benchmarks.nats.peer import NatsPeer, ServerEnded

from tests.patience import patient
from tidelog.errors import InvalidConfig, WaitTimedOut

GONE_S = 30.0

ORPHANS = """
import sys, time
from pathlib import Path
from benchmarks.nats.peer import NatsPeer

with NatsPeer(Path(sys.argv[1])) as peer:
    peer.start_all()
    print(*[node.process.pid for node in peer.nodes.values()], flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsPeer]:
    with NatsPeer(tmp_path_factory.mktemp("nats")) as started:
        started.start_all()
        started.wait_formed()
        yield started


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        asyncio.run(test(*args, **named))

    return run


def is_alive(pid: int) -> bool:
    """A process that nobody has waited for yet counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def tasks_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))


def wait_gone(pids: list[int]) -> None:
    end = time.monotonic() + patient(GONE_S)
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end, f"still there: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.02)


# --- the servers ---------------------------------------------------------------------------------------------


def test_every_server_syncs_before_it_acknowledges(peer: NatsPeer) -> None:
    for name in peer.nodes:
        page = peer.monitor(name, "/jsz?config=1")
        assert page is not None
        assert page["config"]["sync_always"] is True
        assert page["meta_cluster"]["cluster_size"] == 3


@in_loop
async def test_a_stream_has_a_copy_in_files_on_every_server(peer: NatsPeer) -> None:
    await peer.create_stream("copies")
    leader = await asyncio.to_thread(peer.wait_stream, "copies")
    client = await peer.connect(leader)
    try:
        info = await client.ask("$JS.API.STREAM.INFO.copies", None, timeout_s=10.0)
    finally:
        client.close()
    assert info["config"]["num_replicas"] == 3
    assert info["config"]["storage"] == "file"
    assert info["cluster"]["leader"] == leader
    for name in peer.nodes:
        assert list((peer.folder / name / "store").rglob("streams/copies")), f"no files at {name}"


class Pages(NatsPeer):
    """Servers whose monitoring pages are made up."""

    def __init__(self, folder: Path, leaders: dict[str, str], *, behind: str = "") -> None:
        super().__init__(folder)
        self._leaders = leaders
        self._behind = behind

    @property
    def running(self) -> list[str]:
        return list(self._leaders)

    def monitor(self, name: str, path: str) -> dict[str, Any] | None:
        others = [{"name": other, "current": other != self._behind} for other in self.nodes if other != name]
        group = {"leader": self._leaders[name], "replicas": others}
        return {"account_details": [{"stream_detail": [{"name": "s", "cluster": group}]}]}


def test_a_resumed_server_that_takes_itself_for_the_leader_is_not_believed(tmp_path: Path) -> None:
    agreed = {"nats1": "nats2", "nats2": "nats2", "nats3": "nats2"}
    assert Pages(tmp_path, agreed).stream_leader("s", whole=True) == "nats2"
    assert Pages(tmp_path, agreed | {"nats1": "nats1"}).stream_leader("s") is None
    assert Pages(tmp_path, agreed).stream_leader("other") is None
    # The two that are left may both still name the one that is gone.
    assert Pages(tmp_path, {"nats1": "nats2", "nats3": "nats2"}).stream_leader("s") is None


def test_a_stream_is_whole_when_every_copy_has_caught_up(tmp_path: Path) -> None:
    agreed = {"nats1": "nats2", "nats2": "nats2", "nats3": "nats2"}
    assert Pages(tmp_path, agreed, behind="nats3").stream_leader("s") == "nats2"
    assert Pages(tmp_path, agreed, behind="nats3").stream_leader("s", whole=True) is None


def test_a_paused_server_does_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    with NatsPeer(tmp_path) as peer:
        peer.start_all()
        peer.wait_formed()
        for _ in range(3):
            peer.pause("nats2")
            assert peer.running == ["nats1", "nats3"]
            process = peer.nodes["nats2"].process
            assert process is not None
            states = [task.read_text().rpartition(")")[2].split()[0] for task in tasks_of(process.pid)]
            assert set(states) == {"T"}
            peer.resume("nats2")
        assert peer.wait_formed() in peer.nodes


def test_a_server_that_ends_by_itself_is_noticed_at_once(tmp_path: Path) -> None:
    with NatsPeer(tmp_path) as peer:
        # Two servers cannot have one port: the later one gives up.
        first, second, _ = peer.nodes.values()
        second.port = first.port
        peer.start_all()
        with pytest.raises(ServerEnded, match="address already in use"):
            peer.wait_formed()


def test_without_the_program_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConfig, match="make setup"):
        nats_peer.nats_server_path()


def test_nothing_runs_after_close_also_what_was_paused(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with NatsPeer(tmp_path) as peer:
            peer.start_all()
            pids.extend(node.process.pid for node in peer.nodes.values() if node.process is not None)
            peer.pause("nats2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 3
    assert not any(is_alive(pid) for pid in pids)


def test_servers_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHANS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        starter.send_signal(signal.SIGKILL)
        starter.wait(patient(GONE_S))
        wait_gone(pids)


# --- counting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 1024])
@in_loop
async def test_every_counted_ack_is_a_record_of_the_stream(peer: NatsPeer, size: int) -> None:
    # Each of them compares the count with what the stream holds (NL1).
    single = await nats_load.nats_single(peer, size=size, in_flight=100, seconds=0.2, warm_up_s=0.0)
    assert single.records > 0
    batched = await nats_load.nats_batched(peer, size=size, records=8, requests=4, seconds=0.2, warm_up_s=0.0)
    assert batched.rates.keys() == set(nats_load.WAYS)
    assert all(rate.records > 0 for rate in batched.rates.values())
    assert all(rate.acked % 8 == 0 for rate in batched.rates.values()), "whole requests"


@pytest.mark.parametrize("way", ["single", "atomic", "fast"])
@in_loop
async def test_no_ack_comes_while_the_other_copies_are_frozen(peer: NatsPeer, way: str) -> None:
    """In every way of publishing an ack is the word of a majority, or the comparison would not be one."""
    stream = f"frozen-{way}"
    await peer.create_stream(stream, allow_atomic=way == "atomic", allow_batched=way == "fast")
    leader = await asyncio.to_thread(peer.wait_stream, stream)
    pumps: dict[str, Pump] = {
        "single": SinglePump(subject=stream, size=8, in_flight=64),
        "atomic": AtomicPump(subject=stream, size=8, requests=8, records=8),
        "fast": FastPump(subject=stream, size=8, requests=8, records=8),
    }
    client = await peer.connect(leader)
    others = [name for name in peer.nodes if name != leader]
    for name in others:
        peer.pause(name)
    running = asyncio.create_task(client.run(pumps[way], seconds=600.0))
    try:
        done, _ = await asyncio.wait({running}, timeout=0.5)
        assert not done, running.exception()
        assert pumps[way].acked == 0
    finally:
        running.cancel()
        await asyncio.wait({running})
        client.close()
        for name in others:
            peer.resume(name)
        await asyncio.to_thread(peer.wait_formed)


@in_loop
async def test_a_wrong_count_is_noticed(peer: NatsPeer) -> None:
    class Twice(SinglePump):
        """Counts every ack twice at its end."""

        def stop(self) -> bytes:
            self.acked += 1
            self._sent += 1
            return super().stop()

    with pytest.raises(nats_load.CountsDiffer):
        await nats_load._rate(
            peer, lambda stream: Twice(subject=stream, size=8, in_flight=4), seconds=0.05, warm_up_s=0.0
        )


@in_loop
async def test_latency_is_of_one_publish_at_a_time(peer: NatsPeer) -> None:
    latency = await nats_load.nats_latency(peer, size=64, seconds=0.2, warm_up_s=0.0)
    assert latency.publishes > 0
    assert 0 < latency.p50_ms <= latency.p99_ms


def test_the_fastest_way_is_the_one_to_compare_with() -> None:
    rates: dict[Way, Rate] = {
        "pipelined": Rate(records=10, seconds=1.0, acked=10),
        "atomic": Rate(records=30, seconds=2.0, acked=30),
        "fast": Rate(records=12, seconds=1.0, acked=12),
    }
    batched = NatsBatched(rates)
    assert batched.best_way == "atomic"
    assert batched.best.records_per_s == 15.0


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["single", "atomic", "fast"])
@in_loop
async def test_a_refusal_ends_the_pump_and_counts_nothing(peer: NatsPeer, way: str) -> None:
    """A stream that allows no batches, and none but tiny records."""
    stream = f"refuses-{way}"
    await peer.create_stream(stream, max_msg_size=10)
    pumps: dict[str, Pump] = {
        "single": SinglePump(subject=stream, size=64, in_flight=4),
        "atomic": AtomicPump(subject=stream, size=8, requests=1, records=4),
        "fast": FastPump(subject=stream, size=8, requests=1, records=4),
    }
    client = await peer.connect(await asyncio.to_thread(peer.wait_stream, stream))
    try:
        with pytest.raises(NatsRefused, match="error"):
            await client.run(pumps[way], seconds=20.0)
    finally:
        client.close()
    assert pumps[way].acked == 0
    assert await peer.stream_records(stream) == 0


@in_loop
async def test_a_subject_that_nobody_takes_is_refused_at_once(peer: NatsPeer) -> None:
    client = await peer.connect("nats1")
    try:
        with pytest.raises(NobodyThere):
            await client.publish("nobody", b"x", timeout_s=20.0)
        with pytest.raises(NatsRefused, match="503"):
            await client.run(SinglePump(subject="nobody", size=8, in_flight=2), seconds=20.0)
    finally:
        client.close()


@in_loop
async def test_an_error_of_the_api_is_raised(peer: NatsPeer) -> None:
    with pytest.raises(NatsRefused, match="stream not found"):
        await peer.stream_records("unknown")


# --- the client alone ----------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        pass


class Told(SinglePump):
    """Says when it was stopped."""

    def __init__(self, *, subject: str, size: int, in_flight: int, records: int) -> None:
        super().__init__(subject=subject, size=size, in_flight=in_flight, records=records)
        self.stopped = asyncio.Event()

    def stop(self) -> bytes:
        self.stopped.set()
        return super().stop()


def greeted_client() -> tuple[NatsClient, Wire, bytes]:
    """A client whose handshake is done, what it writes, and its inbox."""
    client, wire = NatsClient(), Wire()
    client.connection_made(wire)
    client.data_received(b'INFO {"server_name":"x"}\r\n')
    client.data_received(b"PONG\r\n")
    inbox = wire.written.partition(b"SUB ")[2].partition(b".> ")[0]
    wire.written = b""
    return client, wire, inbox


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_answers_are_read_however_the_stream_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    client, wire, inbox = greeted_client()
    asked = [asyncio.create_task(client.request("s", b"x", timeout_s=30.0)) for _ in range(3)]
    await asyncio.sleep(0)
    coming = b"MSG %b.2 1 9\r\nMSG x\r\n\r\n\r\nPING\r\n" % inbox
    header = b"NATS/1.0\r\nA:b\r\n\r\n"
    coming += b"HMSG %b.1 1 %d %d\r\n%bhi\r\n" % (inbox, len(header), len(header) + 2, header)
    coming += b"MSG %b.9 1 1\r\n!\r\n+OK\r\nMSG %b.3 1 0\r\n\r\n" % (inbox, inbox)
    while coming:
        size = rng.randint(1, 12)
        client.data_received(coming[:size])
        coming = coming[size:]
    assert await asyncio.gather(*asked) == [b"hi", b"MSG x\r\n\r\n", b""], f"seed {seed}"
    assert wire.written.count(b"PUB s ") == 3
    assert wire.written.endswith(b"PONG\r\n")


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_a_pump_keeps_its_window_however_the_acks_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    client, wire, inbox = greeted_client()
    pump = Told(subject="s", size=3, in_flight=8, records=4)
    ack = b'MSG %b.s 1 22\r\n{"stream":"S","seq":9}\r\n' % inbox
    running = asyncio.create_task(client.run(pump, seconds=0.0))
    await asyncio.sleep(0)
    coming = ack * 40
    while coming:
        size = rng.randint(1, 200)
        client.data_received(coming[:size])
        coming = coming[size:]
        published = wire.written.count(b"PUB s ")
        assert 4 < published - pump.acked <= 8, f"seed {seed}"
        assert published % 4 == 0, f"seed {seed}"
    assert pump.acked == 40, f"seed {seed}"
    assert wire.written.count(b"PUB s ") == 48, f"seed {seed}"
    # Nothing is sent for what comes after its time is up.
    await pump.stopped.wait()
    client.data_received(ack * 8)
    rate = await running
    assert rate.acked == wire.written.count(b"PUB s ") == 48, f"seed {seed}"


@in_loop
async def test_a_lost_connection_ends_every_wait() -> None:
    client, _, _ = greeted_client()
    asked = asyncio.create_task(client.request("s", b"x", timeout_s=600.0))
    await asyncio.sleep(0)
    client.connection_lost(None)
    with pytest.raises(NatsLost):
        await asked
    with pytest.raises(NatsLost):
        await client.request("s", b"x", timeout_s=600.0)
    with pytest.raises(NatsLost):
        await client.run(SinglePump(subject="s", size=3, in_flight=8), seconds=600.0)


@in_loop
async def test_a_silent_server_ends_in_a_timeout() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        with pytest.raises(WaitTimedOut):
            await NatsClient.connect("127.0.0.1", server.sockets[0].getsockname()[1], timeout_s=0.05)
    client, _, _ = greeted_client()
    with pytest.raises(WaitTimedOut):
        await client.request("s", b"x", timeout_s=0.05)


# --- failover ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
@in_loop
async def test_a_struck_leader_is_replaced_and_comes_back(peer: NatsPeer, how: Strike) -> None:
    failovers = await nats_load.nats_failover(peer, rounds=2, how=how)
    assert len(failovers.seconds) == 2
    # An ack before any election could happen would be one of the old leader.
    assert min(failovers.seconds) > 0.1
    assert failovers.p50_s <= failovers.max_s
    assert sorted(peer.running) == sorted(peer.nodes)
