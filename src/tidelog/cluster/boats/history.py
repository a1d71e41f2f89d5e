"""Past frames of a channel's log, between two times of the boat's clock.

The index finds the blocks that reach into the range; only committed records that count come out, in the order
of the log, so late Backfill lies behind newer Live frames (B2). One chunk of the log is in memory at a time. It
is read in a thread, when the reader asks for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import numpy as np

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames, decode_block_frames
from tidelog.blocks.header import BlockKind
from tidelog.cluster.boats.view import FrameBlock
from tidelog.errors import OffsetOutOfRange
from tidelog.storage.log.log import Log
from tidelog.storage.log.parts import Segment
from tidelog.units import MIB

_CHUNK_FRAMES: Final = 65_536
_FRAME_KINDS: Final = frozenset({BlockKind.FRAMES, BlockKind.FOREIGN})


async def read_history(
    open_log: Callable[[], Log], *, from_us: int, to_us: int, end: int | None = None
) -> AsyncIterator[FrameBlock]:
    """Frames with `from_us <= time < to_us`, below the offset `end`. `open_log` and all reading run in a thread."""
    found = frames_between(await asyncio.to_thread(open_log), from_us=from_us, to_us=to_us, end=end)
    while chunk := await asyncio.to_thread(_chunk, found):
        for part in chunk:
            yield part


def _chunk(found: Iterator[FrameBlock]) -> list[FrameBlock]:
    chunk: list[FrameBlock] = []
    count = 0
    for part in found:
        chunk.append(part)
        count += len(part.frames)
        if count >= _CHUNK_FRAMES:
            break
    return chunk


def frames_between(log: Log, *, from_us: int, to_us: int, end: int | None = None) -> Iterator[FrameBlock]:
    """The same, for a caller that may block. Later appends are not seen."""
    if from_us >= to_us:
        return
    end = log.durable_end if end is None else min(end, log.durable_end)
    offset = log.log_start
    while offset < end:
        blocks = log.blocks(offset, end, from_time_us=from_us, before_time_us=to_us, skip_damaged=True)
        try:
            for block in blocks:
                if block.maker.kind in _FRAME_KINDS:
                    yield from _frames_of(block, from_us, to_us)
                offset = block.offsets.stop
        except OffsetOutOfRange:
            if offset >= log.log_start:
                raise
            offset = log.log_start  # retention was faster than this reader: what it took is gone
            continue
        return


def _frames_of(block: Block, from_us: int, to_us: int) -> Iterator[FrameBlock]:
    frames = decode_block_frames(block)
    wanted = np.zeros(len(frames), bool)
    for part in block.counted_ranges():
        wanted[part.start : part.stop] = True
    wanted &= (frames.times_us >= from_us) & (frames.times_us < to_us)
    for start, stop in _runs(wanted):
        yield FrameBlock(block.maker.base_seq + start, frames.slice(start, stop))


def _runs(wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Half-open runs of True."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def newest_frames(log: Log, *, end: int | None = None, bytes_max: int = 16 * MIB) -> Iterator[FrameColumns]:
    """The frames of about the last `bytes_max` bytes of a log up to `end`, block by block in log order."""
    left = bytes_max
    with log.mutex:
        start = log.written_end
        entries = ((segment.index, entry) for segment in reversed(log.segments) for entry in _newest_first(segment))
        for index, entry in entries:
            if left <= 0:
                break
            start = index.entry_offsets[entry]
            left -= index.entry_end(entry) - index.entry_positions[entry]
        end = log.durable_end if end is None else min(end, log.durable_end)
    for block in log.blocks(start, end, skip_damaged=True):
        if block.maker.kind in _FRAME_KINDS:
            yield counted_frames(block)


def _newest_first(segment: Segment) -> range:
    return range(len(segment.index.entry_positions) - 1, -1, -1)
