"""The channels of a store that are open, the write-ahead files behind them, and what waits for the next sync.

`storage.store.store` adds what changes channels; the functions of `commit`, `checkpoint` and `scrub` work on what is
here. The invariants are those of `storage.store.store`.
"""

from __future__ import annotations

import threading

from tidelog.errors import DiskError, LogClosed, LogError, LogPoisoned, SyncFailed, UnknownChannel
from tidelog.storage.disk import Disk, FolderLock
from tidelog.storage.files import FileCache
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.losses import StoreState
from tidelog.storage.store.parts import (
    StoreChannel,
    StoreOptions,
    StoreRecovery,
    grown_log,
    lost_offsets,
    young_log,
)
from tidelog.storage.store.reserve import Reserve
from tidelog.storage.store.restaging import restage, stage_gap
from tidelog.storage.store.wal import WalWriter
from tidelog.storage.store.wals import WalFiles
from tidelog.units import US_PER_MS, US_PER_S

MARK_INTERVAL_US = US_PER_S
"""How far behind the mark of the write-ahead files may be after a power cut. Syncing it is off the path of acks."""


class OpenChannels:
    def __init__(self, *, disk: Disk, options: StoreOptions, lock: FolderLock, state: StoreState) -> None:
        self.disk = disk
        self.options = options
        self.files = FileCache(disk, open_max=options.open_files_max)
        self.state = state
        self.wals = WalFiles(disk)
        self.channels: dict[str, StoreChannel] = {}
        self.next_channel_id = 1
        self.next_log_generation = 1
        self.recovery: StoreRecovery | None = None
        self.trouble: LogError | None = None
        """Why the last checkpoint, sweep or scrub was incomplete; it is tried again."""
        self._lock = lock
        self._opening = threading.RLock()
        self._by_log: dict[int, StoreChannel] = {}
        self.reserve = Reserve(disk, reserve_bytes=options.log.reserve_bytes)
        self._unsynced_ends: dict[int, tuple[StoreChannel, int]] = {}
        """Channels with blocks that were written and not waited for, and where they end."""
        self._sync_due_us: int | None = None
        self._hints_due_us: int | None = None
        self._mark_due_us: int | None = None
        self._poison: str | None = None
        self._checkpoint_due_us: int | None = None
        self._sweep_due_us = 0
        self._commits = self._syncs = self._checkpoints = 0
        self._closed = False

    @property
    def incarnation(self) -> int:
        return self.state.incarnation

    def note_shown_loss(self, reason: str) -> None:
        """A log was found to lack what was synced; placeholders stand there now."""
        self.state.shown.append(reason)
        if self.recovery is not None:
            self.recovery = self.state.added_to(self.recovery)

    # --- channels --------------------------------------------------------------------------------

    def open_channel(
        self, channel: StoreChannel, now_us: int, *, distrust: bool = False, with_files: bool = False
    ) -> Log:
        """Open a channel's log and give it what only the write-ahead files hold. Any reader may cause this."""
        with self._opening:
            if channel.log is not None:
                return channel.log
            if self._closed:
                raise LogClosed(log="the store")
            log = self._find_log(channel, now_us, with_files=with_files)
            if distrust:
                # After a failed sync the cache may show bytes that no later sync writes (D2).
                log.truncate(max(channel.synced_end, log.log_start))
            restage(channel, log, now_us)
            channel.log = log
            self._by_log[id(log)] = channel
            return log

    def _find_log(self, channel: StoreChannel, now_us: int, *, with_files: bool) -> Log:
        options = self._options_of(channel)
        if with_files or self.disk.exists(channel.folder):
            log = grown_log(self.disk, channel, options, self.files, now_us)
        else:
            log = young_log(self.disk, channel, options, self.files)
        gone, end = list(log.recovery.quarantined) if log.recovery else [], log.log_end
        # If something was written back and its file is lost, that must not look like a short log.
        if stage_gap(log, channel.synced_end, now_us):
            channel.gap_staged = True
            gone.append(range(end, channel.synced_end))
        if gone:
            self.note_shown_loss(lost_offsets(channel, gone))
        return log

    def _options_of(self, channel: StoreChannel) -> LogOptions:
        resolver = self.options.options_of
        return channel.options or (resolver(channel.name) if resolver else None) or self.options.log

    def _channel(self, name: str) -> StoreChannel:
        channel = self.channels.get(name)
        if channel is None:
            raise UnknownChannel(channel=name)
        return channel

    def _let_go(self, channel: StoreChannel, cause: str) -> None:
        self._retire(channel.log, cause)
        channel.log = None

    def _retire(self, log: Log | None, cause: str) -> None:
        if log is not None:
            self._by_log.pop(id(log), None)
            log.poison(cause)
            log.close()

    def enter(self, channel: StoreChannel) -> None:
        """Its creation is in the write-ahead file."""
        if not channel.entered:
            channel.entered = True
            self.channels[channel.name] = channel
            self.next_channel_id = max(self.next_channel_id, channel.channel_id + 1)

    # --- the write-ahead file --------------------------------------------------------------------

    @property
    def syncs(self) -> int:
        return self._syncs

    def committed(self, now_us: int) -> None:
        self._commits += 1
        self._mark_due_us = self._mark_due_us or now_us + MARK_INTERVAL_US
        if self._checkpoint_due_us is None:
            self._checkpoint_due_us = now_us + self.options.checkpoint_interval_ms * US_PER_MS

    def hints_are_due(self, now_us: int, written: bool) -> bool:
        """Whether hints have waited for a sync long enough; `written` says that there is another one."""
        if written and self._hints_due_us is None:
            self._hints_due_us = now_us + US_PER_S
        return self._hints_due_us is not None and now_us >= self._hints_due_us

    def count_sync(self) -> None:
        self._syncs += 1

    def note_written(self, channel: StoreChannel, end: int, sync_by_us: int | None) -> None:
        """The next sync of the write-ahead file makes this channel durable up to `end`."""
        self._unsynced_ends[channel.channel_id] = channel, end
        if sync_by_us is not None:
            self._sync_due_us = sync_by_us if self._sync_due_us is None else min(self._sync_due_us, sync_by_us)

    def awaits_sync(self, channel: StoreChannel) -> bool:
        return channel.channel_id in self._unsynced_ends

    def sync_wal(self) -> None:
        self.wals.sync()
        self._syncs += 1
        self._hints_due_us = self._sync_due_us = None
        for channel, end in self._unsynced_ends.values():
            if channel.log is not None:
                channel.log.note_durable(end)
        self._unsynced_ends.clear()

    def _sync_waiting(self) -> None:
        """Sync what was written and not waited for."""
        if not self._unsynced_ends:
            return
        try:
            self.sync_wal()
        except DiskError as error:
            self.poison(str(error))
            raise

    def wal(self, now_us: int) -> WalWriter:
        """The current write-ahead file, started if there is none."""
        self.check_usable()
        if self.wals.current is not None:
            return self.wals.current
        try:
            return self.wals.begin()
        except SyncFailed as error:
            self.poison(str(error))
            raise

    # --- failures --------------------------------------------------------------------------------

    def check_usable(self) -> None:
        if self._closed:
            raise LogClosed(log="the store")
        if self._poison is not None:
            raise LogPoisoned(log="the store", cause=self._poison)

    def poison(self, cause: str) -> None:
        """Stop all storage of the node and report it (ST4)."""
        self._poison = self._poison or cause
        for channel in self._by_log.values():
            if channel.log is not None:
                channel.log.poison(cause)
