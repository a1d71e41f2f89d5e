"""Opening a boat's log: the fold over it, and where its newest fold snapshot lies.

Folding starts at a snapshot if somebody remembers where one is, else at the log's start. Both give the same
fold (F1), so the hint may be missing, old or wrong.

What a caller must keep: the floor that is set here stays below the newest committed snapshot, so that retention
never takes what the fold needs (F3). Whoever opens a log otherwise must not let retention near it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.blocks.block import Block
from tidelog.blocks.control import FoldSnapshot, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.cluster.uplink_channel import fold_log
from tidelog.core.uplink.fold import ChannelFold
from tidelog.errors import LogError
from tidelog.storage.log import Log

FLOOR: Final = "fold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Where a fold snapshot lies, and when it was appended."""

    offsets: range
    time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    log: Log
    fold: ChannelFold
    snapshot: Snapshot | None
    """The newest."""
    bytes_since_snapshot: int


def open_channel_log(log: Log, *, hint: int | None = None) -> OpenedLog:
    """Fold a log. Slow for a long one without a snapshot: call it in a thread."""
    start = log.log_start
    if hint is not None and _is_snapshot(log, hint):
        start = hint
    snapshot: Snapshot | None = None
    bytes_since = 0

    def noted() -> Iterator[Block]:
        nonlocal snapshot, bytes_since
        for block in log.blocks(start):
            bytes_since += block.size
            if _holds_snapshot(block):
                snapshot = Snapshot(offsets=block.offsets, time_us=block.leader.append_time_us)
                bytes_since = 0
            yield block

    fold = fold_log(noted())
    log.set_floor(FLOOR, snapshot.offsets.start if snapshot is not None else start)
    return OpenedLog(log=log, fold=fold, snapshot=snapshot, bytes_since_snapshot=bytes_since)


def hold_all(log: Log) -> None:
    """Nothing may be trimmed before the log has been folded."""
    log.set_floor(FLOOR, log.log_start)


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
