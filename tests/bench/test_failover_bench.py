"""The failover benchmark strikes real nodes in three ways, and loses and doubles nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.cluster import failover_bench
from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.kits.node_fronts import NodeFronts

from tests.bench.test_bench import assert_flat_and_finite, missed, number

KEYS = {"p50_s", "max_s", "vs_nats", "fast_p50_s", "kill_p50_s", "stop_p50_s", "partition_p50_s", "nats_p50_s"}
TINY = failover_bench.FailoverSizes(rounds=1, nats_rounds=1)


@pytest.mark.slow
def test_failover_bench_answers_with_every_named_key_and_loses_nothing(tmp_path: Path) -> None:
    results = failover_bench.bench_failover(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    for key in KEYS:
        assert number(results, key) > 0, key
    assert results["metadata_p50_s"] is None, "one round strikes no metadata leader"
    assert number(results, "acked") > 0
    assert not missed(results, at_least={}, at_most={"lost": 0, "duplicated": 0}), results
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
def test_failover_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = failover_bench.bench_failover(quick=True, folder=str(tmp_path))
    bars = {"p50_s": 2.0, "max_s": 2.5, "vs_nats": 0.5, "fast_p50_s": 0.6, "lost": 0, "duplicated": 0}
    assert not missed(results, at_least={}, at_most=bars), results


@pytest.mark.slow
def test_a_node_that_is_cut_off_is_missed_by_the_others_and_reached_by_clients(tmp_path: Path) -> None:
    async def scenario(kit: ClusterKit, fronts: NodeFronts) -> None:
        async with kit.caller() as caller:
            leader = await kit.wait_formed(caller)
            fronts.isolate(leader)
            assert await kit.wait_leader(caller, other_than=leader) != leader
            assert await kit.status(caller, leader) is not None, "clients still reach it"
            fronts.heal()
            await kit.wait_formed(caller)

    with ClusterKit(tmp_path, nodes=3) as kit, NodeFronts(kit) as fronts:
        fronts.start_all()
        asyncio.run(scenario(kit, fronts))
