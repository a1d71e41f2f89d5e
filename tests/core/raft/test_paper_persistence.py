"""Persist before send, message by message, and restarts from whatever a disk was left with (figure 2, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import pytest

from tests.core.raft.harness import Disk, Member, Net, entries_of
from tests.core.raft.test_paper_elections import append, vote_request
from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    RaftConfig,
    RaftRole,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)

TIMEOUT_MS = RaftConfig().election_timeout_ms


def waits_for_disk(member: Member, kind: type) -> bool:
    """Whether messages of this kind leave only after the write that the member is busy with."""
    member.is_stalled = True
    before = len(member.net.sent)
    member.pump()
    at_once = [packet for packet in member.net.sent[before:] if isinstance(packet.message, kind)]
    later = [
        envelope for ready in member.pending for envelope in ready.messages_after if isinstance(envelope.message, kind)
    ]
    assert at_once or later, f"no {kind.__name__} was produced"
    return not at_once


@dataclass(frozen=True)
class Case:
    """A situation, the kind of message it produces, and whether that message must wait for the disk."""

    name: str
    kind: type
    waits: bool
    prepare: Callable[[Net], Member]


def _step(net: Net, name: str, sender: str, message: Message) -> Member:
    net[name].raft.step(sender, message, net[name].now_ms)
    return net[name]


def _pre_vote_asked(net: Net) -> Member:
    net.time_out("a")
    return net["a"]


def _vote_asked(net: Net) -> Member:
    net.time_out("a")
    return _step(net, "a", "b", VoteAnswer(term=1, granted=True, pre=True))


def _handed_over(net: Net) -> Member:
    net.elect("b")
    return _step(net, "a", "b", TimeoutNow(term=1))


def _proposed(net: Net) -> Member:
    leader = net.elect("a")
    leader.raft.propose(b"x")
    return leader


def _heartbeat(net: Net) -> Member:
    leader = net.elect("a")
    leader.raft.tick(leader.now_ms + net.config.heartbeat_ms)
    return leader


def _alone(net: Net) -> Member:
    alone = Net("a", learners="b")
    alone.time_out("a")
    return alone["a"]


def _transfer(net: Net) -> Member:
    leader = net.elect("a")
    leader.raft.transfer("b", leader.now_ms)
    return leader


def _heartbeat_of_a_known_term(net: Net) -> Member:
    net.elect("b")
    return _step(net, "a", "b", append(1, previous=(1, 1)))


def _chunk(term: int) -> SnapshotChunk:
    head = SnapshotHead(9, 1, Members(("a", "b", "c")))
    return SnapshotChunk(term=term, round=0, head=head, size_bytes=50, checksum=0, offset=0, data=b"x")


NEW_ENTRY = Entry(1, 1, EntryKind.CHANGE, b"x")
TABLE = [
    Case("a pre-vote request says nothing of us", VoteRequest, False, _pre_vote_asked),
    Case("a vote request: our own vote", VoteRequest, True, _vote_asked),
    Case("a vote request after a handover: our own vote", VoteRequest, True, _handed_over),
    Case("a granted vote", VoteAnswer, True, lambda net: _step(net, "a", "b", vote_request(5))),
    Case("a refused vote of a new term: the term", VoteAnswer, True,
         lambda net: _step(net, "a", "b", vote_request(5)) and _step(net, "a", "c", vote_request(5))),
    Case("accepted entries", AppendAnswer, True,
         lambda net: _step(net, "a", "b", replace(append(1), entries=(NEW_ENTRY,)))),
    Case("a first heartbeat of a new term: the term", AppendAnswer, True,
         lambda net: _step(net, "a", "b", append(5))),
    Case("a rejection in a new term: the term", AppendAnswer, True,
         lambda net: _step(net, "a", "b", append(5, previous=(7, 4)))),
    Case("a heartbeat of a term that is on disk", AppendAnswer, False, _heartbeat_of_a_known_term),
    Case("a chunk in a new term: the term", SnapshotAnswer, True, lambda net: _step(net, "a", "b", _chunk(5))),
    Case("a leader's entries leave before its own write", AppendEntries, False, _proposed),
    Case("a leader's heartbeat", AppendEntries, False, _heartbeat),
    Case("a single voter's first append: its term", AppendEntries, True, _alone),
    Case("a handover", TimeoutNow, False, _transfer),
]  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_what_a_message_says_is_durable_before_it_leaves(case: Case) -> None:
    """Figure 2: respond only after stable storage is updated. 10.2.1: a leader's appends need not wait."""
    member = case.prepare(Net("abc"))
    assert waits_for_disk(member, case.kind) is case.waits


def test_a_stalled_leader_with_a_new_term_is_silent_until_the_term_is_durable() -> None:
    """RA6: nothing that was queued before a change of the term slips out before it either."""
    net = Net("abc")
    leader = net.elect("a")
    leader.raft.propose(b"x")
    leader.raft.step("c", vote_request(7, last=(9, 6), forced=True), leader.now_ms)
    leader.is_stalled = True
    before = len(net.sent)
    leader.pump()
    assert len(net.sent) == before
    leader.flush()
    assert len(net.sent) > before


def test_messages_that_wait_leave_in_the_ready_that_is_written_last() -> None:
    """RD2: a Ready without anything to write still waits for the writes before it."""
    net = Net("abc")
    member = net["b"]
    member.is_stalled = True
    member.raft.step("a", replace(append(1), entries=(NEW_ENTRY,)), 0)
    member.pump()
    member.raft.step("a", append(1, previous=(9, 1)), 0)
    member.pump()
    assert [ready.must_persist for ready in member.pending] == [True, False]
    assert net.sent == []
    member.flush()
    assert [packet.message.accepted for packet in net.messages(AppendAnswer)] == [True, False]


def test_one_sync_may_cover_many_readys() -> None:
    """RD2: `persisted` of the last one speaks for all before it."""
    net = Net("abc")
    leader = net.elect("a")
    leader.is_stalled = True
    for number in range(5):
        leader.raft.propose(f"{number}".encode())
        leader.pump()
    readys = [ready for ready in leader.pending if ready.must_persist]
    assert len(readys) == 5
    for ready in readys:
        leader.disk.write(ready)
    leader.pending.clear()
    leader.raft.persisted(readys[-1].number)
    assert leader.raft.log.stable == 6


# --- restarts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hard_state", "base", "terms"), list(product(
    [HardState(3), HardState(3, "a"), HardState(3, "b"), HardState(8, "c")],
    [0, 2],
    [(), (2,), (2, 3), (2, 2, 3)],
)))  # fmt: skip
def test_a_member_restarts_from_any_disk_it_can_have_left(
    hard_state: HardState, base: int, terms: tuple[int, ...]
) -> None:
    """5.1: term, vote and log come from disk; the rest is learned again, and the group goes on."""
    members = Members(("a", "b", "c"))
    snapshot = Snapshot(SnapshotHead(base, 1 if base else 0, members), b"1.1\n2.1" if base else b"")
    older = [] if base else entries_of(1, 1)
    mine = Disk(hard_state, snapshot, older + entries_of(*terms, first_index=3))
    others = Disk(HardState(2), snapshot, list(older))
    net = Net("abc", disks={"a": mine, "b": others, "c": others.copy()})
    member = net["a"]
    assert (member.raft.term, member.raft.vote, member.raft.role) == (
        hard_state.term,
        hard_state.vote,
        RaftRole.FOLLOWER,
    )
    assert member.raft.log.last_index == 2 + len(terms)
    assert member.raft.log.commit == base, "what is committed beyond the snapshot has to be learned again"
    assert member.applied == ([b"1.1", b"2.1"] if base else [])
    member.raft.step("b", vote_request(hard_state.term, last=(99, 99)), member.now_ms)
    member.pump()
    granted = net.messages(VoteAnswer, source="a")[-1].message.granted
    assert granted is (hard_state.vote in (None, "b")), "the vote of before the crash still binds"
    net.run_for(12 * TIMEOUT_MS)
    net.leader.raft.propose(b"on")
    net.run_for(2 * net.config.heartbeat_ms)
    logs = [member.disk.entries[-1] for member in net.up]
    assert logs == [logs[0]] * 3
    assert all(member.applied[-1] == b"on" for member in net.up)


def test_a_write_may_stop_after_any_of_its_parts() -> None:
    """RD2: term, snapshot, entries, in this order: every prefix is a disk that one can start from.

    So no entry is ever of a later term than the term on disk, and nothing was said of what is missing.
    """
    seen = 0
    for prefix in range(6):
        net = Net("abc")
        member = net["b"]
        member.is_stalled = True
        member.raft.step("a", replace(append(4), entries=tuple(entries_of(1, 3, 4, 4))), 0)
        member.pump()
        (ready,) = member.pending
        partial = replace(
            ready,
            hard_state=ready.hard_state if prefix >= 1 else None,
            entries=ready.entries[: max(0, prefix - 1)],
        )
        member.disk.write(partial)
        net.crash("b")
        net.restart("b")
        assert net.sent == []
        assert member.raft.log.last_index == max(0, prefix - 1)
        net.run_for(6 * TIMEOUT_MS)
        seen = max(seen, net.leader.raft.term)
    assert seen > 4


def test_everybody_crashes_and_nothing_acknowledged_is_lost() -> None:
    """5.4.3: what was applied anywhere is on a majority of disks, so any majority brings it back."""
    for survivors in ("ab", "bc", "ac"):
        net = Net("abc")
        leader = net.elect("a")
        net["c"].is_stalled = True
        leader.raft.propose(b"kept")
        net.settle()
        assert leader.applied == [b"kept"]
        net.crash(*"abc")
        net.restart(*survivors)
        net.run_for(10 * TIMEOUT_MS)
        assert all(member.applied == [b"kept"] for member in net.up), survivors


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_keeps_the_rules(seed: int) -> None:
    """RA1 to RA6 under random loss, delay, repetition, stalls, crashes and compaction; then all agree again.

    The simulator does this at scale; here it checks the harness of this folder against itself, and vice versa.
    """
    net = Net("abc", learners="d", seed=seed, config=RaftConfig(snapshot_chunk_bytes=20, inflight_max=4))
    random = net.random
    acknowledged: list[bytes] = []
    for step in range(400):
        member = net[random.choice("abcd")]
        match random.choices(("tick", "deliver", "propose", "stall", "crash", "compact"), (30, 50, 15, 6, 2, 2))[0]:
            case "tick" if member.is_up:
                member.now_ms = max(member.now_ms, member.raft.wake_at_ms())
                member.raft.tick(member.now_ms)
            case "deliver":
                for _ in range(min(len(net.wire), 6)):
                    index = random.randrange(len(net.wire))
                    packet = net.wire[index]
                    if random.random() < 0.9:
                        del net.wire[index]
                    if random.random() < 0.9:
                        net.deliver(packet)
            case "propose" if member.leads:
                member.raft.propose(f"{step}".encode())
            case "stall":
                member.is_stalled = not member.is_stalled
            case "crash":
                member.crash()
                member.start()
            case "compact" if member.is_up and member.applied_index > member.raft.log.snapshot.head.index:
                member.snapshot()
            case _:
                continue
        net.pump()
        longest = max((member.applied for member in net.up), key=len)
        assert longest[: len(acknowledged)] == acknowledged[: len(longest)], f"seed {seed}: what was applied changed"
        acknowledged = list(longest) if len(longest) > len(acknowledged) else acknowledged
    for member in net.up:
        member.is_stalled = False
        member.flush()
    net.run_for(20 * TIMEOUT_MS)
    net.leader.raft.propose(b"end")
    net.run_for(2 * TIMEOUT_MS)
    assert [member.applied for member in net.up] == [net.leader.applied] * 4, f"seed {seed}"
    assert net.leader.applied[: len(acknowledged)] == acknowledged, f"seed {seed}"
