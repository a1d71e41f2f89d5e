"""A member of the metadata group: outcomes are told once and only when certain, reads wait for what they must see."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field

import pytest

from tidelog.cluster.metadata.member import (
    Done,
    MetadataMember,
    MetadataOptions,
    ReadDone,
    RequestFailed,
    Result,
    SaveOrder,
)
from tidelog.core.catalog import AdmitNode, Catalog, FenceNode, FoundCluster
from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    Envelope,
    HardState,
    Members,
    Ready,
    Snapshot,
    SnapshotChunk,
    SnapshotHead,
    VoteAnswer,
)
from tidelog.core.raft.config import RaftConfig
from tidelog.errors import CatalogVersion, InvalidConfig, NotLeader, OutcomeUnknown, ProposalLost

ME, OTHER, THIRD = "n1/aa", "n2/bb", "n3/cc"


@dataclass
class Desk:
    """A member whose disk and network are this test."""

    member: MetadataMember
    unwritten: deque[Ready] = field(default_factory=deque)
    sent: list[Envelope] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    saves: list[SaveOrder] = field(default_factory=list)

    def pump(self, *, write: bool = True) -> None:
        while (output := self.member.poll()) is not None:
            self.sent += output.messages
            self.results += output.results
            if output.write is not None:
                self.unwritten.append(output.write)
            if output.save is not None:
                self.saves.append(output.save)
            if write:
                self.write()

    def write(self) -> None:
        while self.unwritten:
            self.member.written(self.unwritten.popleft().number)

    def answer(self, sender: str, index: int, *, round_: int = 0) -> None:
        term = self.member.raft.term
        self.member.receive(sender, AppendAnswer(term=term, round=round_, accepted=True, index=index), 0)
        self.pump()


def desk(*voters: str, options: MetadataOptions | None = None) -> Desk:
    members = Members(tuple(sorted(voters or (ME,))))
    made = Desk(
        MetadataMember(
            member=ME,
            options=options or MetadataOptions(),
            hard_state=HardState(1, None),
            snapshot=Snapshot(SnapshotHead(1, 1, members), Catalog().snapshot()),
            entries=[],
            random_fraction=lambda: 0.0,
            now_ms=0,
        )
    )
    made.pump()
    return made


def leading(*voters: str, options: MetadataOptions | None = None) -> Desk:
    made = desk(*voters, options=options)
    made.member.campaign(0)
    made.pump()
    for pre in (True, False):
        if made.member.raft.leading is None:
            term = made.member.raft.term + pre
            made.member.receive(OTHER, VoteAnswer(term=term, granted=True, pre=pre), 0)
            made.pump()
    if voters:
        made.answer(OTHER, made.member.raft.log.last_index)
    assert made.member.is_leader
    return made


def test_a_change_is_done_once_it_is_committed_and_applied() -> None:
    """MM1."""
    led = leading()
    led.member.propose(AdmitNode(node="n1"), 7)
    led.pump(write=False)
    assert led.results == []
    led.write()
    led.pump()
    (done,) = led.results
    assert isinstance(done, Done)
    assert (done.token, done.applied.refusal) == (7, None)
    assert led.member.catalog.node("n1") is not None


def test_a_refused_change_is_done_and_says_why() -> None:
    """MM1: committed, and without effect."""
    led = leading()
    led.member.propose(FenceNode(node="n9", expected_incarnation=1), 7)
    led.pump()
    (done,) = led.results
    assert isinstance(done, Done)
    assert done.applied.refusal is not None


def test_a_follower_refuses_to_propose_and_names_the_leader() -> None:
    followed = desk(ME, OTHER, THIRD)
    beat = AppendEntries(term=2, previous_index=1, previous_term=1, entries=(), commit=1, round=0)
    followed.member.receive(OTHER, beat, 0)
    followed.pump()
    with pytest.raises(NotLeader) as refused:
        followed.member.propose(AdmitNode(node="n1"), 1)
    assert refused.value.leader == OTHER


def test_a_change_that_another_leader_replaced_is_lost_and_said_to_be() -> None:
    """MM1."""
    led = leading(ME, OTHER, THIRD)
    led.member.propose(AdmitNode(node="n1"), 7)
    led.pump()
    index = led.member.raft.log.last_index
    term = led.member.raft.term + 1
    entry = Entry(index, term, EntryKind.EMPTY)
    taken = AppendEntries(
        term=term, previous_index=index - 1, previous_term=term - 1, entries=(entry,), commit=index, round=0
    )
    led.member.receive(OTHER, taken, 0)
    led.pump()
    (failed,) = led.results
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, ProposalLost)
    assert failed.error.definite


def test_a_change_that_a_snapshot_jumped_over_has_an_unknown_outcome() -> None:
    """MM1: it may be in the snapshot or not; nobody here can tell."""
    led = leading(ME, OTHER, THIRD)
    led.member.propose(AdmitNode(node="n1"), 7)
    led.pump()
    catalog = Catalog()
    catalog.apply(9, FoundCluster(cluster_id="00" * 16))
    data = catalog.snapshot()
    term = led.member.raft.term + 1
    head = SnapshotHead(9, term, Members((ME, OTHER, THIRD)))
    chunk = SnapshotChunk(
        term=term, round=0, head=head, size_bytes=len(data), checksum=zlib.crc32(data), offset=0, data=data
    )
    led.member.receive(OTHER, chunk, 0)
    led.pump()
    (failed,) = led.results
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, OutcomeUnknown)
    assert not failed.error.definite
    assert (led.member.catalog.cluster_id, led.member.applied_index, led.member.restores) == ("00" * 16, 9, 1)


def test_a_read_waits_for_a_majority() -> None:
    """MM2."""
    led = leading(ME, OTHER, THIRD)
    led.member.read(5)
    led.pump()
    assert led.results == []
    rounds = [message.round for _, message in led.sent if isinstance(message, AppendEntries)]
    led.answer(OTHER, led.member.raft.log.last_index, round_=max(rounds))
    assert [result.token for result in led.results if isinstance(result, ReadDone)] == [5]


def test_a_read_of_a_leader_that_steps_down_fails() -> None:
    """MM2."""
    led = leading(ME, OTHER, THIRD)
    led.member.read(5)
    led.pump()
    term = led.member.raft.term + 1
    led.member.receive(THIRD, AppendAnswer(term=term, round=0, accepted=False, index=0), 0)
    led.pump()
    (failed,) = led.results
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, NotLeader)


def test_waiting_for_an_index_ends_when_it_is_applied() -> None:
    """MM2: how a follower serves a read that the leader has confirmed."""
    led = leading()
    led.member.wait_applied(led.member.applied_index + 1, 3)
    led.pump()
    assert led.results == []
    led.member.propose(AdmitNode(node="n1"), 4)
    led.pump()
    assert {result.token for result in led.results} == {3, 4}


def test_who_is_forgotten_hears_nothing() -> None:
    led = leading()
    led.member.propose(AdmitNode(node="n1"), 7)
    led.member.wait_applied(100, 8)
    led.member.forget(7, 8)  # in one pass: a leader that begins anew forgets thousands
    led.pump()
    assert led.results == []
    assert led.member.catalog.node("n1") is not None


def test_messages_that_speak_of_a_write_leave_after_it() -> None:
    """MM3."""
    followed = desk(ME, OTHER, THIRD)
    entry = Entry(2, 2, EntryKind.EMPTY)
    append = AppendEntries(term=2, previous_index=1, previous_term=1, entries=(entry,), commit=1, round=0)
    followed.member.receive(OTHER, append, 0)
    followed.pump(write=False)
    assert followed.sent == []
    followed.write()
    followed.pump()
    assert [(to, type(message)) for to, message in followed.sent] == [(OTHER, AppendAnswer)]


def test_a_snapshot_is_of_the_moment_it_was_ordered_however_late_it_is_made() -> None:
    led = leading(options=MetadataOptions(snapshot_entries=3, keep_entries=1))
    for number in range(3):
        led.member.propose(AdmitNode(node=f"n{number}"), number)
        led.pump()
    order, *_ = led.saves
    led.member.propose(AdmitNode(node="late"), 9)
    led.pump()
    snapshot = order.snapshot()
    assert Catalog.restore(snapshot.data).node("late") is None
    led.member.saved(snapshot, order.keep_from_index)
    assert led.member.raft.log.snapshot.head.index == order.head.index


def test_a_change_of_newer_software_stops_the_member_and_is_not_skipped() -> None:
    followed = desk(ME, OTHER, THIRD)
    entry = Entry(2, 2, EntryKind.CHANGE, b'{"do":"later","v":99}')
    append = AppendEntries(term=2, previous_index=1, previous_term=1, entries=(entry,), commit=2, round=0)
    followed.member.receive(OTHER, append, 0)
    with pytest.raises(CatalogVersion):
        followed.pump()


def test_the_raft_config_says_all_that_is_wrong() -> None:
    with pytest.raises(InvalidConfig) as refused:
        RaftConfig(heartbeat_ms=0, election_timeout_ms=-1, promote_lag_entries=-1)
    assert len(refused.value.problems) == 4
