"""Checking a block's frames without making them raises exactly what decoding them would."""

from __future__ import annotations

import random

import pytest
from benchmarks.kits.traffic import bus_frames

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.decode import check_block_frames, decode_block_frames
from tidelog.blocks.frames import check_frames, decode_frames, encode_frames
from tidelog.blocks.header import Codec
from tidelog.errors import BadBlock

SEED = 20_261_115


def outcome(action: object, *arguments: object) -> str | None:
    try:
        action(*arguments)  # type: ignore[operator]
    except BadBlock as error:
        return error.problem
    return None


@pytest.mark.parametrize("delta", [False, True], ids=["plain", "delta planes"])
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_a_good_block_passes(count: int, delta: bool) -> None:
    made = encode_frames(bus_frames(count, fast_packets=True), base_seq=1, delta=delta, codec=Codec.ZSTD)
    check_block_frames(made)
    assert len(decode_block_frames(made)) == count


@pytest.mark.parametrize("delta", [False, True], ids=["plain", "delta planes"])
def test_whatever_is_wrong_with_a_body_both_say_the_same(delta: bool) -> None:
    rng = random.Random(SEED)
    made = encode_frames(bus_frames(60, fast_packets=True), base_seq=1, delta=delta)
    body = bytes(memoryview(made.body)[: made.maker.stored_bytes])
    refused = 0
    for _ in range(3_000):
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        raw = bytes(damaged)
        checked = outcome(check_frames, made.maker, raw)
        assert checked == outcome(decode_frames, made.maker, raw), f"seed {SEED}"
        refused += checked is not None
    assert refused > 500


def test_a_body_that_does_not_inflate_is_refused() -> None:
    made = encode_frames(bus_frames(300), base_seq=1, delta=True, codec=Codec.ZSTD)
    body = bytearray(made.body)
    body[20] ^= 0xFF
    damaged = MadeBlock(made.maker_bytes, made.maker, bytes(body))
    checked = outcome(check_block_frames, damaged)
    assert checked is not None
    assert checked == outcome(decode_block_frames, damaged)
