"""The pipeline's benchmarks answer with one flat object that has every named key and only finite numbers.

Each run has a process of its own, because a process has one Spark session. The slow lane also asserts the bars, of the
run that a quiet machine of two cores does in minutes: if one fails, look at `processors_used`, `load_average` and
`spread` first, and measure again in full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.kits.process_tree import tree_processor_s
from benchmarks.pipeline.freshness_bench import row_ages_s
from benchmarks.pipeline.pipeline_bench import growth
from benchmarks.pipeline.pipeline_cases import Cost, Moments
from benchmarks.pipeline.pipeline_logs import DELTA, LIVE, LIVE_FRAMES, PLAIN, write_logs

from tests.bench.test_bench import assert_flat_and_finite, missed, number
from tests.patience import patient
from tests.pipeline.table_kit import START, frames_table, part
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.columns import FRAMES, batches
from tidelog.pipeline.sources.logs import ChannelEnds, Logs, Piece

PIPELINE_KEYS = {
    "ingest_vs_parquet",
    "ingest_live_vs_parquet",
    "scan_vs_parquet",
    "scan_delta_vs_parquet",
    "scan_vs_tuples",
    "decode_frames_per_s",
    "decode_vs_nmea2000",
    "bytes_per_frame",
    "marginal_last_vs_middle",
    "ingest_rows_per_s",
    "rewrite_rows_per_s",
    "scan_rows_per_s",
    "parquet_scan_rows_per_s",
    "tuples_rows_per_s",
}
FRESHNESS_KEYS = {"p50_s", "p99_s", "max_s", "signals_p50_s", "signals_p99_s", "commits", "counted_frames"}

AT_LEAST = {
    "ingest_running_vs_parquet": 2.0,
    "ingest_live_running_vs_parquet": 0.5,
    "scan_running_vs_parquet": 0.5,
    "scan_delta_running_vs_parquet": 0.35,
    "scan_vs_tuples": 10.0,
    "decode_frames_per_s": 5e6,
    "decode_vs_nmea2000": 20.0,
}

TINY_PIPELINE = """
import json, sys
from benchmarks.pipeline.pipeline_bench import Sizes, run
sizes = Sizes(frames=120_000, live_frames=20_000, tuple_frames=4_000, boats=2, rounds=1, growth_batches=3,
              decode_rounds=1)
print(json.dumps(run(folder=sys.argv[1], sizes=sizes)))
"""
TINY_FRESHNESS = """
import json, sys
from benchmarks.pipeline.freshness_bench import Sizes, run
sizes = Sizes(boats=2, frames_per_s=50, nodes=1, warm_s=5.0, warm_commits=1, seconds=10.0, trigger_ms=1_000,
              gold_every_ms=0, warm_gold_runs=0)
print(json.dumps(run(folder=sys.argv[1], sizes=sizes)))
"""


def results_of(*arguments: str, seconds: float) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    assert_flat_and_finite(results)
    found: dict[str, object] = results
    return found


# --- the fast lane: what the numbers are made of ------------------------------------------------------


def test_plain_and_delta_logs_hold_the_same_frames_and_the_live_log_the_first_of_them(tmp_path: Path) -> None:
    logs = write_logs(tmp_path, frames=40_000, live_frames=2_000, boats=2)
    rows = {kind: _rows(logs.path(kind)) for kind in (PLAIN, DELTA, LIVE)}
    assert len(rows[PLAIN]) == 40_000
    assert rows[PLAIN] == rows[DELTA]
    # Of a live frame only the moment of its block's arrival differs.
    but_arrival = slice(0, -1)
    first = [row for row in rows[PLAIN] if row[FRAMES.names.index("offset")] < 1_000]
    assert [row[but_arrival] for row in rows[LIVE]] == [row[but_arrival] for row in first]
    with_blocks = LogsAddress(path=logs.path(LIVE)).open()
    assert {block.maker.record_count for block in _blocks(with_blocks)} == {LIVE_FRAMES}
    assert logs.log_bytes(DELTA) < logs.log_bytes(PLAIN) / 3


def _rows(path: str) -> list[tuple[object, ...]]:
    logs = LogsAddress(path=path).open()
    found: list[tuple[object, ...]] = []
    for ends in logs.channels():
        for batch in batches(logs.blocks(_whole(ends)), _whole(ends), FRAMES.names):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def _blocks(logs: Logs) -> list:  # type: ignore[type-arg]
    return [block for ends in logs.channels() for run in logs.blocks(_whole(ends)) for block in run]


def _whole(ends: ChannelEnds) -> Piece:
    return Piece(
        channel=ends.channel,
        channel_id=ends.channel_id,
        leader_epoch=ends.leader_epoch,
        start=ends.log_start,
        end=ends.committed_end,
    )


def test_growth_compares_the_last_third_with_the_middle_one() -> None:
    moments = Moments()
    for done, wall_s, processor_s in ((0, 0, 0), (30, 90, 9), (60, 100, 12), (90, 120, 15)):
        moments.frames.append(done)
        moments.costs.append(Cost(wall_s, processor_s))
    found = growth(moments, 90)
    assert found["marginal_last_vs_middle"] == 0.5
    assert found["marginal_last_vs_middle_processor"] == 1.0
    assert found["marginal_batches"] == 3
    assert moments.whole == Cost(120, 15)


def test_processor_time_counts_children_that_run_and_that_have_ended() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\n"
    before = tree_processor_s()
    subprocess.run([sys.executable, "-c", spin], check=True, timeout=patient(60))
    ended = tree_processor_s()
    assert ended - before >= 0.25
    with subprocess.Popen(
        [sys.executable, "-c", spin + "print(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_processor_s() - ended >= 0.25
        child.communicate(b"\n", timeout=patient(60))


def test_a_row_is_as_old_as_its_commit_is_late(tmp_path: Path) -> None:
    table = frames_table(tmp_path)
    table.commit_append("main", [part(table, 0, 100)])
    (visible_ns,) = [path.stat().st_ctime_ns for path in table.folder.glob("_delta_log/*1.json")]
    times_us = int(START.timestamp() * 1e6) + np.arange(50, 100) * 10_000
    ages_s = row_ages_s(table, from_us=int(times_us[0]), until_us=int(times_us[-1]) + 1)
    assert np.allclose(np.sort(ages_s), np.sort(visible_ns / 1e9 - times_us / 1e6), atol=0.01)


# --- the slow lane: whole runs ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pipeline_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = results_of("-c", TINY_PIPELINE, str(tmp_path), seconds=1700)
    for key in PIPELINE_KEYS:
        assert number(results, key) > 0, key
    assert results["frames"] == 120_000
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_freshness_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = results_of("-c", TINY_FRESHNESS, str(tmp_path), seconds=850)
    for key in FRESHNESS_KEYS:
        assert number(results, key) > 0, key
    assert results["stages_failing"] == 0
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pipeline_bench_reaches_its_bars(tmp_path: Path) -> None:
    command = "from benchmarks.pipeline.pipeline_bench import run; import json, sys; "
    results = results_of(
        "-c", command + "print(json.dumps(run(quick=True, folder=sys.argv[1])))", str(tmp_path), seconds=3500
    )
    assert not missed(results, at_least=AT_LEAST, at_most={}), results


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_are_fresh(tmp_path: Path) -> None:
    command = "from benchmarks.pipeline.freshness_bench import run; import json, sys; "
    results = results_of(
        "-c", command + "print(json.dumps(run(quick=True, folder=sys.argv[1])))", str(tmp_path), seconds=850
    )
    assert not missed(results, at_least={}, at_most={"p50_s": 5.0, "p99_s": 5.0}), results
