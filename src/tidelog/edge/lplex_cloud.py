"""Feeding an lplex cloud: frames one by one, journal blocks as `.lpj` blocks.

An lplex cloud knows no Tidelog blocks. Its Live takes single frames, its Backfill version 2 blocks of one fixed size,
which it writes to its own journal as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import LPJ_BLOCK_BYTES, encode_lpj_block, lpj_frames_that_fit
from tidelog.wire.uplink_codec import LplexBlock, LplexFrame


def lplex_frames(frames: FrameColumns, base_seq: int) -> Iterator[LplexFrame]:
    for place, (time_us, can_id, payload) in enumerate(frames.rows()):
        yield LplexFrame(seq=base_seq + place, time_us=time_us, can_id=can_id, payload=payload)


def lplex_blocks(frames: FrameColumns, base_seq: int) -> Iterator[LplexBlock]:
    """The frames in as many `.lpj` blocks as they need: one ends where it is full, or where the clock went back."""
    compressor = zstandard.ZstdCompressor(level=3)
    while len(frames):
        fit = lpj_frames_that_fit(frames, LPJ_BLOCK_BYTES, 0)
        part = frames.slice(0, fit)
        yield LplexBlock(
            base_seq=base_seq,
            base_time_us=int(part.times_us[0]),
            frame_count=len(part),
            data=compressor.compress(encode_lpj_block(part, base_seq=base_seq)),
            compressed=True,
            block_size=LPJ_BLOCK_BYTES,
        )
        base_seq += fit
        frames = frames.slice(fit, len(frames))
