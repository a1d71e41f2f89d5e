"""The lifecycle, the failure modes and the counters of seed 001, row by row, on the production cores."""

from __future__ import annotations

import pytest

from tests.replication.replica_kit import Kit
from tidelog.cluster.replication.lag import statistics_of
from tidelog.core.catalog import ChannelRetention, DeleteChannel, UnderCapacity
from tidelog.core.replication.messages import SyncError, SyncNack, SyncResponse
from tidelog.core.replication.metrics import Lag
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Cause, Role
from tidelog.errors import InvalidTransition, WrongCause


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


def whole(*names: str, **config: object) -> Kit:
    kit = Kit(*names)
    kit.create(**config)  # type: ignore[arg-type]
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    return kit


# --- lifecycle ---------------------------------------------------------------------------------------


def turns(kit: Kit, name: str) -> list[str]:
    return [line for line in kit[name].lines if line.startswith("role ")]


def test_the_lifecycle_of_the_seed_from_idle_to_leader_and_back() -> None:
    kit = whole("a", "b", "c")
    assert [line.split("was=")[1] for line in turns(kit, "b")] == ["idle now=replica cause=capability_selected"]
    kit["a"].kill()
    kit.run_until(lambda: kit.leading() == ["b"])
    kit.take(DeleteChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch, at_ms=1))
    kit.run(10)
    assert [line.split("was=")[1] for line in turns(kit, "b")[1:]] == [
        "replica now=candidate cause=missed_heartbeats",
        "candidate now=leader cause=election_won",
        "leader now=idle cause=channel_close",
    ]
    assert [line.split("was=")[1] for line in turns(kit, "c")[1:]] == [
        "replica now=candidate cause=missed_heartbeats",
        "candidate now=replica cause=election_lost",
        "replica now=idle cause=channel_close",
    ]


def test_without_anybody_eligible_candidates_stay_and_the_election_is_tried_again() -> None:
    kit = whole("a", "b", "c", min_isr=1)
    kit["b"].held_back, kit["c"].held_back = [], []
    kit.produce(b"two")
    kit.run_until(lambda: kit.record().isr_nodes == ("a",), ms=7_000)
    assert kit.results()[(b"two",)].error is None
    kit["a"].kill()
    kit.fence("a")
    kit.run(5_000, step_ms=50)
    assert kit.roles() == {"b": Role.CANDIDATE, "c": Role.CANDIDATE}, "NoEligible: neither holds everything"
    kit["a"].start()
    kit.release("b")
    kit.release("c")
    kit.run_until(kit.is_whole)
    assert kit.leading() == ["a"]
    assert kit["b"].committed() == [b"one", b"two"]


def test_a_role_changes_by_the_table_only() -> None:
    kit = whole("a", "b", "c")
    replica = kit["b"].replica()
    with pytest.raises(InvalidTransition):
        replica.turn(Role.LEADER, Cause.ELECTION_WON)
    with pytest.raises(WrongCause):
        replica.turn(Role.CANDIDATE, Cause.ELECTION_WON)
    assert replica.role is Role.REPLICA


def test_a_leader_that_is_replaced_becomes_a_replica_and_one_that_is_moved_away_goes_idle() -> None:
    kit = whole("a", "b", "c", factor=2)
    kit.elect("b")
    kit.run(20)
    assert turns(kit, "a")[-1].endswith("was=leader now=replica cause=peer_leader_observed")
    kit.run_until(kit.is_whole)
    replica = kit["a"].replica()
    kit.alter(replicas=("b", "c"))
    kit.run_until(lambda: set(kit.record().isr_nodes) == {"b", "c"})
    assert replica.role is Role.IDLE
    assert turns(kit, "a")[-1].endswith("cause=placement_deselected")


def test_a_pinned_leader_is_handed_back_to_once_it_is_healthy() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.stop("a")
    kit.run_until(lambda: kit.leading() == ["b"])
    kit.write(b"two")
    kit["a"].start()
    kit.run_until(lambda: kit.leading() == ["a"])
    assert kit.run_until(kit.is_whole) < 5_000
    kit.write(b"three")
    assert kit["a"].committed() == [b"one", b"two", b"three"]


def test_a_pinned_leader_that_is_not_in_sync_is_not_handed_back_to() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.stop("a")
    kit.run_until(lambda: kit.leading() == ["b"])
    kit.write(b"two")
    kit["a"].start()
    kit["a"].held_back = []
    kit.run(8_000, step_ms=50)
    assert kit.record().leader == "b"


# --- failure modes -----------------------------------------------------------------------------------


def test_row_1_a_replica_whose_leaders_budget_is_used_up_lags_and_catches_up_when_it_is_raised() -> None:
    kit = Kit("a", "b", "c", peak_bytes_per_s=10_000, options=ReplicationOptions(chunk_bytes_max=2_000))
    kit.create(replication_budget_ppm=10_000)
    kit.stop("c")
    kit.write(*(b"%02d" % number * 500 for number in range(30)))
    kit["c"].start()
    kit.run(3_000, step_ms=50)
    assert statistics_of(kit["c"].replica()).lag_records > 20
    assert kit.delivered(SyncNack, to="c")[-1].error is SyncError.BACKPRESSURE
    kit.alter(replication_budget_ppm=1_000_000)
    kit.run_until(kit.is_whole, ms=30_000)


def test_row_2_a_heartbeat_too_short_for_its_link_changes_leaders_and_a_longer_one_does_not() -> None:
    def changes(heartbeat_ms: int) -> int:
        kit = whole("a", "b", "c", heartbeat_ms=heartbeat_ms)
        for _ in range(3):
            leader = kit.leader().name
            kit.isolate(leader)
            kit.run(600)  # a link that stalls
            kit.heal()
            kit.run(1_000)
        return sum(node.counts().leader_changes for node in kit.nodes.values())

    assert changes(100) > 1
    assert changes(500) == 1


def test_row_3_under_capacity_and_a_replica_that_disappeared() -> None:
    kit = whole("a", "b", "c")
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(500)
    assert kit["c"].counts().under_capacity == 1
    assert kit["c"].replica().role is Role.IDLE
    assert turns(kit, "c")[-1].endswith("was=replica now=idle cause=disk_pressure_withdraw")
    kit.run_until(kit.is_whole, ms=40_000)  # space was freed


def test_row_4_skip_ahead_when_the_leaders_range_has_passed_the_replica() -> None:
    kit = Kit("a", "b", segment_bytes_max=4096)
    kit.create(factor=2, persistent=False, retention=ChannelRetention(max_bytes=4096))
    kit.write(b"old")
    kit.run_until(kit.is_whole)
    kit.isolate("b")
    kit.fence("b")
    kit.run(50)
    kit.write(*(b"%03d" % number * 300 for number in range(20)))
    kit["a"].replica().sweep(kit["a"].replica().committed_end)
    kit.run(10)
    assert kit["b"].counts().skip_ahead == 0
    kit.heal()
    kit["b"].reconnect()
    kit.run_until(kit.is_whole)
    assert kit["b"].counts().skip_ahead == 1


def test_row_5_flaky_connectivity_is_counted_and_never_makes_two_leaders_of_one_epoch() -> None:
    kit = whole("a", "b", "c", heartbeat_ms=100)
    for _ in range(4):
        kit.isolate(kit.leader().name)
        kit.run(700)
        kit.heal()
        kit.run(300)
    kit.run_until(kit.is_whole)
    assert sum(node.counts().election_thrash for node in kit.nodes.values()) >= 4
    kit.check()


# --- each counter moves exactly when the seed says ---------------------------------------------------


def counts(kit: Kit) -> dict[str, tuple[int, ...]]:
    fields = ("sync_bytes", "leader_changes", "under_capacity", "skip_ahead", "election_thrash", "witness_withdrawals")
    return {field: tuple(getattr(kit[name].counts(), field) for name in "abc") for field in fields}


def test_in_a_quiet_channel_nothing_is_counted() -> None:
    kit = whole("a", "b", "c")
    before = counts(kit)
    kit.run(30_000, step_ms=50)
    assert counts(kit) == before
    assert before["leader_changes"] == (1, 0, 0)


def test_sync_bytes_are_those_of_the_answers_with_data() -> None:
    kit = whole("a", "b", "c")
    kit.write(*numbered(5))
    kit.run(50)
    sent = sum(answer.data_bytes for answer in kit.delivered(SyncResponse))
    assert counts(kit)["sync_bytes"] == (sent, 0, 0)
    assert sent == 2 * len(kit["a"].bytes_of())


def test_leader_changes_count_entries_into_the_role_on_the_node_that_enters_it() -> None:
    kit = whole("a", "b", "c")
    kit.elect("b")
    kit.run(20)
    kit.elect("a")
    kit.run(20)
    assert counts(kit)["leader_changes"] == (2, 1, 0)
    assert counts(kit)["election_thrash"] == (0, 0, 0), "nobody was silent"


@pytest.mark.parametrize("policy", list(UnderCapacity))
def test_under_capacity_counts_with_both_policies(policy: UnderCapacity) -> None:
    kit = whole("a", "b", "c", on_under_capacity=policy)
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(20)
    assert counts(kit)["under_capacity"] == (0, 0, 1)


def test_backpressure_is_not_under_capacity() -> None:
    kit = Kit("a", "b", "c", peak_bytes_per_s=10_000, options=ReplicationOptions(chunk_bytes_max=2_000))
    kit.create()
    kit.stop("c")
    kit.write(*(b"%02d" % number * 500 for number in range(20)))
    kit["c"].start()
    kit.run_until(kit.is_whole)
    assert kit.delivered(SyncNack, to="c")
    assert counts(kit)["under_capacity"] == (0, 0, 0)
    assert counts(kit)["skip_ahead"] == (0, 0, 0)


def test_a_truncation_is_not_a_skip_ahead() -> None:
    kit = whole("a", "b", "c")
    kit.isolate("a")
    kit.produce(b"only here", at="a")
    kit.run(10)
    kit.fence("a")
    kit.run_until(lambda: kit.record().leader != "a")
    kit.heal()
    kit["a"].reconnect()
    kit.run_until(kit.is_whole)
    assert any(line.startswith("truncates") for line in kit["a"].lines)
    assert counts(kit)["skip_ahead"] == (0, 0, 0)


def test_election_thrash_counts_missed_heartbeats_once_for_each_silence() -> None:
    kit = whole("a", "b", "c")
    kit.cut("a", "b")
    kit.run(6_000)
    assert counts(kit)["election_thrash"] == (0, 1, 0)
    kit.heal()
    kit.run(1_000)
    kit.cut("a", "b")
    kit.run(3_000)
    assert counts(kit)["election_thrash"] == (0, 2, 0)


def test_witness_withdrawals_are_reserved_and_stay_at_zero() -> None:
    kit = whole("a", "b", "c")
    kit["a"].kill()
    kit.run_until(lambda: bool(kit.leading()))
    assert counts(kit)["witness_withdrawals"] == (0, 0, 0)


def test_series_of_a_channel_end_with_its_replica() -> None:
    kit = whole("a", "b", "c")
    kit.take(DeleteChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch, at_ms=1))
    kit.run(10)
    assert 'channel="spray"' not in kit["b"].core.metrics.snapshot().prometheus_text()


def lag(kit: Kit, name: str) -> Lag | None:
    kit[name].core.observe(kit.now_ms)
    return kit[name].counts().lag


def test_lag_seconds_of_a_leader_are_those_of_the_replica_heard_longest_ago() -> None:
    kit = whole("a", "b", "c")
    seen = lag(kit, "a")
    assert seen is not None
    assert (seen.role, seen.silence_us, seen.records) == ("leader", 0, 0)
    kit["c"].kill()
    kit.run(2_000)
    later = lag(kit, "a")
    assert later is not None
    assert 1_900_000 <= later.silence_us <= 2_100_000


def test_lag_seconds_of_a_replica_are_the_silence_of_its_leader() -> None:
    kit = whole("a", "b", "c")
    kit.run(5_000, step_ms=50)
    seen = lag(kit, "b")
    assert seen is not None
    assert (seen.role, seen.records, seen.byte_count) == ("replica", 0, 0)
    assert seen.silence_us <= 100_000, "an idle channel is not a silent leader"
    kit.controller_on = False
    kit["a"].kill()
    kit.run(3_000)
    later = lag(kit, "b")
    assert later is not None
    assert 2_900_000 <= later.silence_us <= 3_100_000


def test_lag_in_records_counts_what_is_not_durable_yet() -> None:
    kit = whole("a", "b", "c")
    kit["c"].held_back = []
    kit.produce(b"two")
    kit.produce(b"three")
    kit.run(20)
    for name in ("a", "c"):
        seen = lag(kit, name)
        assert seen is not None
        assert seen.records == 2
        assert seen.byte_count > 0
    behind = lag(kit, "b")
    assert behind is not None
    assert behind.records == 0


def test_a_replica_that_gave_up_its_role_has_no_lag() -> None:
    kit = whole("a", "b", "c")
    assert lag(kit, "c") is not None
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(20)
    assert lag(kit, "c") is None
    text = kit["c"].core.metrics.snapshot().prometheus_text()
    assert 'dataforts_replication_lag_seconds{channel="spray"' not in text
    assert 'dataforts_replication_under_capacity_total{channel="spray"} 1' in text
