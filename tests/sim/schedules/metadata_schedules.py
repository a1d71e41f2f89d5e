"""Directed schedules: cases that random runs do not find, or find too seldom, step by step.

Every check of the model runs here too. A schedule raises `ClusterBroken` when one fires, or when an expected event does
not happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.schedules.metadata import Schedule, is_append
from tidelog.cluster.node.core import NodeCore
from tidelog.core.catalog import AdmitNode, NodeState, RemoveNode
from tidelog.core.liveness import LivenessConfig
from tidelog.core.membership import node_of
from tidelog.core.node_messages import ForMember, Register
from tidelog.core.raft import AddLearner, AppendEntries, RaftConfig, SnapshotChunk
from tidelog.errors import MembershipPending
from tidelog.sim.metadata.model import ClusterBroken

# --- elections and commits -------------------------------------------------------------------------------


def figure_8() -> Schedule:
    """Section 5.4.2: an entry of an older term on a majority is not committed, and may be replaced."""
    plan = Schedule(5)
    one = plan.leader()
    two, three, four, five = plan.others()
    plan.cut(one, off={three, four, five})
    plan.change(one)
    plan.until(lambda: plan.last_index(two) == plan.last_index(one), "(a) two of five hold the entry")
    entry = plan.last_index(one)
    plan.node(one).crash()
    plan.join_links()
    plan.cut(two)
    plan.world.drops = lambda source, _, message: source == five and is_append(message)
    plan.elect(five)
    plan.node(five).crash()
    plan.join_links()
    plan.node(one).start()

    def holds_back(source: str, target: str, message: Any) -> bool:
        """Four gets no entry, three only the one that counts."""
        if source != one or not is_append(message):
            return False
        return target == four or (target == three and plan.last_index(three) >= entry)

    plan.world.drops = holds_back
    plan.elect(one)
    plan.until(lambda: plan.last_index(three) >= entry, "(c) three of five hold the entry")
    plan.run(300)
    if plan.model.last_index >= entry:
        raise ClusterBroken(f"LD1: the entry {entry} of an older term is committed")
    plan.node(one).crash()
    plan.join_links()
    plan.node(five).start()
    plan.elect(five)
    plan.node(one).start()
    plan.settle()
    return plan


def stale_leader_reads() -> Schedule:
    """Section 6.4 of the dissertation: a leader that was replaced and does not know it serves no read."""
    plan = Schedule(3)
    old = plan.leader()
    new, other = plan.others()
    plan.cut(old)
    plan.elect(new)
    plan.changed(new)
    outcome = plan.read(old)
    plan.run(500)
    if not plan.leads(old) or outcome:
        raise ClusterBroken("LD2: the old leader has answered or stepped down; nothing is shown")
    plan.join_links()
    plan.until(lambda: outcome == [False], "the old leader says no")
    plan.changed(other)
    plan.settle()
    return plan


def new_leader_reads() -> Schedule:
    """LD2: a new leader serves no read before an entry of its own term is committed: it may not know the newest."""
    plan = Schedule(3)
    old = plan.leader()
    new, other = plan.others()
    plan.world.drops = lambda _, target, message: (
        target == new
        and isinstance(message, ForMember)
        and (isinstance(message.message, AppendEntries) and not message.message.entries)
    )
    plan.changed(old)
    known = plan.commit(new)
    if known >= plan.model.last_index:
        raise ClusterBroken("the new leader knows the commit already; nothing is shown")
    plan.node(old).crash()
    plan.join_links()
    plan.world.drops = lambda source, _, message: source == new and is_append(message)
    plan.elect(new)
    # The other one answers every round, and holds nothing new yet.
    plan.node(other).disk_ms = 2_000
    plan.join_links()
    outcome = plan.read(new)
    plan.run(500)
    if outcome:
        raise ClusterBroken("LD2: a new leader has answered a read before it could know the commit")
    plan.node(other).disk_ms = 0
    plan.until(lambda: outcome == [True], "the read is served")
    plan.node(old).start()
    plan.settle()
    return plan


def proposal_lost() -> Schedule:
    """MM1: a change that another leader's entry replaced is reported as lost."""
    plan = Schedule(3)
    old = plan.leader()
    new, _ = plan.others()
    plan.cut(old)
    outcome = plan.change(old)
    plan.run(50)
    plan.elect(new)
    plan.changed(new)
    plan.changed(new)
    plan.join_links()
    plan.until(lambda: outcome == [False], "the loss is told")
    if not plan.world.counters["proposal_lost"]:
        raise ClusterBroken("MM1: the loss was not told as one")
    plan.settle()
    return plan


def proposals_meet() -> Schedule:
    """MM1: who leads again proposes where lost changes of its earlier leadership stood; those are told of, too."""
    plan = Schedule(3)
    one = plan.leader()
    two, _ = plan.others()
    plan.cut(one)
    outcomes = [plan.change(one) for _ in range(4)]
    plan.run(50)
    plan.elect(two)
    plan.join_links()
    plan.until(lambda: not plan.leads(one) and plan.commit(one) == plan.model.last_index, "the old leader follows")
    plan.elect(one)
    for _ in range(4):
        plan.changed(one)
    plan.until(lambda: all(outcome == [False] for outcome in outcomes), "the losses are told", limit_ms=1_000)
    if plan.world.counters["proposal_lost"] != 4:
        raise ClusterBroken("MM1: a loss was not told as one")
    plan.settle()
    return plan


def registration_lost() -> Schedule:
    """A registration that was lost with a leadership does not stand in the way of the next."""
    plan = Schedule(4, voters_max=3)
    one = plan.leader()
    voters = {node_of(voter) for voter in plan.model.members.voters}
    late = next(name for name in plan.world.nodes if name not in voters)
    rest = voters - {one}
    plan.node(late).crash()
    plan.cut(one, late, off=rest)
    for _ in range(3):
        plan.change(one)
    last = plan.last_index(one)
    plan.node(late).start()
    plan.until(lambda: plan.last_index(one) > last, "the registration is proposed")
    plan.elect(min(rest))
    plan.world.cuts.clear()
    plan.cut(late, off=rest)
    plan.until(lambda: not plan.leads(one) and plan.commit(one) == plan.model.last_index, "the old leader follows")
    plan.elect(one)
    plan.until(lambda: plan.core(late).is_registered, "the late one is registered", limit_ms=5_000)
    plan.join_links()
    plan.settle()
    return plan


def cut_while_writing(batch: int) -> Schedule:
    """RA6: a write of entries that were cut meanwhile says nothing about those in their place, nor do those of it.

    With a batch of 1 the disk writes one Ready after the other, with a large one all of them at once.
    """
    plan = Schedule(5)
    old = plan.leader()
    new, slow, *rest = plan.others()
    plan.cut(old, off={new, *rest})
    plan.node(slow).disk_ms, plan.node(slow).disk_batch = 400, batch
    plan.change(old)
    plan.until(lambda: plan.last_index(slow) == plan.last_index(old), "the slow one has the entry in memory")
    plan.cut(old)
    plan.elect(new)
    plan.change(new)
    plan.run(3_000)
    plan.node(slow).disk_ms = 0
    plan.join_links()
    plan.settle()
    return plan


def single_voter_leads_again() -> Schedule:
    """RA6: even a member that needs no other vote announces no term that is not on its disk."""
    plan = Schedule(2, voters_max=1)
    one = plan.leader()
    plan.node(one).disk_ms = 50
    plan.node(one).crash()
    plan.node(one).start()
    plan.run(1_000)
    plan.node(one).disk_ms = 0
    plan.settle()
    return plan


# --- members ---------------------------------------------------------------------------------------------


def removed_leader_returns() -> Schedule:
    """Section 4.2.2: it hands over and goes; that it comes back and asks for votes disturbs nobody."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    old = plan.leader()
    others = plan.others()
    plan.changed(others[0], RemoveNode(node=old, force=True))

    def is_out() -> bool:
        return all(node_of(member) != old for member in plan.model.members.all)

    plan.until(is_out, "the removed leader is out of the group")
    plan.node(old).kill()
    plan.run(3_000)
    new = plan.leader()
    term = max(plan.model.leaders)
    plan.node(old).start()
    plan.run(5_000)
    if plan.leader() != new or max(plan.model.leaders) != term or plan.leads(old):
        raise ClusterBroken("RA5: a removed member brought about an election")
    if plan.core(old).is_registered:
        raise ClusterBroken("LE3: a removed node is registered")
    plan.changed(others[1], AdmitNode(node=old))
    plan.settle()
    if len(plan.model.members.voters) != 3:
        raise ClusterBroken("14: who was taken back is no voter")
    return plan


def two_leaders_change_members() -> Schedule:
    """LD3: of the changes of two leaders one stands, and one leader has at most one open."""
    plan = Schedule(3)
    old = plan.leader()
    new, other = plan.others()
    plan.cut(old)

    def add(name: str) -> Callable[[NodeCore], None]:
        def propose(core: NodeCore) -> None:
            assert core.member is not None
            core.member.propose_members(AddLearner(f"{name}/00"))

        return propose

    def add_again(core: NodeCore) -> None:
        try:
            add("n8")(core)
        except MembershipPending:
            return
        plan.model.counters["second_change"] += 1

    plan.node(old).do(add("n9"))
    plan.node(old).do(add_again)
    plan.elect(new)
    plan.node(new).do(add("n7"))
    plan.run(200)
    plan.join_links()
    plan.changed(other)
    plan.until(lambda: plan.commit(old) == plan.model.last_index, "the old leader follows")
    names = {node_of(member) for member in plan.model.members.all}
    if plan.model.counters["second_change"] or not {"n7"} <= names or names & {"n8", "n9"}:
        raise ClusterBroken(f"LD3: the members are {plan.model.members}")
    return plan


def wiped_voter_is_a_stranger() -> Schedule:
    """NC1: a voter that lost its disk does not vote again, under its old name or any other, before it has caught up."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    one = plan.leader()
    two, three = plan.others()
    disk = plan.node(three).member
    plan.lose(three)
    plan.node(one).crash()
    plan.node(three).start()
    plan.run(5_000)
    if plan.leads(two) or plan.leads(three):
        raise ClusterBroken("NC1: a voter that lost its disk has voted")
    plan.node(one).start()
    plan.settle()
    if plan.node(three).member == disk or plan.node(three).member not in plan.model.members.voters:
        raise ClusterBroken("14: the new disk is no voter")
    return plan


def sent_again_after_a_restart() -> Schedule:
    """C10: a registration of an earlier process that was long on its way changes nothing."""
    plan = Schedule(3, liveness=LivenessConfig())
    late = plan.others()[0]
    found = plan.capture(lambda source, _, message: source == late and isinstance(message, Register))
    for _ in range(2):
        plan.node(late).crash()
        plan.node(late).start()
        plan.settle()
    leader = plan.node(plan.leader())
    for source, _, message in found:
        leader.deliver(source, message)
    plan.run(500)
    plan.settle()
    return plan


# --- snapshots and disks -----------------------------------------------------------------------------------


def stale_snapshot() -> Schedule:
    """A snapshot that arrives again, after newer entries, changes nothing."""
    raft = RaftConfig(election_timeout_ms=10_000, snapshot_chunk_bytes=600)
    plan = Schedule(3, raft=raft, snapshot_entries=8)
    leader, late = plan.node(plan.leader()), plan.others()[0]
    plan.node(late).crash()
    for _ in range(20):
        plan.changed(leader.name)
    plan.node(late).start()
    found = plan.capture(lambda _, target, message: target == late and _is_chunk(message))
    plan.settle()
    plan.world.drops = None
    if not found:
        raise ClusterBroken("no snapshot was sent; nothing is shown")
    for _ in range(3):
        plan.changed(leader.name)
    plan.run(200)
    for source, _, message in found:
        plan.node(late).deliver(source, message)
        plan.run(1)
    plan.run(500)
    plan.changed(leader.name)
    plan.settle()
    return plan


def _is_chunk(message: Any) -> bool:
    return isinstance(message, ForMember) and isinstance(message.message, SnapshotChunk)


def mangled_snapshot() -> Schedule:
    """RG2: chunks whose bytes are wrong are never installed."""
    raft = RaftConfig(election_timeout_ms=10_000, snapshot_chunk_bytes=400)
    plan = Schedule(3, raft=raft, snapshot_entries=8)
    late = plan.others()[0]
    plan.node(late).crash()
    for _ in range(20):
        plan.changed(plan.leader())
    plan.world.weather.mangled = 0.5
    plan.node(late).start()
    plan.run(3_000)
    plan.world.weather.mangled = 0.0
    plan.settle()
    return plan


def damaged_log(place: float) -> Schedule:
    """A bit flips somewhere in the entries of a follower: it comes back as a new disk, what it had is set aside."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    late = plan.others()[0]
    for _ in range(5):
        plan.changed(plan.leader())
    plan.settle()
    node = plan.node(late)
    disk = node.member
    node.kill()
    path = next(path for path in node.files() if "/log-" in path)
    size = node.disk.open(path, writable=False).size()
    node.disk.flip_bit(path, min(size - 1, int(size * place)), 3)
    plan.model.durable[disk].is_gone = True
    node.start()
    plan.settle()
    if node.member == disk:
        raise ClusterBroken("NC1: a damaged disk is back under its name")
    node.crash()
    node.start()
    plan.settle()
    return plan


def all_lose_power() -> Schedule:
    """Every node at once, in the middle of writes: what was acked is there."""
    plan = Schedule(3)
    for node in plan.world.nodes.values():
        node.disk_ms = 7
    outcomes = [plan.change(name) for name in plan.world.nodes for _ in range(5)]
    plan.run(20)
    for node in list(plan.world.nodes.values()):
        node.crash()
    for node in plan.world.nodes.values():
        node.disk_ms = 0
        node.start()
    plan.elect("n1")
    plan.settle()
    if not any(outcome == [True] for outcome in outcomes):
        raise ClusterBroken("nothing was acked; nothing is shown")
    return plan


def os_crash_and_pauses() -> Schedule:
    """One machine loses its power while the others are paused in turn (nats-server 7567): no ack is lost."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    for _ in range(6):
        leader = plan.leader()
        one, two = plan.others()
        outcome = plan.change(leader)
        plan.node(one).pause(2_000)
        plan.until(lambda outcome=outcome: bool(outcome), "the change is committed by two")  # type: ignore[misc]
        plan.node(two).crash()
        plan.run(100)
        plan.node(leader).pause(2_500)
        plan.node(two).start()
        plan.run(6_000)
        plan.settle()
    return plan


# --- founding ------------------------------------------------------------------------------------------------


def all_blank(seed: int) -> Schedule:
    """O1: whatever the order in which blank nodes start, one cluster is founded."""
    plan = Schedule(5, raft=RaftConfig(), liveness=LivenessConfig(), seed=seed, start=False)
    world = plan.world
    for name in world.nodes:
        world.scheduler.after(world.rng.randrange(3_000), plan.node(name).start)
    world.weather.loss = 0.2
    plan.run(5_000)
    world.weather.loss = 0.0
    plan.settle()
    return plan


def blank_founder(*, whole: bool) -> Schedule:
    """O1, O2: the smallest name lost its disk. It founds nothing, not even while it hears nobody."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    plan.lose("n1", whole=whole)
    plan.cut("n1")
    plan.node("n1").start()
    plan.run(3_000)
    plan.join_links()
    plan.settle()
    return plan


def two_blank_of_five() -> Schedule:
    plan = Schedule(5, raft=RaftConfig(), liveness=LivenessConfig())
    plan.lose("n1")
    plan.lose("n2", whole=False)
    plan.run(2_000)
    plan.node("n1").start()
    plan.node("n2").start()
    plan.settle()
    if any(record.state is not NodeState.ACTIVE for record in plan.model.reference.nodes()):
        raise ClusterBroken("14: a node is not active")
    return plan


# --- sessions ------------------------------------------------------------------------------------------------


def renewed_by_a_former_leader() -> Schedule:
    """L1: a node that hears only a former leader stops relying on its session before the new leader ends it."""
    plan = Schedule(4, raft=RaftConfig(election_timeout_ms=1_000), liveness=LivenessConfig(), voters_max=3)
    old = plan.leader()
    voters = [node_of(voter) for voter in plan.model.members.voters]
    apart = next(name for name in plan.world.nodes if name not in voters)
    rest = {name for name in voters if name != old}
    plan.cut(old, apart, off=rest)
    plan.elect(min(rest))
    plan.until(lambda: apart in plan.model.fenced, "the node that hears the former leader is fenced")
    plan.join_links()
    plan.settle()
    return plan
