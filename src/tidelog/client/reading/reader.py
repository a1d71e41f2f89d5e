"""A reader: the committed records of a channel, each once and in order, whatever happens to leaders and links.

The shell around `ReadPosition` and `FetchPath`. While the caller works on one answer, the next is already requested:
only one, so that a slow caller holds at most two answers in memory.

What a caller must keep: one iteration at a time; `close` it, or leave the iteration, at the end.

RR1  Only committed records are given out; control records are skipped.
RR2  A cursor is saved only up to records after which the caller has asked for more: after a crash records may be given
     again, none is left out.
RR3  A reader reads one channel. If that is deleted and created again, the next read raises `ChannelRecreated`, or
     begins anew in the new one where the options say so; no offset and no cursor of the old one is used in the new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidelog.blocks.block import Block
from tidelog.client.calls import Calls, now_ms
from tidelog.client.options import ReaderOptions, Seq, Start, Time
from tidelog.client.reading.fetching import FetchAnswer, FetchPath, let_leave, offset_at
from tidelog.client.reading.positions import ReadPosition
from tidelog.client.records import AnyRecord, Floor, batches_of, records_of
from tidelog.client.routes import ChannelRoute
from tidelog.codecs.client_codec import CURSOR
from tidelog.errors import (
    BadMessage,
    ChannelDeleted,
    ChannelRecreated,
    ClientClosed,
    LogError,
    OffsetOutOfRange,
    OffsetTrimmed,
)

if TYPE_CHECKING:
    import pyarrow as pa


class Reader:
    """Made by `Client.reader`. Iterate over it for records, over `batches()` for Arrow batches, over `blocks()` for
    verified blocks."""

    def __init__(self, calls: Calls, *, channel: str, options: ReaderOptions) -> None:
        self._calls = calls
        self.channel = channel
        self._options = options
        self._path = FetchPath(calls, channel=channel, nearest=options.nearest, bytes_max=options.bytes_max)
        self._position: ReadPosition | None = None
        self._pinned_id = options.channel_id
        """The channel that is read, once it is known (RR3)."""
        self.restarts = 0
        """How often the channel was created anew and reading began again in it."""
        self._stop: int | None = None
        """Where a reader that does not follow ends."""
        self._floor: Floor = options.start if isinstance(options.start, Time | Seq) else None
        self._ahead: asyncio.Task[FetchAnswer] | None = None
        self._kept: tuple[FetchAnswer, int] | None = None
        """An answer that has not been taken yet, and its end."""
        self._records: list[AnyRecord] = []
        self._next = 0
        self._given_end = 0
        """Everything below was given to the caller."""
        self._done_end: int | None = None
        """Everything below was given, and the caller came back for more (RR2)."""
        self._saved_end: int | None = None
        self._saved_ms = 0
        self.is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(is_done=error is None)

    # --- iterating ---------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyRecord:
        index = self._next
        records = self._records
        if index < len(records):
            self._next = index + 1
            return records[index]
        if not await self.fill():
            raise StopAsyncIteration
        return self.give()

    async def fill(self) -> int:
        """Get records to `give`; returns how many, none at the end of a reader that does not follow."""
        if self._next >= len(self._records):
            self._records, self._next = await self._read(), 0
        return len(self._records) - self._next

    def give(self) -> AnyRecord:
        """Give the next of the records that `fill` found."""
        record = self._records[self._next]
        self._next += 1
        return record

    async def read(self) -> list[AnyRecord]:
        """The next records, as many as one answer brought; none at the end of a reader that does not follow."""
        await self.fill()
        records, self._records = self._records[self._next :], []
        self._next = 0
        return records

    async def _read(self) -> list[AnyRecord]:
        while (answer := await self._answer()) is not None:
            start = answer.start
            found: list[AnyRecord] = []
            for block in answer.blocks:
                found += records_of(block, start=start, floor=self._floor)
            if self._stop is not None and found and found[-1].offset >= self._stop:
                found = [record for record in found if record.offset < self._stop]
            if found:
                return found
        return []

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Whole Arrow batches: the schemas are those of `tidelog.blocks.arrow`."""
        while (answer := await self._answer()) is not None:
            for batch in batches_of(answer.blocks, start=answer.start, floor=self._floor):
                if self._stop is not None and batch.num_rows and batch["offset"][-1].as_py() >= self._stop:
                    kept = sum(1 for offset in batch["offset"].to_pylist() if offset < self._stop)
                    batch = batch.slice(0, kept)
                if batch.num_rows:
                    yield batch

    async def blocks(self) -> AsyncIterator[Block]:
        """Verified blocks, control blocks too; the first and the last may reach beyond the requested range."""
        while (answer := await self._answer()) is not None:
            for block in answer.blocks:
                yield block

    @property
    def offset(self) -> int | None:
        """The offset of the next record that `read` or an iteration would give; None before the first."""
        if self._position is None:
            return None
        if self._next < len(self._records):
            return self._records[self._next].offset
        return self._given_end

    async def close(self, *, is_done: bool = True) -> None:
        """Stop reading. The cursor is saved: before the last record given, if the caller is not done with it."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        self._path.close()
        if not self._calls.is_closed and self._options.cursor is not None and self._position is not None:
            end = self.offset if is_done else self._before_last()
            if end is not None:
                try:
                    await self.save(end)
                except (ChannelDeleted, ChannelRecreated):
                    return  # the cursor went with its channel

    def _before_last(self) -> int | None:
        """The end of the records that the caller is certainly done with (RR2)."""
        return self._records[self._next - 1].offset if self._next else self._done_end

    # --- answers -----------------------------------------------------------------------------------

    async def _answer(self) -> FetchAnswer | None:
        """The next answer with blocks; None at the end."""
        if self.is_closed or self._calls.is_closed:
            raise ClientClosed(what=f"the reader of {self.channel!r}")
        while True:
            try:
                return await self._next_answer()
            except ChannelRecreated:
                if self._options.on_recreate != "restart" or self._options.channel_id is not None:
                    raise
                self._restart()

    def _restart(self) -> None:
        """The name belongs to another channel: start at its beginning, whatever the start was (RR3)."""
        self.restarts += 1
        self._path.close()
        options = self._options
        self._path = FetchPath(self._calls, channel=self.channel, nearest=options.nearest, bytes_max=options.bytes_max)
        self._position = self._pinned_id = self._stop = self._done_end = self._saved_end = None
        self._floor = None

    async def _next_answer(self) -> FetchAnswer | None:
        position = self._position or await self._begin()
        if self._position is None:
            self._position = position
            self._given_end = position.offset
        else:
            await self._came_back()
        if self._kept is not None:
            return self._take_kept()
        while self._stop is None or self._given_end < self._stop:
            # A caller that stops waiting leaves the answer to the next call: the position may have moved already.
            task = self._ahead or self._fetch_ahead(position)
            try:
                answer = await asyncio.shield(task)
            except LogError:
                self._ahead = None
                raise
            self._ahead = None
            if answer.blocks:
                self._kept = answer, position.offset
                if self._stop is None or position.offset < self._stop:
                    self._fetch_ahead(position)
                    await let_leave()
                return self._take_kept()
            self._given_end = position.offset
        return None

    def _take_kept(self) -> FetchAnswer:
        """The answer that was put aside before a wait, in case the caller stopped waiting."""
        assert self._kept is not None
        (answer, self._given_end), self._kept = self._kept, None
        return answer

    def _fetch_ahead(self, position: ReadPosition) -> asyncio.Task[FetchAnswer]:
        fetch = self._path.fetch(
            position,
            wait_ms=self._calls.options.fetch_wait_ms,
            skips_damage=self._options.on_trim == "skip",
        )
        # Kept in `_ahead`, and cancelled by `close`.
        self._ahead = asyncio.get_running_loop().create_task(fetch)
        self._ahead.add_done_callback(_look)
        return self._ahead

    async def _begin(self) -> ReadPosition:
        """The start: the cursor if there is one, else the options' start."""
        while True:
            try:
                saved = None
                if self._options.cursor is not None:
                    answer = await self._cursor("get", {})
                    saved = offset_or_none(answer)
                position, committed_end = await position_at(
                    self._calls,
                    self.channel,
                    saved=saved,
                    start="earliest" if self.restarts else self._options.start,
                    on_trim=self._options.on_trim,
                    channel_id=self._pinned_id,
                )
                break
            except ChannelRecreated:
                if self._options.channel_id is not None:
                    raise
                self._pinned_id = None  # nothing was read yet: the name means the new one
        self._pinned_id = position.channel_id
        if not self._options.follow:
            self._stop = committed_end
        return position

    # --- the cursor --------------------------------------------------------------------------------

    async def _came_back(self) -> None:
        """The caller is done with everything it was given so far."""
        self._done_end = self._given_end
        if self._options.cursor is None or self._done_end == self._saved_end:
            return
        now = now_ms()
        if now - self._saved_ms >= self._options.cursor_interval_ms:
            self._saved_ms = now
            await self.save(self._done_end)

    async def save(self, offset: int | None = None) -> None:
        """Save the cursor, at `offset` or at the reader's position: reading starts there after a restart."""
        end = self.offset if offset is None else offset
        if self._options.cursor is not None and end is not None and end != self._saved_end:
            await self._cursor("set", {"offset": end})
            self._saved_end = end

    async def _cursor(self, op: str, more: dict[str, Any]) -> dict[str, Any]:
        name = self._options.cursor

        def request(route: ChannelRoute) -> dict[str, Any]:
            self._pinned_id = route.channel_id
            return {"channel_id": route.channel_id, "op": op, "name": name, **more}

        return await self._calls.ask_leader(
            self.channel,
            CURSOR,
            request,
            what=f"cursor {name!r} of {self.channel!r}",
            channel_id=self._pinned_id,
        )


def _look(task: asyncio.Task[FetchAnswer]) -> None:
    """Retrieve the error of an answer that is not awaited any more, so that the loop does not report it."""
    if not task.cancelled():
        task.exception()


async def position_at(
    calls: Calls, channel: str, *, saved: int | None, start: Start, on_trim: str, channel_id: int | None = None
) -> tuple[ReadPosition, int]:
    """The start of reading: a saved offset, else `start`; and the committed end."""
    found = await offset_at(calls, channel, "latest" if saved is not None else start, channel_id=channel_id)
    offset = found["offset"] if saved is None else saved
    if isinstance(start, int) and saved is None:
        offset = start
    position = ReadPosition(channel=channel, channel_id=found["channel_id"], offset=offset, on_trim=on_trim)
    position.leader_epoch = found["leader_epoch"]
    position.committed_end = found["committed_end"]
    if offset > found["committed_end"]:
        raise OffsetOutOfRange(offset=offset, log_start=found["log_start"], log_end=found["committed_end"])
    if offset < found["log_start"]:
        if on_trim == "raise":
            raise OffsetTrimmed(channel=channel, offset=offset, log_start=found["log_start"])
        position.skipped = found["log_start"] - offset
        position.offset = found["log_start"]
    return position, found["committed_end"]


def offset_or_none(answer: dict[str, Any]) -> int | None:
    """The offset of a cursor in a node's answer."""
    offset = answer.get("offset")
    if offset is not None and type(offset) is not int:
        raise BadMessage(problem="a cursor stands at what is no offset")
    return offset
