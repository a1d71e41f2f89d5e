"""Channels beyond the limits that an operator set are refused at creation, one by one and within one request."""

from __future__ import annotations

from typing import Any

from tests.cluster.test_channel_admin import ANNA, Desk, admin_of
from tidelog.codecs.client_codec import CREATE
from tidelog.core.replication.options import ReplicationOptions


def desk_of(*nodes: str, **limits: int) -> Desk:
    desk = Desk(*nodes)
    desk.admin = admin_of(desk.node, limits=ReplicationOptions(**limits))
    return desk


def created(desk: Desk, *names: str, factor: int = 1) -> list[str]:
    """What came of each: its refusal's code, or nothing."""
    request = {"channels": [{"name": name, "config": {"factor": factor}} for name in names]}
    results: list[dict[str, Any]] = desk.ask(CREATE, request, ANNA)["results"]
    return [result["error"]["code"] if "error" in result else "" for result in results]


def test_a_channel_more_than_the_cluster_may_have_is_refused_in_words() -> None:
    desk = desk_of("n1", "n2", channels_max=1)
    assert created(desk, "a") == [""]
    refusal = desk.create("b")["error"]
    assert refusal["code"] == "catalog_full"
    assert "channels.max" in refusal["message"]
    assert created(desk, "a") == [""], "what exists is found, not counted again"
    desk.alter("delete", channel="a")
    assert created(desk, "b") == [""], "and a deleted one makes room"


def test_channels_of_one_request_count_against_the_limit_of_the_cluster() -> None:
    desk = desk_of("n1", channels_max=3)
    assert created(desk, "a") == [""]
    assert created(desk, "b", "c", "d", "e") == ["", "", "catalog_full", "catalog_full"]
    assert desk.node.catalog.channel_count == 3


def test_channels_of_one_request_count_against_the_limit_of_each_node() -> None:
    desk = desk_of("n1", "n2", replicas_per_node_max=2)
    assert created(desk, "a", "b", "c", "d", "e") == ["", "", "", "", "catalog_full"], "two replicas on each of two"
    wide = desk_of("n1", "n2", replicas_per_node_max=2)
    assert created(wide, "a", "b", "c", factor=2) == ["", "", "catalog_full"]
    assert created(wide, "d", factor=2) == ["catalog_full"]
