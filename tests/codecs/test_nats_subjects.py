"""Subjects of replication over NATS: seed 002's own for plain names, and no two channels alike for any."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.nats_subjects import (
    DEFAULT_NAMESPACE,
    PartitionSubject,
    Verb,
    attached_subject,
    check_attached_subject,
    check_namespace,
    checked_channel,
    escape_part,
    notify_subject,
    parse_partition_subject,
    parse_reply_subject,
    partition_subject,
    reply_subject,
    unescape_part,
)
from tidelog.codecs.stream_names import PARTITIONS_MAX, place_of
from tidelog.core.catalog.records import CHANNEL_NAME
from tidelog.errors import BadSubject

NAMESPACE = "ns"
channels = st.from_regex(CHANNEL_NAME, fullmatch=True)
verbs = st.sampled_from(list(Verb))


@pytest.mark.parametrize(
    ("channel", "subject"),
    [
        ("foo", "ns.foo.0.replicate"),
        ("foo/3", "ns.foo.3.replicate"),
        ("Foo_bar-7", "ns.Foo_bar-7.0.replicate"),
        ("foo/0", "ns.foo%2F0.0.replicate"),
        ("foo/03", "ns.foo%2F03.0.replicate"),
        ("foo/255", "ns.foo.255.replicate"),
        ("foo/256", "ns.foo%2F256.0.replicate"),
        ("fleet/boat.one:a/12", "ns.fleet%2Fboat%2Eone%3Aa.12.replicate"),
        ("a/1/2", "ns.a%2F1.2.replicate"),
    ],
)
def test_a_channel_is_a_partition_of_a_stream(channel: str, subject: str) -> None:
    assert partition_subject(NAMESPACE, channel, Verb.REPLICATE) == subject
    assert parse_partition_subject(NAMESPACE, subject) == PartitionSubject(channel=channel, verb=Verb.REPLICATE)


def test_the_subjects_are_those_of_the_seed() -> None:
    assert partition_subject("liftbridge-default", "foo", Verb.REPLICATE) == "liftbridge-default.foo.0.replicate"
    assert partition_subject("liftbridge-default", "foo/2", Verb.OFFSET) == "liftbridge-default.foo.2.offset"
    assert notify_subject("liftbridge-default", "b") == "liftbridge-default.notify.b"
    assert notify_subject(NAMESPACE, "boat.lan") == "ns.notify.boat%2Elan"


@given(channel=channels, verb=verbs)
def test_a_subject_names_its_channel_and_no_other(channel: str, verb: Verb) -> None:
    subject = partition_subject(NAMESPACE, channel, verb)
    assert re.fullmatch(r"ns\.[A-Za-z0-9_%-]+\.[0-9]+\.(replicate|offset)", subject), subject
    assert parse_partition_subject(NAMESPACE, subject) == PartitionSubject(channel=channel, verb=verb)


@given(name=st.text(min_size=1, max_size=12))
def test_any_name_is_one_plain_part_and_comes_back(name: str) -> None:
    part = escape_part(name)
    assert re.fullmatch(r"[A-Za-z0-9_%-]+", part)
    assert unescape_part(part) == name


@given(channel=channels)
def test_stream_and_partition_are_the_channel_again(channel: str) -> None:
    assert checked_channel(*place_of(channel)) == channel


@pytest.mark.parametrize(
    ("stream", "partition"), [("", 0), ("", 1), ("foo", -1), ("foo", PARTITIONS_MAX), ("foo/3", 0)]
)
def test_a_partition_that_no_channel_can_be_is_refused(stream: str, partition: int) -> None:
    with pytest.raises(BadSubject):
        checked_channel(stream, partition)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "ns",
        "ns.foo.0",
        "ns.foo.0.replicate.x",
        "ns.foo.0.other",
        "other.foo.0.replicate",
        "nsfoo.foo.0.replicate",
        "foo.0.replicate",
        "ns.foo..replicate",
        "ns..0.replicate",
        "ns.foo.x.replicate",
        "ns.foo.00.replicate",
        "ns.foo.-1.replicate",
        "ns.foo.4294967296.replicate",
        "ns.raft.metadata.offset",
        "ns.f%6fo.0.replicate",
        "ns.foo%2f0.0.replicate",
        "ns.foo%2F3.0.replicate",
        "ns.f%FFo.0.replicate",
        "ns.f*o.0.replicate",
    ],
)
def test_a_subject_that_is_not_ours_is_refused(subject: str) -> None:
    with pytest.raises(BadSubject):
        parse_partition_subject(NAMESPACE, subject)


@given(channel_id=st.integers(0, 2**62 - 1), request_id=st.integers(0, 2**62 - 1))
def test_a_reply_says_which_request_it_is_for(channel_id: int, request_id: int) -> None:
    subject = reply_subject("_INBOX.a1b2", channel_id=channel_id, request_id=request_id)
    assert parse_reply_subject("_INBOX.a1b2", subject) == (channel_id, request_id)


@pytest.mark.parametrize("rest", ["", ".1", ".1.2.3", ".a.1", ".1.", ".01.2", f".1.{2**62}", "x.1.2"])
def test_a_reply_to_another_inbox_is_refused(rest: str) -> None:
    with pytest.raises(BadSubject):
        parse_reply_subject("_INBOX.a1b2", "_INBOX.a1b2" + rest)


@pytest.mark.parametrize("namespace", [DEFAULT_NAMESPACE, "a", "A_b-9", "x" * 64])
def test_a_plain_word_is_a_namespace(namespace: str) -> None:
    check_namespace(namespace)


@pytest.mark.parametrize("namespace", ["", "a.b", "a b", "a*", ">", "x" * 65, "a\n"])
def test_anything_but_one_plain_word_is_no_namespace(namespace: str) -> None:
    with pytest.raises(BadSubject, match="is no namespace"):
        check_namespace(namespace)


@pytest.mark.parametrize("subject", ["foo", "foo.bar", "a.b.c-d_e", "notify", "foo.$x", "räume.1"])
def test_a_literal_subject_may_feed_a_channel(subject: str) -> None:
    check_attached_subject(subject, namespace=NAMESPACE)


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("", "is empty"),
        ("foo.*", "wildcard"),
        ("foo.>", "wildcard"),
        ("*", "wildcard"),
        ("foo bar", "white space"),
        ("foo\r\nPUB x", "white space"),
        ("foo\0", "control character"),
        (".foo", "empty part"),
        ("foo.", "empty part"),
        ("foo..bar", "empty part"),
        ("$SYS.x", "NATS' own"),
        ("_INBOX.x", "NATS' own"),
        ("ns", "lies in ns"),
        ("ns.foo.0.replicate", "lies in ns"),
        ("x" * 256, "longer than 255 bytes"),
    ],
)
def test_a_subject_that_cannot_feed_a_channel_is_refused_in_words(subject: str, words: str) -> None:
    with pytest.raises(BadSubject, match=words):
        check_attached_subject(subject, namespace=NAMESPACE)


def test_partition_zero_is_fed_from_the_subject_itself() -> None:
    assert attached_subject("foo.bar", 0) == "foo.bar"
    assert attached_subject("foo.bar", 2) == "foo.bar.2"
