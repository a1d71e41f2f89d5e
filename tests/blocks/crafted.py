"""Blocks made for tests: strategies for honest ones, tools for dishonest ones."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import strategies as st

from tidelog.blocks.arrow import frames_to_arrow, messages_to_arrow
from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import PAYLOAD_BYTES_MAX, FrameColumns
from tidelog.blocks.control import decode_control
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import DEFAULT_LIMITS, HEAD_BYTES, MAKER_BYTES, BlockKind, BlockLimits, Path
from tidelog.blocks.messages import Message, decode_messages
from tidelog.errors import BadBlock

Row = tuple[int, int, bytes]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
LINEAGE = bytes(range(16))

# Offsets of the header fields that tests set by hand; docs/formats/block.md has them all.
KIND, FORM, CODEC = 4, 5, 6
TIME_MIN, TIME_MAX, BASE_SEQ = 8, 16, 24
RECORD_COUNT, RAW_BYTES, STORED_BYTES, BODY_CHECKSUM = 48, 52, 56, 60
BASE_OFFSET, WINDOW_COUNT, HEADER_CHECKSUM = 64, 104, 124


# --- honest blocks -------------------------------------------------------------------------------

times = st.one_of(
    st.integers(INT64_MIN, INT64_MAX),
    st.integers(1_700_000_000_000_000, 1_700_000_001_000_000),
    st.sampled_from([INT64_MIN, INT64_MAX, 0, -1, 1, 1_700_000_000_000_000]),
)
can_ids = st.one_of(st.integers(0, 0x1FFF_FFFF), st.sampled_from([0, 0x1FFF_FFFF, 0x09F8_0102]))
payloads = st.one_of(
    st.binary(min_size=8, max_size=8),
    st.binary(max_size=20),
    st.sampled_from([b"", bytes(PAYLOAD_BYTES_MAX), bytes(range(223))]),
)


def rows(*, max_size: int = 30) -> st.SearchStrategy[list[Row]]:
    """Frames as they come: any clock, any id, any length."""
    return st.lists(st.tuples(times, can_ids, payloads), max_size=max_size)


headers = st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=10)), max_size=3).map(tuple)
messages = st.lists(
    st.builds(
        Message,
        time_us=times,
        key=st.none() | st.binary(max_size=12),
        value=st.none() | st.binary(max_size=40),
        headers=headers,
    ),
    max_size=15,
)


@st.composite
def windows_of(draw: st.DrawFn, count: int) -> tuple[range, ...]:
    """Any set of windows that a block of `count` records may have, none included."""
    edges = sorted(draw(st.sets(st.integers(0, count), max_size=8)))
    return tuple(range(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False))


def steady_frames(count: int, *, seed: int = 0) -> FrameColumns:
    """A bus as it is most of the time: fifty ids, eight bytes each."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 1 << 29, 50).astype(np.uint32)
    return FrameColumns(
        times_us=1_700_000_000_000_000 + np.cumsum(random.integers(100, 900, count)),
        can_ids=ids[random.integers(0, 50, count)],
        payload_offsets=np.arange(count + 1, dtype=np.int32) * np.int32(8),
        payload=random.integers(0, 256, 8 * count).astype(np.uint8),
    )


def stamped(made: MadeBlock, *, base_offset: int = 100, windows: Sequence[range] = ()) -> Block:
    return made.stamp(
        base_offset=base_offset,
        channel_id=7,
        leader_epoch=3,
        append_time_us=1_700_000_000_000_000,
        durable_end=50,
        path=Path.LIVE,
        windows=windows,
    )


# --- dishonest ones ------------------------------------------------------------------------------


def reseal(data: bytearray, position: int = 0) -> None:
    """Make both checksums of a block right again, as a maker who lies on purpose would."""
    if len(data) < position + HEAD_BYTES:
        return
    (stored_bytes,) = struct.unpack_from("<I", data, position + STORED_BYTES)
    (window_count,) = struct.unpack_from("<I", data, position + WINDOW_COUNT)
    view = memoryview(data)[position:]
    head_bytes = HEAD_BYTES + 8 * window_count
    body = view[head_bytes : head_bytes + ((stored_bytes + 7) & ~7)]
    struct.pack_into("<I", view, BODY_CHECKSUM, crc32c(body, crc32c(view[:BODY_CHECKSUM])))
    windows = view[HEAD_BYTES:head_bytes]
    struct.pack_into("<I", view, HEADER_CHECKSUM, crc32c(windows, crc32c(view[:HEADER_CHECKSUM])))


def reseal_made(data: bytearray) -> None:
    """The same for a block without a leader's stamp."""
    if len(data) >= MAKER_BYTES:
        view = memoryview(data)
        struct.pack_into("<I", view, BODY_CHECKSUM, crc32c(view[MAKER_BYTES:], crc32c(view[:BODY_CHECKSUM])))


def forged(block: Block, *changes: tuple[int, str, int]) -> bytes:
    """The block's bytes with some fields (offset, struct code, value) replaced and the checksums made to fit."""
    data = bytearray(block.tobytes())
    for offset, code, value in changes:
        struct.pack_into("<" + code, data, offset, value)
    reseal(data)
    return bytes(data)


def with_body(block: Block, body: bytes | bytearray | memoryview, *changes: tuple[int, str, int]) -> bytes:
    """The block's head in front of another body, lengths and checksums made to fit."""
    data = bytearray(block.head) + body + bytes(-len(body) % 8)
    for offset, code, value in ((RAW_BYTES, "I", len(body)), (STORED_BYTES, "I", len(body)), *changes):
        struct.pack_into("<" + code, data, offset, value)
    reseal(data)
    return bytes(data)


def decode_all(data: bytes | memoryview, limits: BlockLimits = DEFAULT_LIMITS) -> Block:
    """Parse a block and run every decoder that applies to it."""
    block = Block.parse(data, 0, limits)
    kind = block.maker.kind
    if kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
        counted = counted_frames(block, limits)
        assert len(counted) == block.counted
        assert frames_to_arrow([block], limits).num_rows == block.counted
        frames_to_arrow([block, block], limits).validate(full=True)
    elif kind == BlockKind.MESSAGES:
        assert len(list(decode_messages(block.maker, block.raw_body(limits)).rows())) == block.maker.record_count
        messages_to_arrow([block, block], limits).validate(full=True)
    elif kind == BlockKind.CONTROL:
        decode_control(block.maker, block.raw_body(limits))
    return block


def refusal(data: bytes | memoryview, limits: BlockLimits = DEFAULT_LIMITS) -> BadBlock:
    """The typed error that a bad block must give; it survives a trip to another process."""
    with pytest.raises(BadBlock) as caught:
        decode_all(data, limits)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert copy.problem == caught.value.problem
    return caught.value
