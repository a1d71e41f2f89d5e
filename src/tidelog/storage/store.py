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
     written again to a newer one because its segment could not be (S3).
ST3  Channel ids are never used twice, not even after a crash in the middle of a creation.
ST4  A failed sync of the write-ahead file stops the whole store until it is opened anew (S3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.blocks.block import Block
from tidelog.errors import (
    ChannelExists,
    DiskError,
    InvalidConfig,
    LogError,
    LogPoisoned,
    UnknownChannel,
)
from tidelog.storage import store_recovery
from tidelog.storage.atomic import write_mark
from tidelog.storage.disk import Buffer, Disk, FolderLock
from tidelog.storage.files import FileCache
from tidelog.storage.log import Log
from tidelog.storage.names import escape_name
from tidelog.storage.options import LogOptions
from tidelog.storage.recovery import StoreKnowledge, open_log
from tidelog.storage.wal import EntryKind, WalWriter, wal_name
from tidelog.storage.writer import Append
from tidelog.units import KIB, MIB, US_PER_MS

INTERNALS = ".tidelog"
WAL_FOLDER = f"{INTERNALS}/wal"
CHANNELS_FOLDER = f"{INTERNALS}/channels"
TABLE_PATH = f"{INTERNALS}/store.table"
STATE_PATH = f"{INTERNALS}/store.state"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    log: LogOptions = field(default_factory=LogOptions)
    """For channels that `options_of` does not know."""
    options_of: Callable[[str], LogOptions | None] | None = None
    """Per-channel options, asked when a channel's log is opened."""
    large_block_bytes: int = 64 * KIB
    """Blocks from this size on are written once, straight to their segment (S1)."""
    wal_bytes_max: int = 64 * MIB
    """A checkpoint starts when the write-ahead file has grown to this."""
    checkpoint_interval_ms: int = 30_000
    """A checkpoint starts at the latest after this, if anything was written."""
    open_files_max: int = 256

    def __post_init__(self) -> None:
        problems = []
        if self.large_block_bytes < 1 or self.wal_bytes_max < 4 * KIB:
            problems.append("large_block_bytes must be positive and wal_bytes_max at least 4 KiB")
        if self.checkpoint_interval_ms <= 0 or self.open_files_max < 8:
            problems.append("checkpoint_interval_ms must be positive and open_files_max at least 8")
        if problems:
            raise InvalidConfig(section="store", problems=problems)


class StoreChannel:
    """A channel of the store. `log` is opened on first use."""

    __slots__ = ("channel_id", "clean", "log", "name", "relogged", "synced_end", "waiting")

    def __init__(self, *, channel_id: int, name: str, synced_end: int = 0, clean: bool = True) -> None:
        self.channel_id = channel_id
        self.name = name
        self.synced_end = synced_end
        self.clean = clean
        """Nothing was written since the index beside its newest segment, so that can be trusted."""
        self.log: Log | None = None
        self.waiting: list[Block] = []
        """Staged, and not yet durable anywhere."""
        self.relogged: LogError | None = None
        """Why the last checkpoint could not write this channel back."""

    @property
    def folder(self) -> str:
        return f"{CHANNELS_FOLDER}/{escape_name(self.name)}~{self.channel_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecovery:
    clean: bool
    entries: int
    blocks_replayed: int
    bytes_cut: int
    damaged_bytes: int
    channels_opened: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    channels: int
    open_logs: int
    open_files: int
    wal_bytes: int
    staged_bytes: int
    commits: int
    syncs: int
    checkpoints: int
    incarnation: int


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
        self._lock = lock
        self._by_log: dict[int, StoreChannel] = {}
        self._wal: WalWriter | None = None
        self._old_wals: list[str] = []
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
        channel = self.channels.get(name)
        if channel is None:
            raise UnknownChannel(channel=name)
        return channel.log or self.open_channel(channel, now_us)

    def open_channel(self, channel: StoreChannel, now_us: int) -> Log:
        resolver = self.options.options_of
        options = (resolver(channel.name) if resolver else None) or self.options.log
        knowledge = StoreKnowledge(channel_id=channel.channel_id, clean=channel.clean, synced_end=channel.synced_end)
        channel.log = open_log(
            self.disk, channel.folder, now_us=now_us, options=options, files=self.files, managed=knowledge
        )
        self._by_log[id(channel.log)] = channel
        return channel.log

    def create_channel(self, name: str, *, now_us: int) -> Log:
        """Make a channel, durably."""
        self.check_usable()
        if name in self.channels:
            raise ChannelExists(channel=name)
        channel = StoreChannel(channel_id=self.next_channel_id, name=name)
        self.next_channel_id += 1
        self._write_entry(EntryKind.CREATE, channel.channel_id, {"name": name}, now_us)
        self.channels[name] = channel
        return self.open_channel(channel, now_us)

    def delete_channel(self, name: str, *, now_us: int) -> None:
        """Remove a channel and its data, durably. Its id is never used again (ST3)."""
        self.check_usable()
        channel = self.channels.get(name)
        if channel is None:
            raise UnknownChannel(channel=name)
        self._write_entry(EntryKind.DELETE, channel.channel_id, {"name": name}, now_us)
        del self.channels[name]
        if channel.log is not None:
            self._by_log.pop(id(channel.log), None)
            channel.log.poison("the channel was deleted")
            for segment in channel.log.segments:
                self.files.drop(segment.path)
        self.disk.remove_folder(channel.folder)

    def truncate(self, name: str, offset: int, *, now_us: int) -> None:
        """Truncate a channel's log; on disk before this returns (B5).

        The segments are cut first and the entry follows: a crash between the two brings back what
        the write-ahead file still holds, and the caller, who got no answer, truncates again.
        """
        log = self.log(name, now_us=now_us)
        channel = self.channels[name]
        log.truncate(offset)
        channel.waiting = [block for block in channel.waiting if block.leader.base_offset < offset]
        channel.synced_end = min(channel.synced_end, offset)
        channel.clean = False
        self._write_entry(EntryKind.TRUNCATE, channel.channel_id, {"offset": offset}, now_us)

    def _write_entry(self, kind: EntryKind, subject: int, fields: dict[str, Any], now_us: int) -> None:
        wal = self.wal(now_us)
        try:
            wal.write([wal.other_entry(kind, subject, fields)])
            self._sync_wal()
        except DiskError as error:
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
            self._checkpoint_due_us = now_us

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
            self._commit_wal(wal, entries, through_wal, refusals)
        if touched:
            self._commits += 1
            due_us = now_us + self.options.checkpoint_interval_ms * US_PER_MS
            self._checkpoint_due_us = min(self._checkpoint_due_us or due_us, due_us)
        return refusals

    def _commit_wal(
        self, wal: WalWriter, entries: list[Buffer], channels: list[StoreChannel], refusals: dict[int, LogError]
    ) -> None:
        try:
            wal.write(entries)
        except DiskError as error:
            if wal.undo_failed:
                self.poison(f"{error}, which could not be undone")
            for channel in channels:
                refusals[channel.channel_id] = self._refuse(channel, error)
            return
        if not channels:
            return  # only hints about segments that are synced already: no sync of their own
        try:
            self._sync_wal()
        except DiskError as error:
            self.poison(str(error))
            for channel in channels:
                refusals[channel.channel_id] = error
            return
        for channel in channels:
            channel.clean = False
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

    def wal(self, now_us: int) -> WalWriter:
        """The current write-ahead file, started if there is none."""
        self.check_usable()
        if self._wal is None:
            self._wal = WalWriter(self.disk, WAL_FOLDER, self.next_wal_number)
            self.next_wal_number += 1
        return self._wal

    next_wal_number = 1

    # --- checkpoint ------------------------------------------------------------------------------

    def checkpoint(self, now_us: int) -> None:
        """Write everything back to the segments, then let go of the write-ahead files (ST2)."""
        self.check_usable()
        if self._wal is not None:
            self._old_wals.append(self._wal.path)
            self._wal.close()
            self._wal = None
        for channel in self.channels.values():
            log = channel.log
            if log is None or (channel.clean and not log.staged_bytes):
                continue
            channel.relogged = self._write_back(channel, log, now_us)
            if channel.relogged is not None:
                self._log_again(channel, log, now_us)
        self._save_table()
        for path in self._old_wals:
            self.disk.remove(path)
        self._old_wals.clear()
        self._checkpoint_due_us = None
        self._checkpoints += 1

    def _write_back(self, channel: StoreChannel, log: Log, now_us: int) -> LogError | None:
        try:
            log.flush(now_us)
            log.sync()
            log.write_index(log.segments[-1])
        except LogError as error:
            return error
        channel.synced_end = log.written_end
        channel.clean = True
        return None

    def _log_again(self, channel: StoreChannel, log: Log, now_us: int) -> None:
        """A segment that cannot be written must not pin the write-ahead file for the others (S3)."""
        wal = self.wal(now_us)
        blocks = log.staged_blocks()
        try:
            wal.write([buffer for block in blocks for buffer in wal.block_entry(block)])
            self._sync_wal()
        except DiskError as error:
            self.poison(str(error))
            raise

    def _save_table(self) -> None:
        wal_floor = self._wal.number if self._wal is not None else self.next_wal_number
        rows = [[channel.channel_id, channel.name, channel.synced_end] for channel in self.channels.values()]
        table = {"format": 1, "next_channel_id": self.next_channel_id, "wal_floor": wal_floor, "channels": rows}
        write_mark(self.disk, TABLE_PATH, table)

    def maintain(self, now_us: int) -> int:
        """Checkpoint, roll and trim when due."""
        options = self.options
        try:
            if self._checkpoint_due_us is not None and now_us >= self._checkpoint_due_us:
                self.checkpoint(now_us)
            if now_us >= self._sweep_due_us:
                self._sweep_due_us = now_us + options.log.retention_interval_ms * US_PER_MS
                for channel in list(self.channels.values()):
                    if channel.log is not None:
                        channel.log.roll_if_due(now_us)
                        channel.log.sweep_retention(now_us)
        except LogError:
            # The store has recorded why; the next append says so to its caller.
            return now_us + options.checkpoint_interval_ms * US_PER_MS
        return min(self._checkpoint_due_us or self._sweep_due_us, self._sweep_due_us)

    # --- the end ---------------------------------------------------------------------------------

    def check_usable(self) -> None:
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
        self._closed = True
        try:
            if self._poison is None:
                self.checkpoint(now_us)
                clean = all(channel.relogged is None for channel in self.channels.values())
                write_mark(self.disk, STATE_PATH, {"clean": clean, "incarnation": self.incarnation})
        finally:
            for channel in self.channels.values():
                if channel.log is not None:
                    channel.log.poison("the store was closed")
            if self._wal is not None:
                self._wal.close()
            self.files.close()
            self._lock.release()


def open_store(disk: Disk, *, now_us: int, options: StoreOptions | None = None) -> Store:
    """Open the store on this disk, replaying its write-ahead files if it was not closed."""
    return store_recovery.open_store(disk, now_us=now_us, options=options or StoreOptions())


def wal_path(number: int) -> str:
    return f"{WAL_FOLDER}/{wal_name(number)}"
