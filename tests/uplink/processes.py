"""One cloud and one boat as real processes over mTLS, and how their disks are compared in the end."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.patience import block_until, patient
from tidelog.blocks.block import Block
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.cli.main import run
from tidelog.cluster.boats.channel import fold_log
from tidelog.edge.journal.journal import open_journal
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.recovery import open_store

Frames = dict[tuple[bytes, int], tuple[int, int, bytes]]
Process = subprocess.Popen[str]

NAME = "boat-001"
FULL_BUS = ("-simulate", "7", "-simulate-rate", "1800")
"""As much as a 250 kbit/s bus can carry."""
LAST_FRAME = "(1700000000.000000) can0 09F80203#0102030405060708\n"
UP_S = 30.0


class Parties:
    """One cloud and one boat on this machine, and their certificates. What they say is in *.log of the folder."""

    def __init__(self, folder: Path, *, data: Path | None = None) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.boat: Process | None = None
        self.cloud: Process | None = None
        self.port = 0
        self.dialed_port: int | None = None
        """Where the boat dials, if not at the cloud's own port."""
        ca = ["--ca", str(folder / "ca")]
        node = ["--node", "--server-name", "127.0.0.1"]
        for command in (
            ["init", str(folder / "ca")],
            ["issue", NAME, *ca, "--out", str(folder / "boat")],
            ["issue", "cloud-1", *node, *ca, "--out", str(folder / "cloud")],
        ):
            assert run(["ca", *command]) == 0
        (folder / "last.log").write_text(LAST_FRAME)

    def start_cloud(self, *settings: str) -> None:
        cloud = self.folder / "cloud"
        arguments = ["-http-listen", "off", "-grpc-listen", f"127.0.0.1:{self.port}", "-data-dir", str(self.data)]
        arguments += ["-tls-cert", str(cloud / "cloud-1.crt"), "-tls-key", str(cloud / "cloud-1.key")]
        arguments += ["-tls-client-ca", str(cloud / "client-ca.crt"), *settings]
        said_before = len(self.said("cloud"))
        self.cloud = self._start("cloud", arguments)
        block_until(lambda: self._is_up(said_before), deadline_s=UP_S, what="the cloud is up")

    def _is_up(self, said_before: int) -> bool:
        said = self.said("cloud")[said_before:]
        assert self.cloud is not None
        assert self.cloud.poll() is None, said
        found = re.search(r"port=(\d+)", said)
        self.port = int(found[1]) if found else self.port
        return found is not None

    def start_boat(self, *source: str) -> None:
        boat = self.folder / "boat"
        port = self.dialed_port or self.port
        arguments = [*source, "-http-listen", "off", "-journal-dir", str(self.folder / "journal")]
        arguments += ["-replication-target", f"127.0.0.1:{port}", "-replication-instance-id", NAME]
        arguments += ["-replication-tls-cert", str(boat / f"{NAME}.crt")]
        arguments += ["-replication-tls-key", str(boat / f"{NAME}.key")]
        arguments += ["-replication-tls-ca", str(boat / "ca.crt")]
        self.boat = self._start("boat", arguments)

    def _start(self, name: str, arguments: list[str]) -> Process:
        command = [sys.executable, "-m", "tidelog.cli", name, *arguments]
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, text=True)

    def said(self, name: str) -> str:
        """All that every boat or cloud of this folder has logged."""
        log = self.folder / f"{name}.log"
        return log.read_text() if log.exists() else ""

    def held_bytes(self) -> int:
        return sum(sizes_of(self.data))

    def wait_progress(self, size: int = 2_000, *, deadline_s: float = 60) -> None:
        """Wait until the cloud's folder has grown by so many bytes."""
        grown = self.held_bytes() + size

        def has_grown() -> bool:
            for name in ("boat", "cloud"):
                assert self.running(name).poll() is None, f"the {name} ended by itself: {self.said(name)[-1000:]}"
            return self.held_bytes() >= grown

        block_until(has_grown, deadline_s=deadline_s, what="progress")

    def running(self, name: str) -> Process:
        process = self.boat if name == "boat" else self.cloud
        assert process is not None
        return process

    def kill_and_restart(self, name: str) -> None:
        kill(self.running(name))
        if name == "boat":
            self.start_boat(*FULL_BUS)
        else:
            self.start_cloud()

    def pause(self, name: str, seconds: float) -> None:
        """Frozen, as by a full swap or a suspended laptop; nothing about it is told to anybody."""
        process = self.running(name)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def finish(self, *, deadline_s: float = 90) -> None:
        """Let the boat send what is left: a source that ends makes it stop once everything is acked."""
        kill(self.running("boat"))
        self.start_boat("-replay", str(self.folder / "last.log"), "-replay-speed", "0")
        assert self.running("boat").wait(timeout=patient(deadline_s)) == 0, self.said("boat")[-2000:]
        self.stop_cloud()

    def stop_cloud(self) -> None:
        self.running("cloud").send_signal(signal.SIGTERM)
        assert self.running("cloud").wait(timeout=patient(30)) == 0, self.said("cloud")[-2000:]

    def stop(self) -> None:
        for process in (self.boat, self.cloud):
            if process is not None:
                process.send_signal(signal.SIGCONT)
                kill(process)


def sizes_of(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile by its owner
            if path.is_file():
                yield path.stat().st_size


def kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait()


def open_files(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def seed_of_the_day(fallback: int, variable: str = "TIDELOG_TEST_SEED") -> int:
    """The seed to use, printed; a run is replayed by setting the variable to what was printed."""
    seed = int(os.environ.get(variable, fallback))
    print(f"{variable}={seed}")
    return seed


def live_through_kills(parties: Parties, rng: random.Random, rounds: int) -> None:
    """Kill the boat or the cloud, each time after it has made some progress."""
    for _ in range(rounds):
        parties.wait_progress(rng.randrange(2_000, 60_000))
        parties.kill_and_restart(rng.choice(["boat", "cloud"]))


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


def check_equal(parties: Parties, *, frames_min: int = 1_000) -> None:
    """Everything in the journal is in the cloud, once and unchanged, and nothing is missing there.

    The cloud may have more: what came by Live and was lost with the boat's memory. The boat has never used those
    seqs again.
    """
    now_us = wall_clock_us()
    journal = open_journal(OsDisk(parties.folder), "journal", now_us=now_us, new_lineage=lambda: bytes(16))
    store = open_store(OsDisk(parties.data), now_us=now_us)
    try:
        recorded = frames_of(journal.blocks())
        log = store.log(NAME, now_us=now_us)
        held = frames_of(log.blocks())
        assert len(recorded) > frames_min
        missing = {key for key, row in recorded.items() if held.get(key) != row}
        assert not missing, f"{len(missing)} of {len(recorded)} frames are not in the cloud as they were recorded"
        beyond = {seq for _, seq in held.keys() - recorded.keys()}
        assert not beyond & {seq for _, seq in recorded}
        fold = fold_log(log.blocks())
        fold.check()
        for lineage in fold.lineages.values():
            assert not lineage.holes()
            assert not lineage.lost, "nothing is lost while the boat has its journal"
    finally:
        store.close(now_us)
        journal.close(now_us)


class CloudProcess:
    """A real cloud for the certificates of a `Fleet`, to be attacked and measured."""

    def __init__(self, folder: Path, *, node: tuple[bytes, bytes], boats_authority: bytes) -> None:
        self.folder = folder
        self.port = 0
        self._files = {"tls-cert": node[0], "tls-key": node[1], "tls-client-ca": boats_authority}
        for name, content in self._files.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)

    def start(self, *settings: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tidelog.cli",
            "cloud",
            "-http-listen",
            "off",
            "-grpc-listen",
            f"127.0.0.1:{self.port}",
        ]
        command += ["-data-dir", str(self.folder / "data"), *settings]
        for name in self._files:
            command += [f"-{name}", str(self.folder / name)]
        with (self.folder / "cloud.log").open("w") as log:
            self.process: Process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, text=True)
        block_until(self._is_up, deadline_s=UP_S, what="the cloud is up")

    def _is_up(self) -> bool:
        said = self.said()
        assert self.process.poll() is None, said
        found = re.search(r"port=(\d+)", said)
        self.port = int(found[1]) if found else 0
        return found is not None

    def said(self) -> str:
        return (self.folder / "cloud.log").read_text()

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """The most that was resident since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=patient(30)) == 0, self.said()

    def kill(self) -> None:
        kill(self.process)
