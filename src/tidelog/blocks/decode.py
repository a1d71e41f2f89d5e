"""From a verified block to its frames, for every form of body.

The one place that knows which decoder a body needs. Readers that want columns (tools, the journal,
`tidelog.blocks.arrow`) use this module and never look at forms and codecs themselves.

What a caller must keep: the block has passed `Block.parse`, so its checksums match. Its maker may still have been
wrong, so every decoder checks what it reads.
"""

from __future__ import annotations

from tidelog.blocks.block import Block, MadeBlock, raw_body
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import check_frames, decode_frames
from tidelog.blocks.header import DEFAULT_LIMITS, BlockKind, BlockLimits, time_outside_span
from tidelog.errors import BlockCorrupt


def decode_block_frames(block: Block | MadeBlock, limits: BlockLimits = DEFAULT_LIMITS) -> FrameColumns:
    """Every frame of the body, those outside the windows included."""
    maker = block.maker
    if maker.kind == BlockKind.FRAMES:
        return decode_frames(maker, raw_body(maker, block.body, limits))
    if maker.kind != BlockKind.FOREIGN:
        raise BlockCorrupt(problem=f"a block of kind {maker.kind} holds no frames")
    # Few processes ever meet a foreign block; the others need not load its decoder.
    from tidelog.blocks.foreign import decode_foreign

    frames = decode_foreign(maker, block.body, limits)
    times = frames.times_us
    if len(times) and (int(times.min()) < maker.time_min_us or int(times.max()) > maker.time_max_us):
        raise time_outside_span()
    return frames


def check_block_frames(block: Block | MadeBlock, limits: BlockLimits = DEFAULT_LIMITS) -> None:
    """Raise whatever `decode_block_frames` would, without making the frames where that is cheaper."""
    if block.maker.kind == BlockKind.FRAMES:
        check_frames(block.maker, raw_body(block.maker, block.body, limits))
    else:
        decode_block_frames(block, limits)


def counted_frames(block: Block, limits: BlockLimits = DEFAULT_LIMITS) -> FrameColumns:
    """The frames that have an offset: all of them, or those inside the windows."""
    frames = decode_block_frames(block, limits)
    if not block.windows:
        return frames
    return FrameColumns.concatenate([frames.slice(window.start, window.stop) for window in block.windows])
