"""The thread that writes a node's metadata: writes that gather during one fsync share the next.

What a caller must keep: hand in work from the event loop, in the order the core gave it; stop it before the storage is
closed. Its callbacks run in the event loop.

MW1  `on_written` is called only after the write is durable, in the order of the numbers.
MW2  After a failure nothing is written any more: `on_failed` is called once, and the node must stop (RD5).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.cluster.metadata.member import SaveOrder
from tidelog.core.raft import Ready, Snapshot
from tidelog.errors import LogError, MetadataPoisoned
from tidelog.storage.raft.storage import RaftStorage

IDLE_S: Final = 0.02
"""After this long without work the storage settles its mark, when it delays nothing."""
STOP_S: Final = 10.0


Work: TypeAlias = Ready | SaveOrder | None


@dataclass(slots=True)
class MetadataWriterStatistics:
    writes: int = 0
    """Each is one fsync of the log, whatever it holds."""
    entries: int = 0
    snapshots: int = 0
    settles: int = 0
    """Marks made durable while there was no other work; each may cost one more fsync."""


class MetadataWriter:
    def __init__(
        self,
        storage: RaftStorage,
        *,
        on_written: Callable[[int], None],
        on_saved: Callable[[Snapshot, int], None],
        on_failed: Callable[[LogError], None],
    ) -> None:
        self._storage = storage
        self._on_written = on_written
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        # Bounded by the core: it proposes and accepts no more than its limits while nothing is confirmed.
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self.statistics = MetadataWriterStatistics()
        self._thread = threading.Thread(target=self._run, name="tidelog-metadata", daemon=True)
        self._thread.start()

    def put(self, work: Ready | SaveOrder) -> None:
        self._queue.put(work)

    def stop(self) -> None:
        """Everything handed in so far is written, or has failed, when this returns."""
        self._queue.put(None)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            self._work()
        except LogError as error:
            self._tell(self._on_failed, error)
        except Exception as error:
            # Whatever the error was, the disk's content is no longer known: treat it as a failed write.
            self._tell(self._on_failed, MetadataPoisoned(problem=repr(error)))

    def _work(self) -> None:
        settled = True
        while True:
            try:
                work = self._queue.get(timeout=None if settled else IDLE_S)
            except queue.Empty:
                self._storage.settle()
                self.statistics.settles += 1
                settled = True
                continue
            settled = False
            batch = [work]
            while not self._queue.empty():
                batch.append(self._queue.get())
            if not self._carry_out(batch):
                return

    def _carry_out(self, batch: list[Work]) -> bool:
        """False when one of them asked to stop."""
        readys: list[Ready] = []
        for work in batch:
            if isinstance(work, Ready):
                readys.append(work)
                continue
            self._write(readys)
            readys = []
            if work is None:
                self._storage.settle()
                return False
            snapshot = work.snapshot()
            self._storage.save_snapshot(snapshot, keep_from_index=work.keep_from_index)
            self.statistics.snapshots += 1
            self._tell(self._on_saved, snapshot, work.keep_from_index)
        self._write(readys)
        return True

    def _write(self, readys: list[Ready]) -> None:
        if not readys:
            return
        self._storage.write(readys)
        self.statistics.writes += 1
        self.statistics.entries += sum(len(ready.entries) for ready in readys)
        self._tell(self._on_written, readys[-1].number)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            pass  # the event loop is closed: no callback can run
