"""The link benchmark answers with one flat object; the slow lane asserts its bars.

The bars want a quiet machine of two cores: if one fails, look at the `_spread` keys first, and measure again in full.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.cluster import link_bench

from tests.bench.test_bench import assert_flat_and_finite, number

KEYS = {
    "small_messages_per_s",
    "small_requests_per_s",
    "request_p50_ms",
    "bulk_mb_per_s",
    "socket_mb_per_s",
    "bulk_vs_socket",
    "heartbeat_p99_ms",
}
TINY = link_bench.LinkSizes(
    messages=2_000, message_rounds=1, requests=200, bodies=8, bulk_rounds=1, heartbeat_bodies=20
)


def test_link_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = link_bench.bench_link(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert results.keys() >= KEYS
    for key in KEYS:
        assert number(results, key) > 0, key
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
def test_link_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = link_bench.bench_link(quick=True, folder=str(tmp_path))
    assert number(results, "small_messages_per_s") >= 200_000, results
    assert number(results, "bulk_vs_socket") >= 0.8, results
    assert number(results, "heartbeat_p99_ms") <= 20, results
