"""Who is in sync: joining, leaving, registering, and what counts meanwhile (R3, R4, R6, R7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.catalog_kit import registration
from tests.replication.replica_kit import TO_METADATA, Kit
from tidelog.cluster.replication.state import Storage
from tidelog.core.catalog import (
    AddGrant,
    ExpandIsr,
    ShrinkIsr,
    ShrinkReason,
    decode_change,
    encode_change,
)
from tidelog.core.replication.messages import (
    ProposeChange,
    Resign,
    SyncError,
    SyncNack,
    SyncRequest,
    SyncResponse,
    Withdraw,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.errors import DiskFull

BEYOND_THE_LOG = SyncRequest(
    channel_id=1,
    leader_epoch=1,
    request_id=1 << 50,
    fetch_from=99,
    last_epoch=1,
    held_end=99,
    committed_end=0,
    incarnation=1,
    channel_epoch=1,
    chunk_bytes_max=1,
)
"""A request of a follower whose log is not the leader's: it claims to hold records that the leader never had."""


def whole(*names: str, **config: object) -> Kit:
    kit = Kit(*names)
    kit.create(**config)  # type: ignore[arg-type]
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    return kit


def test_ld4_that_a_short_member_leaves_is_proposed_until_it_is_heard() -> None:
    kit = whole("a", "b", "c")
    end = kit["a"].replica().committed_end
    lost = 0

    def lose(to: str, sender: str, message: object) -> bool:
        nonlocal lost
        is_first = isinstance(message, ProposeChange) and lost == 0
        lost += is_first
        return is_first or sender == "b"

    kit.lose = lose
    kit["b"].reconnect()  # as a new process it would come like this, with what its disk has left it
    for number in range(8):
        asked = replace(
            BEYOND_THE_LOG,
            request_id=BEYOND_THE_LOG.request_id + number,
            fetch_from=end - 1,
            held_end=end - 1,
            incarnation=kit["b"].incarnation,
            channel_epoch=kit.record().channel_epoch,
        )
        kit["a"].core.receive("b", asked, kit.now_ms)
        kit.run(100)
    assert lost == 1
    assert kit.record().isr_nodes == ("a", "c")
    assert kit.record().eligible == ()
    assert sum("member lost records" in line for line in kit["a"].lines) == 2, "and not at each of its requests"


def test_r3_a_leaving_member_counts_until_the_catalog_says_otherwise() -> None:
    kit = whole("a", "b", "c")
    kit.lose = lambda to, sender, message: isinstance(message, ProposeChange)
    kit["c"].kill()
    kit.produce(b"two")
    kit.run(8_000, step_ms=50)
    assert (b"two",) not in kit.results(), "the shrink was proposed, and never heard"
    kit.lose = lambda to, sender, message: False
    kit.run_until(lambda: (b"two",) in kit.results(), ms=2_000)


def test_r3_a_joining_replica_does_not_count_toward_the_minimum() -> None:
    kit = whole("a", "b", factor=2, min_isr=2)
    kit.stop("b")
    kit.lose = lambda to, sender, message: isinstance(message, ProposeChange)
    kit["b"].start()
    kit.run(300)
    leading = kit["a"].replica().leading
    assert leading is not None
    assert leading._joining == {"b"}
    end = kit["a"].replica().committed_end
    assert kit.record().isr_nodes == ("a",)
    assert kit["a"].replica().committed_end == end, "R4: one in sync of two is too few, even with a joining replica"


def test_r3_a_proposal_names_the_incarnation_that_caught_up() -> None:
    kit = whole("a", "b")
    kit.stop("b")
    kit["b"].start()
    kit.run_until(kit.is_whole)
    changes = [decode_change(one.change) for one in kit.delivered(ProposeChange)]
    assert ExpandIsr(channel_id=1, expected_channel_epoch=2, member="b", incarnation=2) in changes


def test_a_replica_that_registered_anew_joins_at_once_even_if_nothing_is_written() -> None:
    kit = whole("a", "b", "c")
    kit.fence("c")
    kit.run(100)
    assert kit.record().isr_nodes == ("a", "b")
    kit["c"].reconnect()
    assert kit.run_until(kit.is_whole) < 1_000


def test_a_replica_that_opened_its_log_before_its_node_was_registered_asks_as_soon_as_it_is() -> None:
    kit = whole("a", "b", "c")
    kit.stop("c")
    node = kit["c"]
    node._open()
    node.alive = True
    kit.hear()
    node.core.follow_catalog(kit.catalog, None, incarnation=0, now_ms=kit.now_ms)
    kit.run(100)
    assert not [
        one for one in kit.sent if one[1] == "c" and isinstance(one[2], SyncRequest) and one[2].incarnation == 0
    ]
    node.reconnect()
    assert kit.run_until(kit.is_whole) < 1_000


def test_a_leader_that_hears_of_a_registration_late_lets_the_node_join_then() -> None:
    kit = whole("a", "b", "c")
    kit.stop("c")
    real = kit.catalog.node
    kit.catalog.node = lambda name: None if name == "c" else real(name)  # type: ignore[method-assign,assignment]
    kit["c"].incarnation += 1
    kit["c"].alive = True
    kit["c"]._open()
    kit.hear()
    kit.lagging["a"] = []
    kit.take(registration("c", kit["c"].incarnation))
    kit["c"].core.follow_catalog(kit.catalog, None, incarnation=kit["c"].incarnation, now_ms=kit.now_ms)
    kit.run(1_000)
    assert kit.record().isr_nodes == ("a", "b"), "the leader does not know this incarnation yet"
    kit.catalog.node = real  # type: ignore[method-assign]
    del kit.lagging["a"]
    kit._follow(kit["a"], [], ["c"])
    assert kit.run_until(kit.is_whole) < 500


def test_a_leader_that_hears_late_that_a_member_left_believes_what_that_one_said_since() -> None:
    kit = whole("a", "b", "c", min_isr=3)
    kit.lagging["a"] = []
    kit.fence("c")
    kit.run(100)
    assert kit.record().isr_nodes == ("a", "b")
    kit["c"].reconnect()
    kit.run(100)
    leading = kit["a"].replica().leading
    assert leading is not None
    assert leading._progress["c"].channel_epoch == kit.record().channel_epoch > kit["a"].replica().record.channel_epoch
    kit.catch_up("a")
    assert kit.run_until(kit.is_whole) < 100, "nobody writes, so c has nothing more to say before its idle wait is over"


def test_a_follower_of_which_the_leader_knows_nothing_is_reminded_though_its_request_stands() -> None:
    kit = whole("a", "b", "c")
    leading = kit["a"].replica().leading
    assert leading is not None
    progress = leading._progress["c"]
    assert progress.stands
    kit.inject("a", "c", BEYOND_THE_LOG)
    assert not progress.is_known
    assert kit.run_until(lambda: progress.is_known) <= 2 * kit.options.repeat_ms


def test_a_member_whose_log_is_not_the_leaders_any_more_counts_for_nothing() -> None:
    kit = whole("a", "b", "c")
    kit["c"].kill()
    kit.inject("a", "c", BEYOND_THE_LOG)
    leading = kit["a"].replica().leading
    assert leading is not None
    assert not leading._progress["c"].is_known
    kit.run_until(lambda: "c" not in kit.record().isr_nodes, ms=7_000)


def test_a_sign_of_life_that_was_lost_is_given_again() -> None:
    kit = Kit("a", "b")
    kit.lose = lambda to, sender, message: isinstance(message, SyncResponse)
    kit.create(factor=2)
    kit.run(50)
    assert not kit["b"].replica().serves
    kit.lose = lambda to, sender, message: False
    kit.run_until(lambda: kit["b"].replica().serves, ms=1_000)
    kit.run(3_000)
    assert kit["b"].replica().role is Role.REPLICA


def test_a_committed_end_counts_though_the_records_beside_it_are_here_already() -> None:
    kit = whole("a", "b", "c")
    kit.lose = lambda to, sender, message: to == "b" and isinstance(message, SyncResponse) and not message.data
    kit.produce(b"two")
    kit.run(100)
    replica, end = kit["b"].replica(), kit["a"].replica().committed_end
    assert replica.committed_end < replica.held_end == end
    sent = [one for one in kit.delivered(SyncResponse, to="b") if one.data][-1]
    kit.inject("b", "a", replace(sent, committed_end=end))
    assert replica.committed_end == end


def test_a_committed_end_that_was_lost_on_the_way_is_told_when_the_link_is_back() -> None:
    kit = Kit("a", "b", options=ReplicationOptions(replica_max_idle_wait_ms=3_600_000))
    kit.create(factor=2)
    kit.write(b"one")
    kit.run(50)
    kit.lose = lambda to, sender, message: isinstance(message, SyncResponse) and not message.data
    kit.write(b"two")
    kit.run(50)
    assert kit["b"].committed() == [b"one"]
    kit.lose = lambda to, sender, message: False
    kit["b"].core.link_up("a", kit.now_ms)
    kit.run(10)
    assert kit["b"].committed() == [b"one", b"two"]


def test_who_comes_back_in_the_same_epoch_is_heard_though_its_log_was_opened_anew() -> None:
    kit = whole("a", "b", "c")
    for number in range(50):
        kit.write(b"more %d" % number)
    replica = kit["c"].replica()
    replica._storage_failed(DiskFull(operation="open", path="x", reason="for a moment"), kit.now_ms)
    kit.run(50)
    assert replica.storage is Storage.FAILED
    kit.produce(b"meanwhile")
    kit.run_until(kit.is_whole, ms=3_000)
    assert kit.record().leader_epoch == 1
    assert kit["c"].committed() == kit["a"].committed()


def test_who_says_that_it_does_not_lead_is_silent_from_then_on() -> None:
    kit = whole("a", "b", "c")
    kit.run(10_000, step_ms=100)
    kit.controller_on = False
    request = [one for _, sender, one in kit.sent if isinstance(one, SyncRequest) and sender == "b"][-1]
    nack = SyncNack(channel_id=1, leader_epoch=1, request_id=request.request_id, error=SyncError.NOT_LEADER)
    kit.lose = lambda to, sender, message: to == "a" and sender == "b"
    kit.inject("b", "a", nack)
    kit.run(1_400)
    assert kit["b"].replica().role is Role.REPLICA
    kit.run(200)
    assert kit["b"].replica().role is Role.CANDIDATE


def test_r7_a_live_node_that_cannot_open_its_log_does_not_keep_the_channel() -> None:
    kit = whole("a", "b", "c")
    kit["b"].kill()
    kit["b"].held_back = []
    kit["b"].start()
    kit.elect("b")
    kit.run(50)
    assert kit["b"].replica().storage is Storage.OPENING
    assert kit.run_until(lambda: kit.record().leader != "b") <= 1_500 + 600
    assert "not open" in kit.delivered(Resign)[0].reason
    kit.write(b"two")
    kit.release("b")
    kit.run_until(kit.is_whole)


def test_r10_a_leader_whose_disk_does_not_answer_hands_over() -> None:
    kit = whole("a", "b", "c")
    kit["a"].held_back = []
    kit.produce(b"two")
    assert kit.run_until(lambda: kit.record().leader != "a", ms=8_000) >= 4_900
    kit.write(b"three")
    kit.release("a")
    kit.run_until(kit.is_whole)
    assert b"three" in kit["a"].committed()
    kit.check()


def test_only_the_leader_of_a_channel_proposes_who_is_in_sync() -> None:
    kit = whole("a", "b", "c")
    shrink = ShrinkIsr(
        channel_id=1, expected_channel_epoch=kit.record().channel_epoch, members=("c",), reason=ShrinkReason.LAGGING
    )
    proposed = ProposeChange(change=encode_change(shrink))
    kit.controller.receive("b", proposed, kit.catalog, kit._propose, kit.now_ms)
    assert len(kit.record().isr) == 3
    grant = AddGrant(principal="node:b", scope="admin:channels", channels="*")
    kit.controller.receive("a", ProposeChange(change=encode_change(grant)), kit.catalog, kit._propose, kit.now_ms)
    assert kit.catalog.grants() == []
    kit.controller.receive("a", proposed, kit.catalog, kit._propose, kit.now_ms)
    assert kit.record().isr_nodes == ("a", "b")


@pytest.mark.parametrize(("sender", "channel_id"), [("stranger", 1), ("a", 1), ("b", 99)])
def test_nobody_withdraws_for_another_nor_from_what_it_leads(sender: str, channel_id: int) -> None:
    kit = whole("a", "b", "c")
    message = Withdraw(channel_id=channel_id, channel_epoch=1, incarnation=1, reason="no")
    kit.controller.receive(sender, message, kit.catalog, kit._propose, kit.now_ms)
    kit.run(1_500)
    assert set(kit.record().isr_nodes) == {"a", "b", "c"}
    assert kit.controller._withdrawn == {}


@pytest.mark.parametrize("behind", [("incarnation", 1), ("leader_epoch", 1), ("leader_epoch", -1)])
def test_a_leader_resigns_only_as_it_leads_now(behind: tuple[str, int]) -> None:
    """What an earlier process of its node said, or said of an earlier epoch, and that arrives late, costs nothing."""
    kit = whole("a", "b", "c")
    leader, record = kit.leader().name, kit.record()
    present = Resign(
        channel_id=record.channel_id,
        leader_epoch=record.leader_epoch,
        incarnation=record.leader_incarnation,
        reason="it cannot",
    )
    field, by = behind
    kit.controller.receive(
        leader, replace(present, **{field: getattr(present, field) - by}), kit.catalog, kit._propose, kit.now_ms
    )
    other = next(name for name in "abc" if name != leader)
    kit.controller.receive(other, present, kit.catalog, kit._propose, kit.now_ms)
    kit.run(1_500)
    assert (kit.record().leader, kit.record().leader_epoch) == (leader, record.leader_epoch)
    assert (kit.controller._resigned, kit.controller._unable) == ({}, {})
    kit.controller.receive(leader, present, kit.catalog, kit._propose, kit.now_ms)
    kit.run_until(lambda: kit.record().leader not in (None, leader))


@pytest.mark.parametrize("by", [1, -1])
def test_a_replica_withdraws_only_as_the_process_that_runs_now(by: int) -> None:
    kit = whole("a", "b", "c")
    record = kit.record()
    follower = next(name for name in "abc" if name != record.leader)
    node = kit.catalog.node(follower)
    assert node is not None
    present = Withdraw(
        channel_id=record.channel_id,
        channel_epoch=record.channel_epoch,
        incarnation=node.incarnation,
        reason="its disk is full",
    )
    late = replace(present, incarnation=present.incarnation - by)
    kit.controller.receive(follower, late, kit.catalog, kit._propose, kit.now_ms)
    assert kit.controller._withdrawn == {}
    kit.run(1_500)
    assert kit.record() == record, "nobody left, not even for a moment"
    kit.controller.receive(follower, present, kit.catalog, kit._propose, kit.now_ms)
    assert list(kit.controller._withdrawn) == [(record.channel_id, follower)]
    kit.run(1_500)
    assert kit.record().channel_epoch > record.channel_epoch, "it left, and its leader may have let it in again"


def test_two_of_three_gone_is_settled_whichever_two_they_are() -> None:
    for gone, left in (("ab", "c"), ("ac", "b"), ("bc", "a")):
        kit = whole("a", "b", "c", min_isr=1)
        for name in gone:
            kit[name].kill()
        kit.fence(*gone)
        kit.run_until(lambda kit=kit, left=left: kit.leading() == [left])  # type: ignore[misc]
        kit.run(100)
        kit.write(b"two")
        for name in gone:
            kit[name].start()
        kit.run_until(kit.is_whole)
        assert {kit[name].bytes_of() for name in "abc"} == {kit[left].bytes_of()}


def test_r4_records_wait_below_the_minimum_and_are_committed_when_it_is_reached_again() -> None:
    kit = whole("a", "b", "c")
    kit["b"].kill()
    kit["c"].kill()
    kit.produce(b"two")
    kit.run(20)
    kit.fence("b", "c")
    kit.run(500)
    assert (b"two",) not in kit.results()
    assert kit["a"].replica().committed_end == 2
    kit["b"].start()
    kit.run_until(lambda: (b"two",) in kit.results())
    assert kit.results()[(b"two",)].error is None


def test_a_minimum_that_is_lowered_commits_what_waits() -> None:
    kit = whole("a", "b", "c")
    kit["b"].kill()
    kit["c"].kill()
    kit.produce(b"two")
    kit.run(20)
    kit.fence("b", "c")
    kit.run(200)
    kit.alter(min_isr=1)
    kit.run(10)
    assert kit.results()[(b"two",)].error is None


def test_a_slow_replica_slows_nobody_once_it_is_out() -> None:
    kit = whole("a", "b", "c")
    kit["c"].held_back = []
    kit.produce(b"two")
    kit.run_until(lambda: "c" not in kit.record().isr_nodes, ms=7_000)
    begin = kit.now_ms
    for number in range(20):
        kit.write(b"fast %d" % number)
    assert kit.now_ms == begin
    kit.release("c")
    kit.run_until(kit.is_whole)


def test_nobody_is_told_anything_of_a_metadata_leader_that_is_away() -> None:
    kit = whole("a", "b", "c")
    kit.controller_on = False
    for name in "abc":
        kit.cut(name, TO_METADATA)
    kit.write(b"two")
    kit.run(5_000, step_ms=50)
    kit.write(b"three")
    assert kit.leading() == ["a"], "channels go on while the metadata has no leader"


def test_a_heartbeat_that_is_made_shorter_counts_at_once() -> None:
    kit = whole("a", "b", "c")
    kit.alter(heartbeat_ms=100)
    kit.run(20)
    kit["a"].kill()
    assert kit.run_until(lambda: bool(kit.leading())) <= 300 + 150


def test_r3_what_a_process_that_is_gone_said_last_counts_for_nothing() -> None:
    kit = whole("a", "b", "c")
    last = [one for _, sender, one in kit.sent if isinstance(one, SyncRequest) and sender == "c"][-1]
    kit["c"].kill()
    kit["c"].held_back = []
    kit["c"].start()
    kit.elect("b")
    kit.run(20)
    leading = kit["b"].replica().leading
    assert leading is not None
    kit.inject("b", "c", replace(last, leader_epoch=2))
    assert not leading._progress["c"].is_known, "it came late, over the link of the process before"
    kit.release("c")
    kit.run_until(kit.is_whole)


def test_a_leader_that_cannot_lead_and_has_no_successor_is_not_elected_without_end() -> None:
    kit = whole("a", factor=1)
    kit.run(10)
    logs = kit["a"].storage.logs
    real = logs.open
    broken = DiskFull(operation="open", path="x", reason="for a while")

    def refuse(*_: object) -> None:
        raise broken

    logs.open = refuse  # type: ignore[method-assign,assignment]
    kit["a"].replica()._storage_failed(broken, kit.now_ms)
    kit.run(30_000, step_ms=50)
    assert 2 <= kit.record().leader_epoch <= 8
    logs.open = real  # type: ignore[method-assign]
    kit.run_until(lambda: kit["a"].replica().serves, ms=3_000)
    assert kit["a"].committed() == [b"one"]
