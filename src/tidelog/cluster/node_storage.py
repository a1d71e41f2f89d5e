"""The channels' storage of a running node: the store, its writer, saved watermarks, and what is looked at now and then.

What a caller must keep: `look` whenever the node's core is woken; `close` once, after everything that orders.

NT1  Watermarks are saved every five seconds and at the stop, as hints (R9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from tidelog.cluster.replica import ChannelReplica
from tidelog.cluster.replica_orders import StorageOrder, StorageResult
from tidelog.cluster.replica_statistics import Storage
from tidelog.cluster.replica_storage import ReplicaStorage
from tidelog.cluster.replica_writer import ReplicaWriter
from tidelog.cluster.replicas import Replicas
from tidelog.errors import DiskError, LogError
from tidelog.storage.channel_logs import ChannelLogs
from tidelog.storage.disk import Disk
from tidelog.storage.store import StoreOptions, open_store
from tidelog.storage.watermarks import Watermarks
from tidelog.storage.writer import wall_clock_us

WATERMARKS_MS: Final = 5_000
SPACE_MS: Final = 2_000
RETENTION_MS: Final = 10_000
STRAYS_MS: Final = 5_000
"""A log whose channel was deleted while this node was away keeps its name from a new one until it is gone."""
_SNAPSHOT_HINT: Final = "snapshot"


class NodeStorage:
    def __init__(
        self,
        disk: Disk,
        logs: ChannelLogs,
        *,
        options: StoreOptions,
        on_results: Callable[[Sequence[StorageResult]], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.logs = logs
        self._disk = disk
        self._watermarks = Watermarks(disk)
        self.writer = ReplicaWriter(
            ReplicaStorage(logs, options=options.log), on_results=on_results, on_failed=on_failed
        )
        self._watermarks_due_ms = self._space_due_ms = self._retention_due_ms = self._strays_due_ms = 0

    @classmethod
    async def open(
        cls,
        disk: Disk,
        *,
        options: StoreOptions,
        on_results: Callable[[Sequence[StorageResult]], None],
        on_failed: Callable[[Exception], None],
    ) -> Self:
        """Open the store, in a thread: after a crash that takes as long as its write-ahead files are."""
        store = await asyncio.to_thread(open_store, disk, now_us=wall_clock_us(), options=options)
        return cls(disk, ChannelLogs(store), options=options, on_results=on_results, on_failed=on_failed)

    def put(self, orders: Sequence[StorageOrder]) -> None:
        self.writer.put(orders)

    def watermark(self, channel_id: int) -> tuple[int, int | None]:
        """(committed end, where a snapshot lies), as far as they were saved."""
        mark = self._watermarks.get(channel_id)
        return (0, None) if mark is None else (mark.committed_end, mark.hints.get(_SNAPSHOT_HINT))

    # --- now and then --------------------------------------------------------------------------------------------

    def look(self, replicas: Replicas, now_ms: int) -> None:
        """What is due: free space, retention, logs of channels that are gone, watermarks."""
        if now_ms >= self._space_due_ms:
            self._space_due_ms = now_ms + SPACE_MS
            try:
                replicas.free_bytes = self._disk.free_bytes()
            except DiskError:
                replicas.free_bytes = 0
        if now_ms >= self._retention_due_ms:
            self._retention_due_ms = now_ms + RETENTION_MS
            replicas.apply_retention(now_ms)
        if now_ms >= self._strays_due_ms:
            self._strays_due_ms = now_ms + STRAYS_MS
            replicas.forget_strays(self.logs.known())
        if now_ms >= self._watermarks_due_ms:
            self._watermarks_due_ms = now_ms + WATERMARKS_MS
            self.note_watermarks(replicas.replicas())
            self.writer.run_exclusive(self._save_watermarks)

    def note_watermarks(self, replicas: Iterable[ChannelReplica]) -> None:
        for replica in replicas:
            if replica.storage is Storage.READY and replica.log_end:
                snapshot = replica.fold_hint if replica.fold is None else replica.fold.snapshot_at
                hints = {} if snapshot is None else {_SNAPSHOT_HINT: snapshot}
                self._watermarks.note(replica.channel_id, replica.committed_end, hints)

    def _save_watermarks(self, _: int) -> None:
        try:
            self._watermarks.save()
        except LogError:
            return  # a hint that could not be saved is no loss; the next one is tried in five seconds

    async def close(self) -> None:
        self.writer.run_exclusive(self._save_watermarks)
        await asyncio.to_thread(self.writer.stop)
