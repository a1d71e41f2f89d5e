"""Changing what already lies on disk: truncation, quarantine, replacement, rebuild.

A segment is never patched in place. Its good bytes are copied beside it, synced and renamed over it, so that a crash
leaves the old file or the new one. Damaged bytes are kept under `quarantine/` for inspection.

Every function here expects the log's mutex to be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from tidelog.blocks.block import Block, counted_records, missing_block
from tidelog.blocks.header import HEAD_BYTES, WINDOW_BYTES, parse_head
from tidelog.errors import (
    BadBlock,
    BlockCorrupt,
    DiskError,
    NotABlockBoundary,
    OffsetMismatch,
    ReplacementRefused,
    StaleEpoch,
    SyncFailed,
)
from tidelog.storage.atomic import write_mark
from tidelog.storage.disk import Buffer, File
from tidelog.storage.log.parts import Segment
from tidelog.storage.log.segment import (
    OFFSET_LIMIT,
    SEGMENT_HEAD_BYTES,
    FileWindow,
    Scan,
    SegmentDamage,
    SegmentHead,
    scan_segment,
    segment_name,
)
from tidelog.storage.log.segments import LogSegments
from tidelog.units import MIB

_COPY_BYTES = 4 * MIB
_PLACEHOLDER_RECORDS_MAX = 2**32 - 1

ReadAt = Callable[[int, int], bytes]
Piece = range | bytes
"""Bytes of the old file to keep, or new bytes."""


def scan_file(log: LogSegments, base_offset: int, file: File, *, offset_limit: int = OFFSET_LIMIT) -> Scan:
    return scan_segment(
        file,
        channel_id=log.channel_id,
        base_offset=base_offset,
        interval_bytes=log.options.index_interval_bytes,
        limits=log.options.limits,
        offset_limit=offset_limit,
    )


def quarantine_segment(log: LogSegments, segment: Segment) -> list[range]:
    """Replace what is damaged in a segment by placeholders; returns the offsets that are gone."""
    end_offset = segment.index.end_offset
    with log.files.use(segment.path) as file:
        scan = scan_file(log, segment.base_offset, file, offset_limit=end_offset)
    damages = scan.damages_up_to(end_offset)
    if not damages:
        # The bytes are good: a bad index led the reader to the wrong place.
        segment.index = scan.index
        segment.version += 1
        return []
    return place_holders(log, segment, damages, end_offset=end_offset, durable_end=log.durable_end)


def place_holders(
    log: LogSegments,
    segment: Segment,
    damages: Sequence[SegmentDamage],
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
            pieces.append(_placeholders(log, offsets, durable_end, epoch=damage.epoch))
        _keep_evidence(log, segment, damage)
        kept_from = damage.end
    if damages[-1].end_offset is not None:
        with log.files.use(segment.path) as file:
            pieces.append(range(kept_from, file.size() if file_end is None else file_end))
    rewrite_segment(log, segment, pieces)
    return gone


def _placeholders(log: LogSegments, offsets: range, durable_end: int, *, epoch: int = 0) -> bytes:
    """Placeholders for these offsets. While a log is being opened its history may know less than `epoch`."""
    parts = []
    start = offsets.start
    while start < offsets.stop:
        # One placeholder for each epoch, or the history would forget where the later one began.
        end = min(offsets.stop, start + _PLACEHOLDER_RECORDS_MAX, log.epochs.next_start(start))
        block = missing_block(
            offsets=range(start, end),
            channel_id=log.channel_id,
            leader_epoch=max(epoch, log.epochs.epoch_at(start)),
            append_time_us=0,
            durable_end=min(durable_end, start),
        )
        parts.append(block.tobytes())
        start = end
    return b"".join(parts)


def _keep_evidence(log: LogSegments, segment: Segment, damage: SegmentDamage) -> None:
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


def rewrite_segment(log: LogSegments, segment: Segment, pieces: Sequence[Piece]) -> None:
    """Atomically replace a segment's file by these pieces after a fresh header.

    The copy is read back before it takes the place of the original. Whatever fails, the log on disk is
    whole; but once the name has moved, what this log has in memory may not fit it, so it is poisoned.
    """
    temporary = f"{segment.path}.tmp"
    try:
        scan = _write_copy(log, segment, segment.base_offset, temporary, pieces)
    except DiskError as error:
        if isinstance(error, SyncFailed):
            log.poison(str(error))
        _remove_quietly(log, temporary)
        raise
    try:
        log.disk.remove(segment.index_path)
        log.disk.rename(temporary, segment.path)
        log.disk.sync_folder(log.segment_folder)
    except DiskError as error:
        log.poison(str(error))
        raise
    finally:
        log.files.drop(segment.path)
    segment.index = scan.index
    segment.version += 1
    if segment is not log.segments[-1]:
        log.write_index(segment)


def split_segment(log: LogSegments, segment: Segment, offset: int, tail: range) -> Segment:
    """Move the tail of the newest segment, which begins at `offset`, to a segment of its own.

    A crash in between leaves both; then the first one is read up to where the second begins.
    """
    from tidelog.storage.log.parts import Segment

    path = f"{log.segment_folder}/{segment_name(offset)}"
    scan = _write_copy(log, segment, offset, f"{path}.tmp", [tail])
    log.disk.rename(f"{path}.tmp", path)
    log.disk.sync_folder(log.segment_folder)
    with log.files.use(segment.path) as file:
        file.truncate(tail.start)
        file.sync()
        segment.index = scan_file(log, segment.base_offset, file).index
    segment.version += 1
    log.write_index(segment)
    return Segment(path, scan.index, opening_epoch=segment.opening_epoch)


def _write_copy(log: LogSegments, source: Segment, base_offset: int, temporary: str, pieces: Sequence[Piece]) -> Scan:
    head = SegmentHead(
        channel_id=log.channel_id,
        base_offset=base_offset,
        generation=log.generation,
        created_us=0,
        epoch=source.opening_epoch,
    )
    target = log.disk.open(temporary, create=True)
    try:
        target.truncate(0)
        target.write_at(0, [head.pack()])
        position = SEGMENT_HEAD_BYTES
        with log.files.use(source.path) as source_file:
            for data in _piece_bytes(source_file.read_at, pieces):
                target.write_at(position, [data])
                position += len(data)
        target.sync()
        scan = scan_file(log, base_offset, target)
        if scan.damages or scan.file_bytes != position or target.read_at(0, SEGMENT_HEAD_BYTES) != head.pack():
            raise DiskError(operation="copy", path=source.path, reason="the copy does not read back as written")
        return scan
    finally:
        target.close()


def _remove_quietly(log: LogSegments, path: str) -> None:
    """Opening the log removes temporary files too, so an error here costs only space."""
    try:
        log.disk.remove(path)
    except DiskError:
        return


def _piece_bytes(read_at: ReadAt, pieces: Sequence[Piece]) -> Iterator[Buffer]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        for position in range(piece.start, piece.stop, _COPY_BYTES):
            yield read_at(position, min(_COPY_BYTES, piece.stop - position))


def replace_damaged(log: LogSegments, blocks: Sequence[Block]) -> range:
    """Swap a peer's blocks in for (a part of) one damaged range."""
    offsets = _check_replacement(log, blocks)
    segment = next(part for part in reversed(log.segments) if part.base_offset <= offsets.start)
    _gap_around(segment, offsets)
    # What else has rotted in this segment would be copied along; the gap may have grown by it.
    quarantine_segment(log, segment)
    gap = _gap_around(segment, offsets)
    position = _position_of(log, segment, gap.start)
    new = b"".join(
        (
            _placeholders(log, range(gap.start, offsets.start), log.durable_end),
            *(buffer for block in blocks for buffer in block.buffers),
            _placeholders(log, range(offsets.stop, gap.stop), log.durable_end),
        )
    )
    end = segment.index.size
    rewrite_segment(log, segment, [range(SEGMENT_HEAD_BYTES, position), new, range(position + HEAD_BYTES, end)])
    return offsets


def _gap_around(segment: Segment, offsets: range) -> range:
    for gap in segment.index.missing:
        if gap.start <= offsets.start and offsets.stop <= gap.stop:
            return gap
    raise ReplacementRefused(problem=f"offsets [{offsets.start}, {offsets.stop}) are not one damaged range here")


def _check_replacement(log: LogSegments, blocks: Sequence[Block]) -> range:
    if not blocks or blocks[0].leader.base_offset < log.log_start:
        raise ReplacementRefused(problem="no blocks were given, or the log starts after them")
    expected = blocks[0].leader.base_offset
    for block in blocks:
        if block.leader.channel_id != log.channel_id or block.leader.base_offset != expected or not block.counted:
            raise ReplacementRefused(problem="the blocks do not continue each other in this channel")
        expected = block.offsets.stop
    return range(blocks[0].leader.base_offset, expected)


def _position_of(log: LogSegments, segment: Segment, offset: int) -> int:
    """Where the block that begins at `offset` lies. Only heads are parsed on the way."""
    index, limits = segment.index, log.options.limits
    entry = index.entry_before(offset)
    position, expected = index.entry_positions[entry], index.entry_offsets[entry]
    with log.files.use(segment.path) as file:
        window = FileWindow(file, index.size)
        while position < index.size and expected < offset:
            maker, leader, windows = parse_head(window.block_bytes(position, limits), limits)
            if leader.base_offset != expected or leader.channel_id != log.channel_id:
                raise BlockCorrupt(problem="a block that belongs elsewhere lies here")
            expected += counted_records(maker, windows)
            if expected > offset:
                raise NotABlockBoundary(offset=offset, block=range(leader.base_offset, expected))
            position += HEAD_BYTES + WINDOW_BYTES * len(windows) + maker.padded_bytes
    return position


def truncate_segments(log: LogSegments, offset: int) -> None:
    """Remove records at or after `offset` from the files, newest first, so a crash leaves a valid log."""
    keep = next(segment for segment in reversed(log.segments) if segment.base_offset <= offset)
    if keep.base_offset == offset and keep is not log.segments[0]:
        keep = log.segments[log.segments.index(keep) - 1]
    try:
        pieces = _kept_pieces(log, keep, offset)
    except BadBlock:
        # Damage must not block a truncation: quarantine it first, then look again.
        quarantine_segment(log, keep)
        pieces = _kept_pieces(log, keep, offset)
    try:
        _cut(log, keep, pieces, offset)
    except DiskError as error:
        log.poison(str(error))
        raise


def _kept_pieces(log: LogSegments, keep: Segment, offset: int) -> list[Piece]:
    """What stays of the segment that will be the newest: its head part, or that and a shorter placeholder."""
    gap = next((part for part in keep.index.missing if part.start < offset < part.stop), None)
    if gap is not None:
        quarantine_segment(log, keep)
        position = _position_of(log, keep, gap.start)
        rest = _placeholders(log, range(gap.start, offset), log.durable_end)
        return [range(SEGMENT_HEAD_BYTES, position), rest]
    size = keep.index.size
    position = _position_of(log, keep, offset) if offset < keep.index.end_offset else size
    return [range(SEGMENT_HEAD_BYTES, position)]


def _cut(log: LogSegments, keep: Segment, pieces: Sequence[Piece], offset: int) -> None:
    while log.segments[-1] is not keep:
        segment = log.segments[-1]
        log.disk.remove(segment.index_path)
        log.disk.remove(segment.path)
        log.files.drop(segment.path)
        log.disk.sync_folder(log.segment_folder)
        log.segments.pop()
    log.disk.remove(keep.index_path)
    log.disk.sync_folder(log.segment_folder)
    if len(pieces) > 1:
        rewrite_segment(log, keep, pieces)
        return
    assert isinstance(pieces[0], range)
    with log.files.use(keep.path) as file:
        file.truncate(pieces[0].stop)
        file.sync()
        scan = scan_file(log, keep.base_offset, file, offset_limit=offset)
    # The index now ends at the first rot in the segment; the log does not.
    keep.index = scan.index
    keep.version += 1
    damages = scan.damages_up_to(offset)
    if damages:
        place_holders(log, keep, damages, end_offset=offset, durable_end=min(log.durable_end, offset))


def rebuild(log: LogSegments, blocks: Iterator[Block], now_us: int) -> None:
    """Fill a new generation of segments from a peer, then switch to it by one atomic write."""
    old_folder, old_segments, old_generation = log.segment_folder, log.segments, log.generation
    log.generation += 1
    folder = log.segment_folder
    try:
        log.disk.remove_folder(folder)
        log.disk.make_folder(folder)
        segments = _fill(log, blocks, folder, now_us)
    except BaseException as error:
        log.generation = old_generation
        if isinstance(error, SyncFailed):
            log.poison(str(error))
        # Opening the log would remove it too.
        with suppress(DiskError):
            log.disk.remove_folder(folder)
        raise
    try:
        write_mark(log.disk, f"{log.folder}/log.meta", log_meta(log.channel_id, log.generation))
    except DiskError as error:
        # The switch may or may not be on disk, so both generations stay until opening finds out.
        log.generation = old_generation
        log.poison(str(error))
        raise
    log.segments = segments
    for segment in old_segments:
        log.files.drop(segment.path)
    with suppress(DiskError):  # opening the log removes what is left
        _remove_old(log, old_folder if old_generation else None, old_segments)


def _remove_old(log: LogSegments, folder: str | None, segments: Sequence[Segment]) -> None:
    for segment in segments:
        log.disk.remove(segment.index_path)
        log.disk.remove(segment.path)
    if folder is not None:
        log.disk.remove_folder(folder)
    log.disk.sync_folder(log.folder)


def _fill(log: LogSegments, blocks: Iterator[Block], folder: str, now_us: int) -> list[Segment]:
    segments: list[Segment] = []
    newest_epoch = 0
    for block in blocks:
        if block.leader.channel_id != log.channel_id or not block.counted:
            raise ReplacementRefused(problem=f"a block of channel {block.leader.channel_id} does not belong here")
        if segments and block.leader.base_offset != segments[-1].index.end_offset:
            raise OffsetMismatch(expected=segments[-1].index.end_offset, got=block.leader.base_offset)
        if block.leader.leader_epoch < newest_epoch:
            raise StaleEpoch(epoch=block.leader.leader_epoch, newest=newest_epoch)
        newest_epoch = block.leader.leader_epoch
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
            if scan_file(log, segment.base_offset, file).damages:
                raise DiskError(operation="rebuild", path=segment.path, reason="it does not read back as written")
        log.write_index(segment)
    return segments


def log_meta(channel_id: int, generation: int) -> dict[str, int]:
    return {"format": 1, "channel_id": channel_id, "generation": generation}
