"""A metadata folder restored from an older copy is noticed by members that remember more, and is set aside (NC3)."""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS as BUGS
from tests.sim.mutations import Edit, plant
from tests.sim.schedules.metadata import Schedule, is_append
from tidelog.cluster.metadata.standing import MemberStanding
from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.status.node_status import node_status
from tidelog.core.liveness import LivenessConfig
from tidelog.core.member_memory import MemberMemory
from tidelog.core.node_messages import Judged, Standing
from tidelog.core.raft import RaftConfig
from tidelog.sim.metadata.model import ClusterBroken, MetadataViolation
from tidelog.sim.metadata.node import SimNode
from tidelog.sim.metadata.world import run_metadata_world


def noticed(plan: Schedule, name: str, disk: str) -> None:
    plan.settle()
    core = plan.core(name)
    if plan.node(name).member == disk:
        raise ClusterBroken(f"NC3: {disk} is an older copy of its disk, and nobody noticed")
    assert core.damage is not None
    assert "older copy" in core.damage
    assert plan.node(name).member in plan.model.members.voters


def restored_follower(*, new_term: bool, whole: bool) -> None:
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    late = plan.node(plan.others()[0])
    disk = late.member
    late.copy_folder(whole=whole)
    for _ in range(3):
        plan.changed(plan.leader())
    if new_term:
        plan.elect(plan.others()[1])
        plan.changed(plan.leader())
    plan.settle()
    late.kill()
    late.restore_folder()
    late.start()
    noticed(plan, late.name, disk)


def restored_after_a_power_cut() -> None:
    """Nobody has it in memory any more: the registration in the log tells."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    late = plan.node(plan.others()[0])
    disk = late.member
    late.copy_folder(whole=True)
    late.kill()
    late.start()
    plan.settle()
    for node in plan.world.nodes.values():
        node.crash()
    late.restore_folder()
    for node in plan.world.nodes.values():
        node.start()
    noticed(plan, late.name, disk)


@pytest.mark.parametrize("new_term", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_restored_folder_is_noticed_before_it_says_anything(new_term: bool, whole: bool) -> None:
    restored_follower(new_term=new_term, whole=whole)


def test_a_restored_folder_is_noticed_after_all_lost_power() -> None:
    restored_after_a_power_cut()


def restored_from_before_it_knew_anybody(name: str) -> None:
    """The founder while it was alone, or a node that had just joined and had heard nothing."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig(), start=False)
    for node in plan.world.nodes.values():
        node.start()
    late = plan.node(name)
    plan.until(lambda: late.core is not None and late.core.storage is not None, "it has metadata")
    disk = late.member
    late.copy_folder(whole=False)
    assert late.old_copy is not None
    others = {voter for voter in plan.model.durable[disk].members.voters if voter != disk}
    assert not others, "the copy knows another voter; nothing is shown"
    plan.settle()
    plan.changed(plan.leader())
    late.kill()
    late.restore_folder()
    late.start()
    noticed(plan, name, disk)


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_copy_that_knows_no_other_voter_asks_the_configured_peers(name: str) -> None:
    restored_from_before_it_knew_anybody(name)


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_copy_that_asks_nobody_for_it_knows_none_would_be_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Edit(MemberStanding, "begin", "set(peers)", "set()"))
    with pytest.raises((ClusterBroken, AssertionError), match=r"NC3:|RST1:|RA\d:|LD\d:|14:"):
        restored_from_before_it_knew_anybody(name)


def late_verdict() -> tuple[Schedule, SimNode]:
    """A copy whose peers cannot be reached in its second of probation, and who are heard afterwards."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    late = plan.node(plan.others()[0])
    late.copy_folder(whole=False)
    for _ in range(3):
        plan.changed(plan.leader())
    plan.settle()
    late.kill()
    late.restore_folder()
    plan.cut(late.name)
    late.start()
    plan.until(lambda: not plan.core(late.name).standing.on_probation, "it takes part")
    assert plan.core(late.name).damage is None
    # The group itself would count on it now. That is what cannot be helped, so only the standings get through.
    plan.join_links()
    plan.world.drops = lambda source, target, message: (
        late.name in (source, target) and not isinstance(message, Standing | Judged)
    )
    return plan, late


def test_a_verdict_that_comes_too_late_is_a_finding_and_a_line() -> None:
    plan, late = late_verdict()
    core = plan.core(late.name)
    assert node_status(core, now_ms=late.clock_ms())["disk_findings"] == []
    plan.until(lambda: bool(core.standing.doubt), "the doubt is told")
    plan.run(5_000)  # both others say so, again and again
    status = node_status(core, now_ms=late.clock_ms())
    assert core.damage is None, "the group counts on it: an operator decides"
    assert "before, as n" in status["metadata_doubt"]
    (finding,) = status["disk_findings"]
    assert finding in status["findings"]
    assert f"the metadata of {late.name} may be an older copy of itself" in finding
    assert "move .tidelog/metadata away" in finding
    lines = [line for line in late.lines if line.startswith("metadata may be an older copy")]
    assert len(lines) == 1, "said once"
    other = plan.core(plan.leader())
    assert node_status(other, now_ms=0)["disk_findings"] == []


def test_what_the_finding_of_a_late_verdict_advises_repairs_it() -> None:
    plan, late = late_verdict()
    plan.until(lambda: bool(plan.core(late.name).standing.doubt), "the doubt is told")
    disk = late.member
    plan.lose(late.name, whole=False)  # moved away
    plan.world.drops = None
    late.start()
    plan.settle()
    assert late.member != disk
    assert node_status(plan.core(late.name), now_ms=0)["disk_findings"] == []


def test_a_restart_is_no_old_copy_even_while_one_is_away() -> None:
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    away, late = (plan.node(name) for name in plan.others())
    disk = late.member
    away.kill()
    for _ in range(3):
        late.kill()
        late.start()
        plan.until(lambda: plan.core(late.name).is_registered, "it is back")
    assert late.member == disk
    assert plan.core(late.name).damage is None


def deposed_leader_on_a_slow_disk() -> None:
    """It held entries that were never committed, in a term of its own. They go when it hears of the next one, and its
    disk is slow to learn the new term."""
    plan = Schedule(3, raft=RaftConfig(), liveness=LivenessConfig())
    old, (second, _) = plan.leader(), plan.others()
    disk = plan.node(old).member
    plan.world.drops = lambda source, _, message: source == old and is_append(message)
    for _ in range(5):
        plan.change(old)
    plan.run(100)
    plan.core(old).standing.link_up(0)  # it tells at once what it holds
    plan.run(100)
    assert plan.leads(old)
    plan.cut(old)
    plan.world.drops = None
    plan.elect(second)
    plan.changed(second)
    plan.node(old).disk_ms = 1_500
    plan.join_links()
    plan.run(5_000)
    plan.node(old).disk_ms = 0
    plan.settle()
    core = plan.core(old)
    if core.damage is not None or core.standing.doubt or plan.node(old).member != disk:
        raise ClusterBroken(f"MR1: {disk} is accused: {core.damage or core.standing.doubt}")


def test_a_leader_that_was_deposed_is_no_old_copy_while_its_disk_is_slow() -> None:
    deposed_leader_on_a_slow_disk()


def test_a_standing_in_a_term_that_is_not_durable_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Edit(MemberStanding, "wake", "found[0] < raft.term", "False"))
    with pytest.raises(ClusterBroken, match="MR1"):
        deposed_leader_on_a_slow_disk()


MUTATIONS = {
    "nobody is asked": (Edit(MemberStanding, "begin", "bool(self._unanswered)", "False"),),
    "terms not remembered": (
        Edit(MemberMemory, "heard", "message.term > memory.heard_term", "False"),
        Edit(MemberMemory, "_problem", "standing.term < term", "False"),
        Edit(MemberMemory, "_problem", "standing.last_index < held", "False"),
        Edit(MemberMemory, "_problem", "standing.incarnation < registered[0]", "False"),
    ),
    "verdict not heeded": (Edit(NodeCore, "_wake_standing", "not standing.problem", "True"),),
}


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_an_old_copy_that_is_let_in_would_be_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTATIONS[name])
    with pytest.raises((ClusterBroken, AssertionError), match=r"NC3:|RST1:|RA\d:|LD1:|14:"):
        restored_follower(new_term=True, whole=True)


def first_violation(seeds: range) -> str:
    for seed in seeds:
        try:
            run_metadata_world(seed)
        except MetadataViolation as violation:
            return violation.problem
    return "nothing"


@pytest.mark.parametrize("name", ["nobody is asked", "verdict not heeded"])
def test_random_runs_catch_an_old_copy_that_is_let_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *MUTATIONS[name])
    assert first_violation(range(100)).startswith("NC3:")


def test_random_runs_catch_a_log_that_a_lying_disk_has_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *BUGS["end of the log not marked"])
    assert first_violation(range(100)).startswith("RST1:")


def test_an_incarnation_that_nobody_compares_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Edit(MemberMemory, "_problem", "standing.incarnation < registered[0]", "False"))
    with pytest.raises(ClusterBroken, match="NC3"):
        restored_after_a_power_cut()
