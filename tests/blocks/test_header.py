"""The header: both halves, windows, checksums, and the arithmetic between them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.crafted import (
    BASE_OFFSET,
    BASE_SEQ,
    CODEC,
    KIND,
    LINEAGE,
    RAW_BYTES,
    RECORD_COUNT,
    STORED_BYTES,
    TIME_MAX,
    WINDOW_COUNT,
    forged,
    refusal,
    reseal,
    stamped,
    steady_frames,
    windows_of,
)
from tidelog.blocks.block import Block, MadeBlock, iterate_blocks, missing_block
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import HEAD_BYTES, MAKER_BYTES, BlockKind, BlockLimits, Path, parse_head
from tidelog.errors import BadBlock, BlockCorrupt, BlockTooLarge, BlockTruncated, InvalidRecord


def small_block(*, windows: tuple[range, ...] = (), count: int = 3) -> Block:
    return stamped(encode_frames(steady_frames(count), base_seq=1000, producer=LINEAGE), windows=windows)


def test_a_stamped_block_reads_back_as_it_was_stamped() -> None:
    block = small_block()
    read = Block.parse(block.tobytes())
    assert (read.maker, read.leader, read.windows) == (block.maker, block.leader, block.windows)
    assert read.tobytes() == block.tobytes()
    assert read.size == len(block.tobytes())
    assert read.offsets == range(100, 103)
    assert read.maker.seqs == range(1000, 1003)
    assert read.leader.path == Path.LIVE


def test_a_stamp_keeps_the_makers_bytes_and_the_body() -> None:
    made = encode_frames(steady_frames(5), base_seq=9, producer=LINEAGE)
    block = stamped(made, windows=[range(1, 2), range(4, 5)])
    assert bytes(block.head[:MAKER_BYTES]) == bytes(made.maker_bytes)
    assert block.body is made.body


def test_a_block_without_its_stamp_is_the_made_block_again() -> None:
    made = encode_frames(steady_frames(5), base_seq=9, producer=LINEAGE)
    again = Block.parse(stamped(made, windows=[range(2, 4)]).tobytes()).made()
    assert b"".join(again.buffers) == b"".join(made.buffers)
    sent = MadeBlock.parse(b"".join(again.buffers))
    restamped = sent.stamp(base_offset=1, channel_id=2, leader_epoch=3, append_time_us=4, durable_end=5, path=0)
    assert Block.parse(restamped.tobytes()).maker == made.maker


def test_a_made_block_must_fill_its_bytes_exactly() -> None:
    data = b"".join(encode_frames(steady_frames(2)).buffers)
    with pytest.raises(BlockTruncated):
        MadeBlock.parse(data[:-1])
    with pytest.raises(BlockCorrupt):
        MadeBlock.parse(data + b"\0")


def test_blocks_end_to_end_are_found_one_after_the_other() -> None:
    blocks = [small_block(count=count) for count in (0, 1, 2, 3)]
    data = b"".join(block.tobytes() for block in blocks)
    assert [block.maker.record_count for block in iterate_blocks(data)] == [0, 1, 2, 3]
    assert all(block.size % 8 == 0 for block in blocks)
    with pytest.raises(BlockTruncated):
        list(iterate_blocks(data[:-8]))


@given(st.data())
def test_windows_say_which_records_count(data: st.DataObject) -> None:
    windows = data.draw(windows_of(20))
    block = Block.parse(small_block(windows=windows, count=20).tobytes())
    held = [index for window in windows or (range(20),) for index in window]
    assert block.windows == windows
    assert block.counted == len(held)
    assert [seq - 1000 for part in block.counted_seqs() for seq in part] == held
    assert block.offsets == range(100, 100 + len(held))


@pytest.mark.parametrize(
    "edges", [(2, 2), (3, 1), (0, 4), (0, 2, 1, 3), (1, 2, 0, 1), (0, 1, 1, 2, 2, 4)], ids=lambda edges: str(edges)
)
def test_windows_out_of_shape_are_refused(edges: tuple[int, ...]) -> None:
    data = bytearray(small_block(windows=(range(1),) * (len(edges) // 2)).tobytes())
    struct.pack_into(f"<{len(edges)}I", data, HEAD_BYTES, *edges)
    reseal(data)
    assert isinstance(refusal(bytes(data)), BlockCorrupt)


def test_touching_windows_are_allowed() -> None:
    assert Block.parse(small_block(windows=(range(1), range(1, 3))).tobytes()).counted == 3


@pytest.mark.parametrize("windows", [(), (range(1), range(2, 3))])
def test_every_flipped_bit_is_found(windows: tuple[range, ...]) -> None:
    data = bytearray(small_block(windows=windows).tobytes())
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBlock):
            Block.parse(data)
        data[bit // 8] ^= 1 << bit % 8
    Block.parse(data)


@pytest.mark.parametrize("windows", [(), (range(1), range(2, 3))])
def test_every_cut_is_found(windows: tuple[range, ...]) -> None:
    data = small_block(windows=windows).tobytes()
    for end in range(len(data)):
        with pytest.raises(BlockTruncated):
            Block.parse(data[:end])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(0, "I", 0)], BlockCorrupt),
        ([(KIND, "B", 0)], BlockCorrupt),
        ([(KIND, "B", 6)], BlockCorrupt),
        ([(KIND, "B", BlockKind.MISSING)], BlockCorrupt),
        ([(CODEC, "B", 2)], BlockCorrupt),
        ([(7, "B", 1)], BlockCorrupt),
        ([(109, "B", 1)], BlockCorrupt),
        ([(RAW_BYTES, "I", 8)], BlockCorrupt),
        ([(TIME_MAX, "q", 0)], BlockCorrupt),
        ([(BASE_SEQ, "Q", 2**64 - 3)], BlockCorrupt),
        ([(BASE_OFFSET, "Q", 2**64 - 2)], BlockCorrupt),
        ([(RECORD_COUNT, "I", (1 << 20) + 1)], BlockTooLarge),
        ([(RAW_BYTES, "I", 2**32 - 1)], BlockTooLarge),
        ([(STORED_BYTES, "I", 2**32 - 1)], BlockTooLarge),
        ([(WINDOW_COUNT, "I", 1_000_000)], BlockTooLarge),
        ([(WINDOW_COUNT, "I", 1 << 16)], BlockTruncated),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    changes: list[tuple[int, str, int]], expected: type[BadBlock]
) -> None:
    assert type(refusal(forged(small_block(), *changes))) is expected


def test_the_last_offset_and_the_last_seq_can_be_used() -> None:
    data = forged(small_block(), (BASE_OFFSET, "Q", 2**64 - 3), (BASE_SEQ, "Q", 2**64 - 4))
    assert Block.parse(data).offsets == range(2**64 - 3, 2**64)


def test_limits_are_the_callers() -> None:
    block = small_block(count=10)
    for limits in (
        BlockLimits(records_max=9),
        BlockLimits(raw_bytes_max=block.maker.raw_bytes - 1),
        BlockLimits(stored_bytes_max=block.maker.stored_bytes - 1),
    ):
        with pytest.raises(BlockTooLarge):
            Block.parse(block.tobytes(), limits=limits)
    with pytest.raises(InvalidRecord):
        encode_frames(steady_frames(10), limits=BlockLimits(records_max=9))
    with pytest.raises(BlockTooLarge):
        parse_head(small_block(windows=(range(1), range(2, 3))).tobytes(), BlockLimits(windows_max=1))


def test_a_placeholder_holds_the_place_of_more_records_than_a_block_may_have() -> None:
    block = missing_block(offsets=range(5, 5 + 10**9), channel_id=1, leader_epoch=2, append_time_us=3, durable_end=4)
    read = Block.parse(block.tobytes())
    assert read.maker.kind == BlockKind.MISSING
    assert read.offsets == range(5, 5 + 10**9)
    assert read.size == HEAD_BYTES
