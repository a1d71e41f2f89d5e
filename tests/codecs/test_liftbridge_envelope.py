"""The Liftbridge envelope: its golden heads, round trips, and everything odd refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.liftbridge_envelope import (
    CHECKED_HEAD_BYTES,
    HEAD_BYTES,
    MessageType,
    PlainMessage,
    PublishedMessage,
    decode_envelope,
    encode_envelope,
    envelope_head,
    open_envelope,
    try_message,
)
from tidelog.errors import BadEnvelope

HEADS = {
    MessageType.PUBLISH: "b90e43b400080000",
    MessageType.REPLICATION_REQUEST: "b90e43b400080002",
    MessageType.REPLICATION_RESPONSE: "b90e43b400080003",
    MessageType.LEADER_EPOCH_OFFSET_REQUEST: "b90e43b400080006",
    MessageType.LEADER_EPOCH_OFFSET_RESPONSE: "b90e43b400080007",
    MessageType.PARTITION_NOTIFICATION: "b90e43b40008000e",
}
kinds = st.sampled_from(list(MessageType))


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.name)
def test_an_envelope_has_liftbridges_bytes(kind: MessageType) -> None:
    assert envelope_head(kind).hex() == HEADS[kind]
    assert encode_envelope(kind, b"abc") == bytes.fromhex(HEADS[kind]) + b"abc"


def test_a_checksum_is_castagnolis_and_lies_before_the_payload() -> None:
    # The check value of CRC-32C is that of these nine digits.
    assert encode_envelope(MessageType.ACK, b"123456789", checksum=True).hex() == (
        "b90e43b4000c0101" + "e3069283" + b"123456789".hex()
    )


def test_there_are_fifteen_types_without_a_gap() -> None:
    assert [kind.value for kind in MessageType] == list(range(15))


@given(kind=kinds, payload=st.binary(max_size=100), checksum=st.booleans())
def test_a_payload_comes_back_as_it_was(kind: MessageType, payload: bytes, checksum: bool) -> None:
    data = encode_envelope(kind, payload, checksum=checksum)
    envelope = decode_envelope(data)
    assert (envelope.kind, bytes(envelope.payload), envelope.is_checked) == (kind, payload, checksum)
    assert len(data) == len(payload) + (CHECKED_HEAD_BYTES if checksum else HEAD_BYTES)
    assert bytes(open_envelope(memoryview(data), kind)) == payload


@given(data=st.binary(max_size=40))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    try:
        envelope = decode_envelope(data)
    except BadEnvelope:
        return
    assert encode_envelope(envelope.kind, envelope.payload, checksum=envelope.is_checked) == data


@given(payload=st.binary(min_size=1, max_size=60), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_of_a_checked_envelope_passes_as_the_same_message(payload: bytes, place: int, bit: int) -> None:
    data = bytearray(encode_envelope(MessageType.ACK, payload, checksum=True))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(BadEnvelope):
        open_envelope(bytes(data), MessageType.ACK)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "0 bytes are shorter"),
        ("b90e43b4000800", "7 bytes are shorter"),
        ("b90e43b500080002", "begins with b90e43b5 and not with b90e43b4"),
        ("b90e43b401080002", "version 1 of the envelope"),
        ("b90e43b40008000f", "no message has the type 15"),
        ("b90e43b400080202", "flags 0x02"),
        ("b90e43b400080102", "a head of 8 bytes where it has 12"),
        ("b90e43b4000c0002" + "00" * 4, "a head of 12 bytes where it has 8"),
        ("b90e43b400070002", "a head of 7 bytes where it has 8"),
        ("b90e43b400ff0002", "a head of 255 bytes where it has 8"),
        ("b90e43b4000c0102" + "00" * 3, "ends before its checksum"),
        ("b90e43b4000c0102" + "00000001", "the checksum is 00000001 but the payload gives 00000000"),
    ],
)
def test_a_bad_envelope_is_refused_in_words(data: str, words: str) -> None:
    with pytest.raises(BadEnvelope, match=words):
        decode_envelope(bytes.fromhex(data))


def test_another_type_than_is_due_is_refused() -> None:
    with pytest.raises(BadEnvelope, match="type 2 came where type 14 is due"):
        open_envelope(encode_envelope(MessageType.REPLICATION_REQUEST, b""), MessageType.PARTITION_NOTIFICATION)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_published_message_on_a_streams_subject_is_unwrapped(checksum: bool) -> None:
    found = try_message(encode_envelope(MessageType.PUBLISH, b"message", checksum=checksum))
    assert isinstance(found, PublishedMessage)
    assert bytes(found.message) == b"message"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"plain words",
        encode_envelope(MessageType.ACK, b"an ack is no message"),
        encode_envelope(MessageType.PUBLISH, b"damaged", checksum=True)[:-1] + b"D",
        envelope_head(MessageType.PUBLISH)[:-1],
    ],
)
def test_anything_else_on_a_streams_subject_is_a_plain_value(payload: bytes) -> None:
    found = try_message(payload)
    assert isinstance(found, PlainMessage)
    assert found.value == payload
    assert found.problem
