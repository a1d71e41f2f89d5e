"""Refusals by an old catalog, checked again by a newer one before they are sent.

A node's catalog may be behind what an administrator was told elsewhere: a channel that was resumed, made writable, or
created a moment ago, a grant that was given. A request that would be refused for that waits until the catalog here
holds all that was committed when the refusal came up, and is checked again.

RC1  Waiting requests are checked in the order in which they came; later ones for the same channel wait too.
RC2  One read barrier runs at a time, and all requests that wait for the next one share it: refusals that come together
     cost one barrier, and those that come during one cost one more. They cannot share the running one, since the change
     that permits them may have been committed after it began.
RC3  A wait ends within `RECHECK_MS`. If there is no metadata leader by then, the refusal stands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from tidelog.errors import (
    AccessDenied,
    ChannelPaused,
    ChannelReadonly,
    LogError,
    UnknownChannel,
    UnknownGroup,
    UnknownMember,
)

RECHECK_MS: Final = 2_000
MAY_BE_STALE: Final = (AccessDenied, ChannelPaused, ChannelReadonly, UnknownChannel, UnknownGroup, UnknownMember)
"""Refusals that a newer catalog could lift. All are definite: nothing was done. Excluded are those that a newer catalog
can only confirm (deleted, fenced, owned), and those that clients repeat in any case (`retriable`)."""

ReadBarrier = Callable[[], Awaitable[None]]
Attempt = Callable[[bool], bool]
"""Called with whether the catalog is known to be new enough; returns False if the refusal is to be checked again. Must
settle when called with True."""


class SharedBarrier:
    """A read barrier for many callers (RC2)."""

    def __init__(self, read_barrier: ReadBarrier) -> None:
        self._read_barrier = read_barrier
        self._running: asyncio.Task[LogError | None] | None = None
        self._next: asyncio.Task[LogError | None] | None = None
        """Has not begun: a new caller may join it."""
        self.count = 0
        """Barriers that have begun, for tests and statistics."""
        self.waiting = 0
        """Callers that wait now."""

    async def wait(self) -> None:
        """Wait until a barrier that began after this call has ended; raises its error."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._pass(self._running))
        self.waiting += 1
        try:
            # Shielded: others wait for the same task when one caller goes away.
            error = await asyncio.shield(self._next)
        finally:
            self.waiting -= 1
        if error is not None:
            raise error

    async def _pass(self, before: asyncio.Task[LogError | None] | None) -> LogError | None:
        if before is not None:
            await asyncio.wait({before})
        self._running, self._next = self._next, None
        self.count += 1
        try:
            await self._read_barrier()
        except LogError as error:
            return error  # not raised: nobody may be left to look at the task
        finally:
            self._running = None
        return None


class Rechecks:
    """The refusals of one node that wait to be checked again."""

    def __init__(self, read_barrier: ReadBarrier) -> None:
        self._read_barrier = read_barrier
        self._barrier = SharedBarrier(self._bounded_barrier)
        self._queues: dict[Hashable, deque[Attempt]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Read barriers so far, for tests and statistics."""
        return self._barrier.count

    @property
    def waiting(self) -> int:
        """Callers that wait for a barrier."""
        return self._barrier.waiting

    def holds(self, key: Hashable) -> bool:
        """Whether requests of this key wait, so that a new one has to wait behind them (RC1)."""
        return key in self._queues

    def wait(self, key: Hashable, attempt: Attempt) -> None:
        self._queues.setdefault(key, deque()).append(attempt)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._queues:
                before = {key: len(queue) for key, queue in self._queues.items()}
                await self.catch_up()
                for key, count in before.items():
                    self._settle(key, count)
        finally:
            self._task = None

    def _settle(self, key: Hashable, count: int) -> None:
        """The first `count` waited before the barrier; those behind them came later and were never checked."""
        queue = self._queues[key]
        for _ in range(count):
            queue[0](True)
            queue.popleft()
        while queue and queue[0](False):
            queue.popleft()
        if not queue:
            del self._queues[key]

    async def catch_up(self) -> None:
        """After it the catalog holds everything that was committed before, or the time is up (RC3)."""
        try:
            async with asyncio.timeout(RECHECK_MS / 1000):
                await self._barrier.wait()
        except (LogError, TimeoutError):
            return

    async def _bounded_barrier(self) -> None:
        """A request that gets no answer must not delay the next."""
        try:
            async with asyncio.timeout(RECHECK_MS / 1000):
                await self._read_barrier()
        except TimeoutError:
            return  # the callers have given up by now, or get the refusal
