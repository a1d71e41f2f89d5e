"""Frame bodies: whatever a bus and its clock do comes back the same, in every form."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.blocks.crafted import (
    FORM,
    INT64_MAX,
    INT64_MIN,
    LINEAGE,
    Row,
    refusal,
    rows,
    stamped,
    steady_frames,
    windows_of,
    with_body,
)
from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import PAYLOAD_BYTES_MAX, FrameColumns
from tidelog.blocks.decode import counted_frames, decode_block_frames
from tidelog.blocks.frames import CAN_ID_MAX, FrameBuilder, FrameForm, encode_frames
from tidelog.blocks.header import Codec
from tidelog.blocks.messages import Message, encode_messages
from tidelog.errors import BlockCorrupt, InvalidRecord

FORMS = [(False, Codec.NONE), (False, Codec.ZSTD), (True, Codec.NONE), (True, Codec.ZSTD)]
ORDINARY: list[list[Row]] = [
    [],
    [(0, 0, b"")],
    [(5, 1, b"a"), (3, 1, b"b"), (4, 1, b"c")],
    [(7, 1, b"same time"), (7, 2, b""), (7, 1, bytes(PAYLOAD_BYTES_MAX))],
    [(INT64_MIN, CAN_ID_MAX, b"x"), (INT64_MAX, 0, b"y"), (INT64_MIN, 3, b"")],
    [(-1, 1, b""), (0, 1, b""), (1, 1, b"")],
    [(time_us, can_id, bytes([can_id % 256] * 8)) for can_id, time_us in enumerate(range(300))],
    [(index, index, bytes(index % 9)) for index in range(600)],
    [(index << 33, 9, b"12345678") for index in range(20)],
]


def decoded(made: MadeBlock) -> FrameColumns:
    return decode_block_frames(Block.parse(stamped(made).tobytes()))


@pytest.mark.parametrize(("delta", "codec"), FORMS)
@pytest.mark.parametrize("frames", ORDINARY, ids=range(len(ORDINARY)))
def test_ordinary_blocks_come_back(frames: list[Row], delta: bool, codec: Codec) -> None:
    made = encode_frames(FrameColumns.from_rows(frames), base_seq=1, producer=LINEAGE, delta=delta, codec=codec)
    assert list(decoded(made).rows()) == frames
    assert made.maker.record_count == len(frames)
    assert made.maker.time_min_us == min((row[0] for row in frames), default=0)
    assert made.maker.time_max_us == max((row[0] for row in frames), default=0)


@given(frames=rows(), form=st.sampled_from(FORMS))
@example(frames=[(INT64_MAX, 0, b""), (INT64_MIN, 0, b"")], form=FORMS[2])
def test_any_frames_come_back_in_every_form(frames: list[Row], form: tuple[bool, Codec]) -> None:
    columns = FrameColumns.from_rows(frames)
    back = decoded(encode_frames(columns, delta=form[0], codec=form[1]))
    assert back.equals(columns)
    assert list(back.rows()) == frames


@given(rows())
def test_one_at_a_time_gives_the_same_bytes_as_bulk(frames: list[Row]) -> None:
    builder = FrameBuilder()
    for time_us, can_id, payload in frames:
        builder.append(time_us, can_id, payload)
    assert len(builder) == len(frames)
    assert builder.payload_bytes == sum(len(row[2]) for row in frames)
    live, bulk = encode_frames(builder.take()), encode_frames(FrameColumns.from_rows(frames))
    assert b"".join(live.buffers) == b"".join(bulk.buffers)
    assert len(builder) == 0
    assert len(builder.take()) == 0


@given(frames=rows(), form=st.sampled_from(FORMS), data=st.data())
def test_counted_frames_are_those_inside_the_windows(
    frames: list[Row], form: tuple[bool, Codec], data: st.DataObject
) -> None:
    windows = data.draw(windows_of(len(frames)))
    made = encode_frames(FrameColumns.from_rows(frames), delta=form[0], codec=form[1])
    block = Block.parse(stamped(made, windows=windows).tobytes())
    inside = [frames[index] for window in block.counted_ranges() for index in window]
    assert list(counted_frames(block).rows()) == inside


@pytest.mark.parametrize("count", [1, 500, 16_384])
def test_a_steady_bus_comes_back_from_delta_planes(count: int) -> None:
    frames = steady_frames(count)
    assert decoded(encode_frames(frames, delta=True, codec=Codec.ZSTD)).equals(frames)


def test_mixed_lengths_of_many_frames_come_back_from_delta_planes() -> None:
    random = np.random.default_rng(5)
    frames = FrameColumns.from_rows(
        (time, int(random.integers(0, 40)), random.bytes(int(random.choice([0, 3, 8, 43, 223, 1785]))))
        for time in range(4_000)
    )
    made = encode_frames(frames, delta=True)
    assert made.maker.form == FrameForm.DELTA_PLANES
    assert decoded(made).equals(frames)


@pytest.mark.parametrize("ids", [256, 257, 1 << 16])
def test_as_many_groups_as_fit_come_back(ids: int) -> None:
    frames = FrameColumns.from_rows((0, can_id, b"") for can_id in range(ids))
    assert decoded(encode_frames(frames, delta=True)).equals(frames)


def test_more_groups_than_fit_are_refused() -> None:
    frames = FrameColumns.from_rows((0, can_id, b"") for can_id in range((1 << 16) + 1))
    with pytest.raises(InvalidRecord):
        encode_frames(frames, delta=True)


def test_distances_of_71_minutes_choose_wide_times() -> None:
    def form(span: int) -> int:
        return encode_frames(FrameColumns.from_rows([(0, 1, b""), (span, 1, b"")])).maker.form

    assert form(2**32 - 1) == FrameForm.PLAIN
    assert form(2**32) == FrameForm.PLAIN_WIDE


def test_zstd_is_kept_only_where_it_helps() -> None:
    noise = FrameColumns.from_rows([(1, 2, np.random.default_rng(1).bytes(200))])
    zeros = FrameColumns.from_rows([(1, 2, bytes(200))])
    assert encode_frames(noise, codec=Codec.ZSTD).maker.codec == Codec.NONE
    squeezed = encode_frames(zeros, codec=Codec.ZSTD)
    assert squeezed.maker.codec == Codec.ZSTD
    assert squeezed.maker.stored_bytes < squeezed.maker.raw_bytes


def test_what_is_no_frame_is_refused_and_leaves_the_builder_as_it_was() -> None:
    builder = FrameBuilder()
    builder.append(1, 2, b"ok")
    for time_us, can_id, payload in [
        (1, CAN_ID_MAX + 1, b""),
        (1, -1, b""),
        (1, 1, bytes(PAYLOAD_BYTES_MAX + 1)),
        (2**63, 1, b""),
    ]:
        with pytest.raises(InvalidRecord):
            builder.append(time_us, can_id, payload)
    assert list(builder.take().rows()) == [(1, 2, b"ok")]


@pytest.mark.parametrize(
    "change",
    [
        {"times_us": np.zeros(2, dtype=np.int64)},
        {"payload_offsets": np.array([0, 1, 1], dtype=np.int32)},
        {"payload_offsets": np.array([1, 1, 1, 4], dtype=np.int32)},
        {"payload_offsets": np.array([0, 3, 2, 4], dtype=np.int32)},
        {"payload_offsets": np.array([0, 1, 2, 3], dtype=np.int32)},
        {"can_ids": np.array([1, 2, 1 << 29], dtype=np.uint32)},
    ],
    ids=["short times", "short offsets", "not from 0", "falling", "short payload", "30 bit id"],
)
def test_columns_that_disagree_are_refused(change: dict[str, Any]) -> None:
    good = FrameColumns(
        times_us=np.zeros(3, dtype=np.int64),
        can_ids=np.ones(3, dtype=np.uint32),
        payload_offsets=np.array([0, 1, 2, 4], dtype=np.int32),
        payload=np.zeros(4, dtype=np.uint8),
    )
    encode_frames(good)
    with pytest.raises(InvalidRecord):
        encode_frames(replace(good, **change))


# --- bodies that lie -----------------------------------------------------------------------------


def plain_body(distances: list[int], offsets: list[int], payload: bytes) -> bytes:
    count = len(distances)
    return struct.pack(f"<{count}I{count}I{count + 1}i", *distances, *range(count), *offsets) + payload


@pytest.mark.parametrize(
    "body",
    [
        b"",
        plain_body([0, 1, 2], [0, 1, 2, 3], b"abc")[:-4],
        plain_body([0, 1, 2], [1, 1, 2, 3], b"abc"),
        plain_body([0, 1, 2], [0, 2, 1, 3], b"abc"),
        plain_body([0, 1, 2], [0, 1, 2, 4], b"abc"),
        plain_body([0, 1, 2], [0, 1, 2, 2], b"abc"),
        plain_body([0, 1, 2], [0, -(2**31), 2**31 - 1, 3], b"abc"),
        plain_body([0, 1, 3], [0, 1, 2, 3], b"abc"),
    ],
    ids=["empty", "short", "not from 0", "falling", "past the end", "before the end", "wrapping", "outside the span"],
)
def test_a_plain_body_that_lies_is_refused(body: bytes) -> None:
    honest = stamped(encode_frames(FrameColumns.from_rows([(0, 0, b"a"), (1, 1, b"b"), (2, 2, b"c")])))
    assert with_body(honest, plain_body([0, 1, 2], [0, 1, 2, 3], b"abc")) == honest.tobytes()
    assert isinstance(refusal(with_body(honest, body)), BlockCorrupt)


def delta_body(
    *, groups: int = 1, reserved: int = 0, index_bytes: int = 1, time_bytes: int = 1, length: int = 1, tail: bytes = b""
) -> bytes:
    return struct.pack("<IHBBIH", groups, reserved, index_bytes, time_bytes, 5, length) + tail


@pytest.mark.parametrize(
    "body",
    [
        b"",
        delta_body()[:7],
        delta_body(),
        delta_body(groups=2**32 - 1, tail=bytes(100)),
        delta_body(groups=0, tail=bytes(100)),
        delta_body(reserved=1, tail=b"\0\0\0\2ab"),
        delta_body(index_bytes=0, tail=b"\0\0\0\2ab"),
        delta_body(index_bytes=3, tail=b"\0\0\0\2ab"),
        delta_body(time_bytes=9, tail=bytes(100)),
        delta_body(tail=b"\0\1\0\2ab"),
        delta_body(tail=b"\0\0\0\2abc"),
        delta_body(tail=b"\0\0\0\2a"),
        delta_body(length=0xFFFF, tail=b"\0\0\0\2ab"),
        delta_body(tail=b"\0\0\0\4ab"),
        delta_body(tail=b"\0\0\1\0ab"),
    ],
    ids=range(15),
)
def test_a_delta_body_that_lies_is_refused(body: bytes) -> None:
    honest = stamped(encode_frames(FrameColumns.from_rows([(0, 5, b"a"), (1, 5, b"c")]), delta=True))
    assert with_body(honest, delta_body(tail=b"\0\0\0\2a\2")) == honest.tobytes()
    assert isinstance(refusal(with_body(honest, body)), BlockCorrupt)


def test_a_form_of_a_newer_version_is_refused() -> None:
    honest = stamped(encode_frames(steady_frames(2)))
    assert "newer" in refusal(with_body(honest, honest.body, (FORM, "B", 9))).problem


def test_a_block_of_messages_holds_no_frames() -> None:
    with pytest.raises(BlockCorrupt):
        decode_block_frames(stamped(encode_messages([Message(time_us=1)])))
