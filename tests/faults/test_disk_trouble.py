"""A boat, a cloud and a node as real processes on a disk that is full or fails: what they say, and how they end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.faulty_disk import CREATE, READ_ONLY, SPACE, SYNC, WRITE, FaultyDisk
from tests.patience import block_until, patient
from tests.ports import free_port

DEADLINE_S = 30.0


class Party:
    """A process on a disk that can be made to fail; what it says lies in a file."""

    def __init__(self, folder: Path, name: str, *settings: str) -> None:
        self.data = folder / "data"
        self.disk = FaultyDisk(folder / "control", self.data)
        self.port = free_port()
        http = ["-http-listen", f"127.0.0.1:{self.port}", "-http-anonymous"]
        self._command = [sys.executable, "-m", "tidelog.cli", name, *settings, *http]
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stderr=log, stdout=log, env=os.environ | self.disk.environment
            )

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def ask(self, path: str) -> tuple[int, Any]:
        """Status and body; (0, None) while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                body, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            body, status = error.read(), error.code
        except OSError:
            return 0, None
        return status, json.loads(body) if body.startswith(b"{") else body.decode()

    def wait_health(self, status: int) -> Any:
        found: Any = None

        def is_there() -> bool:
            nonlocal found
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            code, found = self.ask("/healthz")
            return code == status

        block_until(is_there, deadline_s=DEADLINE_S, what=f"health {status}; {self.said()[-2_000:]}")
        return found

    def wait_said(self, words: str) -> None:
        block_until(lambda: words in self.said(), deadline_s=DEADLINE_S, what=f"{words!r} in {self.said()[-2_000:]}")

    def metric(self, name: str) -> float:
        _, text = self.ask("/metrics")
        found = re.search(rf"^{name} ([0-9.e+]+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def wait_ended(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=patient(DEADLINE_S))

    def terminate(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended()


Parties = Callable[..., Party]


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    with contextlib.ExitStack() as stack:

        def make(name: str, *settings: str) -> Party:
            party = Party(tmp_path, name, *settings)

            def end() -> None:
                if party.process is not None and party.process.poll() is None:
                    party.process.kill()
                    party.process.wait()

            stack.callback(end)
            return party

        yield make


def boat(parties: Parties, tmp_path: Path, *more: str) -> Party:
    bus = ("-simulate", "7", "-simulate-rate", "1800")
    return parties("boat", *bus, "-journal-dir", str(tmp_path / "data" / "journal"), *more)


def node(parties: Parties, tmp_path: Path) -> Party:
    port = free_port()
    place = f"127.0.0.1:{port}"
    return parties(
        "node", "-id", "n1", "-listen", place, "-peers", f"n1={place}", "-data-dir", str(tmp_path / "data"),
        "-insecure-dev",
    )  # fmt: skip


def cloud(parties: Parties, tmp_path: Path) -> Party:
    settings = ("-insecure-dev", "-grpc-listen", "127.0.0.1:0", "-data-dir", str(tmp_path / "data"))
    return parties("cloud", *settings)


# --- a boat ----------------------------------------------------------------------------------------------------


def test_a_boat_whose_disk_is_full_is_unwell_from_the_first_failed_write(parties: Parties, tmp_path: Path) -> None:
    party = boat(parties, tmp_path)
    party.start()
    party.wait_health(200)
    block_until(lambda: party.metric("tidelog_journal_durable_head_seq") > 0, deadline_s=DEADLINE_S, what="a flush")
    party.disk.fill()
    answer = party.wait_health(503)
    assert "No space left on device" in answer["detail"]
    assert "frames are in memory only (at most 262144)" in answer["detail"]
    assert party.ask("/readyz")[0] == 503
    assert party.metric("tidelog_journal_writable") == 0
    assert party.metric("tidelog_journal_frames_buffered") > 0
    hits = party.disk.hits
    block_until(lambda: party.disk.hits > hits + 3, deadline_s=DEADLINE_S, what="more failed writes")
    party.disk.heal()
    party.wait_health(200)
    party.wait_said("the disk takes frames again")
    assert party.metric("tidelog_journal_writable") == 1
    said = party.said()
    assert said.count("nothing reaches the disk reason=") == 1, said
    assert said.count("the disk takes frames again") == 1, said
    assert party.terminate() == 0, party.said()


def test_a_boat_that_cannot_seal_its_journal_says_so_and_goes_on_recording(parties: Parties, tmp_path: Path) -> None:
    """What is recorded reaches the fresh log; only the sealed one is struck, and would never be heard of."""
    party = boat(parties, tmp_path, "-journal-block-size", "4096")
    party.start()
    sealed = tmp_path / "data" / "journal" / "sealed"
    block_until(lambda: any(file.stat().st_size > 8192 for file in sealed.glob("*.seg")), deadline_s=DEADLINE_S,
               what="a sealed block")  # fmt: skip
    assert party.wait_health(200)["status"] == "ok"
    party.disk.strike(errno.EIO, WRITE | CREATE, part="/sealed/")
    answer = party.wait_health(503)
    assert "the journal cannot be sealed" in answer["detail"]
    assert "Input/output error" in answer["detail"]
    assert party.ask("/readyz")[0] == 200, "it records"
    assert party.metric("tidelog_journal_in_order") == 0
    assert party.metric("tidelog_journal_writable") == 1
    durable = party.metric("tidelog_journal_durable_head_seq")
    hits = party.disk.hits
    block_until(
        lambda: party.disk.hits > hits + 1 and party.metric("tidelog_journal_durable_head_seq") > durable,
        deadline_s=DEADLINE_S,
        what="more failed seals, and more frames on the disk",
    )
    party.disk.heal()
    party.wait_health(200)
    party.wait_said("the journal is kept in order again")
    said = party.said()
    assert said.count("the journal is not kept in order reason=") == 1, said
    assert said.count("the journal is kept in order again") == 1, said
    assert "nothing reaches the disk" not in said
    assert party.metric("tidelog_journal_in_order") == 1
    assert party.metric("lplex_journal_drops_total") == 0
    assert party.terminate() == 0, party.said()


@pytest.mark.slow
def test_frames_beyond_the_buffer_are_dropped_counted_and_said_once(parties: Parties, tmp_path: Path) -> None:
    """Where not even the next seqs can be leased, the limit is what was leased."""
    party = boat(parties, tmp_path)
    party.start()
    block_until(
        lambda: party.ask("/healthz")[0] == 200 and party.metric("tidelog_journal_durable_head_seq") > 0,
        deadline_s=DEADLINE_S,
        what="a flush",
    )
    party.disk.fill()
    party.wait_health(503)
    block_until(lambda: party.metric("lplex_journal_drops_total") > 0, deadline_s=DEADLINE_S, what="a dropped frame")
    dropped = int(re.findall(r"(\d+) were dropped so far", party.wait_health(503)["detail"])[0])
    assert dropped > 0
    assert party.said().count("frames are dropped reason=") == 1
    party.disk.heal()
    party.wait_health(200)
    assert party.terminate() == 0


@pytest.mark.slow
def test_a_boat_that_starts_on_a_full_disk_waits_and_goes_on_by_itself(parties: Parties, tmp_path: Path) -> None:
    party = boat(parties, tmp_path)
    party.data.mkdir()
    party.disk.fill()
    party.start()
    answer = party.wait_health(503)
    assert "the disk is full" in answer["detail"]
    assert party.ask("/livez")[0] == 200
    party.disk.heal()
    party.wait_health(200)
    assert "there is room again" in party.said()
    assert party.terminate() == 0, party.said()


def test_a_boat_whose_sync_fails_ends_with_the_code_of_the_disk(parties: Parties, tmp_path: Path) -> None:
    party = boat(parties, tmp_path)
    party.start()
    party.wait_health(200)
    party.disk.strike(errno.EIO, SYNC)
    assert party.wait_ended() == 74, party.said()
    last = party.said().splitlines()[-1]
    assert last.startswith("tidelog: the disk failed: "), party.said()
    assert "restart" in last
    assert "Traceback" not in party.said()
    party.disk.heal()
    party.start()
    party.wait_health(200)
    assert party.terminate() == 0, party.said()


@pytest.mark.slow
def test_a_boat_keeps_frames_through_write_errors(parties: Parties, tmp_path: Path) -> None:
    """An error of a write that was undone is no reason to stop recording."""
    party = boat(parties, tmp_path)
    party.start()
    party.wait_health(200)
    party.disk.strike(errno.EIO, WRITE | CREATE)
    assert "Input/output error" in party.wait_health(503)["detail"]
    party.disk.heal()
    party.wait_health(200)
    assert party.metric("lplex_journal_drops_total") == 0
    assert party.terminate() == 0, party.said()


# --- a node and a cloud ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [node, pytest.param(cloud, marks=pytest.mark.slow)])
def test_a_full_disk_is_said_waited_for_and_left_behind(
    make: Callable[[Parties, Path], Party], parties: Parties, tmp_path: Path
) -> None:
    party = make(parties, tmp_path)
    party.data.mkdir()
    party.disk.fill()
    party.start()
    assert "the disk is full" in party.wait_health(503)["detail"]
    party.disk.heal()
    party.wait_health(200)
    assert party.said().count("the disk is full reason=") == 1, party.said()
    # Only the reserve is left: it runs, and says that it takes nothing.
    party.disk.strike(errno.ENOSPC, SPACE)
    assert "kept in reserve" in party.wait_health(503)["detail"]
    party.disk.heal()
    party.wait_health(200)
    assert party.said().count("the disk takes no records reason=") == 1, party.said()
    assert party.said().count("the disk takes records again") == 1, party.said()
    assert party.terminate() == 0, party.said()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "mask", "words"),
    [(errno.EIO, SYNC, "Input/output error"), (errno.EROFS, READ_ONLY, "Read-only file system")],
)
def test_a_node_that_starts_on_a_broken_disk_ends_with_its_code(
    error: int, mask: int, words: str, parties: Parties, tmp_path: Path
) -> None:
    party = node(parties, tmp_path)
    party.data.mkdir()
    party.disk.strike(error, mask)
    party.start()
    assert party.wait_ended() == 74, party.said()
    (line,) = party.said().splitlines()
    assert words in line
    assert line.startswith("tidelog: the disk failed: ")
    party.disk.heal()
    party.start()
    party.wait_health(200)
    assert party.terminate() == 0, party.said()


@pytest.mark.slow
def test_who_is_told_to_stop_while_it_waits_stops(parties: Parties, tmp_path: Path) -> None:
    party = node(parties, tmp_path)
    party.data.mkdir()
    party.disk.fill()
    party.start()
    party.wait_health(503)
    assert party.terminate() == 0, party.said()


@pytest.mark.slow
@pytest.mark.parametrize("make", [node, boat])
def test_who_is_told_to_stop_on_a_full_disk_does_not_wait_and_says_so(
    make: Callable[[Parties, Path], Party], parties: Parties, tmp_path: Path
) -> None:
    party = make(parties, tmp_path)
    party.start()
    party.wait_health(200)
    party.disk.strike(errno.ENOSPC, WRITE | CREATE)
    assert party.terminate() == 74, party.said()
    assert "No space left on device" in party.said().splitlines()[-1]
    assert "Traceback" not in party.said()
    party.disk.heal()
    party.start()
    party.wait_health(200)
    assert party.terminate() == 0, party.said()


@pytest.mark.slow
def test_a_boat_on_a_disk_that_became_read_only_ends_with_the_code_of_the_disk(
    parties: Parties, tmp_path: Path
) -> None:
    party = boat(parties, tmp_path)
    party.start()
    party.wait_health(200)
    party.disk.strike(errno.EROFS, READ_ONLY)
    assert party.wait_ended() == 74, party.said()
    assert "Read-only file system" in party.said().splitlines()[-1]
