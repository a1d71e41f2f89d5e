"""Answers in parts: whole or not at all, whatever is lost, late or repeated; bounded, and blocks never copied."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.liftbridge_envelope import MessageType, encode_envelope
from tidelog.codecs.nats_replication_codec import NatsSender
from tidelog.codecs.nats_response_parts import (
    PAYLOAD_BYTES_MIN,
    ReceivedPart,
    ResponseJoiner,
    decode_answer,
    encode_nack,
    encode_response,
    read_response_head,
)
from tidelog.codecs.proto import liftbridge_internal_pb2 as pb
from tidelog.core.replication.messages import SyncError, SyncNack, SyncResponse
from tidelog.errors import BadMessage, PayloadTooSmall
from tidelog.units import KIB, MIB

CLUSTER = bytes(range(16))
SENDER = NatsSender(node="b", cluster=CLUSTER)
RESPONSE = SyncResponse(
    channel_id=1, leader_epoch=7, request_id=3, committed_end=42, log_start=2, log_end=90, first_offset=42
)
numbers = st.integers(0, 2**62 - 1)


def payloads(response: SyncResponse, payload_bytes_max: int = PAYLOAD_BYTES_MIN) -> list[bytes]:
    encoded = encode_response(response, sender=SENDER, payload_bytes_max=payload_bytes_max)
    return [b"".join(buffers) for buffers in encoded]


def parts_of(response: SyncResponse, payload_bytes_max: int = PAYLOAD_BYTES_MIN) -> list[ReceivedPart]:
    parts = [decode_answer(payload, cluster=CLUSTER) for payload in payloads(response, payload_bytes_max)]
    assert all(isinstance(part, ReceivedPart) for part in parts)
    return parts  # type: ignore[return-value]


def plain(response: SyncResponse) -> SyncResponse:
    """With its data in one piece."""
    data = b"".join(response.data)
    return replace(response, data=(data,) if data else ())


def joined(joiner: ResponseJoiner, parts: Sequence[ReceivedPart]) -> list[SyncResponse]:
    return [plain(response) for part in parts if (response := joiner.take(part)) is not None]


def answer(*, channel_id: int = 1, request_id: int = 3, epoch: int = 7, size: int = 10_000) -> SyncResponse:
    data = random.Random(f"{channel_id} {request_id} {epoch}").randbytes(size)
    return replace(RESPONSE, channel_id=channel_id, request_id=request_id, leader_epoch=epoch, data=(data,))


# --- one answer ----------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 9_000), max_size=5),
    payload_bytes_max=st.integers(PAYLOAD_BYTES_MIN, 20_000),
    fields=st.tuples(st.integers(1, 2**62 - 1), *[numbers] * 6),
    node=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True),
)
def test_an_answer_comes_back_as_it_was_whatever_the_server_takes(
    sizes: list[int], payload_bytes_max: int, fields: tuple[int, ...], node: str
) -> None:
    channel_id, leader_epoch, request_id, committed_end, log_start, log_end, first_offset = fields
    response = SyncResponse(
        channel_id=channel_id,
        leader_epoch=leader_epoch,
        request_id=request_id,
        committed_end=committed_end,
        log_start=log_start,
        log_end=log_end,
        first_offset=first_offset,
        data=tuple(bytes([index]) * size for index, size in enumerate(sizes)),
    )
    sender = NatsSender(node=node, cluster=CLUSTER)
    encoded = encode_response(response, sender=sender, payload_bytes_max=payload_bytes_max)
    assert all(sum(map(len, buffers)) <= payload_bytes_max for buffers in encoded)
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    found = []
    for buffers in encoded:
        part = decode_answer(b"".join(buffers), cluster=CLUSTER)
        assert isinstance(part, ReceivedPart)
        assert part.leader == node
        whole = joiner.take(part)
        found += [] if whole is None else [plain(whole)]
    assert found == [plain(response)]
    assert (joiner.bytes, joiner.parts_dropped) == (0, 0)


def test_a_block_larger_than_the_server_takes_passes() -> None:
    response = answer(size=5 * MIB)
    parts = parts_of(response, 1 * MIB)
    assert len(parts) == 6
    assert joined(ResponseJoiner(bytes_max=8 * MIB), parts) == [response]


def test_blocks_are_not_copied_on_the_way_out() -> None:
    block = bytearray(10_000)
    encoded = encode_response(replace(RESPONSE, data=(block,)), sender=SENDER, payload_bytes_max=PAYLOAD_BYTES_MIN)
    block[:] = b"\x01" * len(block)
    assert b"".join(b"".join(buffers[1:]) for buffers in encoded) == bytes(block)


def test_a_server_that_takes_too_little_is_refused_in_words() -> None:
    with pytest.raises(PayloadTooSmall, match="raise its max_payload"):
        encode_response(RESPONSE, sender=SENDER, payload_bytes_max=PAYLOAD_BYTES_MIN - 1)


def test_the_longest_refusal_fits_into_the_smallest_payload() -> None:
    top = 2**62 - 1
    sender = NatsSender(node="n" * 63, cluster=CLUSTER)
    for error in SyncError:
        nack = SyncNack(
            channel_id=top, leader_epoch=top, request_id=top, error=error, log_start=top, detail="é" * 9_000
        )
        assert len(encode_nack(nack, sender=sender)) <= PAYLOAD_BYTES_MIN


def test_the_header_of_a_liftbridge_servers_response_is_read_too() -> None:
    body = struct.pack(">Qq", 7, 41) + b"records"
    head = read_response_head(memoryview(body))
    assert (head.leader_epoch, head.committed_end) == (7, 42)
    assert bytes(head.rest) == b"records"
    payload = encode_envelope(MessageType.REPLICATION_RESPONSE, body)
    with pytest.raises(BadMessage, match="not of a Tidelog node"):
        decode_answer(payload, cluster=CLUSTER)


def test_our_body_is_never_taken_for_a_record() -> None:
    (payload,) = payloads(replace(RESPONSE, data=(b"block" * 20,)))
    (offset,) = struct.unpack_from(">q", payload, 24)
    assert offset < 0


# --- bad parts -----------------------------------------------------------------------------------------


def part_with(data: bytes, **fields: object) -> bytes:
    head = pb.ReplicationAnswer(cluster=CLUSTER, channelID=1, leader="b", dataBytes=len(data), parts=1)
    for name, value in fields.items():
        setattr(head, name, value)
    packed = head.SerializeToString()
    body = struct.pack(">Qq4sI", 7, 41, b"\xffTLR", len(packed)) + packed + data
    return encode_envelope(MessageType.REPLICATION_RESPONSE, body)


@pytest.mark.parametrize(
    "fields",
    [
        {"parts": 0},
        {"part": 1},
        {"parts": 2},
        {"parts": 5, "dataBytes": 4},
        {"dataBytes": 5},
        {"dataBytes": 3, "parts": 2},
        {"dataBytes": 2**32, "parts": 2},
        {"parts": 2**32 - 1, "dataBytes": 100},
    ],
)
def test_parts_that_do_not_add_up_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadMessage, match=r"is part \d+ of \d+, with 4 of \d+ bytes"):
        decode_answer(part_with(b"data", **fields), cluster=CLUSTER)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (part_with(b"", channelID=0), "numbers that cannot be"),
        (part_with(b"", logEnd=2**62), "numbers that cannot be"),
        (part_with(b"", leader=""), "a node that cannot be one"),
        (part_with(b"", error=6), "refuses with error 6"),
        (part_with(b"", error=SyncError.DIVERGED.value), "refuses with error 5"),
        (part_with(b"data", error=1), "refuses with error 1"),
        (part_with(b"", error=1, detail="x" * 2_000), "a text of more than"),
        (part_with(b"")[:23], "has no LeaderEpoch and HW"),
        (part_with(b"")[:30], "not of a Tidelog node"),
        (part_with(b"")[:-1], "claims a head of"),
        (part_with(b"")[:16] + struct.pack(">q", -2) + part_with(b"")[24:], "HW -2, which cannot be"),
        (part_with(b"")[:8] + b"\xff" * 8 + part_with(b"")[16:], "LeaderEpoch 18446744073709551615"),
        (part_with(b"")[:32] + b"\xff" * (len(part_with(b"")) - 32), "is no protobuf"),
    ],
)
def test_a_bad_answer_is_refused_in_words(payload: bytes, words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        decode_answer(payload, cluster=CLUSTER)


# --- joining -------------------------------------------------------------------------------------------


def test_an_answer_with_a_lost_part_is_never_handed_out() -> None:
    for lost in range(3):
        joiner = ResponseJoiner(bytes_max=1 * MIB)
        parts = parts_of(answer())
        assert len(parts) == 3
        del parts[lost]
        assert joined(joiner, parts) == []
        again = answer(request_id=4)
        assert joined(joiner, parts_of(again)) == [again], "what is asked for again arrives"
        assert (joiner.bytes, joiner.parts_dropped) == (0, 2)


def test_a_repeated_part_costs_its_answer_and_nothing_else() -> None:
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    first, second, last = parts_of(answer())
    assert joined(joiner, [first, second, second, last]) == []
    assert joined(joiner, [first, second, last, last]) == [answer()]
    assert joiner.bytes == 0


def test_parts_of_an_older_epoch_disturb_nothing() -> None:
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    new, old = answer(epoch=8), answer(epoch=7)
    woven = [part for pair in zip(parts_of(new), parts_of(old), strict=True) for part in pair]
    assert joined(joiner, woven) == [new]
    assert joiner.parts_dropped == 3


def test_a_newer_answer_takes_the_place_of_one_that_never_ended() -> None:
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    old, new = parts_of(answer(request_id=3)), parts_of(answer(request_id=4))
    assert joined(joiner, [*old[:2], *new]) == [answer(request_id=4)]
    assert joined(joiner, old[2:]) == []
    assert joiner.bytes == 0


def test_channels_are_joined_side_by_side() -> None:
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    answers = [answer(channel_id=channel_id) for channel_id in (1, 2, 3)]
    woven = [part for parts in zip(*map(parts_of, answers), strict=True) for part in parts]
    assert joined(joiner, woven) == answers


def test_an_answer_in_one_part_passes_beside_one_in_many() -> None:
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    first, *rest = parts_of(answer())
    assert joined(joiner, [first, *parts_of(RESPONSE), *rest]) == [RESPONSE, answer()]


def test_unfinished_answers_stay_within_their_limit_and_the_oldest_go() -> None:
    joiner = ResponseJoiner(bytes_max=16 * KIB)
    halves = {channel_id: parts_of(answer(channel_id=channel_id)) for channel_id in range(1, 9)}
    for parts in halves.values():
        assert joined(joiner, parts[:-1]) == []
        assert joiner.bytes <= 16 * KIB
    finished = [channel_id for channel_id, parts in halves.items() if joined(joiner, parts[-1:])]
    assert finished == [7, 8]
    assert joiner.bytes == 0


def test_an_answer_larger_than_the_limit_is_dropped_from_its_first_part() -> None:
    joiner = ResponseJoiner(bytes_max=9_999)
    assert joined(joiner, parts_of(answer())) == []
    assert (joiner.bytes, joiner.parts_dropped) == (0, 3)


def test_what_is_forgotten_takes_no_memory() -> None:
    joiner = ResponseJoiner(bytes_max=1 * MIB)
    joined(joiner, parts_of(answer())[:2])
    assert joiner.bytes > 0
    joiner.forget(1)
    joiner.forget(1)
    assert (joiner.bytes, joiner.parts_dropped) == (0, 2)


@given(seed=st.integers(0, 2**32))
def test_whatever_is_lost_repeated_or_swapped_only_whole_answers_come_out(seed: int) -> None:
    rng = random.Random(seed)
    joiner = ResponseJoiner(bytes_max=rng.choice((10_000, 30_000, 1 * MIB)))
    answers = [
        answer(channel_id=rng.randint(1, 2), request_id=number, epoch=rng.randint(7, 8), size=rng.randint(1, 20_000))
        for number in range(6)
    ]
    stream = [part for response in answers for part in parts_of(response)]
    for _ in range(rng.randint(0, 6)):
        place = rng.randrange(len(stream))
        match rng.randrange(3):
            case 0:
                stream.insert(rng.randrange(len(stream)), stream[place])
            case 1:
                stream.insert(rng.randrange(len(stream)), stream.pop(place))
            case _:
                stream = stream[:place] + stream[place + 1 :] or stream
    held_max = 0
    for part in stream:
        whole = joiner.take(part)
        assert whole is None or plain(whole) in answers, f"seed {seed}"
        held_max = max(held_max, joiner.bytes)
    assert held_max <= joiner._bytes_max, f"seed {seed}"
