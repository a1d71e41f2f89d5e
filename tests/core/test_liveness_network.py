"""Five nodes that speak over a simulated network: every graph names the cuts, only the cuts, and forgets them.

All clocks differ, messages are delayed and overtake each other, ways are cut one way at a time. What a node cannot
know (what somebody hears whose reports do not reach it) it must not guess (PY1).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.core.liveness import Heartbeat, LivenessConfig, PairHeartbeats, ProximityGraph
from tidelog.core.liveness import proximity as proximity_module

INTERVAL_MS = 500
CONFIG = LivenessConfig(heartbeat_ms=INTERVAL_MS)
NODES = ("n1", "n2", "n3", "n4", "n5")
WAYS = sorted(permutations(NODES, 2))
STEP_MS = 10
Way = tuple[str, str]
"""(from, to)"""


class Network:
    """Time is the network's; each node has a clock of its own with another start and a slightly other rate."""

    def __init__(self, seed: int, *, delay_ms_max: int = 60) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.delay_ms_max = delay_ms_max
        self.cut: set[Way] = set()
        self.every_other: Way | None = None
        self.posted = self.lost = 0
        self.paused: set[str] = set()
        self.flight: list[tuple[int, Way, Heartbeat]] = []
        self.clocks = {node: (self.rng.randrange(10**9), self.rng.randrange(-10, 11)) for node in NODES}
        self.heartbeats: dict[str, PairHeartbeats] = {}
        self.graphs: dict[str, ProximityGraph] = {}
        for node in NODES:
            now_ms = self.clock_ms(node)
            self.heartbeats[node] = PairHeartbeats(node=node, incarnation=1, config=CONFIG, now_ms=now_ms)
            self.heartbeats[node].set_peers(NODES, now_ms)
            self.graphs[node] = ProximityGraph(config=CONFIG)
            self.graphs[node].set_nodes(NODES)
            for peer in NODES:
                self.heartbeats[node].peer_up(peer, now_ms)

    def clock_ms(self, node: str) -> int:
        start_ms, per_mille = self.clocks[node]
        return start_ms + self.now_ms * (1_000 + per_mille) // 1_000

    def post(self, node: str, messages: list[tuple[str, Heartbeat]]) -> None:
        for peer, message in messages:
            if (node, peer) == self.every_other:
                self.posted += 1
                if self.posted % 2:
                    self.lost += 1
                    continue
            if (node, peer) not in self.cut:
                self.flight.append((self.now_ms + self.rng.randrange(self.delay_ms_max + 1), (node, peer), message))

    def step(self) -> None:
        self.now_ms += STEP_MS
        arrived = [item for item in self.flight if item[0] <= self.now_ms and item[1][1] not in self.paused]
        self.flight = [item for item in self.flight if item[0] > self.now_ms or item[1][1] in self.paused]
        # A cut takes what is under way on it, too.
        for _, (sender, node), message in arrived:
            if (sender, node) in self.cut:
                continue
            now_ms = self.clock_ms(node)
            if self.heartbeats[node].accepts(sender, message):
                self.graphs[node].report(sender, message.report, now_ms)
            self.post(node, self.heartbeats[node].receive(sender, message, now_ms))
        for node, heartbeats in self.heartbeats.items():
            now_ms = self.clock_ms(node)
            wake_at_ms = heartbeats.wake_at_ms()
            assert wake_at_ms is not None
            if node not in self.paused and wake_at_ms <= now_ms:
                self.post(node, heartbeats.wake(now_ms))
                self.graphs[node].report(node, heartbeats.report(now_ms), now_ms)

    def run(self, elapsed_ms: int) -> Iterator[None]:
        until_ms = self.now_ms + elapsed_ms
        while self.now_ms < until_ms:
            self.step()
            yield

    def pass_time(self, elapsed_ms: int) -> None:
        for _ in self.run(elapsed_ms):
            pass

    def named(self, node: str) -> set[Way]:
        """The ways that `node` calls cut, as (from, to)."""
        return {(silent, deaf) for deaf, silent in self.graphs[node].cannot_hear(self.clock_ms(node))}

    def knowable(self, node: str) -> set[Way]:
        """The cuts whose far end `node` can hear, or is."""
        return {(sender, to) for sender, to in self.cut if to == node or (to, node) not in self.cut}

    def check_exact(self) -> None:
        for node in NODES:
            assert self.named(node) == self.knowable(node), f"seed {self.seed}, seen by {node} at {self.now_ms} ms"


def played(seed: int, cuts: list[set[Way]], **network_options: int) -> Network:
    network = Network(seed, **network_options)
    network.pass_time(3 * INTERVAL_MS)
    network.check_exact()
    for cut in cuts:
        before = set(network.cut)
        network.cut = cut
        for _ in network.run(4 * INTERVAL_MS):
            for node in NODES:
                strange = network.named(node) - cut - before
                assert not strange, f"seed {seed}: {node} names {strange}"
        for _ in network.run(network.rng.randrange(3 * INTERVAL_MS)):
            network.check_exact()
    return network


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), cut=st.sets(st.sampled_from(WAYS), max_size=8))
def test_exactly_the_cut_ways_are_named_within_4_intervals_and_none_4_after_healing(seed: int, cut: set[Way]) -> None:
    played(seed, [cut, set()])


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.sets(st.sampled_from(WAYS), max_size=10), min_size=2, max_size=4))
def test_cuts_that_move_are_followed(seed: int, cuts: list[set[Way]]) -> None:
    played(seed, cuts)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), left=st.sets(st.sampled_from(NODES), min_size=1, max_size=4))
def test_a_partition_is_seen_from_both_sides(seed: int, left: set[str]) -> None:
    cut = {(a, b) for a, b in WAYS if (a in left) != (b in left)}
    network = played(seed, [cut])
    sides = {frozenset(left), frozenset(NODES) - left}
    for node in NODES:
        graph, now_ms = network.graphs[node], network.clock_ms(node)
        assert set(graph.partitions(now_ms)) == sides, f"seed {seed}, seen by {node}"
        assert graph.explain(now_ms)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_lost_heartbeats_are_no_cuts_while_no_two_in_a_row_are_lost(seed: int) -> None:
    """PY2: every other heartbeat of one way is lost, for a long time."""
    network = Network(seed)
    network.every_other = network.rng.choice(WAYS)
    for _ in network.run(20 * INTERVAL_MS):
        assert not any(network.named(node) for node in NODES), f"seed {seed}"
    assert network.lost >= 8


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), node=st.sampled_from(NODES))
def test_a_node_that_was_stopped_accuses_nobody_when_it_goes_on(seed: int, node: str) -> None:
    """H4: SIGSTOP for 5 s. The others name it, it names nobody, and soon all is well."""
    network = Network(seed)
    network.pass_time(3 * INTERVAL_MS)
    network.paused = {node}
    network.pass_time(10 * INTERVAL_MS)
    others = [other for other in NODES if other != node]
    assert all(network.named(other) == {(node, peer) for peer in others} for other in others), f"seed {seed}"
    network.paused = set()
    for _ in network.run(4 * INTERVAL_MS):
        for other in NODES:
            assert all(sender == node for sender, _ in network.named(other)), f"seed {seed}, seen by {other}"
    network.check_exact()


def test_distances_are_the_networks() -> None:
    network = Network(1, delay_ms_max=4)
    network.pass_time(10_000)
    graph = network.graphs["n1"]
    for a, b in WAYS:
        rtt_us = graph.rtt_us(a, b)
        # The world moves in steps of 10 ms, and clocks that differ by up to 2 % hold a heartbeat for up to 500 ms.
        assert rtt_us is not None
        assert rtt_us <= 30_000
    assert graph.median_rtt_us("n2", NODES) is not None


@pytest.mark.parametrize("planted", ["cuts are never taken back", "every late heartbeat is a cut"])
def test_the_network_catches_a_planted_bug(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = proximity_module._Ear.take

    def broken(ear: proximity_module._Ear, *arguments: object) -> None:
        was_deaf = ear.deaf
        honest(ear, *arguments)  # type: ignore[arg-type]
        if planted == "cuts are never taken back":
            ear.deaf |= was_deaf
        else:
            ear.deaf |= ear.hearing.silence_ms > INTERVAL_MS

    monkeypatch.setattr(proximity_module._Ear, "take", broken)
    with pytest.raises(AssertionError, match="seed 7"):
        played(7, [{("n1", "n2"), ("n4", "n3")}, set()])
