"""Records that were published one by one are told apart alike, whether they come a few or many at a time."""

from __future__ import annotations

import random

import pytest

from tidelog.codecs import publish_codec
from tidelog.codecs.publish_codec import HEAD_BYTES, encode_publish, read_runs
from tidelog.errors import BadMessage

SEEDS = range(200)


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
