"""A real Spark cluster whose workers have another folder under the tables' path: refused before anything is committed.

`/proc/self/cwd` is such a path. It names the working folder of the process that opens it, so driver and executors see
different folders there, as machines do on which nobody mounted the tables' file system.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient
from tests.pipeline.folders import fleet
from tests.pipeline.standalone import SparkCluster
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT

DRIVER_S = 300.0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_workers_that_do_not_share_the_folder_are_refused_before_a_commit(tmp_path: Path) -> None:
    fleet(tmp_path / "logs", blocks=4)
    with SparkCluster(tmp_path / "spark", workers=2) as workers:
        for table_format in ("delta", "iceberg"):
            here = tmp_path / table_format
            here.mkdir()
            said = backfill(workers, here, tmp_path / "logs", table_format, "/proc/self/cwd/lake", code=2)
            assert "/proc/self/cwd/lake/frames is not one folder for Spark's driver and its workers" in said
            assert "on every worker" in said
            table = open_table(here / "lake", FRAMES_LAYOUT)
            if table_format == "delta":
                assert table.files() == [], "nothing is committed"
                assert table.positions("main", range(10)) == {}
        assert list((tmp_path / "spark").rglob("*.parquet")) == [], "no worker has written anything"
        shared = tmp_path / "shared"
        shared.mkdir()
        backfill(workers, shared, tmp_path / "logs", "delta", str(shared / "lake"), code=0)
    assert sum(file.rows for file in open_table(shared / "lake", FRAMES_LAYOUT).files()) > 0


def backfill(workers: SparkCluster, here: Path, logs: Path, table_format: str, tables: str, *, code: int) -> str:
    """What a driver that runs in `here` says."""
    arguments = ["-path", str(logs), "-tables", tables, "-format", table_format, "-master", workers.master]
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "pipeline", "backfill", "-channels", "boat-*", *arguments],
        cwd=here,
        env=workers.environment,
        capture_output=True,
        text=True,
        timeout=patient(DRIVER_S),
        check=False,
    )
    assert done.returncode == code, done.stderr[-4000:]
    return done.stderr
