"""Bodies of frame blocks: plain columns for live blocks, delta planes for journal-sized ones.

Plain (`FrameForm.PLAIN`, `PLAIN_WIDE`): times as distance from the block's smallest time (32 or 64
bits), CAN ids, Arrow-style payload offsets, payload bytes. `numpy.frombuffer` reads every column
in place.

Delta planes (`FrameForm.DELTA_PLANES`): a bus repeats itself, so frames are grouped by (CAN id,
length), each payload becomes its byte-wise difference from the one before it in that order, and
the bytes are stored plane by plane (all first bytes, then all second bytes, ...). zstd then finds
long runs of zeros where plain columns give it noise: about half the size on real captures, no
gain below some 500 frames. Decoding is a cumulative sum and one scatter per payload length.

Both forms keep the order of arrival and take any clock: running backwards, standing still, or 1970.
"""

from __future__ import annotations

import struct
from array import array
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tidelog.blocks.block import DEFAULT_ZSTD_LEVEL, MadeBlock, make_block
from tidelog.blocks.columns import PAYLOAD_BYTES_MAX, FrameColumns, Int32s, UInt8s, UInt32s
from tidelog.blocks.header import (
    DEFAULT_LIMITS,
    NO_PRODUCER,
    BlockKind,
    BlockLimits,
    Buffer,
    Codec,
    Maker,
    time_outside_span,
)
from tidelog.errors import BlockCorrupt, InvalidRecord

CAN_ID_MAX: Final = 0x1FFF_FFFF

_UInt64s = npt.NDArray[np.uint64]
_NARROW_MAX: Final = 2**32
_WORTH_COMPRESSING_BYTES: Final = 512
_EMPTY_TIMES: Final = (0, 0)

_DELTA_HEAD: Final = struct.Struct("<IHBB")
_GROUP_BYTES: Final = 6
_GROUPS_MAX: Final = 1 << 16
_SCATTER_BYTES: Final = 1 << 20


class FrameForm(IntEnum):
    PLAIN = 1
    PLAIN_WIDE = 2
    DELTA_PLANES = 3


# --- encoding ------------------------------------------------------------------------------------


def encode_frames(
    frames: FrameColumns,
    *,
    base_seq: int = 0,
    producer: bytes = NO_PRODUCER,
    delta: bool = False,
    codec: Codec = Codec.NONE,
    level: int = DEFAULT_ZSTD_LEVEL,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> MadeBlock:
    """One block of these frames. `delta` chooses delta planes, which pay off with zstd and many frames."""
    frames.check()
    if len(frames) and int(frames.can_ids.max()) > CAN_ID_MAX:
        raise InvalidRecord(problem="a CAN id has more than 29 bits")
    smallest, largest = (int(frames.times_us.min()), int(frames.times_us.max())) if len(frames) else _EMPTY_TIMES
    if delta:
        form, raw = _encode_delta(frames, smallest)
    else:
        form, raw = _encode_plain(frames, smallest, largest)
    return make_block(
        raw,
        kind=BlockKind.FRAMES,
        form=form,
        record_count=len(frames),
        codec=codec,
        level=level,
        time_min_us=smallest,
        time_max_us=largest,
        base_seq=base_seq,
        producer=producer,
        limits=limits,
    )


def codec_for(frames: FrameColumns, *, worth_bytes: int = _WORTH_COMPRESSING_BYTES) -> Codec:
    """zstd, except where there are too few frames to gain from it."""
    plain_bytes = len(frames.payload) + 12 * len(frames)
    return Codec.ZSTD if plain_bytes >= worth_bytes else Codec.NONE


class FrameBuilder:
    """Gathers frames one at a time, as a live bus delivers them, into the columns of one block."""

    __slots__ = ("_can_ids", "_offsets", "_payload", "_times_us")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._times_us = array("q")
        self._can_ids = array("I")
        self._offsets = array("i", (0,))
        self._payload = bytearray()

    def append(self, time_us: int, can_id: int, payload: Buffer) -> None:
        if len(payload) > PAYLOAD_BYTES_MAX or not 0 <= can_id <= CAN_ID_MAX:
            raise InvalidRecord(
                problem=f"CAN id {can_id:#x} with {len(payload)} bytes is not a frame: "
                f"ids have 29 bits, payloads at most {PAYLOAD_BYTES_MAX} bytes"
            )
        # The time goes first: if it does not fit 64 bits nothing has been taken yet.
        try:
            self._times_us.append(time_us)
        except OverflowError:
            raise InvalidRecord(problem=f"time {time_us} does not fit 64 bits") from None
        self._can_ids.append(can_id)
        self._payload += payload
        self._offsets.append(len(self._payload))

    def __len__(self) -> int:
        return len(self._can_ids)

    @property
    def payload_bytes(self) -> int:
        return len(self._payload)

    def take(self) -> FrameColumns:
        """Hand out what was gathered and start anew."""
        frames = FrameColumns(
            times_us=np.frombuffer(self._times_us, dtype=np.int64),
            can_ids=np.frombuffer(self._can_ids, dtype=np.uint32),
            payload_offsets=np.frombuffer(self._offsets, dtype=np.int32),
            payload=np.frombuffer(self._payload, dtype=np.uint8),
        )
        self._clear()
        return frames


def _encode_plain(frames: FrameColumns, smallest: int, largest: int) -> tuple[FrameForm, bytes]:
    # Unsigned subtraction wraps to the true distance whatever the signs of the two times are.
    distances = frames.times_us.view(np.uint64) - np.uint64(smallest & 0xFFFF_FFFF_FFFF_FFFF)
    wide = largest - smallest >= _NARROW_MAX
    form = FrameForm.PLAIN_WIDE if wide else FrameForm.PLAIN
    return form, b"".join(
        (
            distances.astype("<u8" if wide else "<u4").tobytes(),
            frames.can_ids.astype("<u4", copy=False).tobytes(),
            frames.payload_offsets.astype("<i4", copy=False).tobytes(),
            frames.payload.tobytes(),
        )
    )


def _encode_delta(frames: FrameColumns, smallest: int) -> tuple[FrameForm, bytes]:
    count = len(frames)
    lengths = np.diff(frames.payload_offsets)
    keys = frames.can_ids.astype(np.uint64) << np.uint64(16) | lengths.astype(np.uint64)
    groups, group_of = np.unique(keys, return_inverse=True)
    if len(groups) > _GROUPS_MAX:
        raise InvalidRecord(problem=f"{len(groups)} kinds of frame in one block, at most {_GROUPS_MAX} fit")
    index_bytes = 1 if len(groups) <= 256 else 2
    previous = np.empty(count, dtype=np.uint64)
    times = frames.times_us.view(np.uint64)
    if count:
        previous[0] = np.uint64(smallest & 0xFFFF_FFFF_FFFF_FFFF)
        previous[1:] = times[:-1]
    steps = _zigzag(times - previous)
    time_bytes = (int(steps.max()).bit_length() + 7) // 8 if count else 0
    order = np.argsort(group_of.astype(np.uint16), kind="stable")
    parts = [
        _DELTA_HEAD.pack(len(groups), 0, index_bytes, time_bytes),
        (groups >> np.uint64(16)).astype("<u4").tobytes(),
        (groups & np.uint64(0xFFFF)).astype("<u2").tobytes(),
        _to_planes(group_of.astype(np.uint64), index_bytes),
        _to_planes(steps, time_bytes),
    ]
    ordered_lengths = lengths[order]
    for length in np.unique(ordered_lengths).tolist():
        if length:
            rows = order[ordered_lengths == length]
            payloads = frames.payload[frames.payload_offsets[rows][:, None] + np.arange(length, dtype=np.int32)]
            parts.append(_differences(payloads).tobytes())
    return FrameForm.DELTA_PLANES, b"".join(parts)


def _differences(payloads: UInt8s) -> UInt8s:
    """Planes (byte position first) of each row minus the row before it, modulo 256.

    The subtraction runs across group borders on purpose: one odd row per group costs less than the
    bookkeeping that would spare it, and decoding becomes one plain cumulative sum.
    """
    planes = np.ascontiguousarray(payloads.T)
    steps = planes.copy()
    steps[:, 1:] -= planes[:, :-1]
    return steps


def _zigzag(steps: _UInt64s) -> _UInt64s:
    signed = steps.view(np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def _unzigzag(values: _UInt64s) -> _UInt64s:
    return (values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))


def _to_planes(values: _UInt64s, width: int) -> bytes:
    return values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()


# --- decoding ------------------------------------------------------------------------------------


def decode_frames(maker: Maker, raw: Buffer) -> FrameColumns:
    """The columns of a frame body that has been checked and inflated."""
    if maker.form == FrameForm.DELTA_PLANES:
        return _decode_delta(maker, raw)
    if maker.form in (FrameForm.PLAIN, FrameForm.PLAIN_WIDE):
        return _decode_plain(maker, raw)
    raise BlockCorrupt(problem=f"frame form {maker.form} is unknown; a newer Tidelog wrote this block")


def check_frames(maker: Maker, raw: Buffer) -> None:
    """Raise whatever `decode_frames` would. For delta planes at a fifth of the cost: payloads can be anything, so they
    are counted and not put in order."""
    if maker.form == FrameForm.DELTA_PLANES:
        _delta_columns(maker, raw)
    else:
        decode_frames(maker, raw)


PlainColumns = tuple[npt.NDArray[np.unsignedinteger], UInt32s, Int32s, UInt8s]


def plain_columns(maker: Maker, raw: Buffer) -> PlainColumns:
    """Distances from time_min, ids, payload offsets and payload of a plain body, in place.

    The offsets are not compared with each other here: a caller that decodes many small blocks at once checks them
    together (`check_offsets`).
    """
    count = maker.record_count
    time_bytes = 8 if maker.form == FrameForm.PLAIN_WIDE else 4
    columns_bytes = count * (time_bytes + 8) + 4
    check_plain_bytes(count, columns_bytes, len(raw))
    ids_at = count * time_bytes
    offsets_at = ids_at + 4 * count
    return (
        np.frombuffer(raw, dtype="<u8" if time_bytes == 8 else "<u4", count=count),
        np.frombuffer(raw, dtype="<u4", count=count, offset=ids_at),
        np.frombuffer(raw, dtype="<i4", count=count + 1, offset=offsets_at),
        np.frombuffer(raw, dtype=np.uint8, offset=columns_bytes),
    )


def check_plain_bytes(count: int, columns_bytes: int, raw_bytes: int) -> None:
    if raw_bytes < columns_bytes:
        raise BlockCorrupt(problem=f"{count} frames need at least {columns_bytes} bytes, the body has {raw_bytes}")


def check_offsets(offsets: Int32s, payload_bytes: int) -> None:
    if int(offsets[0]) != 0 or int(offsets[-1]) != payload_bytes or bool((offsets[1:] < offsets[:-1]).any()):
        raise BlockCorrupt(problem="payload offsets do not rise from 0 to the payload's length")


def _decode_plain(maker: Maker, raw: Buffer) -> FrameColumns:
    distances, can_ids, offsets, payload = plain_columns(maker, raw)
    check_offsets(offsets, len(payload))
    if len(distances) and int(distances.max()) > maker.time_max_us - maker.time_min_us:
        raise time_outside_span()
    times = distances + np.uint64(maker.time_min_us & 0xFFFF_FFFF_FFFF_FFFF)
    return FrameColumns(times_us=times.view(np.int64), can_ids=can_ids, payload_offsets=offsets, payload=payload)


class _DeltaColumns(NamedTuple):
    """A delta body, checked, up to its payloads."""

    times_us: npt.NDArray[np.int64]
    group_of: npt.NDArray[np.unsignedinteger]
    group_ids: UInt32s
    group_lengths: Int32s
    lengths: Int32s
    payload_at: int


def _delta_columns(maker: Maker, raw: Buffer) -> _DeltaColumns:
    count = maker.record_count
    group_lengths, group_ids, index_bytes, time_bytes, position = _decode_delta_head(count, raw)
    group_of = _from_planes(raw, position, count, index_bytes)
    position += count * index_bytes
    steps = _unzigzag(_from_planes(raw, position, count, time_bytes).astype(np.uint64, copy=False))
    position += count * time_bytes
    # A slice, because numpy warns when a single number wraps and not when an array does.
    steps[:1] += np.uint64(maker.time_min_us & 0xFFFF_FFFF_FFFF_FFFF)
    times = np.cumsum(steps, dtype=np.uint64).view(np.int64)
    if count and (int(times.min()) < maker.time_min_us or int(times.max()) > maker.time_max_us):
        raise time_outside_span()
    if count and int(group_of.max()) >= len(group_ids):
        raise BlockCorrupt(problem="a frame names a group that does not exist")
    lengths = group_lengths[group_of]
    # The sum is bounded by the body: each payload byte lies in it once, compared just below.
    total = int(lengths.sum(dtype=np.int64))
    if total != len(raw) - position:
        raise BlockCorrupt(problem=f"payloads need {total} bytes, the body has {len(raw) - position}")
    return _DeltaColumns(times, group_of, group_ids, group_lengths, lengths, position)


def _decode_delta(maker: Maker, raw: Buffer) -> FrameColumns:
    columns = _delta_columns(maker, raw)
    offsets = np.zeros(maker.record_count + 1, dtype=np.int32)
    np.cumsum(columns.lengths, out=offsets[1:])
    payload = _decode_payload(
        raw, columns.payload_at, columns.group_of, columns.group_lengths, columns.lengths, offsets
    )
    can_ids = columns.group_ids[columns.group_of]
    return FrameColumns(times_us=columns.times_us, can_ids=can_ids, payload_offsets=offsets, payload=payload)


def _decode_delta_head(count: int, raw: Buffer) -> tuple[Int32s, UInt32s, int, int, int]:
    if len(raw) < _DELTA_HEAD.size:
        raise BlockCorrupt(problem="a delta body is shorter than its head")
    groups, reserved, index_bytes, time_bytes = _DELTA_HEAD.unpack_from(raw)
    position = _DELTA_HEAD.size
    needed = position + groups * _GROUP_BYTES + count * (index_bytes + time_bytes)
    if reserved or index_bytes not in (1, 2) or time_bytes > 8 or groups > _GROUPS_MAX or len(raw) < needed:
        raise BlockCorrupt(problem=f"a delta body of {len(raw)} bytes cannot hold {count} frames in {groups} groups")
    group_ids = np.frombuffer(raw, dtype="<u4", count=groups, offset=position)
    position += 4 * groups
    group_lengths = np.frombuffer(raw, dtype="<u2", count=groups, offset=position).astype(np.int32)
    return group_lengths, group_ids, index_bytes, time_bytes, position + 2 * groups


def _from_planes(raw: Buffer, position: int, count: int, width: int) -> npt.NDArray[np.unsignedinteger]:
    planes = np.frombuffer(raw, dtype=np.uint8, count=count * width, offset=position).reshape(width, count)
    if width == 1:
        return planes.reshape(count)
    # Plane by plane, each of them in one piece: several times faster than gathering the bytes of each value.
    whole = np.dtype(np.uint16 if width == 2 else np.uint32 if width <= 4 else np.uint64)
    values: npt.NDArray[np.unsignedinteger] = np.zeros(count, dtype=whole)
    for place in range(width):
        values |= np.left_shift(planes[place], 8 * place, dtype=whole)
    return values


def _decode_payload(
    raw: Buffer,
    position: int,
    group_of: npt.NDArray[np.unsignedinteger],
    group_lengths: Int32s,
    lengths: Int32s,
    offsets: Int32s,
) -> UInt8s:
    # Groups are numbered by (id, length), so sorting by group restores the encoder's row order.
    order = np.argsort(group_of, kind="stable")
    ordered_lengths = lengths[order]
    payload = np.empty(int(offsets[-1]), dtype=np.uint8)
    present = np.unique(group_lengths[np.bincount(group_of, minlength=len(group_lengths)) > 0]).tolist()
    for length in present:
        if not length:
            continue
        rows = order if len(present) == 1 else order[ordered_lengths == length]
        steps = np.frombuffer(raw, dtype=np.uint8, count=length * len(rows), offset=position)
        position += length * len(rows)
        planes = np.cumsum(steps.reshape(length, len(rows)), axis=1, dtype=np.uint8)
        _scatter(payload, planes, rows, offsets, uniform=len(present) == 1)
    return payload


def _scatter(payload: UInt8s, planes: UInt8s, rows: npt.NDArray[np.intp], offsets: Int32s, *, uniform: bool) -> None:
    length = len(planes)
    values = np.ascontiguousarray(planes.T)
    if length == 8:
        # Eight bytes are one machine word: move frames, not bytes.
        words = values.view(np.uint64).reshape(-1)
        if uniform:
            payload.view(np.uint64)[rows] = words
        else:
            # A word may start at any byte of the payload; element k of this view is the one that starts at k.
            anywhere = np.ndarray(len(payload) - 7, dtype=np.uint64, buffer=payload, strides=(1,))
            anywhere[offsets[rows]] = words
        return
    if uniform:
        payload.reshape(-1, length)[rows] = values
        return
    # One index per byte takes eight times the payload: a chunk at a time keeps that small.
    chunk = max(1, _SCATTER_BYTES // length)
    columns = np.arange(length, dtype=np.int32)
    for start in range(0, len(rows), chunk):
        payload[offsets[rows[start : start + chunk]][:, None] + columns] = values[start : start + chunk]
