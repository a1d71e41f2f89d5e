"""Consumer groups in the catalog: members, their generations, and their assignments (C15)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.core.catalog_kit import Cluster
from tests.core.golden_groups import GROUP_CHANGES
from tests.core.test_catalog_golden import CHANGES, SNAPSHOT_BODY, SNAPSHOT_HEADER
from tidelog.core.catalog import (
    BalanceGroup,
    Batch,
    Catalog,
    ChangeCoordinator,
    ChannelConfig,
    CreateChannel,
    DeleteChannel,
    DeleteGroup,
    ExpelMember,
    GroupRecord,
    JoinGroup,
    LeaveGroup,
    decode_change,
)
from tidelog.core.catalog.records import GROUP_MEMBERS_MAX
from tidelog.errors import (
    CatalogFull,
    InvalidChange,
    LogError,
    MemberExists,
    MemberFenced,
    NodeFenced,
    NothingToChange,
    StaleGroupEpoch,
    UnknownGroup,
    UnknownMember,
)

GROUPS_BYTES = (
    b'"groups":[{"balanced_index":46,"changed_index":46,"coordinator":"n3","coordinator_epoch":2,'
    b'"created_at_ms":1700000000010,"epoch":5,"group":"billing","members":[{"assigned":[1],"channels":["boats/*"],'
    b'"life":37,"member":"berta-1","owner":"client:billing","streams":["scratch"]},{"assigned":[],'
    b'"channels":["boats/*"],"life":46,"member":"cora-1","owner":"client:billing","streams":[]}]}]'
)


def joining(member: str = "a", *, group: str = "billing", **facts: Any) -> JoinGroup:
    first = JoinGroup(
        group=group,
        member=member,
        owner="client:billing",
        channels=("bus/*",),
        streams=(),
        again=True,
        coordinator="n1",
        at_ms=7,
    )
    return replace(first, **facts)


def with_channels(count: int) -> Cluster:
    cluster = Cluster("n1", "n2", "n3")
    for number in range(count):
        cluster.create("n1", name=f"bus/{number:03}", config=ChannelConfig(factor=1))
    return cluster


def group_of(cluster: Cluster, name: str = "billing") -> GroupRecord:
    group = cluster.catalog.group(name)
    assert group is not None
    return group


def life_of(cluster: Cluster, member: str) -> int:
    found = group_of(cluster).member(member)
    assert found is not None
    return found.life


def shares(cluster: Cluster, name: str = "billing") -> dict[str, list[int]]:
    return {member.member: list(member.assigned) for member in group_of(cluster, name).members}


def test_c15_every_change_of_the_members_raises_the_epoch_and_shares_out_anew() -> None:
    cluster = with_channels(5)
    cluster.take(joining("a"))
    assert (group_of(cluster).epoch, shares(cluster)) == (1, {"a": [1, 2, 3, 4, 5]})
    cluster.take(joining("b"))
    assert (group_of(cluster).epoch, shares(cluster)) == (2, {"a": [1, 2, 3], "b": [4, 5]})
    cluster.take(LeaveGroup(group="billing", member="a", life=life_of(cluster, "a")))
    assert (group_of(cluster).epoch, shares(cluster)) == (3, {"b": [1, 2, 3, 4, 5]})
    assert cluster.catalog.statistics().groups == 1


def test_c15_a_group_goes_with_its_last_member() -> None:
    cluster = with_channels(1)
    cluster.take(joining("a"))
    cluster.take(LeaveGroup(group="billing", member="a", life=None))
    assert cluster.catalog.groups() == []
    assert cluster.catalog.groups_coordinated_by("n1") == []
    assert isinstance(cluster.refused(LeaveGroup(group="billing", member="a", life=None)), UnknownGroup)
    cluster.take(joining("a"))
    assert group_of(cluster).epoch == 1


def test_c15_who_joins_again_fences_the_member_before_and_keeps_its_channels() -> None:
    cluster = with_channels(4)
    cluster.take(joining("a"))
    cluster.take(joining("b"))
    before, life = shares(cluster), life_of(cluster, "a")
    assert isinstance(cluster.refused(joining("a", again=False)), MemberExists)
    assert isinstance(cluster.refused(joining("a", owner="client:other")), MemberExists)
    cluster.take(joining("a"))
    assert shares(cluster) == before
    assert life_of(cluster, "a") == cluster.index > life
    assert isinstance(cluster.refused(LeaveGroup(group="billing", member="a", life=life)), MemberFenced)
    stale = ExpelMember(group="billing", member="a", life=life, coordinator_epoch=1)
    assert isinstance(cluster.refused(stale), MemberFenced)


def test_only_the_coordinator_of_the_current_epoch_expels() -> None:
    cluster = with_channels(2)
    cluster.take(joining("a"))
    cluster.take(joining("b"))
    cluster.take(ChangeCoordinator(group="billing", expected_coordinator_epoch=1, coordinator="n2"))
    record = group_of(cluster)
    assert (record.coordinator, record.coordinator_epoch, record.epoch) == ("n2", 2, 2)
    old = ExpelMember(group="billing", member="a", life=life_of(cluster, "a"), coordinator_epoch=1)
    assert isinstance(cluster.refused(old), StaleGroupEpoch)
    cluster.take(replace(old, coordinator_epoch=2))
    assert shares(cluster) == {"b": [1, 2]}
    assert isinstance(cluster.refused(replace(old, coordinator_epoch=2)), UnknownMember)


def test_a_coordinator_is_an_active_node() -> None:
    cluster = with_channels(1)
    cluster.fence("n2")
    assert isinstance(cluster.refused(joining("a", coordinator="n2")), NodeFenced)
    cluster.take(joining("a"))
    move = ChangeCoordinator(group="billing", expected_coordinator_epoch=1, coordinator="n2")
    assert isinstance(cluster.refused(move), NodeFenced)
    assert isinstance(cluster.refused(replace(move, coordinator="n1")), NothingToChange)
    assert isinstance(cluster.refused(replace(move, coordinator="n3", expected_coordinator_epoch=2)), StaleGroupEpoch)
    assert cluster.catalog.groups_needing_coordinator() == []
    cluster.fence("n1")
    assert [group.group for group in cluster.catalog.groups_needing_coordinator()] == ["billing"]
    cluster.take(replace(move, coordinator="n3"))
    assert cluster.catalog.groups_needing_coordinator() == []
    assert cluster.catalog.group_count("n3") == 1


def test_channels_that_come_and_go_are_shared_out_by_a_change_of_its_own() -> None:
    cluster = with_channels(3)
    cluster.take(joining("a"))
    cluster.take(joining("b"))
    nothing = BalanceGroup(group="billing", expected_epoch=2)
    assert isinstance(cluster.refused(nothing), NothingToChange)
    other = cluster.create("n1", name="elsewhere", config=ChannelConfig(factor=1))
    assert not cluster.catalog.needs_balance(group_of(cluster)), "nobody reads that one"
    new = cluster.create("n1", name="bus/new", config=ChannelConfig(factor=1))
    assert cluster.catalog.needs_balance(group_of(cluster))
    assert isinstance(cluster.refused(replace(nothing, expected_epoch=1)), StaleGroupEpoch)
    cluster.take(nothing)
    assert shares(cluster) == {"a": [1, 2], "b": [3, new]}
    cluster.take(DeleteChannel(channel_id=1, expected_channel_epoch=1, at_ms=9))
    cluster.take(DeleteChannel(channel_id=2, expected_channel_epoch=1, at_ms=9))
    cluster.take(BalanceGroup(group="billing", expected_epoch=3))
    assert sorted(map(len, shares(cluster).values())) == [1, 1]
    assert other not in [channel_id for share in shares(cluster).values() for channel_id in share]


def test_c14_a_channel_created_in_one_batch_with_a_join_is_noticed_with_and_without_a_snapshot() -> None:
    cluster = with_channels(1)
    created = CreateChannel(name="bus/x", config=ChannelConfig(factor=1), replicas=("n1",), leader="n1", at_ms=1)
    cluster.take(Batch(changes=(joining("a"), created)))
    twin = Catalog.restore(cluster.catalog.snapshot())
    change = BalanceGroup(group="billing", expected_epoch=1)
    assert cluster.catalog.check(change) is None
    assert twin.check(change) is None


def test_a_stream_is_a_channel_and_its_partitions_without_a_gap() -> None:
    cluster = Cluster("n1")
    one = ChannelConfig(factor=1)
    ids = [cluster.create("n1", name=name, config=one) for name in ("s", "s/1", "s/2", "s/4", "sx", "t/1")]
    cluster.take(joining("a", channels=(), streams=("s", "t")))
    assert shares(cluster) == {"a": ids[:3]}


def test_members_that_want_different_things_get_them() -> None:
    cluster = with_channels(6)
    lone = cluster.create("n1", name="lone", config=ChannelConfig(factor=1))
    cluster.take(joining("a"))
    cluster.take(joining("b", channels=("bus/000", "lone")))
    assert shares(cluster) == {"a": [2, 3, 4, 5, 6], "b": [1, lone]}


@pytest.mark.parametrize(
    "facts",
    [
        {"group": "-x"},
        {"group": "g" * 57},
        {"member": ""},
        {"member": "a b"},
        {"owner": "nobody"},
        {"channels": ()},
        {"channels": ("b", "a")},
        {"channels": ("a", "a")},
        {"channels": ("a*b",)},
        {"channels": tuple(f"c{number:03}" for number in range(257))},
        {"streams": ("a*",)},
    ],
    ids=str,
)
def test_what_cannot_be_joined_is_refused_in_words(facts: dict[str, Any]) -> None:
    cluster = with_channels(1)
    error: LogError = cluster.refused(joining(**{"member": "a", **facts}))
    assert isinstance(error, InvalidChange)
    assert error.problems


def test_a_group_has_a_limited_number_of_members() -> None:
    cluster = with_channels(1)
    for number in range(GROUP_MEMBERS_MAX):
        cluster.catalog.apply(cluster.index + 1, joining(f"m{number}"))
        cluster.index += 1
    assert isinstance(cluster.refused(joining("one-more")), CatalogFull)
    cluster.take(joining("m1"))


def test_a_deleted_group_is_gone_with_its_members() -> None:
    cluster = with_channels(1)
    cluster.take(joining("a"))
    assert cluster.take(DeleteGroup(group="billing")).touched.groups == ("billing",)
    assert isinstance(cluster.refused(DeleteGroup(group="billing")), UnknownGroup)


def test_version_1_changes_of_groups_lead_to_the_same_bytes_as_ever() -> None:
    catalog = Catalog.restore(SNAPSHOT_HEADER + SNAPSHOT_BODY)
    for index, line in enumerate(GROUP_CHANGES, start=len(CHANGES) + 1):
        assert catalog.apply(index, decode_change(line)).refusal is None
    snapshot = catalog.snapshot()
    assert GROUPS_BYTES in snapshot
    json.loads(b"{" + GROUPS_BYTES + b"}")
    again = Catalog.restore(snapshot)
    assert again.digest() == catalog.digest()
    assert again.groups() == catalog.groups()
    assert again.groups_coordinated_by("n3") == catalog.groups_coordinated_by("n3") != []


def test_a_catalog_without_groups_has_the_bytes_it_always_had() -> None:
    catalog = Catalog.restore(SNAPSHOT_HEADER + SNAPSHOT_BODY)
    assert b"groups" not in catalog.snapshot()
