"""Members come and go: chapter 4 of the dissertation, section 3.10 for handing over."""

from __future__ import annotations

import pytest

from tests.core.raft.harness import Disk, Net, entries_of
from tidelog.core.raft import (
    AddLearner,
    AppendAnswer,
    AppendEntries,
    Demote,
    EntryKind,
    HardState,
    MembersChange,
    Promote,
    RaftConfig,
    RaftRole,
    Remove,
    TimeoutNow,
    VoteRequest,
)
from tidelog.errors import LeadershipMoving, MembershipPending, MembershipRefused

HEARTBEAT_MS = RaftConfig().heartbeat_ms
TIMEOUT_MS = RaftConfig().election_timeout_ms


# --- 4.1 one at a time ---------------------------------------------------------------------------------


def test_a_change_is_in_force_from_the_moment_it_is_in_the_log() -> None:
    """4.1: a member uses the newest membership of its log, committed or not."""
    net = Net("abc")
    leader = net.elect("a")
    net.crash("b", "c")
    leader.raft.propose_members(AddLearner("d"))
    net.pump()
    assert leader.raft.members.learners == ("d",)
    assert leader.raft.log.commit == 1


def test_only_one_change_is_on_its_way_at_a_time() -> None:
    """4.1: the next change waits until the one before is committed, or majorities might not meet."""
    net = Net("abc")
    leader = net.elect("a")
    net.crash("b", "c")
    leader.raft.propose_members(AddLearner("d"))
    for change in (AddLearner("e"), Remove("b"), Promote("d")):
        with pytest.raises(MembershipPending):
            leader.raft.propose_members(change)
    net.restart("b", "c")
    net.run_for(2 * HEARTBEAT_MS)
    leader.raft.propose_members(AddLearner("e"))


def test_a_new_leader_changes_no_members_before_it_has_committed_in_its_term() -> None:
    """4.1, the erratum: a change of an older term may be half done; an entry of the own term settles it first."""
    net = Net("abc")
    net.losing = lambda packet: isinstance(packet.message, AppendEntries)
    leader = net.elect("a")
    with pytest.raises(MembershipPending):
        leader.raft.propose_members(AddLearner("d"))
    net.heal()
    net.run_for(2 * HEARTBEAT_MS)
    leader.raft.propose_members(AddLearner("d"))


def test_the_schedule_of_the_erratum_ends_with_one_truth() -> None:
    """4.1, the erratum: a adds e, b removes a, each in a term of its own; without the rule both find a majority.

    a's change is on a and e only. b, elected by c and d, reaches only c. If b could remove a now, b and c would commit
    that as two of three; and then a would be elected by d and e, three of five that know nothing of it.
    """
    net = Net("abcd", learners="e")
    first = net.elect("a")
    net.run_for(HEARTBEAT_MS)
    net.split("ae", "bcd")
    first.raft.propose_members(Promote("e"))
    net.settle()
    assert net["e"].raft.members.voters == tuple("abcde")
    net.losing = lambda packet: packet.target == "d" and isinstance(packet.message, AppendEntries)
    second = net.elect("b")
    with pytest.raises(MembershipPending):
        second.raft.propose_members(Remove("a"))
    second.raft.propose(b"of b")
    net.settle()
    assert second.applied == [], "two of four have it"
    net.heal()
    net.split("ade", "bc")
    first.raft.step("d", AppendAnswer(term=2, round=0, accepted=False, index=0), first.now_ms)
    net.elect("a")
    net.heal()
    net.heartbeat("b")
    net.run_for(3 * TIMEOUT_MS)
    assert all(member.raft.members.voters == tuple("abcde") for member in net.up)
    assert all(b"of b" not in member.applied for member in net.up)


def test_a_cut_membership_brings_the_one_before_back() -> None:
    """4.1: when another leader's entries replace an uncommitted membership, the older one is in force again."""
    net = Net("abc")
    leader = net.elect("a")
    net.isolate("a")
    leader.raft.propose_members(Remove("c"))
    net.settle()
    assert leader.raft.members.voters == ("a", "b")
    net.elect("b")
    net["b"].raft.propose(b"x")
    net.settle()
    net.heal()
    net.heartbeat("a")
    net.run_for(3 * HEARTBEAT_MS)
    assert net["a"].raft.members.voters == ("a", "b", "c")
    assert leader.applied == [b"x"]


def test_a_restart_remembers_the_newest_membership_of_the_log() -> None:
    """4.1: the membership is in the log and the snapshot, nowhere else."""
    net = Net("abc")
    leader = net.elect("a")
    leader.raft.propose_members(AddLearner("d"))
    net.settle()
    leader.snapshot()
    leader.raft.propose_members(Demote("c"))
    net.settle()
    for _ in range(2):
        net.crash("a")
        net.restart("a")
        assert leader.raft.members.voters == ("a", "b")
        assert leader.raft.members.learners == ("c", "d")
        net.elect("a")
        leader.snapshot()


# --- 4.2.1 learners ------------------------------------------------------------------------------------------


def test_a_learner_gets_the_log_and_counts_for_nothing() -> None:
    """4.2.1: a new server first catches up without a vote, so it holds nobody up."""
    net = Net("ab", learners="cde")
    leader = net.elect("a")
    net.crash("b")
    leader.raft.propose(b"x")
    net.settle()
    assert net["c"].disk.last_index == leader.disk.last_index == 2
    assert leader.raft.log.commit == 1, "a and three learners are not a majority of a and b"
    net.restart("b")
    net.run_for(2 * HEARTBEAT_MS)
    assert leader.raft.log.commit == 2
    assert net["c"].applied == [b"x"]


def test_a_learner_never_asks_for_votes() -> None:
    """4.2.1: a learner is no candidate, whatever it misses, and not even when its leader says so."""
    net = Net("abc", learners="d")
    net.crash("a", "b", "c")
    net.run_for(20 * TIMEOUT_MS)
    member = net["d"]
    member.raft.step("a", TimeoutNow(term=0), member.now_ms)
    member.raft.campaign(member.now_ms)
    member.pump()
    assert net.messages(VoteRequest) == []
    assert member.raft.role is RaftRole.FOLLOWER


def test_a_promoted_member_is_asked_for_its_vote_before_it_knows() -> None:
    """4.1: requests are answered whatever the own membership says; the asking side decides who counts."""
    net = Net("ab", learners="c")
    leader = net.elect("a")
    net.settle()
    net.isolate("c")
    leader.raft.propose_members(Promote("c"))
    net.settle()
    net.heal()
    net.crash("a")
    assert "c" in net["c"].raft.members.learners
    assert "c" in net["b"].raft.members.voters
    net.elect("b")
    assert net["b"].raft.members.voters == ("a", "b", "c")


def test_a_learner_far_behind_is_not_promoted() -> None:
    """4.2.1: a voter that lacks most of the log would hold commits up until it has it."""
    net = Net("abc", learners="d", config=RaftConfig(promote_lag_entries=3))
    leader = net.elect("a")
    net.crash("d")
    for _ in range(5):
        leader.raft.propose(b"x")
    net.settle()
    with pytest.raises(MembershipRefused, match="behind"):
        leader.raft.propose_members(Promote("d"))
    net.restart("d")
    net.run_for(2 * HEARTBEAT_MS)
    leader.raft.propose_members(Promote("d"))
    net.settle()
    assert net["d"].raft.is_voter


def test_a_learner_that_never_answered_is_not_promoted() -> None:
    """4.2.1: in a young group nobody is far behind; a learner that does not exist must still not become a voter.

    With one voter it would be the end: the promotion needs the ghost's disk to commit, and so does its undoing.
    """
    net = Net("a")
    leader = net.elect("a")
    leader.raft.propose_members(AddLearner("ghost"))
    net.run_for(2 * HEARTBEAT_MS)
    with pytest.raises(MembershipRefused):
        leader.raft.propose_members(Promote("ghost"))
    leader.raft.propose(b"x")
    net.settle()
    assert leader.applied == [b"x"]


@pytest.mark.parametrize("change", [Promote("b"), Promote("x"), AddLearner("a"), AddLearner("d"), Demote("d"),
                                    Demote("x"), Remove("x")])  # fmt: skip
def test_a_change_that_makes_no_sense_is_refused_in_words_and_changes_nothing(change: MembersChange) -> None:
    """M1: a change is exactly one step from what is."""
    net = Net("abc", learners="d")
    leader = net.elect("a")
    before = leader.raft.statistics()
    with pytest.raises(MembershipRefused, match=change.member):
        leader.raft.propose_members(change)
    assert leader.raft.statistics() == before


# --- 4.2.2 removing the leader ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [Remove("a"), Demote("a")])
def test_a_leader_that_removes_itself_leads_until_that_is_committed(change: MembersChange) -> None:
    """4.2.2: it manages a group it is not part of until the entry is committed, and does not count itself."""
    net = Net("abc")
    leader = net.elect("a")
    net.crash("c")
    net.holding = lambda packet: packet.source == "b"
    leader.raft.propose_members(change)
    net.settle()
    assert leader.leads, "not committed: its own disk does not count any more, and b and c have not answered"
    assert leader.raft.log.commit == 1
    net.release()
    net.settle()
    assert leader.leads, "b alone is no majority of b and c"
    net.restart("c")
    net.run_for(2 * HEARTBEAT_MS)
    assert leader.raft.role is RaftRole.FOLLOWER
    assert leader.raft.log.commit == 2
    net.run_for(4 * TIMEOUT_MS)
    assert net.leader.name in "bc"
    assert all(net[name].raft.log.commit >= 2 for name in "bc"), "the others heard of the commit"
    assert not leader.raft.is_voter


def test_figure_4_6_a_leader_that_removed_itself_and_stepped_down_may_still_be_needed() -> None:
    """4.2.2, figure 4.6: of two, the leader's own removal is in its log only; the other cannot win without it.

    The one with the longer log must be able to ask for votes, without counting its own, or nobody ever leads again.
    """
    net = Net("ab")
    leader = net.elect("a")
    net.isolate("b")
    leader.raft.propose_members(Remove("a"))
    net.settle()
    net.crash("a")
    net.restart("a")
    net.heal()
    net.run_for(20 * TIMEOUT_MS)
    assert any(member.leads for member in net.up), "nobody leads, for ever"


def test_who_removed_itself_does_not_count_its_own_vote() -> None:
    """4.2.2: it may ask, but the one voter that is left decides; alone it never leads."""
    net = Net("ab")
    leader = net.elect("a")
    net.isolate("b")
    leader.raft.propose_members(Remove("a"))
    net.settle()
    net.crash("a")
    net.restart("a")
    net.run_for(5 * TIMEOUT_MS)
    assert not leader.leads
    assert leader.raft.term == 1
    net.heal()
    net.run_for(20 * TIMEOUT_MS)
    assert (net.leader.name, net.leader.raft.members.voters) == ("b", ("b",)), "its removal came through after all"


def test_a_removed_leader_is_not_elected_again() -> None:
    """4.2.2: once its removal is committed it asks nobody for votes."""
    net = Net("abc")
    leader = net.elect("a")
    leader.raft.propose_members(Remove("a"))
    net.settle()
    asked = len(net.messages(VoteRequest, source="a"))
    net.run_for(20 * TIMEOUT_MS)
    assert len(net.messages(VoteRequest, source="a")) == asked
    assert net.leader.name in "bc"


def test_removing_the_other_of_two_commits_alone() -> None:
    """4.1: from the moment it is appended the smaller membership decides, so a dead second voter can be removed."""
    net = Net("ab")
    leader = net.elect("a")
    net.crash("b")
    leader.raft.propose(b"waits")
    net.settle()
    assert leader.applied == []
    leader.raft.propose_members(Remove("b"))
    net.settle()
    assert leader.applied == [b"waits"]
    assert leader.raft.members.voters == ("a",)


def test_a_read_that_waited_for_a_removed_voter_is_answered() -> None:
    """6.4 and 4.1: when the majority shrinks to who has answered already, waiting reads must not wait for ever."""
    net = Net("ab")
    leader = net.elect("a")
    net.crash("b")
    leader.raft.read(7)
    net.settle()
    assert leader.reads == []
    leader.raft.propose_members(Remove("b"))
    net.run_for(5 * TIMEOUT_MS)
    assert [read.token for read in leader.reads] == [7]


def test_a_member_replaced_by_a_new_disk_never_votes_for_the_old_one() -> None:
    """11.2 and the naming of members: a lost disk is a new member; the old name is removed and never comes back."""
    net = Net("abc")
    leader = net.elect("a")
    leader.raft.propose(b"kept")
    net.settle()
    net.crash("c")
    leader.raft.propose_members(Remove("c"))
    net.settle()
    net.join("c2")
    leader.raft.propose_members(AddLearner("c2"))
    net.run_for(3 * HEARTBEAT_MS)
    leader.raft.propose_members(Promote("c2"))
    net.run_for(2 * HEARTBEAT_MS)
    assert net["c2"].applied == [b"kept"]
    assert leader.raft.members.voters == ("a", "b", "c2")
    net.crash("b")
    leader.raft.propose(b"more")
    net.settle()
    assert net["c2"].disk.last_index == leader.raft.log.commit


@pytest.mark.parametrize("seed", range(4))
def test_members_change_one_after_another_under_crashes_and_everybody_agrees(seed: int) -> None:
    """4.3: any sequence of single changes keeps the group available and of one mind."""
    net = Net("abc", seed=seed)
    names = iter("defgh")
    applied = 0
    for step in range(16):
        net.run_for(4 * TIMEOUT_MS)
        leader = net.leader
        members = leader.raft.members
        pick = net.random.random()
        change: MembersChange
        if pick < 0.3 and (name := next(names, None)) is not None:
            net.join(name)
            change = AddLearner(name)
        elif pick < 0.6 and members.learners:
            change = Promote(net.random.choice(members.learners))
        elif pick < 0.8 and len(members.voters) > 3:
            change = Remove(net.random.choice(members.voters))
        else:
            change = Demote(net.random.choice(members.voters)) if len(members.voters) > 3 else AddLearner("a")
        try:
            leader.raft.propose_members(change)
            leader.raft.propose(f"{step}".encode())
            applied += 1
        except (MembershipRefused, MembershipPending):
            pass
        if net.random.random() < 0.4:
            victim = net.random.choice(list(net.members))
            if net[victim].is_up:
                net.pump()
                net.crash(victim)
                net.run_for(net.random.randrange(3 * TIMEOUT_MS))
                net.restart(victim)
    net.run_for(6 * TIMEOUT_MS)
    leader = net.leader
    assert applied >= 3, f"seed {seed}"
    for name in leader.raft.members.all:
        assert net[name].applied == leader.applied, f"seed {seed}: {name}"


# --- 3.10 handing over ------------------------------------------------------------------------------------------


def test_leadership_moves_to_a_voter_that_is_up_to_date() -> None:
    """3.10: the leader takes nothing new, brings the target up to date, and tells it to ask for votes at once."""
    net = Net("abc")
    leader = net.elect("a")
    net.run_for(2 * HEARTBEAT_MS)  # everybody has just heard of the leader
    net.holding = lambda packet: packet.target == "b" and isinstance(packet.message, AppendEntries)
    leader.raft.propose(b"x")
    net.pump()
    leader.raft.transfer("b", leader.now_ms)
    net.settle()
    assert net.messages(TimeoutNow) == [], "b lacks an entry"
    with pytest.raises(LeadershipMoving):
        leader.raft.propose(b"y")
    with pytest.raises(LeadershipMoving):
        leader.raft.propose_members(AddLearner("d"))
    net.release()
    net.settle()
    assert net["b"].leads, "no election timeout had to pass, and no lease stood in the way"
    assert leader.raft.leader == "b"
    assert net["b"].applied == [b"x"]


def test_a_transfer_that_comes_to_nothing_is_given_up() -> None:
    """3.10: after an election timeout the leader goes on as before."""
    net = Net("abc")
    leader = net.elect("a")
    net.crash("b")
    leader.raft.propose(b"x")
    net.settle()
    leader.raft.transfer("b", leader.now_ms)
    net.run_for(TIMEOUT_MS - 1)
    with pytest.raises(LeadershipMoving):
        leader.raft.propose(b"y")
    net.run_for(1)
    leader.raft.propose(b"y")
    net.settle()
    assert leader.applied == [b"x", b"y"]


@pytest.mark.parametrize("target", ["a", "d", "x"])
def test_leadership_moves_to_another_voter_only(target: str) -> None:
    """3.10: not to itself, to a learner or to a stranger."""
    net = Net("abc", learners="d")
    leader = net.elect("a")
    with pytest.raises(MembershipRefused):
        leader.raft.transfer(target, leader.now_ms)
    leader.raft.propose(b"still leads")


def test_a_late_handover_disturbs_but_harms_nobody() -> None:
    """3.10: a handover message that arrives after it was given up starts an election with a full log, no more."""
    net = Net("abc")
    leader = net.elect("a")
    net.holding = lambda packet: isinstance(packet.message, TimeoutNow)
    leader.raft.transfer("b", leader.now_ms)
    net.run_for(2 * TIMEOUT_MS)
    leader.raft.propose(b"x")
    net.losing = lambda packet: packet.target == "b" and isinstance(packet.message, AppendEntries)
    net.settle()
    net.release()
    net.settle()
    assert not net["b"].leads, "it lacks a committed entry"
    net.heal()
    net.run_for(6 * TIMEOUT_MS)
    assert net.leader.applied == [b"x"]


def test_nothing_but_a_handover_overrides_the_lease() -> None:
    """4.2.3: a flag says that the leader itself asked for the election; without it the lease protects the leader."""
    disk = Disk(HardState(1), entries=entries_of(1, 1))
    net = Net("abc", disks={"a": disk})
    net.elect("a")
    net.run_for(HEARTBEAT_MS)
    for forced in (False, True):
        request = VoteRequest(term=9, last_index=9, last_term=8, pre=False, forced=forced)
        net["b"].raft.step("c", request, net["b"].now_ms)
        net["b"].pump()
        assert (net["b"].raft.vote == "c") is forced


def test_the_first_entry_that_adds_a_member_tells_it_who_the_others_are() -> None:
    """4.1: a MEMBERS entry carries the whole membership, so a joiner needs nothing else."""
    net = Net("abc")
    leader = net.elect("a")
    net.join("d")
    leader.raft.propose_members(AddLearner("d"))
    net.run_for(3 * HEARTBEAT_MS)
    assert net["d"].raft.members == leader.raft.members
    (entry,) = [entry for entry in net["d"].disk.entries if entry.kind is EntryKind.MEMBERS]
    assert entry.members == leader.raft.members
