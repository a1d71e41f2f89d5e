"""The cluster's simulator proves itself: break the protocol on purpose, and it must notice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.sim.mutations import Edit, plant
from tests.sim.schedules import cluster_schedules as schedules
from tests.sim.schedules.cluster import ClusterSchedule
from tidelog.cluster.metadata import elections as channel_elections
from tidelog.cluster.metadata.elections import Elections
from tidelog.cluster.replication import leading as replica_leading
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.cluster.replication.following import Following
from tidelog.cluster.replication.leading import Leading
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.state import ReplicaState
from tidelog.core.catalog import election_rules
from tidelog.core.catalog.state import State
from tidelog.core.replication.witnesses import Witnesses
from tidelog.sim.cluster.model import ClusterViolation
from tidelog.sim.cluster.world import run_cluster_world
from tidelog.sim.metadata.model import ClusterBroken

SEEDS = 40
RUN_MS = 8_000

MUTATIONS: dict[str, tuple[str | tuple[str, ...], tuple[Edit, ...]]] = {
    "truncation by the committed end": (
        "1:",
        (
            Edit(
                ChannelReplica,
                "_take_part",
                "self.following.ask(now_ms)",
                "self.truncate(min(self.committed_end, self.log_end))",
            ),
        ),
    ),
    "epoch begins one too late": (
        "",
        (Edit(ReplicaState, "append", "leader_epoch, self.log_end)", "leader_epoch, self.log_end + 1)"),),
    ),
    "commit without the joiner": (
        "5:",
        (Edit(Leading, "_advance", "counted += [self._progress[node] for node in self._joining]", "pass"),),
    ),
    "ack before the sync": (
        "5:",
        (Edit(ReplicaState, "append", "self.out.tail_grew()", "self.held_end = self.log_end"),),
    ),
    "leader counts itself before its sync": (
        "5:",
        (
            Edit(
                Leading, "_advance", "replica.committed_end, replica.held_end", "replica.committed_end, replica.log_end"
            ),
        ),
    ),
    "leader of an epoch that is over goes on": (
        "",
        (Edit(ChannelReplica, "_take_part", "if leads and self.leading.epoch == record.leader_epoch:", "if True:"),),
    ),
    "epoch resumed after a restart": (
        ("2:", "3:"),  # two leaders in one epoch, or what they wrote
        (
            Edit(ChannelReplica, "is_elected", "and record.leader_incarnation == incarnation", ""),
            Edit(
                ChannelReplica, "_lead", "if max(self.epochs.newest, self._led_epoch) >= record.leader_epoch:", "if 0:"
            ),
        ),
    ),
    "member that was not heard is not counted": (
        "5:",
        (Edit(replica_leading, "committed_end", "return current\n        smallest", "continue\n        smallest"),),
    ),
    "commit below min_isr": ("5:", (Edit(replica_leading, "committed_end", "if isr_count < min_isr:", "if False:"),)),
    "gap accepted": (
        "",
        (
            Edit(Following, "on_response", " or response.first_offset != replica.log_end", ""),
            Edit(Following, "_checked", "leader.base_offset != offset", "False"),
        ),
    ),
    "acknowledged before it is durable": (
        "5:",
        (Edit(Following, "ask", "held_end=min(replica.held_end, replica.sound_end)", "held_end=replica.log_end"),),
    ),
    "fold kept after a truncation": (
        "",
        (Edit(ReplicaState, "take_log", "self.fold = None", "pass"),),
    ),
    "new leader serves before its epoch is committed": (
        "4:",
        (Edit(Leading, "begin", "self._follow_replicas(now_ms)", "self._follow_replicas(now_ms); self.serves = True"),),
    ),
    "shrink counted before it is committed": (
        "5:",
        (
            Edit(
                Leading,
                "_advance",
                "if member.node != self._around.node]",
                "if member.node != self._around.node and now_ms - self._behind_since_ms(member.node, now_ms) < 900]",
            ),
        ),
    ),
    "doubtful member trusted": (
        "1:",
        (
            Edit(State, "is_trusted", "if member.incarnation < record.kept_since(member.keeps):", "if False:"),
            # (Else it would be compared first, and that finds it out too.)
            Edit(Elections, "_compare", "if 2 * len(reported) <= len(holders)", "if False"),
            Edit(channel_elections, "most_complete", "facts[node].log_end >= committed_end", "True"),
            Edit(channel_elections, "most_complete", "all_answered or", "True or"),
        ),
    ),
    "retention above the committed end": (
        ("1:", "F3:"),
        (Edit(ChannelReplica, "retention_floor", "self.fold.floor_below(self.committed_end)", "self.log_end"),),
    ),
    "retention past a fold": (
        "F3:",
        (
            Edit(
                ReplicaFold, "floor_below", "return floor if 0 <= floor < committed_end else 0", "return committed_end"
            ),
        ),
    ),
    "leader elected from outside the ISR": (
        "14:",  # elections compare logs (CE3), so it costs time and no record
        (
            Edit(
                State,
                "can_lead_now",
                "for member in channel.isr:",
                "for member in [Member(node=name, incarnation=1 << 60, keeps=channel.config.keeps) "
                "for name in channel.replicas]:",
            ),
            Edit(
                election_rules,
                "_elect",
                "member = channel.member(node)",
                "member = Member(node=node, incarnation=incarnation, keeps=channel.config.keeps)",
            ),
            Edit(
                election_rules,
                "_elect",
                "isr, eligible = channel.isr, channel.eligible",
                "isr, eligible = (member,), ()",
            ),
        ),
    ),
    "offset stamped twice after a refused append": (
        "2:",
        (Edit(Leading, "append_failed", "if sent_end > log_end or others:", "if False:"),),
    ),
    "replica exposes more than it holds": (
        "4:",
        (
            Edit(
                Following,
                "_update_committed",
                "min(self._committed_end, self._replica.held_end)",
                "self._committed_end",
            ),
        ),
    ),
    "leader's ack before it is durable": (
        "5:",
        (Edit(Leading, "_await", "else replica.held_end", "else replica.log_end"),),
    ),
    "repeated block taken again": (
        "6:",
        (Edit(ReplicaFold, "check", "if maker.base_seq == expected:", "if True:"),),
    ),
    "repeated block acked before it is committed": (
        "1:",
        (
            Edit(
                Leading,
                "produce",
                "self._await(order, repeated.first_offset, repeated.end_offset, in_order=False)",
                "self._out.produced(order.token, repeated.first_offset, None)",
            ),
        ),
    ),
    "leader cut off from its followers stays": ("14:", (Edit(Witnesses, "is_cut_off", "best > reached", "False"),)),
    "leader that does not hear its followers stays": (
        "14:",
        (Edit(Witnesses, "is_cut_off", "{node for node in others if is_deaf(leader, node)}", "set()"),),
    ),
    "leader deposed for one that is no better off": (
        "14:",
        (
            Edit(
                Witnesses,
                "is_cut_off",
                "return best >= channel.config.effective_min_isr and best > reached",
                "return True",
            ),
        ),
    ),
    "histories not compared": ("", (Edit(replica_leading, "history_problem", "elif last_epoch:", "elif False:"),)),
    "joins before it has caught up": (
        "5:",
        (
            Edit(
                Leading,
                "_consider_expansion",
                "if progress.held_end < max(replica.committed_end, started):",
                "if False:",
            ),
        ),
    ),
}


BY_SCHEDULE: dict[str, Callable[[], ClusterSchedule]] = {
    "commit without the joiner": schedules.joiner_counts,
    "doubtful member trusted": schedules.empty_memory_is_not_trusted,
    "leader cut off from its followers stays": schedules.leader_cut_from_its_followers,
    "leader that does not hear its followers stays": partial(
        schedules.leader_cut_from_its_followers, way=schedules.LostWay.DEAF
    ),
    "leader deposed for one that is no better off": schedules.one_bad_link,
    "fold kept after a truncation": schedules.fold_is_made_anew,
    "offset stamped twice after a refused append": schedules.refused_append_ends_the_epoch,
}
"""What chance finds too seldom."""


def first_violation(seeds: int = SEEDS) -> str:
    for seed in range(seeds):
        try:
            run_cluster_world(seed, duration_ms=RUN_MS)
        except ClusterViolation as violation:
            return violation.problem
    return "nothing"


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in BY_SCHEDULE])
def test_a_planted_bug_is_noticed_in_random_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, edits = MUTATIONS[name]
    plant(monkeypatch, *edits)
    problem = first_violation()
    assert problem != "nothing"
    assert problem.startswith(rule)


@pytest.mark.parametrize("name", BY_SCHEDULE)
def test_a_planted_bug_is_noticed_by_a_schedule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, edits = MUTATIONS[name]
    plant(monkeypatch, *edits)
    with pytest.raises((ClusterBroken, AssertionError)) as caught:
        BY_SCHEDULE[name]()
    assert str(caught.value).startswith(rule)


@pytest.mark.parametrize("way", schedules.LostWay)
@pytest.mark.parametrize(("min_isr", "lag_ms"), [(1, None), (2, None), (2, 300)])
def test_writes_go_on_when_a_leader_is_cut_off_from_its_followers(
    min_isr: int, lag_ms: int | None, way: schedules.LostWay
) -> None:
    """Before its ISR has shrunk, and after: then its followers are eligible."""
    schedules.leader_cut_from_its_followers(min_isr, lag_ms, way)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_without_a_bug_the_same_schedules_end_well(schedule: Callable[[], ClusterSchedule]) -> None:
    assert schedule().model.checks > 0
