"""The channels' storage of a running node: the store, its writer, saved watermarks, and periodic checks.

What a caller must keep: `look` whenever the node's core is woken; `close` once, after the last order.

NT1  Watermarks are saved every five seconds and at the stop, as hints (R9).
NT2  Background failures (retention, writing back) are logged, once when they begin and once when they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from tidelog.cluster.replication.orders import StorageResult
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.replicas import Replicas
from tidelog.cluster.replication.state import Storage
from tidelog.cluster.replication.storage import ReplicaStorage
from tidelog.cluster.replication.writer import ReplicaWriter
from tidelog.errors import DiskError, LogError
from tidelog.storage.disk import Disk
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.store.channel_logs import ChannelLogs
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.watermarks import Watermark, Watermarks

WATERMARKS_MS: Final = 5_000
SPACE_MS: Final = 2_000
RETENTION_MS: Final = 10_000
STRAYS_MS: Final = 5_000
"""A log whose channel was deleted while this node was away blocks its name for a new one until it is removed."""


class StoreThread:
    def __init__(
        self,
        disk: Disk,
        logs: ChannelLogs,
        *,
        options: StoreOptions,
        on_results: Callable[[Sequence[StorageResult]], None],
        on_failed: Callable[[Exception], None],
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.logs = logs
        self._log = log
        self._disk = disk
        self._watermarks = Watermarks(disk)
        self.writer = ReplicaWriter(
            ReplicaStorage(logs, options=options.log), on_results=on_results, on_failed=on_failed
        )
        self._reserve_bytes = options.log.reserve_bytes
        self.problem: str | None = None
        """Why no channel takes records here, in words; None while they do."""
        self._said_problem = False
        self.upkeep_problem: str | None = None
        """Why its files cannot be kept in order, in words: nothing is lost, but the disk fills."""
        self._loss_is_told = False
        """The catalog knows of the loss: this node has registered as one that may lack synced records (R5)."""
        self._watermarks_due_ms = self._space_due_ms = self._retention_due_ms = self._strays_due_ms = 0

    @classmethod
    async def open(
        cls,
        disk: Disk,
        *,
        options: StoreOptions,
        on_results: Callable[[Sequence[StorageResult]], None],
        on_failed: Callable[[Exception], None],
        log: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Open the store, in a thread: after a crash that takes as long as its write-ahead files are."""
        store = await asyncio.to_thread(open_store, disk, now_us=wall_clock_us(), options=options)
        return cls(disk, ChannelLogs(store), options=options, on_results=on_results, on_failed=on_failed, log=log)

    def watermark(self, channel_id: int) -> Watermark | None:
        return self._watermarks.get(channel_id)

    # --- now and then --------------------------------------------------------------------------------------------

    def look(self, replicas: Replicas, now_ms: int) -> None:
        """What is due: free space, retention, logs of channels that are gone, watermarks."""
        if self.logs.synced_loss_reason and replicas.incarnation and not self._loss_is_told:
            self._loss_is_told = True
            self.writer.run_exclusive(lambda _: self.logs.forget_loss())
        if now_ms >= self._space_due_ms:
            self._space_due_ms = now_ms + SPACE_MS
            self._look_at_space(replicas)
            self._say_what_changed()
        if now_ms >= self._retention_due_ms:
            self._retention_due_ms = now_ms + RETENTION_MS
            self.look_at_upkeep()
            replicas.apply_retention(now_ms)
        if now_ms >= self._strays_due_ms:
            self._strays_due_ms = now_ms + STRAYS_MS
            replicas.forget_strays(self.logs.known())
        if now_ms >= self._watermarks_due_ms:
            self._watermarks_due_ms = now_ms + WATERMARKS_MS
            self.note_watermarks(replicas.replicas())
            self.writer.run_exclusive(self._save_watermarks)

    def _look_at_space(self, replicas: Replicas) -> None:
        try:
            free = replicas.free_bytes = self._disk.free_bytes()
        except DiskError as error:
            replicas.free_bytes, self.problem = 0, f"the disk cannot be asked for its free space: {error}"
            return
        self.problem = None
        if free <= self._reserve_bytes:
            self.problem = (
                f"the disk is full: {free} bytes are free and {self._reserve_bytes} are kept in reserve, so no channel "
                "takes records here; reads go on. Free space, or shorten retention: it goes on by itself"
            )

    def _say_what_changed(self) -> None:
        if self.problem is not None and not self._said_problem:
            self._log(f"the disk takes no records reason={self.problem!r}")
        elif self.problem is None and self._said_problem:
            self._log("the disk takes records again")
        self._said_problem = self.problem is not None

    def look_at_upkeep(self) -> None:
        """Log when retention or the segments begin to fail and when they work again, each once."""
        errors = [*self.writer.storage.unkept.values(), *self.logs.unkept()]
        said, self.upkeep_problem = self.upkeep_problem, None
        if errors:
            self.upkeep_problem = f"{errors[0]} (one of {len(errors)})" if len(errors) > 1 else str(errors[0])
        if errors and said is None:
            do = "look at the kernel's log; free space, or replace the disk"
            self._log(f"the disk is not kept in order reason={self.upkeep_problem!r} do={do!r}")
        elif said is not None and not errors:
            self._log("the disk is kept in order again")

    def note_watermarks(self, replicas: Iterable[ChannelReplica]) -> None:
        for replica in replicas:
            if replica.storage is Storage.READY and replica.log_end:
                mark = replica.witness.watermark()
                self._watermarks.note(replica.channel_id, mark.committed_end, mark.hints)

    def _save_watermarks(self, _: int) -> None:
        try:
            self._watermarks.save()
        except LogError:
            return  # a hint that could not be saved is no loss; the next one is tried in five seconds

    async def close(self) -> None:
        self.writer.run_exclusive(self._save_watermarks)
        await asyncio.to_thread(self.writer.stop)
