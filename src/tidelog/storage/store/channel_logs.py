"""All logs of a node's channels: a store for the persistent ones, memory for the others.

The catalog's ids name the channels. Orders (open, append, truncate, reset, sweep, close, delete) come from one
thread, the writer, or from a simulator; any thread may read. Nothing here has a thread or reads a clock.

What a caller must keep: orders of one channel are carried out in the order it gave them, and no offset counts as
held before `held_end` has passed it.

CL1  `held_end` never covers a record that is less durable than its channel's fsync option promises: synced under
     "always", written under "interval" and "never", held by this process for a memory channel.
CL2  Of the blocks of one append either all are taken or none, and a refusal harms no other channel. A refused
     append leaves the log as it was; one whose sync failed may or may not have happened, and stops the store (S3).
CL3  Opening a channel writes nothing. It comes to be on the disk with its first append, in that commit.
CL4  A name belongs to one id at a time: delete the old channel before another is opened under its name.
CL5  What an id held before it was deleted or reset never comes back under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.errors import ChannelExists, DiskError, DiskFull, LogClosed, LogError
from tidelog.storage.log.log import Log
from tidelog.storage.log.memory_log import MemoryLog
from tidelog.storage.log.options import MEMORY_LOG_BYTES_MAX, Fsync, LogOptions, Retention
from tidelog.storage.log.reading import READ_BYTES
from tidelog.storage.store.parts import StoreChannel
from tidelog.storage.store.store import Store
from tidelog.units import US_PER_MS

_REPLICA_FLOOR = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What the replica core must know of a log that was opened, truncated or reset."""

    log_start: int
    log_end: int
    durable_end: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its first offset), ascending."""
    newest_epoch: int
    """The newest epoch, also of records that retention has removed; 0 after a reset."""
    damaged: tuple[range, ...]
    bytes: int
    """Bytes in segments and bytes waiting to be written back to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLogConfig:
    """The settings of a channel on this node."""

    channel_id: int
    name: str
    persistent: bool
    options: LogOptions
    memory_bytes_max: int = MEMORY_LOG_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOutcome:
    """The outcome of one append."""

    channel_id: int
    held_end: int
    """End of what is as durable here as the channel's fsync option promises (CL1)."""
    log_end: int
    """After a refusal the end from before; after a failed sync the end including blocks that may or may not be on
    disk."""
    error: LogError | None


class _Opened:
    """An open channel: its log is the store's, or one in memory."""

    __slots__ = ("_memory", "channel", "config")

    def __init__(self, config: ChannelLogConfig, held: StoreChannel | MemoryLog) -> None:
        self.config = config
        self.channel = held if isinstance(held, StoreChannel) else None
        self._memory = held if isinstance(held, MemoryLog) else None

    @property
    def log_or_none(self) -> Log | None:
        """None after a log stopped and could not be opened anew."""
        return self.channel.log if self.channel is not None else self._memory

    @property
    def log(self) -> Log:
        log = self.log_or_none
        if log is None:
            raise LogClosed(log=self.config.name)
        return log


class ChannelLogs:
    """Drives the store. The store has no other driver and trims nothing by itself: `sweep` says how far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._opened: dict[int, _Opened] = {}
        self._channels = {channel.channel_id: channel for channel in store.channels.values()}
        """Persistent channels: those on the disk, and those that are open and not yet written."""
        self._ids = {channel.name: channel.channel_id for channel in store.channels.values()}
        """Which id has a name (CL4); memory channels too."""
        for channel in store.channels.values():
            channel.driven = True

    # --- what there is ---------------------------------------------------------------------------

    def known(self) -> dict[int, str]:
        """Ids and names of the channels on this disk."""
        return {channel.channel_id: channel.name for channel in list(self._channels.values()) if channel.entered}

    def damaged_channels(self) -> frozenset[int]:
        """Channels known to have lost records: open ones, and those that the previous run recorded."""
        return frozenset(channel.channel_id for channel in list(self._channels.values()) if channel.damaged)

    @property
    def verified(self) -> bool:
        """Opening the store found everything that was ever synced. If not, any channel may lack its newest records."""
        recovery = self._store.recovery
        if recovery is None or recovery.damaged_bytes or recovery.table_rebuilt or recovery.synced_loss:
            return False
        return not any(channel.damaged or _is_in_doubt(channel.relogged) for channel in list(self._channels.values()))

    @property
    def synced_loss_reason(self) -> str:
        """What was missing, in words, when the store was opened although it had been synced; empty if nothing was."""
        recovery = self._store.recovery
        return recovery.synced_loss_reason if recovery is not None and recovery.synced_loss else ""

    def forget_loss(self) -> None:
        """The catalog knows of the loss: the channels here count only once they were compared with whole copies."""
        self._store.forget_loss()

    def log(self, channel_id: int) -> Log:
        """The log of an open channel (a `MemoryLog` for a memory channel). A reset replaces it by another one."""
        return self._of(channel_id).log

    def state(self, channel_id: int) -> LogState:
        log = self._of(channel_id).log
        with log.mutex:
            return LogState(
                log_start=log.log_start,
                log_end=log.log_end,
                durable_end=log.durable_end,
                epochs=tuple(log.epochs.pairs()),
                newest_epoch=log.epochs.newest,
                damaged=tuple(log.damaged()) + _missing_staged(log),
                bytes=sum(segment.index.size for segment in log.segments) + log.staged_bytes,
            )

    def read(self, channel_id: int, offset: int, *, bytes_max: int = READ_BYTES, end: int | None = None) -> list[Block]:
        """Verified blocks from the one that holds `offset`, at least one if there is any before `end`."""
        while True:
            opened = self._of(channel_id)
            log = opened.log
            try:
                return log.read(offset, bytes_max=bytes_max, end=end)
            except LogClosed:
                if opened.log is log:
                    raise
                # The channel was reset meanwhile; what is asked for may be in the new log.

    def _of(self, channel_id: int) -> _Opened:
        opened = self._opened.get(channel_id)
        if opened is None:
            raise LogClosed(log=f"channel {channel_id}")
        return opened

    # --- open and closed -------------------------------------------------------------------------

    def open(self, config: ChannelLogConfig, now_us: int) -> LogState:
        """Open a channel; one that is open stays as it is, with these options.

        A log that has stopped (a failed write to its segment) is verified and goes on with what verifies.
        """
        opened = self._opened.get(config.channel_id)
        if opened is not None:
            self._check_same(opened.config, config)
            log = opened.log_or_none
            if log is None or log.poisoned:
                self._store.reopen_channel(config.name, now_us=now_us)
            self.alter(config, now_us)
            return self.state(config.channel_id)
        owner = self._ids.get(config.name)
        known = self._channels.get(config.channel_id)
        if owner not in (None, config.channel_id):
            raise ChannelExists(channel=config.name)
        if known is not None and (known.name != config.name or not config.persistent):
            raise ChannelExists(channel=known.name)
        opened = self._open_persistent(config, now_us) if config.persistent else _open_memory(config, now_us)
        self._opened[config.channel_id] = opened
        self._ids[config.name] = config.channel_id
        return self.state(config.channel_id)

    def _open_persistent(self, config: ChannelLogConfig, now_us: int) -> _Opened:
        store = self._store
        channel = self._channels.get(config.channel_id)
        if channel is None:
            channel = store.prepare_channel(config.channel_id, config.name, now_us=now_us, options=config.options)
            channel.driven = True
            self._channels[config.channel_id] = channel
            return _Opened(config, channel)
        store.check_usable()
        channel.options = config.options
        log = store.open_channel(channel, now_us)
        if log.poisoned:
            log = store.reopen_channel(channel.name, now_us=now_us)
        log.alter(config.options)
        return _Opened(config, channel)

    @staticmethod
    def _check_same(old: ChannelLogConfig, new: ChannelLogConfig) -> None:
        if (old.name, old.persistent) != (new.name, new.persistent):
            raise ChannelExists(channel=old.name)

    def alter(self, config: ChannelLogConfig, now_us: int) -> None:
        """Apply other options; a stricter fsync holds from the next append on."""
        opened = self._of(config.channel_id)
        self._check_same(opened.config, config)
        if opened.config == config:
            return
        if isinstance(opened.log, MemoryLog):
            opened.log.alter(config.options, bytes_max=config.memory_bytes_max)
        else:
            opened.log.alter(config.options)
        if opened.channel is not None:
            opened.channel.options = config.options
        opened.config = config

    def close(self, channel_id: int, now_us: int) -> None:
        """Close a channel's log; a memory channel's records are gone with it. Closing a closed one is no error."""
        opened = self._opened.pop(channel_id, None)
        if opened is None:
            return
        if opened.channel is None:
            opened.log.close(now_us)
            del self._ids[opened.config.name]
            return
        self._store.close_channel(opened.channel, now_us=now_us)
        if not opened.channel.entered:
            del self._channels[channel_id], self._ids[opened.config.name]

    def delete(self, channel_id: int, now_us: int) -> None:
        """Remove a channel and its data, durably. Deleting an unknown one is no error."""
        channel = self._channels.get(channel_id)
        if channel is not None and channel.entered:
            self._store.delete_channel(channel.name, now_us=now_us)
            self._opened.pop(channel_id, None)
            del self._channels[channel_id], self._ids[channel.name]
        else:
            self.close(channel_id, now_us)

    def unkept(self) -> list[DiskError]:
        """Why channels could not be written back to their segments, or old files not removed; None once it succeeded.
        The write-ahead files still have what is not written back. Any thread may ask."""
        errors = [channel.relogged for channel in list(self._channels.values())]
        return [error for error in (self._store.trouble, *errors) if isinstance(error, DiskError)]

    def maintain(self, now_us: int) -> int:
        """Sync, checkpoint, roll and scrub what is due; returns when to call again, in microseconds."""
        return self._store.maintain(now_us)

    def close_all(self, now_us: int) -> None:
        """Close the store and everything else. After a failed sync it only releases its files and locks."""
        memory = [opened.log for opened in self._opened.values() if opened.channel is None]
        self._opened.clear()
        for log in memory:
            log.close(now_us)
        self._store.close(now_us)

    # --- changes ---------------------------------------------------------------------------------

    @property
    def syncs(self) -> int:
        """The number of syncs so far."""
        return self._store.syncs

    def is_ready_for(self, byte_count: int) -> bool:
        """Whether an append of so many bytes is one write and one sync: no checkpoint, no file to be made."""
        return self._store.is_ready_for(byte_count)

    def append(self, appends: Sequence[tuple[int, Sequence[Block]]], now_us: int) -> list[AppendOutcome]:
        """Append stamped blocks to many channels in one commit; one outcome for each, in order. Never raises
        `LogError`."""
        errors: list[LogError | None] = [None] * len(appends)
        stored: list[tuple[StoreChannel, Sequence[Block]]] = []
        places: list[int] = []
        for place, (channel_id, blocks) in enumerate(appends):
            opened = self._opened.get(channel_id)
            if opened is None:
                errors[place] = LogClosed(log=f"channel {channel_id}")
            elif opened.channel is None:
                errors[place] = _append_to_memory(opened.log, blocks, now_us)
            else:
                stored.append((opened.channel, blocks))
                places.append(place)
        if stored:
            for place, error in zip(places, self._store.commit_blocks(stored, now_us), strict=True):
                errors[place] = error or self.stopped()
        return [self._outcome(channel_id, error) for (channel_id, _), error in zip(appends, errors, strict=True)]

    def stopped(self) -> LogError | None:
        """Why the store accepts nothing any more: after that no outcome is a success (S3)."""
        try:
            self._store.check_usable()
        except LogError as error:
            return error
        return None

    def _outcome(self, channel_id: int, error: LogError | None) -> AppendOutcome:
        opened = self._opened.get(channel_id)
        log = opened.log_or_none if opened is not None else None
        if opened is None or log is None:
            return AppendOutcome(channel_id=channel_id, held_end=0, log_end=0, error=error)
        synced_only = opened.channel is not None and (log.options.fsync is Fsync.ALWAYS or log.poisoned)
        held_end = log.durable_end if synced_only else log.log_end
        return AppendOutcome(channel_id=channel_id, held_end=held_end, log_end=log.log_end, error=error)

    def truncate(self, channel_id: int, offset: int, now_us: int) -> LogState:
        """Remove every record at or after `offset`; on disk before this returns (B5)."""
        opened = self._of(channel_id)
        if opened.channel is None or not opened.channel.entered:
            opened.log.truncate(offset)
        else:
            self._store.truncate(opened.config.name, offset, now_us=now_us)
        return self.state(channel_id)

    def reset(self, channel_id: int, base_offset: int, now_us: int) -> LogState:
        """An empty log that goes on at `base_offset`, which may lie below what was held; no epoch is remembered.

        Durable before it returns; a crash leaves the old log or the empty one.
        """
        opened = self._of(channel_id)
        if opened.channel is not None:
            # Also for a log that has stopped: nothing of it is needed any more.
            self._store.reset_channel(opened.channel, base_offset, now_us=now_us)
        elif isinstance(opened.log, MemoryLog):
            opened.log.reset(base_offset, now_us)
        return self.state(channel_id)

    def sweep(self, channel_id: int, now_us: int, *, floor: int, limits: Retention | None = None) -> LogState | None:
        """Drop whole segments that retention (or `limits`) no longer keeps and that end at or below `floor`.

        Returns the new state, or None when nothing was dropped.
        """
        opened = self._of(channel_id)
        log = opened.log
        before = log.log_start
        log.set_floor(_REPLICA_FLOOR, floor)
        log.roll_if_due(now_us)
        log.sweep_retention(now_us, limits)
        if opened.channel is not None and _waits_in_vain(log, now_us, limits or log.options.retention):
            self._store.write_back(opened.channel, now_us)
            log.sweep_retention(now_us, limits)
        return self.state(channel_id) if log.log_start > before else None


def _is_in_doubt(problem: LogError | None) -> bool:
    """Whether a channel that could not be written back may have lost something. A full disk loses nothing: the
    write-ahead files hold what they held."""
    return problem is not None and not isinstance(problem, DiskFull)


def _open_memory(config: ChannelLogConfig, now_us: int) -> _Opened:
    log = MemoryLog(
        config.name,
        now_us=now_us,
        channel_id=config.channel_id,
        options=config.options,
        bytes_max=config.memory_bytes_max,
    )
    return _Opened(config, log)


def _append_to_memory(log: Log, blocks: Sequence[Block], now_us: int) -> LogError | None:
    start = log.log_end
    try:
        for block in blocks:
            log.stage_stamped(block)
        log.commit(now_us)
    except LogError as error:
        if log.log_end > start:
            log.truncate(start)
        return error
    return None


def _missing_staged(log: Log) -> tuple[range, ...]:
    """Placeholders that are not written back yet. Hold the mutex."""
    return tuple(block.offsets for block in log.staged_blocks() if block.maker.kind == BlockKind.MISSING)


def _waits_in_vain(log: Log, now_us: int, limits: Retention) -> bool:
    """Whether retention would drop records that are not in a segment yet, and so out of its reach."""
    with log.mutex:
        staged = log.staged_blocks()
        if not staged or staged[0].leader.base_offset > log.log_start:
            return False
        held_bytes, held = log.staged_bytes, log.log_end - log.log_start
        too_old = limits.max_age_ms is not None and (
            now_us - staged[-1].leader.append_time_us > limits.max_age_ms * US_PER_MS
        )
        too_large = limits.max_bytes is not None and held_bytes > limits.max_bytes
        too_many = limits.max_events is not None and held > limits.max_events
        return too_old or too_large or too_many
