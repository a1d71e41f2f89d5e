"""The client for programs without an event loop: the same names, without await.

One thread of its own runs the loop and the async client; calls are handed to it and waited for. Many threads may use
one client; each reader is for one thread at a time.

SY1  A call that is interrupted (Ctrl-C) is cancelled on the loop too.
SY2  After `close` the thread is gone, and every call raises `ClientClosed`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from tidelog.blocks.block import Block
from tidelog.client.admin import Created, Offsets
from tidelog.client.client import Client, connect
from tidelog.client.closing import end_loop_thread
from tidelog.client.groups.feeds import GroupBatch
from tidelog.client.groups.group import Group
from tidelog.client.options import ClientOptions, Start
from tidelog.client.producing.producer import Producer
from tidelog.client.producing.receipts import ManyReceipt, Receipt
from tidelog.client.reading.reader import Reader
from tidelog.client.records import AnyRecord
from tidelog.core.catalog.channel_config import ChannelConfig
from tidelog.errors import ClientClosed, LogError, WaitTimedOut
from tidelog.transports.link.tls import LinkTls, LinkTlsFiles

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_AT_ONCE_MAX: Final = 64


class _LoopThread:
    """A thread with an event loop, for as long as a client is open."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidelog-client", daemon=True)
        self._thread.start()
        self._guard = threading.Lock()
        self._is_stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the loop (SY1)."""
        with self._guard:
            if self._is_stopped:
                work.close()
                raise ClientClosed(what="the client")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed(what="the client") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """The result of a function on the loop."""

        async def called() -> T:
            return function()

        return self.run(called())

    def stop(self) -> None:
        with self._guard:
            if self._is_stopped:
                return
            self._is_stopped = True
        end_loop_thread(self._loop, self._thread)


class SyncReceipt(Generic[T]):
    """The receipt of records that were sent with one call: `result` waits for the offset (or the ranges of offsets)."""

    def __init__(self, thread: _LoopThread, receipt: Receipt | ManyReceipt) -> None:
        self._thread = thread
        self._receipt = receipt

    @property
    def is_done(self) -> bool:
        return self._receipt.is_done

    def result(self, timeout_s: float | None = None) -> T:
        """Raises the error it ended with; `WaitTimedOut` if there is no answer in time."""

        async def wait() -> Any:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._receipt
            except TimeoutError:
                raise WaitTimedOut(waiting_for="the answer to a record", deadline_s=timeout_s or 0.0) from None

        if self._receipt.is_done:
            found: Any = self._receipt.result()
        else:
            found = self._thread.run(wait())
        answer: T = found
        return answer


class SyncProducer:
    """See `Producer`. `send` waits for room by itself, so it never raises `QueueFull`."""

    def __init__(self, thread: _LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._producer.name

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time_us: int | None = None,
        *,
        expected_offset: int | None = None,
    ) -> SyncReceipt[int]:
        async def send() -> Receipt:
            await self._producer.send_room(len(value or b"") + len(key or b""))
            return self._producer.send(value, key, headers, time_us, expected_offset=expected_offset)

        return SyncReceipt(self._thread, self._thread.run(send()))

    def send_many(self, values: Iterable[bytes], *, expected_offset: int | None = None) -> SyncReceipt[list[range]]:
        listed = list(values)

        async def send() -> ManyReceipt:
            await self._producer.send_room(sum(map(len, listed)))
            return self._producer.send_many(listed, expected_offset=expected_offset)

        return SyncReceipt(self._thread, self._thread.run(send()))

    def send_arrow(self, batch: pa.RecordBatch) -> SyncReceipt[list[range]]:
        async def send() -> ManyReceipt:
            await self._producer.send_room(batch.nbytes)
            return self._producer.send_arrow(batch)

        return SyncReceipt(self._thread, self._thread.run(send()))

    def flush(self) -> None:
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        self._thread.run(self._producer.close())


class SyncReader:
    """See `Reader`: iterate over it for records, over `batches()` or `blocks()` for more at a time."""

    def __init__(self, thread: _LoopThread, reader: Reader) -> None:
        self._thread = thread
        self._reader = reader

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._reader.close(is_done=error is None))

    def __iter__(self) -> Iterator[AnyRecord]:
        while count := self._thread.run(self._reader.fill()):
            for _ in range(count):
                yield self._reader.give()

    def read(self) -> list[AnyRecord]:
        return self._thread.run(self._reader.read())

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from _each(self._thread, self._reader.batches())

    def blocks(self) -> Iterator[Block]:
        yield from _each(self._thread, self._reader.blocks())

    @property
    def offset(self) -> int | None:
        return self._reader.offset

    def save(self, offset: int | None = None) -> None:
        self._thread.run(self._reader.save(offset))

    def close(self) -> None:
        self._thread.run(self._reader.close())


def _each(thread: _LoopThread, items: Any) -> Iterator[Any]:
    """An async iteration, one step at a time."""

    async def step() -> tuple[bool, Any]:
        try:
            return True, await anext(items)
        except StopAsyncIteration:
            return False, None

    try:
        while True:
            is_more, item = thread.run(step())
            if not is_more:
                return
            yield item
    finally:
        thread.run(items.aclose())


class SyncGroup:
    """Made by `SyncClient.group`. The heartbeat goes on in the background while the caller works on a batch, however
    long that takes; `on_rebalance` is called there too."""

    def __init__(self, thread: _LoopThread, group: Group) -> None:
        self._thread = thread
        self._group = group

    def __enter__(self) -> Self:
        self._thread.run(self._group.join())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_done=error is None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GroupBatch:
        return self.read()

    def read(self) -> GroupBatch:
        return self._thread.run(self._group.read())

    def commit(self, batch: GroupBatch | None = None) -> None:
        self._thread.run(self._group.commit(batch))

    def close(self, *, is_done: bool = True) -> None:
        self._thread.run(self._group.close(is_done=is_done))

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that are assigned to this member now."""
        return self._thread.call(lambda: self._group.channels)


class SyncClient:
    """Made by `connect_sync`. The methods are those of `Client`, without await."""

    def __init__(self, thread: _LoopThread, client: Client) -> None:
        self._thread = thread
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    def close(self, *, flush: bool = True) -> None:
        if self._client.is_closed:
            self._thread.stop()
            return
        try:
            self._thread.run(self._client.close(flush=flush))
        finally:
            self._thread.stop()

    def producer(self, channel: str, **options: Any) -> SyncProducer:
        return SyncProducer(self._thread, self._thread.call(lambda: self._client.producer(channel, **options)))

    def reader(self, channel: str, **options: Any) -> SyncReader:
        return SyncReader(self._thread, self._thread.call(lambda: self._client.reader(channel, **options)))

    def group(self, name: str, channels: Sequence[str], **options: Any) -> SyncGroup:
        return SyncGroup(self._thread, self._thread.call(lambda: self._client.group(name, channels, **options)))

    def fetch(
        self,
        channel: str,
        offsets: range,
        *,
        nearest: bool = True,
        timeout_ms: int | None = None,
        channel_id: int | None = None,
    ) -> Iterator[Block]:
        blocks = self._thread.call(
            lambda: self._client.fetch(channel, offsets, nearest=nearest, timeout_ms=timeout_ms, channel_id=channel_id)
        )
        yield from _each(self._thread, blocks)

    def at_once(self, asks: Sequence[Callable[[Client], Coroutine[Any, Any, T]]]) -> list[T | LogError]:
        """Run several calls of the async client at the same time, a few dozen at once. Returns the result of each, or
        its error."""

        async def ask_all() -> list[T | BaseException]:
            turns = asyncio.Semaphore(_AT_ONCE_MAX)

            async def asked(ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
                async with turns:
                    return await ask(self._client)

            return await asyncio.gather(*map(asked, asks), return_exceptions=True)

        found: list[T | LogError] = []
        for answer in self._thread.run(ask_all()):
            if isinstance(answer, BaseException) and not isinstance(answer, LogError):
                raise answer
            found.append(answer)
        return found

    def create_channel(
        self, name: str, config: ChannelConfig | None = None, *, timeout_ms: int | None = None, **settings: Any
    ) -> Created:
        return self._thread.run(self._client.create_channel(name, config, timeout_ms=timeout_ms, **settings))

    def create_channels(
        self,
        names: Sequence[str],
        config: ChannelConfig | None = None,
        *,
        timeout_ms: int | None = None,
        **settings: Any,
    ) -> list[Created | LogError]:
        return self._thread.run(self._client.create_channels(names, config, timeout_ms=timeout_ms, **settings))

    def describe(self, name: str, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.describe(name, **options))

    def describe_some(self, names: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        return self._thread.run(self._client.describe_some(names, **options))

    def channels(self, **options: Any) -> list[dict[str, Any]]:
        return self._thread.run(self._client.channels(**options))

    def cluster(self, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.cluster(**options))

    def alter(self, name: str, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.alter(name, **options))

    def pause(self, name: str, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.pause(name, **options))

    def resume(self, name: str, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.resume(name, **options))

    def set_readonly(self, name: str, readonly: bool = True, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.set_readonly(name, readonly, **options))

    def delete(self, name: str, **options: Any) -> None:
        self._thread.run(self._client.delete(name, **options))

    def elect(self, name: str, leader: str | None = None, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.elect(name, leader, **options))

    def rebalance(self, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.rebalance(**options))

    def offsets(self, name: str, **options: Any) -> Offsets:
        return self._thread.run(self._client.offsets(name, **options))

    def offset_at(self, name: str, start: Start, **options: Any) -> int:
        return self._thread.run(self._client.offset_at(name, start, **options))

    def producers(self, name: str, **options: Any) -> list[dict[str, Any]]:
        return self._thread.run(self._client.producers(name, **options))

    def remove_producer(self, name: str, producer: str, **options: Any) -> bool:
        return self._thread.run(self._client.remove_producer(name, producer, **options))

    def cursors(self, name: str, **options: Any) -> dict[str, int]:
        return self._thread.run(self._client.cursors(name, **options))

    def set_cursor(self, name: str, cursor: str, offset: int, **options: Any) -> None:
        self._thread.run(self._client.set_cursor(name, cursor, offset, **options))

    def delete_cursor(self, name: str, cursor: str, **options: Any) -> None:
        self._thread.run(self._client.delete_cursor(name, cursor, **options))

    def groups(self, **options: Any) -> list[dict[str, Any]]:
        return self._thread.run(self._client.groups(**options))

    def describe_group(self, group: str, **options: Any) -> dict[str, Any]:
        return self._thread.run(self._client.describe_group(group, **options))

    def delete_group(self, group: str, **options: Any) -> None:
        self._thread.run(self._client.delete_group(group, **options))


def connect_sync(
    addresses: Sequence[str] | str,
    *,
    tls: LinkTlsFiles | LinkTls | None = None,
    insecure_dev: bool = False,
    name: str | None = None,
    options: ClientOptions | None = None,
    timeout_ms: int | None = None,
) -> SyncClient:
    """As `connect`, for programs without an event loop."""
    thread = _LoopThread()
    try:
        client = thread.run(
            connect(addresses, tls=tls, insecure_dev=insecure_dev, name=name, options=options, timeout_ms=timeout_ms)
        )
    except BaseException:
        thread.stop()
        raise
    return SyncClient(thread, client)
