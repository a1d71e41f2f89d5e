"""Carries out the storage orders of replicas: in a thread of its own, or at once where that is quicker.

While one commit is written, new orders gather for the next one (group commit): batches grow with
load, and no delay is ever added. Results come back to the event loop, all of one round in one go.

A few small records that find the thread idle and the disk quick are committed by the event loop itself, at the end of
its turn: waking a thread and being woken by it takes as long as the disk. The loop stands still for that commit, as it
would for any other work of a fraction of a millisecond; after one that was slow the thread does them all, until it has
seen the disk be quick again.

What a caller must keep: `put` and `run_exclusive` from the event loop; every result belongs to an order, in order per
channel; `stop` after the last of them.

RW1  The thread, or the event loop while the thread has no order without a result, holds `_driving` while it drives the
     logs. So orders and results keep their order in both cases.
RW2  After a failure while orders are carried out nothing more is written, and `on_failed` is called: for a bug, or a
     write-ahead file whose sync failed, which ends the node (S3). Nothing of that round is answered. A full disk is no
     such failure.
RW3  The loop waits for the disk only if its last `_QUICK_COMMITS` commits took at most `_QUICK_US` each, and for no
     more than `_SMALL_BYTES`; checkpoints and all other orders are the thread's.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tidelog.cluster.replication.orders import AppendBlocks, ReadBlocks, StorageOrder, StorageResult
from tidelog.cluster.replication.storage import ReplicaStorage
from tidelog.errors import DiskFailed, LogPoisoned
from tidelog.storage.log.writer import wall_clock_us
from tidelog.units import KIB, US_PER_MS, US_PER_S

_READERS: Final = 2
_ROUND_MAX: Final = 4_096
_SMALL_BYTES: Final = 4 * KIB
_QUICK_US: Final = 2_000
_QUICK_COMMITS: Final = 4


@dataclass(slots=True)
class ReplicaWriterStatistics:
    rounds: int = 0
    orders: int = 0
    blocks: int = 0
    at_once: int = 0
    """Rounds that the event loop carried out by itself."""


class ReplicaWriter:
    def __init__(
        self,
        storage: ReplicaStorage,
        *,
        on_results: Callable[[Sequence[StorageResult]], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.storage = storage
        self.statistics = ReplicaWriterStatistics()
        self._on_results = on_results
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[StorageOrder | Callable[[int], None] | None] = queue.SimpleQueue()
        self._driving = threading.Lock()
        self._under_way = 0
        """Orders given to the thread that have no result yet."""
        self._soon: list[AppendBlocks] = []
        """Appends that the event loop may commit at the end of this turn."""
        self._soon_bytes = 0
        self._quick_commits = 0
        self._failed = False
        self._readers = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="tidelog-reader")
        self._thread = threading.Thread(target=self._run, name="tidelog-channels", daemon=True)
        self._thread.start()

    def put(self, orders: Sequence[StorageOrder]) -> None:
        for order in orders:
            if type(order) is ReadBlocks:
                self._readers.submit(self._read, order)
            elif not self._can_wait_for(order):
                self._give(order)

    def run_exclusive(self, action: Callable[[int], None]) -> None:
        """Run an action with exclusive access to the logs, in the writer's thread after all earlier orders."""
        self._give(action)

    def stop(self) -> None:
        """Carry out what waits, then close every log. Blocks: call it in a thread, after `run_exclusive`."""
        assert not self._soon, "the last order came after run_exclusive"
        self._queue.put(None)
        self._thread.join()
        self._readers.shutdown(wait=True)

    def _give(self, *items: StorageOrder | Callable[[int], None]) -> None:
        """Queue orders for the thread, after all earlier ones."""
        soon, self._soon, self._soon_bytes = self._soon, [], 0
        for item in (*soon, *items):
            self._under_way += 1
            self._queue.put(item)

    # --- at once -------------------------------------------------------------------------------------------------

    def _can_wait_for(self, order: StorageOrder) -> bool:
        """Keep the order for the end of this turn, if it is one of a few small appends and all else is done (RW3)."""
        if self._under_way or type(order) is not AppendBlocks or self._quick_commits < _QUICK_COMMITS:
            return False
        size = self._soon_bytes + sum([block.size for block in order.blocks])
        if size > _SMALL_BYTES or not self.storage.logs.is_ready_for(size):
            return False
        if not self._soon:
            # Not now: what other links bring in this turn rides in the same commit.
            self._loop.call_soon(self._commit_soon)
        self._soon.append(order)
        self._soon_bytes = size
        return True

    def _commit_soon(self) -> None:
        soon = self._soon
        if not soon:
            return  # something else was ordered since, and took them along
        if not self._driving.acquire(blocking=False):
            self._give()  # the thread tends the store
            return
        try:
            if self._failed or not self.storage.logs.is_ready_for(self._soon_bytes):
                self._give()
                return
            self._soon, self._soon_bytes = [], 0
            results = self._carry_out(soon)
            self.statistics.at_once += 1
        except Exception as error:  # RW2
            self._failed = True
            self._on_failed(error)
            return
        finally:
            self._driving.release()
        self._on_results(results)

    def _done(self, count: int, results: Sequence[StorageResult]) -> None:
        """The thread has carried out `count` orders. Runs on the event loop."""
        self._under_way -= count
        if results:
            self._on_results(results)

    # --- in threads ----------------------------------------------------------------------------------------------

    def _read(self, order: ReadBlocks) -> None:
        try:
            self._hand_over(0, [self.storage.read(order)])
        except Exception as error:  # a bug: told, not swallowed (RW2)
            self._fail(error)

    def _run(self) -> None:
        try:
            due_us = wall_clock_us()
            stopping = False
            while not stopping:
                wait_s = max(0.001, min((due_us - wall_clock_us()) / US_PER_S, 3600.0))
                stopping = self._round(wait_s)
                if self._failed:
                    return  # RW2: by the loop
                now_us = wall_clock_us()
                if now_us >= due_us:
                    with self._driving:
                        due_us = max(self.storage.logs.maintain(now_us), now_us + US_PER_MS)
                        self._require_store()
            with self._driving:
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
        results: Sequence[StorageResult] = ()
        with self._driving:
            if self._failed:
                return True
            if orders:
                results = self._carry_out(orders)
            for action in actions:
                action(wall_clock_us())
        self._hand_over(len(orders) + len(actions), results)
        return stopping

    def _carry_out(self, orders: Sequence[StorageOrder]) -> Sequence[StorageResult]:
        """Carry orders out while holding `_driving`, and note whether the disk was quick (RW3)."""
        logs, began_us = self.storage.logs, wall_clock_us()
        syncs = logs.syncs
        results = self.storage.carry_out(orders, began_us)
        counts = self.statistics
        counts.rounds += 1
        counts.orders += len(orders)
        counts.blocks += sum([len(order.blocks) for order in orders if type(order) is AppendBlocks])
        if wall_clock_us() - began_us > _QUICK_US:
            self._quick_commits = 0
        elif logs.syncs != syncs:
            self._quick_commits += 1
        self._require_store()
        return results

    def _require_store(self) -> None:
        """RW2: a store that stopped takes nothing until it is opened anew, and only a new process does that."""
        if (stopped := self.storage.logs.stopped()) is not None:
            raise DiskFailed(cause=stopped.cause if isinstance(stopped, LogPoisoned) else str(stopped))

    def _hand_over(self, count: int, results: Sequence[StorageResult]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._done, count, results)
        except RuntimeError:
            pass  # the loop is closed: nobody waits for it any more

    def _fail(self, error: Exception) -> None:
        self._failed = True
        try:
            self._loop.call_soon_threadsafe(self._on_failed, error)
        except RuntimeError:
            pass  # as above
