"""Logs of a cluster, through the native client: bulk from the nearest in-sync replica, ends from the leaders.

One client with its own thread and its links serves all that a process does with an address. Certificate files are read
by path in the process that connects, so no key is ever part of a task.

CO1  Before a piece is read, the catalog must show that the channel is still the planned one (SLO3); every block is then
     compared with the planned leader epoch too, because the catalog's answer may be older than the log.
CO2  The planned end is the committed end of the channel's leader. The client skips a replica that is behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from tidelog.blocks.block import Block
from tidelog.client import Client, Offsets, Seq, Time
from tidelog.client.sync import SyncClient
from tidelog.errors import (
    ChannelDeleted,
    DamagedRange,
    LogError,
    OffsetTrimmed,
    RecordsDamaged,
    UnknownChannel,
)
from tidelog.pipeline.sources.logs import (
    FAIL,
    READ_BYTES,
    SKIP,
    BlockFilter,
    ChannelEnds,
    Logs,
    Piece,
    fits,
    is_glob,
    require_epoch,
    require_piece,
    trimmed,
)


class ClusterLogs(Logs):
    """See the module."""

    def __init__(self, client: SyncClient) -> None:
        """`close` closes the client too."""
        self.client = client
        self._reading = 0
        self._guard = threading.Lock()
        self.identity = str(self.client.cluster()["cluster"])

    @property
    def is_busy(self) -> bool:  # type: ignore[override]
        return self._reading > 0

    def channels(self, globs: Sequence[str] = ("*",)) -> list[ChannelEnds]:
        names = [glob for glob in globs if not is_glob(glob)]
        if len(names) == len(globs):
            plain = [self.client.describe(name) for name in dict.fromkeys(names)]
        else:
            plain = [one for one in self.client.channels() if fits(one["name"], globs)]
            known = {one["name"] for one in plain}
            for name in names:
                if name not in known:
                    raise UnknownChannel(channel=name)
        answers = self.client.at_once([_asked_offsets(str(one["name"])) for one in plain])
        found = [_ends(one, answer) for one, answer in zip(plain, answers, strict=True)]
        return sorted((ends for ends in found if ends is not None), key=lambda ends: ends.channel)

    def blocks(
        self, piece: Piece, *, wanted: BlockFilter | None = None, on_trimmed: str = FAIL, on_damaged: str = FAIL
    ) -> Iterator[list[Block]]:
        with self._guard:
            self._reading += 1
        try:
            yield from self._blocks(piece, wanted, on_trimmed, on_damaged)
        finally:
            with self._guard:
                self._reading -= 1

    def _blocks(
        self, piece: Piece, wanted: BlockFilter | None, on_trimmed: str, on_damaged: str
    ) -> Iterator[list[Block]]:
        left = self._checked(piece)
        while left:
            start = left.start
            try:
                for run in self._fetched(piece, left):
                    left = range(min(run[-1].end, left.stop), left.stop)
                    kept = run if wanted is None else [block for block in run if wanted.takes(block)]
                    if kept:
                        yield kept
            except OffsetTrimmed as error:
                if on_trimmed != SKIP:
                    raise trimmed(piece.channel, left.start, error.log_start) from error
                left = range(min(error.log_start, left.stop), left.stop)
            except DamagedRange as error:
                if on_damaged != SKIP:
                    raise RecordsDamaged(
                        channel=piece.channel, start=error.start, end=error.end, problem=error.problem
                    ) from error
                left = range(min(max(error.end, left.start), left.stop), left.stop)
            except ChannelDeleted as error:
                raise UnknownChannel(channel=piece.channel) from error
            assert left.start > start, "what is read or skipped makes progress"

    def _checked(self, piece: Piece) -> range:
        """CO1. Whether the offsets are still there and committed is checked by the replicas."""
        plain = self.client.describe(piece.channel)
        ends = ChannelEnds(
            channel=piece.channel,
            channel_id=int(plain["channel_id"]),
            leader_epoch=int(plain["leader_epoch"]),
            unclean_epoch=_unclean_epoch(plain),
            log_start=0,
            committed_end=piece.end,
        )
        return require_piece(piece, ends, on_trimmed=FAIL)

    def _fetched(self, piece: Piece, offsets: range) -> Iterator[list[Block]]:
        run: list[Block] = []
        run_bytes = 0
        blocks = self.client.fetch(piece.channel, offsets, nearest=True, channel_id=piece.channel_id)
        try:
            for block in blocks:
                require_epoch(piece, block)
                run.append(block)
                run_bytes += block.size
                if run_bytes >= READ_BYTES:
                    yield run
                    run, run_bytes = [], 0
        except LogError:
            # Blocks before the problem are good; they are requested once, and the problem comes up again behind them.
            if run:
                yield run
            raise
        if run:
            yield run

    def offset_at(self, channel: str, *, time_us: int | None = None, seq: int | None = None) -> int:
        assert (time_us is None) != (seq is None)
        return self.client.offset_at(channel, Time(time_us) if time_us is not None else Seq(seq or 0))

    def set_cursors(self, name: str, offsets: Mapping[str, int]) -> dict[str, LogError]:
        answers = self.client.at_once([_asked_cursor(channel, name, offset) for channel, offset in offsets.items()])
        return {
            channel: answer for channel, answer in zip(offsets, answers, strict=True) if isinstance(answer, LogError)
        }

    def close(self) -> None:
        self.client.close(flush=False)


def _asked_offsets(channel: str) -> Callable[[Client], Coroutine[Any, Any, Offsets]]:
    return lambda client: client.offsets(channel)


def _asked_cursor(channel: str, name: str, offset: int) -> Callable[[Client], Coroutine[Any, Any, None]]:
    return lambda client: client.set_cursor(channel, name, offset)


def _ends(plain: dict[str, Any], offsets: Offsets | LogError) -> ChannelEnds | None:
    """None for a channel that was deleted meanwhile."""
    if isinstance(offsets, UnknownChannel | ChannelDeleted):
        return None
    if isinstance(offsets, LogError):
        raise offsets
    return ChannelEnds(
        channel=str(plain["name"]),
        channel_id=int(plain["channel_id"]),
        leader_epoch=max(offsets.leader_epoch, int(plain["leader_epoch"])),
        unclean_epoch=_unclean_epoch(plain),
        log_start=offsets.log_start,
        committed_end=offsets.committed_end,
    )


def _unclean_epoch(plain: dict[str, Any]) -> int:
    return max((int(election["leader_epoch"]) for election in plain["unclean"]), default=0)
