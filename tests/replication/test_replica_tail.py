"""The newest blocks of a channel in memory (TL1, TL2)."""

from __future__ import annotations

import random

import pytest

from tidelog.blocks.block import Block
from tidelog.blocks.messages import encode_values
from tidelog.cluster.replication.tail import BlockTail


def block(base_offset: int, count: int = 1, size: int = 100) -> Block:
    made = encode_values([b"x" * (size // count)] * count, time_us=1)
    return made.stamp(base_offset=base_offset, channel_id=1, leader_epoch=1, append_time_us=1, durable_end=0, path=0)


def filled(count: int, *, bytes_max: int = 1 << 30, records: int = 1) -> tuple[BlockTail, list[Block]]:
    tail = BlockTail(bytes_max=bytes_max)
    blocks = [block(number * records, records) for number in range(count)]
    for one in blocks:
        tail.push(one)
    return tail, blocks


def test_blocks_are_taken_from_the_one_that_holds_the_offset() -> None:
    tail, blocks = filled(5, records=3)
    assert tail.take(6, bytes_max=1 << 30, end=15) == blocks[2:]
    assert tail.take(7, bytes_max=1 << 30, end=15) == blocks[2:]
    assert tail.take(15, bytes_max=1 << 30, end=15) is None


def test_no_more_is_taken_than_was_asked_for_but_at_least_one() -> None:
    tail, blocks = filled(5)
    size = blocks[0].size
    assert tail.take(1, bytes_max=2 * size, end=5) == blocks[1:3]
    assert tail.take(1, bytes_max=1, end=5) == blocks[1:2]
    assert tail.take(1, bytes_max=1 << 30, end=3) == blocks[1:3]
    assert tail.take(1, bytes_max=1 << 30, end=1) is None


def test_tl2_the_oldest_go_and_a_single_large_one_stays_alone() -> None:
    size = block(0).size
    tail, blocks = filled(10, bytes_max=3 * size)
    assert tail.bytes == 3 * size
    assert tail.take(6, bytes_max=1 << 30, end=10) is None
    assert tail.take(7, bytes_max=1 << 30, end=10) == blocks[7:]
    large = block(10, size=100_000)
    tail.push(large)
    assert tail.take(10, bytes_max=1, end=11) == [large]
    assert tail.take(9, bytes_max=1, end=11) is None
    assert tail.bytes == large.size


def test_after_clearing_it_begins_anew() -> None:
    tail, _ = filled(4)
    tail.clear()
    assert (tail.bytes, tail.take(2, bytes_max=1, end=4)) == (0, None)
    tail.push(block(4))
    assert tail.take(4, bytes_max=1, end=5) is not None
    assert tail.take(3, bytes_max=1, end=5) is None


@pytest.mark.parametrize("seed", range(8))
def test_tl1_it_always_holds_the_end_of_the_log_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    tail = BlockTail(bytes_max=2_000)
    log: list[Block] = []
    for step in range(2_000):
        end = log[-1].offsets.stop if log else 0
        if log and rng.random() < 0.05:
            cut = rng.choice(log[-8:]).leader.base_offset
            tail.truncate(cut)
            log = [one for one in log if one.leader.base_offset < cut]
        else:
            one = block(end, rng.randint(1, 3), rng.randint(3, 600))
            log.append(one)
            tail.push(one)
        end = log[-1].offsets.stop if log else 0
        held = [one for one in log if tail.take(one.leader.base_offset, bytes_max=1, end=end)]
        assert held == log[len(log) - len(held) :], f"seed {seed}, step {step}"
        assert sum(one.size for one in held) == tail.bytes, f"seed {seed}, step {step}"
        assert tail.bytes <= 2_000 or len(held) == 1, f"seed {seed}, step {step}"
        if held:
            place = rng.choice(held)
            assert tail.take(place.leader.base_offset, bytes_max=1 << 30, end=end) == log[log.index(place) :]
        log = log[-200:]
