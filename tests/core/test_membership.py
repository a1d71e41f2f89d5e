"""How the metadata group follows the catalog: who joins, who goes, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.core.catalog import AdmitNode, Catalog, Change, FenceNode, FoundCluster, RegisterNode, RemoveNode
from tidelog.core.membership import Handover, Step, member_name, next_step, node_of
from tidelog.core.raft import (
    AddLearner,
    AppendAnswer,
    HardState,
    Members,
    MembersChange,
    Promote,
    Raft,
    RaftConfig,
    Remove,
    Snapshot,
    SnapshotHead,
)


@dataclass
class Group:
    """The leader n1 of a group, whose followers hold everything at once, and a catalog beside it."""

    raft: Raft
    catalog: Catalog
    silent: set[str] = field(default_factory=set)
    """Followers that answer nothing."""
    index: int = 0

    def apply(self, *changes: Change) -> None:
        for change in changes:
            self.index += 1
            applied = self.catalog.apply(self.index, change)
            assert applied.refusal is None, applied.refusal

    def pump(self) -> None:
        while (ready := self.raft.ready()) is not None:
            self.raft.persisted(ready.number)
            for to, _ in (*ready.messages, *ready.messages_after):
                if to not in self.silent:
                    last = self.raft.log.last_index
                    answer = AppendAnswer(term=self.raft.term, round=0, accepted=True, index=last)
                    self.raft.step(to, answer, 0)

    def step(self) -> Step | None:
        return next_step(self.raft, self.catalog)

    def carry_out(self) -> list[Step]:
        """Until the group is in line with the catalog."""
        steps: list[Step] = []
        while (step := self.step()) is not None and len(steps) < 20:
            steps.append(step)
            if isinstance(step, Handover):
                break
            self.raft.propose_members(step)
            self.pump()
        return steps


def group(*voters: str) -> Group:
    """A leader n1/a with these voters beside it, registered or not: the catalog is still empty."""
    members = Members(tuple(sorted(("n1/a", *voters))))
    raft = Raft(
        me="n1/a",
        config=RaftConfig(),
        hard_state=HardState(1, None),
        snapshot=Snapshot(SnapshotHead(1, 1, Members(("n1/a",)))),
        entries=(),
        random_fraction=lambda: 0.0,
        now_ms=0,
    )
    raft.campaign(0)
    made = Group(raft, Catalog())
    made.pump()
    for voter in voters:
        steps: tuple[MembersChange, ...] = (AddLearner(voter), Promote(voter))
        for change in steps:
            raft.propose_members(change)
            made.pump()
    assert raft.members == members
    made.apply(FoundCluster(cluster_id="00" * 16))
    return made


def register(node: str, disk: str, incarnation: int = 1) -> RegisterNode:
    return RegisterNode(
        node=node,
        incarnation=incarnation,
        known_incarnation=incarnation - 1,
        disk_id=disk,
        process_id=f"{incarnation:016x}",
        clean_incarnation=None,
        verified=True,
        damaged_channels=(),
        addresses=(("link", f"{node}:1"),),
        host=node,
        tags=(),
        capacity_bytes=1,
        software="1",
        catalog_version=1,
        at_ms=1,
    )


DISKS = {"n1": "aaaaaaaa", "n2": "bbbbbbbb", "n3": "cccccccc"}


def registered(*nodes: str) -> list[Change]:
    changes: list[Change] = []
    for node in nodes:
        changes += [AdmitNode(node=node), register(node, DISKS[node])]
    return changes


def test_names_of_members_hold_the_node() -> None:
    assert node_of(member_name("n1", "aa")) == "n1"


def test_a_founder_that_has_not_registered_stays() -> None:
    """N3."""
    founded = group()
    founded.apply(AdmitNode(node="n1"))
    assert founded.step() is None


def test_registered_nodes_become_learners_and_then_voters() -> None:
    """N2."""
    founded = group()
    founded.apply(*registered("n2", "n3"))
    added = founded.carry_out()
    assert added == [
        AddLearner("n2/bbbbbbbb"),
        AddLearner("n3/cccccccc"),
        Promote("n2/bbbbbbbb"),
        Promote("n3/cccccccc"),
    ]


def test_a_learner_that_has_not_caught_up_is_not_promoted() -> None:
    """N2."""
    founded = group()
    founded.apply(*registered("n2"))
    founded.silent.add("n2/bbbbbbbb")
    assert founded.carry_out() == [AddLearner("n2/bbbbbbbb")]


def test_a_fenced_learner_is_not_promoted() -> None:
    """N2."""
    founded = group()
    founded.apply(*registered("n2"), FenceNode(node="n2", expected_incarnation=1))
    assert founded.carry_out() == [AddLearner("n2/bbbbbbbb")]


def test_a_new_disk_replaces_the_old_one() -> None:
    """N1, N3: the old disk goes first, so that it can never vote beside the new one."""
    led = group("n2/bbbbbbbb", "n3/cccccccc")
    led.apply(*registered("n2", "n3"), register("n2", "dddddddd", 2))
    assert led.carry_out() == [Remove("n2/bbbbbbbb"), AddLearner("n2/dddddddd"), Promote("n2/dddddddd")]


def test_a_removed_node_leaves_the_group() -> None:
    """N3."""
    led = group("n2/bbbbbbbb", "n3/cccccccc")
    led.apply(*registered("n2", "n3"), RemoveNode(node="n3"))
    assert led.carry_out() == [Remove("n3/cccccccc")]


def test_a_leader_that_must_go_hands_over_to_who_holds_most() -> None:
    """N4."""
    led = group("n2/bbbbbbbb", "n3/cccccccc")
    led.apply(AdmitNode(node="n1"), register("n1", "aaaaaaaa"), *registered("n2", "n3"))
    assert led.step() == Handover("n3/cccccccc")


def test_the_last_voter_stays_even_if_it_must_go() -> None:
    alone = group()
    alone.apply(AdmitNode(node="n1"), register("n1", "aaaaaaaa"))
    assert alone.step() is None


def test_no_second_step_before_the_first_is_committed() -> None:
    led = group("n2/bbbbbbbb", "n3/cccccccc")
    led.apply(*registered("n2", "n3"), RemoveNode(node="n3"))
    led.silent.update(("n2/bbbbbbbb", "n3/cccccccc"))
    step = led.step()
    assert step == Remove("n3/cccccccc")
    led.raft.propose_members(Remove("n3/cccccccc"))
    led.pump()
    assert led.step() is None


def test_there_are_at_most_five_voters() -> None:
    led = group("n2/bbbbbbbb", "n3/cccccccc", "n4/dddddddd", "n5/eeeeeeee")
    led.apply(AdmitNode(node="n6"), register("n6", "ffffffff"))
    assert led.carry_out() == [AddLearner("n6/ffffffff")]
