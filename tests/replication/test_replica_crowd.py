"""Work per turn is bounded however many channels there are, and none is left out (RRE3, RFR1). The bounds are set low
here, so that few channels are very many."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.replication.replica_kit import TO_METADATA, Kit, KitNode
from tidelog.cluster.metadata import channel_controller
from tidelog.cluster.replication import replicas
from tidelog.cluster.replication.orders import OpenLog
from tidelog.core.replication.messages import LeaderSilent, ReplicationMessage, SyncRequest

CHANNELS = 60
BOUND = 8


class CountingKit(Kit):
    """Notes the most that a node did in one turn."""

    def __init__(self, *names: str) -> None:
        self.most: Counter[str] = Counter()
        super().__init__(*names)

    def _pump(self, node: KitNode) -> bool:
        before = len(self.queue)
        moved = super()._pump(node)
        asked = Counter(to for to, _, message in list(self.queue)[before:] if isinstance(message, SyncRequest))
        self._note("requests", max(asked.values(), default=0))
        self._note("wakes", node.core.turn_wakes)
        self._note("asking", node.core.first_requests.asking)
        return moved

    def carry_out(self, node: KitNode, orders: list[object]) -> None:
        self._note("opens", sum(isinstance(order, OpenLog) for order in orders))
        super().carry_out(node, orders)

    def _note(self, what: str, count: int) -> None:
        self.most[what] = max(self.most[what], count)

    def are_whole(self) -> bool:
        return all(len(record.isr) == 3 and self.catalog.has_live_leader(record) for record in self.catalog.channels())


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> CountingKit:
    monkeypatch.setattr(replicas, "WAKES_PER_TURN", BOUND)
    monkeypatch.setattr(replicas, "REQUESTS_MAX", BOUND)
    monkeypatch.setattr(channel_controller, "DUE_PER_TURN", BOUND)
    kit = CountingKit("a", "b", "c")
    for number in range(CHANNELS):
        kit.create(f"channel-{number:03d}", leader="abc"[number % 3] if number % 2 else "a", factor=3)
    kit.run_until(kit.are_whole)
    kit.most.clear()
    return kit


def assert_bounded(kit: CountingKit) -> None:
    assert kit.most["wakes"] <= BOUND
    assert kit.most["opens"] <= BOUND
    assert kit.most["asking"] <= 2 * BOUND, "of two leaders' nodes"
    # What waited for its turn, what woke, whose record was read again, whose link is new.
    assert kit.most["requests"] <= 4 * BOUND


def test_a_node_that_restarts_opens_and_asks_a_few_at_a_time(kit: CountingKit) -> None:
    kit.stop("b")
    kit.most.clear()
    kit["b"].start()
    kit.run_until(kit.are_whole)
    assert_bounded(kit)
    assert kit.most["opens"] > 0
    kit.run_until(lambda: kit["b"].core.first_requests.apart == 0, ms=5_000)
    assert kit["b"].core.first_requests.asking == kit["b"].core.first_requests.waiting == 0


def test_all_nodes_restart_and_every_channel_is_whole_again(kit: CountingKit) -> None:
    for name in "abc":
        kit[name].kill()
    kit.most.clear()
    for name in "abc":
        kit[name].start()
    kit.run_until(kit.are_whole)
    assert_bounded(kit)


def test_lost_requests_give_their_places_back(kit: CountingKit) -> None:
    """Nothing says that a request was lost: it is repeated, and those who waited go first."""
    kit.stop("b")
    kit.most.clear()

    def is_lost(to: str, sender: str, message: ReplicationMessage) -> bool:
        return sender == "b" and isinstance(message, SyncRequest)

    kit.lose = is_lost
    kit["b"].start()
    kit.run(3_000)
    assert kit.most["asking"] <= 2 * BOUND, "of two leaders' nodes"
    assert kit["b"].core.first_requests.waiting > 0
    kit.lose = lambda to, sender, message: False
    kit.run_until(kit.are_whole, ms=20_000)
    kit.run_until(lambda: kit["b"].core.first_requests.apart == 0, ms=5_000)


def test_followers_that_wait_for_their_turn_still_depose_a_dead_leader(kit: CountingKit) -> None:
    """Who never asked has no answer to miss: it judges by the heartbeats of the leader's node (FW4)."""
    led = [record.channel_id for record in kit.catalog.channels() if record.leader == "a"]
    kit.isolate("a")
    for name in "bc":
        kit[name].core.link_up("a", kit.now_ms)
    took_ms = kit.run_until(lambda: all(kit.record(channel_id).leader != "a" for channel_id in led), ms=10_000)
    print(f"{len(led)} channels have other leaders after {took_ms} ms")
    assert took_ms < 5_000
    assert_bounded(kit)
    kit.heal()
    kit.run_until(kit.are_whole)


def test_a_dead_leader_of_queued_followers_is_reported_for_every_channel(kit: CountingKit) -> None:
    led = {record.channel_id for record in kit.catalog.channels() if record.leader == "a"}
    kit.controller_on = False
    kit["b"].kill()
    kit.isolate("a")
    kit["b"].start()
    assert len(led) > BOUND
    kit.run(6_000)
    reports = {message.channel_id for message in kit.delivered(LeaderSilent, to=TO_METADATA)}
    assert led <= reports
    counts = Counter(message.channel_id for message in kit.delivered(LeaderSilent, to=TO_METADATA))
    assert min(counts[channel_id] for channel_id in led) >= 2, "a report counts for a while only (WI2)"


def test_a_channel_that_is_deleted_or_moved_before_its_turn_is_not_opened(kit: CountingKit) -> None:
    kit.stop("b")
    kit["b"].start()
    core = kit["b"].core
    waiting = sorted(core._to_follow)
    assert len(waiting) == CHANNELS - BOUND
    kit.controller_on = False  # they would have it placed here again
    kit.alter(waiting[-1], replicas=("a", "c"))
    assert waiting[-1] not in core._to_follow
    kit.run_until(lambda: not core._to_follow)
    assert core.replica(waiting[-1]) is None
    kit.controller_on = True
    kit.run_until(lambda: all(len(kit.record(one).isr) == 3 for one in waiting[:-1]))


def test_the_controller_comes_to_every_channel_however_many_are_due(kit: CountingKit) -> None:
    controller = kit.controller
    controller._due.clear()
    seen: list[int] = []
    channel_ids = sorted(record.channel_id for record in kit.catalog.channels())
    for _ in range(-(-CHANNELS // BOUND)):
        controller.touched(channel_ids)  # all of them again, each time
        taken = controller._take_due()
        assert len(taken) == BOUND
        seen += taken
    assert set(seen) == set(channel_ids)


def test_requests_without_a_bound_are_caught(kit: CountingKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: everybody asks at once (RFR1). Where requests are answered at once, no bound is needed; where they
    are lost, it shows."""
    monkeypatch.setattr(replicas, "REQUESTS_MAX", CHANNELS * 1_000)  # of nodes that start from here on
    with pytest.raises(AssertionError):
        test_lost_requests_give_their_places_back(kit)
