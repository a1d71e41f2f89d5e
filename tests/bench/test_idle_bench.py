"""The idle benchmark measures channels that are whole, and nodes as the system sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.cluster import idle_bench

from tests.bench.test_bench import assert_flat_and_finite, missed, number

TINY = idle_bench.IdleSizes(channels=30, settle_s=0.2, seconds=0.5)


@pytest.mark.slow
def test_idle_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = idle_bench.bench_idle(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert results["channels"] == 30
    for key in ("cpu_fraction", "rss_mb", "create_s"):
        assert number(results, key) > 0, key
    assert number(results, "rss_mb") >= number(results, "rss_empty_mb") / 2
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
def test_idle_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = idle_bench.bench_idle(quick=True, folder=str(tmp_path))
    assert not missed(results, at_least={}, at_most={"cpu_fraction": 0.10, "rss_mb": 500, "create_s": 60}), results
