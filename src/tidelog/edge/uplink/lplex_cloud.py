"""Sending to an lplex cloud: frames one by one, journal blocks as `.lpj` blocks.

An lplex cloud knows no Tidelog blocks. Its Live takes single frames, its Backfill version 2 blocks of one fixed size,
which it writes to its own journal as they are.

It cannot be told that a seq is void or gone, and its cursor passes only what it has frames for: at the first such seq
it would stand still, and each Handshake would ask for everything above it again. So the boat sends a frame in place of
each seq that has none: with an unassigned PGN, from the null address, and the payload `no frame`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import zstandard

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import LPJ_BLOCK_BYTES, encode_lpj_block, lpj_frames_that_fit
from tidelog.codecs.uplink_codec import LplexBlock, LplexFrame

NO_FRAME_ID: Final = 7 << 26 | 0x10000 << 8 | 0xFF << 8 | 0xFE
"""Lowest priority, PGN 65536 to everybody, from the null address, which no device that sends has."""
NO_FRAME_PAYLOAD: Final = b"no frame"
NO_FRAMES_MAX: Final = 16_384
"""The most frames in one block: so many always fit."""


def no_frames(count: int, time_us: int) -> FrameColumns:
    """The frames in place of `count` seqs that have none."""
    size = len(NO_FRAME_PAYLOAD)
    return FrameColumns(
        times_us=np.full(count, time_us, dtype=np.int64),
        can_ids=np.full(count, NO_FRAME_ID, dtype=np.uint32),
        payload_offsets=np.arange(count + 1, dtype=np.int32) * np.int32(size),
        payload=np.tile(np.frombuffer(NO_FRAME_PAYLOAD, dtype=np.uint8), count),
    )


def without_gaps(
    runs: Iterable[tuple[int, FrameColumns]], seqs: range, *, now_us: int
) -> Iterator[tuple[int, FrameColumns]]:
    """Runs of frames, each with its first seq, in order, with substitutes for the seqs in between that have no
    frame."""
    next_seq, time_us = seqs.start, now_us
    for base_seq, frames in runs:
        if base_seq > next_seq:
            yield next_seq, no_frames(base_seq - next_seq, int(frames.times_us[0]))
        yield base_seq, frames
        next_seq, time_us = base_seq + len(frames), int(frames.times_us[-1])
    if next_seq < seqs.stop:
        yield next_seq, no_frames(seqs.stop - next_seq, time_us)


def lplex_frames(frames: FrameColumns, base_seq: int) -> Iterator[LplexFrame]:
    for place, (time_us, can_id, payload) in enumerate(frames.rows()):
        yield LplexFrame(seq=base_seq + place, time_us=time_us, can_id=can_id, payload=payload)


def lplex_blocks(frames: FrameColumns, base_seq: int) -> Iterator[LplexBlock]:
    """The frames in as many `.lpj` blocks as they need: a block ends where it is full, or where the clock went back."""
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
