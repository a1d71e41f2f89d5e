"""The thread that carries out what replicas order of storage, and the one that reads old blocks for them.

While one commit is on its way to the disk, new orders gather and ride in the next (group commit): batches grow with
load, and no delay is ever added. Results come back to the event loop, all of one round in one go.

What a caller must keep: `put` and `stop` from the event loop; every result belongs to an order, in order per channel.

RW1  One writer thread drives the logs, and nobody else does.
RW2  After a failure of the thread itself nothing is written any more, and `on_failed` says so: a bug, not a full disk.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tidelog.cluster.replica_orders import AppendBlocks, ReadBlocks, StorageOrder, StorageResult
from tidelog.cluster.replica_storage import ReplicaStorage
from tidelog.storage.writer import wall_clock_us
from tidelog.units import US_PER_MS, US_PER_S

_READERS: Final = 2
_ROUND_MAX: Final = 4_096


@dataclass(slots=True)
class WriterStatistics:
    rounds: int = 0
    orders: int = 0
    blocks: int = 0


class ReplicaWriter:
    def __init__(
        self,
        storage: ReplicaStorage,
        *,
        on_results: Callable[[Sequence[StorageResult]], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.storage = storage
        self.statistics = WriterStatistics()
        self._on_results = on_results
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[StorageOrder | Callable[[int], None] | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="tidelog-reader")
        self._thread = threading.Thread(target=self._run, name="tidelog-channels", daemon=True)
        self._thread.start()

    def put(self, orders: Sequence[StorageOrder]) -> None:
        for order in orders:
            if type(order) is ReadBlocks:
                self._readers.submit(self._read, order)
            else:
                self._queue.put(order)

    def run_exclusive(self, action: Callable[[int], None]) -> None:
        """Something else that must be alone with the logs: in the writer's thread, in line with the orders."""
        self._queue.put(action)

    def stop(self) -> None:
        """Carry out what waits, then close every log. Blocks: call it in a thread."""
        self._queue.put(None)
        self._thread.join()
        self._readers.shutdown(wait=True)

    # --- in threads ----------------------------------------------------------------------------------------------

    def _read(self, order: ReadBlocks) -> None:
        try:
            self._hand_over([self.storage.read(order)])
        except Exception as error:  # a bug: told, not swallowed (RW2)
            self._fail(error)

    def _run(self) -> None:
        try:
            due_us = wall_clock_us()
            stopping = False
            while not stopping:
                wait_s = max(0.001, min((due_us - wall_clock_us()) / US_PER_S, 3600.0))
                stopping = self._round(wait_s)
                now_us = wall_clock_us()
                if now_us >= due_us:
                    due_us = max(self.storage.logs.maintain(now_us), now_us + US_PER_MS)
            self.storage.logs.close_all(wall_clock_us())
        except Exception as error:  # RW2
            self._fail(error)

    def _round(self, wait_s: float) -> bool:
        """Carry out all that waits; whether it was told to stop."""
        waiting = self._queue
        try:
            item = waiting.get(timeout=wait_s)
        except queue.Empty:
            return False
        orders: list[StorageOrder] = []
        actions: list[Callable[[int], None]] = []
        stopping = False
        while True:
            if item is None:
                stopping = True
            elif callable(item):
                actions.append(item)
            else:
                orders.append(item)
            if stopping or len(orders) >= _ROUND_MAX or waiting.empty():
                break
            item = waiting.get()
        if orders:
            results = self.storage.carry_out(orders, wall_clock_us())
            counts = self.statistics
            counts.rounds += 1
            counts.orders += len(orders)
            counts.blocks += sum(len(order.blocks) for order in orders if type(order) is AppendBlocks)
            if results:
                self._hand_over(results)
        for action in actions:
            action(wall_clock_us())
        return stopping

    def _hand_over(self, results: Sequence[StorageResult]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_results, results)
        except RuntimeError:
            pass  # the loop is closed: nobody waits for it any more

    def _fail(self, error: Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_failed, error)
        except RuntimeError:
            pass  # as above
