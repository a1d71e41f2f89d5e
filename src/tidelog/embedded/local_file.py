"""A file on this node alone: a record is committed when it is as durable as the fsync option promises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from tidelog.blocks.block import Block, MadeBlock
from tidelog.core.replication.config import FileConfig
from tidelog.embedded.local_logs import LocalChannel, LocalLogs
from tidelog.embedded.log_file import READ_BYTES, LogFile
from tidelog.errors import Lagged, LogClosed, OffsetOutOfRange, WaitTimedOut


class LocalFile(LogFile):
    def __init__(
        self,
        name: str,
        config: FileConfig,
        *,
        logs: LocalLogs,
        channel: LocalChannel,
        close: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__(name, config)
        self._logs = logs
        self._channel = channel
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        channel.watchers.append(self._moved)

    @property
    def log_start(self) -> int:
        return self._channel.log_start

    @property
    def log_end(self) -> int:
        return self._channel.log_end

    @property
    def committed_end(self) -> int:
        return self._channel.held_end

    @property
    def epoch(self) -> int:
        """The epoch in which this process writes (R1)."""
        return self._channel.epoch

    async def _append(self, made: MadeBlock, expected_offset: int, timeout_ms: int) -> int:
        future = asyncio.wrap_future(self._logs.append(self._channel, made, expected_offset))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the append", deadline_s=timeout_ms / 1000) from None

    async def _fetch(self, offset: int, wait_ms: int) -> Sequence[Block]:
        if offset >= self.committed_end and wait_ms:
            await self._wait_moved(offset, wait_ms)
        self._check_open()
        if offset < self.log_start:
            raise self._lagged(offset)
        if offset >= self.committed_end:
            return ()
        try:
            return await asyncio.to_thread(self._logs.read, self._channel, offset, bytes_max=READ_BYTES)
        except OffsetOutOfRange:
            if offset < self.log_start:
                raise self._lagged(offset) from None
            raise

    def _lagged(self, offset: int) -> Lagged:
        return Lagged(channel=self.name, offset=offset, log_start=self.log_start)

    async def _wait_moved(self, offset: int, wait_ms: int) -> None:
        """Wait until there is more, the file is closed, or the time is up."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        try:
            # Check again after subscribing: the end may have moved in between.
            if offset < self.committed_end or self._is_closed:
                return
            async with asyncio.timeout(wait_ms / 1000):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)

    def _moved(self) -> None:
        """Called in the writer's thread."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def sweep_retention(self) -> int:
        self._check_open()
        return await asyncio.wrap_future(self._logs.sweep(self._channel))

    async def sync(self) -> None:
        self._check_open()
        await asyncio.wrap_future(self._logs.sync(self._channel))

    async def close(self) -> None:
        await self._close(self.name)

    async def let_go(self) -> None:
        """Called by the manager: everything that waits is written, then the log is closed."""
        self._is_closed = True
        with suppress(LogClosed):  # a writer that ended before has closed it
            await asyncio.wrap_future(self._logs.close_channel(self._channel))
        self._channel.watchers.remove(self._moved)
        self._wake()
