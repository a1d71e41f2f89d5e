"""The process that `journal_bench` measures: a boat that journals a busy bus, and nothing else.

It runs by itself so that its memory and processor time are the journal's alone, and it never imports
pyarrow. Every 10 ms the bus delivers a burst; each frame is stamped and recorded one at a time, and
`wake` is called when the journal asks for it. Started with one argument, a JSON object with the
fields of `Trip`; with `report` it tells after every burst how far it got, until somebody kills it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice

from benchmarks.kits.traffic import bus_frames
from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.storage.disk import Buffer, File
from tidelog.storage.os_disk import OsDisk
from tidelog.units import US_PER_S

FOLDER = "journal"
BURST_INTERVAL_US = 10_000
_BUS_FRAMES = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What the process is told to do."""

    root: str
    seconds: float
    frames_per_s: int
    seal_age_ms: int
    report: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.log.journal_boat", json.dumps(asdict(self))]


class CountingFile:
    """A file that counts its syncs on the disk it came from."""

    def __init__(self, file: File, disk: CountingDisk) -> None:
        self._file = file
        self._disk = disk
        self.read_at = file.read_at
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    @property
    def path(self) -> str:
        return self._file.path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._file.write_at(position, buffers)

    def sync(self) -> None:
        self._disk.syncs += 1
        self._file.sync()


class CountingDisk(OsDisk):
    """The real disk; knows how many files were synced."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.syncs = 0

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        return CountingFile(super().open(path, create=create, writable=writable), self)


def now_us() -> int:
    return time.time_ns() // 1000


def new_lineage() -> bytes:
    return os.urandom(16)


class JournalBoat:
    """Drives one journal in real time."""

    def __init__(self, journal: Journal, trip: Trip) -> None:
        self.journal = journal
        self.at_risk_us_max = 0
        """The longest time that any frame waited until it was durable."""
        self._trip = trip
        self._burst_frames = trip.frames_per_s * BURST_INTERVAL_US // US_PER_S
        self._bus = cycle((can_id, data) for _, can_id, data in bus_frames(_BUS_FRAMES, fast_packets=True).rows())
        self._oldest_us: int | None = None
        self._durable_end = journal.fresh.durable_end
        journal.fresh.watch(self._note_durable)

    def _note_durable(self) -> None:
        durable_end = self.journal.fresh.durable_end
        if durable_end > self._durable_end and self._oldest_us is not None:
            self.at_risk_us_max = max(self.at_risk_us_max, now_us() - self._oldest_us)
            self._oldest_us = None
        self._durable_end = durable_end

    def sail(self) -> int:
        """Journal until the time is up; returns the frames recorded."""
        next_burst_us = now_us()
        end_us = next_burst_us + int(self._trip.seconds * US_PER_S)
        frames = 0
        while next_burst_us < end_us:
            self._sleep_until(next_burst_us)
            self._burst()
            frames += self._burst_frames
            next_burst_us += BURST_INTERVAL_US
        return frames

    def _sleep_until(self, moment_us: int) -> None:
        """Wait for the next burst, waking the journal when it is due."""
        while (now := now_us()) < moment_us:
            due_us = self.journal.wake_at_us()
            if due_us <= now:
                self.journal.wake(now)
            else:
                time.sleep((min(due_us, moment_us) - now) / 1e6)
        if self.journal.wake_at_us() <= now:
            self.journal.wake(now)

    def _burst(self) -> None:
        journal = self.journal
        if self._trip.report:
            # Printed before the burst, so that the killer knows at least every seq that was issued.
            line = f"{now_us()} {journal.head + self._burst_frames}\n"
            os.write(sys.stdout.fileno(), line.encode())
        if self._oldest_us is None:
            self._oldest_us = now_us()
        for can_id, payload in islice(self._bus, self._burst_frames):
            arrived_us = now_us()
            journal.record(arrived_us, can_id, payload, arrived_us)


def peak_rss_mb() -> float:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise OSError("/proc/self/status does not tell the peak memory")


def main() -> None:
    trip = Trip(**json.loads(sys.argv[1]))
    disk = CountingDisk(trip.root)
    processor_start, wall_start = time.process_time(), time.perf_counter()
    options = JournalOptions(seal_age_ms=trip.seal_age_ms)
    journal = open_journal(disk, FOLDER, now_us=now_us(), new_lineage=new_lineage, options=options)
    boat = JournalBoat(journal, trip)
    blocks_before = journal.sealed.statistics().blocks
    frames = boat.sail()
    sealed_blocks = journal.sealed.statistics().blocks - blocks_before
    journal.close(now_us())
    processor_s, wall_s = time.process_time() - processor_start, time.perf_counter() - wall_start
    assert "pyarrow" not in sys.modules, "a boat must not pay for pyarrow"
    result = {
        "cpu_fraction": round(processor_s / wall_s, 4),
        "rss_mb": round(peak_rss_mb(), 1),
        "frames": frames,
        "seconds": round(wall_s, 2),
        "fsyncs": disk.syncs,
        "sealed_blocks": sealed_blocks,
        "at_risk_s_max": round(boat.at_risk_us_max / US_PER_S, 3),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
