"""Blocks to Arrow: the same rows as the slow way, without copies where none are needed."""

from __future__ import annotations

import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.crafted import (
    BASE_OFFSET,
    LINEAGE,
    TIME_MAX,
    TIME_MIN,
    forged,
    messages,
    reseal,
    rows,
    stamped,
    steady_frames,
    windows_of,
)
from tidelog.blocks import arrow
from tidelog.blocks.arrow import FRAME_SCHEMA, MESSAGE_SCHEMA, frames_to_arrow, messages_to_arrow
from tidelog.blocks.block import Block, iterate_blocks
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.foreign import wrap_foreign
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import HEAD_BYTES, Codec
from tidelog.blocks.lpj import LpjCompression, encode_lpj_block
from tidelog.blocks.messages import Message, decode_messages, encode_messages
from tidelog.errors import BlockCorrupt, InvalidRecord

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@st.composite
def frame_blocks(draw: st.DrawFn) -> list[Block]:
    """Blocks of every form, some without seqs, some with windows, end to end in offset."""
    blocks = []
    base_offset = draw(st.sampled_from([0, 12_345, 2**63]))
    for frames in draw(st.lists(rows(max_size=8), max_size=6)):
        made = encode_frames(
            FrameColumns.from_rows(frames),
            base_seq=draw(st.sampled_from([0, 1, 2**64 - 20])),
            producer=LINEAGE,
            delta=draw(st.booleans()),
            codec=draw(st.sampled_from(Codec)),
        )
        stamped_block = stamped(made, base_offset=base_offset, windows=draw(windows_of(len(frames))))
        blocks.append(Block.parse(stamped_block.tobytes()))
        base_offset = blocks[-1].offsets.stop
    return blocks


def slow_places(block: Block) -> list[tuple[int, int | None, int]]:
    """(offset, seq, position in the body) of each record that counts."""
    positions = [position for part in block.counted_ranges() for position in part]
    base_seq = block.maker.base_seq
    return [
        (offset, base_seq + position if base_seq else None, position)
        for offset, position in zip(block.offsets, positions, strict=True)
    ]


def slow_frames(blocks: list[Block]) -> list[tuple[int, int | None, int, int, bytes]]:
    found = []
    for block in blocks:
        frames = list(decode_block_frames(block).rows())
        found += [(offset, seq, *frames[position]) for offset, seq, position in slow_places(block)]
    return found


def batch_rows(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    """Rows with times as numbers: Python's datetime ends before int64 does."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.itercolumns()
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@given(frame_blocks())
def test_frames_are_those_of_the_slow_way(blocks: list[Block]) -> None:
    batch = frames_to_arrow(blocks)
    batch.validate(full=True)
    assert batch.schema == FRAME_SCHEMA
    assert batch_rows(batch) == slow_frames(blocks)


def test_columns_have_the_types_readers_expect() -> None:
    batch = frames_to_arrow([stamped(encode_frames(FrameColumns.from_rows([(1_500_000, 0x123, b"abc")]), base_seq=4))])
    assert batch.to_pylist() == [
        {"offset": 100, "seq": 4, "time": EPOCH + timedelta(seconds=1.5), "can_id": 0x123, "data": b"abc"}
    ]
    assert [str(kind) for kind in batch.schema.types] == [
        "uint64",
        "uint64",
        "timestamp[us, tz=UTC]",
        "uint32",
        "binary",
    ]


def test_no_blocks_and_empty_blocks_give_an_empty_batch() -> None:
    empty = stamped(encode_frames(FrameColumns.from_rows([])))
    for blocks in ([], [empty], [empty, empty]):
        batch = frames_to_arrow(blocks)
        batch.validate(full=True)
        assert batch.num_rows == 0
        assert batch.schema == FRAME_SCHEMA
    assert messages_to_arrow([]).schema == MESSAGE_SCHEMA
    assert messages_to_arrow([stamped(encode_messages([]))]).num_rows == 0


def test_one_plain_block_is_not_copied() -> None:
    frames = steady_frames(4096)
    block = Block.parse(stamped(encode_frames(frames)).tobytes())
    start = np.frombuffer(block.body, dtype=np.uint8).ctypes.data
    batch = frames_to_arrow([block])
    assert batch["can_id"].buffers()[1].address == start + 4 * 4096
    assert batch["data"].buffers()[1].address == start + 8 * 4096
    assert batch["data"].buffers()[2].address == start + 12 * 4096 + 4


def test_a_block_that_lies_unaligned_is_read_all_the_same() -> None:
    data = stamped(encode_frames(steady_frames(100))).tobytes()
    expected = frames_to_arrow([Block.parse(data)])
    for shift in (1, 2, 3):
        (block,) = iterate_blocks(memoryview(bytes(shift) + data)[shift:])
        batch = frames_to_arrow([block])
        batch.validate(full=True)
        assert batch["can_id"].buffers()[1].address % 4 == 0
        assert batch.equals(expected)


def test_a_batch_outlives_its_blocks() -> None:
    def decode() -> pa.RecordBatch:
        return frames_to_arrow(list(iterate_blocks(stamped(encode_frames(steady_frames(50))).tobytes())))

    assert decode()["data"].to_pylist() == [row[2] for row in steady_frames(50).rows()]


def test_many_live_blocks_decode_together() -> None:
    frames = steady_frames(2_000)
    parts = [frames.slice(start, start + 20) for start in range(0, 2_000, 20)]
    blocks = [
        stamped(encode_frames(part, base_seq=1 + 20 * number), base_offset=20 * number)
        for number, part in enumerate(parts)
    ]
    batch = frames_to_arrow(list(iterate_blocks(b"".join(block.tobytes() for block in blocks))))
    assert batch["offset"].to_pylist() == list(range(2_000))
    assert batch["seq"].to_pylist() == list(range(1, 2_001))
    assert batch["time"].cast(pa.int64()).to_numpy().tolist() == frames.times_us.tolist()
    assert batch["data"].to_pylist() == [row[2] for row in frames.rows()]


@pytest.mark.parametrize("offset", [0, 5, 20])
@pytest.mark.parametrize("liar", [0, 3, 9])
@pytest.mark.parametrize("value", [-1, 7, 161, 2**31 - 1, -(2**31)])
def test_one_bad_payload_offset_among_many_blocks_is_found(liar: int, offset: int, value: int) -> None:
    blocks = [stamped(encode_frames(steady_frames(20))) for _ in range(10)]
    data = bytearray(blocks[liar].tobytes())
    struct.pack_into("<i", data, HEAD_BYTES + 160 + 4 * offset, value)
    reseal(data)
    blocks[liar] = Block.parse(data)
    with pytest.raises(BlockCorrupt):
        frames_to_arrow(blocks)


def test_one_time_outside_the_span_among_many_blocks_is_found() -> None:
    blocks = [stamped(encode_frames(steady_frames(20))) for _ in range(3)]
    blocks[1] = Block.parse(forged(blocks[1], (TIME_MAX, "q", blocks[1].maker.time_max_us - 1)))
    with pytest.raises(BlockCorrupt):
        frames_to_arrow(blocks)


def test_the_last_offset_is_not_wrapped() -> None:
    block = stamped(encode_frames(steady_frames(20)))
    last = Block.parse(forged(block, (BASE_OFFSET, "Q", 2**64 - 20)))
    assert frames_to_arrow([last])["offset"].to_pylist()[-1] == 2**64 - 1
    assert frames_to_arrow([last, block])["offset"].to_pylist()[19:21] == [2**64 - 1, 100]


def test_more_payload_than_a_batch_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "BINARY_BYTES_MAX", 400)
    block = stamped(encode_frames(steady_frames(30)))
    delta = stamped(encode_frames(steady_frames(30), delta=True))
    assert frames_to_arrow([block]).num_rows == 30
    for blocks in ([block, block], [block, delta], [delta, delta]):
        with pytest.raises(InvalidRecord):
            frames_to_arrow(blocks)
    long = stamped(encode_messages([Message(time_us=1, value=bytes(300))]))
    with pytest.raises(InvalidRecord):
        messages_to_arrow([long, long])


def foreign_block(frames: FrameColumns) -> Block:
    stored = encode_lpj_block(frames, base_seq=9, block_size=4096)
    return stamped(wrap_foreign(stored, version=2, compression=LpjCompression.NONE, block_size=4096))


def test_foreign_blocks_give_the_same_rows_as_frame_blocks() -> None:
    frames = steady_frames(40)
    expected = frames_to_arrow([stamped(encode_frames(frames, base_seq=9))])
    foreign = foreign_block(frames)
    assert frames_to_arrow([foreign]).equals(expected)
    mixed = frames_to_arrow([foreign, stamped(encode_frames(frames, base_seq=9))])
    assert mixed.slice(40).equals(expected)


def test_a_foreign_block_that_leaves_its_span_is_refused() -> None:
    block = foreign_block(steady_frames(40))
    for field, change in ((TIME_MIN, 1), (TIME_MAX, -1)):
        time_us = block.maker.time_min_us if field == TIME_MIN else block.maker.time_max_us
        with pytest.raises(BlockCorrupt):
            frames_to_arrow([Block.parse(forged(block, (field, "q", time_us + change)))])


def test_kinds_are_not_mixed_up() -> None:
    frames, texts = stamped(encode_frames(steady_frames(3))), stamped(encode_messages([Message(time_us=1)]))
    with pytest.raises(BlockCorrupt):
        frames_to_arrow([frames, texts])
    with pytest.raises(BlockCorrupt):
        messages_to_arrow([texts, frames])


@given(parts=st.lists(messages, max_size=4), data=st.data())
def test_messages_are_those_of_the_slow_way(parts: list[list[Message]], data: st.DataObject) -> None:
    blocks, expected, base_offset = [], [], 7
    for part in parts:
        made = encode_messages(
            part, base_seq=data.draw(st.sampled_from([0, 40])), codec=data.draw(st.sampled_from(Codec))
        )
        block = Block.parse(stamped(made, base_offset=base_offset, windows=data.draw(windows_of(len(part)))).tobytes())
        records = list(decode_messages(block.maker, block.raw_body()).rows())
        for offset, seq, position in slow_places(block):
            record = records[position]
            held = [{"name": name, "value": value} for name, value in record.headers]
            expected.append((offset, seq, record.time_us, record.key, record.value, held))
        blocks.append(block)
        base_offset = block.offsets.stop
    batch = messages_to_arrow(blocks)
    batch.validate(full=True)
    assert batch.schema == MESSAGE_SCHEMA
    assert batch_rows(batch) == expected


def test_a_header_name_that_is_no_text_is_replaced() -> None:
    data = bytearray(stamped(encode_messages([Message(time_us=1, headers=(("name", b"v"),))])).tobytes())
    data[data.index(b"name")] = 0xFF
    reseal(data)
    (headers,) = messages_to_arrow([Block.parse(data)])["headers"].to_pylist()
    assert headers == [{"name": "\N{REPLACEMENT CHARACTER}ame", "value": b"v"}]


def test_only_this_module_loads_pyarrow() -> None:
    """A boat journals without Arrow: 55 MB that it does not have to spare."""
    code = (
        "import pkgutil, importlib, sys, tidelog.blocks as blocks\n"
        "for module in pkgutil.iter_modules(blocks.__path__):\n"
        "    if module.name != 'arrow': importlib.import_module('tidelog.blocks.' + module.name)\n"
        "sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
