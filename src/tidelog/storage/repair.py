"""Changing what already lies on disk: truncation, quarantine, replacement, rebuild.

A segment is never patched in place. Its good bytes are copied beside it, synced and renamed over it,
so that a crash leaves the old file or the new one. Damaged bytes are kept under `quarantine/` for
whoever wants to know what happened.

Every function here expects the log's mutex to be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidelog.blocks.block import Block, missing_block
from tidelog.errors import DiskError, NotABlockBoundary, OffsetMismatch, ReplacementRefused
from tidelog.storage.atomic import write_mark
from tidelog.storage.disk import Buffer
from tidelog.storage.segment import SEGMENT_HEAD_BYTES, Damage, FileWindow, SegmentHead, scan_segment
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.storage.log import Log, Segment

_COPY_BYTES = 4 * MIB
_PLACEHOLDER_RECORDS_MAX = 2**32 - 1

ReadAt = Callable[[int, int], bytes]
Piece = range | bytes
"""Bytes of the old file to keep, or new bytes."""


def quarantine_segment(log: Log, segment: Segment) -> list[range]:
    """Replace what is damaged in a segment by placeholders; returns the offsets that are gone."""
    with log.files.use(segment.path) as file:
        scan = scan_segment(
            file,
            channel_id=log.channel_id,
            base_offset=segment.base_offset,
            interval_bytes=log.options.index_interval_bytes,
            limits=log.options.limits,
        )
    end_offset = segment.index.end_offset
    return place_holders(log, segment, scan.damages, end_offset=end_offset, durable_end=log.durable_end)


def place_holders(
    log: Log,
    segment: Segment,
    damages: Sequence[Damage],
    *,
    end_offset: int,
    durable_end: int,
    file_end: int | None = None,
) -> list[range]:
    """Rewrite a segment with a placeholder for each damage; the last one may reach to `end_offset`.

    Bytes of the old file from `file_end` on are left out.
    """
    if not damages:
        return []
    pieces: list[Piece] = []
    gone: list[range] = []
    kept_from = SEGMENT_HEAD_BYTES
    for damage in damages:
        pieces.append(range(kept_from, damage.start))
        offsets = range(damage.first_offset, end_offset if damage.end_offset is None else damage.end_offset)
        if offsets:
            gone.append(offsets)
            pieces.append(_placeholders(log, offsets, durable_end))
        _keep_evidence(log, segment, damage)
        kept_from = damage.end
    if damages[-1].end_offset is not None:
        with log.files.use(segment.path) as file:
            pieces.append(range(kept_from, file.size() if file_end is None else file_end))
    rewrite_segment(log, segment, pieces)
    return gone


def _placeholders(log: Log, offsets: range, durable_end: int) -> bytes:
    parts = []
    start = offsets.start
    while start < offsets.stop:
        end = min(offsets.stop, start + _PLACEHOLDER_RECORDS_MAX)
        block = missing_block(
            offsets=range(start, end),
            channel_id=log.channel_id,
            leader_epoch=log.epochs.epoch_at(start),
            append_time_us=0,
            durable_end=min(durable_end, start),
        )
        parts.append(block.tobytes())
        start = end
    return b"".join(parts)


def _keep_evidence(log: Log, segment: Segment, damage: Damage) -> None:
    """Copy the damaged bytes aside. Best effort: a full disk must not stop a repair."""
    folder = f"{log.folder}/quarantine"
    try:
        log.disk.make_folder(folder)
        with log.files.use(segment.path) as source:
            data = source.read_at(damage.start, min(damage.end - damage.start, _COPY_BYTES))
        target = log.disk.open(f"{folder}/{segment.base_offset:020d}-{damage.start}.bin", create=True)
        try:
            target.write_at(0, [data])
        finally:
            target.close()
    except DiskError:
        return


def rewrite_segment(log: Log, segment: Segment, pieces: Sequence[Piece]) -> None:
    """Atomically replace a segment's file by these pieces after a fresh header."""
    head = SegmentHead(
        channel_id=log.channel_id, base_offset=segment.base_offset, generation=log.generation, created_us=0
    )
    temporary = f"{segment.path}.tmp"
    log.disk.remove(segment.index_path)
    target = log.disk.open(temporary, create=True)
    try:
        target.truncate(0)
        target.write_at(0, [head.pack()])
        position = SEGMENT_HEAD_BYTES
        with log.files.use(segment.path) as source:
            for data in _piece_bytes(source.read_at, pieces):
                target.write_at(position, [data])
                position += len(data)
        target.sync()
    finally:
        target.close()
    log.disk.rename(temporary, segment.path)
    log.disk.sync_folder(log.segment_folder)
    log.files.drop(segment.path)
    log.rescan(segment)
    if segment is not log.segments[-1]:
        log.write_index(segment)


def _piece_bytes(read_at: ReadAt, pieces: Sequence[Piece]) -> Iterator[Buffer]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        for position in range(piece.start, piece.stop, _COPY_BYTES):
            yield read_at(position, min(_COPY_BYTES, piece.stop - position))


def replace_damaged(log: Log, blocks: Sequence[Block]) -> range:
    """Swap a peer's blocks in for (a part of) one damaged range."""
    offsets = _check_replacement(log, blocks)
    segment = next(part for part in reversed(log.segments) if part.base_offset <= offsets.start)
    gap = next((part for part in segment.index.missing if part.start <= offsets.start < part.stop), None)
    if gap is None or offsets.stop > gap.stop:
        raise ReplacementRefused(problem=f"offsets [{offsets.start}, {offsets.stop}) are not one damaged range here")
    position = _position_of(log, segment, gap.start)
    size = len(_placeholders(log, gap, 0))
    new = b"".join(
        (
            _placeholders(log, range(gap.start, offsets.start), log.durable_end),
            *(buffer for block in blocks for buffer in block.buffers),
            _placeholders(log, range(offsets.stop, gap.stop), log.durable_end),
        )
    )
    end = segment.index.size
    rewrite_segment(log, segment, [range(SEGMENT_HEAD_BYTES, position), new, range(position + size, end)])
    return offsets


def _check_replacement(log: Log, blocks: Sequence[Block]) -> range:
    if not blocks:
        raise ReplacementRefused(problem="no blocks were given")
    expected = blocks[0].leader.base_offset
    for block in blocks:
        if block.leader.channel_id != log.channel_id or block.leader.base_offset != expected or not block.counted:
            raise ReplacementRefused(problem="the blocks do not continue each other in this channel")
        expected = block.offsets.stop
    return range(blocks[0].leader.base_offset, expected)


def _position_of(log: Log, segment: Segment, offset: int) -> int:
    """Where the block that begins at `offset` lies. Only heads are parsed on the way."""
    index = segment.index
    position = index.entry_positions[index.entry_before(offset)]
    with log.files.use(segment.path) as file:
        window = FileWindow(file, index.size)
        while position < index.size:
            block = Block.parse(window.block_bytes(position, log.options.limits), 0, log.options.limits)
            if block.leader.base_offset >= offset:
                return position
            if block.offsets.stop > offset:
                raise NotABlockBoundary(offset=offset, block=block.offsets)
            position += block.size
    return position


def truncate_segments(log: Log, offset: int) -> None:
    """Remove records at or after `offset` from the files, newest first, so a crash leaves a valid log."""
    keep = next(segment for segment in reversed(log.segments) if segment.base_offset <= offset)
    if keep.base_offset == offset and keep is not log.segments[0]:
        keep = log.segments[log.segments.index(keep) - 1]
    position = keep.index.size
    gap = next((part for part in keep.index.missing if part.start < offset < part.stop), None)
    if gap is not None:
        position = _position_of(log, keep, gap.start)
    elif offset < keep.index.end_offset:
        position = _position_of(log, keep, offset)
    while log.segments[-1] is not keep:
        segment = log.segments[-1]
        log.disk.remove(segment.index_path)
        log.disk.remove(segment.path)
        log.files.drop(segment.path)
        log.disk.sync_folder(log.segment_folder)
        log.segments.pop()
    log.disk.remove(keep.index_path)
    if gap is not None:
        rest = _placeholders(log, range(gap.start, offset), log.durable_end)
        rewrite_segment(log, keep, [range(SEGMENT_HEAD_BYTES, position), rest])
        return
    with log.files.use(keep.path) as file:
        file.truncate(position)
        file.sync()
    log.rescan(keep)


def rebuild(log: Log, blocks: Iterator[Block], now_us: int) -> None:
    """Fill a new generation of segments from a peer, then switch to it by one atomic write."""
    old_folder, old_segments, old_generation = log.segment_folder, log.segments, log.generation
    log.generation += 1
    folder = log.segment_folder
    try:
        log.disk.remove_folder(folder)
        log.disk.make_folder(folder)
        segments = _fill(log, blocks, folder, now_us)
        write_mark(log.disk, f"{log.folder}/log.meta", log_meta(log.channel_id, log.generation))
    except BaseException:
        log.generation = old_generation
        log.disk.remove_folder(folder)
        raise
    log.segments = segments
    for segment in old_segments:
        log.files.drop(segment.path)
        log.disk.remove(segment.index_path)
        log.disk.remove(segment.path)
    if old_generation:
        log.disk.remove_folder(old_folder)


def _fill(log: Log, blocks: Iterator[Block], folder: str, now_us: int) -> list[Segment]:
    segments: list[Segment] = []
    for block in blocks:
        if block.leader.channel_id != log.channel_id:
            raise ReplacementRefused(problem=f"a block of channel {block.leader.channel_id} does not belong here")
        if segments and block.leader.base_offset != segments[-1].index.end_offset:
            raise OffsetMismatch(expected=segments[-1].index.end_offset, got=block.leader.base_offset)
        full = segments and segments[-1].index.size + block.size > log.options.segment_bytes_max
        if not segments or full:
            segments.append(log.create_segment(block.leader.base_offset, now_us, folder=folder))
        index = segments[-1].index
        with log.files.use(segments[-1].path) as file:
            file.write_at(index.size, list(block.buffers))
        index.add(block.maker, block.leader, block.windows, block.size)
    if not segments:
        segments.append(log.create_segment(log.log_end, now_us, folder=folder))
    for segment in segments:
        with log.files.use(segment.path) as file:
            file.sync()
        log.write_index(segment)
    return segments


def log_meta(channel_id: int, generation: int) -> dict[str, int]:
    return {"format": 1, "channel_id": channel_id, "generation": generation}
