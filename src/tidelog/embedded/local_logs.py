"""The logs of a manager that are on this node alone: one store, logs in memory, and the thread that writes both.

Appends that come during one commit gather and go into the next, so one sync serves all of them. Nothing here uses the
network: a channel without replication sends nothing.

What a caller must keep: `close` once. Futures may be awaited or waited for by any thread; reads may come from any.

LL1  A future resolves once its records are as durable as the channel's fsync option promises.
LL2  Every opening of the store has an epoch of its own, durable before the first record (R1): records lost in a crash
     and records written after it can be told apart, though they have the same offsets.
LL3  At most `QUEUE_BYTES_MAX` wait to be written; more is refused.
LL4  A name is used by one channel at a time; what is not persistent is gone when it is closed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tidelog.blocks.block import Block, MadeBlock
from tidelog.cluster.replication.storage import ReplicaStorage
from tidelog.core.catalog import ChannelConfig
from tidelog.core.client_messages import ANY_OFFSET
from tidelog.errors import ConfigMismatch, DiskError, LogClosed, LogError, OffsetConflict, QueueFull
from tidelog.storage.disk import Disk
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.ram_disk import RamDisk
from tidelog.storage.store.channel_logs import ChannelLogs
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.units import MIB, US_PER_MS, US_PER_S

QUEUE_BYTES_MAX: Final = 64 * MIB
RETENTION_MS: Final = 10_000
"""How often retention runs by itself."""
_PARTS: Final = 8
"""Retention drops whole segments: a channel that is limited by events is cut into this many."""
_PART_EVENTS_MIN: Final = 64
"""On disk a segment costs two files, so it holds at least this many events."""
_EMPTY_STORE_BYTES: Final = 64 * MIB
_PUBLISH_PATH: Final = 3
_IDLE_S: Final = 3_600.0

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class LocalChannel:
    """An open channel, as its file sees it. Written by the writer's thread, read by any."""

    channel_id: int
    name: str
    config: ChannelConfig
    epoch: int
    """LL2."""
    log_start: int
    held_end: int
    """Everything below is as durable as promised, and may be read."""
    log_end: int
    rolled_at: int = 0
    is_open: bool = True
    watchers: list[Callable[[], None]] = field(default_factory=list)
    """Called by the writer's thread whenever the channel moved."""

    def moved(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()


class _Append:
    __slots__ = ("channel", "expected_offset", "future", "made", "size")

    def __init__(self, channel: LocalChannel, made: MadeBlock, expected_offset: int) -> None:
        self.channel = channel
        self.made = made
        self.expected_offset = expected_offset
        self.future: Future[int] = Future()
        self.size = len(made.body)


class _Action:
    """A function that needs exclusive use of the logs."""

    __slots__ = ("_action", "future")

    def __init__(self, action: Callable[[int], Any]) -> None:
        self._action = action
        self.future: Future[Any] = Future()

    def run(self, now_us: int) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._action(now_us))
        except LogError as error:
            self.future.set_exception(error)


class LocalLogs:
    def __init__(self, folder: Path | None, *, options: StoreOptions | None = None) -> None:
        """Opens the store, which after a crash takes as long as its write-ahead files are: call it in a thread."""
        disk: Disk = RamDisk(bytes_max=_EMPTY_STORE_BYTES) if folder is None else OsDisk(folder)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        options = options or StoreOptions()
        self._store = open_store(disk, now_us=wall_clock_us(), options=options)
        self._logs = ChannelLogs(self._store)
        self._storage = ReplicaStorage(self._logs, options=options.log)
        self._opened: dict[str, LocalChannel] = {}
        self._next_id = max([self._store.next_channel_id, *(number + 1 for number in self._logs.known())])
        self._queue: queue.SimpleQueue[_Append | _Action | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._guard = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tidelog-embedded", daemon=True)
        self._thread.start()

    def names(self) -> list[str]:
        """Names of persistent channels, open or not."""
        return sorted(self._logs.known().values())

    # --- from any thread -----------------------------------------------------------------------------------------

    def open(self, name: str, config: ChannelConfig) -> Future[LocalChannel]:
        return self.run(lambda now_us: self._open(name, config, now_us))

    def close_channel(self, channel: LocalChannel) -> Future[None]:
        return self.run(lambda now_us: self._close_channel(channel, now_us))

    def append(self, channel: LocalChannel, made: MadeBlock, expected_offset: int = ANY_OFFSET) -> Future[int]:
        """The offset of the first record, once it is durable (LL1)."""
        if not channel.is_open:
            raise LogClosed(log=channel.name)
        request = _Append(channel, made, expected_offset)
        with self._guard:
            self._check_open(channel.name)
            if self._queued_bytes and self._queued_bytes + request.size > QUEUE_BYTES_MAX:
                raise QueueFull(waiting_bytes=self._queued_bytes, bytes_max=QUEUE_BYTES_MAX)
            self._queued_bytes += request.size
            self._queue.put(request)
        return request.future

    def sweep(self, channel: LocalChannel) -> Future[int]:
        """Apply retention now; resolves with where the log begins then."""
        return self.run(lambda now_us: self._sweep(channel, now_us))

    def sync(self, channel: LocalChannel) -> Future[None]:
        """Everything appended before is on the disk when it resolves, whatever the fsync option says."""
        return self.run(lambda _: self._sync(channel))

    def read(self, channel: LocalChannel, offset: int, *, bytes_max: int) -> Sequence[Block]:
        """Committed blocks from the one that holds `offset`."""
        return self._logs.read(channel.channel_id, offset, bytes_max=bytes_max, end=channel.held_end)

    def run(self, action: Callable[[int], T]) -> Future[T]:
        """Queue a function for the writer's thread, in line with the appends."""
        item = _Action(action)
        with self._guard:
            self._check_open("the manager")
            self._queue.put(item)
        return item.future

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise LogClosed(log=what)

    def close(self) -> None:
        """Carry out what waits, then close every log. Blocks: call it in a thread."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    # --- the writer's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._drive()
        except Exception as error:  # a bug: every waiting future fails, and nothing is written any more
            self._end(error)
            raise
        self._end(LogClosed(log="the manager"))

    def _end(self, error: Exception) -> None:
        with self._guard:
            self._closed = True
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None and item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)

    def _drive(self) -> None:
        maintain_us = sweep_us = 0
        stopping = False
        while not stopping:
            now_us = wall_clock_us()
            if now_us >= maintain_us:
                maintain_us = max(self._logs.maintain(now_us), now_us + US_PER_MS)
            if now_us >= sweep_us:
                sweep_us = now_us + RETENTION_MS * US_PER_MS
                self._sweep_all(now_us)
            wait_s = max(0.001, min((min(maintain_us, sweep_us) - now_us) / US_PER_S, _IDLE_S))
            stopping = self._round(wait_s)
        for channel in self._opened.values():
            channel.is_open = False
            channel.moved()
        self._logs.close_all(wall_clock_us())

    def _round(self, wait_s: float) -> bool:
        """Carry out everything that waits; returns whether to stop."""
        try:
            item = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return False
        appends: list[_Append] = []
        while item is not None:
            if isinstance(item, _Append):
                appends.append(item)
            else:
                self._commit(appends)
                appends = []
                item.run(wall_clock_us())
            if self._queue.empty():
                self._commit(appends)
                return False
            item = self._queue.get()
        self._commit(appends)
        return True

    def _commit(self, appends: Sequence[_Append]) -> None:
        if not appends:
            return
        with self._guard:
            self._queued_bytes -= sum(append.size for append in appends)
        waiting = [append for append in appends if append.future.set_running_or_notify_cancel()]
        by_channel: dict[int, list[_Append]] = {}
        for append in waiting:
            by_channel.setdefault(append.channel.channel_id, []).append(append)
        refused = self._commit_together(by_channel)
        for channel_id, error in refused.items():
            own = [append for append in by_channel[channel_id] if not append.future.done()]  # not those in conflict
            if len(own) == 1 or not error.definite:
                for append in own:
                    append.future.set_exception(error)
                continue
            # One append that is too large for the disk must not fail the others.
            for append in own:
                for alone in self._commit_together({channel_id: [append]}).values():
                    append.future.set_exception(alone)

    def _commit_together(self, by_channel: dict[int, list[_Append]]) -> dict[int, LogError]:
        """One commit for all; resolves those that were taken, and returns the refused ones, by channel."""
        now_us = wall_clock_us()
        orders: list[tuple[int, list[Block]]] = []
        firsts: dict[int, list[tuple[_Append, int]]] = {}
        for channel_id, appends in by_channel.items():
            if not appends[0].channel.is_open:
                for append in appends:
                    append.future.set_exception(LogClosed(log=append.channel.name))
                continue
            blocks, taken = self._stamp(appends, now_us)
            if blocks:
                orders.append((channel_id, blocks))
                firsts[channel_id] = taken
        refused: dict[int, LogError] = {}
        for outcome in self._logs.append(orders, now_us):
            channel = firsts[outcome.channel_id][0][0].channel
            if outcome.error is not None:
                refused[outcome.channel_id] = outcome.error
                continue
            channel.held_end, channel.log_end = outcome.held_end, outcome.log_end
            for append, first_offset in firsts[outcome.channel_id]:
                append.future.set_result(first_offset)
            self._cut(channel, now_us)
            channel.moved()
        return refused

    def _stamp(self, appends: Sequence[_Append], now_us: int) -> tuple[list[Block], list[tuple[_Append, int]]]:
        channel = appends[0].channel
        log = self._logs.log(channel.channel_id)
        end, durable_end = log.log_end, log.durable_end
        blocks: list[Block] = []
        taken: list[tuple[_Append, int]] = []
        for append in appends:
            if append.expected_offset not in (ANY_OFFSET, end):
                conflict = OffsetConflict(channel=channel.name, expected=append.expected_offset, actual=end)
                append.future.set_exception(conflict)
                continue
            block = append.made.stamp(
                base_offset=end,
                channel_id=channel.channel_id,
                leader_epoch=channel.epoch,
                append_time_us=now_us,
                durable_end=durable_end,
                path=_PUBLISH_PATH,
            )
            blocks.append(block)
            taken.append((append, end))
            end = block.end
        return blocks, taken

    # --- channels ------------------------------------------------------------------------------------------------

    def _open(self, name: str, config: ChannelConfig, now_us: int) -> LocalChannel:
        held = self._opened.get(name)
        if held is not None:
            return held
        channel_id = next((number for number, known in self._logs.known().items() if known == name), None)
        if channel_id is not None and not config.persistent:
            raise ConfigMismatch(channel=name, setting="persistent")
        channel_id = self._next_id if channel_id is None else channel_id
        state = self._logs.open(self._storage.config_of(channel_id, name, config), now_us)
        self._next_id = max(self._next_id, channel_id + 1)
        newest, opening = state.newest_epoch, self._store.incarnation
        channel = LocalChannel(
            channel_id=channel_id,
            name=name,
            config=config,
            epoch=opening if newest <= opening else newest + 1,
            log_start=state.log_start,
            held_end=state.log_end,  # what recovery found is on the disk, whatever was promised when it was written
            log_end=state.log_end,
            rolled_at=state.log_end,
        )
        self._opened[name] = channel
        return channel

    def _close_channel(self, channel: LocalChannel, now_us: int) -> None:
        if not channel.is_open:
            return
        channel.is_open = False
        del self._opened[channel.name]
        channel.moved()
        self._logs.close(channel.channel_id, now_us)

    def _sync(self, channel: LocalChannel) -> None:
        if not channel.is_open:
            raise LogClosed(log=channel.name)
        held = self._store.channels.get(channel.name)
        if held is None or not self._store.awaits_sync(held):
            return  # in memory, or nothing waits
        try:
            self._store.sync_wal()
        except DiskError as error:
            self._store.poison(str(error))
            raise

    # --- retention -----------------------------------------------------------------------------------------------

    def _cut(self, channel: LocalChannel, now_us: int) -> None:
        """Begin a new segment early where events are counted: retention drops whole ones."""
        limit = channel.config.retention.max_events
        if limit is None:
            return
        events = max(limit // _PARTS, _PART_EVENTS_MIN if channel.config.persistent else 1)
        if channel.log_end - channel.rolled_at < events:
            return
        channel.rolled_at = channel.log_end
        with suppress(LogError):  # a log that cannot go on says so with its next append
            held = self._store.channels.get(channel.name)
            if held is not None and held.channel_id == channel.channel_id:
                self._store.write_back(held, now_us)
            self._logs.log(channel.channel_id).roll(now_us)

    def _sweep(self, channel: LocalChannel, now_us: int) -> int:
        if not channel.is_open:
            raise LogClosed(log=channel.name)
        state = self._logs.sweep(channel.channel_id, now_us, floor=channel.held_end)
        if state is not None:
            channel.log_start = state.log_start
            channel.moved()
        return channel.log_start

    def _sweep_all(self, now_us: int) -> None:
        for channel in self._opened.values():
            kept = channel.config.retention
            if (kept.max_age_ms, kept.max_bytes, kept.max_events) != (None, None, None):
                with suppress(LogError):  # tried again, and a log that cannot go on says so with its next append
                    self._sweep(channel, now_us)
