"""Messages of a subject on their way into a channel: order, limits, what is acknowledged and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nats.subject_kit import ack_of, enveloped
from tidelog.blocks.messages import Message
from tidelog.cluster.nats.subject_core import (
    BATCH_RECORDS_MAX,
    MESSAGE_BYTES_MAX,
    AckOut,
    Attachment,
    ChannelFeed,
    MessageArrived,
    SubjectBatch,
)
from tidelog.codecs.liftbridge_envelope import MessageType, envelope_head
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.client_messages import AckPolicy
from tidelog.errors import (
    ChannelPaused,
    ChannelReadonly,
    LeadershipLost,
    LogError,
    NotChannelLeader,
    NotEnoughReplicas,
    OffsetConflict,
    TooManyInFlight,
)
from tidelog.units import KIB, MIB

NOW_NS = 1_700_000_000_123_456_789
INBOX = "acks.here"


def feed_of(*, bytes_max: int = MIB, channel: str = "foo", **more: Any) -> ChannelFeed:
    attachment = Attachment(channel_id=7, channel=channel, subject="sub.ject", **more)
    return ChannelFeed(attachment, namespace="ns", bytes_max=bytes_max)


def message(value: bytes = b"v", *, policy: int = pb.ALL, token: str = "t", inbox: str = INBOX, **more: Any) -> bytes:
    return enveloped(value=value, ackInbox=inbox, correlationId=token, ackPolicy=policy, **more)


def take(feed: ChannelFeed, *payloads: bytes, reply: str = "", room_bytes: int = 1 << 40) -> list[AckOut]:
    arrived = [MessageArrived("sub.ject", reply, payload) for payload in payloads]
    return feed.take(arrived, now_ns=NOW_NS, room_bytes=room_bytes)


def all_batches(feed: ChannelFeed) -> list[SubjectBatch]:
    batches = []
    while (batch := feed.next_batch()) is not None:
        batches.append(batch)
    return batches


def stored(batch: SubjectBatch) -> list[Message]:
    assert ChannelFeed.block_of(batch).maker.record_count == len(batch.incoming)
    return [one.message for one in batch.incoming]


def values(batch: SubjectBatch) -> list[bytes | None]:
    return [one.message.value for one in batch.incoming]


# --- what is a message -----------------------------------------------------------------------------------


def test_a_plain_payload_is_the_value_and_nobody_is_told() -> None:
    feed = feed_of()
    take(feed, b"plain", reply="answer.here")
    (batch,) = all_batches(feed)
    (found,) = stored(batch)
    assert (found.key, found.value, found.time_us) == (None, b"plain", NOW_NS // 1000)
    assert list(found.headers) == [("reply", b"answer.here")]
    assert feed.answered(batch, 5, None, now_ns=NOW_NS) == []
    assert (feed.counts.plain, feed.counts.appended, feed.counts.acked) == (1, 1, 0)


def test_an_envelope_brings_key_value_and_headers_but_not_those_of_the_way() -> None:
    feed = feed_of()
    headers = {"b": b"2", "a": b"1", "subject": b"x", "reply": b"y"}
    take(feed, message(b"value", key=b"key", headers=headers))
    (batch,) = all_batches(feed)
    (found,) = stored(batch)
    assert (found.key, found.value) == (b"key", b"value")
    assert list(found.headers) == [("a", b"1"), ("b", b"2")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:7],
        lambda data: b"\0" + data[1:],
        lambda data: data[:7] + b"\x01" + data[8:],
        lambda data: data[:4] + b"\x01" + data[5:],
        lambda data: data[:8] + b"\xff" * 5,
    ],
    ids=["short", "magic", "type", "version", "no protobuf"],
)
def test_a_bad_envelope_is_a_plain_message_stored_as_it_came(spoil: Any) -> None:
    feed = feed_of()
    payload = spoil(message())
    take(feed, payload)
    (batch,) = all_batches(feed)
    assert values(batch) == [payload]
    assert feed.answered(batch, 0, None, now_ns=NOW_NS) == []


def test_a_wrong_checksum_makes_a_plain_message_and_a_right_one_does_not() -> None:
    feed = feed_of()
    good = enveloped(value=b"v", checksum=True)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    take(feed, good, bad)
    (batch,) = all_batches(feed)
    assert values(batch) == [b"v", bad]
    assert feed.counts.plain == 1


@given(st.binary(max_size=200), st.booleans())
def test_at4_no_bytes_are_refused_and_none_do_harm(data: bytes, is_enveloped: bool) -> None:
    feed = feed_of()
    take(feed, envelope_head(MessageType.PUBLISH) + data if is_enveloped else data, reply="r")
    (batch,) = all_batches(feed)
    assert ChannelFeed.block_of(batch).maker.record_count == 1
    feed.answered(batch, 1, None, now_ns=NOW_NS)
    assert feed.held_bytes == 0


@pytest.mark.parametrize("inbox", ["", "a b", "a.*", "a.>", "ns.foo.0.replicate", "$SYS.x", "a\r\nPUB b", "x" * 300])
def test_no_ack_goes_where_none_may_go(inbox: str) -> None:
    feed = feed_of()
    take(feed, message(inbox=inbox))
    (batch,) = all_batches(feed)
    assert feed.answered(batch, 0, None, now_ns=NOW_NS) == []


# --- acks ------------------------------------------------------------------------------------------------


def test_an_ack_says_what_liftbridges_acks_say() -> None:
    feed = feed_of(channel="foo/2")
    take(feed, message(token="a"), message(token="b"))
    (batch,) = all_batches(feed)
    assert batch.ack is AckPolicy.ALL
    first, second = feed.answered(batch, 41, None, now_ns=NOW_NS + 5)
    assert first.inbox == INBOX
    assert first.payload[:8].hex() == "b90e43b400080001"
    expected = pb.Ack(
        stream="foo",
        partitionSubject="sub.ject",
        msgSubject="sub.ject",
        offset=41,
        ackInbox=INBOX,
        correlationId="a",
        ackPolicy=pb.ALL,
        receptionTimestamp=NOW_NS,
        commitTimestamp=NOW_NS + 5,
    )
    assert ack_of(first.payload) == expected
    assert (ack_of(second.payload).offset, ack_of(second.payload).correlationId) == (42, "b")


def test_at3_policies_are_kept_in_order_and_none_is_not_told() -> None:
    feed = feed_of()
    policies = [pb.LEADER, pb.LEADER, pb.ALL, pb.NONE, pb.NONE, pb.LEADER, 17]
    take(feed, *(message(b"%d" % place, policy=policy) for place, policy in enumerate(policies)))
    batches = all_batches(feed)
    assert [value for batch in batches for value in values(batch)] == [b"%d" % place for place in range(7)]
    assert [batch.ack for batch in batches] == [AckPolicy.LEADER, AckPolicy.ALL, AckPolicy.LEADER]
    told = [len(feed.answered(batch, 0, None, now_ns=NOW_NS)) for batch in batches]
    assert told == [2, 1, 1]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OffsetConflict(channel="foo", expected=3, actual=4), pb.Ack.INCORRECT_OFFSET),
        (ChannelReadonly(channel="foo"), pb.Ack.UNKNOWN),
        (LeadershipLost(channel="foo", leader_epoch=2), None),
        (NotChannelLeader(channel="foo", leader="n2"), None),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_at3_an_error_is_told_only_if_the_message_is_certainly_nowhere(error: LogError, told: int | None) -> None:
    feed = feed_of()
    take(feed, message())
    (batch,) = all_batches(feed)
    acks = feed.answered(batch, 0, error, now_ns=NOW_NS)
    assert [ack_of(ack.payload).ackError for ack in acks] == ([] if told is None else [told])
    assert feed.held_bytes == 0


# --- limits ----------------------------------------------------------------------------------------------


def test_what_is_too_large_is_refused_with_its_own_code() -> None:
    feed = feed_of(bytes_max=64 * MIB)
    (ack,) = take(feed, message(bytes(MESSAGE_BYTES_MAX)))
    assert ack_of(ack.payload).ackError == pb.Ack.TOO_LARGE
    assert feed.next_batch() is None
    assert feed.counts.refused == 1


def test_at2_what_does_not_fit_is_dropped_and_room_comes_back_with_answers() -> None:
    feed = feed_of(bytes_max=100 * KIB)
    payload = bytes(30 * KIB)
    take(feed, *[payload] * 5)
    assert feed.counts.dropped == 2
    assert feed.held_bytes <= 100 * KIB
    batches = all_batches(feed)
    take(feed, payload)
    assert feed.counts.dropped == 3, "what is being written counts too"
    for batch in batches:
        feed.answered(batch, 0, None, now_ns=NOW_NS)
    assert feed.held_bytes == 0
    take(feed, payload)
    assert feed.counts.dropped == 3


def test_at2_all_channels_together_have_a_limit_too() -> None:
    feed = feed_of()
    take(feed, bytes(KIB), bytes(KIB), room_bytes=1_500)
    assert (feed.counts.dropped, len(all_batches(feed)[0].incoming)) == (1, 1)


def test_a_batch_has_so_many_records_and_bytes_at_most() -> None:
    feed = feed_of(bytes_max=64 * MIB)
    take(feed, *[b"x"] * (BATCH_RECORDS_MAX + 1))
    assert [len(batch.incoming) for batch in all_batches(feed)] == [BATCH_RECORDS_MAX, 1]
    take(feed, *[bytes(600 * KIB)] * 2, bytes(2 * MIB), b"x")
    assert [len(batch.incoming) for batch in all_batches(feed)] == [1, 1, 1, 1]


# --- a channel that does not take them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        NotEnoughReplicas(channel="foo", isr=1, min_isr=2),
        TooManyInFlight(waiting_bytes=2, bytes_max=1),
        NotChannelLeader(channel="foo", leader=None),
    ],
    ids=lambda error: error.code,
)
def test_at1_what_is_refused_for_now_waits_in_its_order(error: LogError) -> None:
    feed = feed_of()
    take(feed, *(b"%d" % number for number in range(5)))
    batch = feed.next_batch()
    assert batch is not None
    before = feed.held_bytes
    assert feed.refused(batch, error) == (True, [])
    assert feed.problem == error.code
    assert feed.held_bytes == before
    take(feed, b"5")
    (again,) = all_batches(feed)
    assert values(again) == [b"%d" % number for number in range(6)]


def test_what_is_refused_for_good_is_told() -> None:
    feed = feed_of()
    take(feed, message())
    batch = feed.next_batch()
    assert batch is not None
    waits, acks = feed.refused(batch, ChannelPaused(channel="foo"))
    assert not waits
    assert [ack_of(ack.payload).ackError for ack in acks] == [pb.Ack.UNKNOWN]


def test_at2_when_leadership_ends_what_waits_is_dropped_and_what_is_written_may_still_be_told() -> None:
    feed = feed_of()
    take(feed, message(token="written"))
    batch = feed.next_batch()
    assert batch is not None
    take(feed, message(token="waits"))
    assert feed.drop_all() == 1
    assert feed.next_batch() is None
    (ack,) = feed.answered(batch, 3, None, now_ns=NOW_NS)
    assert ack_of(ack.payload).correlationId == "written"
    assert feed.held_bytes == 0


def test_a_stream_that_checks_offsets_takes_one_message_at_a_time_and_only_there() -> None:
    feed = feed_of(checks_offsets=True)
    take(feed, message(offset=4), message(offset=-1), b"plain")
    assert [batch.expected_offset for batch in all_batches(feed)] == [4, -1, -1]
    other = feed_of()
    take(other, message(offset=4), message(offset=9))
    (batch,) = all_batches(other)
    assert batch.expected_offset == -1
