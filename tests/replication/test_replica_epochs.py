"""Leader epochs on one replica: when it may lead, what it may send, and where its log is cut (R1, RP2, RP3, RP4)."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.replication.replica_kit import Kit
from tidelog.cluster.replication.orders import BlocksRead, LogReady, ReadBlocks
from tidelog.cluster.replication.state import Storage
from tidelog.core.catalog import ChannelRetention, FsyncPolicy, PauseChannel, ResumeChannel
from tidelog.core.replication.messages import (
    LeaderSilent,
    LogFacts,
    Resign,
    SyncError,
    SyncNack,
    SyncRequest,
    SyncResponse,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.sim.disk import SimDisk


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


def test_rp3_a_leader_whose_first_record_was_refused_does_not_lead_again_in_that_epoch() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.controller_on = False
    kit["b"].held_back = []
    kit.elect("b")
    kit.run(600)  # "epoch started" is with the others before the disk of its own leader has refused it
    with kit.refusing("b"):
        kit.release("b")
    kit.run(2_000)
    assert kit["a"].replica().epochs.newest == 2, "the record left the node"
    assert kit["b"].replica().epochs.newest == 1, "and is not in its own log"
    assert kit["b"].replica().leading is None
    kit.controller_on = True
    kit.run_until(kit.is_whole)
    assert kit.record().leader_epoch >= 3
    kit.check()
    kit.write(b"two")
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()


def test_rp3_a_leader_that_resigned_says_so_until_somebody_else_leads() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.lose = lambda to, sender, message: (
        isinstance(message, LeaderSilent) or (isinstance(message, Resign) and kit.now_ms < 13_000)
    )
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run(20)
        assert kit.roles()["a"] is Role.REPLICA
    kit.run_until(lambda: kit.record().leader != "a", ms=10_000)
    resigned = kit.delivered(Resign)[-1]
    assert "refused" in resigned.reason
    kit.run_until(kit.is_whole)


def test_ce5_a_leader_that_resigned_leads_again_where_the_only_other_log_came_back_short() -> None:
    """The catalog takes `b` for whole, and the comparison of logs shows that it is not."""
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.controller_on = False
    kit["b"].kill()
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run(20)
    assert kit.roles()["a"] is Role.REPLICA
    kit["b"].disk = SimDisk(random.Random(9))  # it has lost all that it had synced, and nobody noticed
    kit["b"].start()
    kit.controller_on = True
    kit.write(b"three")
    assert kit.record().leader == "a"
    assert kit["b"].values() == [b"one", b"three"]


def test_ce5_a_leader_that_resigned_does_not_lead_again_while_another_one_may_still_answer() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    resigned_ms = kit.now_ms
    kit.lose = lambda to, sender, message: (
        isinstance(message, LogFacts) and sender == "b" and kit.now_ms < resigned_ms + 1_500
    )
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run_until(lambda: kit.record().leader_epoch > 1, ms=10_000)
    assert kit.record().leader == "b"


def test_wi6_a_node_that_lives_and_does_not_lead_is_replaced_though_its_resignation_is_lost() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.lose = lambda to, sender, message: isinstance(message, Resign)
    with kit.refusing("a"):
        kit.produce(b"two")
        kit.run(20)
    kit.run_until(lambda: kit.record().leader != "a", ms=10_000)
    kit.lose = lambda *_: False
    kit.run_until(kit.is_whole)


def test_rp2_blocks_that_the_disk_refused_are_sent_to_nobody() -> None:
    """Alone in its ISR, a leader goes on in its epoch after a refusal: what was refused must not have left it."""
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(b"one")
    kit.stop("b")
    kit.stop("a")
    kit["a"].start()
    kit.run_until(lambda: kit.leading() == ["a"])
    kit.run(50)
    kit["a"].held_back = []
    kit.produce(b"refused")
    kit.run()
    orders, kit["a"].held_back = kit["a"].held_back, []
    with kit.refusing("a"):
        for result in kit["a"].storage.carry_out(orders, kit.now_us):
            kit["a"].core.storage_done(result, kit.now_ms)
    replica = kit["a"].replica()
    assert replica.leading is not None, "nobody else held anything of it"
    assert replica.storage is Storage.CHANGING
    begin = len(kit.sent)
    kit["b"].start()
    kit.run(50)
    sent = [one for to, _, one in kit.sent[begin:] if isinstance(one, SyncResponse) and one.data]
    assert sent == []
    kit.release("a")
    assert kit.results()[(b"refused",)].error is not None
    kit.write(b"two")
    kit.run_until(kit.is_whole)
    assert kit["a"].committed() == kit["b"].committed() == [b"one", b"two"]
    assert kit["a"].bytes_of() == kit["b"].bytes_of()


def test_rp2_what_was_sent_once_stays_sent_even_if_older_blocks_are_sent_again() -> None:
    kit = Kit("a", "b", options=ReplicationOptions(chunk_bytes_max=100))
    kit.create(factor=2)
    kit.write(*numbered(6))
    kit.run_until(kit.is_whole)
    leading = kit["a"].replica().leading
    assert leading is not None
    progress = leading._progress["b"]
    sent_end = progress.sent_end
    assert sent_end == 7
    last = [one for _, sender, one in kit.sent if isinstance(one, SyncRequest) and sender == "b"][-1]
    kit.controller_on = False
    kit["b"].kill()
    again = replace(last, request_id=last.request_id + 1, fetch_from=2, held_end=2, again=True)
    kit.inject("a", "b", again)
    assert progress.fetch_from < sent_end
    assert progress.sent_end == sent_end


def test_a_sweep_that_ends_during_a_truncation_is_not_taken_for_it() -> None:
    kit = Kit("a", "b", segment_bytes_max=4096)
    kit.create(factor=2, retention=ChannelRetention(max_bytes=8192))
    kit.write(*(b"%03d" % number * 200 for number in range(30)))
    kit.run_until(kit.is_whole)
    replica = kit["b"].replica()
    kit["b"].held_back = []
    replica.sweep(replica.committed_end)
    kit.cut("a", "b")
    kit.elect("b")
    kit.run()
    kit.elect("a")
    kit.heal()  # "b" has a record of epoch 2 that "a" has not: it cuts it
    kit.run(20)
    assert replica.storage is Storage.CHANGING
    node = kit["b"]
    orders, node.held_back = node.held_back, []
    assert orders is not None
    results = node.storage.carry_out(orders, kit.now_us)
    assert [result.swept for result in results if isinstance(result, LogReady)] == [True, False]
    for result in results[:-1]:
        node.core.storage_done(result, kit.now_ms)
    assert replica.storage is Storage.CHANGING, "the truncation has not ended yet"
    assert replica.log_start > 0, "the sweep has"
    node.core.storage_done(results[-1], kit.now_ms)
    assert replica.log_end == node.storage.logs.log(1).log_end
    node.held_back = None
    kit.run_until(kit.is_whole)
    assert kit["b"].replica().role is Role.REPLICA
    kit.check()


def test_a_read_that_a_truncation_overtook_is_not_sent() -> None:
    kit = Kit("a", "b", "c", options=ReplicationOptions(tail_bytes_max=1, tails_bytes_max=1))
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.controller_on = False
    kit.isolate("a")
    kit.produce(b"gone")
    kit.produce(b"gone too")
    kit.run()
    stale = kit["a"].storage.read(
        ReadBlocks(
            channel_id=1,
            generation=kit["a"].replica().generation,
            peer="c",
            request_id=1,
            offset=2,
            bytes_max=999,
            end=3,
        )
    )
    assert isinstance(stale, BlocksRead)
    assert stale.blocks
    kit.elect("b")
    kit.run()
    kit.heal()
    kit.run(600)
    kit.elect("a")
    kit.cut("a", "c")
    kit.run(20)
    leading = kit["a"].replica().leading
    assert leading is not None
    assert kit["a"].replica().epochs.epoch_at(2) != stale.blocks[0].leader.leader_epoch
    progress = leading._progress["c"]
    progress.is_known = progress.stands = True
    progress.fetch_from, progress.request_id = 2, stale.request_id
    begin = len(kit.sent)
    kit.cuts.clear()
    kit["a"].core.storage_done(stale, kit.now_ms)
    kit.run()
    for to, _, message in kit.sent[begin:]:
        if isinstance(message, SyncResponse) and message.data and to == "c":
            assert b"".join(map(bytes, message.data)) in kit["a"].bytes_of()
    kit.check()


def test_a_log_trimmed_to_nothing_remembers_the_epoch_it_ended_with() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(*numbered(3))
    kit.elect("b")
    kit.run(20)
    kit.write(b"in epoch 2")
    kit.run_until(kit.is_whole)
    replica = kit["a"].replica()
    end = replica.log_end
    replica.log_start = end  # as after a sweep of everything
    replica.epochs.trim(end)
    assert replica.last_epoch(end) == 2
    assert replica.last_epoch(0) == 2


def test_a_replica_whose_trimmed_records_were_of_a_later_epoch_begins_anew() -> None:
    """After an unclean election: its log is empty, and what it once held there is not what the leader has."""
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(*numbered(3))
    kit.run_until(kit.is_whole)
    leading = kit["a"].replica().leading
    assert leading is not None
    request = SyncRequest(
        channel_id=1,
        leader_epoch=1,
        request_id=1 << 40,
        fetch_from=3,
        last_epoch=5,
        held_end=3,
        committed_end=3,
        incarnation=1,
        channel_epoch=1,
        chunk_bytes_max=1,
        again=True,
    )
    kit["b"].kill()
    kit["a"].core.receive("b", request, kit.now_ms)
    output = kit["a"].core.poll(kit.now_ms)
    assert output is not None
    nacks = [message for _, message in output.messages if isinstance(message, SyncNack)]
    assert [(nack.error, nack.epoch) for nack in nacks] == [(SyncError.DIVERGED, 1)]


def test_a_config_that_changes_while_the_log_is_being_opened_holds() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2, fsync=FsyncPolicy.NEVER)
    kit.write(b"one")
    kit.take(PauseChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run(10)
    kit["b"].held_back = []
    kit.take(ResumeChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    kit.run()
    assert kit["b"].replica().storage is Storage.OPENING
    kit.alter(fsync=FsyncPolicy.ALWAYS)
    kit.release("b")
    assert kit["b"].storage.logs.log(1).options.fsync.name == "ALWAYS"
    kit.run_until(kit.is_whole)


def test_a_new_leader_tells_nothing_of_what_is_committed_before_its_first_record_is() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(3))
    kit.run_until(kit.is_whole)
    kit["c"].held_back = []
    kit["a"].held_back = []
    kit.elect("b")
    kit.run(50)
    assert kit["b"].replica().role is Role.LEADER
    assert not kit["b"].replica().serves, "R2"
    kit.release("a")
    kit.release("c")
    kit.run(50)
    assert kit["b"].replica().serves
    assert kit["b"].committed() == numbered(3)


def test_rle4_what_the_last_process_of_a_follower_asked_for_is_not_sent_to_the_next_one() -> None:
    """Its disk may hold other records than that process had: it has to ask first, and have its history compared."""
    kit = Kit("a", "b")
    kit.create(min_isr=1)
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit["b"].kill()
    kit.lose = lambda _, sender, message: sender == "b" and isinstance(message, SyncRequest)
    kit["b"].start()
    begin = len(kit.sent)
    kit.produce(b"two")
    kit.run(1_000)
    assert not [one for to, _, one in kit.sent[begin:] if to == "b" and isinstance(one, SyncResponse)]
    kit.lose = lambda *_: False
    kit.run_until(kit.is_whole)
    assert kit["b"].values() == [b"one", b"two"]


def test_an_empty_log_is_led_without_any_record() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    assert kit["a"].replica().serves
    assert kit["a"].replica().log_end == 0
    kit.elect("b")
    kit.run(10)
    assert kit["b"].replica().serves
    assert kit["b"].replica().log_end == 0, "no wear on the disk for a thousand idle channels"
    kit.write(b"one")
    assert [epoch for epoch, _ in kit["b"].replica().epochs.pairs()] == [2]


def test_followers_of_an_empty_leader_throw_away_what_only_they_have() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.cut("a", "b")
    kit.controller_on = False
    kit.produce(b"never committed")
    kit.run(20)
    assert kit["c"].values() == [b"never committed"]
    kit.elect("b")
    kit.heal()
    kit.run(200)
    assert kit["a"].values() == kit["b"].values() == kit["c"].values() == []
    kit.write(b"one")
    kit.controller_on = True
    kit.run_until(kit.is_whole)
    assert kit["a"].bytes_of() == kit["b"].bytes_of() == kit["c"].bytes_of()


def test_an_unreplicated_channel_raises_its_epoch_with_every_start_of_its_node() -> None:
    kit = Kit("a")
    kit.create(replicated=False)
    kit.write(b"one")
    kit.stop("a")
    kit["a"].start()
    kit.run_until(lambda: kit.leading() == ["a"])
    kit.write(b"two")
    assert kit.record().leader_epoch == 2
    assert kit["a"].committed() == [b"one", b"two"]
    assert not [one for one in kit.sent if one[0] != "metadata"], "it says nothing on the wire"
