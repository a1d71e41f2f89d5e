"""Subjects that channels are fed from: which are good, and how the catalog keeps them beside older bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.catalog import ChannelConfig, CreateChannel, decode_change, encode_change
from tidelog.core.catalog.codec import from_plain, to_plain
from tidelog.core.subjects import attached_subject, is_reply_subject, queue_group_problem, subject_problem
from tidelog.errors import CatalogCorrupt, CatalogVersion

PLAIN = (
    b'{"at_ms":1,"config":{"bandwidth_class":"foreground","factor":3,"fsync":"always","fsync_interval_ms":1000,'
    b'"heartbeat_ms":500,"leader_pinned":null,"min_isr":null,"on_under_capacity":"withdraw","persistent":true,'
    b'"pinned_nodes":[],"placement":"standard","placement_metadata":[],%s"replicated":true,'
    b'"replication_budget_ppm":500000,"retention":{"max_age_ms":null,"max_bytes":null,"max_events":null},'
    b'"skip_threshold_bytes":104857600%s},"kind":"create_channel","leader":"n1","name":"foo","replicas":["n1"],"v":1}'
)


def created(config: ChannelConfig) -> CreateChannel:
    return CreateChannel(name="foo", config=config, replicas=("n1",), leader="n1", at_ms=1)


def test_a_channel_without_a_subject_has_the_bytes_it_always_had() -> None:
    line = PLAIN % (b"", b"")
    assert encode_change(created(ChannelConfig())) == line
    assert decode_change(line) == created(ChannelConfig())


def test_a_channel_with_a_subject_has_golden_bytes() -> None:
    config = ChannelConfig(subject="sea.state", queue_group="g")
    line = PLAIN % (b'"queue_group":"g",', b',"subject":"sea.state"')
    assert encode_change(created(config)) == line
    assert decode_change(line) == created(config)


def test_a_subject_of_another_type_and_a_field_from_the_future_are_refused() -> None:
    plain = to_plain(ChannelConfig())
    with pytest.raises(CatalogCorrupt):
        from_plain(ChannelConfig, {**plain, "subject": 7})
    with pytest.raises(CatalogVersion):
        from_plain(ChannelConfig, {**plain, "tomorrow": 7})
    del plain["factor"]
    with pytest.raises(CatalogCorrupt, match="factor"):
        from_plain(ChannelConfig, plain)


@given(st.text(max_size=300), st.none() | st.text(max_size=140))
def test_what_is_good_can_be_sent_and_kept_and_what_is_not_is_told(subject: str, group: str | None) -> None:
    config = ChannelConfig(subject=subject, queue_group=group)
    if config.problems():
        assert subject_problem(subject) or (group is not None and queue_group_problem(group))
        return
    assert len(subject.encode()) <= 255
    assert not any(character.isspace() or character in "*>" for character in subject)
    assert from_plain(ChannelConfig, json.loads(json.dumps(to_plain(config)))) == config
    assert subject_problem(attached_subject(subject, 1)) is None or len(subject.encode()) >= 254


def test_the_clusters_own_namespace_is_refused_where_it_is_known() -> None:
    assert subject_problem("ns.foo") is None
    assert "choose another" in str(subject_problem("ns.foo", namespace="ns"))
    assert subject_problem("nsx.foo", namespace="ns") is None


def test_a_subject_that_is_no_text_is_refused() -> None:
    assert "UTF-8" in str(subject_problem("a\ud800"))
    assert not is_reply_subject("a\ud800")


@pytest.mark.parametrize(
    ("subject", "is_good"),
    [("_INBOX.a.b", True), ("acks", True), ("", False), ("a.*", False), (">", False), ("a..b", False), ("a b", False)],
)
def test_acks_go_to_literal_subjects_only(subject: str, is_good: bool) -> None:
    assert is_reply_subject(subject) is is_good
