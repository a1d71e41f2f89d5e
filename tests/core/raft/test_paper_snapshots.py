"""Compaction and snapshots: section 7 of the Raft paper, chapter 5 of the dissertation."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from tests.core.raft.harness import Disk, Member, Net, Packet, entries_of
from tidelog.core.raft import (
    AddLearner,
    AppendAnswer,
    AppendEntries,
    HardState,
    Members,
    RaftConfig,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
)

HEARTBEAT_MS = RaftConfig().heartbeat_ms
CONFIG = RaftConfig(snapshot_chunk_bytes=10, commit_news_ms=0)


def compacted_without(name: str, *, entries: int = 20, config: RaftConfig = CONFIG) -> tuple[Net, Member]:
    """A leader a that has forgotten everything this member needs."""
    net = Net("abc", config=config)
    leader = net.elect("a")
    net.isolate(name)
    for number in range(entries):
        leader.raft.propose(f"change {number}".encode())
        net.settle()
    leader.snapshot()
    return net, leader


def chunk(snapshot: Snapshot, *, term: int, offset: int = 0, length: int | None = None) -> SnapshotChunk:
    end = None if length is None else offset + length
    return SnapshotChunk(
        term=term,
        round=0,
        head=snapshot.head,
        size_bytes=len(snapshot.data),
        checksum=zlib.crc32(snapshot.data),
        offset=offset,
        data=snapshot.data[offset:end],
    )


def test_a_follower_too_far_behind_gets_a_snapshot_in_chunks_and_then_entries() -> None:
    """7: when the leader has forgotten the entries a follower needs, it sends its snapshot, a part at a time."""
    net, leader = compacted_without("c")
    leader.raft.propose(b"after")
    net.settle()
    net.heal()
    net.run_for(3 * HEARTBEAT_MS)
    assert net["c"].applied == leader.applied
    assert net["c"].disk.snapshot == leader.disk.snapshot
    chunks = net.messages(SnapshotChunk, target="c")
    assert max(len(packet.message.data) for packet in chunks) == 10
    assert sum(len(packet.message.data) for packet in chunks) < 3 * len(leader.disk.snapshot.data), "no storm"


@pytest.mark.parametrize(("seed", "loss"), [(seed, loss) for seed in range(4) for loss in (0.1, 0.4)])
def test_chunks_may_be_lost_repeated_and_reordered(seed: int, loss: float) -> None:
    """7: the transfer goes on where it stands, whatever happens to single chunks."""
    net, leader = compacted_without("c")
    net.random.seed(seed)

    def troubled(packet: Packet) -> bool:
        if not isinstance(packet.message, SnapshotChunk | SnapshotAnswer):
            return False
        if net.random.random() < 0.3:
            net.wire.insert(net.random.randrange(len(net.wire) + 1), packet)
        return net.random.random() < loss

    net.heal()
    net.losing = troubled
    net.run_for(100 * HEARTBEAT_MS)
    net.heal()
    net.run_for(60 * HEARTBEAT_MS)
    assert net["c"].applied == leader.applied, f"seed {seed}"


def test_a_newer_snapshot_midway_takes_over() -> None:
    """7: the leader may compact again while it sends; the follower ends with one of the two and all that follows."""
    net, leader = compacted_without("c")
    net.heal()
    net.holding = lambda packet: isinstance(packet.message, SnapshotChunk) and packet.message.offset >= 50
    net.heartbeat("a")
    old_chunk = net.held[-1]
    for number in range(5):
        leader.raft.propose(f"later {number}".encode())
        net.settle()
    leader.snapshot()
    # The transfer of the old one was given up (the follower was probed again); the new one starts from its beginning.
    newer = leader.disk.snapshot
    member = net["c"]
    member.raft.step("a", chunk(newer, term=1, length=30), member.now_ms)
    net.release()
    net.wire.append(old_chunk)
    net.run_for(60 * HEARTBEAT_MS)
    assert member.applied == leader.applied


def test_a_stale_snapshot_changes_nothing() -> None:
    """7: a snapshot that covers less than the follower has committed is only answered with how far it is."""
    net, leader = compacted_without("c", entries=3)
    stale = leader.disk.snapshot
    net.heal()
    leader.raft.propose(b"newer")
    net.run_for(3 * HEARTBEAT_MS)
    member = net["c"]
    before = (member.raft.statistics(), list(member.disk.entries), list(member.applied))
    member.raft.step("a", chunk(stale, term=1), member.now_ms)
    member.pump()
    assert (member.raft.statistics(), list(member.disk.entries), list(member.applied)) == before
    answer = net.sent[-1].message
    assert isinstance(answer, AppendAnswer)
    assert answer.accepted
    assert answer.index == member.raft.log.commit


def test_a_follower_that_holds_the_entries_keeps_its_tail() -> None:
    """7 and figure 13, receiver 6: if the last covered entry is in the log, what follows it stays."""
    disk = Disk(HardState(2), entries=entries_of(1, 1, 2, 2))
    net = Net("abc", disks={"c": disk})
    member = net["c"]
    head = SnapshotHead(3, 2, Members(("a", "b", "c")))
    member.raft.step("a", chunk(Snapshot(head, b"1.1\n2.1\n3.2"), term=2), 0)
    member.pump()
    assert member.disk.terms == [1, 1, 2, 2]
    assert member.applied == [b"1.1", b"2.1", b"3.2"]
    assert member.disk.snapshot.head.index == 0, "nothing was replaced"
    (answer,) = net.messages(AppendAnswer)
    assert answer.message.index == 3


def test_a_follower_with_a_conflicting_log_loses_all_of_it() -> None:
    """7 and figure 13, receiver 7: otherwise the whole log is replaced by the snapshot."""
    disk = Disk(HardState(2), entries=entries_of(1, 1, 1, 1, 1))
    net = Net("abc", disks={"c": disk})
    member = net["c"]
    head = SnapshotHead(3, 2, Members(("a", "b", "c"), ("d",)))
    member.raft.step("a", chunk(Snapshot(head, b"x\ny\nz"), term=2), 0)
    member.pump()
    assert member.disk.entries == []
    assert member.applied == [b"x", b"y", b"z"]
    assert member.raft.members == head.members
    assert (member.raft.log.last_index, member.raft.log.last_term) == (3, 2)


def test_a_restored_snapshot_is_acknowledged_only_when_durable() -> None:
    """RA6: until the snapshot is on disk a crash brings the old state back, so nothing is said of it."""
    net, leader = compacted_without("c")
    member = net["c"]
    net.heal()
    member.is_stalled = True
    member.raft.step("a", chunk(leader.disk.snapshot, term=1), member.now_ms)
    net.run_for(2 * HEARTBEAT_MS)
    assert member.raft.log.commit == 21
    claims = [packet.message.index for packet in net.messages(AppendAnswer, source="c") if packet.message.accepted]
    assert max(claims) == 1
    net.crash("c")
    net.restart("c")
    assert member.applied == []
    net.run_for(3 * HEARTBEAT_MS)
    assert member.applied == leader.applied


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1] + b"?",
        lambda data: b"?" + data[1:],
    ],
)
def test_a_snapshot_with_a_wrong_checksum_is_never_restored(spoil: Callable[[bytes], bytes]) -> None:
    """RG2: every byte is there and right, or nothing happens and the transfer begins again."""
    net, leader = compacted_without("c")
    snapshot = leader.disk.snapshot
    good = chunk(snapshot, term=1)
    bad = SnapshotChunk(
        term=1,
        round=0,
        head=good.head,
        size_bytes=good.size_bytes,
        checksum=good.checksum,
        offset=0,
        data=spoil(good.data),
    )
    member = net["c"]
    member.raft.step("a", bad, member.now_ms)
    member.pump()
    answer = net.sent[-1].message
    assert isinstance(answer, SnapshotAnswer)
    assert answer.received_bytes == 0
    assert member.applied == []
    member.raft.step("a", good, member.now_ms)
    member.pump()
    assert member.applied == leader.applied


def test_a_snapshot_larger_than_the_limit_is_not_gathered() -> None:
    """RG1: what a follower keeps of an unfinished snapshot is bounded by `snapshot_bytes_max`."""
    net = Net("abc", config=RaftConfig(snapshot_bytes_max=100))
    member = net["c"]
    snapshot = Snapshot(SnapshotHead(5, 1, net.founders), b"x" * 101)
    member.raft.step("a", chunk(snapshot, term=1, length=60), 0)
    member.raft.step("a", chunk(snapshot, term=1, offset=60), 0)
    member.pump()
    assert member.raft.log.commit == 0
    assert all(packet.message.received_bytes == 0 for packet in net.messages(SnapshotAnswer))


def test_a_chunk_that_lies_about_its_place_is_not_kept() -> None:
    """RG1: no chunk reaches beyond the size that its snapshot claims."""
    net = Net("abc")
    member = net["c"]
    lying = SnapshotChunk(
        term=1, round=0, head=SnapshotHead(5, 1, net.founders), size_bytes=3, checksum=0, offset=0, data=b"long"
    )
    member.raft.step("a", lying, 0)
    member.pump()
    assert net.messages(SnapshotAnswer)[-1].message.received_bytes == 0


def test_a_leader_change_midway_begins_again_and_ends_well() -> None:
    """7: half a snapshot of one leader is never completed with the bytes of another."""
    net, leader = compacted_without("c")
    net["b"].snapshot()
    member = net["c"]
    net.heal()
    member.raft.step("a", chunk(leader.disk.snapshot, term=1, length=25), member.now_ms)
    net.crash("a")
    net.time_out("b")
    net.settle()
    net.run_for(5 * HEARTBEAT_MS)
    assert net["b"].leads
    assert member.applied == net["b"].applied


def test_entries_kept_for_followers_a_little_behind_spare_them_the_snapshot() -> None:
    """5.1.3 of the dissertation: a leader keeps a few entries before its snapshot."""
    net = Net("abc")
    leader = net.elect("a")
    for number in range(10):
        leader.raft.propose(f"{number}".encode())
    net.settle()
    net.isolate("c")
    for number in range(5):
        leader.raft.propose(f"more {number}".encode())
    net.settle()
    leader.snapshot(keep_from_index=10)
    net.heal()
    net.run_for(2 * HEARTBEAT_MS)
    assert net["c"].applied == leader.applied
    assert net.messages(SnapshotChunk) == []


def test_a_snapshot_carries_the_membership_of_its_last_entry_not_a_later_one() -> None:
    """5.1.2 of the dissertation: who restores it must know the members as of that entry."""
    net = Net("abc", config=CONFIG)
    leader = net.elect("a")
    leader.raft.propose_members(AddLearner("d"))
    net.settle()
    net.isolate("a")
    leader.raft.propose_members(AddLearner("e"))
    net.settle()
    assert leader.snapshot().head.members == Members(("a", "b", "c"), ("d",))
    assert leader.raft.members.learners == ("d", "e")
    net.crash("a")
    net.restart("a")
    assert leader.raft.members.learners == ("d", "e"), "the tail of the log is newer than the snapshot"


def test_a_leader_whose_log_begins_after_a_snapshot_elects_and_repairs() -> None:
    """7: the snapshot's last index and term stand in for the entries before it in every check."""
    net = Net("abc", config=CONFIG)
    leader = net.elect("a")
    for number in range(4):
        leader.raft.propose(f"{number}".encode())
    net.run_for(2 * HEARTBEAT_MS)
    for member in net.up:
        member.snapshot()
        assert member.disk.entries == []
    net.crash(*"abc")
    net.restart(*"abc")
    net.elect("b")
    net["b"].raft.propose(b"on")
    net.settle()
    assert [member.applied for member in net.up] == [[b"0", b"1", b"2", b"3", b"on"]] * 3
    assert net.messages(SnapshotChunk) == []


def test_an_append_that_begins_before_the_snapshot_is_taken_from_where_it_matters() -> None:
    """7: a late append that overlaps what a snapshot covers neither fails nor repeats anything."""
    net = Net("abc")
    leader = net.elect("a")
    for number in range(4):
        leader.raft.propose(f"{number}".encode())
    net.settle()
    member = net["c"]
    net.run_for(HEARTBEAT_MS)
    entries = tuple(member.disk.entries)
    member.snapshot()
    late = AppendEntries(term=1, previous_index=0, previous_term=0, entries=entries, commit=5, round=0)
    member.raft.step("a", late, member.now_ms)
    member.pump()
    assert member.disk.entries == []
    assert net.sent[-1].message == AppendAnswer(term=1, round=0, accepted=True, index=5)


def test_an_empty_snapshot_is_a_snapshot() -> None:
    """7: a state machine may be empty; a snapshot of nothing still moves the log."""
    net = Net("abc")
    member = net["c"]
    member.raft.step("a", chunk(Snapshot(SnapshotHead(4, 1, net.founders)), term=1), 0)
    member.pump()
    assert member.raft.log.last_index == 4
    assert member.disk.snapshot.head.index == 4
