"""One live link between two nodes: the asyncio shell around `LinkMux`.

Everything posted in one turn of the event loop leaves in one write; everything that arrived is delivered without a task
per message. A link takes at most `turn_ms_max` of the loop at a time, so a flood on one does not starve the others.
What a caller must keep: use it from the loop it was opened on; do not block in `on_message`.

LCO1  `post` and `request` never wait for room: `LinkBusy` means that there is none, and nothing was sent.
LCO2  A request ends within its time: answer, refusal, `WaitTimedOut` or `LinkClosed`. If its caller stops waiting, the
      peer's handler is cancelled.
LCO3  A link ends once, for one reason; everything that waits on it then fails with `LinkClosed`.
LCO4  A handler that raises hurts its own request only. A message handler that raises another error than a `LogError`
      ends the link: that is a bug, and continuing would hide it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.errors import HandlerFailed, LinkClosed, LogError, WaitTimedOut
from tidelog.pki.identity import Kind
from tidelog.transports.link.events import (
    Answered,
    Arrived,
    Asked,
    Cancelled,
    Draining,
    Event,
    Failed,
    LinkOptions,
    LinkRefused,
)
from tidelog.transports.link.frames import Buffers
from tidelog.transports.link.hello import LinkHello, as_typed
from tidelog.transports.link.mux import LinkMux
from tidelog.transports.link.socket import LinkSocket, words

DRAIN_MS: Final = 1_000
_CHECK_MS_MAX: Final = 250
_CHECK_MS_MIN: Final = 10
_REVOKED_CHECK_US: Final = 10_000_000
_DRAINED: Final = "it was drained and closed"


class LinkHandler(Protocol):
    """How a node handles its peers' messages and requests."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        """A one-way message. Runs in the event loop and must be quick."""

    def on_turn(self) -> None:
        """Everything that had arrived was delivered: its effects may be sent now, without another turn of the loop."""

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        """Answer, or raise a `LogError`, which the caller gets. Cancelled when the caller no longer waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    """One-way messages."""
    messages_received: int
    messages_refused: int
    """One-way messages that the handler refused with a typed error."""
    requests_sent: int
    requests_received: int
    calls_open: int
    """Own requests without an answer."""
    requests_running: int
    queue_bytes: int
    """Bytes waiting to be sent, large bodies included."""
    held_bytes: int
    """Bytes of large bodies that arrive or are being worked on."""
    rtt_ms: float | None
    """The round trip of the last ping; None before the first."""
    bulk_bytes_per_s: float
    """The throughput of large bodies that arrived lately; 0 before there were enough to tell."""
    bulk_peak_bytes_per_s: float


class Link:
    """Made by `dial_link` and `LinkListener`; open until `is_closed`."""

    def __init__(
        self,
        connection: LinkSocket,
        *,
        mux: LinkMux,
        theirs: LinkHello,
        handler: LinkHandler,
        options: LinkOptions,
        is_dialler: bool,
        recheck: Callable[[], None],
        log: Callable[[str], None],
        early: list[Event],
    ) -> None:
        self.peer = theirs.identity.node
        self.peer_cluster = theirs.identity.cluster
        self.peer_incarnation = theirs.identity.incarnation
        self.peer_process = theirs.process
        self.peer_kind: Kind = theirs.kind
        self.is_dialler = is_dialler
        """Whether this side dialled."""
        self.on_close: list[Callable[[Link, str], None]] = []
        """Called once, with the reason, when the link has ended."""
        self.close_reason: str | None = None
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._descriptor = connection.fileno()
        self._mux = mux
        self._handler = handler
        self._options = options
        self._recheck = recheck
        self._log = log
        self._early = early
        """Process what came together with the end of the handshake."""
        self._futures: dict[int, asyncio.Future[memoryview]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._writing: list[memoryview] = []
        self._closed = asyncio.Event()
        self._room: asyncio.Event | None = None
        self._is_blocked = False
        self._is_reading = False
        self._flush_is_due = False
        self._read_is_due = False
        self._bytes_sent = self._bytes_received = 0
        self._requests_sent = self._requests_received = self._messages_refused = 0
        self._rechecked_us = _now_us()
        spans_ms = (options.ping_interval_ms, options.silence_max_ms, options.stall_max_ms)
        self._check_s = max(_CHECK_MS_MIN, min(_CHECK_MS_MAX, *(span // 4 for span in spans_ms))) / 1000
        self._timer = self._loop.call_later(self._check_s, self._check)

    def start(self) -> None:
        """Begin to read, after all callbacks about the new link."""
        self._set_reading(True)
        early, self._early = self._early, []
        self._dispatch(early)
        self._handler.on_turn()
        self._after_turn()
        if self._connection.has_pending:
            self._read_soon()

    def __repr__(self) -> str:
        return f"<Link to {self.peer}{' closed' if self.is_closed else ''}>"

    @property
    def is_closed(self) -> bool:
        return self.close_reason is not None

    @property
    def is_usable(self) -> bool:
        """Whether a new message may be sent on it."""
        return self.close_reason is None and not self._mux.is_draining

    # --- what callers do ---------------------------------------------------------------------------

    def post(self, kind: int, body: Buffers) -> None:
        """Send one way, or raise `LinkBusy` or `LinkClosed`. Small messages arrive in order, if the link lasts."""
        if self.close_reason is not None:
            raise LinkClosed(peer=self.peer, reason=self.close_reason)
        self._mux.post(self.peer, kind, body)
        if not self._flush_is_due and not self._is_blocked:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def put(self, kind: int, body: Buffers) -> None:
        """Like `post`, for a caller that calls `flush` in the same turn: it saves a turn of the loop."""
        if self.close_reason is not None:
            raise LinkClosed(peer=self.peer, reason=self.close_reason)
        self._mux.post(self.peer, kind, body)

    def flush(self) -> None:
        """Send what was posted now; without this call it is sent after this turn of the loop."""
        if not self._is_blocked and self._mux.has_output:
            self._flush()

    async def request(self, kind: int, body: Buffers, *, timeout_ms: int) -> memoryview:
        """The peer's answer. Raises `PeerRefused`, `WaitTimedOut`, `LinkBusy`, `LinkClosed` or `BodyTooLarge`."""
        if self.close_reason is not None:
            raise LinkClosed(peer=self.peer, reason=self.close_reason)
        call = self._mux.ask(self.peer, kind, body)
        self._requests_sent += 1
        future: asyncio.Future[memoryview] = self._loop.create_future()
        self._futures[call] = future
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, future, kind, timeout_ms)
        self._flush_soon()
        try:
            return await future
        finally:
            timer.cancel()
            if self._futures.pop(call, None) is not None:
                self._mux.cancel(call)
                self._flush_soon()

    async def wait_room(self) -> None:
        """Wait until half of the queue of small messages is free. Raises `LinkClosed`."""
        limit = self._options.queue_bytes_max // 2
        await self._wait_until(lambda: self._mux.small_bytes <= limit)

    async def wait_bulk_room(self, bytes_max: int) -> None:
        """Wait until at most so many bytes of large bodies wait to be sent. Raises `LinkClosed`."""
        await self._wait_until(lambda: self._mux.bulk_bytes <= bytes_max)

    async def _wait_until(self, has_room: Callable[[], bool]) -> None:
        while not has_room():
            if self.close_reason is not None:
                raise LinkClosed(peer=self.peer, reason=self.close_reason)
            self._room = self._room or asyncio.Event()
            await self._room.wait()

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Start nothing new, let requests in flight end, then close."""
        if self.close_reason is None:
            self._mux.drain()
            self._flush_soon()
            try:
                async with asyncio.timeout(drain_ms / 1000):
                    await self._closed.wait()
            except TimeoutError:
                pass  # what is still in flight fails with the link
            finally:
                self.abort("it was closed here")

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def abort(self, reason: str) -> None:
        """Close now (LCO3)."""
        if self.close_reason is not None:
            return
        self.close_reason = reason
        self._timer.cancel()
        self._set_reading(False)
        self._loop.remove_writer(self._descriptor)
        self._connection.close()
        self._mux.close()
        self._writing.clear()
        for task in self._tasks.values():
            task.cancel()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(LinkClosed(peer=self.peer, reason=reason))
        self._closed.set()
        self._wake_waiters()
        for callback in self.on_close:
            callback(self, reason)

    def statistics(self) -> LinkStatistics:
        mux = self._mux
        return LinkStatistics(
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            messages_sent=mux.messages_sent,
            messages_received=mux.messages_received,
            messages_refused=self._messages_refused,
            requests_sent=self._requests_sent,
            requests_received=self._requests_received,
            calls_open=mux.calls,
            requests_running=mux.running,
            queue_bytes=mux.queued_bytes + sum(map(len, self._writing)),
            held_bytes=mux.held_bytes,
            rtt_ms=None if mux.rtt_us is None else mux.rtt_us / 1000,
            bulk_bytes_per_s=mux.meter.bytes_per_s,
            bulk_peak_bytes_per_s=mux.meter.peak_bytes_per_s,
        )

    # --- reading -----------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._connection.send_wants_read:
            self._connection.send_wants_read = False
            self._on_writable()
        self._read()

    def _read_soon(self) -> None:
        if not self._read_is_due:
            self._read_is_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Process what has arrived, for one turn at most."""
        self._read_is_due = False
        if self.close_reason is not None or not self._is_reading:
            return
        try:
            self._take_arrived()
        except LogError as error:
            self._end_with(error)
        except OSError as error:
            self.abort(f"the connection broke: {words(error)}")
        self._handler.on_turn()  # also if the link has ended: bytes that came before count
        self._after_turn()

    def _take_arrived(self) -> None:
        mux, connection = self._mux, self._connection
        deadline_us = 0
        while True:
            room, is_direct = mux.room(), mux.is_direct
            count = connection.fill(room) if is_direct else connection.receive_into(room)
            if count is None:
                return
            if count == 0:
                self.abort(_DRAINED if mux.is_drained else "the peer closed it")
                return
            self._bytes_received += count
            now_us = _now_us()
            deadline_us = deadline_us or now_us + self._options.turn_ms_max * 1000
            events = mux.received(count, now_us)
            if events:
                self._dispatch(events)
                if self.close_reason is not None:
                    return
            if mux.has_control and not self._is_blocked and not self._writing:
                # Before the turn is over: the peer may be waiting for credit.
                self._writing = mux.next_control(now_us)
                self._write_some()
            if now_us >= deadline_us or not mux.wants_input:
                # The selector reports bytes in the kernel, and does not know of bytes that TLS holds.
                if connection.has_pending:
                    self._read_soon()
                return
            if not is_direct and not connection.has_more:
                return

    def _after_turn(self) -> None:
        """Send answers and credit that the turn produced; a peer that does not read is not read from."""
        if self.close_reason is not None:
            return
        if self._mux.has_output or self._mux.is_draining:
            self._flush_soon()
        if self._connection.read_wants_write:
            self._loop.add_writer(self._descriptor, self._on_writable)
        self._set_reading(self._mux.wants_input)

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading == self._is_reading:
            return
        self._is_reading = is_reading
        if is_reading:
            self._loop.add_reader(self._descriptor, self._on_readable)
            if self._connection.has_pending:
                self._read_soon()
        else:
            self._loop.remove_reader(self._descriptor)

    def _dispatch(self, events: list[Event]) -> None:
        on_message = self._handler.on_message
        for event in events:
            if type(event) is Arrived:
                try:
                    on_message(self, event[0], event[1])
                except LogError as error:
                    self._messages_refused += 1
                    self._log(
                        f"link message refused peer={self.peer} kind={event[0]} code={error.code} detail={str(error)!r}"
                    )
                except Exception as error:
                    self._end_with(HandlerFailed(kind=event[0], problem=repr(error)))
            else:
                self._take(event)
            if self.close_reason is not None:
                return

    def _take(self, event: Event) -> None:
        match event:
            case Answered(call, body):
                future = self._futures.pop(call, None)
                if future is not None and not future.done():
                    future.set_result(body)
            case Failed(call, refusal):
                future = self._futures.pop(call, None)
                if future is not None and not future.done():
                    future.set_exception(refusal)
            case Asked(call, kind, body):
                self._requests_received += 1
                # Kept in `_tasks`, bounded by `requests_max`, and cancelled with the link.
                self._tasks[call] = self._loop.create_task(self._serve(call, kind, body))
            case Cancelled(call):
                task = self._tasks.get(call)
                if task is not None:
                    task.cancel()
            case LinkRefused(refusal):
                self.abort(f"the peer ended it with {refusal.code}: {refusal.message}")
            case Draining():
                pass
            case _:
                raise AssertionError(f"{event} after the handshake")

    async def _serve(self, call: int, kind: int, body: memoryview) -> None:
        """One request of the peer, to its answer (LCO4)."""
        mux = self._mux
        try:
            mux.answer(call, await self._handler.on_request(self, kind, body))
        except asyncio.CancelledError:
            # Cancelled by the peer or with the link, which both sides know already; or by the handler itself, which the
            # peer must be told.
            mux.fail(call, HandlerFailed(kind=kind, problem="a cancellation"))
            raise
        except Exception as error:
            mux.fail(call, as_typed(error, kind))
            if not isinstance(error, LogError):
                self._log(f"link request failed peer={self.peer} kind={kind} detail={error!r}")
        finally:
            del self._tasks[call]
            if self.close_reason is None:
                self._flush_soon()

    def _expire(self, future: asyncio.Future[memoryview], kind: int, timeout_ms: int) -> None:
        if not future.done():
            waiting_for = f"the answer of {self.peer} to a request of kind {kind}"
            future.set_exception(WaitTimedOut(waiting_for=waiting_for, deadline_s=timeout_ms / 1000))

    # --- writing -----------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_is_due and not self._is_blocked:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._is_blocked = False
        if self._connection.read_wants_write:
            self._connection.read_wants_write = False
            self._read_soon()
        self._flush()

    def _flush(self) -> None:
        """Write what there is, for one turn at most."""
        self._flush_is_due = False
        if self.close_reason is not None or self._is_blocked:
            return
        mux, now_us = self._mux, _now_us()
        deadline_us = now_us + self._options.turn_ms_max * 1000
        try:
            self._writing = self._writing or mux.next_write(now_us)
            while self._write_some():
                now_us = _now_us()
                mux.wrote(now_us)
                if not mux.has_output:
                    break
                if now_us >= deadline_us:
                    self._flush_soon()
                    break
                self._writing = mux.next_write(now_us)
        except OSError as error:
            self._read()  # the peer's last frames may give the reason
            self.abort(f"the connection broke: {words(error)}")
            return
        self._wake_waiters()
        self._set_reading(mux.wants_input)
        if mux.is_drained and not self._writing:
            self.abort(_DRAINED)

    def _write_some(self) -> bool:
        """Whether all of the current write was sent; if not, the loop calls back when there is room."""
        writing, connection = self._writing, self._connection
        while writing:
            view = writing[0]
            sent = connection.send_all(view)
            if sent:
                self._bytes_sent += sent
                self._mux.progressed(_now_us())
            if sent < len(view):
                writing[0] = view[sent:]
                self._is_blocked = True
                if not connection.send_wants_read:
                    self._loop.add_writer(self._descriptor, self._on_writable)
                return False
            del writing[0]
        return True

    def _wake_waiters(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    # --- time and end ------------------------------------------------------------------------------

    def _check(self) -> None:
        """Check whether the peer is alive and its certificate still good; send pings."""
        self._timer = self._loop.call_later(self._check_s, self._check)
        # Bytes that arrived while this process was paused count before silence is judged.
        self._read()
        if self.close_reason is not None:
            return
        now_us = _now_us()
        reason = self._mux.wake(now_us, is_blocked=self._is_blocked)
        if reason is not None:
            self.abort(reason)
            return
        if now_us - self._rechecked_us >= _REVOKED_CHECK_US:
            self._rechecked_us = now_us
            try:
                self._recheck()
            except LogError as error:
                self._end_with(error)
                return
        if self._mux.has_output:
            self._flush_soon()

    def _end_with(self, error: LogError) -> None:
        """End for a fault of the peer, or a local one; report the reason to it if the connection takes a few more
        bytes."""
        self._log(f"link ended peer={self.peer} code={error.code} detail={str(error)!r}")
        self._mux.refuse(error)
        with contextlib.suppress(OSError):
            if not self._is_blocked and self._write_some():
                self._writing = self._mux.next_write(_now_us())
                self._write_some()
        self.abort(f"{error.code}: {error}")


def _now_us() -> int:
    return time.monotonic_ns() // 1000
