"""Everything has a limit: what is on its way, what waits, what one entry, one snapshot, one group may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.raft.harness import Disk, Member, Net, PacketOf, entries_of
from tidelog.core.raft import (
    AddLearner,
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    HardState,
    Members,
    Promote,
    RaftConfig,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
)
from tidelog.core.raft.members import MEMBERS_MAX
from tidelog.errors import InvalidConfig, MembershipPending, MembershipRefused, ProposalTooLarge, TooManyProposals

HEARTBEAT_MS = RaftConfig().heartbeat_ms


def with_entries(packets: list[PacketOf[AppendEntries]]) -> list[AppendEntries]:
    return [packet.message for packet in packets if packet.message.entries]


def propose_until_refused(net: Net, leader: Member, data: bytes) -> None:
    for _ in range(100):
        leader.raft.propose(data)
        net.settle()


def test_unanswered_appends_to_one_follower_are_bounded_in_number() -> None:
    """LD4, 10.2.2: appends follow each other without waiting, up to `inflight_max`; answers make room."""
    net = Net("abc", config=RaftConfig(inflight_max=4, append_bytes_max=1))
    leader = net.elect("a")
    net.holding = lambda packet: packet.source == "b" and isinstance(packet.message, AppendAnswer)
    before = len(with_entries(net.messages(AppendEntries, target="b")))
    for number in range(20):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    assert len(with_entries(net.messages(AppendEntries, target="b"))) - before == 4
    assert net["c"].disk.last_index == 21, "the other one is not held up"
    net.release()
    net.settle()
    assert net["b"].disk.last_index == 21


def test_unanswered_appends_to_one_follower_are_bounded_in_bytes() -> None:
    """LD4: no more than `inflight_bytes_max` and one message is unanswered."""
    config = RaftConfig(inflight_bytes_max=1_000, append_bytes_max=300, entry_bytes_max=300)
    net = Net("abc", config=config)
    leader = net.elect("a")
    net.holding = lambda packet: packet.source == "b"
    before = len(net.messages(AppendEntries, target="b"))
    for _ in range(30):
        leader.raft.propose(b"x" * 100)
    net.settle()
    sent = with_entries(net.messages(AppendEntries, target="b")[before:])
    size_bytes = sum(entry.size_bytes for message in sent for entry in message.entries)
    assert 1_000 <= size_bytes <= 1_000 + 300


def test_an_append_is_bounded_but_a_large_entry_still_travels() -> None:
    """`append_bytes_max` splits, it never starves."""
    net = Net("abc", config=RaftConfig(append_bytes_max=200))
    leader = net.elect("a")
    for size_bytes in (50, 50, 50, 5_000, 50):
        leader.raft.propose(b"x" * size_bytes)
    net.run_for(HEARTBEAT_MS)
    for message in with_entries(net.messages(AppendEntries)):
        assert len(message.entries) == 1 or sum(entry.size_bytes for entry in message.entries) <= 200
    assert [len(data) for data in net["c"].applied] == [50, 50, 50, 5_000, 50]


def test_a_follower_that_lost_its_appends_is_found_by_a_heartbeat() -> None:
    """LD4: with the window full of lost appends the heartbeat is rejected and the follower probed, never stuck."""
    net = Net("abc", config=RaftConfig(inflight_max=2, append_bytes_max=1))
    leader = net.elect("a")
    net.losing = lambda packet: packet.target == "b"
    for number in range(10):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    net.heal()
    net.run_for(2 * HEARTBEAT_MS)
    assert net["b"].disk.last_index == 11


def test_where_logs_agree_is_asked_one_append_at_a_time() -> None:
    """10.2.2: while a follower is probed nothing else is sent to it between heartbeats."""
    net = Net("abc")
    leader = net.elect("a")
    net.crash("b")
    net.run_for(HEARTBEAT_MS)
    leader.raft.propose(b"0")
    net.settle()
    net.restart("b")
    net.losing = lambda packet: packet.source == "b" and isinstance(packet.message, AppendAnswer)
    leader.raft.step("b", AppendAnswer(term=1, round=0, accepted=False, index=0, rejected_index=2), leader.now_ms)
    before = len(net.messages(AppendEntries, target="b"))
    for number in range(10):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    assert len(net.messages(AppendEntries, target="b")) - before == 1


def test_proposals_that_are_not_committed_are_bounded() -> None:
    """`uncommitted_bytes_max`: above it proposals are refused, and taken again when some are through."""
    net = Net("abc", config=RaftConfig(uncommitted_bytes_max=1_000, entry_bytes_max=900))
    leader = net.elect("a")
    net.isolate("a")
    with pytest.raises(TooManyProposals):
        propose_until_refused(net, leader, b"x" * 100)
    size_bytes = sum(entry.size_bytes for entry in leader.raft.log.between(2, leader.raft.log.last_index + 1))
    assert 800 <= size_bytes <= 1_000 + 32
    net.heal()
    net.settle()
    net.run_for(2 * HEARTBEAT_MS)
    leader.raft.propose(b"x" * 900)


def test_empty_proposals_are_bounded_too() -> None:
    """`uncommitted_bytes_max`: an entry costs memory even if it says nothing."""
    net = Net("abc", config=RaftConfig(uncommitted_bytes_max=1_000))
    leader = net.elect("a")
    net.isolate("a")
    with pytest.raises(TooManyProposals):
        propose_until_refused(net, leader, b"")


def test_the_bound_holds_when_a_tail_of_older_leaders_is_committed() -> None:
    """`uncommitted_bytes_max`: committing what older leaders left makes no room that was never taken."""
    tail = [Entry(index, 1, EntryKind.CHANGE, b"x" * 500) for index in range(1, 5)]
    config = RaftConfig(uncommitted_bytes_max=1_000, entry_bytes_max=500, append_bytes_max=2_000)
    net = Net("abc", disks={"a": Disk(HardState(1), entries=tail)}, config=config)
    net.losing = lambda packet: packet.source == "a" and isinstance(packet.message, AppendEntries)
    leader = net.elect("a")
    with pytest.raises(TooManyProposals):
        propose_until_refused(net, leader, b"y" * 100)
    net.settle()
    # A follower says that it holds the leader's first entry, and nothing after it.
    leader.raft.step("b", AppendAnswer(term=2, round=0, accepted=True, index=5), leader.now_ms)
    assert leader.raft.log.commit == 5
    size_bytes = sum(entry.size_bytes for entry in leader.raft.log.between(6, leader.raft.log.last_index + 1))
    assert size_bytes > 900
    with pytest.raises(TooManyProposals):
        leader.raft.propose(b"y" * 200)


def test_a_leader_whose_disk_stands_still_does_not_gather_proposals_without_end() -> None:
    """Bounded everything: the others may commit without it, but what it cannot write and apply stays in its memory."""
    net = Net("abc", config=RaftConfig(uncommitted_bytes_max=1_000))
    leader = net.elect("a")
    leader.is_stalled = True
    with pytest.raises(TooManyProposals):
        propose_until_refused(net, leader, b"x" * 100)
    assert leader.raft.log.commit > 1


def test_an_entry_is_bounded() -> None:
    """`entry_bytes_max`: one byte more is refused, and nothing was appended."""
    net = Net("abc", config=RaftConfig(entry_bytes_max=100))
    leader = net.elect("a")
    leader.raft.propose(b"x" * 100)
    with pytest.raises(ProposalTooLarge):
        leader.raft.propose(b"x" * 101)
    assert leader.raft.log.last_index == 2


def test_a_group_has_at_most_so_many_members() -> None:
    """M1: `MEMBERS_MAX`."""
    net = Net("abc", learners=[f"learner{number}" for number in range(MEMBERS_MAX - 3)])
    leader = net.elect("a")
    with pytest.raises(MembershipRefused, match=str(MEMBERS_MAX)):
        leader.raft.propose_members(AddLearner("one more"))


def test_a_leader_that_nobody_answers_repeats_itself_only_with_its_heartbeats() -> None:
    """LD4: silence costs one message per heartbeat and follower, whatever is proposed."""
    net = Net("abc", config=RaftConfig(election_timeout_ms=60_000))
    leader = net.elect("a")
    net.run_for(HEARTBEAT_MS)
    net.isolate("a")
    before = len(net.messages(AppendEntries))
    net.run_for(100 * HEARTBEAT_MS)
    assert len(net.messages(AppendEntries)) - before == 200
    for number in range(1_000):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    assert len(net.messages(AppendEntries)) - before <= 200 + 2 * net.config.inflight_max


def test_a_snapshot_to_a_silent_follower_is_repeated_only_with_heartbeats() -> None:
    """LD4: one chunk per heartbeat, never the rest of the snapshot."""
    net = Net("abc", config=RaftConfig(snapshot_chunk_bytes=10))
    leader = net.elect("a")
    net.crash("c")
    for number in range(50):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    leader.snapshot()
    net.restart("c")
    net.losing = lambda packet: isinstance(packet.message, SnapshotChunk)
    net.run_for(10 * HEARTBEAT_MS)
    assert 9 <= len(net.messages(SnapshotChunk)) <= 11


def test_reads_do_not_repeat_the_chunk_of_a_snapshot_that_is_on_its_way() -> None:
    """LD4: a stream of reads must not send a whole chunk again with each of them."""
    net = Net("abc", learners="d", config=RaftConfig(snapshot_chunk_bytes=10))
    leader = net.elect("a")
    net.isolate("d")
    for number in range(10):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    leader.snapshot()
    net.heal()
    net.losing = lambda packet: isinstance(packet.message, SnapshotChunk)
    net.heartbeat("a")
    before = len(net.messages(SnapshotChunk, target="d"))
    for token in range(50):
        leader.raft.read(token)
        net.settle()
    assert len(leader.reads) == 50
    assert before == 1
    assert len(net.messages(SnapshotChunk, target="d")) - before <= 2


def test_what_a_follower_keeps_of_snapshots_is_one_at_a_time() -> None:
    """RG1: chunks of many snapshots do not add up."""
    net = Net("abc")
    member = net["c"]
    for index in range(1, 50):
        snapshot = Snapshot(SnapshotHead(index, 1, net.founders), b"x" * 1_000)
        chunk = SnapshotChunk(
            term=1, round=0, head=snapshot.head, size_bytes=1_000, checksum=index, offset=0, data=snapshot.data[:900]
        )
        member.raft.step("a", chunk, 0)
    member.pump()
    answers = net.messages(SnapshotAnswer)
    assert answers == net.sent
    assert {packet.message.received_bytes for packet in answers} == {900}


def test_messages_from_strangers_and_for_nobody_change_nothing() -> None:
    """A late, repeated or foreign answer neither fails nor counts."""
    net = Net("abc", disks={name: Disk(HardState(1), entries=entries_of(1, 1)) for name in "abc"})
    leader = net.elect("a")
    before = leader.raft.statistics()
    for sender in ("b", "c", "stranger"):
        for answer in (
            AppendAnswer(term=2, round=0, accepted=True, index=10_000),
            AppendAnswer(term=2, round=0, accepted=False, index=10_000, rejected_index=20_000, hint_term=7),
            AppendAnswer(term=1, round=0, accepted=True, index=2),
        ):
            leader.raft.step(sender, answer, leader.now_ms)
    net.settle()
    assert leader.raft.statistics() == before
    leader.raft.propose(b"on")
    net.run_for(HEARTBEAT_MS)
    assert [member.applied[-1] for member in net.up] == [b"on"] * 3


@pytest.mark.parametrize(
    "name", [name for name in RaftConfig.__slots__ if name not in ("promote_lag_entries", "commit_news_ms")]
)
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        replace(RaftConfig(), **{name: 0})


def test_timeouts_that_make_every_late_heartbeat_an_election_are_refused() -> None:
    """5.6: broadcast time must be well below the election timeout."""
    with pytest.raises(InvalidConfig, match="election_timeout_ms"):
        RaftConfig(heartbeat_ms=100, election_timeout_ms=299)
    RaftConfig(heartbeat_ms=100, election_timeout_ms=300)


def test_a_group_without_voters_agrees_on_nothing() -> None:
    """A fresh disk knows nobody; it must not take that for a majority of one."""
    net = Net("abc")
    member = net.join("d", Disk())
    net.run_for(100)
    member.now_ms += 100_000
    member.raft.tick(member.now_ms)
    member.raft.campaign(member.now_ms)
    member.pump()
    assert not member.leads
    assert member.raft.members == Members()
    assert member.raft.term == 0


def test_a_leader_whose_disk_stands_still_hands_over() -> None:
    """Its followers commit, but it can apply nothing and so answer nobody: another one leads better."""
    net = Net("abc")
    leader = net.elect("a")
    leader.is_stalled = True
    leader.raft.propose(b"x")
    net.run_for(RaftConfig().disk_stall_ms + 2_000)
    assert not leader.leads
    assert any(member.leads for member in net.up)


def test_a_learner_that_is_not_heard_any_more_is_not_promoted() -> None:
    """With one voter its promotion could never be committed, nor undone."""
    net = Net("a")
    leader = net.elect("a")
    net.join("b")
    leader.raft.propose_members(AddLearner("b"))
    net.run_for(500)
    net.crash("b")
    net.run_for(2_000)
    with pytest.raises(MembershipPending):
        leader.raft.propose_members(Promote("b"))
