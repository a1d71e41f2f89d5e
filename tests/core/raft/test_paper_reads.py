"""Reads without writing to the log: section 6.4 of the dissertation (read-index)."""

from __future__ import annotations

import pytest

from tests.core.raft.harness import Disk, Net, entries_of
from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    HardState,
    RaftConfig,
    RaftRole,
    ReadAborted,
    ReadReady,
    SnapshotAnswer,
)
from tidelog.errors import NotLeader, TooManyReads

HEARTBEAT_MS = RaftConfig().heartbeat_ms
TIMEOUT_MS = RaftConfig().election_timeout_ms


def test_a_read_is_served_once_a_majority_confirmed_the_leader() -> None:
    """6.4: the leader notes its commit index, makes sure that it still leads, and serves when that much is applied."""
    net = Net("abcde")
    leader = net.elect("a")
    leader.raft.propose(b"x")
    net.settle()
    net.holding = lambda packet: isinstance(packet.message, AppendAnswer)
    leader.raft.read(1)
    net.settle()
    assert leader.reads == []
    answers, net.held = net.held, []
    net.deliver(answers[0])
    assert leader.reads == [], "two of five"
    net.deliver(answers[1])
    assert leader.reads == [ReadReady(1, 2)]


def test_a_stale_leader_serves_no_read() -> None:
    """6.4: a leader that was replaced without knowing it must not answer from its old state."""
    net = Net("abc")
    old = net.elect("a")
    net.isolate("a")
    new = net.elect("b")
    new.raft.propose(b"new")
    net.settle()
    assert new.applied == [b"new"]
    old.raft.read(1)
    net.settle()
    assert old.leads
    assert old.reads == []
    net.heal()
    net.heartbeat("a")
    assert old.reads == [ReadAborted(1)]


def test_answers_to_rounds_before_the_read_do_not_confirm_it() -> None:
    """6.4: the heartbeats that count were sent after the read arrived; a late answer to an older one proves nothing."""
    net = Net("abc")
    leader = net.elect("a")
    net.holding = lambda packet: packet.target == "a"
    net.heartbeat("a")
    leader.raft.propose(b"x")
    net.settle()
    late, net.held = net.held, []
    net.split("a", "bc")
    leader.raft.read(1)
    net.settle()
    net.heal()
    for packet in late + late:
        net.deliver(packet)
    assert leader.raft.log.commit == 2, "the late answers are good for the commit"
    assert leader.reads == []


def test_a_new_leader_waits_for_its_own_first_commit() -> None:
    """6.4: at the start of its term a leader may not know what is committed; an entry of its own term tells it."""
    disks = {name: Disk(HardState(1), entries=entries_of(1, 1, 1)) for name in "abc"}
    net = Net("abc", disks=disks)
    net.losing = lambda packet: isinstance(packet.message, AppendEntries) and bool(packet.message.entries)
    leader = net.elect("a")
    leader.raft.read(1)
    net.run_for(TIMEOUT_MS // 2)
    assert leader.reads == [], "everything up to 3 may be committed, and it does not know"
    net.heal()
    net.run_for(2 * HEARTBEAT_MS)
    assert leader.reads == [ReadReady(1, 4)]


def test_a_read_sees_every_write_acknowledged_before_it() -> None:
    """6.4: linearizable: the index of a read is at least the commit index when it arrived."""
    net = Net("abc")
    leader = net.elect("a")
    for number in range(10):
        leader.raft.propose(f"{number}".encode())
        net.settle()
        acknowledged = leader.applied_index
        leader.raft.read(number)
        net.settle()
        read = leader.reads[-1]
        assert isinstance(read, ReadReady)
        assert read.token == number
        assert read.index >= acknowledged


def test_reads_of_one_moment_share_a_round() -> None:
    """6.4: any number of reads that gathered are confirmed by one round of messages."""
    net = Net("abc")
    leader = net.elect("a")
    before = len(net.sent)
    for token in range(500):
        leader.raft.read(token)
    net.settle()
    assert leader.reads == [ReadReady(token, 1) for token in range(500)]
    assert len(net.sent) - before == 4


def test_learners_and_strangers_do_not_confirm_reads() -> None:
    """6.4: the majority is one of voters."""
    net = Net("abc", learners="de")
    leader = net.elect("a")
    net.crash("b", "c")
    leader.raft.read(1)
    net.settle()
    leader.raft.step("x", AppendAnswer(term=1, round=99, accepted=True, index=1), leader.now_ms)
    net.settle()
    assert leader.reads == []


def test_an_answer_to_a_round_that_never_was_confirms_nothing() -> None:
    """6.4: a round from the future is not believed."""
    net = Net("abc")
    leader = net.elect("a")
    net.isolate("a")
    leader.raft.read(1)
    net.settle()
    for message in (
        AppendAnswer(term=1, round=1_000, accepted=True, index=1),
        SnapshotAnswer(term=1, round=1_000, index=1, received_bytes=0),
    ):
        leader.raft.step("b", message, leader.now_ms)
    leader.pump()
    assert leader.reads == []


def test_a_rejection_of_this_term_confirms_the_leader_too() -> None:
    """6.4: what counts is that the follower still follows, not whether its log fits."""
    disks = {
        name: Disk(HardState(3), entries=entries_of(*log)) for name, log in {"a": (1, 3), "b": (), "c": ()}.items()
    }
    net = Net("abc", disks=disks)
    leader = net.elect("a")
    leader.raft.read(1)
    round_ = 1 + max(packet.message.round for packet in net.messages(AppendEntries))
    leader.pump()
    rejected = AppendAnswer(term=leader.raft.term, round=round_, accepted=False, index=0, rejected_index=2)
    leader.raft.step("b", rejected, leader.now_ms)
    leader.pump()
    assert leader.reads == [ReadReady(1, 3)]


def test_a_single_voter_serves_reads_by_itself_once_its_disk_has_its_term() -> None:
    """6.4 with one voter: it is its own majority, but its first entry must be durable."""
    net = Net("a")
    member = net["a"]
    member.is_stalled = True
    net.time_out("a")
    member.raft.read(1)
    net.settle()
    assert member.leads
    assert member.reads == []
    member.is_stalled = False
    member.flush()
    net.settle()
    assert member.reads == [ReadReady(1, 1)]


def test_who_steps_down_aborts_every_waiting_read_once() -> None:
    """6.4: nobody waits for a leadership that is over; each read ends exactly once."""
    net = Net("abc")
    leader = net.elect("a")
    leader.raft.read(1)
    net.settle()
    net.isolate("a")
    leader.raft.read(2)
    leader.pump()
    leader.raft.read(3)
    net.run_for(3 * TIMEOUT_MS)
    assert leader.raft.role is not RaftRole.LEADER
    assert leader.reads == [ReadReady(1, 1), ReadAborted(2), ReadAborted(3)]
    with pytest.raises(NotLeader):
        leader.raft.read(4)


def test_reads_that_wait_are_bounded() -> None:
    """`reads_max`: above it a read is refused at once, and taken again when some are through."""
    net = Net("abc", config=RaftConfig(reads_max=3))
    leader = net.elect("a")
    net.isolate("a")
    for token in range(2):
        leader.raft.read(token)
    net.settle()
    leader.raft.read(2)
    with pytest.raises(TooManyReads):
        leader.raft.read(3)
    net.heal()
    net.settle()
    net.heartbeat("a")
    assert [read.token for read in leader.reads] == [0, 1, 2]
    leader.raft.read(3)


def test_the_moment_of_the_last_confirmation_is_when_its_round_began() -> None:
    """6.4.1: how long ago nobody else led is counted from when the round left, not from when its answers came."""
    net = Net("abc")
    leader = net.elect("a")
    assert leader.raft.leading is not None
    assert leader.raft.leading.confirmed_ms is None
    net.holding = lambda packet: packet.target == "a"
    net.heartbeat("a")
    began_ms = leader.now_ms
    net.heartbeat("a")
    answers, net.held = net.held, []
    leader.now_ms += 50
    net.deliver(answers[0])
    assert leader.raft.leading.confirmed_ms == began_ms
