"""An .lpj file as lplex's writer can leave it: a device entry lies over the last records of its first block."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidelog.blocks.columns import FrameColumns
from tidelog.compat.lpj import LpjWriter
from tidelog.sim.uplink.lplex_blocks import overwritten_lpj_block

START_US: Final = 1_750_000_000_000_000
BLOCK_BYTES: Final = 4096
_HEAD_BYTES: Final = 16


def _frames(first: int, count: int = 100) -> FrameColumns:
    rows = [(START_US + 5_000 * (first + row), 0x09F80100, row.to_bytes(8, "little")) for row in range(count)]
    return FrameColumns.from_rows(rows)


def write_odd_lpj(path: Path, *, records: int = 100, bad_records: int = 2) -> None:
    """Two blocks: `records` from seq 1, the last ones bad under a good checksum, and 100 from seq 201."""
    with LpjWriter(path, block_size=BLOCK_BYTES, compression="none") as writer:
        writer.append(_frames(0, records), first_seq=1)
        writer.append(_frames(200), first_seq=201)
    data = bytearray(path.read_bytes())
    odd = overwritten_lpj_block(_frames(0, records), base_seq=1, block_size=BLOCK_BYTES, records=bad_records)
    data[_HEAD_BYTES : _HEAD_BYTES + BLOCK_BYTES] = odd
    path.write_bytes(data)
