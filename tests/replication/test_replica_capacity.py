"""Under capacity, budgets, ranges that are gone: seed 001's policies on replicas and leaders (R10, R11, F3)."""

from __future__ import annotations

import pytest

from tests.replication.replica_kit import Kit
from tidelog.cluster.replication.orders import SweepLog
from tidelog.cluster.replication.state import Storage
from tidelog.core.catalog import ChannelRetention, UnderCapacity
from tidelog.core.replication.messages import Resign, SyncError, SyncNack, SyncResponse, Withdraw
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.errors import DiskFull, MemoryLogFull

PRODUCER = b"producer" + (1).to_bytes(8, "little")


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


def whole(*names: str, **config: object) -> Kit:
    kit = Kit(*names)
    kit.create(**config)  # type: ignore[arg-type]
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    return kit


# --- Withdraw ----------------------------------------------------------------------------------------


def test_a_replica_whose_disk_is_full_withdraws_and_others_go_on() -> None:
    kit = whole("a", "b", "c")
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(20)
        assert kit["c"].replica().role is Role.IDLE
        assert kit["c"].counts().under_capacity == 1
        kit.run_until(lambda: (b"two",) in kit.results(), ms=500)
    assert set(kit.record().isr_nodes) == {"a", "b"}
    assert "space" in kit["c"].replica().problem
    assert kit["c"].core.load_report().chains == (), "its tag is withdrawn"


def test_a_withdrawn_replica_is_replaced_by_another_node() -> None:
    kit = Kit("a", "b", "c", "d")
    kit.create(factor=3)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run_until(lambda: set(kit.record().isr_nodes) == {"a", "b", "d"})
    kit.run(20)
    assert kit["d"].committed() == [b"one", b"two"]
    assert kit["c"].core.replica(1) is None
    assert kit["c"].storage.logs.known() == {}, "which makes room there"


def test_a_withdrawn_replica_comes_back_when_there_is_room_again() -> None:
    kit = whole("a", "b", "c")
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(200)
    kit.write(*numbered(5))
    assert kit["c"].replica().role is Role.IDLE
    took_ms = kit.run_until(kit.is_whole, ms=40_000)
    assert 25_000 < took_ms < 32_000
    assert kit["c"].committed() == [b"one", b"two", *numbered(5)]
    assert kit.record().leader_epoch == 1, "in the epoch in which it left"


def test_rp5_who_withdraws_keeps_its_copy_until_nobody_counts_on_it() -> None:
    kit = Kit("a", "b", "c")
    kit.create(persistent=False)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.lose = lambda to, sender, message: isinstance(message, Withdraw)
    full = MemoryLogFull(log="spray", held_bytes=1, bytes_max=1)
    with kit.refusing("b", full), kit.refusing("c", full):
        kit.produce(b"two")
        kit.run(300)
    assert kit["b"].replica().role is Role.IDLE
    assert kit["b"].replica().storage is Storage.READY, "nobody has heard of it yet"
    kit["a"].kill()  # and with it the only other copy
    kit.fence("a")
    kit.run_until(lambda: bool(kit.leading()))
    assert kit.leader().values() == [b"one"]
    kit.lose = lambda to, sender, message: False
    kit.run_until(lambda: kit.leader().replica().serves)
    assert kit.leader().committed() == [b"one"]


def test_a_withdrawal_that_was_not_heard_is_said_again_and_then_the_log_is_closed() -> None:
    kit = whole("a", "b", "c")
    kit.lose = lambda to, sender, message: isinstance(message, Withdraw) and kit.now_ms < 12_000
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(300)
        assert "c" in kit.record().isr_nodes
        kit.run_until(lambda: "c" not in kit.record().isr_nodes, ms=3_000)
    kit.run(20)
    assert kit["c"].replica().storage is Storage.CLOSED
    assert "space" in kit.delivered(Withdraw)[-1].reason


def test_withdrawing_twice_is_withdrawing_once() -> None:
    kit = whole("a", "b", "c")
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.produce(b"three")
        kit.run(2_000)
    assert kit["c"].counts().under_capacity == 1
    assert kit["c"].replica().role is Role.IDLE


# --- EvictOldest -------------------------------------------------------------------------------------


def test_evict_oldest_keeps_the_role_makes_room_and_tries_again() -> None:
    kit = Kit("a", "b", "c", segment_bytes_max=4096)
    kit.create(on_under_capacity=UnderCapacity.EVICT_OLDEST, retention=ChannelRetention(max_bytes=4096))
    kit.write(*(b"%03d" % number * 300 for number in range(20)))
    kit.run_until(kit.is_whole)
    start = kit["c"].replica().log_start
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(30)
        assert kit["c"].replica().role is Role.REPLICA
    kit.run_until(lambda: (b"two",) in kit.results(), ms=2_000)
    assert kit["c"].replica().log_start > start
    assert kit["c"].counts().under_capacity >= 1
    kit.run_until(kit.is_whole)
    assert set(kit.record().isr_nodes) == {"a", "b", "c"}


def test_evict_oldest_without_limits_frees_nothing_and_goes_on_trying() -> None:
    kit = whole("a", "b", "c", on_under_capacity=UnderCapacity.EVICT_OLDEST)
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(3_000)
        assert kit["c"].replica().role is Role.REPLICA
        assert kit["c"].counts().under_capacity >= 3
        assert kit["c"].replica().log_start == 0
    kit.run_until(kit.is_whole)


def test_f3_evicting_never_passes_what_the_fold_of_producers_needs() -> None:
    kit = Kit("a", "b", "c", segment_bytes_max=4096)
    kit.create(on_under_capacity=UnderCapacity.EVICT_OLDEST, retention=ChannelRetention(max_bytes=4096))
    kit.produce(b"once", base_seq=1, producer=PRODUCER, token="once")
    kit.write(*(b"%03d" % number * 300 for number in range(20)))
    kit.run_until(kit.is_whole)
    swept: list[int] = []
    carry_out = kit["c"].storage.carry_out

    def watched(orders, now_us):  # type: ignore[no-untyped-def]
        swept.extend(order.floor for order in orders if isinstance(order, SweepLog))
        return carry_out(orders, now_us)

    kit["c"].storage.carry_out = watched  # type: ignore[method-assign]
    with kit.refusing("c"):
        kit.produce(b"two")
        kit.run(500)
    assert swept, "it was tried"
    assert set(swept) == {0}, "no snapshot holds the producer yet: nothing may go"
    kit.run_until(kit.is_whole)
    kit.stop("a")
    kit.stop("b")
    kit.run(100)
    assert kit["c"].replica().log_start == 0


# --- a leader's own disk -----------------------------------------------------------------------------


def test_r10_a_leader_whose_disk_is_full_hands_over() -> None:
    kit = whole("a", "b", "c")
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run_until(lambda: kit.record().leader in ("b", "c"), ms=1_000)
        kit.run_until(lambda: (b"two",) in kit.results(), ms=1_000)
        assert not kit.results()[(b"two",)].error.definite  # type: ignore[union-attr]
        kit.write(b"three")
    assert "refused" in kit.delivered(Resign)[0].reason
    kit.run_until(kit.is_whole, ms=60_000)
    kit.check()


def test_a_pinned_leader_whose_disk_is_full_is_not_asked_back_at_once() -> None:
    kit = whole("a", "b", "c", leader_pinned="a", on_under_capacity=UnderCapacity.EVICT_OLDEST)
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run_until(lambda: kit.record().leader != "a", ms=1_000)
        kit.run(15_000, step_ms=50)
        assert kit.record().leader_epoch == 2, "leadership does not go back and forth"
    kit.run_until(lambda: kit.leading() == ["a"], ms=60_000)


def test_a_channel_of_one_replica_tells_its_writer_and_goes_on_when_there_is_room() -> None:
    kit = whole("a", factor=1)
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run(10)
        error = kit.results()[(b"two",)].error
        assert isinstance(error, DiskFull)
        assert error.definite
    kit.write(b"three")
    assert kit["a"].committed() == [b"one", b"three"]
    assert kit.record().leader_epoch == 1


def test_a_channel_of_one_replica_is_readable_as_soon_as_its_first_record_fits() -> None:
    kit = whole("a", factor=1)
    kit.stop("a")
    kit["a"].start()
    with kit.refusing("a"):
        kit.run(2_000)
        assert not kit["a"].replica().serves
    kit.run_until(lambda: kit["a"].replica().serves, ms=2_000)
    assert kit["a"].committed() == [b"one"]


# --- ranges that are gone ----------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_bad_range_a_replica_whose_range_is_gone_begins_at_the_leaders_start(persistent: bool) -> None:
    kit = Kit("a", "b", segment_bytes_max=4096)
    kit.create(factor=2, persistent=persistent, retention=ChannelRetention(max_bytes=4096))
    kit.write(b"old")
    kit.run_until(kit.is_whole)
    kit.isolate("b")
    kit.fence("b")
    kit.run(100)
    kit.write(*(b"%03d" % number * 300 for number in range(30)))
    leader = kit["a"].replica()
    leader.sweep(leader.committed_end)
    kit.run(10)
    assert leader.log_start > 2
    kit.heal()
    kit["b"].reconnect()
    kit.run_until(kit.is_whole)
    nacks = [one for one in kit.delivered(SyncNack, to="b") if one.error is SyncError.BAD_RANGE]
    assert len(nacks) == 1
    assert kit["b"].counts().skip_ahead == 1
    assert kit["b"].replica().log_start == leader.log_start
    assert kit["b"].values() == kit["a"].values()


def test_a_reset_replica_can_lead_and_be_followed() -> None:
    kit = Kit("a", "b", segment_bytes_max=4096)
    kit.create(factor=2, retention=ChannelRetention(max_bytes=4096))
    kit.write(b"old")
    kit.stop("b")
    kit.write(*(b"%03d" % number * 300 for number in range(30)))
    leader = kit["a"].replica()
    leader.sweep(leader.committed_end)
    kit.run(10)
    kit["b"].start()
    kit.run_until(kit.is_whole)
    kit.elect("b")
    kit.run_until(kit.is_whole)
    kit.write(b"new")
    kit.stop("a")
    kit["a"].start()
    kit.run_until(kit.is_whole)
    assert kit["a"].committed()[-1] == b"new"
    kit.check()


# --- budgets -----------------------------------------------------------------------------------------


def test_backpressure_a_replica_out_of_sync_waits_and_one_in_sync_never_does() -> None:
    kit = Kit("a", "b", "c", peak_bytes_per_s=40_000, options=ReplicationOptions(chunk_bytes_max=5_000))
    kit.create(replication_budget_ppm=500_000)
    kit.stop("c")
    kit.write(*(b"%02d" % number * 500 for number in range(60)))
    begin_ms = kit.now_ms
    kit["c"].start()
    kit.run(50)
    nacks = [one for one in kit.delivered(SyncNack, to="c") if one.error is SyncError.BACKPRESSURE]
    assert nacks
    assert all(nack.retry_after_ms > 0 for nack in nacks)
    assert not kit.delivered(SyncNack, to="b"), "RLE4: live traffic is never held back"
    live_ms = kit.now_ms
    kit.write(b"live")
    assert kit.now_ms == live_ms
    kit.run_until(kit.is_whole, ms=20_000)
    assert kit.now_ms - begin_ms > 1_000, "60 kB at 20 kB/s, less what the bucket held"


def test_a_replica_that_all_writers_wait_for_is_not_held_back_by_a_budget() -> None:
    kit = Kit("a", "b", "c", peak_bytes_per_s=40_000, options=ReplicationOptions(chunk_bytes_max=5_000))
    kit.create(replication_budget_ppm=500_000)
    kit.stop("c")
    kit.write(*(b"%02d" % number * 500 for number in range(60)))
    kit.alter(min_isr=3)
    begin_ms = kit.now_ms
    kit["c"].start()
    kit.run_until(kit.is_whole, ms=20_000)
    assert not kit.delivered(SyncNack, to="c"), "below min_isr there is no live traffic to spare"
    assert kit.now_ms - begin_ms < 1_000


def test_catch_up_of_one_replica_is_in_chunks_while_another_is_served_from_memory() -> None:
    kit = Kit("a", "b", "c", options=ReplicationOptions(chunk_bytes_max=4_000, tail_bytes_max=8_000))
    kit.create()
    kit.stop("c")
    kit.write(*(b"%03d" % number * 300 for number in range(60)))
    begin = len(kit.sent)
    kit["c"].start()
    kit.run_until(kit.is_whole)
    chunks = [one for to, _, one in kit.sent[begin:] if isinstance(one, SyncResponse) and one.data and to == "c"]
    assert len(chunks) > 10
    assert kit["c"].bytes_of() == kit["a"].bytes_of()


def test_fw5_a_replica_whose_disk_is_slow_takes_no_more_than_a_few_chunks_into_memory() -> None:
    kit = Kit("a", "b", "c", options=ReplicationOptions(chunk_bytes_max=4_000))
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["c"].held_back = []
    for number in range(200):
        kit.produce(b"%03d" % number * 300)
        kit.run(20)
    received = kit["c"].replica().log_end - kit["c"].replica().held_end
    assert 60 < received <= 80, "64 KiB, or four chunks where that is more"
    kit.run(10_000, step_ms=50)
    assert kit["c"].replica().log_end - kit["c"].replica().held_end == received, "being reminded changes nothing"
    kit.release("c")
    kit.run_until(kit.is_whole)
    assert kit["c"].bytes_of() == kit["a"].bytes_of()
