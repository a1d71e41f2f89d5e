"""Real processes under everything at once: kills, pauses, a link that cuts and swallows, a full disk.

A run is replayed with the seed it printed: TIDELOG_TEST_SEED=<seed>. What the operating system schedules is not
part of the seed, so a replay is close and not exact.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import block_until
from tests.uplink.processes import FULL_BUS, Parties, check_equal, kill, seed_of_the_day
from tests.uplink.proxy import LinkProxy

PROGRESS_S = 60.0


@contextlib.contextmanager
def linked(folder: Path, *, data: Path | None = None) -> Iterator[tuple[Parties, LinkProxy]]:
    """A cloud, and a boat that reaches it through a link of the test's own."""
    parties = Parties(folder, data=data)
    try:
        parties.start_cloud()
        with LinkProxy(parties.port).running() as proxy:
            parties.dialed_port = proxy.port
            parties.start_boat(*FULL_BUS)
            parties.wait_progress(deadline_s=PROGRESS_S)
            yield parties, proxy
    finally:
        parties.stop()


class Storm:
    """One fault after the other, drawn from a generator."""

    def __init__(self, parties: Parties, proxy: LinkProxy, rng: random.Random) -> None:
        self._parties = parties
        self._proxy = proxy
        self._rng = rng
        self.faults: list[str] = []
        self._acts: dict[str, Callable[[], None]] = {
            "kill the boat": lambda: parties.kill_and_restart("boat"),
            "kill the cloud": lambda: parties.kill_and_restart("cloud"),
            "cut": proxy.cut,
            "swallow up": lambda: self._swallow(up=True, down=False),
            "swallow down": lambda: self._swallow(up=False, down=True),
            "swallow both": lambda: self._swallow(up=True, down=True),
            "refuse": self._refuse,
            "delay": lambda: proxy.delay(rng.uniform(0.01, 0.2)),
            "pause the boat": lambda: parties.pause("boat", rng.uniform(0.1, 1.0)),
            "pause the cloud": lambda: parties.pause("cloud", rng.uniform(0.1, 1.0)),
        }

    def blow(self, seconds: float) -> None:
        """Each fault once in random order, and again, until the time is over."""
        end = time.monotonic() + seconds
        while True:
            for fault in self._rng.sample(sorted(self._acts), len(self._acts)):
                self.faults.append(fault)
                self._acts[fault]()
                time.sleep(self._rng.uniform(0.0, 0.6))
                if time.monotonic() >= end:
                    self._proxy.heal()
                    return

    def _swallow(self, *, up: bool, down: bool) -> None:
        self._proxy.swallow(up=up, down=down)
        time.sleep(self._rng.uniform(0.1, 1.0))
        self._proxy.heal()

    def _refuse(self) -> None:
        self._proxy.refuse()
        time.sleep(self._rng.uniform(0.1, 1.0))
        self._proxy.heal()


@pytest.mark.parametrize(
    ("seconds", "seed"), [pytest.param(10, 1, id="fast"), pytest.param(60, 2, id="slow", marks=pytest.mark.slow)]
)
def test_kills_pauses_and_a_bad_link_lose_nothing_and_double_nothing(tmp_path: Path, seconds: int, seed: int) -> None:
    rng = random.Random(seed_of_the_day(seed))
    with linked(tmp_path) as (parties, proxy):
        storm = Storm(parties, proxy, rng)
        storm.blow(seconds)
        print(storm.faults)
        parties.finish()
        check_equal(parties)
        assert len(storm.faults) >= 5
        assert proxy.connections >= 2, "the storm broke the link at least once"


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["boat", "cloud"])
def test_a_side_that_is_frozen_for_longer_than_the_silence_limit_loses_nothing(tmp_path: Path, frozen: str) -> None:
    """Nobody is told; the boat finds out by silence, or by its own clock when it wakes up."""
    with linked(tmp_path) as (parties, _):
        parties.pause(frozen, 32)
        block_until(lambda: "uplink down" in parties.said("boat"), deadline_s=10, what="the boat gave up the link")
        assert "no answer" in parties.said("boat")
        parties.wait_progress(deadline_s=PROGRESS_S)
        parties.finish()
        check_equal(parties)


@contextlib.contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    """A file system of this size; the test is skipped, in words, where mounting is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all the room there is."""
    chunk = bytes(64 * 1024)
    with path.open("wb") as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(chunk)
            ballast.flush()


def wait_refused_for_room(parties: Parties, times: int) -> None:
    def is_told() -> bool:
        return parties.said("boat").count("disk_full") >= times

    block_until(is_told, deadline_s=30, what="the boat is told of the full disk")
    assert parties.running("cloud").poll() is None, "the cloud goes on"


def test_a_full_disk_under_the_cloud_loses_nothing_and_heals_when_room_returns(tmp_path: Path) -> None:
    """Twice: the second time the cloud is also killed while the disk is full."""
    with small_disk(tmp_path / "disk", mib=64) as disk, linked(tmp_path, data=disk / "data") as (parties, _):
        ballast = disk / "ballast"
        fill(ballast)
        wait_refused_for_room(parties, 1)
        ballast.unlink()
        parties.wait_progress(deadline_s=PROGRESS_S)
        refused = parties.said("boat").count("disk_full")
        fill(ballast)
        wait_refused_for_room(parties, refused + 1)
        kill(parties.running("cloud"))
        ballast.unlink()
        parties.start_cloud()
        parties.finish()
        check_equal(parties)
