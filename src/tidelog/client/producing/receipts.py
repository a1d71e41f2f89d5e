"""The results of `send`: the offset of a record, once that is known.

A receipt is awaited for the offset. It holds a reference and a number, so that a producer can hand out a million; a
future is made only for a batch that a caller waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from tidelog.client.producing.batching import RecordBatch
from tidelog.errors import LogError


class Receipt:
    """The receipt of one record. Await it for its offset, or for the error that it ended with."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: RecordBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        return self._batch.is_done

    def result(self) -> int:
        """The offset; raises the record's error, or `asyncio.InvalidStateError` while there is no answer."""
        batch = self._batch
        if not batch.is_done:
            raise asyncio.InvalidStateError("the record has no answer yet")
        if batch.error is not None:
            batch.is_seen = True
            raise batch.error
        return batch.first_offset + self._index

    def when_done(self, callback: Callable[[], None]) -> None:
        """Called once, on the client's loop, when there is an answer; at once if there is one."""
        self._batch.when_done(callback)

    def __await__(self) -> Generator[Any, None, int]:
        yield from _until_done(self._batch)
        return self.result()


class ManyReceipt:
    """The receipt of many records that were sent with one call. Await it for the ranges of offsets they got, in their
    order: one, unless they filled more than one block."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[tuple[RecordBatch, range]]) -> None:
        self._parts = parts

    @property
    def is_done(self) -> bool:
        return all(batch.is_done for batch, _ in self._parts)

    def result(self) -> list[range]:
        """The offsets; raises the first error, even if other parts were taken."""
        offsets = []
        for batch, places in self._parts:
            if not batch.is_done:
                raise asyncio.InvalidStateError("the records have no answer yet")
            if batch.error is not None:
                batch.is_seen = True
                raise batch.error
            offsets.append(range(batch.first_offset + places.start, batch.first_offset + places.stop))
        return offsets

    def when_each_done(self, callback: Callable[[range, int, LogError | None], None]) -> None:
        """Called once for each part when it has its answer: which of the records it is, the offset of its first, or the
        error with which the whole part ended."""
        start = 0
        for batch, places in self._parts:
            which = range(start, start + len(places))
            start = which.stop
            batch.when_done(partial(_tell_part, callback, which, batch, places.start))

    def when_done(self, callback: Callable[[], None]) -> None:
        waiting = [batch for batch, _ in self._parts if not batch.is_done]
        if not waiting:
            callback()
            return
        left = len(waiting)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                callback()

        for batch in waiting:
            batch.when_done(one_done)

    def __await__(self) -> Generator[Any, None, list[range]]:
        for batch, _ in self._parts:
            yield from _until_done(batch)
        return self.result()


def _tell_part(
    callback: Callable[[range, int, LogError | None], None], which: range, batch: RecordBatch, first_place: int
) -> None:
    if batch.error is not None:
        batch.is_seen = True
    callback(which, batch.first_offset + first_place, batch.error)


def _until_done(batch: RecordBatch) -> Generator[Any, None, None]:
    if batch.is_done:
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    batch.when_done(done)
    yield from future
