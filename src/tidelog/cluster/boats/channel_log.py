"""Opening a boat's log: the folds over it, and where its newest fold snapshot lies.

Folding starts at a snapshot if its offset is known, else at the log's start. Both give the same folds (F1), so the hint
may be missing, old or wrong. Retention never removes records that a fold needs (F3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.blocks.control import FoldSnapshot, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.cluster.boats.channel import FRAME_KINDS, fold_log
from tidelog.cluster.boats.events import EventRing
from tidelog.core.uplink.fold import ChannelFold
from tidelog.errors import LogError
from tidelog.storage.log.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """The offset of a fold snapshot, and when it was appended."""

    offsets: range
    time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    fold: ChannelFold
    events: EventRing
    end: int
    """The folds are those of the log up to here."""
    snapshot: SnapshotPlace | None
    """The newest snapshot."""
    bytes_since_snapshot: int
    newest_frames: tuple[int, int]
    """The end of the boat's newest block, and when it was appended; zeros if none was read."""


def open_channel_log(log: Log, *, end: int, hint: int | None = None) -> OpenedLog:
    """Fold a log up to `end`. Slow for a long one without a snapshot: call it in a thread."""
    start = log.log_start
    if hint is not None and hint < end and _is_snapshot(log, hint):
        start = hint
    snapshot: SnapshotPlace | None = None
    bytes_since = 0
    newest_frames = (0, 0)
    events = EventRing()

    def noted() -> Iterator[Block]:
        nonlocal snapshot, bytes_since, newest_frames
        for block in log.blocks(start, end):
            bytes_since += block.size
            if _holds_snapshot(block):
                snapshot = SnapshotPlace(offsets=block.offsets, time_us=block.leader.append_time_us)
                bytes_since = 0
            elif block.maker.kind in FRAME_KINDS:
                newest_frames = (block.offsets.stop, max(block.leader.append_time_us, 0))
            events.fold(block)
            yield block

    fold = fold_log(noted())
    return OpenedLog(
        fold=fold,
        events=events,
        end=end,
        snapshot=snapshot,
        bytes_since_snapshot=bytes_since,
        newest_frames=newest_frames,
    )


def _is_snapshot(log: Log, offset: int) -> bool:
    try:
        blocks = log.read(offset, bytes_max=1)
    except LogError:
        return False  # trimmed, damaged or never written: the hint is wrong
    return bool(blocks) and blocks[0].offsets.start == offset and _holds_snapshot(blocks[0])


def _holds_snapshot(block: Block) -> bool:
    if block.maker.kind != BlockKind.CONTROL:
        return False
    return any(isinstance(record, FoldSnapshot) for record in decode_control(block.maker, block.raw_body()))
