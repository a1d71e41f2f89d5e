"""The cluster benchmark compares with a real peer, counts only what is there, and answers with one flat object."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.cluster import catchup_bench, cluster_bench
from benchmarks.kits.channel_kit import WrongRecords, create_channel, require_records
from benchmarks.kits.cluster_client import ProducePump, PublishPump, PumpLink
from benchmarks.kits.cluster_kit import ClusterKit

from tests.bench.test_bench import assert_flat_and_finite, missed, number
from tidelog.errors import LogError, NotChannelLeader
from tidelog.units import MIB

KEYS = {
    "batched_vs_nats",
    "single_vs_nats",
    "latency_p50_vs_nats",
    "replication_overhead",
    "batched_64b_vs_nats",
    "batched_1024b_vs_nats",
    "single_records_per_s",
    "nats_single_records_per_s",
}
TINY = cluster_bench.ClusterSizes(rounds=1, seconds=1.0, warm_up_s=0.2)
CATCH_UP_TINY = catchup_bench.CatchupSizes(
    backlog_bytes=4 * MIB, budget_bytes=8 * MIB, peak_bytes_per_s=4_000_000, alone_s=0.3
)


@pytest.mark.slow
def test_cluster_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = cluster_bench.bench_cluster(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert results.keys() >= KEYS
    for key in KEYS:
        assert number(results, key) > 0, key
    assert number(results, "batched_vs_nats") == min(
        number(results, "batched_64b_vs_nats"), number(results, "batched_1024b_vs_nats")
    )
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


@pytest.mark.slow
def test_pumps_count_what_the_channel_holds_and_no_refusal(tmp_path: Path) -> None:
    async def scenario(kit: ClusterKit) -> None:
        async with kit.caller() as caller:
            await kit.wait_formed(caller)
        channel = await create_channel(kit)
        client = await PumpLink.connect(kit, channel)
        try:
            one = await client.run(ProducePump(channel, size=10, records=7, requests=3), seconds=0.2)
            other = await client.run(PublishPump(channel, size=10, in_flight=50), seconds=0.2)
            assert one.acked >= one.records > 0
            assert other.acked >= other.records > 0
            await require_records(client.link, channel.channel_id, one.acked + other.acked)
            with pytest.raises(WrongRecords):
                await require_records(client.link, channel.channel_id, one.acked + other.acked + 1)
        finally:
            await client.close()
        follower = next(node for node in channel.replicas if node != channel.leader)
        wrong = await PumpLink.connect(kit, channel.at(follower))
        try:
            with pytest.raises(NotChannelLeader):
                await wrong.once(PublishPump(channel, size=10, in_flight=1))
            with pytest.raises(LogError):
                await wrong.run(ProducePump(channel, size=10, records=7, requests=3), seconds=5.0)
        finally:
            await wrong.close()

    with ClusterKit(tmp_path, nodes=3) as kit:
        kit.start_all()
        asyncio.run(scenario(kit))


@pytest.mark.slow
def test_cluster_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = cluster_bench.bench_cluster(quick=True, folder=str(tmp_path))
    at_least = {"batched_vs_nats": 1.0, "single_vs_nats": 0.5}
    assert not missed(results, at_least=at_least, at_most={}), results


@pytest.mark.slow
def test_catchup_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = catchup_bench.bench_catchup(folder=str(tmp_path), sizes=CATCH_UP_TINY)
    assert_flat_and_finite(results)
    for key in ("leader_keeps", "catch_up_s", "budget_mb_per_s"):
        assert number(results, key) > 0, key
    assert number(results, "budget_wanted_mb_per_s") == 2.0
    # A busy machine may fall behind the budget; nothing makes it go beyond.
    assert number(results, "budget_mb_per_s") <= 1.1 * number(results, "budget_wanted_mb_per_s"), results
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"
