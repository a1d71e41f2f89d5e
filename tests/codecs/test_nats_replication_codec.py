"""Replication over NATS: the golden bytes of seed 002's protocol, round trips, everything odd refused in words."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.liftbridge_envelope import MessageType, decode_envelope, encode_envelope
from tidelog.codecs.nats_replication_codec import (
    NatsSender,
    ReceivedRefusal,
    decode_notify,
    decode_request,
    encode_notify,
    encode_offset_request,
    encode_request,
    nobody_listens,
)
from tidelog.codecs.nats_response_parts import ReceivedPart, decode_answer, encode_nack, encode_response
from tidelog.codecs.proto import liftbridge_internal_pb2 as pb
from tidelog.codecs.replication_codec import TEXT_BYTES_MAX
from tidelog.core.catalog.records import CHANNEL_NAME
from tidelog.core.replication.messages import Notify, SyncError, SyncNack, SyncRequest, SyncResponse
from tidelog.errors import BadEnvelope, BadMessage, WrongCluster

CLUSTER = bytes(range(16))
SENDER = NatsSender(node="b", cluster=CLUSTER)
OURS_FROM = 101
"""Fields from here on are Tidelog's."""

REQUEST = SyncRequest(
    channel_id=1,
    leader_epoch=7,
    request_id=3,
    fetch_from=42,
    last_epoch=7,
    held_end=40,
    committed_end=39,
    incarnation=8,
    channel_epoch=10,
    chunk_bytes_max=1 << 20,
    again=True,
)
DIVERGED = SyncNack(
    channel_id=1, leader_epoch=9, request_id=3, error=SyncError.DIVERGED, log_start=2, epoch=7, end=42, detail="cut"
)
RESPONSE = SyncResponse(
    channel_id=1, leader_epoch=7, request_id=3, committed_end=42, log_start=2, log_end=42, first_offset=42
)

ids = st.integers(1, 2**62 - 1)
numbers = st.integers(0, 2**62 - 1)
nodes = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
senders = st.builds(NatsSender, node=nodes, cluster=st.just(CLUSTER))
requests = st.builds(
    SyncRequest,
    channel_id=ids,
    leader_epoch=numbers,
    request_id=numbers,
    fetch_from=numbers,
    last_epoch=numbers,
    held_end=numbers,
    committed_end=numbers,
    incarnation=numbers,
    channel_epoch=numbers,
    chunk_bytes_max=st.integers(0, 2**32 - 1),
    again=st.booleans(),
)


def as_liftbridge_sees_it(payload: bytes, shape: type[Message]) -> bytes:
    """The payload without the fields that a Liftbridge reader skips."""
    envelope = decode_envelope(payload)
    message = shape.FromString(bytes(envelope.payload))
    for field, _ in message.ListFields():
        if field.number >= OURS_FROM:
            message.ClearField(field.name)
    return encode_envelope(envelope.kind, message.SerializeToString())


# --- golden bytes (reference/liftbridge.md 2.5) ------------------------------------------------------------


GOLDEN = [
    (encode_request(REQUEST, sender=SENDER), pb.ReplicationRequest, "b90e43b400080002 0a0162 1029 1807"),
    (
        encode_request(replace(REQUEST, fetch_from=0, last_epoch=0), sender=SENDER),
        pb.ReplicationRequest,
        "b90e43b400080002 0a0162 10ffffffffffffffffff01 1807",
    ),
    (encode_offset_request(REQUEST, sender=SENDER), pb.LeaderEpochOffsetRequest, "b90e43b400080006 0807"),
    (encode_nack(DIVERGED, sender=SENDER), pb.LeaderEpochOffsetResponse, "b90e43b400080007 0829"),
    (
        encode_notify(Notify(channel_id=1, leader_epoch=7), channel="foo", sender=SENDER),
        pb.PartitionNotification,
        "b90e43b40008000e 0a03666f6f",
    ),
]


@pytest.mark.parametrize(("payload", "shape", "golden"), GOLDEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_subscriber_sees_the_golden_bytes(payload: bytes, shape: type[Message], golden: str) -> None:
    assert payload.startswith(bytes.fromhex(golden)), "Liftbridge's fields come first"
    assert as_liftbridge_sees_it(payload, shape) == bytes.fromhex(golden)


def test_an_empty_response_begins_with_the_golden_header() -> None:
    (payload,) = encode_response(RESPONSE, sender=SENDER, payload_bytes_max=1 << 20)
    assert b"".join(payload).startswith(bytes.fromhex("b90e43b400080003 0000000000000007 0000000000000029"))


def test_nothing_committed_is_minus_one_on_the_wire() -> None:
    (payload,) = encode_response(replace(RESPONSE, committed_end=0), sender=SENDER, payload_bytes_max=1 << 20)
    assert b"".join(payload)[16:24] == b"\xff" * 8


def test_our_fields_keep_their_numbers() -> None:
    # A cluster is upgraded node by node: what one version writes, the other reads.
    assert encode_request(REQUEST, sender=SENDER) == bytes.fromhex(
        "b90e43b400080002 0a0162 1029 1807 aa0610 000102030405060708090a0b0c0d0e0f b00601 b80603 c00607 c80628 d00627"
        "d80608 e0060a e806808040 f00601"
    )
    assert {field.name: field.number for field in pb.ReplicationAnswer.DESCRIPTOR.fields} == {
        "cluster": 1,
        "channelID": 2,
        "requestID": 3,
        "leader": 4,
        "logStart": 5,
        "logEnd": 6,
        "firstOffset": 7,
        "dataBytes": 8,
        "part": 9,
        "parts": 10,
        "error": 11,
        "retryAfterMs": 12,
        "detail": 13,
    }


# --- round trips -------------------------------------------------------------------------------------------


@given(request=requests, sender=senders)
def test_a_request_comes_back_as_it_was(request: SyncRequest, sender: NatsSender) -> None:
    for payload in (encode_request(request, sender=sender), encode_offset_request(request, sender=sender)):
        received = decode_request(memoryview(payload), cluster=CLUSTER)
        assert (received.replica, received.request) == (sender.node, request)


@given(channel=st.from_regex(CHANNEL_NAME, fullmatch=True), channel_id=ids, leader_epoch=numbers, sender=senders)
def test_a_notification_comes_back_as_it_was(
    channel: str, channel_id: int, leader_epoch: int, sender: NatsSender
) -> None:
    notify = Notify(channel_id=channel_id, leader_epoch=leader_epoch)
    received = decode_notify(encode_notify(notify, channel=channel, sender=sender), cluster=CLUSTER)
    assert (received.leader, received.channel, received.notify) == (sender.node, channel, notify)


@given(
    error=st.sampled_from(list(SyncError)),
    channel_id=ids,
    fields=st.tuples(numbers, numbers, numbers, numbers, numbers, numbers),
    detail=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    sender=senders,
)
def test_a_refusal_comes_back_as_it_was(
    error: SyncError, channel_id: int, fields: tuple[int, ...], detail: str, sender: NatsSender
) -> None:
    leader_epoch, request_id, log_start, epoch, end, retry_after_ms = fields
    diverged = error is SyncError.DIVERGED
    nack = SyncNack(
        channel_id=channel_id,
        leader_epoch=leader_epoch,
        request_id=request_id,
        error=error,
        log_start=log_start,
        epoch=epoch if diverged else 0,
        end=end if diverged else 0,
        retry_after_ms=0 if diverged else retry_after_ms,
        detail=detail,
    )
    received = decode_answer(encode_nack(nack, sender=sender), cluster=CLUSTER)
    assert received == ReceivedRefusal(leader=sender.node, nack=nack)


def test_a_long_text_loses_its_end_between_two_characters() -> None:
    for error in (SyncError.BACKPRESSURE, SyncError.DIVERGED):
        nack = SyncNack(channel_id=1, leader_epoch=1, request_id=1, error=error, detail="x" + "é" * TEXT_BYTES_MAX)
        received = decode_answer(encode_nack(nack, sender=SENDER), cluster=CLUSTER)
        assert isinstance(received, ReceivedRefusal)
        assert received.nack.detail == "x" + "é" * (TEXT_BYTES_MAX // 2 - 1)


def test_nobody_listening_asks_again_and_cuts_nothing() -> None:
    nack = nobody_listens(channel_id=4, request_id=9)
    assert nack.error is SyncError.NOT_LEADER
    assert (nack.channel_id, nack.request_id, nack.leader_epoch) == (4, 9, 0)


# --- refusals ------------------------------------------------------------------------------------------------


def request_with(**fields: object) -> bytes:
    message = pb.ReplicationRequest.FromString(encode_request(REQUEST, sender=SENDER)[8:])
    for name, value in fields.items():
        setattr(message, name, value)
    return encode_envelope(MessageType.REPLICATION_REQUEST, message.SerializeToString())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"channelID": 0}, "numbers that cannot be"),
        ({"channelID": 2**62}, "numbers that cannot be"),
        ({"offset": -2}, "numbers that cannot be"),
        ({"offset": 2**63 - 1}, "numbers that cannot be"),
        ({"leaderEpoch": 2**63}, "numbers that cannot be"),
        ({"requestID": 2**62}, "numbers that cannot be"),
        ({"lastEpoch": 2**62}, "numbers that cannot be"),
        ({"heldEnd": 2**62}, "numbers that cannot be"),
        ({"committedEnd": 2**62}, "numbers that cannot be"),
        ({"incarnation": 2**62}, "numbers that cannot be"),
        ({"channelEpoch": 2**62}, "numbers that cannot be"),
        ({"replicaID": ""}, "a node that cannot be one"),
        ({"replicaID": "a b"}, "a node that cannot be one"),
        ({"cluster": b""}, "not of a Tidelog node"),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_words(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        decode_request(request_with(**fields), cluster=CLUSTER)


def test_a_plain_liftbridge_request_is_refused_in_words() -> None:
    for golden in ("b90e43b4000800020a016210291807", "b90e43b400080006", "b90e43b4000800030000000000000007" + "ff" * 8):
        with pytest.raises((BadMessage, BadEnvelope), match=r"not of a Tidelog node|where requests of replicas"):
            decode_request(bytes.fromhex(golden), cluster=CLUSTER)
    with pytest.raises(BadMessage, match="not of a Tidelog node"):
        decode_notify(bytes.fromhex("b90e43b40008000e0a03666f6f"), cluster=CLUSTER)
    with pytest.raises(BadMessage, match="not of a Tidelog node"):
        decode_answer(bytes.fromhex("b90e43b4000800070829"), cluster=CLUSTER)


def test_another_cluster_in_the_namespace_is_noticed_by_every_message() -> None:
    other = bytes(16)
    (answer,) = encode_response(RESPONSE, sender=SENDER, payload_bytes_max=1 << 20)
    for payload in (encode_request(REQUEST, sender=SENDER), encode_offset_request(REQUEST, sender=SENDER)):
        with pytest.raises(WrongCluster, match=CLUSTER.hex()):
            decode_request(payload, cluster=other)
    for payload in (b"".join(answer), encode_nack(DIVERGED, sender=SENDER)):
        with pytest.raises(WrongCluster):
            decode_answer(payload, cluster=other)
    with pytest.raises(WrongCluster):
        decode_notify(GOLDEN[-1][0], cluster=other)


def test_an_offset_request_must_ask_for_its_replicas_last_epoch() -> None:
    message = pb.LeaderEpochOffsetRequest.FromString(encode_offset_request(REQUEST, sender=SENDER)[8:])
    message.leaderEpoch = 6
    payload = encode_envelope(MessageType.LEADER_EPOCH_OFFSET_REQUEST, message.SerializeToString())
    with pytest.raises(BadMessage, match="another epoch"):
        decode_request(payload, cluster=CLUSTER)


def test_a_notification_of_a_partition_that_cannot_be_is_refused() -> None:
    for stream, partition in (("", 0), ("foo", -1), ("foo/3", 0)):
        message = pb.PartitionNotification.FromString(GOLDEN[-1][0][8:])
        message.stream, message.partition = stream, partition
        payload = encode_envelope(MessageType.PARTITION_NOTIFICATION, message.SerializeToString())
        with pytest.raises(BadMessage, match="a partition that cannot be"):
            decode_notify(payload, cluster=CLUSTER)


def test_a_message_of_another_type_is_refused_everywhere() -> None:
    ack = encode_envelope(MessageType.ACK, b"")
    for decode in (decode_request, decode_notify, decode_answer):
        with pytest.raises(BadEnvelope, match="type 1 came where"):
            decode(ack, cluster=CLUSTER)


PAYLOADS = [payload for payload, _, _ in GOLDEN] + [
    b"".join(encode_response(replace(RESPONSE, data=(b"blocks",)), sender=SENDER, payload_bytes_max=1 << 20)[0]),
    encode_nack(replace(DIVERGED, error=SyncError.BACKPRESSURE, epoch=0, end=0, retry_after_ms=5), sender=SENDER),
]


@given(
    payload=st.sampled_from(PAYLOADS),
    place=st.integers(0, 1_000),
    value=st.integers(0, 255),
    cut=st.integers(0, 1_000) | st.none(),
)
def test_damaged_bytes_raise_nothing_but_what_the_codec_says(
    payload: bytes, place: int, value: int, cut: int | None
) -> None:
    damaged = bytearray(payload)
    damaged[place % len(damaged)] = value
    data = bytes(damaged if cut is None else damaged[: cut % len(damaged)])
    for decode in (decode_request, decode_notify, decode_answer):
        with suppress(BadEnvelope, BadMessage, WrongCluster):
            decode(data, cluster=CLUSTER)


@given(kind=st.sampled_from(list(MessageType)), body=st.binary(max_size=80))
def test_a_foreign_body_in_a_good_envelope_is_refused(kind: MessageType, body: bytes) -> None:
    payload = encode_envelope(kind, body)
    for decode in (decode_request, decode_notify, decode_answer):
        with pytest.raises((BadEnvelope, BadMessage, WrongCluster)):
            decode(payload, cluster=CLUSTER)


def test_a_newer_nodes_fields_are_skipped() -> None:
    newer = encode_request(REQUEST, sender=SENDER) + bytes.fromhex("c00c05")  # field 200, number 5
    assert decode_request(newer, cluster=CLUSTER).request == REQUEST
    (answer,) = encode_response(RESPONSE, sender=SENDER, payload_bytes_max=1 << 20)
    assert isinstance(decode_answer(b"".join(answer), cluster=CLUSTER), ReceivedPart)
