"""A boat's channel as this node leads it, in one leader epoch: where an `Instance` appends and what it folds.

What a caller must keep: look at `is_held` after every wait. Leadership that is lost does not come back: the next
epoch, and a log that was cut, have another `LedChannel`.

SE1  Nothing is appended here once the epoch is over (U2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tidelog.blocks.block import Block
from tidelog.blocks.control import ChannelSnapshot
from tidelog.cluster.boats.channel import LogAppend, held_block
from tidelog.cluster.boats.channel_log import OpenedLog, open_channel_log
from tidelog.cluster.local_channels import LocalChannels, LocalReplica
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.errors import LogError, WaitTimedOut
from tidelog.storage.log.log import Log
from tidelog.storage.log.writer import steady_clock_ms

Settled: TypeAlias = Callable[[int, LogError | None], None]


class LedChannel:
    def __init__(self, channels: LocalChannels, replica: LocalReplica) -> None:
        self._channels = channels
        self._replica = replica
        self.name = replica.name
        self.channel_id = replica.channel_id
        self.epoch = replica.served_epoch
        self._fold = replica.fold
        assert self.epoch, "the replica leads and serves"

    @property
    def is_held(self) -> bool:
        """Whether this node still leads in this epoch, with the same log."""
        return self._replica.served_epoch == self.epoch and self._replica.fold is self._fold

    @property
    def log(self) -> Log:
        return self._channels.log(self.channel_id)

    @property
    def committed_end(self) -> int:
        return self._replica.committed_end

    async def open(self, *, wait_ms: int) -> OpenedLog:
        """Fold all that was appended before; what is still on its way is waited for."""
        replica, deadline_ms = self._replica, steady_clock_ms() + wait_ms
        end = replica.log_end
        while self.is_held and replica.committed_end < end:
            if not await self._channels.wait_moved(self.channel_id, deadline_ms):
                raise WaitTimedOut(waiting_for="what was appended before to be committed", deadline_s=wait_ms / 1000)
        self.check()
        assert replica.fold is not None
        return await self._channels.in_reader(self._open, end, replica.fold.lineages_at)

    def _open(self, end: int, hint: int | None) -> OpenedLog:
        return open_channel_log(self.log, end=end, hint=hint)

    def check(self) -> None:
        """Raise `NotChannelLeader` if this node no longer leads in this epoch."""
        if not self.is_held:
            raise self._replica.not_leader()

    def held_block(self, lineage: bytes, seq: int) -> Block | None:
        """The block of this lineage in which a seq counts, if it can be read."""
        try:
            return held_block(self.log, lineage, seq)
        except LogError:
            return None

    def append(self, append: LogAppend, settled: Settled, *, is_control: bool = False) -> None:
        """Append; `settled` is called with the first offset, or with why not, once. Raises what stands against it."""
        self.check()  # SE1
        order = ProduceOrder(settled, append.made, path=append.path, windows=append.windows, is_control=is_control)
        self._channels.submit(self.channel_id, order)

    def other_snapshots(self) -> list[ChannelSnapshot]:
        """Snapshots of the other folds over the log, so that one place in it is enough to begin reading at (F3)."""
        fold = self._replica.fold
        return [] if fold is None else [ChannelSnapshot(state=fold.state())]

    def apply_retention(self) -> None:
        """Trim what the channel's settings no longer keep."""
        if self.is_held:
            self._channels.apply_retention(self.channel_id)

    def waits_for_snapshot(self, now_us: int) -> bool:
        """Whether retention would take more if there were a newer fold snapshot."""
        kept = self._replica.record.config.retention
        replica = self._replica
        if (kept.max_age_ms, kept.max_bytes, kept.max_events) == (None, None, None):
            return False
        log = self.log
        with log.mutex:
            oldest_us = log.segments[0].index.append_min_us if log.segments[0].index.blocks else now_us
        too_old = kept.max_age_ms is not None and now_us - oldest_us > kept.max_age_ms * 1000
        too_large = kept.max_bytes is not None and replica.log_bytes > kept.max_bytes
        too_many = kept.max_events is not None and replica.log_end - replica.log_start > kept.max_events
        return too_old or too_large or too_many
