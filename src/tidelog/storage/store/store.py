"""All channels of a node behind one write-ahead file.

One `fdatasync` of that file commits what every channel has waiting, so durability costs the same for one channel or ten
thousand. Small blocks stay in memory and in the write-ahead file until a checkpoint writes them back to their segments;
large ones (S1) go straight to their segment, which is synced in the same commit, so bulk is written once. A channel
that nobody uses costs a name and a number in memory: its log is opened when first used.

What a caller must keep: one driver at a time (a `Committer`) commits, checkpoints and changes
channels; any thread may read.

ST1  An append is acked after the write-ahead file, or the segment it went to directly, is synced.
ST2  A write-ahead file is removed only when every block in it is synced in its segment, or has been written again to a
     newer one because its segment could not be (S3), or was copied because it is too small for a file of its own
     (`copy_bytes_max`). If that fails too (a full disk), the old files stay.
ST3  Ids that the store gives out are never used twice, not even after a crash in the middle of a creation. An id that a
     catalog gave may come back after a deletion or a reset: each time the channel has a new log generation, in a folder
     of its own, and replay never mixes two of them.
ST4  A failed sync of the write-ahead file stops the whole store until it is opened anew (S3).
ST5  What changes channels is entered twice and synced before it is carried out, so neither a crash nor one damaged
     entry leaves half of it. Refused with a full disk, it has not happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tidelog.blocks.block import Block
from tidelog.errors import (
    ChannelExists,
    DiskError,
    LogError,
    SyncFailed,
    UnknownChannel,
)
from tidelog.storage.atomic import write_mark_twice
from tidelog.storage.disk import Disk, FolderLock
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.writer import Append
from tidelog.storage.store.checkpoint import carried, log_again, statistics_of, table_of
from tidelog.storage.store.commit import commit_blocks, commit_channels
from tidelog.storage.store.losses import StoreState
from tidelog.storage.store.open_channels import OpenChannels
from tidelog.storage.store.parts import (
    TABLE_PATH,
    StoreChannel,
    StoreOptions,
    StoreStatistics,
    check_boundary,
    young_log,
)
from tidelog.storage.store.scrub import StoreScrubber
from tidelog.storage.store.wal import WalEntryKind
from tidelog.units import US_PER_MS, US_PER_S


class Store(OpenChannels):
    """Built by `recovery.open_store`."""

    def __init__(self, *, disk: Disk, options: StoreOptions, lock: FolderLock, state: StoreState) -> None:
        super().__init__(disk=disk, options=options, lock=lock, state=state)
        self.scrubber = StoreScrubber(bytes_per_s=options.scrub_bytes_per_s)

    def forget_loss(self) -> None:
        """Every channel was compared with whole copies, or an operator took it as it is."""
        if self.state.lost:
            self.state.lost = ""
            self.state.save(self.disk)

    # --- channels --------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self.channels)

    def log(self, name: str, *, now_us: int) -> Log:
        """The log of a channel, opened if it is not."""
        channel = self._channel(name)
        return channel.log or self.open_channel(channel, now_us)

    def reopen_channel(self, name: str, *, now_us: int) -> Log:
        """Verify a channel whose log stopped (LLO4), and go on with a new `Log` of it."""
        self.check_usable()
        self._sync_waiting()
        channel = self._channel(name)
        with self._opening:
            self._let_go(channel, "the channel was opened anew")
            channel.clean = False
            return self.open_channel(channel, now_us, distrust=True)

    def create_channel(self, name: str, *, now_us: int) -> Log:
        """Make a channel, durably."""
        self.check_usable()
        if name in self.channels:
            raise ChannelExists(channel=name)
        channel = StoreChannel(channel_id=self.next_channel_id, name=name)
        self.next_channel_id += 1
        try:
            # The folder comes first: without its entry it is a stray that the next opening removes.
            log = self.open_channel(channel, now_us, with_files=True)
            self._write_entry(WalEntryKind.CREATE, channel.channel_id, {"name": name}, now_us)
        except LogError:
            self._let_go(channel, "the channel could not be created")
            self._remove_folder(channel.folder)
            raise
        self.channels[name] = channel
        return log

    def prepare_channel(
        self, channel_id: int, name: str, *, now_us: int, base_offset: int = 0, options: LogOptions | None = None
    ) -> StoreChannel:
        """A channel under an id of the caller's, which no other channel here may have, open and empty.

        Nothing is written: its first commit enters it.
        """
        self.check_usable()
        if name in self.channels:
            raise ChannelExists(channel=name)
        generation = self._new_log_generation()
        channel = StoreChannel(
            channel_id=channel_id, name=name, base_offset=base_offset, log_generation=generation, entered=False
        )
        channel.options = options
        self.open_channel(channel, now_us)
        return channel

    def _new_log_generation(self) -> int:
        self.next_log_generation += 1
        return self.next_log_generation - 1

    def reset_channel(self, channel: StoreChannel, base_offset: int, *, now_us: int) -> Log:
        """Durably replace the channel's log by an empty one at `base_offset`; a crash leaves the one or the other."""
        self.check_usable()
        generation = self._new_log_generation()
        fields = {"name": channel.name, "base": base_offset, "life": generation}
        self._write_entry(WalEntryKind.CREATE, channel.channel_id, fields, now_us)
        old, old_folder = channel.log, channel.folder
        with self._opening:
            channel.log_generation, channel.base_offset, channel.synced_end = generation, base_offset, base_offset
            channel.clean, channel.lost_part, channel.relogged = True, False, None
            channel.gap_staged, channel.entered_end = False, 0
            channel.unsynced = []
            log = young_log(self.disk, channel, self._options_of(channel), self.files)
            self._by_log[id(log)] = channel
            channel.log = log  # before the old log is closed: a reader that finds it closed looks here again
            self._retire(old, "the channel was reset")
        self.enter(channel)
        self._remove_folder(old_folder)
        return log

    def close_channel(self, channel: StoreChannel, *, now_us: int) -> None:
        """Close a channel's log; it is opened again when next used. Blocks that cannot be written back now stay in the
        write-ahead file."""
        if self._poison is None:
            self._sync_waiting()  # the next opening takes what the write-ahead files hold for durable
        self.write_back(channel, now_us)
        channel.lost_part = channel.damaged
        with self._opening:
            self._let_go(channel, "the channel was closed")
        channel.clean = channel.clean and not channel.unsynced

    def delete_channel(self, name: str, *, now_us: int) -> None:
        """Remove a channel and its data, durably. An id of the store's own is never used again (ST3)."""
        self.check_usable()
        channel = self._channel(name)
        fields = {"name": name, "life": channel.log_generation} if channel.log_generation else {"name": name}
        self._write_entry(WalEntryKind.DELETE, channel.channel_id, fields, now_us)
        del self.channels[name]
        self._let_go(channel, "the channel was deleted")
        self._remove_folder(channel.folder)

    def _remove_folder(self, folder: str) -> None:
        try:
            self.disk.remove_folder(folder)
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
        check_boundary(log, offset)
        self._write_entry(WalEntryKind.TRUNCATE, channel.channel_id, {"offset": offset}, now_us)
        channel.unsynced = [block for block in channel.unsynced if block.leader.base_offset < offset]
        channel.synced_end = min(channel.synced_end, offset)
        channel.clean = False
        try:
            log.truncate(offset)
        except LogError as error:
            log.poison(f"{error} while it was truncated to {offset}")
            raise

    def _write_entry(self, kind: WalEntryKind, subject: int, fields: dict[str, Any], now_us: int) -> None:
        wal = self.wal(now_us)
        entry = wal.other_entry(kind, subject, fields)
        try:
            wal.write([entry, entry])
            self.sync_wal()
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
        refusals = commit_channels(self, list(touched.values()), now_us, by_policy=False)
        for append in staged:
            refusal = refusals.get(append.log.channel_id)
            if refusal is None or not append.offsets:
                append.done()
            else:
                append.failed(refusal)
        self._checkpoint_if_full(now_us)

    def commit_blocks(
        self, appends: Sequence[tuple[StoreChannel, Sequence[Block]]], now_us: int
    ) -> list[LogError | None]:
        """Commit stamped blocks as each channel's fsync option asks; returns why each was refused, or None.

        Of one element either all blocks are taken or none.
        """
        errors = commit_blocks(self, appends, now_us)
        self._checkpoint_if_full(now_us)
        return errors

    def is_ready_for(self, byte_count: int) -> bool:
        """Whether a small commit of so many bytes is one write and one sync, and starts no checkpoint."""
        return (wal := self.wals.current) is not None and wal.size + 2 * byte_count < self.options.wal_bytes_max

    def _checkpoint_if_full(self, now_us: int) -> None:
        wal = self.wals.current
        if wal is not None and wal.size >= self.options.wal_bytes_max and self._poison is None:
            # Now and not when the committer next wakes: until then memory would grow with the file.
            self.checkpoint_or_keep(now_us)

    # --- checkpoint ------------------------------------------------------------------------------

    def checkpoint(self, now_us: int) -> None:
        """Write everything back to the segments, then remove the write-ahead files (ST2)."""
        self.check_usable()
        self._sync_waiting()
        kept = carried(self.channels.values(), self.options)
        self.wals.finish()
        stuck: list[StoreChannel] = []
        for channel in list(self.channels.values()):
            log = channel.log
            dirty = log is not None and not (channel.clean and not log.staged_bytes)
            if log is not None and dirty and channel.channel_id not in kept:
                channel.relogged = self._write_back(channel, log, now_us)
            if channel.unsynced:
                stuck.append(channel)
        free_wals = log_again(self, stuck, now_us)
        self._save_table(free_wals=free_wals)
        if free_wals:
            self.wals.drop_old()
            self.trouble = None
        again = len(stuck) > len(kept)
        self._checkpoint_due_us = now_us + self.options.checkpoint_interval_ms * US_PER_MS if again else None
        self._checkpoints += 1

    def _may_wait(self) -> bool:
        """Whether a checkpoint would only copy blocks: then it can wait until the write-ahead file is full."""
        if self.wals.current is None or self.wals.old or not self.options.copy_bytes_max:
            return False
        kept = carried(self.channels.values(), self.options)
        return all(part.channel_id in kept for part in self.channels.values() if part.unsynced or not part.clean)

    def _write_back(self, channel: StoreChannel, log: Log, now_us: int) -> LogError | None:
        try:
            log.flush(now_us)
            log.sync()
            channel.synced_end = log.written_end
            channel.unsynced.clear()
            channel.gap_staged = False
            log.write_index(log.segments[-1], sync=False)
        except LogError as error:
            return error
        channel.clean = True
        return None

    def write_back(self, channel: StoreChannel, now_us: int) -> None:
        """Write one channel back to its segments now. If that fails, the write-ahead files still have it."""
        log = channel.log
        if log is None or not channel.entered or self._poison is not None or log.poisoned:
            return
        if log.staged_bytes or not channel.clean:
            self._sync_waiting()  # its creation must not be less durable than its segments
            channel.relogged = self._write_back(channel, log, now_us)

    def _save_table(self, *, free_wals: bool) -> None:
        wals = self.wals
        newest = wals.current.number if wals.current is not None else wals.next_number
        floor = newest if free_wals else min([newest, *wals.old])
        table = table_of(self, wal_floor=floor, wal_newest=newest)
        write_mark_twice(self.disk, TABLE_PATH, table)
        wals.raise_floor(floor)

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
        if self._poison is None and self._sync_due_us is not None and now_us >= self._sync_due_us:
            with suppress(DiskError):  # it has stopped the store, and every append will say so
                self._sync_waiting()
        if self._poison is None and self._checkpoint_due_us is not None and now_us >= self._checkpoint_due_us:
            if self._may_wait():
                self._checkpoint_due_us = None
            else:
                self.checkpoint_or_keep(now_us)
        if self._mark_due_us is not None and now_us >= self._mark_due_us:
            self._mark_due_us = None
            self.wals.settle()
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
        if self._sync_due_us is not None and self._poison is None:
            due_us.append(self._sync_due_us)
        if self._mark_due_us is not None:
            due_us.append(self._mark_due_us)
        return min(due_us)

    def _sweep(self, channel: StoreChannel, now_us: int) -> None:
        """One channel's trouble must not keep retention from the others."""
        if channel.log is None:
            return
        try:
            channel.log.roll_if_due(now_us)
            if not channel.driven:
                channel.log.sweep_retention(now_us)
        except LogError as error:
            self.trouble = error

    # --- the end ---------------------------------------------------------------------------------

    def statistics(self) -> StoreStatistics:
        wal_bytes = self.wals.current.size if self.wals.current is not None else 0
        return statistics_of(
            self, wal_bytes=wal_bytes, commits=self._commits, syncs=self._syncs, checkpoints=self._checkpoints
        )

    def close(self, now_us: int) -> None:
        """Checkpoint and mark the store as cleanly closed; after a failed sync, only release its files and locks."""
        if self._closed:
            return
        try:
            if self._poison is None:
                self.checkpoint(now_us)
                kept = carried(self.channels.values(), self.options)  # in the newest write-ahead file, synced
                left = [part for part in self.channels.values() if part.unsynced and part.channel_id not in kept]
                self.wals.settle()
                self.state.save(self.disk, clean=not self.wals.old and not left)
        finally:
            self._closed = True
            for channel in list(self._by_log.values()):
                self._let_go(channel, "the store was closed")
            self.wals.close()
            self.files.close()
            self._lock.release()
