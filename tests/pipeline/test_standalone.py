"""A real Spark cluster in front of a real cluster of nodes: a worker dies in the middle, and nothing else changes.

Three nodes hold the channels of four boats with two replicas each, so that no node has them all and executors must read
from several. The same pipeline runs once on this process's own session, and once on a standalone master with two
workers of which one is killed with everything on it; the tables of both must be equal. Every task of `frames` leaves a
note of how much its process has received from each node.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from benchmarks.kits.uplink_parties import BenchBoat, no_limits, sailing
from benchmarks.pipeline.boat_cluster import BoatCluster, boat_cluster

from tests.patience import patient, wait_until
from tests.pipeline.standalone import SparkCluster
from tests.pipeline.table_kit import SPARK_S
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.sources.voyage import Voyage
from tidelog.pipeline.jobs.runner import PipelineRunner, tables_of
from tidelog.pipeline.settings import PipelineSettings, load_pipeline
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import DEVICES_LAYOUT, FRAMES_LAYOUT, UNDECODED_LAYOUT
from tidelog.pipeline.tables.table import Table
from tidelog.units import US_PER_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOATS = [f"boat-{number}" for number in range(1, 5)]
START_US = 1_790_000_000 * US_PER_S
VOYAGE_S = 240
BATCH_RECORDS = 8_000
READ_BYTES_MIN = 20_000
"""More than handshakes and answers about channels come to: a process that sent that much has sent blocks."""
DRIVER_S = 900.0
SPREAD_S = 120.0

DRIVER = """
import json, os, sys, time
from pathlib import Path
from tidelog.pipeline.jobs import frames_job
from tidelog.pipeline.engine import EngineOptions, start_engine, stop_engine
from tidelog.pipeline.jobs.runner import PipelineRunner
from tidelog.pipeline.settings import load_pipeline
notes, write_pieces = sys.argv[1], frames_job.write_pieces
settings = load_pipeline(arguments=sys.argv[2:])
def noted(order):
    made = write_pieces(order)
    links = order.address.open_shared().client._client._calls.links._links
    received = {node: link.statistics().bytes_received for node, link in links.items()}
    Path(notes, f"{os.getpid()}.json").write_text(json.dumps({"folder": os.getcwd(), "received": received}))
    return made
frames_job.write_pieces = noted
spark = start_engine(EngineOptions(
    master=settings.master, driver_memory="1g", shuffle_partitions=2, settings={"spark.executor.memory": "768m"}))
held = spark.sparkContext._jsc.sc()
while held.getExecutorMemoryStatus().size() < 3:  # the driver counts itself
    time.sleep(0.1)
print("two executors", flush=True)
with PipelineRunner(spark, settings) as runner:
    summary = runner.run_once()
print(json.dumps({"frames": summary.frames, "signals": summary.signals}), flush=True)
stop_engine()
"""


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_worker_that_dies_in_the_middle_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with boat_cluster(tmp_path, boats=BOATS, nodes=3, settings=[*no_limits(), "-boat-factor", "2"]) as sea:
        sent = asyncio.run(sail(sea, tmp_path / "boats"))
        here = settings_of(sea, tmp_path / "here", "here")
        spread(here, sea.kit.names)
        with PipelineRunner(spark, here) as runner:
            summary = runner.run_once()
        assert summary.frames == sent
        assert summary.gold_tables_changed > 0
        with SparkCluster(tmp_path / "spark", workers=2) as workers:
            there = settings_of(sea, tmp_path / "there", "there", "-master", workers.master)
            told = run_and_strike(sea, workers, there, tmp_path)
        require_several_nodes_read(tmp_path / "notes", tmp_path / "spark")
        assert told["frames"] <= sent, "what a driver counts is what it has committed itself"
        require_equal(here, there)
        sea.kit.require_alive()


async def sail(sea: BoatCluster, folder: Path) -> int:
    """Every boat comes home with a voyage in its journal and sends it; how many frames that is in all."""
    async with AsyncExitStack() as stack:
        boats = []
        for number, name in enumerate(BOATS):
            boat = BenchBoat(folder / name, sea.target(name, node=number), config=SenderConfig())
            voyage = Voyage(seed=number, start_us=START_US)
            boat.journal.record_many(voyage.frames(START_US, START_US + VOYAGE_S * US_PER_S), START_US)
            boats.append(await stack.enter_async_context(sailing(boat)))
            boat.client.notify()
        await wait_until(lambda: all(boat.all_acked() for boat in boats), "all frames in the cluster", SPARK_S)
        return sum(boat.journal.head for boat in boats)


def settings_of(sea: BoatCluster, folder: Path, name: str, *more: str) -> PipelineSettings:
    return load_pipeline(arguments=arguments_of(sea, folder, name, *more))


def arguments_of(sea: BoatCluster, folder: Path, name: str, *more: str) -> list[str]:
    return [
        *sea.pipeline_arguments(),
        *("-name", name, "-tables", str(folder), "-channels", "boat-*"),
        *("-batch-records", str(BATCH_RECORDS), *more),
    ]


def spread(settings: PipelineSettings, nodes: Sequence[str]) -> None:
    """Two replicas of every channel, and no node that has them all: who has read everything has read from several."""
    pairs = {boat: {nodes[place % 3], nodes[(place + 1) % 3]} for place, boat in enumerate(BOATS)}
    assert not set.intersection(*pairs.values())
    client = settings.frames.address.connect()
    try:
        for boat, pair in pairs.items():
            client.alter(boat, replicas=sorted(pair))
        deadline = time.monotonic() + patient(SPREAD_S)
        left = dict(pairs)
        while left:
            assert time.monotonic() < deadline, f"not spread within {SPREAD_S:g} s: {left}"
            for boat, pair in list(left.items()):
                found = client.describe(boat)
                if set(found["replicas"]) == set(found["isr"]) == pair:
                    del left[boat]
            time.sleep(0.05)
    finally:
        client.close(flush=False)


def run_and_strike(sea: BoatCluster, workers: SparkCluster, settings: PipelineSettings, folder: Path) -> dict[str, Any]:
    """Run the pipeline on the workers, kill one of them between two commits of `frames`; the driver's last words."""
    arguments = arguments_of(sea, settings.tables, "there", "-master", workers.master)
    table = open_table(settings.tables, FRAMES_LAYOUT)
    log, notes = folder / "driver.log", folder / "notes"
    notes.mkdir()
    with log.open("wb") as complaints:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(notes), *arguments],
            env=workers.environment,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"two executors\n", log.read_text()[-4000:]
        wait_for_rows(table, driver, log)
        workers.kill("worker-2")
        assert driver.poll() is None, "the driver was done before the worker died"
        said, _ = driver.communicate(timeout=patient(DRIVER_S))
        assert driver.returncode == 0, log.read_text()[-4000:]
    finally:
        driver.kill()
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()
    found: dict[str, Any] = json.loads(said)
    return found


def wait_for_rows(table: Table, driver: subprocess.Popen[bytes], log: Path) -> None:
    """Until the first batches are in the table."""
    deadline = time.monotonic() + patient(DRIVER_S)
    while not (table.exists() and table.version() >= 1):
        assert driver.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, f"the driver commits nothing: {log.read_text()[-4000:]}"
        time.sleep(0.05)


def require_several_nodes_read(notes: Path, spark: Path) -> None:
    """Executors of both workers have read, and blocks came from more than one node."""
    readers: set[str] = set()
    received: Counter[str] = Counter()
    for path in notes.iterdir():
        note = json.loads(path.read_text())
        readers.add(Path(note["folder"]).relative_to(spark).parts[0])
        received.update(note["received"])
    assert readers == {"worker-1", "worker-2"}, readers
    givers = {node for node, count in received.items() if count >= READ_BYTES_MIN}
    assert len(givers) >= 2, received


def require_equal(here: PipelineSettings, there: PipelineSettings) -> None:
    """Every table of the one has the rows of the other."""
    ours = {table.layout.name: rows_of(table) for table in tables_of(here)}
    theirs = {table.layout.name: rows_of(table) for table in tables_of(there)}
    assert ours.keys() == theirs.keys()
    for name, rows in ours.items():
        assert rows.num_rows == theirs[name].num_rows, name
        assert rows.equals(theirs[name]), f"{name} differs: {difference(rows, theirs[name])}"


def rows_of(table: Table) -> pa.Table:
    """All rows in one order. Sums of floats depend on the order of adding, so these are rounded."""
    parts: list[pa.Table] = []
    for file in table.files():
        with pq.ParquetFile(table.path_of(file)) as source:
            parts.append(source.read().cast(table.layout.schema))
    rows = pa.concat_tables(parts) if parts else table.layout.schema.empty_table()
    for place, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(place, field, pc.round(rows.column(place), 6))
    if table.layout.name == UNDECODED_LAYOUT.name:  # a row for each step of decoding
        rows = rows.group_by(["channel", "day", "pgn", "reason"]).aggregate([("frames", "sum")])
    if table.layout.name == DEVICES_LAYOUT.name:  # being heard again is written down now and then, not at every step
        rows = rows.drop_columns(["last_time"])
    return rows.sort_by([(name, "ascending") for name in rows.schema.names])


def difference(ours: pa.Table, theirs: pa.Table) -> Sequence[str]:
    return [name for name in ours.schema.names if not ours[name].equals(theirs[name])]
