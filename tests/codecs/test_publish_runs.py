"""Records that were published one by one are told apart alike, whether they come a few or many at a time."""

from __future__ import annotations

import random
import struct

import pytest

from tidelog.codecs import publish_codec
from tidelog.codecs.client_codec import encode_error
from tidelog.codecs.publish_codec import (
    HEAD_BYTES,
    Published,
    decode_published,
    encode_publish,
    encode_published,
    read_runs,
)
from tidelog.core.client_messages import AckPolicy
from tidelog.errors import BadMessage, NotEnoughReplicas

SEEDS = range(200)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def bodies_of(rng: random.Random) -> list[memoryview]:
    bodies, token, seq = [], rng.randrange(5), rng.choice([0, 1])
    for _ in range(rng.randrange(1, 16)):
        body = encode_publish(
            b"value",
            token=token,
            channel_id=rng.choice([1, 1, 1, 1, 2]),
            leader_epoch=1,
            producer=rng.choice([bytes(16)] * 5 + [b"p" * 16]),
            seq=seq,
            key=rng.choice([b"", b"", b"k"]),
        )
        bodies.append(memoryview(body))
        token += rng.choice([1, 1, 1, 1, 2])
        seq = seq + rng.choice([1] * 9 + [2]) if seq else rng.choice([0] * 9 + [1])
    return bodies


def test_a_record_to_publish_has_these_bytes() -> None:
    body = encode_publish(
        b"value", token=1, channel_id=2, leader_epoch=3, ack=AckPolicy.LEADER, producer=b"p" * 16, seq=4, key=b"key"
    )
    assert body == b"\x01\x01\0\0\x03\0\0\0" + words(1, 2, 3) + b"p" * 16 + words(4) + b"keyvalue"


def test_answers_to_a_publisher_have_these_bytes() -> None:
    refusal = encode_error(NotEnoughReplicas(channel="bus", isr=1, min_isr=2))
    golden = b"\x01\0\0\0\x05\0\0\0" + bytes(8) + words(1, 2)
    golden += b"\x01\x01\0\0\x01\0\0\0" + len(refusal).to_bytes(4, "little") + bytes(4) + words(6, 0) + refusal
    taken = Published(token=1, count=5, first_offset=2)
    refused = Published(token=6, count=1, error=NotEnoughReplicas(channel="bus", isr=1, min_isr=2))
    assert encode_published(taken) + encode_published(refused) == golden
    first, second = decode_published(memoryview(golden))
    assert first == taken
    assert (second.token, second.count, type(second.error)) == (6, 1, NotEnoughReplicas)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_are_read_as_many_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = bodies_of(random.Random(seed))
    few = read_runs(bodies)
    monkeypatch.setattr(publish_codec, "_FEW", 0)
    assert read_runs(bodies) == few, f"seed {seed}"
    assert [place for run in few for place in range(run.start, run.stop)] == list(range(len(bodies)))


@pytest.mark.parametrize("count", [1, 40])
def test_a_head_that_cannot_be_is_refused_in_both(count: int) -> None:
    good = encode_publish(b"value", token=1, channel_id=1)
    for bad in (
        good[: HEAD_BYTES - 1],
        b"\2" + good[1:],
        good[:1] + b"\7" + good[2:],
        good[:4] + b"\xff" * 4 + good[8:],
    ):
        with pytest.raises(BadMessage):
            read_runs([memoryview(good)] * (count - 1) + [memoryview(bad)])
