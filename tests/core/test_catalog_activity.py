"""What the catalog notes for the activity stream: in order, until it is published, and only where somebody asks."""

from __future__ import annotations

import pytest

from tests.core.catalog_kit import Cluster
from tests.core.golden_groups import ACTIVITY_CHANGES
from tests.core.test_catalog_golden import CHANGES, SNAPSHOT_BODY, SNAPSHOT_HEADER
from tests.core.test_catalog_groups import group_of, joining
from tidelog.core.catalog import (
    ACTIVITY_CHANNEL,
    Batch,
    Catalog,
    ChannelConfig,
    CreateChannel,
    DeleteChannel,
    ExpelMember,
    ForgetActivity,
    Happening,
    LeaveGroup,
    PauseChannel,
    ResumeChannel,
    SetReadonly,
    decode_change,
)
from tidelog.core.catalog import records as catalog_records
from tidelog.errors import NothingToChange

ONE = ChannelConfig(factor=1)


def created(name: str) -> CreateChannel:
    return CreateChannel(name=name, config=ONE, replicas=("n1",), leader="n1", at_ms=1)


def told(cluster: Cluster) -> list[tuple[Happening, str, str]]:
    return [(event.happening, event.name, event.member) for event in cluster.catalog.activity(1_000)]


def test_nothing_is_noted_without_a_channel_to_publish_to() -> None:
    cluster = Cluster("n1")
    cluster.take(created("bus"))
    cluster.take(joining("a"))
    assert told(cluster) == []


def test_everything_is_noted_in_order_and_forgotten_once_published() -> None:
    cluster = Cluster("n1")
    cluster.take(created(ACTIVITY_CHANNEL))
    assert told(cluster) == [], "its own beginning is not"
    cluster.take(Batch(changes=(created("bus/1"), created("bus/2"))))
    channel = cluster.catalog.channel("bus/1")
    assert channel is not None
    key = {"channel_id": channel.channel_id}
    cluster.take(PauseChannel(**key, expected_channel_epoch=1))
    cluster.refused(PauseChannel(**key, expected_channel_epoch=1))
    cluster.take(ResumeChannel(**key, expected_channel_epoch=2))
    cluster.take(SetReadonly(**key, expected_channel_epoch=3, readonly=True))
    cluster.take(SetReadonly(**key, expected_channel_epoch=4, readonly=False))
    cluster.take(joining("a"))
    cluster.take(joining("b"))
    member = group_of(cluster).member("a")
    assert member is not None
    cluster.take(ExpelMember(group="billing", member="a", life=member.life, coordinator_epoch=1))
    cluster.take(LeaveGroup(group="billing", member="b", life=None))
    cluster.take(DeleteChannel(**key, expected_channel_epoch=5, at_ms=1))
    assert told(cluster) == [
        (Happening.CREATED, "bus/1", ""),
        (Happening.CREATED, "bus/2", ""),
        (Happening.PAUSED, "bus/1", ""),
        (Happening.RESUMED, "bus/1", ""),
        (Happening.READONLY, "bus/1", ""),
        (Happening.WRITABLE, "bus/1", ""),
        (Happening.JOINED, "billing", "a"),
        (Happening.JOINED, "billing", "b"),
        (Happening.EXPELLED, "billing", "a"),
        (Happening.LEFT, "billing", "b"),
        (Happening.DELETED, "bus/1", ""),
    ]
    events = cluster.catalog.activity(3)
    assert [(event.index - events[0].index, event.position) for event in events] == [(0, 0), (0, 1), (1, 0)]
    assert Catalog.restore(cluster.catalog.snapshot()).activity(1_000) == cluster.catalog.activity(1_000)
    cluster.take(ForgetActivity(upto_index=events[-1].index))
    assert len(told(cluster)) == 8
    assert isinstance(cluster.refused(ForgetActivity(upto_index=events[-1].index)), NothingToChange)
    activity = cluster.catalog.channel(ACTIVITY_CHANNEL)
    assert activity is not None
    cluster.take(DeleteChannel(channel_id=activity.channel_id, expected_channel_epoch=1, at_ms=1))
    assert told(cluster) == [], "with the channel everything goes that nobody will publish"


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.activity_rules.EVENTS_MAX", 3)
    assert catalog_records.EVENTS_MAX > 3
    cluster = Cluster("n1")
    cluster.take(created(ACTIVITY_CHANNEL))
    for number in range(5):
        cluster.take(created(f"bus/{number}"))
    assert [name for _, name, _ in told(cluster)] == ["bus/2", "bus/3", "bus/4"]


def test_version_1_changes_of_activity_lead_to_the_same_bytes_as_ever() -> None:
    catalog = Catalog.restore(SNAPSHOT_HEADER + SNAPSHOT_BODY)
    for index, line in enumerate(ACTIVITY_CHANGES, start=len(CHANGES) + 1):
        assert catalog.apply(index, decode_change(line)).refusal is None
    expected = (
        b'"activity_events":[{"happening":"joined","index":38,"labels":[],"member":"m","name":"g",'
        b'"partitions":0,"position":0,"reads":["boats/*"]}]'
    )
    assert expected in catalog.snapshot()
