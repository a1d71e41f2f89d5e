"""Boats of simulated clusters: acks stay true under any leader of the channel, and planted bugs are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.mutations import Edit, plant
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.cluster.uplink import led_channel as uplink_led_channel
from tidelog.cluster.uplink.appends import BoatAppends
from tidelog.cluster.uplink.led_channel import LedChannel
from tidelog.core.client_messages import AckPolicy
from tidelog.core.uplink.receiver import UplinkReceiver
from tidelog.sim.cluster.boat import ClusterBoat
from tidelog.sim.cluster.boat_mishaps import MISHAPS
from tidelog.sim.cluster.boats import ClusterBoats
from tidelog.sim.cluster.model import ClusterViolation
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.cluster.scene import ClusterWorld
from tidelog.sim.cluster.world import run_cluster_world

SEEDS = 40
RUN_MS = 8_000
BOAT = "boat-1"
WAIT_MS = 20_000

MUTATIONS: dict[str, tuple[str | tuple[str, ...], tuple[Edit, ...]]] = {
    "cursor of what is appended": (
        "9:",
        (Edit(UplinkReceiver, "cursor", "self._current(self._committed)", "self._current(self._appended)"),),
    ),
    "boat acked when the leader alone has it": (
        "9:",
        (Edit(LedChannel, "append", "is_control=is_control)", "is_control=is_control, ack=_LEADER)"),),
    ),
    "resent frames not recognised": (
        "6:",
        (Edit(UplinkReceiver, "_take", "self._appended.lineage(lineage).missing_in(seqs)", "[seqs]"),),
    ),
    "windows not kept": ("6:", (Edit(LedChannel, "append", "windows=append.windows", "windows=()"),)),
    "snapshot without what is on its way": (
        ("8:", "F1:"),
        (Edit(UplinkReceiver, "snapshot", "return self._appended.to_state()", "return self._committed.to_state()"),),
    ),
    "retention past what is known of the boat": (
        ("F1:", "F3:"),
        (Edit(ReplicaFold, "floor", "if self.has_lineages:", "if False:"),),
    ),
    "refused append told as committed": (
        "9:",
        (Edit(BoatAppends, "take_settled", "if error is not None:", "if False:"),),
    ),
    "void ranges forgotten": ("8:", (Edit(UplinkReceiver, "_note_declared", "self._note(void, effects)", "pass"),)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_of_the_uplink_is_noticed_in_random_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, edits = MUTATIONS[name]
    monkeypatch.setattr(uplink_led_channel, "_LEADER", AckPolicy.LEADER, raising=False)
    plant(monkeypatch, *edits)
    problem = "nothing"
    for seed in range(SEEDS):
        try:
            run_cluster_world(seed, duration_ms=RUN_MS)
        except ClusterViolation as violation:
            problem = violation.problem
            break
    assert problem.startswith(rule)


class Voyage:
    """Three good nodes and one boat: nothing happens but what a test does."""

    def __init__(self, *, follows_leaders: bool = True) -> None:
        self.world = world = ClusterWorld(1, nodes=3, quiet=True)
        self.boats = world.boats = ClusterBoats(world, 1, 1, MISHAPS)
        world.model.boats = self.boats.accounts
        self.boats.config = replace(self.boats.config, factor=3, heartbeat_ms=100)
        for node in world.nodes.values():
            world.scheduler.after(1, node.start)
        self.boat.follows_leaders = follows_leaders
        world.scheduler.after(2_000, self.boat.open)

    @property
    def boat(self) -> ClusterBoat:
        return self.boats.boats[0]

    def until(self, condition: Callable[[], bool]) -> None:
        end_ms = self.world.scheduler.now_ms + WAIT_MS
        while not condition():
            assert self.world.scheduler.now_ms < end_ms, self.boat.unrest()
            self.world.scheduler.run_until(self.world.scheduler.now_ms + 20)

    def acked_beyond(self, seq: int) -> None:
        self.until(lambda: self.boat.running and self.boat.journal.acked > seq)

    @property
    def leader(self) -> ClusterNode:
        record = self.world.model.reference.channel(BOAT)
        assert record is not None
        assert record.leader is not None
        return self.world.nodes[record.leader]

    def is_committed(self, seq: int) -> bool:
        return self.boats.accounts[BOAT].held[self.boat.journal.lineage].cursor >= seq

    def end(self) -> None:
        self.boats.heal()
        self.until(lambda: not self.boats.unrest())
        self.boats.check_end()


def test_a_boat_goes_on_at_the_new_leader_when_the_old_one_dies() -> None:
    voyage = Voyage()
    voyage.acked_beyond(3)
    told, old = voyage.boat.journal.acked, voyage.leader
    old.crash()
    voyage.acked_beyond(told + 3)
    assert voyage.leader is not old
    assert voyage.is_committed(told)
    assert voyage.world.counters["boat_moved_node"] == 1
    voyage.end()


def test_a_boat_that_reaches_one_node_only_is_passed_on_to_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    voyage = Voyage(follows_leaders=False)
    voyage.until(lambda: voyage.boats.any_node() is not None)
    voyage.acked_beyond(0)
    other = next(node for node in voyage.world.nodes.values() if node is not voyage.leader)
    monkeypatch.setattr(voyage.boats, "any_node", lambda: other)
    voyage.boat.cut()
    before = voyage.world.counters["boat_relayed"]
    voyage.acked_beyond(voyage.boat.journal.head)
    assert voyage.world.counters["boat_relayed"] > before
    voyage.end()


def test_a_boat_is_told_of_nothing_while_too_few_replicas_are_in_sync() -> None:
    voyage = Voyage()
    voyage.acked_beyond(3)
    others = [node for node in voyage.world.nodes.values() if node is not voyage.leader]
    for node in others:
        node.kill()
    voyage.world.scheduler.run_until(voyage.world.scheduler.now_ms + 500)
    told = voyage.boat.journal.acked
    voyage.world.scheduler.run_until(voyage.world.scheduler.now_ms + 3_000)
    assert voyage.boat.journal.acked == told
    assert voyage.boat.journal.head > told
    for node in others:
        node.start()
    voyage.acked_beyond(told)
    voyage.end()


def test_what_a_boat_recorded_while_the_link_was_gone_comes_by_backfill() -> None:
    voyage = Voyage()
    voyage.acked_beyond(3)
    voyage.boat.link.weather.up = False
    voyage.boat.cut()
    before, head = voyage.world.counters["boat_backfill"], voyage.boat.journal.head
    voyage.until(lambda: voyage.boat.journal.head > head + 5)
    voyage.boat.link.weather.up = True
    voyage.acked_beyond(head + 5)
    assert voyage.world.counters["boat_backfill"] > before
    voyage.end()
