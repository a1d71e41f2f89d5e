"""The scenarios of RedEX's own tests (reference/redex.md, section 10), on our cores.

Where the original pinned a fault as expected (two leaders, a stuck candidate), the test states what is right and says
so. `s01` to `s15` are its simulation, `e1` to `e6` its end-to-end tests, the others what its later release added.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replication.replica_kit import TO_METADATA, Kit
from tidelog.core.catalog import (
    BandwidthClass,
    DeleteChannel,
    PauseChannel,
    Placement,
    RemoveNode,
    ResumeChannel,
)
from tidelog.core.replication.messages import (
    LeaderSilent,
    Notify,
    SyncError,
    SyncNack,
    SyncRequest,
    SyncResponse,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.errors import NotChannelLeader


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"event %d" % number for number in range(first, first + count)]


# --- the simulation ----------------------------------------------------------------------------------


def test_s01_three_nodes_take_16_events_and_both_replicas_reach_them() -> None:
    kit = Kit("a", "b", "c")
    kit.create(heartbeat_ms=100)
    kit.write(*numbered(16))
    kit.run_until(kit.is_whole)
    assert kit["b"].committed() == kit["c"].committed() == numbered(16)


def test_s02_there_is_exactly_one_leader_at_every_step_of_a_steady_state() -> None:
    kit = Kit("a", "b", "c")
    kit.create(heartbeat_ms=100)
    kit.write(b"one")
    for _ in range(50):
        kit.run(50)
        assert kit.leading() == ["a"]
        assert kit.record().leader_epoch == 1


def test_s03_with_two_nodes_the_survivor_leads() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.stop("a")
    kit.run_until(lambda: kit.roles() == {"b": Role.LEADER})
    kit.write(b"two")
    assert kit["b"].committed() == [b"one", b"two"]


def test_s04_a_symmetric_failover_of_three_ends_with_one_leader() -> None:
    """RedEX pinned two leaders here as expected. There is one, and the other follows it."""
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(4))
    kit.stop("a")
    kit.run_until(lambda: sorted(kit.roles().values(), key=lambda role: role.value) == [Role.LEADER, Role.REPLICA])
    kit.write(b"after")
    assert kit["b"].values() == kit["c"].values() == [*numbered(4), b"after"]


def test_s05_at_equal_distance_the_smaller_name_leads_and_the_other_stays_a_replica() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.stop("a")
    kit.run(500)
    assert kit.roles() == {"b": Role.LEADER, "c": Role.REPLICA}


def test_s06_an_isolated_replica_gets_nothing_while_the_other_gets_all() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.isolate("c")
    kit.fence("c")
    kit.run(100)
    kit.write(*numbered(8))
    kit.run(10)
    assert kit["b"].committed() == numbered(8)
    assert kit["c"].values() == []


def test_s07_an_isolated_replica_gets_everything_once_the_partition_heals() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.isolate("c")
    kit.fence("c")
    kit.run(100)
    kit.write(*numbered(12))
    kit.heal()
    kit["c"].reconnect()
    kit.run_until(kit.is_whole)
    assert kit["c"].committed() == numbered(12)


def test_s08_24_events_are_the_same_bytes_on_all_replicas() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(24))
    kit.run_until(kit.is_whole)
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()
    assert kit["a"].values() == numbered(24)


def test_s09_a_replica_that_was_killed_resumes_where_it_was() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(5))
    kit.run_until(kit.is_whole)
    kit.stop("c")
    kit.write(*numbered(10, 5))
    begin = len(kit.sent)
    kit["c"].start()
    kit.run_until(kit.is_whole)
    assert kit["c"].committed() == numbered(15)
    asked = [message for to, sender, message in kit.sent[begin:] if isinstance(message, SyncRequest) and sender == "c"]
    assert min(request.fetch_from for request in asked) == 6, "what it held it did not fetch again"


def test_s10_of_four_nodes_the_central_one_leads_and_stays() -> None:
    kit = Kit("a", "b", "c", "d")
    kit.create(factor=4)
    kit.write(b"one")
    distances = {"b": 900, "c": 100, "d": 900}
    kit.controller._proximity.median_rtt_us = lambda candidate, others: distances[candidate]  # type: ignore[method-assign]
    kit.stop("a")
    kit.run_until(lambda: kit.leading() == ["c"])
    epoch = kit.record().leader_epoch
    for _ in range(30):
        kit.run(50)
        assert kit.leading() == ["c"]
    assert kit.record().leader_epoch == epoch


def test_s11_the_same_steps_lead_to_the_same_bytes() -> None:
    """RedEX has a clock field that is a function of the step count; here everything is."""

    def play() -> tuple[bytes, list[str]]:
        kit = Kit("a", "b", "c")
        kit.create()
        kit.write(*numbered(4))
        kit.stop("a")
        kit.run(1000)
        kit.write(b"after")
        kit.run_until(lambda: kit["c"].replica().committed_end == kit["b"].replica().log_end)
        return kit["c"].bytes_of(), kit.trace

    assert play() == play()


def test_s12_two_rounds_of_elections_leave_nobody_a_candidate() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    first = kit.leader().name
    kit.isolate(first)
    took_ms = kit.run_until(lambda: kit.leader().name != first)
    assert took_ms < 5 * 500 + 500
    kit.write(b"two")
    kit.heal()
    kit.run_until(kit.is_whole)
    second = kit.leader().name
    kit.isolate(second)
    kit.run_until(lambda: kit.leader().name != second)
    kit.write(b"three")
    kit.heal()
    kit.run_until(kit.is_whole)
    assert sorted(role.name for role in kit.roles().values()) == ["LEADER", "REPLICA", "REPLICA"]
    assert sum(node.counts().election_thrash for node in kit.nodes.values()) >= 2
    assert kit.leader().committed() == [b"one", b"two", b"three"]


def test_s13_bytes_are_equal_after_a_partition_healed() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(4))
    kit.isolate("b")
    kit.fence("b")
    kit.run(100)
    kit.write(*numbered(4, 4))
    kit.heal()
    kit["b"].reconnect()
    kit.run_until(kit.is_whole)
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()


def test_s14_bytes_are_equal_after_a_kill_and_a_return() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(4))
    kit.stop("a")
    kit.run_until(lambda: kit.record().leader != "a")
    kit.write(*numbered(4, 4))
    kit["a"].start()
    kit.run_until(kit.is_whole)
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()
    assert kit["a"].committed() == numbered(8)


def test_s15_catch_up_is_charged_under_the_channels_bandwidth_class() -> None:
    """RedEX stamps the class on requests; here the leader, who knows the config, charges its budget with it."""
    kit = Kit("a", "b", peak_bytes_per_s=100_000, options=ReplicationOptions(chunk_bytes_max=8_192))
    kit.create(factor=2, bandwidth_class=BandwidthClass.BACKGROUND, replication_budget_ppm=100_000)
    kit.stop("b")
    kit.write(*(bytes([number]) * 3000 for number in range(20)))
    kit["b"].start()
    kit.run(200)
    nacks = [nack for nack in kit.delivered(SyncNack, to="b") if nack.error is SyncError.BACKPRESSURE]
    assert nacks, "60 kB do not pass at 10 kB/s at once"
    kit.run_until(kit.is_whole)


# --- end to end --------------------------------------------------------------------------------------


def test_e1_a_second_node_catches_up_with_32_events_within_5_s() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.stop("b")
    kit.write(*numbered(32))
    kit["b"].start()
    assert kit.run_until(kit.is_whole) < 5_000
    assert kit["b"].committed() == numbered(32)
    assert kit["a"].counts().sync_bytes > 0
    assert kit["a"].counts().leader_changes == 1


def test_e2_roles_stay_while_heartbeats_come() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2, heartbeat_ms=100)
    kit.run(3_000)
    assert kit.roles() == {"a": Role.LEADER, "b": Role.REPLICA}
    assert kit["b"].counts().election_thrash == 0


def test_e3_when_the_leader_leaves_a_replica_leads_within_3_s_at_150_ms() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2, heartbeat_ms=150)
    kit.write(b"one")
    kit["a"].kill()
    # With no session's end at all: the only witness says so, and the metadata leader has not heard it either (R6).
    assert kit.run_until(lambda: kit.leading() == ["b"]) < 3_000


def test_e4_24_events_fan_out_to_two_replicas() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(24))
    kit.run(10)
    assert {kit[name].replica().committed_end for name in "abc"} == {25}


def test_e6_metrics_of_a_channel_are_all_there_and_nothing_is_under_capacity() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(*numbered(4))
    text = kit["a"].core.metrics.snapshot().prometheus_text()
    for name in ("sync_bytes_total", "under_capacity_total", "skip_ahead_total", "election_thrash_total"):
        assert f'dataforts_replication_{name}{{channel="spray"}}' in text
    assert 'dataforts_leader_changes_total{channel="spray"} 1' in text
    assert kit["a"].counts().under_capacity == 0


# --- what its later release added --------------------------------------------------------------------


def test_a_pinned_leader_that_is_not_the_natural_one_wins_and_replicates() -> None:
    kit = Kit("a", "b", "c")
    kit.create(leader_pinned="c", leader="a")
    kit.run_until(lambda: kit.leading() == ["c"], ms=5_000)
    kit.write(*numbered(16))
    kit.run_until(kit.is_whole)
    assert kit["a"].committed() == numbered(16)


def test_an_unpinned_pair_settles_and_does_not_flap() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2, heartbeat_ms=100)
    kit.run(600)
    assert kit.leading() == ["a"]
    assert sum(node.counts().leader_changes for node in kit.nodes.values()) == 1


def test_a_node_that_is_not_chosen_holds_nothing() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=2)
    kit.write(*numbered(4))
    assert kit["c"].core.replica(1) is None
    assert kit["c"].storage.logs.known() == {}


def test_when_a_member_leaves_for_good_another_node_takes_its_place() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=2)
    kit.write(*numbered(4))
    kit["b"].kill()
    kit.fence("b")
    kit.take(RemoveNode(node="b", force=True))
    kit.run_until(lambda: set(kit.record().isr_nodes) == {"a", "c"})
    assert kit["c"].committed() == numbered(4)


def test_closing_one_channel_leaves_the_others_advertised() -> None:
    kit = Kit("a", "b")
    one, other = kit.create("one", factor=2), kit.create("other", factor=2)
    kit.write(b"x", channel_id=one)
    kit.write(b"y", channel_id=other)
    assert kit["b"].core.load_report().chains == (one, other)
    kit.take(DeleteChannel(channel_id=one, expected_channel_epoch=kit.record(one).channel_epoch, at_ms=1))
    kit.run(10)
    assert kit["b"].core.load_report().chains == (other,)
    assert kit["b"].storage.logs.known() == {other: "other"}


def test_a_channel_that_was_closed_and_opened_again_takes_part_as_before() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(4))
    kit.run_until(kit.is_whole)
    kit.take(PauseChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run(1_000)
    assert set(kit.roles().values()) == {Role.IDLE}
    with pytest.raises(NotChannelLeader):
        kit.produce(b"refused")
    kit.take(ResumeChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run_until(kit.is_whole)
    kit.write(b"again")
    assert kit["a"].committed() == [*numbered(4), b"again"]
    assert kit.record().leader_epoch == 2, "R1: an epoch is never resumed"


def test_a_memory_channel_that_is_paused_keeps_what_was_committed() -> None:
    kit = Kit("a", "b", "c")
    kit.create(persistent=False)
    kit.write(*numbered(4))
    kit.run_until(kit.is_whole)
    kit.take(PauseChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run(500)
    kit.take(ResumeChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run_until(kit.is_whole)
    assert kit["a"].committed() == kit["b"].committed() == numbered(4)


# --- its unit invariants -----------------------------------------------------------------------------


def silent_leader() -> Kit:
    kit = Kit("a", "b", "c")
    kit.controller_on = False
    kit.create()
    kit.write(b"one")
    kit.run(40)
    kit["a"].kill()
    return kit


def test_a_leader_is_silent_after_1500_ms_and_not_after_1499() -> None:
    kit = silent_leader()
    kit.run(1_490)
    assert set(kit.roles().values()) == {Role.REPLICA}
    kit.now_ms = kit.heard[("b", "a")] + 1_499
    kit["b"].replica().leader_fell_silent(kit.now_ms)
    assert kit["b"].replica().role is Role.REPLICA
    kit.now_ms += 1
    kit["b"].replica().leader_fell_silent(kit.now_ms)
    assert kit["b"].replica().role is Role.CANDIDATE
    kit.run(30)
    assert kit.roles() == {"b": Role.CANDIDATE, "c": Role.CANDIDATE}


def test_silence_is_reported_every_heartbeat_until_somebody_acts() -> None:
    kit = silent_leader()
    kit.controller.receive = lambda *_: None  # type: ignore[method-assign]
    kit.controller_on = True
    kit.controller.tend = lambda *_: None  # type: ignore[method-assign]
    kit.run(1_500 + 4 * 500)
    reports = [message for to, sender, message in kit.sent if isinstance(message, LeaderSilent) and sender == "b"]
    assert 4 <= len(reports) <= 5
    assert {(report.leader, report.leader_epoch) for report in reports} == {("a", 1)}


def test_a_candidate_whose_leader_speaks_again_is_a_replica_even_if_nothing_is_written() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.cut("a", "b")
    kit.run_until(lambda: kit["b"].replica().role is Role.CANDIDATE)
    kit.run(2_000)
    assert kit.leading() == ["a"], "one bad link deposes nobody"
    kit.cuts.clear()  # without a new link: the old one only stalled
    kit.run_until(lambda: kit["b"].replica().role is Role.REPLICA, ms=2_000)
    assert kit["b"].counts().election_thrash == 1


def test_a_record_that_names_this_node_as_leader_never_makes_it_ask_itself() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.run(12_000, step_ms=100)
    assert not [message for to, sender, message in kit.sent if to == sender]


def request_of(kit: Kit, name: str) -> SyncRequest:
    return [message for to, sender, message in kit.sent if isinstance(message, SyncRequest) and sender == name][-1]


def response_of(kit: Kit, name: str) -> SyncResponse:
    return [one for one in kit.delivered(SyncResponse, to=name) if one.data][-1]


def test_a_chunk_that_comes_twice_or_with_a_gap_changes_nothing() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one", b"two")
    before = kit["b"].bytes_of()
    last = response_of(kit, "b")
    kit.inject("b", "a", last)
    kit.inject("b", "a", replace(last, first_offset=last.first_offset + 7))
    assert kit["b"].bytes_of() == before
    assert kit["b"].replica().log_end == kit["a"].replica().log_end


def test_a_chunk_whose_blocks_do_not_belong_is_refused_and_asked_for_again() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.lose = lambda to, sender, message: isinstance(message, SyncResponse) and bool(message.data)
    kit.produce(b"two")
    kit.run()
    replica = kit["b"].replica()
    stolen = kit["a"].blocks()[0]  # intact, and not what continues the log
    forged = SyncResponse(
        channel_id=1,
        leader_epoch=1,
        request_id=request_of(kit, "b").request_id,
        committed_end=0,
        log_start=0,
        log_end=9,
        first_offset=replica.log_end,
        data=[bytes(buffer) for buffer in stolen.buffers],
    )
    end = replica.log_end
    kit.inject("b", "a", forged)
    flipped = bytearray(b"".join(bytes(buffer) for buffer in kit["a"].blocks()[-1].buffers))
    flipped[-1] ^= 1
    kit.inject("b", "a", replace(forged, data=[bytes(flipped)]))
    kit.inject("b", "a", replace(forged, data=[b"\x00" * 40]))
    assert replica.log_end == end
    assert sum("bad blocks received" in line for line in kit["b"].lines) == 3
    kit.lose = lambda to, sender, message: False
    kit.run_until(kit.is_whole)


def test_a_long_backlog_is_drained_in_chunks() -> None:
    kit = Kit("a", "b", options=ReplicationOptions(chunk_bytes_max=2_000))
    kit.create(factor=2)
    kit.stop("b")
    kit.write(*(b"%04d" % number * 100 for number in range(12)))
    begin = len(kit.sent)
    kit["b"].start()
    kit.run_until(kit.is_whole)
    chunks = [one for to, _, one in kit.sent[begin:] if isinstance(one, SyncResponse) and one.data and to == "b"]
    assert len(chunks) >= 4
    assert all(chunk.data_bytes <= 2_000 for chunk in chunks)


def test_a_refusal_of_another_request_is_dropped() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    end = kit["b"].replica().log_end
    for request_id in (0, 1, request_of(kit, "b").request_id + 1):
        nack = SyncNack(channel_id=1, leader_epoch=1, request_id=request_id, error=SyncError.BAD_RANGE, log_start=0)
        kit.inject("b", "a", nack)
    assert kit["b"].replica().log_end == end
    assert kit["b"].counts().skip_ahead == 0


@pytest.mark.parametrize("sender", ["c", "stranger", "b"])
def test_answers_of_anybody_but_the_leader_are_dropped(sender: str) -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.cut("a", "b")
    kit.produce(b"two")
    kit.run()
    block = kit["a"].blocks()[-1]
    replica = kit["b"].replica()
    answer = SyncResponse(
        channel_id=1,
        leader_epoch=1,
        request_id=1,
        committed_end=99,
        log_start=0,
        log_end=99,
        first_offset=replica.log_end,
        data=[bytes(buffer) for buffer in block.buffers],
    )
    end, committed_end = replica.log_end, replica.committed_end
    kit.inject("b", sender, answer)
    nack = SyncNack(
        channel_id=1,
        leader_epoch=1,
        request_id=request_of(kit, "b").request_id,
        error=SyncError.BAD_RANGE,
        log_start=0,
    )
    kit.inject("b", sender, nack)
    kit.inject("b", sender, Notify(channel_id=1, leader_epoch=1))
    assert (replica.log_end, replica.committed_end) == (end, committed_end)
    kit.inject("b", "a", replace(answer, leader_epoch=2))
    assert (replica.log_end, replica.committed_end) == (end, committed_end), "nor of another epoch"


def test_messages_of_a_channel_that_is_not_here_are_dropped_and_requests_refused() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=2)
    kit.write(b"one")
    request = replace(request_of(kit, "b"), channel_id=77)
    kit.inject("a", "b", request)
    nack = kit.delivered(SyncNack, to="b")[-1]
    assert (nack.channel_id, nack.error) == (77, SyncError.NOT_LEADER)
    kit.inject("a", "c", replace(request, channel_id=1))
    assert kit.delivered(SyncNack, to="c")[-1].error is SyncError.CHANNEL_CLOSED
    assert kit["a"].replica().leading is not None
    assert kit.record().isr_nodes == ("a", "b")


def test_a_request_that_finds_its_leader_deposed_is_told_so() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    request = request_of(kit, "c")
    kit.elect("b")
    kit.run()
    kit.inject("a", "c", request)
    nack = kit.delivered(SyncNack, to="c")[-1]
    assert (nack.error, nack.leader_epoch) == (SyncError.NOT_LEADER, 2)


def test_heartbeats_of_a_pair_are_as_frequent_as_its_most_impatient_channel() -> None:
    kit = Kit("a", "b", "c")
    kit.create("slow", factor=2, heartbeat_ms=900)
    kit.create("fast", factor=2, heartbeat_ms=100)
    assert kit["a"].core.pair_heartbeat_ms("b") == 100
    assert kit["a"].core.pair_heartbeat_ms("c") is None
    record = kit.record(2)
    kit.take(DeleteChannel(channel_id=2, expected_channel_epoch=record.channel_epoch, at_ms=1))
    assert kit["a"].core.pair_heartbeat_ms("b") == 900


def test_an_idle_channel_says_next_to_nothing() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run(1_000)
    begin = len([one for one in kit.sent if one[0] != TO_METADATA])
    kit.run(30_000, step_ms=50)
    said = len([one for one in kit.sent if one[0] != TO_METADATA]) - begin
    assert said <= 2 * 2 * 4, "a request and an answer of each replica every ten seconds"


def test_placement_pinned_decides_the_factor() -> None:
    kit = Kit("a", "b", "c")
    kit.create(placement=Placement.PINNED, pinned_nodes=("b", "c"), factor=3)
    assert kit.record().replicas == ("b", "c")
    kit.write(b"one")
    kit.run(10)
    assert kit["c"].committed() == [b"one"]
