"""All channels of a node behind one write-ahead file.

One `fdatasync` of that file commits what every channel has waiting, so durability costs the same for
one channel or ten thousand. Small blocks stay in memory and in the write-ahead file until a
checkpoint writes them back to their segments; large ones (S1) go straight to their segment, which
is synced in the same commit, so bulk is written once. A channel that nobody uses is a name and a
number: its log is opened when first asked for.

What a caller must keep: one driver at a time (a `Committer`) commits, checkpoints and changes
channels; any thread may read.

ST1  An append is acked after the write-ahead file, or the segment it went to directly, is synced.
ST2  A write-ahead file is removed only when every block in it is synced in its segment, or has been
     written again to a newer one because its segment could not be (S3). If that fails too (a full
     disk), the old files stay.
ST3  Channel ids are never used twice, not even after a crash in the middle of a creation.
ST4  A failed sync of the write-ahead file stops the whole store until it is opened anew (S3).
ST5  What changes channels is entered twice and synced before it is carried out, so neither a crash nor
     one damaged entry leaves half of it. Refused with a full disk, it has not happened.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tidelog.errors import (
    ChannelExists,
    DamagedRange,
    DiskError,
    LogClosed,
    LogError,
    LogPoisoned,
    NotABlockBoundary,
    OffsetOutOfRange,
    SyncFailed,
    UnknownChannel,
)
from tidelog.storage import store_recovery
from tidelog.storage.atomic import write_mark_twice
from tidelog.storage.disk import Buffer, Disk, FolderLock
from tidelog.storage.files import FileCache
from tidelog.storage.log import Log
from tidelog.storage.recovery import StoreKnowledge, open_log
from tidelog.storage.reserve import Reserve
from tidelog.storage.store_parts import (
    CHANNELS_FOLDER,
    INTERNALS,
    STATE_PATH,
    TABLE_PATH,
    WAL_FOLDER,
    StoreChannel,
    StoreOptions,
    StoreRecovery,
    StoreStatistics,
    wal_path,
)
from tidelog.storage.store_scrub import StoreScrubber
from tidelog.storage.wal import EntryKind, WalWriter
from tidelog.storage.writer import Append
from tidelog.units import US_PER_MS, US_PER_S

__all__ = [
    "CHANNELS_FOLDER",
    "INTERNALS",
    "STATE_PATH",
    "TABLE_PATH",
    "WAL_FOLDER",
    "Store",
    "StoreChannel",
    "StoreOptions",
    "StoreRecovery",
    "StoreStatistics",
    "open_store",
    "wal_path",
]


class Store:
    """Built by `open_store`."""

    def __init__(self, *, disk: Disk, options: StoreOptions, lock: FolderLock, incarnation: int) -> None:
        self.disk = disk
        self.options = options
        self.files = FileCache(disk, open_max=options.open_files_max)
        self.incarnation = incarnation
        self.channels: dict[str, StoreChannel] = {}
        self.next_channel_id = 1
        self.recovery: StoreRecovery | None = None
        self.trouble: LogError | None = None
        """Why the last checkpoint, sweep or scrub was incomplete; it is tried again."""
        self.scrubber = StoreScrubber(bytes_per_s=options.scrub_bytes_per_s)
        self._lock = lock
        self._opening = threading.RLock()
        self._by_log: dict[int, StoreChannel] = {}
        self._wal: WalWriter | None = None
        self._old_wals: list[int] = []
        self._reserve = Reserve(disk, reserve_bytes=options.log.reserve_bytes)
        self._hints_due_us: int | None = None
        self._poison: str | None = None
        self._checkpoint_due_us: int | None = None
        self._sweep_due_us = 0
        self._commits = self._syncs = self._checkpoints = 0
        self._closed = False

    # --- channels --------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self.channels)

    def log(self, name: str, *, now_us: int) -> Log:
        """The log of a channel, opened if it is not."""
        channel = self._channel(name)
        return channel.log or self.open_channel(channel, now_us)

    def open_channel(self, channel: StoreChannel, now_us: int, *, distrust: bool = False) -> Log:
        """Open a channel's log and give it what only the write-ahead files hold. Any reader may cause this."""
        with self._opening:
            if channel.log is not None:
                return channel.log
            if self._closed:
                raise LogClosed(log="the store")
            resolver = self.options.options_of
            options = (resolver(channel.name) if resolver else None) or self.options.log
            knowledge = StoreKnowledge(
                channel_id=channel.channel_id, clean=channel.clean, synced_end=channel.synced_end
            )
            log = open_log(
                self.disk, channel.folder, now_us=now_us, options=options, files=self.files, managed=knowledge
            )
            if distrust:
                # After a failed sync the cache may show bytes that no later sync writes (D2).
                log.truncate(max(channel.synced_end, log.log_start))
            store_recovery.restage(channel, log, now_us)
            channel.log = log
            self._by_log[id(log)] = channel
            return log

    def reopen_channel(self, name: str, *, now_us: int) -> Log:
        """Verify a channel whose log stopped (L4), and go on with a new `Log` of it."""
        self.check_usable()
        channel = self._channel(name)
        with self._opening:
            self._let_go(channel, "the channel was opened anew")
            channel.clean = False
            return self.open_channel(channel, now_us, distrust=True)

    def _channel(self, name: str) -> StoreChannel:
        channel = self.channels.get(name)
        if channel is None:
            raise UnknownChannel(channel=name)
        return channel

    def _let_go(self, channel: StoreChannel, cause: str) -> None:
        if channel.log is not None:
            self._by_log.pop(id(channel.log), None)
            channel.log.poison(cause)
            channel.log.close()
            channel.log = None

    def create_channel(self, name: str, *, now_us: int) -> Log:
        """Make a channel, durably."""
        self.check_usable()
        if name in self.channels:
            raise ChannelExists(channel=name)
        channel = StoreChannel(channel_id=self.next_channel_id, name=name)
        self.next_channel_id += 1
        try:
            # The folder comes first: without its entry it is a stray that the next opening removes.
            log = self.open_channel(channel, now_us)
            self._write_entry(EntryKind.CREATE, channel.channel_id, {"name": name}, now_us)
        except LogError:
            self._let_go(channel, "the channel could not be created")
            self._remove_folder(channel)
            raise
        self.channels[name] = channel
        return log

    def delete_channel(self, name: str, *, now_us: int) -> None:
        """Remove a channel and its data, durably. Its id is never used again (ST3)."""
        self.check_usable()
        channel = self._channel(name)
        self._write_entry(EntryKind.DELETE, channel.channel_id, {"name": name}, now_us)
        del self.channels[name]
        self._let_go(channel, "the channel was deleted")
        self._remove_folder(channel)

    def _remove_folder(self, channel: StoreChannel) -> None:
        try:
            self.disk.remove_folder(channel.folder)
        except DiskError as error:
            self.trouble = error  # the channel is gone all the same; the next opening removes its folder

    def truncate(self, name: str, offset: int, *, now_us: int) -> None:
        """Truncate a channel's log; on disk before this returns (B5).

        The entry comes first and takes back only blocks of the write-ahead files; then the segments
        are cut. A crash between the two leaves a log that ends at `offset` or later, without a gap,
        and the caller, who got no answer, truncates again.
        """
        self.check_usable()
        log = self.log(name, now_us=now_us)
        log.check_usable()
        channel = self.channels[name]
        if offset >= log.log_end:
            return
        _check_boundary(log, offset)
        self._write_entry(EntryKind.TRUNCATE, channel.channel_id, {"offset": offset}, now_us)
        channel.unsynced = [block for block in channel.unsynced if block.leader.base_offset < offset]
        channel.synced_end = min(channel.synced_end, offset)
        channel.clean = False
        try:
            log.truncate(offset)
        except LogError as error:
            log.poison(f"{error} while it was truncated to {offset}")
            raise

    def _write_entry(self, kind: EntryKind, subject: int, fields: dict[str, Any], now_us: int) -> None:
        wal = self.wal(now_us)
        entry = wal.other_entry(kind, subject, fields)
        try:
            wal.write([entry, entry])
            self._sync_wal()
        except DiskError as error:
            if wal.undo_failed or isinstance(error, SyncFailed):
                self.poison(str(error))
            raise

    # --- commit ----------------------------------------------------------------------------------

    def commit_appends(self, appends: Sequence[Append], now_us: int) -> None:
        """Stage and commit; resolves every future (the committer's contract)."""
        touched: dict[int, StoreChannel] = {}
        staged: list[Append] = []
        for append in appends:
            channel = self._by_log.get(id(append.log))
            try:
                self.check_usable()
                if channel is None:
                    raise UnknownChannel(channel=append.log.folder)
                block = append.stage(now_us)
            except LogError as error:
                append.failed(error)
                continue
            staged.append(append)
            if block is not None:
                channel.waiting.append(block)
                touched[channel.channel_id] = channel
        refusals = self._commit_channels(list(touched.values()), now_us)
        for append in staged:
            refusal = refusals.get(append.log.channel_id)
            if refusal is None or not append.offsets:
                append.done()
            else:
                append.failed(refusal)
        wal = self._wal
        if wal is not None and wal.size >= self.options.wal_bytes_max and self._poison is None:
            # Now and not when the committer next wakes: until then memory would grow with the file.
            self.checkpoint_or_keep(now_us)

    def _commit_channels(self, touched: list[StoreChannel], now_us: int) -> dict[int, LogError]:
        """Make what waits durable. Returns the channels whose appends were refused, and why."""
        refusals: dict[int, LogError] = {}
        large = self.options.large_block_bytes
        entries: list[Buffer] = []
        through_wal: list[StoreChannel] = []
        wal: WalWriter | None = None
        try:
            wal = self.wal(now_us) if touched else None
        except LogError as error:
            for channel in touched:
                refusals[channel.channel_id] = self._refuse(channel, error)
            return refusals
        for channel in touched:
            if wal is not None and any(block.size >= large for block in channel.waiting):
                refusal = self._commit_directly(channel, now_us)
                if refusal is not None:
                    refusals[channel.channel_id] = refusal
                elif channel.log is not None:
                    entries.append(
                        wal.other_entry(EntryKind.DIRECT, channel.channel_id, {"end": channel.log.durable_end})
                    )
            elif wal is not None:
                for block in channel.waiting:
                    entries.extend(wal.block_entry(block))
                through_wal.append(channel)
        if wal is not None and entries:
            self._commit_wal(wal, entries, through_wal, refusals, now_us)
        if touched:
            self._commits += 1
            if self._checkpoint_due_us is None:
                self._checkpoint_due_us = now_us + self.options.checkpoint_interval_ms * US_PER_MS
        return refusals

    def _commit_wal(
        self,
        wal: WalWriter,
        entries: list[Buffer],
        channels: list[StoreChannel],
        refusals: dict[int, LogError],
        now_us: int,
    ) -> None:
        try:
            self._reserve.check(wal.path, sum(map(len, entries)))
            wal.write(entries)
        except DiskError as error:
            if wal.undo_failed:
                self.poison(f"{error}, which could not be undone")
            for channel in channels:
                refusals[channel.channel_id] = self._refuse(channel, error)
            return
        if not channels:
            # Only hints about segments that are synced already. They sync with the next commit, at the
            # latest after a second: until then damage in those blocks would pass for a torn write.
            if self._hints_due_us is None:
                self._hints_due_us = now_us + US_PER_S
            if now_us < self._hints_due_us:
                return
        try:
            self._sync_wal()
        except DiskError as error:
            self.poison(str(error))
            for channel in channels:
                refusals[channel.channel_id] = error
            return
        for channel in channels:
            channel.clean = False
            channel.unsynced += channel.waiting
            if channel.log is not None:
                channel.log.note_durable(channel.waiting[-1].offsets.stop)
            channel.waiting.clear()

    def _commit_directly(self, channel: StoreChannel, now_us: int) -> LogError | None:
        """Write what is staged to the segment and sync that instead (S1)."""
        log = channel.log
        assert log is not None
        try:
            log.flush(now_us)
            log.sync()
        except LogError as error:
            return self._refuse(channel, error)
        self._syncs += 1
        channel.clean = False
        channel.synced_end = log.written_end
        channel.waiting.clear()
        channel.unsynced.clear()
        return None

    def _refuse(self, channel: StoreChannel, error: LogError) -> LogError:
        """Take back the blocks of this commit only; what earlier commits acked stays."""
        log = channel.log
        assert log is not None
        first = channel.waiting[0].leader.base_offset
        channel.waiting.clear()
        try:
            log.truncate(first)
        except LogError as failure:
            log.poison(f"{error}, then {failure}")
        return error

    def _sync_wal(self) -> None:
        assert self._wal is not None
        self._wal.sync()
        self._syncs += 1
        self._hints_due_us = None

    def wal(self, now_us: int) -> WalWriter:
        """The current write-ahead file, started if there is none."""
        self.check_usable()
        if self._wal is None:
            try:
                self._wal = WalWriter(self.disk, WAL_FOLDER, self.next_wal_number)
            except SyncFailed as error:
                self.poison(str(error))
                raise
            self.next_wal_number += 1
        return self._wal

    next_wal_number = 1

    # --- checkpoint ------------------------------------------------------------------------------

    def checkpoint(self, now_us: int) -> None:
        """Write everything back to the segments, then let go of the write-ahead files (ST2)."""
        self.check_usable()
        if self._wal is not None:
            self._old_wals.append(self._wal.number)
            self._wal.close()
            self._wal = None
        stuck: list[StoreChannel] = []
        for channel in list(self.channels.values()):
            log = channel.log
            if log is not None and not (channel.clean and not log.staged_bytes):
                channel.relogged = self._write_back(channel, log, now_us)
            if channel.unsynced:
                stuck.append(channel)
        free_wals = self._log_again(stuck, now_us)
        self._save_table(free_wals=free_wals)
        if free_wals:
            self.drop_old_wals()
            self.trouble = None
        self._checkpoint_due_us = now_us + self.options.checkpoint_interval_ms * US_PER_MS if stuck else None
        self._checkpoints += 1

    def drop_old_wals(self) -> None:
        while self._old_wals:
            self.disk.remove(wal_path(self._old_wals[0]))
            del self._old_wals[0]

    def keep_wals(self, numbers: list[int]) -> None:
        """These files were replayed; the next checkpoint that succeeds removes them."""
        self._old_wals = numbers + self._old_wals

    def _write_back(self, channel: StoreChannel, log: Log, now_us: int) -> LogError | None:
        try:
            log.flush(now_us)
            log.sync()
            channel.synced_end = log.written_end
            channel.unsynced.clear()
            log.write_index(log.segments[-1], sync=False)
        except LogError as error:
            return error
        channel.clean = True
        return None

    def _log_again(self, stuck: list[StoreChannel], now_us: int) -> bool:
        """A segment that cannot be written must not pin the write-ahead file for the others (S3).

        Returns whether the old files may go: not while the disk is too full even for this.
        """
        if not stuck:
            return True
        try:
            wal = self.wal(now_us)
            blocks = [block for channel in stuck for block in channel.unsynced]
            wal.write([buffer for block in blocks for buffer in wal.block_entry(block)])
            self._sync_wal()
        except SyncFailed as error:
            self.poison(str(error))
            raise
        except DiskError as error:
            if self._wal is not None and self._wal.undo_failed:
                self.poison(str(error))
                raise
            self.trouble = error
            return False
        return True

    def _save_table(self, *, free_wals: bool) -> None:
        newest = self._wal.number if self._wal is not None else self.next_wal_number
        rows = [[channel.channel_id, channel.name, channel.synced_end] for channel in self.channels.values()]
        table = {
            "format": 1,
            "next_channel_id": self.next_channel_id,
            "wal_floor": newest if free_wals else min([newest, *self._old_wals]),
            "wal_newest": newest,
            "channels": rows,
        }
        write_mark_twice(self.disk, TABLE_PATH, table)

    def checkpoint_or_keep(self, now_us: int) -> None:
        """Checkpoint; if that fails, the write-ahead files stay and it is tried again later."""
        try:
            self.checkpoint(now_us)
        except LogError as error:
            self.trouble = error
            self._checkpoint_due_us = now_us + self.options.checkpoint_interval_ms * US_PER_MS

    def maintain(self, now_us: int) -> int:
        """Checkpoint, roll, trim and scrub when due."""
        options = self.options
        if self._poison is None and self._checkpoint_due_us is not None and now_us >= self._checkpoint_due_us:
            self.checkpoint_or_keep(now_us)
        if now_us >= self._sweep_due_us:
            self._sweep_due_us = now_us + options.log.retention_interval_ms * US_PER_MS
            for channel in list(self.channels.values()):
                self._sweep(channel, now_us)
        due_us = [self._sweep_due_us]
        if options.scrub_bytes_per_s and self._poison is None:
            self.scrubber.wake(self, now_us)
            due_us.append(now_us + US_PER_S)
        if self._checkpoint_due_us is not None and self._poison is None:
            due_us.append(self._checkpoint_due_us)
        return min(due_us)

    def _sweep(self, channel: StoreChannel, now_us: int) -> None:
        """One channel's trouble must not keep retention from the others."""
        if channel.log is None:
            return
        try:
            channel.log.roll_if_due(now_us)
            channel.log.sweep_retention(now_us)
        except LogError as error:
            self.trouble = error

    # --- the end ---------------------------------------------------------------------------------

    def check_usable(self) -> None:
        if self._closed:
            raise LogClosed(log="the store")
        if self._poison is not None:
            raise LogPoisoned(log="the store", cause=self._poison)

    def poison(self, cause: str) -> None:
        """Stop the whole node's storage, loudly (ST4)."""
        self._poison = self._poison or cause
        for channel in self.channels.values():
            if channel.log is not None:
                channel.log.poison(cause)

    def statistics(self) -> StoreStatistics:
        logs = [channel.log for channel in self.channels.values() if channel.log is not None]
        return StoreStatistics(
            channels=len(self.channels),
            open_logs=len(logs),
            open_files=self.files.open_count(),
            wal_bytes=self._wal.size if self._wal is not None else 0,
            staged_bytes=sum(log.staged_bytes for log in logs),
            commits=self._commits,
            syncs=self._syncs,
            checkpoints=self._checkpoints,
            incarnation=self.incarnation,
        )

    def close(self, now_us: int) -> None:
        """Checkpoint and mark the store as cleanly closed; after a poisoned life, only let go."""
        if self._closed:
            return
        try:
            if self._poison is None:
                self.checkpoint(now_us)
                clean = not self._old_wals and not any(channel.unsynced for channel in self.channels.values())
                write_mark_twice(self.disk, STATE_PATH, {"clean": clean, "incarnation": self.incarnation})
        finally:
            self._closed = True
            for channel in self.channels.values():
                self._let_go(channel, "the store was closed")
            if self._wal is not None:
                self._wal.close()
            self.files.close()
            self._lock.release()


def open_store(disk: Disk, *, now_us: int, options: StoreOptions | None = None) -> Store:
    """Open the store on this disk, replaying its write-ahead files if it was not closed."""
    return store_recovery.open_store(disk, now_us=now_us, options=options or StoreOptions())


def _check_boundary(log: Log, offset: int) -> None:
    """Refuse what `Log.truncate` would refuse, before the entry is written."""
    if offset < log.log_start:
        raise OffsetOutOfRange(offset=offset, log_start=log.log_start, log_end=log.log_end)
    try:
        block = log.read(offset, bytes_max=1)[0]
    except DamagedRange:
        return  # a placeholder can be cut anywhere
    if block.leader.base_offset != offset:
        raise NotABlockBoundary(offset=offset, block=block.offsets)
