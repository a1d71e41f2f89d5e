"""Blocks of an lplex journal as its writer leaves them when it goes wrong.

lplex keeps room for the device entry of every address claim in a block but the last one: when the claim is the last
frame that fits, its entry is written over the end of the records. The checksum is taken afterwards, and is good.

And it stores a step back of the clock as no time at all, while its own reference steps back: what follows in that
block reads too late by the step.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from fastcrc import crc32

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import LpjDevice, encode_lpj_block, lpj_device_table_bytes, lpj_run

_HEADER_BYTES: Final = 16
_TRAILER_BYTES: Final = 10
_TEXT_BYTES_MAX: Final = 255


def journal_times(frames: FrameColumns) -> FrameColumns:
    """The frames with the times that lplex's journal gives them when they are read back from one block."""
    if not len(frames):
        return frames
    deltas = np.maximum(np.diff(frames.times_us, prepend=frames.times_us[:1]), 0)
    return FrameColumns(
        times_us=frames.times_us[0] + np.cumsum(deltas),
        can_ids=frames.can_ids,
        payload_offsets=frames.payload_offsets,
        payload=frames.payload,
    )


def overwritten_lpj_block(frames: FrameColumns, *, base_seq: int, block_size: int, records: int = 1) -> bytes:
    """A version 2 block whose device table lies over its last `records` records; the checksum is good."""
    block = bytearray(encode_lpj_block(frames, base_seq=base_seq, block_size=block_size))
    kept = len(frames) - records
    _, kept_bytes = lpj_run(frames.slice(0, kept), space_bytes=block_size)
    # The table begins in the middle of the first record that it spoils.
    table_start = _HEADER_BYTES + kept_bytes + 8
    table_bytes = block_size - _TRAILER_BYTES - table_start
    table = _table(table_bytes)
    block[table_start : table_start + table_bytes] = table
    struct.pack_into("<H", block, block_size - _TRAILER_BYTES, table_bytes)
    struct.pack_into("<I", block, block_size - 4, crc32.iscsi(bytes(block[:-4])))
    return bytes(block)


def _table(size: int) -> bytes:
    """A device table of exactly so many bytes."""
    least = lpj_device_table_bytes([LpjDevice(source=0, name=1)]) - 2
    left = size - 2
    entries: list[bytes] = []
    while left:
        text = min(left - least, 4 * _TEXT_BYTES_MAX)
        if 0 < left - least - text < least:
            text -= least
        lengths = [min(_TEXT_BYTES_MAX, max(0, text - _TEXT_BYTES_MAX * place)) for place in range(4)]
        texts = b"".join(bytes([length]) + b"x" * length for length in lengths)
        entries.append(struct.pack("<BQIH", len(entries) % 252, 1 + len(entries), 0, 7) + texts)
        left -= least + text
    return struct.pack("<H", len(entries)) + b"".join(entries)
