"""A node's part in groups: whom it answers, whose cursors it lets be moved, and that it catches up first (NG1, NG2)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.core.catalog_kit import Cluster
from tests.core.test_catalog_groups import group_of, joining, life_of, with_channels
from tests.transports.links import refusal_of
from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.requests import GroupClaim
from tidelog.cluster.groups.coordinators import NodeGroups
from tidelog.cluster.local_channels import LocalChannels
from tidelog.core.catalog import AddGrant, Catalog, ChangeCoordinator, LeaveGroup
from tidelog.core.groups.coordinator import GroupOptions
from tidelog.errors import (
    AccessDenied,
    MemberFenced,
    NotAssigned,
    NotGroupCoordinator,
    UnknownGroup,
    UnknownMember,
)

ME = "client:billing"


class Behind:
    """A node whose catalog stands still until it passes a read barrier."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.barriers = 0
        self.node = "n1"
        self.catalog = Catalog()
        self.catch_up()

    def catch_up(self) -> None:
        self.catalog = Catalog.restore(self._cluster.catalog.snapshot())

    async def read_barrier(self) -> None:
        self.barriers += 1
        self.catch_up()

    def now_ms(self) -> int:
        return 0


def groups_of(node: Behind) -> NodeGroups:
    access = ClientAccess(catalog=lambda: node.catalog, now_ms=lambda: 0, insecure_dev=False)
    return NodeGroups(cast(LocalChannels, node), GroupOptions(), access=access, say=lambda *_, **__: None)


def claim(cluster: Cluster, member: str, **facts: Any) -> GroupClaim:
    found = {"group": "billing", "member": member, "life": life_of(cluster, member), "epoch": group_of(cluster).epoch}
    return GroupClaim(**{**found, **facts})


async def test_ng1_a_leader_that_is_behind_catches_up_before_it_believes_a_reader() -> None:
    cluster = with_channels(2)
    cluster.take(joining("a"))
    node = Behind(cluster)
    groups = groups_of(node)
    old = claim(cluster, "a")
    await groups.require_reader(old, 2, ME)
    cluster.take(joining("b"))  # takes channel 2; this node has not heard of it
    await groups.require_reader(old, 2, ME)  # the reader before may still commit: nobody has begun after it
    assert node.barriers == 0
    await groups.require_reader(claim(cluster, "b"), 2, ME)
    assert node.barriers == 1
    assert isinstance(await refusal_of(groups.require_reader(old, 2, ME)), NotAssigned)
    await groups.require_reader(old, 1, ME)
    assert node.barriers == 1, "what it keeps it may go on committing, with the epoch it knows"


async def test_ng1_who_is_expelled_fenced_or_somebody_else_moves_nothing() -> None:
    cluster = with_channels(1)
    cluster.take(joining("a"))
    groups, old = groups_of(Behind(cluster)), claim(cluster, "a")
    assert isinstance(await refusal_of(groups.require_reader(old, 1, "client:other")), AccessDenied)
    cluster.take(joining("a"))
    groups = groups_of(Behind(cluster))
    assert isinstance(await refusal_of(groups.require_reader(old, 1, ME)), MemberFenced)
    cluster.take(joining("b"))
    cluster.take(LeaveGroup(group="billing", member="a", life=None))
    groups = groups_of(Behind(cluster))
    assert isinstance(await refusal_of(groups.require_reader(old, 1, ME)), UnknownMember)
    cluster.take(LeaveGroup(group="billing", member="b", life=None))
    groups = groups_of(Behind(cluster))
    assert isinstance(await refusal_of(groups.require_reader(old, 1, ME)), UnknownMember)


async def test_ng2_who_joined_a_moment_ago_is_answered_and_heard() -> None:
    cluster = with_channels(2)
    node = Behind(cluster)
    groups = groups_of(node)
    cluster.take(joining("a"))
    answer = await groups.assignments(claim(cluster, "a", epoch=0), ME)
    assert answer == {
        "epoch": 1,
        "coordinator": "n1",
        "coordinator_epoch": 1,
        "channels": [[1, "bus/000"], [2, "bus/001"]],
    }
    assert node.barriers == 1
    assert (await groups.assignments(claim(cluster, "a"), ME))["channels"] is None, "that is no news"
    assert groups.coordinator.silence_ms(group_of(cluster), "a", 7) == 7
    cluster.take(ChangeCoordinator(group="billing", expected_coordinator_epoch=1, coordinator="n2"))
    node.catch_up()
    assert isinstance(await refusal_of(groups.assignments(claim(cluster, "a"), ME)), NotGroupCoordinator)


async def test_groups_are_shown_to_those_who_may_read_something_of_theirs() -> None:
    cluster = with_channels(2)
    cluster.take(joining("a"))
    cluster.take(AddGrant(principal="client:reader", scope="read:data", channels="bus/*"))
    groups = groups_of(Behind(cluster))
    assert (await groups.ask({"op": "list"}, "client:nobody"))["groups"] == []
    (listed,) = (await groups.ask({"op": "list"}, "client:reader"))["groups"]
    assert (listed["group"], listed["members"], listed["channels"]) == ("billing", 1, 2)
    asked = {"op": "describe", "group": "billing"}
    assert isinstance(await refusal_of(groups.ask(asked, "client:nobody")), AccessDenied)
    described = (await groups.ask(asked, "operator:anna"))["group"]
    assert described["members"][0]["channels"] == [[1, "bus/000"], [2, "bus/001"]]
    with pytest.raises(UnknownGroup):
        await groups.ask({"op": "describe", "group": "x"}, "operator:anna")
