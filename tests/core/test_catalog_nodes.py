"""Nodes in the catalog, rule by rule: admission, incarnations, fences, removal, and what a restart costs (R5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.catalog_kit import MEMORY, WEAK, Cluster, registration, three
from tidelog.core.catalog import (
    AdmitNode,
    Batch,
    ChannelConfig,
    Damage,
    FenceNode,
    FoundCluster,
    NodeState,
    RemoveNode,
    ShrinkReason,
    UpdateNode,
)
from tidelog.errors import (
    CatalogFull,
    InvalidChange,
    NodeExists,
    NodeFenced,
    NodeHolds,
    NothingToChange,
    StaleIncarnation,
    UnknownNode,
)

# --- coming and going ----------------------------------------------------------------------------------


def test_a_cluster_is_founded_once() -> None:
    cluster = Cluster()
    assert isinstance(cluster.refused(FoundCluster(cluster_id="not hex!")), InvalidChange)
    founding = (FoundCluster(cluster_id="c105fe40"), AdmitNode(node="n1"), registration("n1", 1))
    assert cluster.take(Batch(changes=founding)).touched.cluster
    assert cluster.catalog.cluster_id == "c105fe40"
    assert isinstance(cluster.refused(FoundCluster(cluster_id="c105fe40")), NothingToChange)


def test_a_node_is_admitted_before_it_registers() -> None:
    cluster = Cluster()
    assert isinstance(cluster.refused(registration("n1", 1)), UnknownNode)
    cluster.take(AdmitNode(node="n1"))
    assert cluster.node("n1").state is NodeState.EXPECTED
    cluster.take(registration("n1", 1))
    record = cluster.node("n1")
    assert (record.state, record.incarnation, record.host) == (NodeState.ACTIVE, 1, "host-n1")
    assert record.addresses == (("link", "n1.example:7400"),)
    assert cluster.catalog.version_read_by_all() == 1


@pytest.mark.parametrize("name", ["", "a/b", "-n", "x" * 64, "n\u00e9"])
def test_a_node_has_a_name_that_a_certificate_can_have(name: str) -> None:
    assert isinstance(Cluster().refused(AdmitNode(node=name)), InvalidChange)


def test_a_name_is_admitted_once_in_every_spelling() -> None:
    cluster = Cluster("n1")
    assert isinstance(cluster.refused(AdmitNode(node="n1")), NodeExists)
    error = cluster.refused(AdmitNode(node="N1"))
    assert isinstance(error, NodeExists)
    assert error.held == "n1"


@pytest.mark.parametrize("incarnation", [1, 2, 3])
def test_c10_an_incarnation_only_rises(incarnation: int) -> None:
    cluster = Cluster("n1")
    cluster.take(registration("n1", 3))
    assert isinstance(cluster.refused(registration("n1", incarnation)), StaleIncarnation)


def test_c10_a_fenced_node_comes_back_only_by_registering_higher() -> None:
    cluster = Cluster("n1")
    cluster.fence("n1")
    assert isinstance(cluster.refused(registration("n1", 1)), StaleIncarnation)
    cluster.take(registration("n1", 2))
    assert cluster.node("n1").state is NodeState.ACTIVE


def test_a_fence_is_for_the_incarnation_that_was_lost() -> None:
    cluster = Cluster("n1")
    late = FenceNode(node="n1", expected_incarnation=1)
    cluster.restart("n1")
    assert isinstance(cluster.refused(late), StaleIncarnation), "it has come back meanwhile"
    cluster.fence("n1")
    assert isinstance(cluster.refused(FenceNode(node="n1", expected_incarnation=2)), NodeFenced)
    assert isinstance(cluster.refused(FenceNode(node="n9", expected_incarnation=1)), UnknownNode)


def test_a_fence_edits_no_channel_and_leaves_what_it_led_without_a_live_leader() -> None:
    cluster, channel_id = three()
    other = cluster.create("n2", "n1", name="other")
    before = cluster.catalog.channels()
    cluster.fence("n1")
    assert cluster.catalog.channels() == before
    has_live_leader = cluster.catalog.has_live_leader
    assert [has_live_leader(cluster.channel(one)) for one in (channel_id, other)] == [False, True]


def test_r1_a_leader_that_registers_anew_needs_an_election() -> None:
    cluster, channel_id = three()
    cluster.restart("n1", clean=True)
    assert not cluster.catalog.has_live_leader(cluster.channel(channel_id))
    cluster.take(cluster.elect(channel_id, "n1"))
    channel = cluster.channel(channel_id)
    assert (channel.leader_epoch, channel.leader_incarnation) == (2, 2)
    assert cluster.catalog.has_live_leader(channel)


def test_facts_of_a_node_change_for_the_incarnation_they_are_about() -> None:
    cluster = Cluster("n1")
    cluster.take(UpdateNode(node="n1", expected_incarnation=1, tags=("scope:harbour",), capacity_bytes=5))
    record = cluster.node("n1")
    assert (record.tags, record.capacity_bytes, record.host) == (("scope:harbour",), 5, "host-n1")
    assert isinstance(cluster.refused(UpdateNode(node="n1", expected_incarnation=1, capacity_bytes=5)), NothingToChange)
    assert isinstance(cluster.refused(UpdateNode(node="n1", expected_incarnation=2, host="h")), StaleIncarnation)
    assert isinstance(cluster.refused(UpdateNode(node="n1", expected_incarnation=1, tags=("b", "a"))), InvalidChange)


@pytest.mark.parametrize(
    "wrong",
    [
        {"incarnation": 0, "known_incarnation": 0},
        {"known_incarnation": 2},
        {"disk_id": ""},
        {"disk_id": "XY" * 8},
        {"process_id": "short"},
        {"software": "\n"},
        {"host": "h" * 256},
        {"tags": ("b", "a")},
        {"tags": ("",)},
        {"tags": tuple(f"t{number:03}" for number in range(65))},
        {"addresses": (("link", "a"), ("link", "b"))},
        {"addresses": (("", "a"),)},
        {"addresses": tuple((f"d{number:02}", "a") for number in range(17))},
        {"damaged_channels": (2, 1)},
        {"damaged_channels": tuple(range(257))},
    ],
)
def test_c12_a_registration_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    cluster = Cluster()
    cluster.take(AdmitNode(node="n1"))
    error = cluster.refused(replace(registration("n1", 2), **wrong))
    assert isinstance(error, InvalidChange)


def test_c12_a_registration_at_every_limit_is_taken() -> None:
    cluster = Cluster()
    cluster.take(AdmitNode(node="n" * 63))
    change = registration(
        "n" * 63,
        2**64 - 1,
        disk_id="d" * 64,
        software="s" * 255,
        host="h" * 255,
        tags=tuple(f"t{number:02}".ljust(255, "t") for number in range(64)),
        addresses=tuple((f"d{number:02}".ljust(255, "d"), "a" * 255) for number in range(16)),
        damaged_channels=tuple(range(256)),
    )
    cluster.take(change)


def test_a_copied_data_folder_is_not_let_in_under_another_name() -> None:
    cluster = Cluster("n1", "n2")
    error = cluster.refused(registration("n2", 2, disk_id=cluster.node("n1").disk_id))
    assert isinstance(error, InvalidChange)
    assert "'n1'" in str(error)
    disk = cluster.node("n1").disk_id
    cluster.take(RemoveNode(node="n1"))
    cluster.take(registration("n2", 2, disk_id=disk))


def test_c12_there_are_no_more_nodes_than_the_limit() -> None:
    cluster = Cluster()
    for number in range(64):
        cluster.take(AdmitNode(node=f"n{number}"))
    assert isinstance(cluster.refused(AdmitNode(node="one-more")), CatalogFull)
    cluster.take(RemoveNode(node="n0"))
    cluster.take(AdmitNode(node="one-more"))


def test_c12_names_of_removed_nodes_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.node_rules.NODES_KNOWN_MAX", 2)
    cluster = Cluster("n1", "n2")
    cluster.take(RemoveNode(node="n1"))
    assert isinstance(cluster.refused(AdmitNode(node="n3")), CatalogFull)
    cluster.take(AdmitNode(node="n1"))


# --- removal -------------------------------------------------------------------------------------------


def test_c11_a_leader_is_not_removed_and_the_refusal_names_its_channels() -> None:
    cluster, _ = three()
    error = cluster.refused(RemoveNode(node="n1"))
    assert isinstance(error, NodeHolds)
    assert (error.channels, error.count) == (["spray"], 1)


def test_c11_the_last_live_holder_is_not_removed() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    cluster.fence("n1")
    assert isinstance(cluster.refused(RemoveNode(node="n2")), NodeHolds), "n1 may never come back"
    cluster.take(RemoveNode(node="n3"))


def test_c11_a_node_with_others_beside_it_is_removed_and_leaves_the_isr_by_a_change_of_its_own() -> None:
    cluster, channel_id = three()
    cluster.take(RemoveNode(node="n3"))
    assert isinstance(cluster.refused(RemoveNode(node="n3")), UnknownNode)
    cluster.take(cluster.shrink(channel_id, "n3", reason=ShrinkReason.FENCED))
    assert [record.node for record in cluster.catalog.nodes()] == ["n1", "n2"]


def test_c11_a_node_that_holds_nothing_is_removed_even_when_everybody_else_is_away() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    cluster.fence("n1", "n2")
    cluster.take(RemoveNode(node="n3"))


def test_c11_a_long_list_of_channels_is_cut() -> None:
    cluster = Cluster("n1")
    for number in range(25):
        cluster.create("n1", name=f"c{number:02}")
    error = cluster.refused(RemoveNode(node="n1"))
    assert isinstance(error, NodeHolds)
    assert (len(error.channels), error.count) == (20, 25)
    assert "and 5 more" in str(error)


def test_c11_force_removes_and_a_name_that_comes_back_is_believed_nothing() -> None:
    cluster, channel_id = three()
    cluster.take(RemoveNode(node="n1", force=True))
    assert cluster.node("n1").state is NodeState.REMOVED
    cluster.take(AdmitNode(node="n1"))
    assert isinstance(cluster.refused(registration("n1", 1)), StaleIncarnation), "C10: even then"
    cluster.take(registration("n1", 2, clean_incarnation=1))
    assert cluster.catalog.doubtful(channel_id) == ("n1",)


# --- what a restart costs (R5) ---------------------------------------------------------------------------


def doubtful_after(config: ChannelConfig, **facts: Any) -> bool:
    """Whether n2 is in doubt for a channel of this config after it registers anew with these facts."""
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=replace(config, factor=2))
    known = cluster.node("n2").incarnation
    facts = {
        "process_id": cluster.node("n2").process_id if facts.pop("same_process", False) else "aaaaaaaa",
        "clean_incarnation": known if facts.pop("clean", False) else None,
        "damaged_channels": (channel_id,) if facts.pop("damaged", False) else (),
        **facts,
    }
    cluster.take(registration("n2", known + 1, **facts))
    doubt = cluster.catalog.doubtful(channel_id)
    assert doubt in ((), ("n2",))
    return bool(doubt)


@pytest.mark.parametrize(
    ("facts", "synced", "weak", "memory"),
    [
        ({"same_process": True}, False, False, False),
        ({"same_process": True, "known_incarnation": 0}, False, False, False),
        ({"clean": True}, False, False, True),
        ({}, False, True, True),
        ({"verified": False}, True, True, True),
        ({"clean": True, "verified": False}, True, True, True),
        ({"same_process": True, "verified": False}, True, True, True),
        ({"clean": True, "disk_id": "bbbbbbbb"}, True, True, True),
        ({"same_process": True, "disk_id": "bbbbbbbb"}, True, True, True),
        ({"clean": True, "damaged": True}, True, True, True),
        ({"clean": True, "known_incarnation": 0}, True, True, True),
        ({"clean_incarnation": 0}, False, True, True),
    ],
    ids=[
        "only the session was lost",
        "the session was lost, asked again before the answer came",
        "clean stop",
        "crash",
        "crash, logs not whole",
        "clean stop, logs not whole",
        "same process, logs not whole",
        "another disk",
        "same process, another disk",
        "this log damaged",
        "an older copy of the disk",
        "the mark of an earlier run",
    ],
)
def test_r5_what_a_node_still_holds(facts: dict[str, Any], synced: bool, weak: bool, memory: bool) -> None:
    assert doubtful_after(ChannelConfig(), **facts) is synced
    assert doubtful_after(WEAK, **facts) is weak
    assert doubtful_after(MEMORY, **facts) is memory


def test_r5_a_crash_is_not_forgotten_by_a_clean_stop_after_it() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=WEAK)
    cluster.restart("n2")
    cluster.restart("n2", clean=True)
    assert cluster.catalog.doubtful(channel_id) == ("n2",)


def test_r5_a_doubt_ends_when_the_leader_confirms_this_incarnation() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=WEAK)
    cluster.restart("n2")
    cluster.take(cluster.expand(channel_id, "n2"))
    assert cluster.catalog.doubtful(channel_id) == ()
    cluster.restart("n2", clean=True)
    assert cluster.catalog.doubtful(channel_id) == ()
    cluster.restart("n2")
    assert cluster.catalog.doubtful(channel_id) == ("n2",)


def test_r5_damage_is_of_one_channel_and_is_forgotten_when_it_is_repaired() -> None:
    cluster = Cluster("n1", "n2")
    first = cluster.create("n1", "n2", name="first")
    second = cluster.create("n1", "n2", name="second")
    cluster.restart("n2", damaged_channels=(first, 99))
    assert cluster.catalog.doubtful(first) == ("n2",)
    assert cluster.catalog.doubtful(second) == ()
    cluster.restart("n2", damaged_channels=(second,))
    assert cluster.catalog.doubtful(first) == ("n2",), "still not repaired"
    assert cluster.node("n2").damaged == (
        Damage(channel_id=first, incarnation=2),
        Damage(channel_id=second, incarnation=3),
    ), "99 is no channel of its"
    cluster.take(cluster.expand(first, "n2"))
    assert cluster.catalog.doubtful(first) == ()
    cluster.restart("n2")
    assert cluster.node("n2").damaged == (Damage(channel_id=second, incarnation=3),)


def test_r5_damage_is_forgotten_with_the_incarnation_that_repaired_it_or_with_the_disk() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2")
    cluster.restart("n2", damaged_channels=(channel_id,))
    cluster.take(cluster.expand(channel_id, "n2"))
    assert cluster.catalog.doubtful(channel_id) == ()
    cluster.restart("n2")
    assert cluster.node("n2").damaged == ()
    cluster.restart("n2", damaged_channels=(channel_id,))
    cluster.restart("n2", disk_id="bbbbbbbb", damaged_channels=(channel_id,))
    assert cluster.node("n2").damaged == (), "all of it is in doubt already"
    assert cluster.catalog.doubtful(channel_id) == ("n2",)


def test_c12_a_disk_with_too_much_damage_is_in_doubt_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.node_rules.DAMAGED_MAX", 2)
    cluster = Cluster("n1", "n2")
    ids = [cluster.create("n1", "n2", name=name) for name in "abcd"]
    cluster.restart("n2", damaged_channels=tuple(ids[:2]))
    cluster.restart("n2", damaged_channels=tuple(ids[2:3]))
    assert cluster.node("n2").damaged == ()
    assert [cluster.catalog.doubtful(channel_id) for channel_id in ids] == [("n2",)] * 4
