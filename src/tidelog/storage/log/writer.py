"""Group commit: many threads append, one write and one sync serve all who are waiting.

A `Committer` owns a queue and a thread and drives a target: a single log (`LogTarget`) or a store of
many (`tidelog.storage.store.store.Store`). While one commit is on its way to the disk, new appends gather
and ride in the next, so batches grow with load and no delay is ever added. A caller that finds the
committer idle commits in its own thread, which spares two thread switches.

W1  A future resolves only after its records are as durable as the log's `fsync` option promises.
W2  At most `queue_bytes_max` bytes wait; beyond that `QueueFull` says to wait for acks.
W3  Every wait has a deadline.
W4  A future that was cancelled, or whose wait timed out, before its turn came had no effect; after
    that it cannot be cancelled. Whatever happens, every future taken from the queue resolves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

from tidelog.blocks.block import Block, MadeBlock
from tidelog.errors import LogClosed, LogError, LogPoisoned, QueueFull, WaitTimedOut
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import Fsync
from tidelog.storage.log.scrub import Scrubber
from tidelog.units import MIB, US_PER_MS

Clock = Callable[[], int]


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def steady_clock_ms() -> int:
    """A clock that never goes back, for intervals and deadlines."""
    return time.monotonic_ns() // 1_000_000


def session_clock_us() -> int:
    """A steady clock that goes on while the machine is suspended: for sessions that peers may expire meanwhile."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Append:
    """One request: a made block to stamp, or a stamped one to take over."""

    __slots__ = (
        "_error",
        "_future",
        "_settled",
        "block",
        "epoch",
        "log",
        "offsets",
        "path",
        "size",
        "windows",
    )

    def __init__(
        self,
        log: Log,
        block: MadeBlock | Block,
        *,
        epoch: int = 0,
        path: int = 0,
        windows: Sequence[range] = (),
    ) -> None:
        self.log = log
        self.block = block
        self.epoch = epoch
        self.path = path
        self.windows = windows
        self.size = len(block.body) + 128
        self.offsets = range(0)
        self._future: Future[range] | None = None
        self._settled = False
        self._error: BaseException | None = None

    @property
    def future(self) -> Future[range]:
        """Made when first asked for: a caller that commits in its own thread needs no future, which is a third of the
        cost.

        Code that queues an append for another thread must ask for the future before it does so.
        """
        if self._future is None:
            self._future = Future()
            if self._settled:
                self._hand_over(self._future)
        return self._future

    def start(self) -> bool:
        """False when the caller has given up on it."""
        return self._future is None or self._future.set_running_or_notify_cancel()

    def stage(self, now_us: int) -> Block | None:
        staged = _stage(self.log, self.block, self.epoch, self.path, self.windows, now_us)
        self.offsets = staged.offsets if staged else range(self.log.log_end, self.log.log_end)
        return staged

    def done(self) -> None:
        self._settle(None)

    def failed(self, error: BaseException) -> None:
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        self._error = error
        self._settled = True
        if self._future is not None:
            self._hand_over(self._future)

    def _hand_over(self, future: Future[range]) -> None:
        if self._error is None:
            future.set_result(self.offsets)
        else:
            future.set_exception(self._error)

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def error(self) -> BaseException | None:
        """Why a settled append was refused."""
        return self._error

    def outcome(self) -> range:
        """The offsets, or the refusal, of a settled append."""
        assert self._settled
        if self._error is not None:
            raise self._error
        return self.offsets


def _stage(
    log: Log, block: MadeBlock | Block, epoch: int, path: int, windows: Sequence[range], now_us: int
) -> Block | None:
    """Take over a stamped block, or stamp a made one."""
    if isinstance(block, Block):
        return log.stage_stamped(block)
    return log.stage(block, epoch=epoch, now_us=now_us, path=path, windows=windows)


class CommitTarget(Protocol):
    def commit_appends(self, appends: Sequence[Append], now_us: int) -> None:
        """Stage and commit; resolve the future of every append. Must not raise."""
        ...

    def maintain(self, now_us: int) -> int:
        """Do what is due (sync, roll, retention, scrub); returns when to call again, in microseconds."""
        ...

    def close(self, now_us: int) -> None: ...


class Committer:
    def __init__(
        self,
        target: CommitTarget,
        *,
        clock_us: Clock = wall_clock_us,
        queue_bytes_max: int = 64 * MIB,
        name: str = "tidelog-writer",
    ) -> None:
        self._target = target
        self._clock_us = clock_us
        self._queue_bytes_max = queue_bytes_max
        self._queue: deque[Append] = deque()
        self._queued_bytes = 0
        self._guard = threading.Condition()
        self._driving = threading.Lock()
        self._closed = False
        self._broken: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, append: Append) -> Future[range]:
        """Queue an append; its future resolves with the offsets once it is committed."""
        future = append.future
        with self._guard:
            self._enqueue(append)
            self._guard.notify()
        return future

    def submit_many(self, appends: Sequence[Append]) -> None:
        for append in appends:
            assert append.future is not None
        with self._guard:
            for append in appends:
                self._enqueue(append)
            self._guard.notify()

    def commit(self, append: Append, *, timeout_s: float = 30.0) -> range:
        """Append and wait. Commits in this thread when nobody else is committing."""
        if self._driving.acquire(blocking=False):
            try:
                # One round only, which includes ours: the thread serves appends that came meanwhile.
                self._commit_round(append)
            finally:
                self._driving.release()
            if self._queue:
                with self._guard:
                    self._guard.notify()
            return append.outcome()
        future = self.submit(append)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            raise WaitTimedOut(waiting_for="the append", deadline_s=timeout_s) from None

    def commit_alone(self, action: Callable[[int], range]) -> range | None:
        """Run a commit of one append in this thread if nobody else commits or waits; None if somebody does.

        The same as `commit`, without a request object, which is the main cost when one append is in flight.
        """
        if self._queue or not self._driving.acquire(blocking=False):
            return None
        try:
            if self._closed or self._broken is not None:
                return None  # `commit` says why
            return action(self._clock_us())
        except LogError:
            raise
        except BaseException as error:
            self._break(error, ())
            raise
        finally:
            self._driving.release()
            if self._queue:
                with self._guard:
                    self._guard.notify()

    def run_exclusive(self, action: Callable[[int], None]) -> None:
        """Run something that changes the target (truncate, rebuild) between two commits."""
        with self._driving:
            action(self._clock_us())

    def close(self) -> None:
        """Commit what is queued, then close the target."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._guard.notify()
        self._thread.join()
        with self._driving:
            self._commit_waiting()
            self._target.close(self._clock_us())

    def _check_open(self, append: Append) -> None:
        if self._closed:
            raise LogClosed(log=append.log.folder)
        if self._broken is not None:
            raise LogPoisoned(log=append.log.folder, cause=self._broken)

    def _enqueue(self, append: Append) -> None:
        self._check_open(append)
        if self._queued_bytes + append.size > self._queue_bytes_max and self._queue:
            raise QueueFull(waiting_bytes=self._queued_bytes, bytes_max=self._queue_bytes_max)
        self._queue.append(append)
        self._queued_bytes += append.size

    def _commit_waiting(self) -> None:
        while self._commit_round():
            pass

    def _commit_round(self, own: Append | None = None) -> bool:
        """Commit what is queued now, and the driver's own append last; False for nothing. Hold `_driving`."""
        if own is not None:
            self._check_open(own)
        batch: list[Append] = []
        if self._queue:
            with self._guard:
                batch = [append for append in self._queue if append.start()]
                self._queue.clear()
                self._queued_bytes = 0
        if own is not None:
            batch.append(own)
        if not batch:
            return False
        try:
            self._target.commit_appends(batch, self._clock_us())
        except BaseException as error:
            self._break(error, batch)
            raise
        return True

    def _break(self, error: BaseException, batch: Sequence[Append]) -> None:
        """A bug in Tidelog. Every waiting future fails, and the committer takes nothing more."""
        with self._guard:
            self._broken = repr(error)
            waiting = [append for append in self._queue if append.start()]
            self._queue.clear()
        for append in (*batch, *waiting):
            if not append.settled:
                append.failed(error)

    def _run(self) -> None:
        due_us = self._clock_us()
        while True:
            with self._guard:
                wait_us = due_us - self._clock_us()
                if not self._queue and not self._closed and wait_us > 0:
                    self._guard.wait(min(wait_us / 1e6, 3600.0))
                if self._closed:
                    return
            with self._driving:
                self._commit_waiting()
                now_us = self._clock_us()
                if now_us >= due_us:
                    due_us = max(self._maintain(now_us), now_us + US_PER_MS)

    def _maintain(self, now_us: int) -> int:
        try:
            return self._target.maintain(now_us)
        except BaseException as error:
            self._break(error, ())
            raise


class LogTarget:
    """A single log behind a committer."""

    def __init__(self, log: Log, *, scrubber: Scrubber | None = None) -> None:
        self._log = log
        self._scrubber = scrubber
        self._sync_due_us: int | None = None
        self._sweep_due_us = 0

    def commit_appends(self, appends: Sequence[Append], now_us: int) -> None:
        log = self._log
        waiting: list[Append] = []
        for append in appends:
            try:
                append.stage(now_us)
                waiting.append(append)
            except LogError as error:
                append.failed(error)
        refusal: LogError | None = None
        try:
            log.flush(now_us)
        except LogError as error:
            refusal = error
            log.discard_staged()
        written_end = log.written_end
        try:
            if log.options.fsync is Fsync.ALWAYS:
                log.sync()
            elif self._sync_due_us is None:
                self._sync_due_us = now_us + log.options.fsync_interval_ms * US_PER_MS
        except LogError as error:
            refusal, written_end = error, -1
        for append in waiting:
            if append.offsets.stop <= written_end or refusal is None:
                append.done()
            else:
                append.failed(refusal)

    def maintain(self, now_us: int) -> int:
        options = self._log.options
        try:
            if self._sync_due_us is not None and now_us >= self._sync_due_us:
                self._sync_due_us = None
                if options.fsync is Fsync.INTERVAL:
                    self._log.sync()
            if now_us >= self._sweep_due_us:
                self._sweep_due_us = now_us + options.retention_interval_ms * US_PER_MS
                self._log.roll_if_due(now_us)
                self._log.sweep_retention(now_us)
            if self._scrubber is not None:
                self._scrubber.wake(now_us // US_PER_MS)
        except LogError:
            # The log has recorded why (it is poisoned, or full); the next append says so to its caller.
            return now_us + options.retention_interval_ms * US_PER_MS
        due = [self._sweep_due_us]
        if options.fsync is Fsync.INTERVAL:
            due.append(self._sync_due_us or now_us + options.fsync_interval_ms * US_PER_MS)
        if self._scrubber is not None:
            due.append(self._scrubber.wake_at_ms() * US_PER_MS)
        return min(due)

    def close(self, now_us: int) -> None:
        self._log.close(now_us)


class LogWriter:
    """The thread-safe face of a single log: append, wait, follow."""

    def __init__(
        self,
        log: Log,
        *,
        clock_us: Clock = wall_clock_us,
        scrubber: Scrubber | None = None,
        queue_bytes_max: int = 64 * MIB,
    ) -> None:
        self.log = log
        self._moved = threading.Condition()
        self._followers = 0
        log.watch(self._wake)
        self._committer = Committer(
            LogTarget(log, scrubber=scrubber), clock_us=clock_us, queue_bytes_max=queue_bytes_max
        )

    def append(
        self, made: MadeBlock | Block, *, epoch: int = 1, path: int = 0, windows: Sequence[range] = ()
    ) -> Future[range]:
        return self._committer.submit(Append(self.log, made, epoch=epoch, path=path, windows=windows))

    def append_wait(
        self,
        made: MadeBlock | Block,
        *,
        epoch: int = 1,
        path: int = 0,
        windows: Sequence[range] = (),
        timeout_s: float = 30.0,
    ) -> range:
        log = self.log
        if log.options.fsync is Fsync.ALWAYS:

            def commit_one(now_us: int) -> range:
                staged = _stage(log, made, epoch, path, windows, now_us)
                log.commit(now_us)
                return staged.offsets if staged else range(log.log_end, log.log_end)

            offsets = self._committer.commit_alone(commit_one)
            if offsets is not None:
                return offsets
        append = Append(log, made, epoch=epoch, path=path, windows=windows)
        return self._committer.commit(append, timeout_s=timeout_s)

    def run_exclusive(self, action: Callable[[int], None]) -> None:
        self._committer.run_exclusive(action)

    def wait_beyond(self, offset: int, *, timeout_s: float) -> int:
        """Follow the log: wait until records at or after `offset` are durable; returns the durable end."""
        log = self.log
        with self._moved:
            self._followers += 1
            try:
                arrived = self._moved.wait_for(lambda: log.durable_end > offset or log.closed, timeout_s)
            finally:
                self._followers -= 1
        if log.closed:
            raise LogClosed(log=log.folder)
        if not arrived:
            raise WaitTimedOut(waiting_for=f"a record at offset {offset}", deadline_s=timeout_s)
        return log.durable_end

    def _wake(self) -> None:
        # A follower registers before it looks, so a change that it does not see will notify it.
        if self._followers:
            with self._moved:
                self._moved.notify_all()

    def close(self) -> None:
        """Commit what is queued and close the log. Closing twice is harmless."""
        self._committer.close()
