"""Backfill: a whole journal into an empty cloud, against an rsync daemon that copies the same files.

The journal is one that was sealed: delta-plane blocks of made-up traffic, zstd, as a boat keeps them. Ours is timed
from the dial until the cloud has acked everything, which means checked, stored and synced; rsync from its start to
its end, with `--whole-file --fsync` and the checksum of every file that it makes by default. Both read from a warm page
cache. Neither side's store exists before.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kits.measure import Results, Rounds, alternate, largest_spread, speed_against
from benchmarks.kits.traffic import bus_frames
from benchmarks.kits.uplink_parties import HOST, BenchBoat, Fleet, PartyFailed, no_limits, running_cloud, sailing
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import Codec
from tidelog.core.uplink.messages import BackfillAck
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import SEALED, JournalOptions, open_journal
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.units import MIB

_KINDS_OF_BLOCK = 32
_BLOCK_FRAMES = JournalOptions().seal_frames
_COMMIT_BYTES = 16 * MIB
_LINEAGE = bytes(range(16))
_JOURNAL = "journal"
_RSYNC = "rsync"
_START_S_MAX = 20.0


def measure_backfill(folder: Path, fleet: Fleet, *, journal_bytes: int, rounds: int) -> Results:
    """`backfill_vs_rsync`; null where there is no rsync."""
    home = folder / "backfill-boat"
    blocks, size = write_journal(home, journal_bytes)
    journey = _Journey(folder, fleet, home)
    results: Results = {
        "backfill_mib": round(size / MIB, 1),
        "backfill_blocks": blocks,
        "rsync": rsync_version() or "not installed",
    }
    if results["rsync"] == "not installed":
        ours = alternate({"ours": journey.backfill}, rounds=rounds)["ours"]
        return results | {"backfill_vs_rsync": None, "backfill_mb_per_s": _mb_per_s(size, ours)}
    with _rsync_daemon(folder, home / _JOURNAL) as copy:
        measured = alternate({"rsync": copy, "ours": journey.backfill}, rounds=rounds)
    ours, rsync = measured["ours"], measured["rsync"]
    return results | {
        "backfill_vs_rsync": speed_against(ours, rsync),
        "backfill_mb_per_s": _mb_per_s(size, ours),
        "rsync_mb_per_s": _mb_per_s(size, rsync),
        "backfill_spread": largest_spread(ours, rsync),
    }


def _mb_per_s(size: int, rounds: Rounds) -> float:
    return round(size / rounds.median / 1e6, 1)


# --- the journal -------------------------------------------------------------------------------------


def write_journal(home: Path, journal_bytes: int) -> tuple[int, int]:
    """A sealed journal of at least so many bytes; returns its blocks and its bytes.

    A few blocks are encoded and written again and again under new seqs: encoding a gigabyte would take minutes.
    """
    home.mkdir(parents=True)
    disk = OsDisk(str(home))
    now_us = wall_clock_us()
    open_journal(disk, _JOURNAL, now_us=now_us, new_lineage=lambda: _LINEAGE).close(now_us)
    sealed = open_log(disk, f"{_JOURNAL}/{SEALED}", now_us=now_us, options=JournalOptions().sealed_log())
    patterns = [_pattern(seed) for seed in range(_KINDS_OF_BLOCK)]
    blocks = written = uncommitted = 0
    while written < journal_bytes:
        made = patterns[blocks % _KINDS_OF_BLOCK].renumbered(base_seq=1 + blocks * _BLOCK_FRAMES, producer=_LINEAGE)
        staged = sealed.stage(made, epoch=1, now_us=now_us)
        assert staged is not None
        blocks += 1
        written += staged.size
        uncommitted += staged.size
        if uncommitted >= _COMMIT_BYTES:
            sealed.commit(now_us)
            uncommitted = 0
    sealed.commit(now_us)
    sealed.close(now_us)
    return blocks, written


def _pattern(seed: int) -> MadeBlock:
    frames = bus_frames(_BLOCK_FRAMES, fast_packets=True, seed=seed)
    return encode_frames(frames, base_seq=1, producer=_LINEAGE, delta=True, codec=Codec.ZSTD)


# --- ours --------------------------------------------------------------------------------------------


class _Journey:
    """Backfills the same journal into a new cloud each time."""

    def __init__(self, folder: Path, fleet: Fleet, home: Path) -> None:
        self._folder = folder
        self._fleet = fleet
        self._home = home
        self._number = 0

    def backfill(self) -> float:
        self._number += 1
        data = self._folder / f"backfill-{self._number}"
        try:
            with running_cloud(self._fleet, data, *no_limits()) as cloud:
                return asyncio.run(self._ship(cloud.port))
        finally:
            shutil.rmtree(data, ignore_errors=True)

    async def _ship(self, port: int) -> float:
        target = self._fleet.target("backfill-boat", port)
        boat = BenchBoat(self._home, target, config=SenderConfig())
        done = asyncio.Event()

        def note(ack: BackfillAck) -> None:
            if ack.cursor >= boat.journal.head:
                done.set()

        boat.uplink.on_backfill_ack = note
        start = time.perf_counter()
        async with sailing(boat), asyncio.timeout(600):
            await done.wait()
            seconds = time.perf_counter() - start
        if boat.troubles:
            raise PartyFailed(f"the Backfill was interrupted: {boat.troubles}")
        return seconds


# --- rsync -------------------------------------------------------------------------------------------


def rsync_version() -> str | None:
    """What the rsync here calls itself; None where there is none."""
    try:
        said = subprocess.run([_RSYNC, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return " ".join(said.split()[:3])


class _RsyncCopy:
    def __init__(self, source: Path, target: Path, port: int) -> None:
        self._target = target
        self._command = [_RSYNC, "--recursive", "--whole-file", "--fsync", f"{source}/"]
        self._command.append(f"rsync://{HOST}:{port}/bench/")

    def __call__(self) -> float:
        shutil.rmtree(self._target, ignore_errors=True)
        self._target.mkdir()
        start = time.perf_counter()
        done = subprocess.run(self._command, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise PartyFailed(f"rsync failed: {done.stderr.strip()[-2000:]}")
        return seconds


@contextmanager
def _rsync_daemon(folder: Path, source: Path) -> Iterator[_RsyncCopy]:
    target = folder / "rsync-target"
    target.mkdir()
    settings = folder / "rsyncd.conf"
    # Without these a daemon that root started would become nobody, who may not write here.
    owner = f"uid = {os.getuid()}\ngid = {os.getgid()}\n" if os.getuid() == 0 else ""
    settings.write_text(
        f"address = {HOST}\nuse chroot = no\nlog file = {folder / 'rsyncd.log'}\n"
        f"[bench]\npath = {target}\nread only = no\n{owner}"
    )
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    daemon = subprocess.Popen([_RSYNC, "--daemon", "--no-detach", f"--config={settings}", f"--port={port}"])
    try:
        _wait_listening(port, daemon)
        yield _RsyncCopy(source, target, port)
    finally:
        daemon.terminate()
        daemon.wait()


def _wait_listening(port: int, daemon: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_S_MAX
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > give_up or daemon.poll() is not None:
                raise PartyFailed(f"the rsync daemon did not start: {error}") from error
            time.sleep(0.02)
