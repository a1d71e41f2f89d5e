"""`tidelog bench freshness`: how old a row is when it can first be queried: from a boat's bus to a table.

Ten boats with journals send over mTLS into a cluster (three nodes; one with `--quick`), and a pipeline runs with its
usual settings: `frames` at a trigger of two seconds and decoding behind it, but gold after a minute already, so that
what is measured has a whole run of it, with all that Java compiles for the first time (not with `--quick`, which is too
short for it). A row's time is when the bus had the frame; it can be queried once the commit of the table's log that
names its file is there, which the file system dates. Everything runs on one machine, so there is one clock.

FR1  At the end the table holds every frame that was sailed, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.kits.uplink_parties import PartyFailed
from benchmarks.pipeline.boat_cluster import BoatCluster, boat_cluster
from benchmarks.pipeline.freshness_boats import Sailing
from benchmarks.pipeline.pipeline_cases import WrongRows
from tidelog.errors import WaitTimedOut
from tidelog.pipeline.engine import EngineOptions, start_engine, stop_engine
from tidelog.pipeline.jobs.runner import ENGINE_SETTINGS, PipelineRunner
from tidelog.pipeline.settings import PipelineSettings, load_pipeline
from tidelog.pipeline.tables.table import Table
from tidelog.units import US_PER_S

_START_S: Final = 180.0
_CATCH_UP_S: Final = 180.0
_GOLD_S: Final = 600.0
"""A run of gold with its pauses, on a machine that has little to spare for it."""
_NS_PER_US: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessSizes:
    boats: int = 10
    frames_per_s: int = 200
    nodes: int = 3
    warm_s: float = 20.0
    warm_commits: int = 3
    warm_gold_runs: int = 1
    """Rows before so much time, commits and runs of gold do not count: the first batches wait for all that Spark
    starts, and the first run of gold finds nothing."""
    seconds: float = 90.0
    trigger_ms: int = 2_000
    gold_every_ms: int = 60_000
    """Sooner than by default, so that gold is under way in what is measured; 0 for none."""


FULL = FreshnessSizes()
QUICK = FreshnessSizes(nodes=1, warm_s=15.0, warm_gold_runs=0, seconds=20.0, gold_every_ms=0)


def run(*, quick: bool = False, folder: str | None = None, sizes: FreshnessSizes | None = None) -> Results:
    """Sail, and look at the tables afterwards; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        place = Path(scratch)
        results = machine_facts(scratch)
        results |= {"quick": quick, "load_average": round(os.getloadavg()[0], 2)}
        results |= {"boats": sizes.boats, "boat_frames_per_s": sizes.frames_per_s, "nodes": sizes.nodes}
        results |= {"trigger_s": sizes.trigger_ms / 1000, "seconds": sizes.seconds}
        names = [f"boat-{number:03d}" for number in range(1, sizes.boats + 1)]
        with boat_cluster(place, boats=names, nodes=sizes.nodes) as sea, _boats(place, sea, names, sizes) as boats:
            settings = _settings(sea, place, sizes)
            options = EngineOptions(
                master=settings.master, name="tidelog-bench", scratch=str(place / "spark"), settings=ENGINE_SETTINGS
            )
            spark = start_engine(options)
            try:
                with PipelineRunner(spark, settings) as runner:
                    results |= _freshness(runner, _run(runner, boats, sizes))
            finally:
                stop_engine()
            sea.kit.require_alive()
    return results


# --- who takes part ----------------------------------------------------------------------------------


@contextmanager
def _boats(
    place: Path, sea: BoatCluster, names: Sequence[str], sizes: FreshnessSizes
) -> Iterator[subprocess.Popen[str]]:
    """The boats' process, connected and waiting for the word."""
    told = Sailing(
        addresses=sea.uplinks,
        names=names,
        folder=str(sea.credentials),
        frames_per_s=sizes.frames_per_s,
    )
    with (place / "boats.log").open("w") as log:
        process = subprocess.Popen(
            told.command(place / "boats.json"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    guard = threading.Timer(_START_S, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise PartyFailed(f"the boats did not come up: {(place / 'boats.log').read_text()[-2000:] or 'no words'}")
        guard.cancel()
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _settings(sea: BoatCluster, place: Path, sizes: FreshnessSizes) -> PipelineSettings:
    return load_pipeline(
        arguments=[
            *sea.pipeline_arguments(),
            *("-tables", str(place / "tables"), "-channels", "boat-*", "-trigger", f"{sizes.trigger_ms}ms"),
            *("-gold-every", f"{sizes.gold_every_ms}ms"),
        ]
    )


@dataclass(slots=True)
class _Voyage:
    """The boats' process as the pipeline's loop sees it: told to sail, left alone, told to come home."""

    boats: subprocess.Popen[str]
    sizes: FreshnessSizes
    sailed_s: float | None = None
    from_us: int | None = None
    """Rows from here on count."""
    until_us: int | None = None
    gold_runs: int = 0
    """Before that."""
    told: dict[str, Any] = field(default_factory=dict)
    give_up_s: float = 0.0

    def look(self, runner: PipelineRunner) -> bool:
        """Whether everything that was sailed is in the tables."""
        now_s, now_us = time.monotonic(), time.time_ns() // _NS_PER_US
        if self.sailed_s is None:
            self.sailed_s = now_s
            self.give_up_s = now_s + self.sizes.warm_s + _START_S
            self._say()
        elif self.from_us is None:
            if now_s - self.sailed_s >= self.sizes.warm_s and self._is_warm(runner):
                self.from_us = now_us
                self.gold_runs = runner.gold_runs
                self.give_up_s = now_s + self.sizes.seconds + _GOLD_S + _CATCH_UP_S
        elif (
            self.until_us is None and now_us - self.from_us >= self.sizes.seconds * US_PER_S and self._had_gold(runner)
        ):
            self.until_us = now_us
            self._say()
            self._hear()
        if self.told and min(runner.frames.progress.frames, runner.signals.progress.frames) >= self.told["frames"]:
            return True
        if now_s > self.give_up_s:
            held = f"{runner.frames.progress.frames} of {self.told.get('frames', 'some')}, {runner.failures()}"
            raise WaitTimedOut(waiting_for=f"the tables to hold all frames ({held})", deadline_s=_CATCH_UP_S)
        return False

    def _is_warm(self, runner: PipelineRunner) -> bool:
        commits, gold_runs = runner.frames.progress.commits, runner.gold_runs
        return commits >= self.sizes.warm_commits and gold_runs >= self.sizes.warm_gold_runs

    def _had_gold(self, runner: PipelineRunner) -> bool:
        """Whether a run of gold has come to its end in what is measured, where there is gold."""
        return not self.sizes.gold_every_ms or runner.gold_runs > self.gold_runs

    def _say(self) -> None:
        assert self.boats.stdin is not None
        self.boats.stdin.write("\n")
        self.boats.stdin.flush()

    def _hear(self) -> None:
        """What they say when all is acked, which the pipeline does not wait for."""

        def hear() -> None:
            assert self.boats.stdout is not None
            said = self.boats.stdout.readline()
            self.told = json.loads(said) if said else {"frames": sys.maxsize}

        threading.Thread(target=hear, daemon=True).start()


def _run(runner: PipelineRunner, boats: subprocess.Popen[str], sizes: FreshnessSizes) -> _Voyage:
    """Let the boats sail while the pipeline runs, until the tables hold everything."""
    stop = threading.Event()
    voyage = _Voyage(boats, sizes)

    def look(runner: PipelineRunner) -> None:
        if voyage.look(runner):
            stop.set()

    runner.run_until(stop, on_look=look)
    return voyage


# --- what the tables say -----------------------------------------------------------------------------


def _freshness(runner: PipelineRunner, voyage: _Voyage) -> Results:
    sailed, from_us, until_us = voyage.told, voyage.from_us, voyage.until_us
    assert from_us is not None
    assert until_us is not None
    frames = runner.frames.table
    rows = sum(file.rows for file in frames.files())
    if rows != sailed["frames"]:
        raise WrongRows(f"the table holds {rows} rows of {sailed['frames']} frames (FR1)")
    ages_s = row_ages_s(frames, from_us=from_us, until_us=until_us)
    decoded_s = row_ages_s(runner.signals.signals, from_us=from_us, until_us=until_us)
    return {
        "p50_s": _percentile(ages_s, 50),
        "p99_s": _percentile(ages_s, 99),
        "max_s": _percentile(ages_s, 100),
        "signals_p50_s": _percentile(decoded_s, 50),
        "signals_p99_s": _percentile(decoded_s, 99),
        "frames": sailed["frames"],
        "counted_frames": len(ages_s),
        "commits": runner.frames.progress.commits,
        "boats_late_max_s": sailed["late_max_s"],
        "boat_troubles": sailed["troubles"],
        "gold_runs": runner.gold_runs - voyage.gold_runs,
        "measured_s": round((until_us - from_us) / US_PER_S, 1),
        "stages_failing": len(runner.failures()),
    }


def row_ages_s(table: Table, *, from_us: int, until_us: int) -> npt.NDArray[np.float64]:
    """How old each row of this time was when the commit that holds it appeared (Delta only)."""
    ages = [np.empty(0)]
    for added in table.added_since(None):
        commit = table.folder / "_delta_log" / f"{added.version:020d}.json"
        # Not when it was written: a commit is written under another name, and appears by getting its own.
        visible_us = commit.stat().st_ctime_ns // _NS_PER_US
        with pq.ParquetFile(table.path_of(added.file)) as file:
            times_us = file.read(columns=["time"])["time"].cast("int64").to_numpy()
        ages.append((visible_us - times_us[(times_us >= from_us) & (times_us < until_us)]) / US_PER_S)
    return np.concatenate(ages)


def _percentile(values: npt.NDArray[np.float64], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 3) if len(values) else None
