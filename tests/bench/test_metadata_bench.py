"""The metadata benchmark answers with one flat object; the slow lane asserts its bars.

The latency bar wants a quiet machine and its real disk: start pytest with --basetemp on it if /tmp is memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.cluster import metadata_bench

from tests.bench.test_bench import assert_flat_and_finite, number

KEYS = {
    "commit_p50_ms",
    "client_commit_p50_ms",
    "client_commit_p99_ms",
    "fsync_p50_ms",
    "commit_p50_max_ms",
    "proposals_per_fsync",
    "proposals_per_s",
    "read_p50_ms",
    "read_follower_p50_ms",
    "failover_ms",
}
TINY = metadata_bench.MetadataSizes(changes=200, single_changes=20, rounds=1, reads=10, failovers=1)


def test_metadata_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = metadata_bench.bench_metadata(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert results.keys() >= KEYS
    for key in KEYS:
        assert number(results, key) > 0, key
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
def test_metadata_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = metadata_bench.bench_metadata(quick=True, folder=str(tmp_path))
    assert number(results, "proposals_per_fsync") >= 8, results
    assert number(results, "commit_p50_ms") <= 4 * number(results, "fsync_p50_ms") + 1, results
    assert number(results, "failover_ms") <= 2_000, results
