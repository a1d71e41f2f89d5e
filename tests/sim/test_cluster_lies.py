"""Disks that lie in front of an election: nothing that was acked is lost while one in-sync replica is whole."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.cluster.test_channel_admin import Desk
from tests.sim.mutations import Edit, plant
from tests.sim.schedules import cluster_lies, cluster_rot
from tests.sim.schedules.cluster import ClusterSchedule
from tests.sim.schedules.cluster_lies import LIES, SHORT_LOGS
from tidelog.cluster.metadata import channel_controller
from tidelog.cluster.metadata import elections as channel_elections
from tidelog.cluster.metadata.elections import Elections, is_compared
from tidelog.cluster.node.node_file import NodeFile
from tidelog.cluster.replication import leading as replica_leading
from tidelog.cluster.replication.following import Following
from tidelog.cluster.replication.leading import Leading
from tidelog.cluster.replication.state import ReplicaState
from tidelog.cluster.replication.storage import ReplicaStorage
from tidelog.core.catalog import node_rules
from tidelog.core.replication.progress import ReplicaProgress
from tidelog.errors import NotElectable
from tidelog.sim.cluster.liars import copy_store, forgive, lie, lie_to_all, lying_syncs, restore_store
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.cluster.scene import ClusterWorld
from tidelog.sim.metadata.model import ClusterBroken

QUICK = [name for name in LIES if name.endswith(("3 nodes, kill", "5 nodes, crash"))]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LIES]
)
def test_a_disk_that_lost_what_it_had_synced_costs_nobodys_copy(name: str) -> None:
    plan = LIES[name]()
    assert plan.channel.losses == 0
    assert plan.channel.acks


@pytest.mark.parametrize("schedule", SHORT_LOGS, ids=lambda schedule: schedule.__name__)
def test_a_log_that_was_cut_without_a_trace_is_found_out(schedule: Callable[[], ClusterSchedule]) -> None:
    assert schedule().model.checks > 0


def test_an_operator_does_not_elect_who_was_not_compared_unless_with_loss() -> None:
    """A member of the ISR that came back short: its leader has not let it in since."""
    seen: list[bool] = []

    def look(plan: ClusterSchedule) -> None:
        desk = Desk("n1", "n2", "n3")
        desk.node.cluster.catalog = plan.world.model.reference
        with pytest.raises(NotElectable, match="has not been compared"):
            desk.alter("elect", channel=plan.channel.name, leader="n3")
        seen.append(is_compared(plan.world.model.reference, plan.channel.record, "n3"))

    cluster_lies.short_pinned_leader(look)
    assert seen == [False]


def test_answers_to_the_last_process_of_a_follower_are_not_sent_to_one_with_an_older_copy() -> None:
    assert cluster_lies.old_copy_as_long_as_the_log().channel.losses == 0


def test_rot_that_a_leader_finds_when_it_reads_for_its_followers_does_not_stop_the_channel() -> None:
    plan = cluster_rot.rot_that_a_leader_finds()
    assert plan.world.counters["resigned"]
    assert plan.channel.losses == 0


def test_a_lost_record_whose_epoch_nobody_can_tell_does_not_stop_the_channel() -> None:
    plan = cluster_rot.lost_start_of_an_epoch()
    assert plan.channel.losses == 0


def test_a_batch_that_was_damaged_when_the_log_was_folded_is_not_taken_twice_after_its_repair() -> None:
    assert cluster_rot.damaged_batch_comes_again().channel.losses == 0


def test_a_replica_whose_session_was_lost_leads_where_the_only_other_log_is_damaged() -> None:
    plan = cluster_rot.session_lost_beside_damage()
    assert plan.world.counters["fenced_and_back"]
    assert plan.channel.losses == 0


@pytest.mark.parametrize("min_isr", [1, 2])
def test_after_a_crash_nobody_leads_before_a_majority_was_compared(min_isr: int) -> None:
    assert cluster_lies.alone_after_a_crash(min_isr).channel.losses == 0


NO_ENDS = Edit(
    channel_elections,
    "most_complete",
    "if (facts[node].last_epoch, facts[node].log_end) == longest",
    "",
)
MUTATIONS: dict[str, tuple[Callable[[], ClusterSchedule], tuple[Edit, ...]]] = {
    "election that ignores ends": (
        cluster_lies.short_among_all,
        (
            NO_ENDS,
            Edit(channel_elections, "most_complete", "facts[node].log_end >= committed_end", "True"),
            Edit(channel_elections, "most_complete", "all_answered or", "True or"),
        ),
    ),
    "follower that cuts below its committed end": (
        cluster_lies.committed_is_kept,
        (Edit(Following, "_must_keep", "if end >= kept_end:", "if True:"),),
    ),
    "unclean replica counted at once": (
        cluster_lies.alone_after_a_crash,
        (Edit(Elections, "_is_certain", "member.incarnation >= record.written_since", "True"),),
    ),
    "remembered ends ignored": (
        cluster_lies.remembered_end,
        (Edit(channel_elections, "most_complete", "all_answered or", "True or"),),
    ),
    "member that came back short stays in the ISR": (
        cluster_lies.short_member_leaves,
        (Edit(replica_leading, "short_member", "record.member(peer) is None", "True"),),
    ),
    "short leader does not resign": (
        cluster_lies.short_leader_resigns,
        (Edit(replica_leading, "lacks_committed", "request.committed_end <= agreed", "True"),),
    ),
    "leadership handed back without a comparison": (
        cluster_lies.short_pinned_leader,
        (Edit(channel_controller, "is_compared", "member.incarnation == record.incarnation", "True"),),
    ),
    "damage that a read finds is not heard of": (
        cluster_rot.rot_that_a_leader_finds,
        (Edit(ReplicaState, "look_at_log", "if self.storage is Storage.READY:", "if False:"),),
    ),
    "lost records held against every leader": (
        cluster_rot.lost_start_of_an_epoch,
        (Edit(ReplicaState, "readable_end", "end = part.start", "pass"),),
    ),
    "requests of the last process answered": (
        cluster_lies.old_copy_as_long_as_the_log,
        (
            Edit(Leading, "link_up", "if progress is not None and progress.is_known:", "if False:"),
            Edit(ReplicaProgress, "forget", "self.is_known = self.stands = False", "self.is_known = False"),
        ),
    ),
    "fold that lacks what was damaged": (
        cluster_rot.damaged_batch_comes_again,
        (
            Edit(ReplicaStorage, "_fold", "if damage.start >= order.skip_below:", "if False:"),
            Edit(ReplicaState, "note_damage", "if self.fold is not None and", "if False and"),
        ),
    ),
    "lost session taken for an older copy of the disk": (
        cluster_rot.session_lost_beside_damage,
        (
            Edit(NodeFile, "registered", "self.known_incarnation, self.is_told = self.state.incarnation, True", "pass"),
            Edit(node_rules, "_same_disk", " or change.process_id == record.process_id", ""),
        ),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, edits = MUTATIONS[name]
    plant(monkeypatch, *edits)
    with pytest.raises(ClusterBroken) as caught:
        schedule()
    assert str(caught.value).startswith(("1:", "4:", "6:", "14:", "R5:"))


def copy_and_restore(world: ClusterWorld, node: ClusterNode) -> None:
    """A copy that was made a moment ago is put back, and the next one is made for the time after that."""
    restore_store(world, node)
    for other in world.nodes.values():
        copy_store(world, other)


def lying_syncs_of_a_while(world: ClusterWorld, node: ClusterNode) -> None:
    lying_syncs(world, node)
    world.scheduler.run_until(world.scheduler.now_ms + 2_000)
    if node.core is not None:
        node.crash()


def counted_lies(plan: ClusterSchedule) -> int:
    return sum(plan.world.counters[name] for name in ("lied", "old_copy", "lying_syncs"))


@pytest.mark.parametrize("fault", [lie, lie_to_all, copy_and_restore, lying_syncs_of_a_while])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))])
def test_random_lies_in_front_of_an_election_lose_nothing(fault: Callable[..., None], seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.choice((3, 5))
    plan = ClusterSchedule(nodes, factor=nodes, min_isr=rng.choice((1, 2)), heartbeat_ms=200, seed=seed + 1)
    producer = plan.producer()
    for _ in range(3):
        plan.written(producer, rng.randint(1, 6))
        plan.until_in_sync(*plan.world.nodes)
        forgive(plan.world)
        tampered = [name for name in plan.world.nodes if plan.node(name).tampered]
        assert not tampered, "all are in sync again, and whole"
        for name in rng.sample(sorted(plan.world.nodes), (nodes - 1) // 2):
            fault(plan.world, plan.node(name))
        order = list(plan.world.nodes)
        rng.shuffle(order)
        for name in order:
            plan.node(name).start()
            plan.run(rng.choice((0, 50, 500, 3_000)))
        # (Records that cannot be repaired in place are fetched again after half a minute.)
        plan.until(lambda: not plan.world.unrest(), "the cluster comes to rest", 60_000)
        plan.settle()
    assert counted_lies(plan)
    assert plan.channel.losses == 0
