"""Foreign blocks: another system's bytes, stored unchanged and decoded to the same columns.

A block of an lplex journal keeps its own layout, compression and checksum inside a Tidelog body. The
form says which; `raw_bytes` is the size of the lplex block once inflated. Nothing is re-encoded, so
what comes out at the far end is byte for byte what the boat wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
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
from tidelog.blocks.lpj import LpjBlock, LpjCompression, decode_lpj_block, open_lpj_stored, summarize_lpj_block
from tidelog.errors import BlockCorrupt, BlockTooLarge, InvalidRecord


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


def _check_size(stored: bytes | memoryview, block_size: int, limits: BlockLimits) -> None:
    """Before anything is inflated."""
    if len(stored) > limits.stored_bytes_max or block_size > limits.raw_bytes_max:
        raise BlockTooLarge(problem=f"an lplex block of {block_size} bytes is larger than {limits.raw_bytes_max}")


def wrap_foreign(
    stored: bytes | memoryview,
    *,
    version: int,
    compression: LpjCompression,
    block_size: int,
    producer: bytes = NO_PRODUCER,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> MadeBlock:
    """Wrap one lplex block. It is opened and checked first: a block that does not decode is refused, not stored."""
    _check_size(stored, block_size, limits)
    block = _open(stored, version=version, compression=compression, block_size=block_size)
    form = ForeignForm.of(version=version, compression=compression)
    return _wrap(stored, block, form=form, block_size=block_size, producer=producer, limits=limits)


def _wrap(
    stored: bytes | memoryview,
    block: LpjBlock,
    *,
    form: ForeignForm,
    block_size: int,
    producer: bytes,
    limits: BlockLimits,
) -> MadeBlock:
    times = block.frames.times_us
    smallest, largest = (int(times.min()), int(times.max())) if len(times) else (block.base_time_us,) * 2
    body = bytes(stored) + bytes(-len(stored) & 7)
    maker_bytes = pack_maker(
        kind=BlockKind.FOREIGN,
        form=form,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """The readable part of an lplex block whose checksum is good."""

    made: MadeBlock | None
    """The block as it came if it is whole; else its good records in a block of ours; None if there are none."""
    frames: FrameColumns
    base_seq: int
    frame_count: int
    """How many frames it says it has; those behind the good ones are not in it."""
    problem: str = ""
    """Why it is not whole."""

    @property
    def lost(self) -> range:
        """Seqs that the block should hold and does not; in version 1 there are none."""
        start = self.base_seq + len(self.frames)
        return range(start, self.base_seq + self.frame_count) if self.base_seq else range(0)


def salvage_foreign(
    stored: bytes | memoryview,
    *,
    version: int,
    compression: LpjCompression,
    block_size: int,
    producer: bytes = NO_PRODUCER,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> Salvaged:
    """Like `wrap_foreign`, but a bad record under a good checksum costs that record and what follows it only.

    lplex's writer keeps no room for the device entry of an address claim that is the last frame of a block, and writes
    it over the end of the records. A part of a block cannot be stored unchanged: its good records are encoded anew. If
    they cannot be encoded, because of an id of more than 29 bits say, the block is `BlockCorrupt`.
    """
    _check_size(stored, block_size, limits)
    raw = open_lpj_stored(stored, compression=compression, block_size=block_size)
    frame_count = summarize_lpj_block(raw, version=version).frame_count
    block = decode_lpj_block(raw, version=version, salvage=True)
    made: MadeBlock | None
    if block.damage is None:
        form = ForeignForm.of(version=version, compression=compression)
        made = _wrap(stored, block, form=form, block_size=block_size, producer=producer, limits=limits)
    elif len(block.frames):
        made = _encode_salvaged(block, producer)
    else:
        made = None
    return Salvaged(
        made=made,
        frames=block.frames,
        base_seq=block.base_seq,
        frame_count=frame_count,
        problem=block.damage or "",
    )


def _encode_salvaged(block: LpjBlock, producer: bytes) -> MadeBlock:
    try:
        return encode_frames(block.frames, base_seq=block.base_seq, producer=producer, delta=True, codec=Codec.ZSTD)
    except InvalidRecord as error:
        problem = f"{block.damage}, and what precedes it cannot be kept: {error.problem}"
        raise BlockCorrupt(problem=problem) from error


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
