"""kill -9 of a driver that does everything on its own machine, from a folder of logs: every frame once, orphans swept.

`test_cluster_kill` does it to each party of a real cluster; this is the other way to run a pipeline, and quick.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.folders import BLOCK_ROWS, control_block, frame_blocks, put, small_store
from tests.pipeline.table_kit import frames_table, offsets_of
from tidelog.pipeline.tables import FORMATS
from tidelog.pipeline.tables.maintenance import vacuum
from tidelog.pipeline.tables.table import Table

NOW_US = 1_790_000_000_000_000
BLOCKS = 40
ROWS_PER_BATCH = 1_500

DRIVER = """
import sys
from tidelog.pipeline.engine import EngineOptions, start_engine
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.sources.address import LogsAddress
folder, rows, table_format = sys.argv[1], int(sys.argv[2]), sys.argv[3]
spark = start_engine(EngineOptions(master="local[2]", driver_memory="1g", shuffle_partitions=2))
job = FramesJob(spark, FramesOptions(
    address=LogsAddress(path=folder + "/logs"), tables=folder + "/tables", checkpoint=folder + "/checkpoint",
    batch_records_max=rows, driver_records_max=0, table_format=table_format))
query = job.start()
query.awaitTermination()
spark.stop()
"""


def start_driver(folder: Path, table_format: str, rows: int = ROWS_PER_BATCH) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Java and the Python workers can be killed with it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DRIVER, str(folder), str(rows), table_format]
    with open(folder / "driver.log", "ab") as log:
        return subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)


def kill(driver: subprocess.Popen[bytes]) -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(60)


def wait_for_version(table: Table, version: int, driver: subprocess.Popen[bytes], *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while table.version() < version and driver.poll() is None:
        assert time.monotonic() < deadline, f"the driver commits nothing; see {table.folder}/../../driver.log"
        time.sleep(0.02)


def rounds_of_kills(folder: Path, table_format: str, rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    store = small_store(folder / "logs")
    for boat in ("boat-1", "boat-2"):
        put(store, boat, [control_block(), *frame_blocks(BLOCKS)])
    store.close(NOW_US)
    table = frames_table(folder / "tables", table_format)
    for _ in range(rounds):
        driver = start_driver(folder, table_format, rows=max(200, ROWS_PER_BATCH // rounds))
        # Shortly after a commit, in the middle of the next batch, or while the engine still starts.
        wait_for_version(table, table.version() + dice.choice((0, 1, 1, 2)), driver)
        time.sleep(dice.uniform(0, 0.6))
        kill(driver)
        for boat in ("boat-1", "boat-2"):
            found = offsets_of(table, boat)
            assert found == sorted(set(found)), f"doubles in {boat}; seed {seed}"
            assert found == list(range(1, 1 + len(found))), f"a gap in {boat}; seed {seed}"
    # Nobody kills the last one, but a loaded machine may cost it a worker.
    ends = [start_driver(folder, table_format, rows=1_000_000).wait(300)]
    while ends[-1] and len(ends) < 3:
        ends.append(start_driver(folder, table_format, rows=1_000_000).wait(300))
    assert ends[-1] == 0, f"seed {seed}"
    for boat in ("boat-1", "boat-2"):
        assert offsets_of(table, boat) == list(range(1, 1 + BLOCKS * BLOCK_ROWS)), f"seed {seed}"
    vacuum(table, keep_hours=0)
    files = {str(path.relative_to(table.folder)) for path in table.folder.rglob("*.parquet")}
    assert {name for name in files if not name.startswith("_")} == {file.path for file in table.files()}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table_format", FORMATS)
def test_drivers_killed_one_after_the_other_lose_and_double_nothing(tmp_path: Path, table_format: str) -> None:
    rounds_of_kills(tmp_path, table_format, rounds=3, seed=random.SystemRandom().randrange(1 << 30))
