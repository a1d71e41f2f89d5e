"""One interface to the logs of a cluster and of a folder.

`sources.address` opens them.

What a caller must keep: a `Piece` is planned from the `ChannelEnds` of the same address, and never changed.

SLO1  Only committed records are given out, in offset order, each block verified in the process that reads it (P2).
SLO2  A piece is delivered whole or ends with a typed error; it is shortened only where skipping was requested.
SLO3  A piece names channel id and leader epoch: a recreated channel and a rewritten history are refused, not read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.errors import (
    ChannelRecreated,
    HistoryRewritten,
    LogError,
    OffsetOutOfRange,
    OffsetTrimmed,
)

FAIL: Final = "fail"
SKIP: Final = "skip"
READ_BYTES: Final = 4 << 20
"""The approximate bytes of one step of `Logs.blocks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEnds:
    """The state of a channel's log."""

    channel: str
    channel_id: int
    leader_epoch: int
    unclean_epoch: int = 0
    """The epoch of the newest unclean election: records read under an older epoch may be gone from the log (P1)."""
    log_start: int
    committed_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A range of one channel's offsets, for one task (P2). Half-open."""

    channel: str
    channel_id: int
    leader_epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFilter:
    """Which blocks may hold wanted rows, as far as their headers tell (B2). Bounds are half-open; None is no bound."""

    from_seq: int | None = None
    before_seq: int | None = None
    from_time_us: int | None = None
    before_time_us: int | None = None
    kinds: frozenset[int] | None = None

    def takes(self, block: Block) -> bool:
        maker = block.maker
        if self.kinds is not None and maker.kind not in self.kinds:
            return False
        if self.from_time_us is not None and maker.time_max_us < self.from_time_us:
            return False
        if self.before_time_us is not None and maker.time_min_us >= self.before_time_us:
            return False
        if self.from_seq is None and self.before_seq is None:
            return True
        seqs = maker.seqs
        if not seqs:
            return False  # a record without a seq is in no range of seqs
        return (self.from_seq is None or seqs.stop > self.from_seq) and (
            self.before_seq is None or seqs.start < self.before_seq
        )


class Logs(ABC):
    """See the module. Made by `sources.address.LogsAddress.open`."""

    identity = ""
    """The identity of the cluster: channel ids mean nothing in another one. Empty for a folder."""
    is_busy = False
    """Whether a caller is in the middle of `blocks`."""

    @abstractmethod
    def channels(self, globs: Sequence[str] = ("*",)) -> list[ChannelEnds]:
        """The channels whose names fit one of these, by name. A name without a pattern that does not exist is
        `UnknownChannel`; a pattern may fit nothing."""

    @abstractmethod
    def blocks(
        self, piece: Piece, *, wanted: BlockFilter | None = None, on_trimmed: str = FAIL, on_damaged: str = FAIL
    ) -> Iterator[list[Block]]:
        """The blocks that hold the piece's offsets, some at a time; the first and the last may reach beyond them, and
        control blocks come too unless `wanted` says otherwise."""

    @abstractmethod
    def offset_at(self, channel: str, *, time_us: int | None = None, seq: int | None = None) -> int:
        """The first offset with a record at or after this time or seq; the committed end if there is none."""

    @abstractmethod
    def set_cursors(self, name: str, offsets: Mapping[str, int]) -> dict[str, LogError]:
        """Set the cursor of this name in each of these channels; returns why, where it could not be set. Retention
        keeps records at or after it (R12). A folder has none: nothing happens there."""

    @abstractmethod
    def close(self) -> None:
        """Close files and links."""


# --- what both kinds of logs check -------------------------------------------------------------------


def is_glob(text: str) -> bool:
    return any(letter in text for letter in "*?[")


def fits(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def require_piece(piece: Piece, ends: ChannelEnds, *, on_trimmed: str) -> range:
    """The offsets to read of a piece, with the channel in this state (SLO2, SLO3)."""
    if ends.channel_id != piece.channel_id:
        raise ChannelRecreated(channel=piece.channel, expected_id=piece.channel_id, found_id=ends.channel_id)
    if ends.unclean_epoch > piece.leader_epoch:
        raise HistoryRewritten(
            channel=piece.channel,
            offset=min(piece.start, ends.committed_end),
            leader_epoch=piece.leader_epoch,
            found_epoch=ends.unclean_epoch,
        )
    start = piece.start
    if start < ends.log_start:
        if on_trimmed != SKIP:
            raise trimmed(piece.channel, start, ends.log_start)
        start = min(ends.log_start, piece.end)
    if piece.end > ends.committed_end:
        outside = OffsetOutOfRange(offset=piece.end, log_start=ends.log_start, log_end=ends.committed_end)
        outside.add_note(f"of channel {piece.channel!r}")
        raise outside
    return range(start, piece.end)


def trimmed(channel: str, offset: int, log_start: int) -> OffsetTrimmed:
    error = OffsetTrimmed(channel=channel, offset=offset, log_start=log_start)
    error.add_note("in a Spark source: set on_trimmed=skip to go on at the log's start")
    return error


def require_epoch(piece: Piece, block: Block) -> None:
    """Records below the planned end existed when it was planned, so no newer leader can have written them (SLO3)."""
    if block.leader.leader_epoch > piece.leader_epoch:
        raise HistoryRewritten(
            channel=piece.channel,
            offset=block.leader.base_offset,
            leader_epoch=piece.leader_epoch,
            found_epoch=block.leader.leader_epoch,
        )


def is_data(block: Block) -> bool:
    return block.maker.kind in DATA_KINDS


DATA_KINDS: Final = frozenset({int(BlockKind.FRAMES), int(BlockKind.FOREIGN), int(BlockKind.MESSAGES)})
FRAME_KINDS: Final = frozenset({int(BlockKind.FRAMES), int(BlockKind.FOREIGN)})
MESSAGE_KINDS: Final = frozenset({int(BlockKind.MESSAGES)})
