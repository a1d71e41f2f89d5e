"""Administration of groups where the metadata is led: who may, what is answered, and the requests as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.catalog_kit import Cluster
from tests.core.test_catalog_groups import group_of, with_channels
from tests.transports.links import refusal_of
from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.requests import (
    GroupClaim,
    GroupOperation,
    GroupQuestion,
    read_cursor,
    read_group,
    read_group_ask,
)
from tidelog.cluster.groups.admin import GroupAdmin
from tidelog.codecs.client_codec import decode_json, encode_json
from tidelog.core.catalog import AddGrant, Catalog, Change
from tidelog.core.groups.coordinator import GroupOptions
from tidelog.errors import AccessDenied, BadMessage, NotGroupCoordinator, StaleGroupEpoch, UnknownGroup, UnknownMember

ME = "client:billing"


class Leader:
    """A node that leads the metadata, and commits at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clock_ms = 0

    @property
    def catalog(self) -> Catalog:
        return self.cluster.catalog

    def now_ms(self) -> int:
        return self.clock_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    async def propose(self, change: Change, *, timeout_ms: int) -> int:
        applied = self.cluster.apply(change)
        applied.raise_refusal()
        return applied.index


def admin_of(cluster: Cluster) -> tuple[Leader, Callable[..., Any]]:
    leader = Leader(cluster)
    access = ClientAccess(catalog=lambda: cluster.catalog, now_ms=lambda: 0, insecure_dev=False)
    # The part of `LocalChannels` that groups need.
    admin = GroupAdmin(leader, access=access, options=GroupOptions())  # type: ignore[arg-type]

    async def ask(principal: str = ME, **request: Any) -> dict[str, Any]:
        plain = decode_json(memoryview(encode_json(request)))
        return await admin.carry_out(plain, principal)

    return leader, ask


def joining(member: str = "m", **more: Any) -> dict[str, Any]:
    return {"op": "join", "group": "g", "member": member, "channels": ["bus/*"], "streams": [], "again": True, **more}


def allow(cluster: Cluster, scope: str, channels: str, principal: str = ME) -> None:
    cluster.take(AddGrant(principal=principal, scope=scope, channels=channels))


async def test_gm1_who_joins_may_read_all_that_it_names() -> None:
    cluster = with_channels(3)
    _, ask = admin_of(cluster)
    assert isinstance(await refusal_of(ask(**joining())), AccessDenied)
    allow(cluster, "read:data", "bus/000")
    assert isinstance(await refusal_of(ask(**joining())), AccessDenied), "one channel is not all of the pattern"
    assert (await ask(**joining(channels=["bus/000"])))["epoch"] == 1
    assert isinstance(await refusal_of(ask(**joining(channels=["bus/000", "x"]))), AccessDenied)
    assert isinstance(await refusal_of(ask(**joining(channels=[], streams=["x"]))), AccessDenied)
    allow(cluster, "read:data", "bus/*")
    answer = await ask(**joining())
    assert answer == {
        "group": "g",
        "member": "m",
        "life": cluster.index,
        "epoch": 2,
        "coordinator": "n1",
        "coordinator_epoch": 1,
        "consumer_timeout_ms": 15_000,
        "coordinator_timeout_ms": 15_000,
        "index": cluster.index,
    }


async def test_gm2_only_the_owner_leaves_and_reports_and_only_who_may_administer_deletes() -> None:
    cluster = with_channels(3)
    allow(cluster, "read:data", "bus/*")
    _, ask = admin_of(cluster)
    await ask(**joining())
    leaving = {"op": "leave", "group": "g", "member": "m", "life": None}
    report = {"op": "report", "group": "g", "member": "m", "coordinator": "n1", "epoch": 1}
    assert isinstance(await refusal_of(ask("client:other", **leaving)), AccessDenied)
    assert isinstance(await refusal_of(ask("client:other", **report)), AccessDenied)
    assert isinstance(await refusal_of(ask(op="delete", group="g")), AccessDenied)
    assert isinstance(await refusal_of(ask(**{**leaving, "member": "x"})), UnknownMember)
    assert isinstance(await refusal_of(ask(**{**report, "coordinator": "n2"})), NotGroupCoordinator)
    assert isinstance(await refusal_of(ask(**{**report, "epoch": 7})), StaleGroupEpoch)
    assert (await ask(**report))["moved"], "it is all of the members"
    assert group_of(cluster, "g").coordinator == "n2"
    allow(cluster, "admin:channels", "bus/*")
    await ask(op="delete", group="g")
    assert isinstance(await refusal_of(ask(op="delete", group="g")), UnknownGroup)
    await ask("operator:anna", **joining())
    await ask("operator:anna", **leaving)
    assert cluster.catalog.groups() == []


GOLDEN = [
    b'{"op":"join","group":"g","member":"m","channels":["bus/*"],"streams":[],"again":true}',
    b'{"op":"leave","group":"g","member":"m","life":7}',
    b'{"op":"report","group":"g","member":"m","coordinator":"n1","epoch":3}',
    b'{"op":"delete","group":"g"}',
    b'{"op":"assignments","as":{"group":"g","member":"m","life":7,"epoch":3}}',
    b'{"op":"describe","group":"g"}',
    b'{"op":"list"}',
    b'{"channel_id":4,"op":"set","name":"group.g","offset":9,"as":{"group":"g","member":"m","life":7,"epoch":3}}',
]


def test_requests_are_read_from_the_bytes_they_always_had() -> None:
    join, leave, report, delete, assignments, describe, listing, cursor = (
        decode_json(memoryview(line)) for line in GOLDEN
    )
    joined = read_group(join)
    assert (joined.operation, joined.channels, joined.again) == (GroupOperation.JOIN, ("bus/*",), True)
    assert read_group(leave).life == 7
    assert (read_group(report).coordinator, read_group(report).epoch) == ("n1", 3)
    assert read_group(delete).operation is GroupOperation.DELETE
    claim = GroupClaim(group="g", member="m", life=7, epoch=3)
    assert read_group_ask(assignments).claim == claim
    assert read_group_ask(describe).group == "g"
    assert read_group_ask(listing).question is GroupQuestion.LIST
    assert read_cursor(cursor).claim == claim
    for line in GOLDEN:
        assert b"".join([encode_json(decode_json(memoryview(line)))]) == line


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"op": "join"},
        {"op": "dance", "group": "g"},
        {"op": "join", "group": "g", "member": "m", "channels": "bus"},
        {"op": "join", "group": "g", "member": "m", "channels": ["x"] * 257},
        {"op": "join", "group": "g", "member": 7, "channels": []},
        {"op": "join", "group": "g", "member": "m", "channels": [], "again": 1},
        {"op": "join", "group": "g", "member": "m", "channels": [], "life": 1},
        {"op": "leave", "group": "g", "member": "m", "life": -1},
        {"op": "report", "group": "g", "member": "m", "coordinator": "n1"},
        {"op": "delete", "group": "g", "member": "m"},
    ],
    ids=str,
)
def test_requests_that_cannot_be_read_are_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        read_group(plain)


@pytest.mark.parametrize(
    "plain",
    [
        {"op": "assignments"},
        {"op": "assignments", "as": {"group": "g"}},
        {"op": "assignments", "as": {"group": "g", "member": "m", "life": 1, "epoch": 1, "more": 1}},
        {"op": "assignments", "as": None},
        {"op": "list", "group": "g"},
        {"op": "describe"},
    ],
    ids=str,
)
def test_questions_that_cannot_be_read_are_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        read_group_ask(plain)
