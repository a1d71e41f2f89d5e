"""Writing lplex blocks back to an .lpj file exactly as they came.

`LpjWriter` encodes frames; this puts stored blocks after each other, with the framing and the index that
their file had. Device tables and dictionaries travel inside the blocks, so nothing is lost.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress

from tidelog.blocks.block import Block
from tidelog.blocks.foreign import ForeignForm, open_foreign
from tidelog.blocks.header import BlockKind
from tidelog.blocks.lpj import LpjCompression
from tidelog.compat.lpj import FILE_MAGIC, INDEX_MAGIC, create_foreign, disk_error, finish_foreign, write_all

Shape = tuple[int, int]
"""Foreign form and block size: what all blocks of one .lpj file have in common."""


def shape_of(block: Block) -> Shape | None:
    """None for a block that cannot be copied: not an lplex block, or only a part of it counts."""
    if block.maker.kind != BlockKind.FOREIGN or block.windows:
        return None
    return block.maker.form, block.maker.raw_bytes


def copy_blocks(path: str, shape: Shape, blocks: Iterable[Block]) -> int:
    """Write a new file of these blocks, all of this shape; the number of frames. All or nothing."""
    form = ForeignForm(shape[0])
    frames = 0
    positions: list[int] = []
    file = create_foreign(path)
    try:
        head = struct.pack("<3sBII4x", FILE_MAGIC, form.version, shape[1], form.compression)
        write_all(file, head)
        position = len(head)
        for block in blocks:
            stored = _framed(block, form)
            write_all(file, stored)
            positions.append(position)
            position += len(stored)
            frames += block.maker.record_count
        if form.compression is not LpjCompression.NONE:
            write_all(file, struct.pack(f"<{len(positions)}QI4s", *positions, len(positions), INDEX_MAGIC))
        finish_foreign(file, path)
    except BaseException as error:
        file.close()
        with suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError):
            raise disk_error(error, operation="write", path=path) from error
        raise
    return frames


def _framed(block: Block, form: ForeignForm) -> bytes:
    stored = bytes(memoryview(block.body)[: block.maker.stored_bytes])
    if form.compression is LpjCompression.NONE:
        return stored
    inside = open_foreign(block.maker, block.body)
    bases = struct.pack("<q", inside.base_time_us)
    if form.version != 1:
        bases += struct.pack("<Q", inside.base_seq)
    # A block with a dictionary begins with its two lengths; a plain zstd frame needs one before it.
    return (
        bases + stored if form.compression is LpjCompression.ZSTD_DICT else bases + _LENGTH.pack(len(stored)) + stored
    )


_LENGTH = struct.Struct("<I")
