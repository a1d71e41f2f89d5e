"""A fleet that sends, a pipeline that follows it on a real Spark cluster, and somebody who kills one of them a round.

The pipeline is the real command in a process group of its own. `KillRounds` knows who may be struck, strikes, brings
back what does not come back by itself, and knows how many frames have been sailed.

What a caller must keep: make it with `kill_rounds`, which closes it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.kits.uplink_parties import BenchBoat, no_limits, sailing
from benchmarks.pipeline.boat_cluster import BoatCluster, boat_cluster

from tests.patience import patient, wait_until
from tests.pipeline.standalone import SparkCluster
from tidelog.client.sync import SyncClient
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import LogError
from tidelog.pipeline.settings import PipelineSettings, load_pipeline
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.table import Table
from tidelog.units import US_PER_S

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
PYTHON_WORKER: Final = "python worker"
LEADER: Final = "leader"
VICTIMS: Final = (DRIVER, EXECUTOR, PYTHON_WORKER, LEADER)

NAME: Final = "killed"
BOATS: Final = ("boat-1", "boat-2")
START_US: Final = 1_790_000_000 * US_PER_S
ROUND_S: Final = 30
"""What each boat sails in a round, of its own time."""
_CHUNKS: Final = 6
_CHUNK_PAUSE_S: Final = 0.3
_STRIKE_WITHIN_S: Final = 4.0
_AWAY_S: Final = (0.5, 4.0)
"""How long a killed node stays away."""
_DEADLINE_S: Final = 300.0
_BATCH_RECORDS: Final = 1_000


def dealt_victims(rounds: int, dice: random.Random) -> list[str]:
    """Who is struck in each round: every kind as often as the others, in no order."""
    dealt = [VICTIMS[number % len(VICTIMS)] for number in range(rounds)]
    dice.shuffle(dealt)
    return dealt


class KillRounds:
    """See the module."""

    def __init__(
        self, sea: BoatCluster, workers: SparkCluster, folder: Path, dice: random.Random, table_format: str
    ) -> None:
        self.sea = sea
        self._table_format = table_format
        self._workers = workers
        self._folder = folder
        self._dice = dice
        self._driver: subprocess.Popen[bytes] | None = None
        self._rounds = 0
        self.drivers_started = 0
        self.sailed = dict.fromkeys(BOATS, 0)
        self.settings = self.settings_of(NAME, folder / "tables")
        self.table: Table = open_table(self.settings.tables, FRAMES_LAYOUT, table_format=table_format)
        self._client: SyncClient = self.settings.frames.address.connect()

    def settings_of(self, name: str, tables: Path) -> PipelineSettings:
        """A pipeline over the same cluster, on whichever session is at hand."""
        return load_pipeline(arguments=self._arguments(name, tables))

    def _arguments(self, name: str, tables: Path) -> list[str]:
        return [
            *self.sea.pipeline_arguments(),
            *("-name", name, "-tables", str(tables), "-channels", "boat-*"),
            *("-batch-records", str(_BATCH_RECORDS), "-trigger", "200ms", "-gold-every", "0", "-optimize-every", "0"),
            *("-restart-wait-max", "5s", "-driver-memory", "1g", "-format", self._table_format),
        ]

    @property
    def journals(self) -> dict[str, LogsAddress]:
        return {boat: LogsAddress(path=str(self._folder / "journals" / boat / "journal")) for boat in BOATS}

    @property
    def replicas(self) -> dict[str, LogsAddress]:
        return {name: LogsAddress(path=str(node.data)) for name, node in self.sea.kit.nodes.items()}

    @property
    def frames_sailed(self) -> int:
        return sum(self.sailed.values())

    def last_words(self) -> str:
        log = self._folder / "driver.log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""

    # --- the pipeline --------------------------------------------------------------------------------

    def start_driver(self) -> None:
        """In a session of its own, so that Java and what else it starts can be killed with it."""
        command = [sys.executable, "-m", "tidelog.cli", "pipeline", "run", "-master", self._workers.master]
        with (self._folder / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [*command, *self._arguments(NAME, self._folder / "tables")],
                env=self._workers.environment,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        self.drivers_started += 1

    def stop_driver(self) -> None:
        """As an operator would: it ends between two commits."""
        driver = self._running()
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(patient(_DEADLINE_S)) == 0, self.last_words()
        self._driver = None

    def close(self) -> None:
        if self._driver is not None:
            self._kill_driver()
        self._client.close(flush=False)

    def _kill_driver(self) -> None:
        driver = self._driver
        assert driver is not None
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(60)
        self._driver = None

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._driver is not None, "no driver was started"
        assert self._driver.poll() is None, f"the driver ended by itself: {self.last_words()}"
        return self._driver

    # --- a round -------------------------------------------------------------------------------------

    def round_of(self, victim: str | None) -> None:
        """Sail, strike in the middle of it, and wait until everything is where it belongs. Nobody may be struck too."""
        asyncio.run(self._sail(victim))
        self._rounds += 1
        if self._driver is None:
            self.start_driver()
        self.wait(lambda: self.rows() >= self.frames_sailed, "the table to hold what was sailed")
        self.wait(self._is_whole, "every replica to be in sync")

    def rows(self) -> int:
        return sum(file.rows for file in self.table.files()) if self.table.exists() else 0

    def wait(self, condition: Callable[[], bool], what: str, *, deadline_s: float = _DEADLINE_S) -> None:
        deadline = time.monotonic() + patient(deadline_s)
        while not condition():
            self._running()
            self.sea.kit.require_alive()
            assert time.monotonic() < deadline, (
                f"not within {deadline_s:g} s: {what}; {self.rows()} rows of {self.frames_sailed}\n{self.last_words()}"
            )
            time.sleep(0.05)

    async def _sail(self, victim: str | None) -> None:
        """Every boat records and sends a stretch of its voyage, while the blow falls."""
        async with AsyncExitStack() as stack:
            boats = {}
            for number, name in enumerate(BOATS):
                boat = BenchBoat(
                    self._folder / "journals" / name, self.sea.target(name, node=number), config=SenderConfig()
                )
                boats[name] = await stack.enter_async_context(sailing(boat))
            blow = asyncio.ensure_future(self._strike_soon(victim))
            step_us = ROUND_S * US_PER_S // _CHUNKS
            for chunk in range(_CHUNKS):
                start_us = START_US + self._rounds * ROUND_S * US_PER_S + chunk * step_us
                for number, boat in enumerate(boats.values()):
                    boat.record_many(Voyage(seed=number, start_us=START_US).frames(start_us, start_us + step_us))
                    boat.client.notify()
                await asyncio.sleep(_CHUNK_PAUSE_S)
            await blow
            await wait_until(
                lambda: all(boat.all_acked() for boat in boats.values()), "all frames acked", deadline_s=_DEADLINE_S
            )
            self.sailed = {name: boat.journal.head for name, boat in boats.items()}

    async def _strike_soon(self, victim: str | None) -> None:
        if victim is None:
            return
        await asyncio.sleep(self._dice.uniform(0, _STRIKE_WITHIN_S))
        await asyncio.to_thread(self._strike, victim)

    def _strike(self, victim: str) -> None:
        if victim == DRIVER:
            self._kill_driver()
        elif victim == LEADER:
            self._strike_leader()
        else:
            self._strike_one_of(self._workers.executors if victim == EXECUTOR else self._workers.python_workers)

    def _strike_one_of(self, candidates: Callable[[], Sequence[int]]) -> None:
        """One that is there, however short it runs: a process that has just ended is no victim."""
        deadline = time.monotonic() + patient(_DEADLINE_S)
        while True:
            assert time.monotonic() < deadline, f"nobody is there to be killed\n{self.last_words()}"
            found = sorted(candidates())
            if found:
                try:
                    os.kill(self._dice.choice(found), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                return
            self._running()
            time.sleep(0.02)

    def _strike_leader(self) -> None:
        kit = self.sea.kit
        leader = str(self._client.describe(self._dice.choice(BOATS))["leader"])
        kit.kill(leader)
        time.sleep(self._dice.uniform(*_AWAY_S))
        kit.start(leader)

    def _is_whole(self) -> bool:
        try:
            found = [self._client.describe(boat) for boat in BOATS]
        except LogError as error:
            if not error.retriable:
                raise
            return False
        return all(len(one["isr"]) == len(self.sea.kit.nodes) for one in found)


@contextmanager
def kill_rounds(folder: Path, dice: random.Random, table_format: str) -> Iterator[KillRounds]:
    """Three nodes, two workers, and a pipeline that has come through a first, quiet round."""
    with (
        boat_cluster(folder / "sea", boats=BOATS, nodes=3, settings=no_limits()) as sea,
        SparkCluster(folder / "spark", workers=2) as workers,
    ):
        rounds = KillRounds(sea, workers, folder, dice, table_format)
        try:
            rounds.start_driver()
            rounds.round_of(None)
            yield rounds
        finally:
            rounds.close()
