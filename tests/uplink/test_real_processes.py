"""Boat and cloud as real processes over mTLS, killed at random: nothing durable is lost, nothing counts twice."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.blocks.block import Block
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.cli.main import run
from tidelog.edge.journal import open_journal
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store import open_store
from tidelog.storage.writer import wall_clock_us

Frames = dict[tuple[bytes, int], tuple[int, int, bytes]]

LAST_FRAME = "(1700000000.000000) can0 09F80203#0102030405060708\n"


class Parties:
    """One cloud and one boat on this machine, and their certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boat: subprocess.Popen[str] | None = None
        self.cloud: subprocess.Popen[str] | None = None
        self.port = 0
        ca = ["--ca", str(folder / "ca")]
        node = ["--node", "--server-name", "127.0.0.1"]
        for command in (
            ["init", str(folder / "ca")],
            ["issue", "boat-001", *ca, "--out", str(folder / "boat")],
            ["issue", "cloud-1", *node, *ca, "--out", str(folder / "cloud")],
        ):
            assert run(["ca", *command]) == 0
        (folder / "last.log").write_text(LAST_FRAME)

    def start_cloud(self) -> None:
        cloud = self.folder / "cloud"
        arguments = ["-grpc-listen", f"127.0.0.1:{self.port}", "-data-dir", str(self.folder / "data")]
        arguments += ["-tls-cert", str(cloud / "cloud-1.crt"), "-tls-key", str(cloud / "cloud-1.key")]
        arguments += ["-tls-client-ca", str(cloud / "client-ca.crt")]
        self.cloud = self._start("cloud", arguments)
        assert self.cloud.stderr is not None
        line = self.cloud.stderr.readline()
        found = re.search(r"port=(\d+)", line)
        assert found, line
        self.port = int(found[1])

    def start_boat(self, *source: str) -> None:
        boat = self.folder / "boat"
        arguments = [*source, "-journal-dir", str(self.folder / "journal")]
        arguments += ["-replication-target", f"127.0.0.1:{self.port}", "-replication-instance-id", "boat-001"]
        arguments += ["-replication-tls-cert", str(boat / "boat-001.crt")]
        arguments += ["-replication-tls-key", str(boat / "boat-001.key")]
        arguments += ["-replication-tls-ca", str(boat / "ca.crt")]
        self.boat = self._start("boat", arguments)

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tidelog.cli", name, *arguments]
        log = subprocess.PIPE if name == "cloud" else subprocess.DEVNULL
        return subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, text=True)

    def held_bytes(self, name: str) -> int:
        return sum(file.stat().st_size for file in _files(self.folder / name))

    def stop(self) -> None:
        for process in (self.boat, self.cloud):
            if process is not None:
                process.kill()
                process.wait()
                if process.stderr is not None:
                    process.stderr.close()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield path
        except FileNotFoundError:  # removed meanwhile by its owner
            continue


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {deadline_s} s"
        time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def frames_of(blocks: Iterator[Block]) -> Frames:
    """Every counted frame; a (lineage, seq) that counts twice is an error."""
    found: Frames = {}
    for block in blocks:
        if block.maker.kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
            seqs = [seq for part in block.counted_seqs() for seq in part]
            for seq, row in zip(seqs, counted_frames(block).rows(), strict=True):
                key = (bytes(block.maker.producer), seq)
                assert key not in found, f"seq {seq} counts twice"
                found[key] = row
    return found


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    both = Parties(tmp_path)
    yield both
    both.stop()


def live_through_kills(parties: Parties, rng: random.Random, rounds: int) -> None:
    """Kill the boat or the cloud, each time after it has made some progress."""
    for _ in range(rounds):
        victim = rng.choice(["boat", "cloud"])
        grown = parties.held_bytes("data") + rng.randrange(2_000, 60_000)
        wait_until(lambda: parties.held_bytes("data") >= grown, deadline_s=60, what="progress")  # noqa: B023
        if victim == "boat":
            assert parties.boat is not None
            kill(parties.boat)
            parties.start_boat("-simulate", "7", "-simulate-rate", "1800")
        else:
            assert parties.cloud is not None
            kill(parties.cloud)
            parties.start_cloud()


def check_equal(parties: Parties) -> None:
    """Everything in the journal is in the cloud, once and unchanged; what the cloud has beyond is void on the boat."""
    now_us = wall_clock_us()
    journal = open_journal(OsDisk(parties.folder), "journal", now_us=now_us, new_lineage=lambda: bytes(16))
    store = open_store(OsDisk(parties.folder / "data"), now_us=now_us)
    try:
        recorded = frames_of(journal.blocks())
        held = frames_of(store.log("boat-001", now_us=now_us).blocks())
        assert len(recorded) > 1_000
        missing = {key for key, row in recorded.items() if held.get(key) != row}
        assert not missing, f"{len(missing)} of {len(recorded)} frames are not in the cloud as they were recorded"
        beyond = {seq for _, seq in held.keys() - recorded.keys()}
        durable = {seq for _, seq in recorded}
        assert not beyond & durable
    finally:
        store.close(now_us)
        journal.close(now_us)


def finish(parties: Parties) -> None:
    """Let the boat send what is left: a source that ends makes it stop once everything is acked."""
    assert parties.boat is not None
    kill(parties.boat)
    parties.start_boat("-replay", str(parties.folder / "last.log"), "-replay-speed", "0")
    assert parties.boat.wait(timeout=90) == 0
    assert parties.cloud is not None
    parties.cloud.send_signal(signal.SIGTERM)
    assert parties.cloud.wait(timeout=30) == 0


@pytest.mark.parametrize("seed", [pytest.param(11, id="fast"), pytest.param(12, marks=pytest.mark.slow, id="slow")])
def test_kills_of_boat_and_cloud_lose_nothing_and_double_nothing(parties: Parties, seed: int) -> None:
    print(f"seed {seed}")
    rounds = 5 if seed == 11 else 40
    parties.start_cloud()
    parties.start_boat("-simulate", "7", "-simulate-rate", "1800")
    live_through_kills(parties, random.Random(seed), rounds)
    finish(parties)
    check_equal(parties)
