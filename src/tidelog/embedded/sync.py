"""The manager for programs without an event loop: the same names, without await.

Calls run on an event loop and are waited for: on one of the manager's own, in a thread, or on one that runs already.
With replication it must be the node's loop, because a node belongs to the loop that started it.

What a caller must keep: never call from the loop itself, it would wait for itself. `close` at the end.

SM1  A call that is interrupted (Ctrl-C) is cancelled on the loop too.
SM2  After `close` every call raises `LogClosed`, and a thread of the manager's own is gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tidelog.client.closing import end_loop_thread
from tidelog.client.records import AnyRecord
from tidelog.core.replication.config import FileConfig
from tidelog.core.replication.metrics import ReplicationMetricsSnapshot
from tidelog.core.replication.roles import Cause, Role
from tidelog.embedded.coordinator import ReplicationCoordinator
from tidelog.embedded.log_file import LogFile
from tidelog.embedded.manager import FACTOR_MS, LogManager
from tidelog.errors import LogClosed, UnknownChannel
from tidelog.storage.store.parts import StoreOptions

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

_DEFAULT: Final = FileConfig()

T = TypeVar("T")


class _Portal:
    """Runs coroutines on a loop of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._own: threading.Thread | None = None
        if loop is None:
            loop = asyncio.new_event_loop()
            self._own = threading.Thread(target=loop.run_forever, name="tidelog-manager", daemon=True)
            self._own.start()
        self._loop = loop
        self._guard = threading.Lock()
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._guard:
            if self._is_closed:
                work.close()
                raise LogClosed(log="the manager")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LogClosed(log="the manager") from None
        except BaseException:
            future.cancel()  # SM1
            raise

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self.run(called())

    def close(self) -> None:
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        if self._own is None:
            return
        end_loop_thread(self._loop, self._own)


class SyncLogFile:
    """See `LogFile`. Many threads may append; a tail is for one thread at a time."""

    def __init__(self, portal: _Portal, file: LogFile) -> None:
        self._portal = portal
        self._file = file
        self.name = file.name
        self.config = file.config

    @property
    def log_start(self) -> int:
        return self._file.log_start

    @property
    def log_end(self) -> int:
        return self._file.log_end

    @property
    def committed_end(self) -> int:
        return self._file.committed_end

    def append(self, payload: bytes, **how: Any) -> int:
        return self._portal.run(self._file.append(payload, **how))

    def append_batch(self, payloads: Sequence[bytes], **how: Any) -> int:
        return self._portal.run(self._file.append_batch(payloads, **how))

    def read_range(self, start: int, end: int) -> list[AnyRecord]:
        return self._portal.run(self._file.read_range(start, end))

    def tail(self, start: int | None = None) -> Iterator[AnyRecord]:
        """Waits for records; ends when the file is closed by another thread."""
        records: AsyncIterator[AnyRecord] = self._file.tail(start)

        async def following() -> AnyRecord | None:
            return await anext(records, None)

        while (record := self._portal.run(following())) is not None:
            yield record

    def sweep_retention(self) -> int:
        return self._portal.run(self._file.sweep_retention())

    def sync(self) -> None:
        self._portal.run(self._file.sync())

    def close(self) -> None:
        self._portal.run(self._file.close())


class SyncLogManager:
    """See `LogManager`."""

    def __init__(
        self,
        persistent_dir: str | os.PathLike[str] | None = None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        store: StoreOptions | None = None,
        factor_timeout_ms: int = FACTOR_MS,
    ) -> None:
        self._portal = _Portal(loop)
        self._manager = self._portal.call(
            lambda: LogManager(persistent_dir, store=store, factor_timeout_ms=factor_timeout_ms)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enable_replication(self, node: Node) -> None:
        self._portal.call(lambda: self._manager.enable_replication(node))

    def disable_replication(self) -> None:
        self._portal.run(self._manager.disable_replication())

    def open_file(self, name: str, config: FileConfig = _DEFAULT) -> SyncLogFile:
        return SyncLogFile(self._portal, self._portal.run(self._manager.open_file(name, config)))

    def close_file(self, name: str) -> None:
        self._portal.run(self._manager.close_file(name))

    def find_chain_holders(self, name: str) -> list[str]:
        return self._portal.call(lambda: self._manager.find_chain_holders(name))

    def role_of(self, name: str) -> Role:
        """The role of this node in a replicated channel that is open here."""
        return self._portal.call(lambda: self._coordinator(name).role)

    def transition_to(self, name: str, role: Role, cause: Cause) -> Role:
        """See `ReplicationCoordinator.transition_to`."""

        async def transition() -> Role:
            return await self._coordinator(name).transition_to(role, cause)

        return self._portal.run(transition())

    def _coordinator(self, name: str) -> ReplicationCoordinator:
        coordinator = self._manager.replication_coordinator_for(name)
        if coordinator is None:
            raise UnknownChannel(channel=name)
        return coordinator

    def metrics_snapshot(self) -> ReplicationMetricsSnapshot:
        return self._portal.call(lambda: self._manager.metrics.snapshot())

    def close(self) -> None:
        """Closing twice is no error."""
        try:
            self._portal.run(self._manager.close())
        except LogClosed:
            return
        self._portal.close()
