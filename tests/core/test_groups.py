"""What coordinators and the metadata leader decide about groups, by the clock of the test."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.core.catalog_kit import Cluster
from tests.core.test_catalog_groups import group_of, joining, shares, with_channels
from tidelog.core.catalog import (
    BalanceGroup,
    Change,
    ChangeCoordinator,
    ChannelConfig,
    DeleteChannel,
    ExpelMember,
    GroupRecord,
    LeaveGroup,
    UpdateNode,
)
from tidelog.core.groups.controller import AGAIN_MS, SCAN_MS, CoordinatorReports, GroupController, choose_coordinator
from tidelog.core.groups.coordinator import GroupCoordinator, GroupOptions
from tidelog.errors import CatalogFull, InvalidConfig, NotLeader

OPTIONS = GroupOptions(consumer_timeout_ms=10_000)


class Coordinator:
    """A coordinator that is woken every tick, as it must be."""

    def __init__(self) -> None:
        self.core = GroupCoordinator(OPTIONS)
        self.now_ms = 1_000_000

    def pass_time(self, elapsed_ms: int, *groups: GroupRecord) -> list[ExpelMember]:
        """Whom it wants expelled at the end of it."""
        end_ms = self.now_ms + elapsed_ms
        wanted: list[ExpelMember] = []
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + OPTIONS.tick_ms)
            self.core.follow(groups, self.now_ms)
            wanted = self.core.wake(self.now_ms)
        return wanted


def two_members() -> GroupRecord:
    cluster = with_channels(2)
    cluster.take(joining("a"))
    cluster.take(joining("b"))
    return group_of(cluster)


def test_gc1_a_member_is_expelled_after_its_whole_timeout_and_not_before() -> None:
    group, coordinator = two_members(), Coordinator()
    assert coordinator.pass_time(5_000, group) == []
    coordinator.core.heard(group, "a", coordinator.now_ms)
    assert [change.member for change in coordinator.pass_time(6_000, group)] == ["b"]
    assert coordinator.core.silence_ms(group, "a", coordinator.now_ms) == 6_000
    assert [change.member for change in coordinator.pass_time(5_000, group)] == ["a", "b"]
    (first, _) = coordinator.core.wake(coordinator.now_ms)
    member = group.member("a")
    assert member is not None
    assert first == ExpelMember(group="billing", member="a", life=member.life, coordinator_epoch=1)


def test_gc2_a_new_coordinator_a_new_member_and_a_new_generation_begin_afresh() -> None:
    group, coordinator = two_members(), Coordinator()
    coordinator.pass_time(9_000, group)
    moved = replace(group, coordinator_epoch=2)
    assert coordinator.pass_time(9_000, moved) == []
    again = replace(moved, members=tuple(replace(member, life=member.life + 100) for member in moved.members))
    assert coordinator.pass_time(9_000, again) == []
    assert coordinator.pass_time(9_000) == []
    assert coordinator.pass_time(9_000, again) == [], "it was away in between"
    assert coordinator.core.silence_ms(group, "nobody", 0) is None


def test_gc3_a_coordinator_that_slept_expels_nobody() -> None:
    group, coordinator = two_members(), Coordinator()
    coordinator.pass_time(1_000, group)
    coordinator.now_ms += 60_000  # the process was stopped, and its members' questions with it
    assert coordinator.pass_time(9_000, group) == []
    assert len(coordinator.pass_time(1_500, group)) == 2


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        GroupOptions(consumer_timeout_ms=10)


def test_go1_more_than_half_of_the_members_replace_a_coordinator() -> None:
    cluster = with_channels(1)
    for member in "abcd":
        cluster.take(joining(member))
    group, reports = group_of(cluster), CoordinatorReports(window_ms=1_000)
    assert not reports.report(group, "a", 0)
    assert not reports.report(group, "a", 10)
    assert not reports.report(group, "b", 20)
    assert reports.report(group, "c", 30)
    assert not reports.report(group, "d", 5_000), "the others have fallen silent about it"
    later = replace(group, coordinator_epoch=2)
    assert not reports.report(later, "a", 5_010), "that was about the one before"
    reports.forget(cluster.catalog)
    (alone,) = group.members[:1]
    assert reports.report(replace(group, members=(alone,)), "a", 0)


def test_go2_the_least_busy_node_coordinates_and_one_with_the_gateway_for_streams() -> None:
    cluster = with_channels(1)
    assert choose_coordinator(cluster.catalog, for_streams=False) == "n1"
    cluster.take(joining("a"))
    assert choose_coordinator(cluster.catalog, for_streams=False) == "n2"
    assert choose_coordinator(cluster.catalog, for_streams=False, other_than="n2") == "n3"
    addresses = (("liftbridge", "n3:9292"), ("link", "n3:7400"))
    cluster.take(UpdateNode(node="n3", expected_incarnation=1, addresses=addresses))
    assert choose_coordinator(cluster.catalog, for_streams=True) == "n3"
    cluster.fence("n3")
    assert choose_coordinator(cluster.catalog, for_streams=True) == "n2"
    cluster.fence("n1", "n2")
    assert choose_coordinator(cluster.catalog, for_streams=False) is None


class ControllerWorld:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.controller = GroupController(say=lambda *_, **__: None)
        self.now_ms = 0
        self.refuses = False

    def scan(self, *, applies: bool = True) -> list[Change]:
        """What it proposes at the next scan."""
        self.now_ms += SCAN_MS
        proposed: list[Change] = []

        def propose(change: Change) -> None:
            if self.refuses:
                raise NotLeader(leader=None)
            proposed.append(change)

        self.controller.tend(self.cluster.catalog, propose, self.now_ms)
        if applies:
            for change in proposed:
                self.cluster.take(change)
        return proposed


def test_go1_a_fenced_coordinator_is_replaced() -> None:
    cluster = with_channels(1)
    controller = ControllerWorld(cluster)
    assert controller.scan() == []
    cluster.take(joining("a"))
    assert controller.scan() == []
    cluster.fence("n1")
    (change,) = controller.scan(applies=False)
    assert change == ChangeCoordinator(group="billing", expected_coordinator_epoch=1, coordinator="n2")
    assert controller.scan() == [], "it is on its way"
    controller.now_ms += AGAIN_MS
    controller.scan()
    assert group_of(cluster).coordinator == "n2"
    assert controller.scan() == []


def test_go1_what_could_not_be_proposed_is_tried_again() -> None:
    cluster = with_channels(1)
    cluster.take(joining("a"))
    cluster.fence("n1")
    controller = ControllerWorld(cluster)
    controller.refuses = True
    controller.scan()
    controller.refuses = False
    assert len(controller.scan()) == 1
    controller.controller.step_down()
    assert controller.scan() == []


def test_go3_channels_that_come_are_shared_out_within_a_scan() -> None:
    cluster = with_channels(1)
    cluster.take(joining("a"))
    controller = ControllerWorld(cluster)
    assert controller.scan() == []
    cluster.create("n1", name="elsewhere", config=ChannelConfig(factor=1))
    assert controller.scan() == []
    cluster.create("n1", name="bus/x", config=ChannelConfig(factor=1))
    cluster.create("n1", name="bus/y", config=ChannelConfig(factor=1))
    assert controller.scan() == [BalanceGroup(group="billing", expected_epoch=1)]
    assert controller.scan() == []
    assert len(shares(cluster)["a"]) == 3


def test_go2_a_group_that_comes_to_read_streams_is_moved_to_where_its_clients_can_reach_it() -> None:
    cluster = with_channels(1)
    controller = ControllerWorld(cluster)
    cluster.take(joining("a"))
    cluster.take(joining("b", channels=(), streams=("bus/000",)))
    assert controller.scan() == [], "no node has the gateway"
    addresses = (("liftbridge", "n3:9292"), ("link", "n3:7400"))
    cluster.take(UpdateNode(node="n3", expected_incarnation=1, addresses=addresses))
    controller.scan()
    assert group_of(cluster).coordinator == "n3"
    assert controller.scan() == []


def test_go3_more_channels_than_a_group_may_read_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.group_rules.GROUP_CHANNELS_MAX", 2)
    cluster = with_channels(2)
    cluster.take(joining("a"))
    cluster.take(joining("b"))
    told: list[str] = []
    controller = ControllerWorld(cluster)
    controller.controller = GroupController(say=lambda what, **facts: told.append(f"{what} {facts['reason']}"))
    cluster.create("n1", name="bus/x", config=ChannelConfig(factor=1))
    assert controller.scan() == controller.scan() == []
    assert len(told) == 1
    assert "channels of one group" in told[0]
    assert isinstance(cluster.refused(joining("c")), CatalogFull)
    cluster.take(LeaveGroup(group="billing", member="a", life=None))
    assert shares(cluster) == {"b": [1, 2]}, "who leaves is never refused, and what was read goes on being read"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_channel_has_one_reader_in_the_end(seed: int) -> None:
    """Joining, leaving, expelling, fencing and channels that come and go, in any order; then calm."""
    dice = random.Random(seed)
    cluster = Cluster("n1", "n2", "n3")
    controller = ControllerWorld(cluster)
    made = 0
    for _ in range(120):
        catalog, group = cluster.catalog, cluster.catalog.group("billing")
        match dice.randrange(7):
            case 0 | 1:
                active = choose_coordinator(catalog, for_streams=False)
                cluster.apply(joining(dice.choice("abcdef"), coordinator=active or "n1"))
            case 2 if group is not None:
                cluster.take(LeaveGroup(group="billing", member=dice.choice(group.members).member, life=None))
            case 3 if group is not None:
                member = dice.choice(group.members)
                facts: dict[str, Any] = {"life": member.life - dice.randrange(2)}
                facts["coordinator_epoch"] = group.coordinator_epoch - dice.randrange(2)
                cluster.apply(ExpelMember(group="billing", member=member.member, **facts))
            case 4:
                node = dice.choice(["n1", "n2", "n3"])
                if len([record for record in catalog.nodes() if record.state.value == "active"]) > 1:
                    if cluster.node(node).state.value == "active":
                        cluster.fence(node)
                    else:
                        cluster.restart(node)
            case 5:
                where = choose_coordinator(catalog, for_streams=False)
                assert where is not None
                made += 1
                name = dice.choice(["bus", "other"])
                cluster.create(where, name=f"{name}/{made}", config=ChannelConfig(factor=1))
            case _:
                channels = catalog.channels()
                if channels:
                    gone = dice.choice(channels)
                    epoch = gone.channel_epoch
                    cluster.take(DeleteChannel(channel_id=gone.channel_id, expected_channel_epoch=epoch, at_ms=1))
        if dice.random() < 0.3:
            controller.scan()
    controller.now_ms += AGAIN_MS
    controller.scan()
    controller.now_ms += AGAIN_MS
    controller.scan()
    group = cluster.catalog.group("billing")
    if group is None:
        return
    assert cluster.node(group.coordinator).state.value == "active", f"seed {seed}"
    wanted = [channel.channel_id for channel in cluster.catalog.channels() if channel.name.startswith("bus/")]
    found = shares(cluster)
    assert sorted(channel_id for share in found.values() for channel_id in share) == wanted, f"seed {seed}"
    assert max(map(len, found.values())) - min(map(len, found.values())) <= 1, f"seed {seed}"
