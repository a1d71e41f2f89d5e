"""The weaknesses of Liftbridge (reference/liftbridge.md, section 12), each as a scenario that must hold here.

W11 (torn files) is at home in tests/storage, W12's node-wide part and W15's threads in tests of the shell, W23 (one
record per send) in the benchmarks, W24's telemetry nowhere: there is none. Each still has its replicated part here.
"""

from __future__ import annotations

import random

import pytest

from tests.replication.replica_kit import Kit
from tidelog.cluster.replication.lag import statistics_of
from tidelog.core.catalog import (
    ChangeLeader,
    FsyncPolicy,
    RaiseChannelEpoch,
    RemoveNode,
    ShrinkIsr,
    ShrinkReason,
    UncleanCause,
)
from tidelog.core.client_messages import AckPolicy
from tidelog.core.replication.messages import ProposeChange, SyncError, SyncNack, SyncResponse
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.errors import (
    LeadershipLost,
    NotChannelLeader,
    NotElectable,
    NotEnoughReplicas,
    OutOfSequence,
    ProducerFenced,
    StaleChannelEpoch,
    TooManyInFlight,
)
from tidelog.sim.disk import SimDisk

PRODUCER = b"producer" + (1).to_bytes(8, "little")
REOPENED = b"producer" + (2).to_bytes(8, "little")


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


def test_w01_after_two_failovers_no_replica_keeps_a_record_too_many() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(9))
    kit.run_until(kit.is_whole)
    kit.isolate("a")
    kit.produce(b"only on a", at="a")
    kit.run(10)
    kit.fence("a")
    kit.run_until(lambda: kit.leading()[-1:] == ["b"])
    kit.write(b"in epoch 2")
    kit.isolate("b")
    kit.produce(b"only on b", at="b")
    kit.run(10)
    kit.fence("b")
    kit.run_until(lambda: kit.record().leader == "c")
    kit.heal()
    kit["a"].reconnect()
    kit["b"].reconnect()
    kit.run_until(kit.is_whole)
    kit.write(b"in epoch 3")
    kit.run_until(kit.is_whole)
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()
    assert kit["c"].committed() == [*numbered(9), b"in epoch 2", b"in epoch 3"]


def test_w02_histories_that_parted_again_and_again_are_made_equal_in_rounds() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"common")
    kit.run_until(kit.is_whole)
    kit.controller_on = False
    kit.cut("a", "b")
    kit.produce(b"only on a", at="a")
    kit.run()
    for name in ("b", "a", "b", "a", "b"):  # epochs 2 to 6, none of which the other hears of
        kit.elect(name)
        kit.run(10)
        kit.produce(b"only on %s" % name.encode(), at=name)
        kit.run(10)
    assert [epoch for epoch, _ in kit["a"].replica().epochs.pairs()] == [1, 3, 5]
    assert [epoch for epoch, _ in kit["b"].replica().epochs.pairs()] == [1, 2, 4, 6]
    kit.heal()
    kit.controller_on = True
    kit.run_until(kit.is_whole)
    cuts = [nack for nack in kit.delivered(SyncNack, to="a") if nack.error is SyncError.DIVERGED]
    assert [nack.epoch for nack in cuts] == [4, 2, 1]
    assert kit["a"].bytes_of() == kit["b"].bytes_of()


def test_w03_a_follower_that_hears_of_an_election_first_cuts_nothing() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.lagging["b"] = []
    kit.elect("b")
    kit.run(300)
    assert kit.delivered(SyncNack, to="c")[-1].error is SyncError.NOT_LEADER
    assert kit["c"].values() == [b"one"], "nothing was cut meanwhile, least of all by the committed end"
    kit.catch_up("b")
    kit.run_until(kit.is_whole)
    assert kit.leading() == ["b"]


def test_w04_a_shrink_that_arrives_after_an_election_is_refused() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    late = ShrinkIsr(
        channel_id=1, expected_channel_epoch=kit.record().channel_epoch, members=("b",), reason=ShrinkReason.LAGGING
    )
    kit.elect("b")
    with pytest.raises(StaleChannelEpoch):
        kit.take(late)
    assert kit.record().leader in kit.record().isr_nodes


def test_w05_who_is_joining_counts_before_the_catalog_says_so() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.stop("c")
    kit.write(b"one")
    kit.lose = lambda to, sender, message: isinstance(message, ProposeChange)
    kit["c"].start()
    kit.run(200)
    assert set(kit.record().isr_nodes) == {"a", "b"}
    kit["c"].held_back = []
    kit.produce(b"two")
    kit.run(200)
    assert (b"two",) not in kit.results(), "R3: the proposal may be on its way to being committed"
    kit.release("c")
    kit.run(10)
    assert kit.results()[(b"two",)].error is None
    kit.lose = lambda to, sender, message: False
    kit.run_until(kit.is_whole)


def test_w05b_a_proposal_that_stays_undecided_is_fenced_and_then_counts_no_more() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.stop("c")
    kit.write(b"one")
    lost: list[bytes] = []

    def lose(to: str, sender: str, message: object) -> bool:
        if isinstance(message, ProposeChange) and b"expand_isr" in message.change:
            lost.append(message.change)
            return True
        return False

    kit.lose = lose
    kit["c"].start()
    kit.run(100)
    kit["c"].kill()  # and nobody fences it
    kit.produce(b"two")
    kit.run_until(lambda: (b"two",) in kit.results(), ms=5_000)
    raised = [one for one in kit.delivered(ProposeChange) if b"raise_channel_epoch" in one.change]
    assert len(lost) >= 2, "it was repeated first"
    assert raised
    assert set(kit.record().isr_nodes) == {"a", "b"}


def test_w06_with_two_of_three_gone_the_last_one_leads() -> None:
    kit = Kit("a", "b", "c")
    kit.create(min_isr=1)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["a"].kill()
    kit["c"].kill()
    kit.fence("a", "c")
    kit.run_until(lambda: kit.leading() == ["b"])
    kit.write(b"two")
    assert kit["b"].committed() == [b"one", b"two"]
    assert kit.record().isr_nodes == ("b",)
    kit["a"].start()
    kit["c"].start()
    kit.run_until(kit.is_whole)
    assert kit["c"].committed() == [b"one", b"two"]


def test_w06b_below_its_minimum_the_last_one_leads_refuses_writes_and_goes_on_when_another_is_back() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["a"].kill()
    kit["c"].kill()
    kit.fence("a", "c")
    kit.run_until(lambda: kit.leading() == ["b"] and kit.record().isr_nodes == ("b",))
    with pytest.raises(NotEnoughReplicas):
        kit.produce(b"two")
    assert {member.node for member in kit.record().eligible} <= {"a", "c"}
    kit["a"].start()
    kit.run_until(lambda: len(kit.record().isr) == 2)
    kit.write(b"two")
    assert kit["b"].committed() == [b"one", b"two"]


def test_w06c_with_the_witnesses_dead_the_leaders_lost_session_is_enough() -> None:
    kit = Kit("a", "b", "c")
    kit.create(min_isr=1)
    kit.write(b"one")
    kit["a"].kill()
    kit["b"].kill()
    kit.run(3_000)
    assert kit.record().leader == "a", "one witness of two is no majority"
    kit.fence("a")
    kit.run_until(lambda: kit.leading() == ["c"], ms=2_000)


def test_w07_witnesses_of_an_old_leader_say_nothing_about_the_new_one() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit["a"].kill()
    kit.run_until(lambda: kit.record().leader == "b")
    epoch = kit.record().leader_epoch
    kit.run(5_000)
    assert (kit.record().leader, kit.record().leader_epoch) == ("b", epoch)
    assert kit.controller.witnesses.witnesses(kit.record(), kit.now_ms) == ()


def test_w07b_one_bad_link_between_two_deposes_nobody() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.cut("a", "b")
    kit.run(4_000)
    assert (kit.record().leader, kit.record().leader_epoch) == ("a", 1)
    assert kit["b"].replica().role is Role.CANDIDATE


def test_w08_a_silent_node_is_not_elected_while_another_can_lead() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.freeze("b")  # smaller by name, and its session is not over yet
    kit.run(1_600)
    kit["a"].kill()
    kit.fence("a")
    kit.run(100)
    assert kit.record().leader == "c"


def test_w09_a_leader_that_lost_its_newest_records_leads_only_in_a_new_epoch() -> None:
    kit = Kit("a", "b", "c")
    kit.create(fsync=FsyncPolicy.NEVER)
    kit.write(*numbered(6))
    kit.run_until(kit.is_whole)
    kit["a"].kill()  # and what it had not synced is gone, or half of it
    kit["a"].start()
    kit.run_until(kit.is_whole)
    assert kit.record().leader_epoch >= 2
    assert kit.record().leader in ("b", "c"), "R5: it must catch up first"
    kit.write(*numbered(2, 6))
    kit.run_until(kit.is_whole)
    assert kit["a"].committed() == kit["b"].committed() == kit["c"].committed() == numbered(8)
    assert kit["a"].bytes_of() == kit["b"].bytes_of()


def test_w09b_when_all_lost_unsynced_records_at_once_the_longest_log_leads_and_it_is_on_record() -> None:
    kit = Kit("a", "b", "c", seed=7)
    kit.create(fsync=FsyncPolicy.NEVER)
    kit.write(*numbered(6))
    for name in "abc":
        kit[name].kill()
    for name in "abc":
        kit[name].start()
    kit.run_until(kit.is_whole)
    record = kit.record()
    assert [one.cause for one in record.unclean] == [UncleanCause.REPORTS]
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()
    kept = kit["a"].committed()
    assert kept == numbered(len(kept))


def test_w10_a_node_elected_while_it_was_down_leads_in_an_epoch_that_it_recorded() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["b"].kill()
    kit.elect("b")  # the catalog does not know yet that it is down
    kit["b"].start()
    kit.run_until(kit.is_whole)
    kit.write(b"two")
    newest = kit.leader().replica().epochs.newest
    assert newest == kit.record().leader_epoch
    assert newest >= 3, "R1: not the epoch of the process before"


def test_w11_power_lost_in_the_middle_of_writes_leaves_logs_that_are_made_equal() -> None:
    for seed in range(6):
        kit = Kit("a", "b", "c", seed=seed)
        kit.create()
        kit.write(*numbered(4))
        kit["b"].held_back = []
        for value in numbered(6, 4):
            kit.produce(value, ack=AckPolicy.LEADER)
        kit.run(5)
        kit["b"].kill()
        kit["a"].kill()
        kit["a"].start()
        kit["b"].start()
        kit.run_until(kit.is_whole)
        assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of(), f"seed {seed}"
        assert kit["a"].committed()[:4] == numbered(4), f"seed {seed}"


def test_w12_a_channel_that_cannot_be_written_harms_no_other() -> None:
    kit = Kit("a", "b", "c")
    bad, good = kit.create("bad"), kit.create("good")
    kit.write(b"one", channel_id=bad)
    with kit.refusing("a", channel_id=bad):
        kit.produce(b"two", channel_id=bad)
        kit.write(b"fine", channel_id=good)
        kit.run_until(lambda: kit.record(bad).leader != "a", ms=3_000)
        assert kit.record(good).leader == "a"
        kit.write(b"three", channel_id=bad)
        kit.write(b"also fine", channel_id=good)


def test_w13_a_follower_shows_only_what_is_durable_on_itself() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["c"].held_back = []
    kit.take(
        ShrinkIsr(
            channel_id=1, expected_channel_epoch=kit.record().channel_epoch, members=("c",), reason=ShrinkReason.LAGGING
        )
    )
    kit.write(b"two")
    kit.run(50)
    replica = kit["c"].replica()
    assert kit["a"].replica().committed_end == 3
    assert replica.log_end == 3, "it has received it"
    assert replica.committed_end == replica.held_end == 2
    assert kit["c"].committed() == [b"one"]


def test_w14_failover_takes_three_heartbeats_and_little_more() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit["a"].kill()
    assert kit.run_until(lambda: bool(kit.leading())) <= 1_500 + 150
    kit = Kit("a", "b", "c")
    kit.create(heartbeat_ms=100)
    kit.write(b"one")
    kit["a"].kill()
    assert kit.run_until(lambda: bool(kit.leading())) <= 300 + 150


def test_w15_a_truncation_that_takes_long_holds_up_nothing_else() -> None:
    kit = Kit("a", "b", "c")
    one, other = kit.create("one"), kit.create("other")
    kit.write(b"x", channel_id=one)
    kit.isolate("a")
    kit.produce(b"only on a", channel_id=one, at="a")
    kit.run(10)
    kit.fence("a")
    kit.run_until(lambda: "a" not in (kit.record(one).leader, kit.record(other).leader))
    kit["a"].held_back = []
    kit.heal()
    kit["a"].reconnect()
    kit.run(500)
    assert kit["a"].replica(one).storage.value == "changing"
    kit.alter(other, heartbeat_ms=900)
    assert kit["a"].replica(other).record.config.heartbeat_ms == 900
    kit.release("a")
    kit.run_until(lambda: kit.is_whole(one) and kit.is_whole(other))


def test_w16_a_node_without_a_replica_opens_nothing() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=1)
    assert kit["b"].core.replicas() == kit["c"].core.replicas() == []
    assert kit["b"].disk.list_folder("") == kit["c"].disk.list_folder("")


def test_w17_a_block_larger_than_a_chunk_passes_alone() -> None:
    kit = Kit("a", "b", options=ReplicationOptions(chunk_bytes_max=1_000))
    kit.create(factor=2)
    kit.write(b"small", b"large" * 2_000, b"small again")
    kit.run_until(kit.is_whole)
    assert kit["b"].committed() == [b"small", b"large" * 2_000, b"small again"]
    assert max(answer.data_bytes for answer in kit.delivered(SyncResponse, to="b")) > 10_000


def test_w18_writers_are_told_to_wait_when_too_much_is_not_committed() -> None:
    kit = Kit("a", "b", options=ReplicationOptions(uncommitted_bytes_max=10_000))
    kit.create(factor=2)
    for _ in range(200):
        kit.produce(b"tiny")  # many small ones before must not make the large ones look small
        kit.run()
    kit["b"].held_back = []
    for number in range(5):
        kit.produce(b"%02d" % number * 1_000, token=number)
    with pytest.raises(TooManyInFlight) as caught:
        kit.produce(b"one too many")
    assert caught.value.retriable
    assert 10_000 < caught.value.waiting_bytes < 13_000
    kit.release("b")
    kit.write(b"goes on")


def test_w19_an_old_leader_acknowledges_nothing_once_others_have_moved_on() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.isolate("a")
    kit.lagging["a"] = []
    kit.fence("a")
    kit.produce(b"to the old leader", at="a")
    kit.run_until(lambda: kit.record().leader != "a")
    kit.write(b"to the new leader")
    assert kit.leading() == ["a", kit.record().leader], "it does not know yet"
    assert (b"to the old leader",) not in kit.results()
    kit.heal()
    kit.catch_up("a")
    kit["a"].reconnect()
    kit.run_until(kit.is_whole)
    assert isinstance(kit.results()[(b"to the old leader",)].error, LeadershipLost)
    assert kit["a"].committed() == [b"one", b"to the new leader"]


def test_w19b_while_nobody_leads_a_writer_is_told_so_and_may_try_again() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.controller_on = False
    record = kit.record()
    kit.take(
        ChangeLeader(
            channel_id=1, expected_channel_epoch=record.channel_epoch, leader=None, incarnation=0, at_ms=kit.now_ms
        )
    )
    kit.run()
    with pytest.raises(NotChannelLeader) as caught:
        kit.produce(b"two", at="a")
    assert (caught.value.leader, caught.value.definite) == (None, True)
    kit.controller_on = True
    kit.run_until(lambda: bool(kit.leading()))
    kit.write(b"two")


def test_w20_replicas_start_after_a_restart_even_if_no_change_follows() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    for name in "abc":
        kit[name].kill()
    for name in "abc":
        kit[name].start()
    kit.run_until(kit.is_whole)
    kit.write(b"two")
    assert kit.leader().committed() == [b"one", b"two"]


def test_w21_nothing_of_an_ended_leadership_is_acknowledged_later() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["a"].held_back = []
    kit.produce(b"two", ack=AckPolicy.LEADER)
    kit.produce(b"three")
    kit.run(5)
    kit.elect("b")
    kit.run(5)
    kit.release("a")
    kit.run_until(kit.is_whole)
    outcomes = [result for result in kit["a"].results if result.token in ((b"two",), (b"three",))]
    assert [type(result.error) for result in outcomes] == [LeadershipLost, LeadershipLost]
    kit.check()


def test_w22_a_producer_that_repeats_itself_across_a_failover_is_in_the_log_once() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.produce(b"one", base_seq=1, producer=PRODUCER, token="first")
    kit.run(20)
    kit.isolate("a")
    kit.stop("a")
    kit.run_until(lambda: kit.record().leader != "a")

    def again() -> bool:
        try:
            kit.produce(b"one", base_seq=1, producer=PRODUCER, token="again")
        except NotChannelLeader:
            return False
        return True

    kit.run_until(again)
    kit.run(20)
    assert kit.results()["again"].error is None
    assert kit.results()["again"].first_offset == kit.results()["first"].first_offset
    kit.produce(b"two", base_seq=2, producer=PRODUCER, token="next")
    with pytest.raises(OutOfSequence):
        kit.produce(b"four", base_seq=4, producer=PRODUCER)
    kit.produce(b"anew", base_seq=1, producer=REOPENED, token="anew")
    with pytest.raises(ProducerFenced):
        kit.produce(b"three", base_seq=3, producer=PRODUCER)
    kit.run(20)
    assert kit.leader().committed() == [b"one", b"two", b"anew"]


def test_w22b_the_factor_is_raised_and_lowered_while_records_are_written() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=1)
    kit.write(b"one")
    kit.alter(factor=3)
    kit.run_until(lambda: len(kit.record().isr) == 3)
    kit.write(b"two")
    kit.run_until(kit.is_whole)
    assert kit["c"].committed() == [b"one", b"two"]
    kit.alter(factor=2)
    kit.run_until(lambda: len(kit.record().replicas) == 2)
    gone = ({"a", "b", "c"} - set(kit.record().replicas)).pop()
    kit.run(20)
    assert kit[gone].core.replica(1) is None
    assert kit[gone].storage.logs.known() == {}
    kit.write(b"three")


def test_w22c_replicas_move_and_no_copy_goes_before_its_replacement_has_come() -> None:
    kit = Kit("a", "b", "c", "d")
    kit.create(factor=2)
    kit.write(*numbered(4))
    kit["c"].held_back = []
    kit.alter(replicas=("c", "d", "a", "b"))
    kit.run(2_000)
    assert {"a", "b"} <= set(kit.record().replicas)
    kit.release("c")
    kit.run_until(lambda: set(kit.record().replicas) == {"c", "d"})
    kit.run_until(kit.is_whole)
    assert kit["d"].committed() == numbered(4)
    assert kit.leader().name in ("c", "d")


def test_w22d_an_unclean_election_is_only_an_operators_and_is_on_record_for_ever() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.stop("c")
    kit.write(b"two")
    kit["a"].kill()
    kit["b"].kill()
    kit.fence("a", "b")
    kit["c"].start()
    kit.run(2_000)
    assert kit.leading() == [], "who lacks committed records does not lead by itself"
    forced = ChangeLeader(
        channel_id=1,
        expected_channel_epoch=kit.record().channel_epoch,
        leader="c",
        incarnation=kit["c"].incarnation,
        at_ms=1,
        operator="anna",
    )
    kit.take(forced)
    kit.run(50)
    assert kit.leading() == ["c"]
    assert [(one.cause, one.operator) for one in kit.record().unclean] == [(UncleanCause.OPERATOR, "anna")]
    kit["a"].start()
    kit["b"].start()
    kit.run_until(kit.is_whole)
    assert kit["a"].committed() == kit["c"].committed() == [b"one"]
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()
    assert any("committed records are cut" in line or "truncates" in line for line in kit["a"].lines)


def test_w22e_while_somebody_can_lead_without_loss_an_operators_slip_costs_nothing() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    slip = ChangeLeader(
        channel_id=1,
        expected_channel_epoch=kit.record().channel_epoch,
        leader="c",
        incarnation=1,
        at_ms=1,
        operator="anna",
    )
    with pytest.raises(NotElectable):
        kit.take(slip)


def test_w22f_a_node_whose_disk_was_replaced_is_filled() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=3)
    kit.write(*numbered(20))
    kit.stop("c")
    kit["c"].disk = SimDisk(random.Random(9))
    kit["c"].start(disk_id="d15c00000000")
    kit.run_until(kit.is_whole)
    assert kit["c"].committed() == numbered(20)


def test_w24_every_replica_tells_the_same_committed_end() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(3))
    kit.run(10)
    told = {statistics_of(kit[name].replica()).committed_end for name in "abc"}
    assert told == {4}
    kit.take(RaiseChannelEpoch(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run(10)
    assert {statistics_of(kit[name].replica()).committed_end for name in "abc"} == {4}


def test_w22g_extra_replicas_leave_though_one_that_was_removed_stands_before_them() -> None:
    kit = Kit("a", "b", "c", "d")
    kit.create(factor=4, leader="b")
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.controller_on = False
    kit["a"].kill()
    kit.fence("a")
    kit.take(RemoveNode(node="a", force=True))
    kit.alter(factor=2)
    kit.controller_on = True
    kit.run_until(lambda: set(kit.record().replicas) == {"b", "c"})
    kit.write(b"two")
