"""A producer: takes records, sends them as blocks to the channel's leader, and follows the leader when it moves.

The shell around `Gathering` and `ProducerCore`. One task finds the leader and opens the producer; everything else
happens synchronously in the call or the callback.

What a caller must keep: use it from the client's loop; `close` it (or the client) at the end.

PP1  Every record is answered once, in time: with an offset, or a typed error.
PP2  Records are in the log in the order of `send`, each once, whatever messages are lost or repeated.
PP3  Memory is bounded: beyond `in_flight_max_bytes` `send` raises `QueueFull` and takes nothing.
PP4  If the channel is deleted, waiting records are refused, or sent to the channel that was created in its place (CP5);
     the producer goes on. A producer with a channel's id ends instead.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from tidelog.blocks.messages import Message
from tidelog.client.calls import Calls, now_ms
from tidelog.client.options import ACKS, ProducerOptions
from tidelog.client.producing.batching import RECORD_BYTES, Gathering, RecordBatch, row_bytes
from tidelog.client.producing.core import Fate, Flight, ProducerCore
from tidelog.client.producing.receipts import ManyReceipt, Receipt
from tidelog.client.producing.record_input import checked_row
from tidelog.client.routes import ChannelRoute
from tidelog.codecs.client_codec import CLOSE_PRODUCER, OPEN_PRODUCER, PRODUCE, encode_json, encode_produce
from tidelog.core.client_messages import Produce, Produced
from tidelog.errors import (
    BadMessage,
    BodyTooLarge,
    ChannelDeleted,
    ChannelPaused,
    ChannelRecreated,
    ClientClosed,
    HandlerFailed,
    InvalidRecord,
    LeadershipLost,
    LinkBusy,
    LinkClosed,
    LogError,
    NotChannelLeader,
    QueueFull,
    UnknownChannel,
)
from tidelog.transports.link.frames import SMALL_BYTES_MAX
from tidelog.transports.link.link import Link

if TYPE_CHECKING:
    import pyarrow as pa

_TICK_S: Final = 0.05
_NUMBER_BYTES: Final = 8
_FAILED_MAX: Final = 256
_CLOSE_MS: Final = 2_000


class Producer:
    """Made by `Client.producer`."""

    def __init__(self, calls: Calls, *, channel: str, options: ProducerOptions, first_token: int) -> None:
        self._calls = calls
        self.channel = channel
        self.name = options.name or f"auto-{secrets.token_hex(12)}"
        self._options = options
        self._ack = ACKS[options.acks]
        self._timeout_ms = options.timeout_ms or calls.options.timeout_ms
        self._gathering = Gathering(
            batch_bytes_max=options.batch_bytes_max, batch_records_max=options.batch_records_max
        )
        self._core = ProducerCore(
            channel=channel,
            requests_max=options.requests_max,
            timeout_ms=self._timeout_ms,
            backoff=calls.backoff(),
            first_token=first_token,
            outlasts_pause=options.on_paused is not None,
        )
        self._loop = asyncio.get_running_loop()
        self._in_flight_bytes = 0
        """Bytes that are gathered and unanswered (PP3)."""
        self._channel_id = options.channel_id
        """The channel that the identity belongs to."""
        self._route: ChannelRoute | None = None
        self._link: Link | None = None
        self._is_stale = False
        """Whether the known route of the channel has failed."""
        self._work = asyncio.Event()
        self._room: asyncio.Event | None = None
        self._idle: asyncio.Event | None = None
        self._pump_is_due = False
        self._tick: asyncio.TimerHandle | None = None
        self._linger_until_ms: int | None = None
        self._failed: list[RecordBatch] = []
        """The first error since the last `flush` that no caller is known to have seen."""
        self._task: asyncio.Task[None] | None = None
        self.is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- sending -----------------------------------------------------------------------------------

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time_us: int | None = None,
        *,
        expected_offset: int | None = None,
    ) -> Receipt:
        """Take one record; it is sent in the background. Raises `QueueFull` where there is no room (see `send_room`).

        With `expected_offset` it becomes a block of its own, which is taken only at that offset (`OffsetConflict`).
        """
        if type(value) is not bytes or key is not None or headers or time_us is not None or expected_offset is not None:
            return self._send_row(value, key, headers, time_us, expected_offset)
        size = len(value) + RECORD_BYTES
        if self._in_flight_bytes + size > self._options.in_flight_max_bytes or self._core.fatal is not None:
            self._require_room(size)
        self._in_flight_bytes += size
        joined = self._gathering.join(value, size)
        if joined is not None:
            return Receipt(joined, len(joined.values) - 1)
        try:
            batch, index = self._gathering.add_value(
                value, deadline_ms=now_ms() + self._timeout_ms, time_us=time.time_ns() // 1000
            )
        except LogError:
            self._in_flight_bytes -= size
            raise
        if not self._pump_is_due:
            self._pump_soon()
        return Receipt(batch, index)

    def send_many(self, values: Iterable[bytes], *, expected_offset: int | None = None) -> ManyReceipt:
        """Take many values at once, the cheapest way in: all of them, or none with an error.

        With `expected_offset` they become one block, which is taken only at that offset (`OffsetConflict`).
        """
        listed = values if isinstance(values, list) else list(values)
        if not all(type(value) is bytes for value in listed):
            raise InvalidRecord(problem="values are bytes; use `send` for keys, headers and records without a value")
        size = sum(map(len, listed)) + RECORD_BYTES * len(listed)
        self._require_room(size)
        if not listed:
            return ManyReceipt([])
        deadline_ms, time_us = now_ms() + self._timeout_ms, time.time_ns() // 1000
        if expected_offset is None:
            parts = self._gathering.add_values(listed, deadline_ms=deadline_ms, time_us=time_us)
        else:
            batch = self._gathering.add_alone(
                listed, expected_offset=expected_offset, deadline_ms=deadline_ms, time_us=time_us
            )
            parts = [(batch, range(len(listed)))]
        self._in_flight_bytes += size
        self._pump_soon()
        return ManyReceipt(parts)

    def send_rows(self, rows: Sequence[Message]) -> ManyReceipt:
        """Take many records with their times, keys and headers at once: all of them, or none with an error. The caller
        guarantees what `send` checks: bytes, and pairs of text and bytes."""
        size = sum(map(row_bytes, rows))
        self._require_room(size)
        if not rows:
            return ManyReceipt([])
        parts = self._gathering.add_rows(rows, deadline_ms=now_ms() + self._timeout_ms)
        self._in_flight_bytes += size
        self._pump_soon()
        return ManyReceipt(parts)

    def send_arrow(self, batch: pa.RecordBatch) -> ManyReceipt:
        """Take a batch as columns: `value`, and `key`, `time`, `headers` if there are."""
        from tidelog.client.producing.arrow_input import columns_of

        pieces = columns_of(batch, bytes_max=self._options.batch_bytes_max, now_us=time.time_ns() // 1000)
        size = sum(piece_bytes for _, piece_bytes in pieces)
        self._require_room(size)
        deadline_ms = now_ms() + self._timeout_ms
        parts = []
        for columns, piece_bytes in pieces:
            made = self._gathering.add_columns(columns, piece_bytes, deadline_ms=deadline_ms)
            parts.append((made, range(len(columns))))
        self._in_flight_bytes += size
        self._pump_soon()
        return ManyReceipt(parts)

    async def send_room(self, size: int = 0) -> None:
        """Wait until `send` takes `size` more bytes. Raises the error with which the producer ended, if it did."""
        size = min(size + RECORD_BYTES, self._options.in_flight_max_bytes)
        while True:
            self._require_alive()
            if self._in_flight_bytes + size <= self._options.in_flight_max_bytes:
                return
            self._room = self._room or asyncio.Event()
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until everything sent so far is answered; raises the first error that no receipt has shown."""
        self._linger_until_ms = 0
        self._pump_soon()
        while self._in_flight_bytes or len(self._core) or len(self._gathering):
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()
        failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.is_seen and batch.error is not None:
                raise batch.error

    async def close(self) -> None:
        """Send what was taken, within its time, then end; raises the same errors as `flush`."""
        if not self.is_closed:
            try:
                await self.flush()
                await self._give_back()
            finally:
                self.abort()

    async def _give_back(self) -> None:
        """A producer with a random name is not used again: it is removed from the catalog. If no node answers, the
        channel's leader closes it after a while."""
        identity = self._core.identity
        if self._options.name is not None or not identity or self._calls.is_closed or self._core.fatal is not None:
            return
        numbers = (identity[:_NUMBER_BYTES], identity[_NUMBER_BYTES:])
        producer_id, epoch = (int.from_bytes(number, "little") for number in numbers)
        request = {"channel": self.channel, "name": "", "producer_id": producer_id, "epoch": epoch}
        try:
            await self._calls.ask(
                CLOSE_PRODUCER,
                request,
                what=f"producer {self.name!r} to close",
                timeout_ms=min(_CLOSE_MS, self._timeout_ms),
                is_repeatable=False,
            )
        except LogError:
            return  # everything it wrote is answered; see above

    def abort(self) -> None:
        """End now: records without an answer end with an error."""
        if self.is_closed:
            return
        self.is_closed = True
        closed = ClientClosed(what=f"the producer of {self.channel!r}")
        self._finish(self._core.end(closed))
        self._drop_gathered(closed)
        if self._task is not None:
            self._task.cancel()
        if self._tick is not None:
            self._tick.cancel()
        self._wake_waiters()

    def _send_row(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        time_us: int | None,
        expected_offset: int | None,
    ) -> Receipt:
        row = checked_row(value, key, headers, time.time_ns() // 1000 if time_us is None else time_us)
        size = row_bytes(row)
        self._require_room(size)
        deadline_ms = now_ms() + self._timeout_ms
        if expected_offset is None:
            batch, index = self._gathering.add_row(row, deadline_ms=deadline_ms)
        else:
            batch = self._gathering.add_row_alone(row, expected_offset=expected_offset, deadline_ms=deadline_ms)
            index = 0
        self._in_flight_bytes += size
        self._pump_soon()
        return Receipt(batch, index)

    def _require_alive(self) -> None:
        if self.is_closed or self._calls.is_closed:
            raise ClientClosed(what=f"the producer of {self.channel!r}")
        if self._core.fatal is not None:
            raise self._core.fatal

    def _require_room(self, size: int) -> None:
        self._require_alive()
        bytes_max = self._options.in_flight_max_bytes
        # A call that is larger than the limit is taken when nothing else waits: otherwise it could never be sent.
        if self._in_flight_bytes and self._in_flight_bytes + size > bytes_max:
            raise QueueFull(waiting_bytes=self._in_flight_bytes, bytes_max=bytes_max)

    # --- the way out -------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)
            if self._tick is None:
                self._tick = self._loop.call_later(_TICK_S, self._on_tick)
            if self._task is None:
                self._task = self._loop.create_task(self._keep_way())
                self._task.add_done_callback(self._way_ended)

    def _pump(self) -> None:
        """Send every block that may be sent now."""
        self._pump_is_due = False
        if self.is_closed:
            return
        now = now_ms()
        core, link = self._core, self._link
        if core.wants_identity or core.wants_route or link is None:
            self._work.set()
            return
        group: list[Flight] = []
        size = 0
        while True:
            flight = core.next_send(now) or self._cut(now)
            if group and (flight is None or size + flight.size > SMALL_BYTES_MAX):
                try:
                    self._post(link, group)
                except LinkBusy:
                    for unsent in reversed(group if flight is None else [*group, flight]):
                        core.not_sent(unsent, now)
                    return
                except (LinkClosed, BodyTooLarge) as error:
                    self._lose_way(error)
                    return
                group, size = [], 0
            if flight is None:
                return
            group.append(flight)
            size += flight.size

    def _cut(self, now: int) -> Flight | None:
        """The next block out of the gathered records, if it may be sent."""
        core, gathering = self._core, self._gathering
        while (batch := gathering.first()) is not None:
            if not core.may_cut or not core.has_room(batch.bytes, now) or self._lingers(now):
                return None
            gathering.take()
            try:
                made = batch.encode(base_seq=core.next_seq, producer=core.identity, codec=self._options.codec)
            except LogError as error:
                self._settle(batch, 0, error)
                continue
            core.add(batch, made)
            return core.next_send(now)
        return None

    def _lingers(self, now: int) -> bool:
        """Whether the open batch still waits for more records."""
        if not self._options.linger_ms or self._gathering.is_ripe():
            self._linger_until_ms = None
            return False
        if self._linger_until_ms is None:
            self._linger_until_ms = now + self._options.linger_ms
            self._loop.call_later(self._options.linger_ms / 1000, self._pump)
        if now < self._linger_until_ms:
            return True
        self._linger_until_ms = None
        return False

    def _post(self, link: Link, flights: list[Flight]) -> None:
        """Send small blocks together in one body, a large one in its own."""
        assert self._route is not None
        route, ack = self._route, self._ack
        body = encode_produce(
            [
                Produce(
                    token=flight.token,
                    channel_id=route.channel_id,
                    leader_epoch=route.leader_epoch,
                    ack=ack,
                    expected_offset=flight.batch.expected_offset,
                    block=flight.made.buffers,
                )
                for flight in flights
            ]
        )
        if len(flights) > 1:
            link.post(PRODUCE, b"".join(body))  # small ones are joined in any case, and plain bytes cost the link least
        else:
            link.post(PRODUCE, cast(list[bytes | memoryview], body))

    # --- what comes back ---------------------------------------------------------------------------

    def answered(self, answer: Produced) -> None:
        """A PRODUCED with a token of this producer."""
        if isinstance(answer.error, NotChannelLeader):
            self._is_stale = not self._calls.routes.moved(self.channel, answer.error)
        elif isinstance(answer.error, LeadershipLost | UnknownChannel):
            self._is_stale = True
        elif isinstance(answer.error, ChannelDeleted):
            self._calls.routes.deleted(self.channel, answer.error.channel_id)
            self._is_stale = True
        fates = self._core.answered(answer, now_ms())
        if fates:
            self._finish(fates)
        elif isinstance(answer.error, ChannelPaused) and self._options.on_paused is not None:
            self._options.on_paused()
        if not self._pump_is_due:
            self._pump_soon()

    def link_down(self, link: Link, reason: str) -> None:
        if link is self._link:
            self._lose_way(LinkClosed(peer=link.peer, reason=reason))

    def _lose_way(self, problem: LogError) -> None:
        self._link = None
        self._is_stale = True
        self._core.route_lost()
        self._core.route_problem = problem
        self._work.set()

    def _finish(self, fates: list[Fate]) -> None:
        for fate in fates:
            self._settle(fate.flight.batch, fate.first_offset, fate.error)

    def _settle(self, batch: RecordBatch, first_offset: int, error: LogError | None) -> None:
        self._in_flight_bytes -= batch.bytes
        batch.finish(first_offset, error)
        if error is not None:
            self._remember(batch)
        if self._core.fatal is not None:
            self._drop_gathered(self._core.fatal)
        self._wake_waiters()

    def _remember(self, batch: RecordBatch) -> None:
        if len(self._failed) >= _FAILED_MAX:
            self._failed = [one for one in self._failed if not one.is_seen][: _FAILED_MAX - 1]
        self._failed.append(batch)

    def _drop_gathered(self, error: LogError) -> None:
        while len(self._gathering):
            batch = self._gathering.take()
            self._in_flight_bytes -= batch.bytes
            batch.finish(0, error)
            self._remember(batch)

    def _wake_waiters(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None
        if self._idle is not None and not self._in_flight_bytes:
            self._idle.set()
            self._idle = None

    def _on_tick(self) -> None:
        """Time passes: late blocks get their error, blocks that may be retried are sent."""
        self._tick = None
        if self.is_closed:
            return
        now = now_ms()
        self._finish(self._core.wake(now))
        while (batch := self._gathering.first()) is not None and batch.deadline_ms <= now:
            self._gathering.take()
            self._settle(batch, 0, self._core.never_sent())
        if len(self._core) or len(self._gathering):
            self._tick = self._loop.call_later(_TICK_S, self._on_tick)
            oldest_ms = self._core.oldest_sent_ms()
            if oldest_ms is not None and now - oldest_ms >= self._calls.options.suspect_ms:
                self._work.set()
            self._pump()

    # --- the way to the leader ---------------------------------------------------------------------

    async def _keep_way(self) -> None:
        """Open the producer and find the leader whenever that is needed, until the producer ends."""
        backoff = self._calls.backoff()
        while True:
            await self._work.wait()
            self._work.clear()
            core = self._core
            try:
                if core.wants_identity:
                    await self._open()
                if core.wants_route or self._link is None:
                    await self._find_leader()
                elif core.oldest_sent_ms() is not None:
                    await self._suspect()
            except LogError as error:
                core.route_problem = error
                if isinstance(error, UnknownChannel) and self._channel_id is not None:
                    error = ChannelDeleted(channel_id=self._channel_id)
                    if self._options.channel_id is None:
                        self._refuse_waiting(error)  # PP4
                        continue
                if not error.retriable:
                    self._end(error)
                    return
                self._is_stale = True
                await asyncio.sleep(backoff.failed() / 1000)
                if len(core) or len(self._gathering):
                    self._work.set()
            else:
                backoff.succeeded()
                self._pump_soon()

    def _way_ended(self, task: asyncio.Task[None]) -> None:
        """A bug in us must not look like a slow cluster."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(HandlerFailed(kind=OPEN_PRODUCER, problem=repr(error)))

    def _end(self, error: LogError) -> None:
        """There will be no route: everything that waits gets the error."""
        if isinstance(error, UnknownChannel | ChannelDeleted | ChannelRecreated):
            self._calls.routes.forget(self.channel)
        self._finish(self._core.end(error))
        self._drop_gathered(error)
        self._wake_waiters()

    def _refuse_waiting(self, error: LogError) -> None:
        """The channel is gone; the next `send` looks for one of its name again."""
        self._calls.routes.forget(self.channel)
        self._is_stale = True
        self._finish(self._core.refuse_waiting(error))
        self._drop_gathered(error)
        self._wake_waiters()

    def _go_on_in(self, channel_id: int) -> None:
        """The present channel; if it is another than before, nothing of the old one counts (PP4)."""
        known, self._channel_id = self._channel_id, channel_id
        if known is None or known == channel_id:
            return
        error = ChannelRecreated(channel=self.channel, expected_id=known, found_id=channel_id)
        if self._options.channel_id is not None:
            raise error
        self._calls.routes.deleted(self.channel, known)
        self._finish(self._core.recreated(error))
        for batch in self._gathering.take_conditional():
            self._settle(batch, 0, error)

    async def _open(self) -> None:
        """Open the producer; doing it twice only costs an epoch."""
        options = self._calls.options
        retry = self._calls.retry(f"producer {self.name!r} to open", timeout_ms=options.commit_ms)
        request = encode_json({"channel": self.channel, "name": self.name})
        answer = await self._calls.ask_once(OPEN_PRODUCER, request, retry, avoid=set(), attempt_ms=options.commit_ms)
        try:
            numbers = [int(answer[name]).to_bytes(_NUMBER_BYTES, "little") for name in ("producer_id", "epoch")]
            channel_id = int(answer["channel_id"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadMessage(problem=f"an opened producer cannot be read: {error!r}") from error
        self._go_on_in(channel_id)
        self._core.opened(b"".join(numbers))

    async def _find_leader(self) -> None:
        retry = self._calls.retry(f"the leader of {self.channel!r}")
        known = self._route
        avoid = {known.leader} if self._is_stale and known is not None and known.leader else set()
        route = await self._calls.route(self.channel, retry, is_fresh=self._is_stale, avoid=avoid)
        await self._go_to(route)

    async def _suspect(self) -> None:
        """No answer for long: check whether the leader still leads."""
        assert self._route is not None
        retry = self._calls.retry(f"the leader of {self.channel!r}", timeout_ms=self._calls.options.attempt_ms)
        avoid = {self._route.leader} if self._route.leader else set()
        route = await self._calls.route(self.channel, retry, is_fresh=True, avoid=avoid)
        if route.channel_id != self._route.channel_id or route.leader_epoch > self._route.leader_epoch:
            await self._go_to(route)
        else:
            await asyncio.sleep(self._calls.options.poll_ms / 1000)

    async def _go_to(self, route: ChannelRoute) -> None:
        assert route.leader is not None
        if self._channel_id is not None and route.channel_id < self._channel_id:
            self._calls.require_channel(self.channel, route, self._channel_id)  # an outdated description: look again
        retry = self._calls.retry(f"a link to {route.leader}")
        link = await self._calls.within(retry, self._calls.links.link_to(route.leader))
        # From here on without an await: the old route is given up before the new one is used (CP1).
        if not self._core.wants_route or self._link is not link or self._route != route:
            self._core.route_lost()
        self._go_on_in(route.channel_id)
        self._link, self._route = link, route
        self._is_stale = False
        self._core.route_found()
