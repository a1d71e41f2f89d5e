"""Blocks to Arrow, whole columns at a time.

The only module of `blocks` that imports pyarrow: it costs 55 MB of memory, which a boat does not have to spare, so code
that needs this module imports it at the point of use.

A single block of plain columns is not copied: Arrow's buffers point into the body. Many small blocks, as a live bus
leaves them, are decoded together: each costs a few slices, then every column is joined once and checked once. No path
takes a Python step per record.

Invariants:
A1  Only records that count are seen, and their offsets run on over the windows.
A2  Nothing reaches Arrow before it was checked: Arrow itself trusts offsets and would read anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns, UInt8s
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.frames import FrameForm, check_plain_bytes
from tidelog.blocks.header import DEFAULT_LIMITS, BlockKind, BlockLimits, Buffer, Codec, time_outside_span
from tidelog.blocks.messages import HAS_KEY, HAS_VALUE, BytesColumn, MessageColumns, decode_messages
from tidelog.errors import BlockCorrupt, InvalidRecord

_TIME: Final = pa.timestamp("us", tz="UTC")

# Fields stay nullable even where no null occurs: table formats and Spark refuse to mix batches whose
# schemas differ in that alone, and theirs are nullable.
FRAME_SCHEMA: Final = pa.schema(
    [
        ("offset", pa.uint64()),
        ("seq", pa.uint64()),  # null where the block's records have none
        ("time", _TIME),
        ("can_id", pa.uint32()),
        ("data", pa.binary()),
    ]
)

_HEADER: Final = pa.struct([("name", pa.string()), ("value", pa.binary())])
_RECORD_FIELDS: Final = [
    pa.field("time", _TIME),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(_HEADER)),
]

MESSAGE_SCHEMA: Final = pa.schema([("offset", pa.uint64()), ("seq", pa.uint64()), *_RECORD_FIELDS])

BINARY_BYTES_MAX: Final = 2**31 - 1
"""Arrow's binary type counts bytes in 32 bits."""

_FRAMES: Final = int(BlockKind.FRAMES)
_PLAIN: Final = int(FrameForm.PLAIN)
_NONE: Final = int(Codec.NONE)

_UInt64s = npt.NDArray[np.uint64]
_Bools = npt.NDArray[np.bool]


def frames_to_arrow(blocks: Sequence[Block], limits: BlockLimits = DEFAULT_LIMITS) -> pa.RecordBatch:
    """The frames of verified frame and foreign blocks, in the order of the blocks."""
    frames = _gather_frames(blocks, limits)
    offsets, seqs, has_seq = _places(blocks)
    columns = [
        _fixed(pa.uint64(), offsets),
        _fixed(pa.uint64(), seqs, valid=has_seq),
        _fixed(_TIME, frames.times_us),
        _fixed(pa.uint32(), frames.can_ids),
        _binary(BytesColumn(frames.payload_offsets, frames.payload)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def messages_to_arrow(blocks: Sequence[Block], limits: BlockLimits = DEFAULT_LIMITS) -> pa.RecordBatch:
    """The messages of verified message blocks, in the order of the blocks."""
    parts: list[pa.Array] = []
    string_bytes = 0
    for block in blocks:
        if block.maker.kind != BlockKind.MESSAGES:
            raise BlockCorrupt(problem=f"a block of kind {block.maker.kind} holds no messages")
        messages = decode_messages(block.maker, block.raw_body(limits))
        string_bytes += sum(len(column.data) for column in (messages.keys, messages.values, messages.header_values))
        records = _message_records(messages)
        parts.extend(records.slice(window.start, len(window)) for window in block.counted_ranges())
    _check_total(string_bytes)
    offsets, seqs, has_seq = _places(blocks)
    records = pa.concat_arrays(parts) if parts else pa.array([], pa.struct(_RECORD_FIELDS))
    columns = [_fixed(pa.uint64(), offsets), _fixed(pa.uint64(), seqs, valid=has_seq), *records.flatten()]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


# --- offsets and seqs ----------------------------------------------------------------------------


def _places(blocks: Sequence[Block]) -> tuple[_UInt64s, _UInt64s, _Bools | None]:
    """Offset and seq of every record that counts, and which of them have a seq (None: all)."""
    spans: list[tuple[int, int, int]] = []
    for block in blocks:
        base_offset, base_seq = block.leader.base_offset, block.maker.base_seq
        if not block.windows:
            spans.append((base_offset, base_seq, block.maker.record_count))
            continue
        for window in block.windows:
            spans.append((base_offset, base_seq and base_seq + window.start, len(window)))
            base_offset += len(window)
    if len(spans) == 1:
        base_offset, base_seq, count = spans[0]
        steps = np.arange(count, dtype=np.uint64)
        has_seq = None if base_seq else np.zeros(count, dtype=np.bool)
        return steps + np.uint64(base_offset), steps + np.uint64(base_seq), has_seq
    firsts, first_seqs, counts = np.array(spans, dtype=np.uint64).reshape(-1, 3).T
    with_seq = first_seqs != 0
    ends = np.cumsum(counts, dtype=np.uint64)
    total = int(ends[-1]) if len(ends) else 0
    steps = np.arange(total, dtype=np.uint64)
    # Record k of a span lies at first + k; its row number is start + k, so rows need first - start added.
    # The difference may be negative: unsigned numbers wrap there and wrap back.
    starts, repeats = ends - counts, counts.astype(np.intp)
    offsets = steps + _spread(firsts - starts, repeats)
    seqs = steps + _spread(first_seqs - starts, repeats)
    return offsets, seqs, None if with_seq.all() else np.repeat(with_seq, repeats)


def _spread(values: _UInt64s, repeats: npt.NDArray[np.intp]) -> _UInt64s | np.uint64:
    """Each value as often as its span is long; one number where they are all the same."""
    if len(values) and (values == values[0]).all():
        return np.uint64(values[0])
    return np.repeat(values, repeats)


# --- frames --------------------------------------------------------------------------------------


def _gather_frames(blocks: Sequence[Block], limits: BlockLimits) -> FrameColumns:
    parts: list[FrameColumns] = []
    for together, run in groupby(blocks, _joins_others):
        listed = list(run)
        if together and len(listed) > 1:
            parts.append(_join_plain(listed, limits))
        else:
            parts.extend(counted_frames(block, limits) for block in listed)
    _check_total(sum(len(part.payload) for part in parts))
    return FrameColumns.concatenate(parts)


def _joins_others(block: Block) -> bool:
    maker = block.maker
    return maker.kind == _FRAMES and maker.form == _PLAIN and not block.windows


def _join_plain(blocks: Sequence[Block], limits: BlockLimits) -> FrameColumns:
    """Plain blocks without windows as one: slice each body four times, then work on whole columns."""
    times: list[Buffer] = []
    can_ids: list[Buffer] = []
    offsets: list[Buffer] = []
    payloads: list[Buffer] = []
    heads: list[tuple[int, int, int]] = []
    for block in blocks:
        maker = block.maker
        raw: Buffer = block.body if maker.codec == _NONE else block.raw_body(limits)
        count, raw_bytes = maker.record_count, maker.raw_bytes
        columns_bytes = 12 * count + 4
        check_plain_bytes(count, columns_bytes, raw_bytes)
        times.append(raw[: 4 * count])
        can_ids.append(raw[4 * count : 8 * count])
        offsets.append(raw[8 * count : columns_bytes])
        payloads.append(raw[columns_bytes:raw_bytes])
        heads.append((count, raw_bytes - columns_bytes, maker.time_min_us))
    counts, payload_bytes, times_min = np.array(heads, dtype=np.int64).T
    spans = np.array([block.maker.time_max_us - block.maker.time_min_us for block in blocks], dtype=np.uint64)
    distances = np.frombuffer(b"".join(times), dtype="<u4")
    if (distances > np.repeat(spans, counts)).any():
        raise time_outside_span()
    return FrameColumns(
        times_us=np.repeat(times_min, counts) + distances,
        can_ids=np.frombuffer(b"".join(can_ids), dtype="<u4"),
        payload_offsets=_join_offsets(np.frombuffer(b"".join(offsets), dtype="<i4"), counts, payload_bytes),
        payload=np.frombuffer(b"".join(payloads), dtype=np.uint8),
    )


def _join_offsets(
    offsets: npt.NDArray[np.int32], counts: npt.NDArray[np.int64], payload_bytes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Check the payload offsets of many blocks, laid end to end, and count them on from block to block."""
    last = np.cumsum(counts + 1) - 1
    first = last - counts
    falling = offsets[1:] < offsets[:-1]
    falling[last[:-1]] = False  # from one block to the next
    if offsets[first].any() or (offsets[last] != payload_bytes).any() or falling.any():
        raise BlockCorrupt(problem="payload offsets do not rise from 0 to the payload's length")
    ends = np.cumsum(payload_bytes)
    _check_total(int(ends[-1]))
    moved = offsets + np.repeat((ends - payload_bytes).astype(np.int32), counts + 1)
    # The first offset of a block repeats the last one of the block before it.
    keep = np.ones(len(moved), dtype=np.bool)
    keep[first[1:]] = False
    return moved[keep]


def _check_total(payload_bytes: int) -> None:
    if payload_bytes > BINARY_BYTES_MAX:
        raise InvalidRecord(problem=f"{payload_bytes} bytes do not fit one Arrow batch; decode fewer blocks at once")


# --- Arrow arrays --------------------------------------------------------------------------------


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    """The array's own memory; a copy only where the block did not lie aligned."""
    return pa.py_buffer(values if values.flags.aligned else values.copy())


def _bits(valid: _Bools | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed(kind: pa.DataType, values: npt.NDArray[Any], *, valid: _Bools | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), _buffer(values)])


def _binary(column: BytesColumn, *, valid: _Bools | None = None) -> pa.Array:
    buffers = [_bits(valid), _buffer(column.offsets), _buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


def _message_records(messages: MessageColumns) -> pa.Array:
    """Time, key, value and headers of one block as an array of structs."""
    headers = pa.StructArray.from_arrays(
        [_names(messages.header_names), _binary(messages.header_values)], fields=list(_HEADER)
    )
    lists = pa.Array.from_buffers(
        pa.list_(_HEADER), len(messages), [None, _buffer(messages.header_ends)], children=[headers]
    )
    return pa.StructArray.from_arrays(
        [
            _fixed(_TIME, messages.times_us),
            _binary(messages.keys, valid=_flagged(messages.flags, HAS_KEY)),
            _binary(messages.values, valid=_flagged(messages.flags, HAS_VALUE)),
            lists,
        ],
        fields=_RECORD_FIELDS,
    )


def _flagged(flags: UInt8s, bit: int) -> _Bools | None:
    valid = (flags & np.uint8(bit)) != 0
    return None if valid.all() else valid


def _names(column: BytesColumn) -> pa.Array:
    """Header names as text. Bytes that are no UTF-8 are replaced, as `MessageColumns.rows` does."""
    try:
        return _binary(column).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in column.tolist()], pa.string())
