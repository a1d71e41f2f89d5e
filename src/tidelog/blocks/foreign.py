"""Foreign blocks: another system's bytes, carried unchanged and decoded to the same columns.

A block of an lplex journal keeps its own layout, compression and checksum inside a Tidelog body. The
form says which; `raw_bytes` is the size of the lplex block once inflated. Nothing is re-encoded, so
what comes out at the far end is byte for byte what the boat wrote.
"""

from __future__ import annotations

from enum import IntEnum

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.header import (
    DEFAULT_LIMITS,
    NO_PRODUCER,
    BlockKind,
    BlockLimits,
    Buffer,
    Codec,
    Maker,
    pack_maker,
    parse_maker,
)
from tidelog.blocks.lpj import LpjBlock, LpjCompression, decode_lpj_block, open_lpj_stored
from tidelog.errors import BlockCorrupt, BlockTooLarge


class ForeignForm(IntEnum):
    """`LPJ_` version and compression. The body is what lies in an .lpj file after its framing header."""

    LPJ_V1_NONE = 1
    LPJ_V1_ZSTD = 2
    LPJ_V1_ZSTD_DICT = 3
    LPJ_V2_NONE = 4
    LPJ_V2_ZSTD = 5
    LPJ_V2_ZSTD_DICT = 6

    @property
    def version(self) -> int:
        return 1 if self <= ForeignForm.LPJ_V1_ZSTD_DICT else 2

    @property
    def compression(self) -> LpjCompression:
        return LpjCompression((self - 1) % 3)

    @classmethod
    def of(cls, *, version: int, compression: LpjCompression) -> ForeignForm:
        return cls(3 * (version - 1) + compression + 1)


def wrap_foreign(
    stored: bytes | memoryview,
    *,
    version: int,
    compression: LpjCompression,
    block_size: int,
    producer: bytes = NO_PRODUCER,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> MadeBlock:
    """Carry one lplex block. It is opened and checked first: what does not decode is refused, not stored."""
    if len(stored) > limits.stored_bytes_max or block_size > limits.raw_bytes_max:
        raise BlockTooLarge(problem=f"an lplex block of {block_size} bytes is larger than {limits.raw_bytes_max}")
    block = _open(stored, version=version, compression=compression, block_size=block_size)
    times = block.frames.times_us
    smallest, largest = (int(times.min()), int(times.max())) if len(times) else (block.base_time_us,) * 2
    body = bytes(stored) + bytes(-len(stored) & 7)
    maker_bytes = pack_maker(
        kind=BlockKind.FOREIGN,
        form=ForeignForm.of(version=version, compression=compression),
        codec=Codec.NONE,
        time_min_us=smallest,
        time_max_us=largest,
        base_seq=block.base_seq,
        producer=producer,
        record_count=len(times),
        raw_bytes=block_size,
        body=body,
        stored_bytes=len(stored),
    )
    return MadeBlock(maker_bytes, parse_maker(maker_bytes, limits), body)


def decode_foreign(maker: Maker, body: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> FrameColumns:
    """The frames of a foreign block whose checksum has been compared."""
    return open_foreign(maker, body, limits).frames


def open_foreign(maker: Maker, body: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> LpjBlock:
    """The lplex block inside, device table included; its own claims must agree with the header's."""
    try:
        form = ForeignForm(maker.form)
    except ValueError:
        raise BlockCorrupt(problem=f"foreign form {maker.form} is unknown; a newer Tidelog wrote this") from None
    if maker.raw_bytes > limits.raw_bytes_max:
        raise BlockTooLarge(problem=f"an lplex block of {maker.raw_bytes} bytes is larger than {limits.raw_bytes_max}")
    stored = memoryview(body)[: maker.stored_bytes]
    block = _open(stored, version=form.version, compression=form.compression, block_size=maker.raw_bytes)
    if len(block.frames) != maker.record_count or block.base_seq != maker.base_seq:
        raise BlockCorrupt(
            problem=f"the lplex block holds {len(block.frames)} frames from seq {block.base_seq}, "
            f"the header says {maker.record_count} from {maker.base_seq}"
        )
    return block


def _open(stored: bytes | memoryview, *, version: int, compression: LpjCompression, block_size: int) -> LpjBlock:
    return decode_lpj_block(open_lpj_stored(stored, compression=compression, block_size=block_size), version=version)
