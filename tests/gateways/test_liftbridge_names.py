"""How streams, partitions, subjects and cursors are named: nothing here needs a node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.nats_subjects import attached_subject
from tidelog.codecs.stream_names import PARTITIONS_MAX, StreamPlace, channel_of, place_of
from tidelog.core.catalog.records import SIMPLE_NAME
from tidelog.errors import InvalidConfig
from tidelog.gateways.liftbridge.names import (
    CREATION,
    PARTITION,
    StreamFacts,
    WantedStream,
    configs_of,
    cursor_name,
    facts_of,
    name_problem,
)

STREAM_NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._:/-]{0,150}", fullmatch=True)


def configs(nodes: int = 3, **wanted: Any) -> Any:
    return configs_of(WantedStream(**{"name": "foo", "subject": "foo", **wanted}), nodes=nodes, creation="0123")


def problems(nodes: int = 3, **wanted: Any) -> str:
    with pytest.raises(InvalidConfig) as refused:
        configs(nodes, **wanted)
    return str(refused.value)


@given(STREAM_NAMES, st.integers(0, PARTITIONS_MAX - 1))
def test_a_partition_has_one_channel_and_a_channel_one_partition(stream: str, partition: int) -> None:
    if name_problem(stream) is None:
        assert place_of(channel_of(stream, partition)) == StreamPlace(stream, partition)


def test_partition_0_is_the_channel_of_the_streams_name() -> None:
    assert [channel_of("foo", number) for number in range(3)] == ["foo", "foo/1", "foo/2"]
    assert place_of("foo/bar") == StreamPlace("foo/bar", 0)
    assert place_of("foo/0") == StreamPlace("foo/0", 0), "no partition is written so"
    assert place_of("foo/01") == StreamPlace("foo/01", 0)


@pytest.mark.parametrize("name", ["", "foo/1", "foo/007", "__activity", "__cursors", "a b", "-x", "x" * 197, "ü"])
def test_names_that_no_stream_may_have(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", ["foo", "foo/bar", "a.b-c_d:e", "1", "_x", "x" * 196])
def test_names_that_a_stream_may_have(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("subject", ["", "a b", "a..b", ".a", "a.", "a.*", ">", "a\tb", "x" * 256, "$SYS.a"])
def test_subjects_that_are_none(subject: str) -> None:
    assert "subject" in problems(subject=subject)


def test_a_subject_must_leave_room_for_the_number_of_a_partition() -> None:
    configs(subject="x" * 255)
    assert "longer than 255" in problems(subject="x" * 255, partitions=2)


@pytest.mark.parametrize("group", ["a b", "a..b", "x" * 129])
def test_groups_that_are_none(group: str) -> None:
    assert "group" in problems(group=group)


def test_the_subject_of_a_further_partition_ends_in_its_number() -> None:
    assert [attached_subject("a.b", number) for number in range(3)] == ["a.b", "a.b.1", "a.b.2"]


def test_a_stream_keeps_its_subject_and_group_with_the_channel() -> None:
    (config,) = configs(subject="other", group="g", checks_offsets=True)
    assert facts_of("foo", config) == StreamFacts("other", "g", True)
    assert (config.subject, config.queue_group) == ("other", "g")


def test_every_partition_is_fed_from_its_own_subject_and_says_that_it_is_one() -> None:
    found = configs(subject="a.b", partitions=3)
    assert [config.subject for config in found] == ["a.b", "a.b.1", "a.b.2"]
    assert [dict(config.placement_metadata).get(PARTITION) for config in found] == [None, "1", "2"]


def test_a_channel_that_no_stream_was_created_for_has_its_name_as_subject() -> None:
    from tidelog.core.catalog import ChannelConfig

    assert facts_of("bus", ChannelConfig()) == StreamFacts("bus", "", False)


def test_only_partition_0_says_which_request_made_it() -> None:
    first, *others = configs(partitions=3)
    assert CREATION in dict(first.placement_metadata)
    assert len(others) == 2
    assert all(CREATION not in dict(config.placement_metadata) for config in others)


@pytest.mark.parametrize(("asked", "factor"), [(0, 1), (1, 1), (2, 2), (3, 3), (-1, 3)])
def test_a_replication_factor_of_0_is_1_and_of_minus_1_all_nodes(asked: int, factor: int) -> None:
    (config,) = configs(replication_factor=asked)
    assert config.factor == factor


@pytest.mark.parametrize("asked", [4, -2, 100])
def test_a_replication_factor_that_does_not_fit_is_refused(asked: int) -> None:
    assert "replication factor" in problems(replication_factor=asked)


def test_limits_of_0_are_none() -> None:
    (config,) = configs(retention_bytes=0, retention_messages=7, retention_age_ms=60_000)
    limits = config.retention
    assert (limits.max_bytes, limits.max_events, limits.max_age_ms) == (None, 7, 60_000)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    said = problems(name="x/1", subject="a..b", partitions=-1, replication_factor=9, compacts=True, encrypts=True)
    for word in ("x/1", "a..b", "partitions", "replication factor", "compaction", "encryption"):
        assert word in said
    assert "min_isr" in problems(min_isr=2)
    assert "retention" in problems(retention_bytes=-1)


@given(st.text(min_size=1, max_size=200))
def test_every_cursor_has_a_name_and_plain_ones_keep_theirs(cursor: str) -> None:
    name = cursor_name(cursor)
    assert SIMPLE_NAME.fullmatch(name)
    if SIMPLE_NAME.fullmatch(cursor) and not cursor.startswith("liftbridge."):
        assert name == cursor


def test_a_cursor_cannot_pass_for_a_hashed_one() -> None:
    hashed = cursor_name("a b")
    assert cursor_name(hashed) != hashed
