"""One logical block of an lplex journal (.lpj): bytes to frame columns and back.

A block is a fixed number of bytes: base time, base seq (version 2), frame records packed from the
front, a device table packed against the trailer, and a trailer with table length, frame count and
CRC-32C. Files, framing and indexes are in `tidelog.compat.lpj`.

A record's place depends on every record before it, because time deltas and payload lengths have variable width. To
avoid a Python loop the decoder computes for *every* byte position where a record that starts there would end, and then
follows that table from the first record (`_record_starts`). Most results are meaningless and never used; numpy computes
all of them in the time Python needs for a few hundred records.

Invariants:
J1  Nothing is decoded from a block whose checksum does not match.
J2  No input makes a decoder read outside the block, or allocate more than a fixed multiple of it.
J3  A block is gap-free in seq and never goes back in time: the format cannot say otherwise, so the
    encoder refuses what it could only store wrongly.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import zstandard
from fastcrc import crc32

from tidelog.blocks.columns import PAYLOAD_BYTES_MAX, FrameColumns, Int64s, UInt8s, UInt32s
from tidelog.errors import BadBlock, BlockCorrupt, BlockTooLarge, BlockTruncated, InvalidRecord
from tidelog.units import KIB, MIB

LPJ_BLOCK_BYTES: Final = 256 * KIB
"""What lplex writes unless told otherwise."""
LPJ_BLOCK_BYTES_MIN: Final = 4 * KIB
LPJ_BLOCK_BYTES_MAX: Final = 16 * MIB
"""Our limit; lplex names none."""
LPJ_WINDOW_BYTES_MAX: Final = 16 * MIB
"""No frame that inflates to one block has use for a larger zstd window."""
LPJ_DICTIONARY_BYTES: Final = 8 * KIB
"""The size lplex trains its per-block dictionaries to."""
LPJ_DICTIONARY_BYTES_MAX: Final = 128 * KIB
LPJ_DEVICE_TABLE_BYTES_MAX: Final = 0xFFFF
"""The table's length is a u16. lplex lets it wrap and ruins the block; we refuse."""
LPJ_DEVICE_TABLE_BYTES_MIN: Final = 2

_TRAILER: Final = struct.Struct("<HII")
_CRC: Final = struct.Struct("<I")
_HEADER_V1: Final = struct.Struct("<q")
_HEADER_V2: Final = struct.Struct("<qQ")
_DEVICE_COUNT: Final = struct.Struct("<H")
_DEVICE: Final = struct.Struct("<BQIH")
_DICTIONARY_HEADER: Final = struct.Struct("<II")

_EIGHT_BYTES_FLAG: Final = 0x8000_0000
_RECORD_BYTES_MIN: Final = 6
_RECORD_BYTES_MAX: Final = 9 + 4 + 2 + PAYLOAD_BYTES_MAX
_DELTA_BYTES_MAX: Final = 9
"""Nine groups of seven bits fill an int64; a longer delta is no time we can hold."""
_DOUBLINGS: Final = 5
"""The record chain is walked 2**5 records at a time; see `_window_starts`."""
_WINDOW_BYTES: Final = 32 * KIB
"""Bytes examined at once: large blocks cost time, not memory, and the tables stay near the processor."""
_LOOK_AHEAD_BYTES: Final = 16
_SEQ_END: Final = 1 << 64

UInt16s = npt.NDArray[np.uint16]
Bools = npt.NDArray[np.bool]
Item = TypeVar("Item", np.uint32, np.uint64)


class LpjCompression(enum.IntEnum):
    """How the blocks of a file are stored; the value is the low byte of the file's flags."""

    NONE = 0
    ZSTD = 1
    ZSTD_DICT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LpjDevice:
    """What a block knows of one device on the bus. Texts are bytes as found: vendors pad them freely."""

    source: int
    name: int
    active_from: int = 0
    """Index of the first frame of this block that the entry holds for; 0 is "known at its start"."""
    product_code: int = 0
    model_id: bytes = b""
    software_version: bytes = b""
    model_version: bytes = b""
    serial: bytes = b""

    @property
    def texts(self) -> tuple[bytes, bytes, bytes, bytes]:
        return self.model_id, self.software_version, self.model_version, self.serial


@dataclass(frozen=True, slots=True, kw_only=True)
class LpjBlock:
    base_time_us: int
    base_seq: int
    """Seq of the first frame; frame i has base_seq + i. 0 in version 1, which has no seqs."""
    frames: FrameColumns
    devices: list[LpjDevice]
    damage: str | None = None
    """Only with `salvage`: why the frames or devices end early."""

    def device_at(self, source: int, frame_index: int) -> LpjDevice | None:
        """Which device held this source address when that frame was sent, as far as the block says."""
        held = [entry for entry in self.devices if entry.source == source and entry.active_from <= frame_index]
        return max(held, key=lambda entry: entry.active_from, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LpjBlockSummary:
    """What the fixed fields of a checked block say."""

    base_time_us: int
    base_seq: int
    frame_count: int
    device_table_bytes: int


# --- decoding ------------------------------------------------------------------------------------


def check_lpj_block_size(block_size: int) -> None:
    """Refuse a block size that no .lpj file may have."""
    if block_size > LPJ_BLOCK_BYTES_MAX:
        raise BlockTooLarge(problem=f"block size {block_size} is above the limit of {LPJ_BLOCK_BYTES_MAX} bytes")
    if block_size < LPJ_BLOCK_BYTES_MIN or block_size & (block_size - 1):
        raise BlockCorrupt(problem=f"block size {block_size} is not a power of two from {LPJ_BLOCK_BYTES_MIN} up")


def summarize_lpj_block(block: bytes | memoryview, *, version: int) -> LpjBlockSummary:
    """Check size, checksum and fixed fields of a block without decoding its frames."""
    check_lpj_block_size(len(block))
    table_bytes, frame_count, crc = _TRAILER.unpack_from(block, len(block) - _TRAILER.size)
    computed = crc32.iscsi(memoryview(block)[: -_CRC.size])
    if computed != crc:
        raise BlockCorrupt(problem=f"checksum is {crc:08x} but the bytes give {computed:08x}")
    header_bytes = _header_bytes(version)
    region_bytes = len(block) - _TRAILER.size - table_bytes - header_bytes
    if table_bytes < LPJ_DEVICE_TABLE_BYTES_MIN or region_bytes < 0:
        raise BlockCorrupt(problem=f"a device table of {table_bytes} bytes does not fit the block")
    if frame_count * _RECORD_BYTES_MIN > region_bytes:
        raise BlockCorrupt(problem=f"{frame_count} frames cannot fit in {region_bytes} bytes")
    base_seq = 0
    if version == 1:
        (base_time_us,) = _HEADER_V1.unpack_from(block)
    else:
        base_time_us, base_seq = _HEADER_V2.unpack_from(block)
    if base_seq + frame_count > _SEQ_END:
        raise BlockCorrupt(problem=f"{frame_count} frames from seq {base_seq} run past the last seq")
    return LpjBlockSummary(
        base_time_us=base_time_us, base_seq=base_seq, frame_count=frame_count, device_table_bytes=table_bytes
    )


def decode_lpj_block(block: bytes | memoryview, *, version: int, salvage: bool = False) -> LpjBlock:
    """Check and decode one block. `salvage` keeps what precedes a bad record under a good checksum.

    lplex readers skip the rest of such a block and go on; without `salvage` it is `BlockCorrupt`.
    """
    summary = summarize_lpj_block(block, version=version)
    table_start = len(block) - _TRAILER.size - summary.device_table_bytes
    region = np.frombuffer(block, dtype=np.uint8)[_header_bytes(version) : table_start]
    frames, frame_damage = _decode_frames(region, summary)
    devices, device_damage = _decode_devices(bytes(block[table_start : -_TRAILER.size]))
    damage = frame_damage or device_damage
    if damage is not None and not salvage:
        raise BlockCorrupt(problem=damage)
    return LpjBlock(
        base_time_us=summary.base_time_us, base_seq=summary.base_seq, frames=frames, devices=devices, damage=damage
    )


def _header_bytes(version: int) -> int:
    if version not in (1, 2):
        raise BlockCorrupt(problem=f"version {version} is not known; this reader knows 1 and 2")
    return _HEADER_V1.size if version == 1 else _HEADER_V2.size


def _decode_frames(region: UInt8s, summary: LpjBlockSummary) -> tuple[FrameColumns, str | None]:
    count = summary.frame_count
    if count == 0:
        return FrameColumns.from_rows([]), None
    # A last block with few frames is mostly padding; the most its frames can take bounds the work.
    used_bytes = min(len(region), count * _RECORD_BYTES_MAX)
    padded = np.zeros(used_bytes + _LOOK_AHEAD_BYTES, dtype=np.uint8)
    padded[:used_bytes] = region[:used_bytes]
    # From here on the arrays have one row per frame, not per byte.
    starts, delta_bytes = _record_starts(padded, used_bytes, count)
    ends = starts[1:]
    starts = starts[:-1]
    # Rows behind a bad record point anywhere up to the sentinel; held inside the bytes, they are cut off below.
    id_positions = np.minimum(starts + delta_bytes, used_bytes)
    stored_ids = _unaligned(padded, np.dtype("<u4"))[id_positions]
    lengths, length_bytes = _payload_lengths(padded, id_positions, stored_ids)
    bad = (ends > used_bytes) | (delta_bytes > _DELTA_BYTES_MAX) | (lengths > PAYLOAD_BYTES_MAX)
    good_count = int(np.argmax(bad)) if bad.any() else count
    times_us = _times(padded, starts[:good_count], delta_bytes[:good_count], summary.base_time_us)
    # A sum that passes the end of int64 wraps to something smaller, and deltas are never negative.
    wrapped = times_us < np.concatenate((np.array([summary.base_time_us], dtype=np.int64), times_us[:-1]))
    if wrapped.any():
        good_count = int(np.argmax(wrapped))
    damage = None if good_count == count else f"record {good_count} of {count} is not a frame record"
    lengths = lengths[:good_count]
    payload_starts = id_positions[:good_count] + (4 + length_bytes[:good_count])
    offsets = np.zeros(good_count + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    frames = FrameColumns(
        times_us=times_us[:good_count],
        can_ids=(stored_ids[:good_count] & np.uint32(_EIGHT_BYTES_FLAG - 1)).astype(np.uint32, copy=False),
        payload_offsets=offsets,
        payload=_gather_payload(padded, payload_starts, lengths),
    )
    return frames, damage


def _record_starts(padded: UInt8s, used_bytes: int, count: int) -> tuple[Int64s, Int64s]:
    """Where each of `count` records starts (and the last one ends), and how wide each time delta is.

    Records that would leave the region end at `used_bytes + 1`, and so do all that follow.
    """
    starts_parts: list[Int64s] = []
    delta_parts: list[Int64s] = []
    # One set of tables for all windows: fresh pages from the kernel would cost more than filling them.
    tables = np.empty((_DOUBLINGS + 2, min(_WINDOW_BYTES, used_bytes) + 1), dtype=np.int64)
    position = 0
    remaining = count
    while remaining and position < used_bytes:
        window_bytes = min(_WINDOW_BYTES, used_bytes - position)
        data = padded[position : position + window_bytes + _LOOK_AHEAD_BYTES]
        starts, delta_bytes, end = _window_starts(data, window_bytes, remaining, tables[:, : window_bytes + 1])
        starts_parts.append(starts + position)
        delta_parts.append(delta_bytes)
        remaining -= len(starts)
        position += end
    rest = np.full(remaining + 1, used_bytes + 1, dtype=np.int64)
    rest[0] = min(position, used_bytes + 1)
    return np.concatenate([*starts_parts, rest]), np.concatenate([*delta_parts, np.ones(remaining, dtype=np.int64)])


def _window_starts(data: UInt8s, window_bytes: int, count_max: int, tables: Int64s) -> tuple[Int64s, Int64s, int]:
    """Starts and delta widths of the records that start in a window, and where the last one ends."""
    delta_bytes = _delta_bytes(data, window_bytes)
    ends, *jumps = tables
    ends[:] = np.arange(window_bytes + 1, dtype=np.int64)
    ends[:-1] += delta_bytes
    ends += _sizes_from_id(data, window_bytes).take(ends)
    # The last entry is for "behind this window" and leads to itself.
    np.minimum(ends, window_bytes, out=jumps[0])
    # jumps[k] leads 2**k records on. Doubling all the way would spend a pass over the whole window per
    # step to place ever fewer records; so we stop at 32, take those strides in Python (one step per 32
    # frames), and fill in between them from the finer tables.
    for finer, coarser in pairwise(jumps):
        np.take(finer, finer, out=coarser, mode="clip")
    stride = jumps.pop().data
    position = 0
    strides = [0]
    for _ in range(count_max >> _DOUBLINGS):
        position = stride[position]
        if position == window_bytes:
            break
        strides.append(position)
    starts = np.array(strides, dtype=np.int64)
    for table in reversed(jumps):
        starts = np.stack((starts, table[starts]), axis=1).ravel()
    starts = starts[: min(count_max, int(np.searchsorted(starts, window_bytes)))]
    return starts, delta_bytes[starts].astype(np.int64), int(ends[starts[-1]])


def _delta_bytes(data: UInt8s, window_bytes: int) -> UInt8s:
    """For every position, the bytes of a uvarint that starts there; 10 means more than nine."""
    continues = data[: window_bytes + _DELTA_BYTES_MAX] >> 7
    # The width at p is 1, plus the width at p + 1 if p continues; nine rounds settle nine bytes.
    width = np.ones(window_bytes + _DELTA_BYTES_MAX + 1, dtype=np.uint8)
    more = np.empty_like(continues)
    for _ in range(_DELTA_BYTES_MAX):
        np.multiply(continues, width[1:], out=more)
        np.add(more, 1, out=width[:-1])
    return width[:window_bytes]


def _sizes_from_id(data: UInt8s, window_bytes: int) -> UInt16s:
    """For every position, the bytes of id, length and payload of a record whose id starts there.

    A delta at the window's last byte may put the id behind it, so the answers reach that far.
    """
    count = window_bytes + _DELTA_BYTES_MAX + 1
    # The largest length two bytes can spell, 32,767, and the fields around it just fit 16 bits.
    first = data[4 : count + 4].astype(np.uint16)
    long_length = first >> 7
    sizes = data[5 : count + 5].astype(np.uint16)
    sizes <<= 7
    sizes *= long_length
    sizes += long_length
    sizes += (first & 0x7F) + np.uint16(5)
    sizes += (data[3 : count + 3] >> 7) * (np.uint16(12) - sizes)
    return sizes


def _payload_lengths(padded: UInt8s, id_positions: Int64s, stored_ids: UInt32s) -> tuple[Int64s, Int64s]:
    """Payload lengths and the width of their length fields. A third length byte makes a length too
    large by itself: its continuation bit counts as 16,384."""
    first = padded[id_positions + 4].astype(np.int64)
    second = padded[id_positions + 5].astype(np.int64)
    long_length = first >> 7
    eight = (stored_ids >> 31).astype(np.int64)
    lengths = (first & 0x7F) + long_length * (second << 7)
    lengths += eight * (8 - lengths)
    return lengths, (1 - eight) * (1 + long_length)


def _times(padded: UInt8s, starts: Int64s, delta_bytes: Int64s, base_time_us: int) -> Int64s:
    deltas = np.zeros(len(starts), dtype=np.int64)
    for index in range(int(delta_bytes.max(initial=0))):
        part = padded[starts + index].astype(np.int64) & 0x7F
        part *= delta_bytes > index
        deltas |= part << (7 * index)
    np.cumsum(deltas, out=deltas)
    deltas += base_time_us
    return deltas


def _gather_payload(padded: UInt8s, starts: Int64s, lengths: Int64s) -> UInt8s:
    if len(lengths) and int(lengths.min()) == int(lengths.max()) == 8:
        return _unaligned(padded, np.dtype("<u8"))[starts].view(np.uint8)
    payload: UInt8s = padded[_payload_positions(starts, lengths)]
    return payload


def _payload_positions(starts: Int64s, lengths: Int64s) -> Int64s:
    """The position in the block of every payload byte, in order."""
    ends = np.cumsum(lengths)
    positions = np.repeat(starts - (ends - lengths), lengths)
    positions += np.arange(len(positions), dtype=np.int64)
    return positions


def _unaligned(data: UInt8s, dtype: np.dtype[Item]) -> np.ndarray[tuple[int], np.dtype[Item]]:
    """A view with one item at every byte position."""
    return np.ndarray((len(data) - dtype.itemsize + 1,), dtype=dtype, buffer=data, strides=(1,))


def _decode_devices(table: bytes) -> tuple[list[LpjDevice], str | None]:
    (count,) = _DEVICE_COUNT.unpack_from(table)
    position = _DEVICE_COUNT.size
    devices: list[LpjDevice] = []
    for index in range(count):
        damage = f"device {index} of {count} does not fit its table"
        if position + _DEVICE.size > len(table):
            return devices, damage
        source, name, active_from, product_code = _DEVICE.unpack_from(table, position)
        position += _DEVICE.size
        texts: list[bytes] = []
        for _ in range(4):
            text_start = position + 1
            if text_start > len(table) or text_start + table[position] > len(table):
                return devices, damage
            position = text_start + table[position]
            texts.append(table[text_start:position])
        devices.append(
            LpjDevice(
                source=source,
                name=name,
                active_from=active_from,
                product_code=product_code,
                model_id=texts[0],
                software_version=texts[1],
                model_version=texts[2],
                serial=texts[3],
            )
        )
    return devices, None


# --- encoding ------------------------------------------------------------------------------------


def lpj_device_table_bytes(devices: Sequence[LpjDevice]) -> int:
    """What `lpj_frames_that_fit` wants as `device_bytes`."""
    return _DEVICE_COUNT.size + sum(_DEVICE.size + sum(1 + len(text) for text in device.texts) for device in devices)


def lpj_frames_that_fit(frames: FrameColumns, block_size: int, device_bytes: int) -> int:
    """How many of the frames one block can hold: up to its size, and up to where time goes back."""
    count, _ = lpj_run(frames, space_bytes=lpj_space_bytes(block_size, device_bytes))
    return count


def lpj_space_bytes(block_size: int, device_bytes: int) -> int:
    """Bytes that a version 2 block of this size has for frame records."""
    return max(0, block_size - _HEADER_V2.size - _TRAILER.size - device_bytes)


def lpj_run(frames: FrameColumns, *, space_bytes: int, previous_time_us: int | None = None) -> tuple[int, int]:
    """How many frames can follow in an open block with this much space, and the bytes they take.

    `previous_time_us` is the last frame's time in that block, None when it has none yet.
    """
    frames = frames.slice(0, min(len(frames), space_bytes // _RECORD_BYTES_MIN))
    if len(frames) == 0:
        return 0, 0
    deltas, backwards = _deltas(frames.times_us, previous_time_us)
    lengths = np.diff(frames.payload_offsets).astype(np.int64)
    ends = np.cumsum(_delta_widths(deltas) + 4 + _length_widths(lengths) + lengths)
    count = int(np.searchsorted(ends, space_bytes, side="right"))
    if backwards.any():
        count = min(count, int(np.argmax(backwards)))
    return count, int(ends[count - 1]) if count else 0


def check_lpj_frames(frames: FrameColumns, *, base_seq: int) -> None:
    """Refuse frames that no .lpj block can hold, whatever its size."""
    frames.check()
    if base_seq < 0 or base_seq + len(frames) > _SEQ_END:
        raise InvalidRecord(problem=f"{len(frames)} frames from seq {base_seq} do not fit 64-bit seqs")
    if len(frames) and int(frames.can_ids.max()) >= _EIGHT_BYTES_FLAG:
        raise InvalidRecord(problem="a CAN id uses bit 31, where .lpj keeps its eight-byte flag")


def encode_lpj_block(
    frames: FrameColumns, *, base_seq: int, block_size: int = LPJ_BLOCK_BYTES, devices: Sequence[LpjDevice] = ()
) -> bytes:
    """One version 2 block, not compressed. Ask `lpj_frames_that_fit` first: what does not fit is refused."""
    check_lpj_block_size(block_size)
    check_lpj_frames(frames, base_seq=base_seq)
    table = _encode_devices(devices)
    deltas, backwards = _deltas(frames.times_us, None)
    if backwards.any():
        raise InvalidRecord(
            problem=f"frame {int(np.argmax(backwards))} is older than the one before it; start a new block there"
        )
    lengths = np.diff(frames.payload_offsets).astype(np.int64)
    delta_widths = _delta_widths(deltas)
    length_widths = _length_widths(lengths)
    ends = np.cumsum(delta_widths + 4 + length_widths + lengths)
    record_bytes = int(ends[-1]) if len(frames) else 0
    if record_bytes > block_size - _HEADER_V2.size - _TRAILER.size - len(table):
        raise InvalidRecord(problem=f"{record_bytes} bytes of records do not fit a block of {block_size}; cut it")
    out = np.zeros(block_size, dtype=np.uint8)
    payload_starts = ends - lengths + _HEADER_V2.size
    id_positions = payload_starts - length_widths - 4
    _put_uvarints(out, id_positions - delta_widths, deltas, delta_widths)
    eight_flags = (length_widths == 0).astype(np.uint32) << np.uint32(31)
    _unaligned(out, np.dtype("<u4"))[id_positions] = frames.can_ids | eight_flags
    _put_uvarints(out, id_positions + 4, lengths, length_widths)
    if len(lengths) and int(lengths.min()) == int(lengths.max()) == 8:
        _unaligned(out, np.dtype("<u8"))[payload_starts] = np.ascontiguousarray(frames.payload).view(np.uint64)
    else:
        out[_payload_positions(payload_starts, lengths)] = frames.payload
    base_time_us = int(frames.times_us[0]) if len(frames) else 0
    _HEADER_V2.pack_into(out.data, 0, base_time_us, base_seq)
    table_start = block_size - _TRAILER.size - len(table)
    out[table_start : table_start + len(table)] = np.frombuffer(table, dtype=np.uint8)
    _TRAILER.pack_into(out.data, block_size - _TRAILER.size, len(table), len(frames), 0)
    _CRC.pack_into(out.data, block_size - _CRC.size, crc32.iscsi(out.data[: -_CRC.size]))
    return out.tobytes()


def _encode_devices(devices: Sequence[LpjDevice]) -> bytes:
    table_bytes = lpj_device_table_bytes(devices)
    if table_bytes > LPJ_DEVICE_TABLE_BYTES_MAX:
        raise InvalidRecord(
            problem=f"a device table of {table_bytes} bytes is above the format's {LPJ_DEVICE_TABLE_BYTES_MAX}; "
            "cut the block and drop entries that no longer hold"
        )
    table = bytearray(_DEVICE_COUNT.pack(len(devices)))
    for device in devices:
        if max(map(len, device.texts)) > 0xFF:
            raise InvalidRecord(problem=f"a text of device {device.source} is longer than 255 bytes")
        try:
            table += _DEVICE.pack(device.source, device.name, device.active_from, device.product_code)
        except struct.error as error:
            raise InvalidRecord(problem=f"device {device.source} has a field out of range: {error}") from error
        for text in device.texts:
            table.append(len(text))
            table += text
    return bytes(table)


def _deltas(times_us: Int64s, previous_time_us: int | None) -> tuple[Int64s, Bools]:
    """Time since the frame before, and which of them no delta can say: backwards, or too far ahead."""
    if len(times_us) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool)
    first = times_us[:1] if previous_time_us is None else np.array([previous_time_us], dtype=np.int64)
    before = np.concatenate((first, times_us[:-1]))
    deltas = times_us - before
    # A difference that wraps around int64 shows as negative, or came from a later time.
    return deltas, (times_us < before) | (deltas < 0)


def _delta_widths(deltas: Int64s) -> Int64s:
    """Bytes of each delta as a uvarint. Negative ones count as 1; callers refuse them anyway."""
    widths = np.ones(len(deltas), dtype=np.int64)
    largest = int(deltas.max(initial=0))
    for index in range(1, _DELTA_BYTES_MAX):
        if largest < 1 << (7 * index):
            break
        widths += deltas >= 1 << (7 * index)
    return widths


def _length_widths(lengths: Int64s) -> Int64s:
    widths: Int64s = (lengths != 8).astype(np.int64)
    widths += lengths >= 0x80
    return widths


def _put_uvarints(out: UInt8s, positions: Int64s, values: Int64s, widths: Int64s) -> None:
    """Write each value in as many bytes as its width says; width 0 writes nothing."""
    for index in range(int(widths.max(initial=0))):
        rows = np.flatnonzero(widths > index)
        more = (widths[rows] > index + 1).astype(np.int64) << 7
        out[positions[rows] + index] = ((values[rows] >> (7 * index)) & 0x7F) | more


# --- stored forms --------------------------------------------------------------------------------


def inflate_lpj(payload: bytes | memoryview, *, block_size: int, dictionary: bytes | None = None) -> bytes:
    """Inflate one zstd frame to exactly one block, or refuse before any memory is taken."""
    check_lpj_block_size(block_size)
    try:
        # Only the frame header is read here. python-zstandard ignores `max_output_size` when the header
        # names a size, so the header has to be believed or refused first.
        parameters = zstandard.get_frame_parameters(payload)
        if parameters.content_size not in (block_size, zstandard.CONTENTSIZE_UNKNOWN):
            kind = BlockTooLarge if parameters.content_size > block_size else BlockCorrupt
            raise kind(problem=f"the zstd frame holds {parameters.content_size} bytes, a block has {block_size}")
        if parameters.window_size > LPJ_WINDOW_BYTES_MAX:
            raise BlockTooLarge(
                problem=f"the zstd frame wants a window of {parameters.window_size} bytes, "
                f"the limit is {LPJ_WINDOW_BYTES_MAX}"
            )
        dictionary_data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        inflater = zstandard.ZstdDecompressor(dict_data=dictionary_data)
        block = inflater.decompress(payload, max_output_size=block_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlockCorrupt(problem=f"the zstd frame cannot be inflated: {error}") from error
    if len(block) != block_size:
        raise BlockCorrupt(problem=f"the zstd frame gave {len(block)} bytes, a block has {block_size}")
    return block


def split_lpj_dictionary(stored: bytes | memoryview) -> tuple[bytes | None, bytes]:
    """A zstd-dict block as stored (DictLen, CompressedLen, dictionary, payload) to dictionary and payload."""
    if len(stored) < _DICTIONARY_HEADER.size:
        raise BlockTruncated(problem=f"{len(stored)} bytes are too few for a dictionary header")
    dictionary_bytes, payload_bytes = _DICTIONARY_HEADER.unpack_from(stored)
    if dictionary_bytes > LPJ_DICTIONARY_BYTES_MAX:
        raise BlockTooLarge(
            problem=f"a dictionary of {dictionary_bytes} bytes is above the limit of {LPJ_DICTIONARY_BYTES_MAX}"
        )
    wanted = _DICTIONARY_HEADER.size + dictionary_bytes + payload_bytes
    if len(stored) < wanted:
        raise BlockTruncated(problem=f"dictionary and payload take {wanted} bytes, only {len(stored)} are there")
    if len(stored) > wanted:
        raise BlockCorrupt(problem=f"{len(stored) - wanted} bytes follow the payload")
    payload_start = _DICTIONARY_HEADER.size + dictionary_bytes
    dictionary = bytes(stored[_DICTIONARY_HEADER.size : payload_start])
    return dictionary or None, bytes(stored[payload_start:])


def join_lpj_dictionary(dictionary: bytes | None, payload: bytes) -> bytes:
    """The inverse of `split_lpj_dictionary`."""
    dictionary = dictionary or b""
    return _DICTIONARY_HEADER.pack(len(dictionary), len(payload)) + dictionary + payload


def open_lpj_stored(stored: bytes | memoryview, *, compression: LpjCompression, block_size: int) -> bytes | memoryview:
    """A block as stored, in any compression, to its `block_size` logical bytes. The checksum is not checked here."""
    if compression is LpjCompression.ZSTD:
        return inflate_lpj(stored, block_size=block_size)
    if compression is LpjCompression.ZSTD_DICT:
        dictionary, payload = split_lpj_dictionary(stored)
        return inflate_lpj(payload, block_size=block_size, dictionary=dictionary)
    check_lpj_block_size(block_size)
    if len(stored) != block_size:
        kind: type[BadBlock] = BlockTruncated if len(stored) < block_size else BlockCorrupt
        raise kind(problem=f"a stored block of {len(stored)} bytes should have {block_size}")
    return stored
