"""What every benchmark needs: fair rounds, a scratch folder on a real disk, facts about the machine.

Absolute numbers move with the machine and with its other load; a ratio of two things measured
in turn, a little at a time, moves much less. So cases alternate (A, B, A, B, ...), each reports the
median of its rounds, and a ratio is a ratio of medians. The spread says how far to trust it.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tidelog.errors import InvalidConfig

Case = Callable[[], float]
"""Does one round of work and returns the seconds that count; preparing and cleaning up do not."""

Results = dict[str, object]

_SYNC_SAMPLES = 50
_SYNC_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Rounds:
    """The seconds of each round of one case."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the slowest and the fastest round, as a part of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def alternate(cases: Mapping[str, Case], *, rounds: int, warm_up: bool = True) -> dict[str, Rounds]:
    """Run the cases in turn, `rounds` times each; a warm-up round of each is thrown away."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(-1 if warm_up else 0, rounds):
        for name, case in cases.items():
            elapsed = case()
            if number >= 0:
                seconds[name].append(elapsed)
    return {name: Rounds(tuple(values)) for name, values in seconds.items()}


def speed_against(ours: Rounds, other: Rounds) -> float:
    """How fast we are, with the other as 1.0."""
    return round(other.median / ours.median, 3)


def largest_spread(*measured: Rounds) -> float:
    return round(max(one.spread for one in measured), 3)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def processor_timed(work: Callable[[], object]) -> float:
    """Processor seconds of this whole process: for work that only computes, and is judged per core.

    On an idle machine it equals the wall clock; on a shared one it leaves out the turns of others.
    """
    start = time.process_time()
    work()
    return time.process_time() - start


@contextmanager
def scratch_folder(folder: str | None) -> Iterator[str]:
    """A fresh folder under `folder`, or under the current one, removed at the end.

    Not the system's temporary folder: that is often memory, where a sync costs nothing.
    """
    parent = os.path.abspath(folder or os.curdir)
    try:
        path = tempfile.mkdtemp(prefix=".bench-", dir=parent)
    except OSError as error:
        problem = f"{parent} cannot be written ({error.strerror}); start it in a folder on the disk to measure"
        raise InvalidConfig(section="bench", problems=[problem]) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class ServerFailed(RuntimeError):
    """A serving process did not come up."""


@contextmanager
def serving_process(module: str, *arguments: str) -> Iterator[int]:
    """A Python process that prints its port and serves until its standard input ends; gives the port."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise ServerFailed(f"{module} {' '.join(arguments)} ended with {process.wait()}")
        yield int(line)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def machine_facts(folder: str) -> Results:
    """What a reader must know before comparing numbers with another run."""
    return {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "python": platform.python_version(),
        "file_system": file_system(folder),
        "fdatasync_p50_ms": round(fdatasync_p50_ms(folder), 3),
    }


def fdatasync_p50_ms(folder: str) -> float:
    """Milliseconds to append 4 KiB to a file and sync it: the price of one commit."""
    samples = []
    page = os.urandom(_SYNC_BYTES)
    descriptor = os.open(os.path.join(folder, "fdatasync"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for _ in range(_SYNC_SAMPLES):
            start = time.perf_counter()
            os.write(descriptor, page)
            os.fdatasync(descriptor)
            samples.append(time.perf_counter() - start)
    finally:
        os.close(descriptor)
    return statistics.median(samples) * 1000


def file_system(folder: str) -> str:
    """The type of the file system that holds `folder`; "unknown" where the kernel does not say."""
    real = os.path.realpath(folder)
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, place, mounted, *_ = line.split(" ")
                inside = real == place or real.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best):
                    best, kind = place, mounted
    except OSError:
        return "unknown"
    return kind


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the platform module knows less, but something
    return platform.processor() or platform.machine()
