"""Reading an answer's part of a segment into one piece of memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tidelog.blocks.block import Block, make_block
from tidelog.blocks.header import DEFAULT_LIMITS, BlockKind
from tidelog.errors import BlockTruncated
from tidelog.storage.log.segment import FileWindow
from tidelog.storage.log.span import Span, window_of
from tidelog.storage.os_disk import OsDisk, OsFile
from tidelog.transports.link.views import side_by_side
from tidelog.units import KIB, MIB

SEED = 7


def written(folder: Path, sizes: list[int]) -> tuple[OsFile, list[bytes]]:
    dice = random.Random(SEED)
    blocks = [
        make_block(dice.randbytes(size), kind=BlockKind.MESSAGES, form=1, record_count=1)
        .stamp(base_offset=place, channel_id=1, leader_epoch=1, append_time_us=1, durable_end=0, path=0)
        .tobytes()
        for place, size in enumerate(sizes)
    ]
    file = OsDisk(str(folder)).open("segment", create=True)
    file.write_at(0, blocks)
    assert isinstance(file, OsFile)
    return file, blocks


def test_blocks_come_out_as_they_lie_in_the_file_and_side_by_side(tmp_path: Path) -> None:
    file, blocks = written(tmp_path, [300 * KIB, 8, 250 * KIB, 700 * KIB, 16])
    size = sum(map(len, blocks))
    span = Span(file, 0, size, bytes_max=size)
    position, found = 0, []
    for block in blocks:
        found.append(Block.parse(span.block_bytes(position, DEFAULT_LIMITS)))
        position += len(block)
    assert [one.tobytes() for one in found] == blocks
    assert len(side_by_side([buffer for one in found for buffer in one.buffers])) == 1
    file.close()


def test_a_block_that_the_span_cannot_hold_begins_a_new_one(tmp_path: Path) -> None:
    file, blocks = written(tmp_path, [200 * KIB, 3 * MIB, 100 * KIB])
    span = Span(file, 0, sum(map(len, blocks)), bytes_max=256 * KIB)
    first = Block.parse(span.block_bytes(0, DEFAULT_LIMITS))
    second = Block.parse(span.block_bytes(len(blocks[0]), DEFAULT_LIMITS))
    third = Block.parse(span.block_bytes(len(blocks[0]) + len(blocks[1]), DEFAULT_LIMITS))
    assert [one.tobytes() for one in (first, second, third)] == blocks, "what was given out stays good"
    file.close()


def test_a_file_that_is_shorter_than_it_should_be_is_told(tmp_path: Path) -> None:
    file, (block,) = written(tmp_path, [300 * KIB])
    file.truncate(len(block) - 8)
    with pytest.raises(BlockTruncated):
        Block.parse(Span(file, 0, len(block), bytes_max=MIB).block_bytes(0, DEFAULT_LIMITS))
    with pytest.raises(BlockTruncated):
        Span(file, len(block) - 8, len(block) + 8, bytes_max=MIB).block_bytes(len(block) - 8, DEFAULT_LIMITS)
    file.close()


def test_small_reads_stay_plain(tmp_path: Path) -> None:
    file, (block,) = written(tmp_path, [100])
    assert isinstance(window_of(file, 0, len(block), bytes_max=4 * KIB), FileWindow)
    assert isinstance(window_of(file, 0, len(block), bytes_max=MIB), Span)
    file.close()
