"""The scenarios of Liftbridge's own tests (reference/liftbridge.md, section 8), by their numbers there.

Those about NATS, gRPC, Raft membership and subscriptions as a service belong to other files; here each has the part of
it that replication keeps.
"""

from __future__ import annotations

import pytest

from tests.replication.replica_kit import Kit
from tidelog.blocks.control import EpochStarted, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.core.catalog import (
    Catalog,
    DeleteChannel,
    ExpandIsr,
    PauseChannel,
    SetReadonly,
    ShrinkIsr,
    ShrinkReason,
)
from tidelog.core.client_messages import AckPolicy
from tidelog.core.replication.messages import Notify, SyncRequest
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.progress import ReplicaProgress, committed_end
from tidelog.core.replication.roles import Role
from tidelog.errors import (
    ChannelReadonly,
    InvalidChange,
    LeaderOutsideIsr,
    NotChannelLeader,
    NotEnoughReplicas,
    NotInIsr,
    NotInReplicas,
    OffsetConflict,
)
from tidelog.storage.log.epochs import EpochHistory


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def test_l01_two_channels_lose_their_leader_and_all_100_records_of_each_stay_in_order() -> None:
    kit = Kit("a", "b", "c")
    one, other = kit.create("one"), kit.create("other")
    kit.write(*numbered(100), channel_id=one)
    kit.write(*numbered(100, 100), channel_id=other)
    kit.stop("a")
    kit.run_until(lambda: "a" not in (kit.record(one).leader, kit.record(other).leader))
    kit.write(b"after one", channel_id=one)
    kit.write(b"after other", channel_id=other)
    assert kit.leader(one).committed(one) == [*numbered(100), b"after one"]
    assert kit.leader(other).committed(other) == [*numbered(100, 100), b"after other"]
    for name in "bc":
        assert kit.catalog.leader_count(name) == sum(kit.record(key).leader == name for key in (one, other))


def test_l02_with_a_follower_down_nothing_is_acknowledged_before_the_isr_shrinks() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit["c"].kill()  # its session goes on for now
    kit.produce(b"two")
    kit.run(500)
    assert (b"two",) not in kit.results()
    kit.run_until(lambda: (b"two",) in kit.results(), ms=7_000)
    assert kit.results()[(b"two",)].error is None
    assert set(kit.record().isr_nodes) == {"a", "b"}


def test_l03_a_leader_ack_comes_at_once_with_its_token() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit["c"].kill()
    kit.produce(b"two", ack=AckPolicy.LEADER, token="correlation 7")
    kit.run()
    result = kit.results()["correlation 7"]
    assert (result.error, result.first_offset) == (None, 2)


def test_l03b_who_wants_no_ack_is_answered_before_anything_is_written() -> None:
    kit = Kit("a")
    kit.create(factor=1)
    kit["a"].held_back = []
    kit.produce(b"one", ack=AckPolicy.NONE)
    kit.produce(b"two", ack=AckPolicy.LEADER)
    kit.run()
    assert [result.token for result in kit["a"].results] == [(b"one",)]
    kit.release("a")
    assert [result.token for result in kit["a"].results] == [(b"one",), (b"two",)]


def test_l04_what_only_the_leader_held_is_committed_when_the_follower_returns() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2, min_isr=2)
    kit.write(*numbered(5))
    kit["b"].kill()
    for value in numbered(5, 5):
        kit.produce(value, ack=AckPolicy.LEADER)
    kit.run(50)
    assert all(kit.results()[(value,)].error is None for value in numbered(5, 5))
    kit["a"].kill()
    kit["a"].start()
    kit["b"].start()
    kit.run_until(kit.is_whole)
    assert kit.leader().name == "a"
    kit.run_until(lambda: kit["b"].replica().serves)
    assert kit["a"].committed() == kit["b"].committed() == numbered(10)


def test_l04b_below_min_isr_writes_are_refused_in_words() -> None:
    """Liftbridge went on acknowledging (its scenario 4); here a channel below its minimum takes nothing (R4)."""
    kit = Kit("a", "b")
    kit.create(factor=2, min_isr=2)
    kit.write(b"one")
    kit.stop("b")
    assert kit.record().isr_nodes == ("a",)
    with pytest.raises(NotEnoughReplicas, match="needs 2") as caught:
        kit.produce(b"two")
    assert caught.value.retriable
    assert caught.value.definite
    kit["b"].start()
    kit.run_until(kit.is_whole)
    kit.write(b"two")


def test_l05_followers_that_know_no_committed_end_lose_nothing_when_they_elect_at_once() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one", b"two")
    kit.run_until(kit.is_whole)
    for name in "bc":  # both restart: what they knew of the committed end is gone
        kit["b" if name == "b" else "c"].kill()
    for name in "bc":
        kit[name].start()
    assert kit["b"].replica().committed_end == 0
    kit.freeze("a")
    kit.fence("a")
    kit.run_until(lambda: kit.record().leader in ("b", "c"))
    kit.write(b"three")
    assert kit.leader().committed() == [b"one", b"two", b"three"]


def test_l06_logs_that_parted_are_equal_again_when_the_old_leader_returns() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"hello")
    kit.run_until(kit.is_whole)
    kit.isolate("a")
    kit.produce(b"world", at="a")  # on the old leader alone
    kit.run(10)
    kit.fence("a")
    kit.run_until(lambda: kit.record().leader in ("b", "c"))
    kit.write(b"goodnight", b"moon")
    assert kit["a"].values() == [b"hello", b"world"]
    kit.heal()
    kit["a"].reconnect()
    kit.run_until(kit.is_whole)
    assert kit["a"].values() == kit["b"].values() == kit["c"].values() == [b"hello", b"goodnight", b"moon"]
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()
    lost = kit.results()[(b"world",)].error
    assert lost is not None
    assert not lost.definite


def test_l07_a_follower_whose_request_was_lost_is_notified_of_new_data() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.lose = lambda to, sender, message: isinstance(message, SyncRequest) and sender == "b"
    kit.produce(b"two")
    kit.run(100)
    kit.lose = lambda to, sender, message: False
    kit.run_until(lambda: (b"two",) in kit.results(), ms=2_000)
    notice = kit.delivered(Notify, to="b")[0]
    assert (notice.channel_id, notice.leader_epoch) == (1, 1)


def test_l08_a_follower_that_would_sleep_for_an_hour_is_woken_by_data() -> None:
    kit = Kit("a", "b", options=ReplicationOptions(replica_max_idle_wait_ms=3_600_000))
    kit.create(factor=2)
    kit.write(b"one")
    kit.run(5_000, step_ms=50)
    begin = kit.now_ms
    kit.produce(b"two")
    kit.run()
    assert kit.now_ms == begin
    assert kit.results()[(b"two",)].error is None


def test_l09_the_isr_falls_and_rises_on_every_node() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.stop("c")
    assert {len(kit[name].replica().record.isr) for name in "ab"} == {2}
    kit["c"].start()
    kit.run_until(kit.is_whole)
    assert {kit[name].replica().record.isr_nodes for name in "abc"} == {("a", "b", "c")}


def progress(held_end: int, *, known: bool = True) -> ReplicaProgress:
    one = ReplicaProgress(0)
    one.is_known, one.held_end = known, held_end
    return one


def test_l10_the_committed_end_is_the_smallest_of_all_that_count() -> None:
    followers = [progress(2), progress(3)]
    assert committed_end(current=0, own_end=3, counted=followers, isr_count=3, min_isr=2) == 2
    assert committed_end(current=0, own_end=3, counted=[], isr_count=1, min_isr=1) == 3
    assert committed_end(current=1, own_end=3, counted=followers, isr_count=1, min_isr=2) == 1, "below its minimum"


def test_l10b_only_who_waits_for_all_is_answered_by_a_commit() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"zero")
    kit["b"].held_back = []
    kit.produce(b"all")
    kit.produce(b"leader", ack=AckPolicy.LEADER)
    kit.run()
    assert (b"leader",) in kit.results()
    assert (b"all",) not in kit.results()
    kit.release("b")
    assert kit.results()[(b"all",)].error is None


def test_l11_who_is_no_replica_neither_joins_nor_leaves_an_isr() -> None:
    kit = Kit("a", "b", "c", "d")
    kit.create()
    epoch = kit.record().channel_epoch
    joining = ExpandIsr(channel_id=1, expected_channel_epoch=epoch, member="d", incarnation=1)
    with pytest.raises(NotInReplicas):
        kit.take(joining)
    leaving = ShrinkIsr(channel_id=1, expected_channel_epoch=epoch, members=("d",), reason=ShrinkReason.LAGGING)
    with pytest.raises(NotInIsr):
        kit.take(leaving)


def test_l11b_a_member_that_leaves_lets_the_leader_commit_at_once() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit["c"].kill()
    kit.produce(b"two")
    kit.run(50)
    epoch = kit.record().channel_epoch
    kit.take(ShrinkIsr(channel_id=1, expected_channel_epoch=epoch, members=("c",), reason=ShrinkReason.FENCED))
    kit.run()
    assert kit.results()[(b"two",)].error is None


def test_l12_a_leader_is_never_outside_its_isr() -> None:
    """Liftbridge's leader added itself again. Here the catalog refuses whatever would put it outside."""
    kit = Kit("a", "b", "c")
    kit.create()
    shrink = ShrinkIsr(channel_id=1, expected_channel_epoch=1, members=("a",), reason=ShrinkReason.LAGGING)
    with pytest.raises(LeaderOutsideIsr):
        kit.take(shrink)
    with pytest.raises(LeaderOutsideIsr):
        kit.alter(replicas=("b", "c"))


@pytest.mark.parametrize(("asked_ms", "asks"), [(9_000, 0), (10_300, 1), (25_000, 2)])
def test_l13_an_idle_follower_asks_again_after_the_idle_wait(asked_ms: int, asks: int) -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.run(20)
    begin = len(kit.sent)
    kit.run(asked_ms, step_ms=50)
    requests = [one for _, sender, one in kit.sent[begin:] if isinstance(one, SyncRequest) and sender == "b"]
    assert len(requests) in (asks, asks + 1), "each channel is looked at once in every round of all of them"


def test_l14_an_epoch_history_knows_where_each_epoch_ends() -> None:
    history = EpochHistory([(1, 0), (1, 5), (3, 10)])
    assert history.pairs() == [(1, 0), (3, 10)], "assigned once per epoch"
    assert history.end_of(1, 20) == (1, 10)
    assert history.end_of(2, 20) == (1, 10), "the largest not above it (KIP-279)"
    assert history.end_of(3, 20) == (3, 20)
    assert history.end_of(0, 20) is None
    history.truncate(10)
    assert history.pairs() == [(1, 0)]
    history = EpochHistory([(1, 0), (3, 10)])
    history.trim(12)
    assert history.pairs() == [(3, 12)]
    assert EpochHistory(floor=7).newest == 7


def test_l15_a_restarted_replica_finds_its_records_and_its_epochs_again() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.elect("b")
    kit.run()
    kit.write(b"two")
    pairs = kit["a"].replica().epochs.pairs()
    assert [epoch for epoch, _ in pairs] == [1, 2]
    kit.stop("a")
    kit["a"].start()
    kit.run()
    assert kit["a"].replica().epochs.pairs() == pairs
    kit.run_until(kit.is_whole)
    assert kit["a"].committed() == [b"one", b"two"]


def test_l15b_a_readonly_channel_takes_nothing_and_is_read_to_its_end() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.take(SetReadonly(channel_id=1, expected_channel_epoch=kit.record().channel_epoch, readonly=True))
    with pytest.raises(ChannelReadonly):
        kit.produce(b"two")
    kit.run(20)
    assert kit["a"].committed() == kit["b"].committed() == [b"one"]
    kit.take(SetReadonly(channel_id=1, expected_channel_epoch=kit.record().channel_epoch, readonly=False))
    kit.write(b"two")


def test_l16_readers_everywhere_stop_at_what_is_committed() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["c"].held_back = []
    kit.produce(b"two")
    kit.run(20)
    assert kit["a"].values() == kit["b"].values() == [b"one", b"two"]
    for name in "abc":
        assert kit[name].committed() == [b"one"], f"{name} shows what is not committed"
    kit.release("c")
    kit.run(10)
    for name in "abc":
        assert kit[name].committed() == [b"one", b"two"]


def test_l16b_readers_are_told_when_there_is_more_and_when_the_channel_is_gone() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    core = kit["b"].core
    kit.run(50)
    kit.produce(b"two")
    moved: list[int] = []
    poll = core.poll

    def watched(now_ms: int) -> ReplicasOutput | None:
        output = poll(now_ms)
        if output is not None:
            moved.extend(replica.channel_id for replica in output.moved)
        return output

    core.poll = watched  # type: ignore[method-assign]
    kit.run(50)
    assert moved, "a new committed end was told"
    moved.clear()
    kit.take(DeleteChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch, at_ms=1))
    kit.run()
    assert moved == [1]
    assert core.replica(1) is None


def test_l17_a_node_that_restarts_from_a_snapshot_of_the_catalog_takes_part_as_before() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.create("other", factor=2)
    kit.write(b"one")
    kit.catalog = Catalog.restore(kit.catalog.snapshot())
    kit.stop("b")
    kit["b"].start()
    kit.run_until(lambda: kit.is_whole(1) and kit.is_whole(2))
    assert kit["b"].committed() == [b"one"]


def test_l17b_a_channel_deleted_and_created_again_while_a_node_was_away_is_another_channel() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"old")
    kit.stop("b")
    kit.take(DeleteChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch, at_ms=1))
    kit.run()
    kit["b"].start()
    kit["b"].core.forget_strays(kit["b"].storage.logs.known())
    kit.run()
    second = kit.create(factor=2)
    assert second == 2
    kit.write(b"new", channel_id=second)
    kit.run(20)
    assert kit["b"].committed(second) == [b"new"]
    assert kit["b"].storage.logs.known() == {2: "spray"}


def test_l17c_a_log_of_a_channel_that_the_catalog_does_not_know_is_never_deleted() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit["b"].core.forget_strays([1, 99])
    kit.run()
    assert kit["b"].storage.logs.known() == {1: "spray"}, "RRE2"


def test_l18_who_does_not_lead_says_who_does() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    with pytest.raises(NotChannelLeader) as caught:
        kit.produce(b"two", at="b")
    assert (caught.value.leader, caught.value.retriable, caught.value.definite) == ("a", True, True)
    kit.take(PauseChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    with pytest.raises(NotChannelLeader):
        kit.produce(b"two", at="a")


def test_l18b_a_follower_in_contact_serves_and_one_that_has_not_heard_its_leader_yet_does_not() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run(20)
    assert kit["b"].replica().serves
    kit.isolate("c")
    kit.elect("b")
    kit.run()
    assert kit["a"].replica().serves
    assert not kit["c"].replica().serves
    kit.heal()
    kit.run(1_000)
    assert kit["c"].committed() == [b"one"]


def test_l19_optimistic_writers_are_told_when_another_was_first() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.produce(b"two", expected_offset=2)
    with pytest.raises(OffsetConflict) as caught:
        kit.produce(b"three", expected_offset=2)
    assert (caught.value.actual, caught.value.definite) == (3, True)
    kit.produce(b"three", expected_offset=caught.value.actual)
    kit.produce(b"four", expected_offset=-1)
    kit.run(10)
    assert kit["a"].committed() == [b"one", b"two", b"three", b"four"]


def test_the_first_record_of_every_epoch_says_who_began_it() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.elect("b")
    kit.run(10)
    found = [
        record
        for block in kit["a"].blocks()
        if block.maker.kind == BlockKind.CONTROL
        for record in decode_control(block.maker, block.raw_body())
    ]
    assert found == [EpochStarted(epoch=1, node="a"), EpochStarted(epoch=2, node="b")]
    assert kit.roles() == {"a": Role.REPLICA, "b": Role.LEADER}


def test_a_change_that_names_a_replica_twice_is_refused() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    with pytest.raises(InvalidChange):
        kit.alter(replicas=("a", "b", "b"))
