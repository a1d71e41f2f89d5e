"""Terms and elections: sections 5.1, 5.2 and 5.4.1 of the Raft paper, 4.2.3, 6.2 and 9.6 of the dissertation."""

from __future__ import annotations

import pytest

from tests.core.raft.harness import Disk, Net, entries_of
from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    HardState,
    RaftConfig,
    RaftRole,
    Remove,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)

TIMEOUT_MS = RaftConfig().election_timeout_ms


def append(term: int, *, previous: tuple[int, int] = (0, 0), commit: int = 0, round_: int = 0) -> AppendEntries:
    return AppendEntries(
        term=term, previous_index=previous[0], previous_term=previous[1], entries=(), commit=commit, round=round_
    )


def vote_request(term: int, *, last: tuple[int, int] = (0, 0), pre: bool = False, forced: bool = False) -> VoteRequest:
    return VoteRequest(term=term, last_index=last[0], last_term=last[1], pre=pre, forced=forced)


# --- 5.1 terms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [RaftRole.FOLLOWER, RaftRole.PRE_CANDIDATE, RaftRole.CANDIDATE, RaftRole.LEADER])
@pytest.mark.parametrize(
    "message",
    [
        append(9),
        AppendAnswer(term=9, round=0, accepted=False, index=0),
        vote_request(9, last=(99, 9), forced=True),
        VoteAnswer(term=9, granted=False, pre=False),
        VoteAnswer(term=9, granted=False, pre=True),
        SnapshotChunk(term=9, round=0, head=SnapshotHead(5, 5), size_bytes=9, checksum=0, offset=0, data=b""),
        SnapshotAnswer(term=9, round=0, index=5, received_bytes=0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_member_that_learns_of_a_newer_term_takes_it_and_follows(role: RaftRole, message: object) -> None:
    """5.1: a member that sees a larger term than its own adopts it, and a candidate or leader becomes a follower."""
    net = Net("abc")
    if role is RaftRole.PRE_CANDIDATE:
        net.split("a", "b", "c")
        net.time_out("a")
    elif role is RaftRole.CANDIDATE:
        net.losing = lambda packet: isinstance(packet.message, VoteAnswer) and not packet.message.pre
        net.time_out("a")
    elif role is RaftRole.LEADER:
        net.elect("a")
    net.settle()
    member = net["a"]
    assert member.raft.role is role
    member.raft.step("b", message, member.now_ms)  # type: ignore[arg-type]
    assert (member.raft.term, member.raft.role) == (9, RaftRole.FOLLOWER)
    member.pump()
    assert member.disk.hard_state.term == 9


def test_a_message_of_an_older_term_changes_nothing() -> None:
    """5.1: a request with a stale term is refused."""
    net = Net("abc")
    net.elect("a")
    member = net["b"]
    before = (member.raft.statistics(), list(member.log_terms))
    old = SnapshotChunk(term=0, round=0, head=SnapshotHead(50, 0), size_bytes=0, checksum=0, offset=0, data=b"")
    for message in (append(0, commit=9), vote_request(0), TimeoutNow(term=0), old):
        member.raft.step("c", message, member.now_ms)
    assert (member.raft.statistics(), list(member.log_terms)) == before


def test_a_leader_of_the_past_is_told_the_term_and_steps_down() -> None:
    """5.1: a leader that finds out that its term is over becomes a follower at once."""
    net = Net("abc")
    net.elect("a")
    net.isolate("a")
    net.elect("b")
    assert net["a"].leads
    net.heal()
    net.heartbeat("a")
    assert net["a"].raft.role is RaftRole.FOLLOWER
    assert net["a"].raft.term == net["b"].raft.term


def test_the_term_never_falls_over_restarts() -> None:
    """5.1: terms only rise; they are on disk before anybody hears of them."""
    net = Net("abc")
    seen = 0
    for name in "abcabc":
        net.elect(name)
        assert net[name].raft.term > seen
        seen = net[name].raft.term
        net.crash(*"abc")
        net.restart(*"abc")
        assert max(member.raft.term for member in net.up) == seen


# --- 5.2 elections ---------------------------------------------------------------------------------


def test_everybody_starts_as_a_follower() -> None:
    """5.2: a member begins as a follower, after a restart too."""
    net = Net("abc")
    net.elect("a")
    net.crash("a")
    net.restart("a")
    assert net["a"].raft.role is RaftRole.FOLLOWER
    assert net["a"].raft.leader is None


def test_heartbeats_keep_followers_from_asking() -> None:
    """5.2: as long as a leader is heard, nobody starts an election."""
    net = Net("abcde")
    net.elect("a")
    net.run_for(20 * TIMEOUT_MS)
    assert net["a"].leads
    assert net["a"].raft.term == 1
    assert sum(member.raft.statistics().elections for member in net.up) == 1


def test_election_timeouts_are_drawn_anew_from_the_range() -> None:
    """5.2: timeouts are random in a fixed range, and drawn again each time."""
    net = Net("abc", seed=7)
    net.split("a", "b", "c")
    member = net["a"]
    waits = []
    for _ in range(300):
        waits.append(member.raft.wake_at_ms() - member.now_ms)
        member.now_ms = member.raft.wake_at_ms()
        member.raft.tick(member.now_ms)
    assert min(waits) >= TIMEOUT_MS
    assert max(waits) < 2 * TIMEOUT_MS
    assert len(set(waits)) > 200
    assert max(waits) - min(waits) > 0.9 * TIMEOUT_MS


def test_a_candidate_raises_its_term_votes_for_itself_and_asks_all_voters() -> None:
    """5.2: to start an election a member raises its term, votes for itself and asks every other voter."""
    net = Net("abc", learners="d")
    net.time_out("a")
    net.settle()
    requests = [packet for packet in net.messages(VoteRequest, source="a") if not packet.message.pre]
    assert [packet.target for packet in requests] == ["b", "c"]
    assert net["a"].disk.hard_state == HardState(1, "a")


@pytest.mark.parametrize(("voters", "answering", "elected"), [
    ("a", "", True),
    ("ab", "", False),
    ("ab", "b", True),
    ("abc", "", False),
    ("abc", "c", True),
    ("abcd", "b", False),
    ("abcd", "bc", True),
    ("abcde", "b", False),
    ("abcde", "be", True),
])  # fmt: skip
def test_a_majority_of_the_voters_elects(voters: str, answering: str, elected: bool) -> None:
    """5.2: a candidate leads once a majority of the whole membership voted for it."""
    net = Net(voters)
    net.crash(*(set(voters) - {"a"} - set(answering)))
    net.time_out("a")
    net.settle()
    assert net["a"].leads is elected


def test_a_member_votes_once_in_a_term_and_first_come_is_first_served() -> None:
    """5.2: at most one vote in a term, for the first that asks; the same one may ask again."""
    net = Net("abc")
    member = net["b"]
    member.raft.step("a", vote_request(3), 0)
    member.raft.step("c", vote_request(3), 0)
    member.raft.step("a", vote_request(3), 0)
    member.pump()
    answers = [(packet.target, packet.message.granted) for packet in net.messages(VoteAnswer, source="b")]
    assert answers == [("a", True), ("c", False), ("a", True)]
    assert member.disk.hard_state == HardState(3, "a")


def test_a_vote_is_durable_before_its_message_leaves() -> None:
    """5.2 and figure 2: term and vote are on stable storage before a request is answered."""
    net = Net("abc")
    member = net["b"]
    member.is_stalled = True
    member.raft.step("a", vote_request(1), 0)
    member.pump()
    assert net.messages(VoteAnswer) == []
    member.crash()
    member.start()
    member.raft.step("c", vote_request(1), 0)  # the first vote was never heard of, so this is not a second one
    member.pump()
    member.crash()
    member.start()
    member.raft.step("a", vote_request(1), 0)
    member.pump()
    answers = [(packet.target, packet.message.granted) for packet in net.messages(VoteAnswer, source="b")]
    assert answers == [("c", True), ("a", False)]


def test_a_candidate_asks_only_once_its_own_vote_is_durable() -> None:
    """5.2: a candidate that forgot its own vote could vote for another in the same term."""
    net = Net("abc")
    net["a"].is_stalled = True
    net.time_out("a")
    net.settle()
    assert net["a"].raft.role is RaftRole.CANDIDATE
    assert all(packet.message.pre for packet in net.messages(VoteRequest))
    net.crash("a")
    net.restart("a")
    assert net["a"].raft.term == 0
    net.elect("b")
    assert net["a"].disk.hard_state == HardState(1, "b")


def test_a_split_vote_ends() -> None:
    """5.2: when votes are split nobody leads that term; random timeouts end it, usually in the next."""
    rounds = []
    for seed in range(20):
        net = Net("abc", seed=seed)
        net.crash("b")
        net.holding = lambda packet: isinstance(packet.message, VoteRequest) and not packet.message.pre
        net.time_out("a", "c")
        net.settle()
        assert [net[name].raft.role for name in "ac"] == [RaftRole.CANDIDATE, RaftRole.CANDIDATE], f"seed {seed}"
        net.release()
        net.settle()
        assert not net["a"].leads
        assert not net["c"].leads
        net.run_for(10 * TIMEOUT_MS)
        rounds.append(net.leader.raft.term)
    assert sorted(rounds)[len(rounds) // 2] <= 3


def test_a_candidate_steps_down_for_a_leader_of_its_term() -> None:
    """5.2: a candidate that hears from a leader of at least its own term recognizes it."""
    net = Net("abc")
    net.isolate("c")
    net.time_out("c")
    candidate = net["c"]
    candidate.raft.step("b", VoteAnswer(term=1, granted=True, pre=True), candidate.now_ms)
    candidate.raft.tick(candidate.raft.wake_at_ms())
    candidate.raft.step("b", VoteAnswer(term=2, granted=True, pre=True), candidate.now_ms)
    assert (candidate.raft.role, candidate.raft.term) == (RaftRole.CANDIDATE, 2)
    candidate.raft.step("a", append(2), candidate.now_ms)
    assert (candidate.raft.role, candidate.raft.leader, candidate.raft.term) == (RaftRole.FOLLOWER, "a", 2)


def test_votes_of_learners_and_strangers_do_not_count() -> None:
    """5.2 and 4.2.1: only voters make a majority."""
    net = Net("abc", learners="de")
    net.crash("b", "c")
    net.losing = lambda packet: packet.source in "bc"
    net.time_out("a")
    net.settle()
    member = net["a"]
    for sender in ("d", "e", "x", "y"):
        member.raft.step(sender, VoteAnswer(term=1, granted=True, pre=True), member.now_ms)
    assert member.raft.role is RaftRole.PRE_CANDIDATE
    member.raft.step("b", VoteAnswer(term=1, granted=True, pre=True), member.now_ms)
    for sender in ("d", "e", "x", "y"):
        member.raft.step(sender, VoteAnswer(term=1, granted=True, pre=False), member.now_ms)
    assert net["a"].raft.role is RaftRole.CANDIDATE


def test_one_voter_saying_yes_many_times_is_one_vote() -> None:
    """5.2: votes are counted by voter, so repeated messages do not elect."""
    net = Net("abcde")
    net.split("a", "bcde")
    net.time_out("a")
    member = net["a"]
    for _ in range(5):
        member.raft.step("b", VoteAnswer(term=1, granted=True, pre=True), member.now_ms)
    assert member.raft.role is RaftRole.PRE_CANDIDATE


# --- 5.4.1 the log of who is elected -----------------------------------------------------------------


@pytest.mark.parametrize(("own", "asking", "granted"), [
    ((1, 1), (1, 1), True),
    ((1, 1), (1, 1, 1), True),
    ((1, 1, 1), (1, 1), False),
    ((1, 1, 1, 1, 1), (1, 2), True),
    ((1, 2), (1, 1, 1, 1, 1), False),
    ((), (1,), True),
    ((1,), (), False),
])  # fmt: skip
def test_a_vote_goes_only_to_a_log_at_least_as_complete(
    own: tuple[int, ...], asking: tuple[int, ...], granted: bool
) -> None:
    """5.4.1: of two last entries the one of the later term is newer; of equal terms the longer log is."""
    for pre in (True, False):
        disk = Disk(hard_state=HardState(2), entries=entries_of(*own))
        net = Net("abc", disks={"b": disk})
        last = (len(asking), asking[-1] if asking else 0)
        net["b"].raft.step("a", vote_request(3, last=last, pre=pre), 0)
        net["b"].pump()
        (answer,) = net.messages(VoteAnswer)
        assert answer.message.granted is granted


def test_who_lacks_a_committed_entry_is_never_elected() -> None:
    """5.4.1 and 5.4.3: a majority holds every committed entry, and will not vote for a log without it."""
    net = Net("abcde")
    net.elect("a")
    net.split("abc", "d", "e")
    net["a"].raft.propose(b"committed")
    net.settle()
    assert net["a"].applied == [b"committed"]
    net.crash("a")
    net.heal()
    for name in ("d", "e", "d"):
        net.time_out(name)
        net.settle()
        assert not net[name].leads
    net.elect("c")
    net.settle()
    net.heartbeat("c")
    assert all(member.applied == [b"committed"] for member in net.up)


# --- 9.6 pre-vote, 4.2.3 disruption, 6.2 check-quorum ---------------------------------------------------


def test_who_is_cut_off_does_not_raise_its_term() -> None:
    """9.6: a member asks whether it could win before it raises its term, so a partition leaves the term alone."""
    net = Net("abc")
    net.elect("a")
    net.isolate("c")
    net.run_for(30 * TIMEOUT_MS)
    assert net["c"].raft.role is RaftRole.PRE_CANDIDATE
    assert net["c"].raft.term == 1
    net.heal()
    net.run_for(3 * TIMEOUT_MS)
    assert (net.leader.name, net.leader.raft.term) == ("a", 1)
    assert net["c"].raft.leader == "a"


def test_a_pre_vote_binds_nobody() -> None:
    """9.6: an answered pre-vote changes neither term nor vote of who answers, and may be given to many."""
    net = Net("abc")
    member = net["b"]
    for sender in "ac":
        member.raft.step(sender, vote_request(1, pre=True), 0)
    member.pump()
    assert [packet.message.granted for packet in net.messages(VoteAnswer)] == [True, True]
    assert member.disk.hard_state == HardState()
    assert member.raft.ready() is None


def test_who_hears_a_leader_does_not_answer_a_candidate() -> None:
    """4.2.3: who heard a leader within an election timeout ignores requests for votes, whatever their term."""
    net = Net("abc")
    net.elect("a")
    net.heartbeat("a")
    follower = net["b"]
    sent = len(net.sent)
    for pre in (True, False):
        follower.raft.step("c", vote_request(50, last=(99, 49), pre=pre), follower.now_ms + TIMEOUT_MS - 1)
    follower.pump()
    assert (follower.raft.term, len(net.sent)) == (1, sent)
    follower.raft.step("c", vote_request(50, last=(99, 49)), follower.now_ms + TIMEOUT_MS)
    follower.pump()
    assert follower.disk.hard_state == HardState(50, "c")


def test_a_removed_member_does_not_disturb() -> None:
    """4.2.3: a server that was removed and does not know it asks for votes for ever, and nothing comes of it."""
    net = Net("abc")
    net.elect("a")
    net["a"].raft.propose_members(Remove("c"))
    net.settle()
    term = net["a"].raft.term
    net.run_for(30 * TIMEOUT_MS)
    assert "c" in net["c"].raft.members.voters, "it never heard of its removal"
    assert net["a"].leads
    assert net["a"].raft.term == term


def test_a_returned_member_with_a_higher_term_can_rejoin() -> None:
    """9.6: whose term is higher than its leader's refuses the leader, which then steps down instead of going on."""
    net = Net("abc")
    net.elect("a")
    net["c"].raft.step("x", AppendAnswer(term=9, round=0, accepted=False, index=0), net["c"].now_ms)
    net.settle()
    net.run_for(6 * TIMEOUT_MS)
    assert net.leader.raft.term > 9
    assert len({member.raft.leader for member in net.up}) == 1


def test_a_leader_without_a_majority_steps_down() -> None:
    """6.2: a leader that hears no majority for an election timeout steps down, so its clients look elsewhere."""
    net = Net("abcde")
    net.elect("a")
    net.split("ab", "cde")
    net.run_for(2 * TIMEOUT_MS)
    assert net["a"].raft.role is not RaftRole.LEADER
    assert net["a"].raft.term == 1
    net.heal()
    net.run_for(10 * TIMEOUT_MS)
    assert len({member.raft.leader for member in net.up}) == 1


def test_answers_of_learners_do_not_keep_a_leader() -> None:
    """6.2 and 4.2.1: the majority that a leader must hear is one of voters."""
    net = Net("abc", learners="de")
    net.elect("a")
    net.crash("b", "c")
    net.run_for(2 * TIMEOUT_MS)
    assert not net["a"].leads


def test_a_leader_elects_itself_alone_and_waits_for_its_disk() -> None:
    """5.2 with one voter: it needs nobody's vote, but not a word of its term leaves before the term is durable."""
    net = Net("a", learners="b")
    net["a"].is_stalled = True
    net.time_out("a")
    net.settle()
    assert net["a"].leads
    assert net.sent == []
    net.heartbeat("a")
    assert net.sent == []
    net.crash("a")
    net.restart("a")
    assert net["a"].raft.term == 0
    net.elect("a")
    net.settle()
    assert net["b"].raft.leader == "a"
