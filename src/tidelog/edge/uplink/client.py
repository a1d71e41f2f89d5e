"""The uplink over gRPC, boat side: dials, does the Handshake, runs Live and Backfill.

A thin shell around `BoatUplink`: it polls, carries out the orders in sequence, passes answers in, and reports a broken
connection. One connection at a time; answers of an old one are dropped with it.

The answer to the Handshake names the node that leads the boat's channel. The boat connects there, and does another
Handshake; a leader that it cannot reach is not tried for a while, and the node that was dialed relays everything.

What a caller must keep: run `run` as a task; call `notify` after recording frames, so that they leave
at once; touch journal and ring only from the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import grpc

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.header import Buffer
from tidelog.codecs import uplink_codec as codec
from tidelog.core.uplink.messages import BackfillData, BackfillDone, BackfillGone, LiveData, LiveStatus, ToBoat, Welcome
from tidelog.edge.uplink.lplex_cloud import lplex_frames
from tidelog.edge.uplink.target import UplinkTarget as UplinkTarget
from tidelog.edge.uplink.trouble import own_trouble, probe
from tidelog.edge.uplink.uplink import BoatUplink, Connect, Disconnect, ForeignBlock, LiveFrames, Out
from tidelog.errors import BadMessage, LogError
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us
from tidelog.units import MIB

_BackfillItem: TypeAlias = BackfillData[MadeBlock] | bytes | None
"""A block, another message, or the end of our half of the stream."""
_SERVICE: Final = "/lplex.replication.v1.Replication"
_HANDSHAKE_S: Final = 20.0
_LEADER_S: Final = 3.0
"""The timeout of the Handshake with a leader that another node named: behind a router it may never answer."""
_UNREACHED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_AVOID_MS: Final = 60_000
_PROBE_INTERVAL_MS: Final = 60_000
"""Finding out the TLS error costs one more dial."""
_NOT_TLS: Final = ("Connection refused", "No route", "unreachable", "DNS", "resolution", "imeout")
"""gRPC's messages for a cloud that was not reached at all."""
_IDLE_S: Final = 5.0
_BUNDLE_BYTES: Final = 1 * MIB
_SEED_RATE: Final = 2_000.0
_SEED_BURST: Final = 500


class UplinkClient:
    """A `target` that can be called is called at every dial, so that a renewed certificate is used. `seeds` gives the
    (CAN id, payload) by which an lplex cloud learns the boat's devices."""

    def __init__(
        self,
        *,
        uplink: BoatUplink,
        target: UplinkTarget | Callable[[], UplinkTarget],
        seeds: Callable[[], Sequence[tuple[int, bytes]]] = tuple,
        log: Callable[[str], None] = lambda _: None,
        clock_ms: Callable[[], int] = steady_clock_ms,
    ) -> None:
        self._uplink = uplink
        self._target: Callable[[], UplinkTarget] = target if callable(target) else lambda: target
        self._seeds = seeds
        self._log = log
        self._clock_ms = clock_ms
        self._wake = asyncio.Event()
        self._connection: _Connection | None = None
        self._closing: set[_Connection] = set()
        """Connections that were dropped, and are not closed yet."""
        self._crash: BaseException | None = None
        self._said = ""
        """The kind of trouble that was logged last."""
        self._dials_before = 0
        self._probe_at_ms = 0
        self._probed: LogError | None = None
        self._avoided: dict[str, int] = {}
        """Leaders that could not be reached, and until when they are not tried."""

    def notify(self) -> None:
        """Frames were recorded, or something else changed: poll at once."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the uplink going until cancelled."""
        try:
            while True:
                self._wake.clear()
                if self._crash is not None:
                    raise self._crash
                self._carry_out(self._uplink.poll(self._clock_ms(), now_us=wall_clock_us()))
                now_ms = self._clock_ms()
                wait_s = min((self._uplink.wake_at_ms(now_ms) - now_ms) / 1000, _IDLE_S)
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the wake-up.
                    async with asyncio.timeout(max(wait_s, 0.001)):
                        await self._wake.wait()
        finally:
            self._drop()
            while self._closing:
                await self._closing.pop().wait_closed()

    def _carry_out(self, outs: list[Out]) -> None:
        for out in outs:
            match out:
                case Connect(hello):
                    target = self._target()
                    first = codec.encode_hello(hello, instance=target.instance)
                    self._connection = _Connection(self, target, first)
                case Disconnect(reason):
                    self._log(f"uplink down reason={reason!r}")
                    self._drop()
                case _:
                    if self._connection is not None:
                        self._connection.send(out)

    def seeds(self) -> list[codec.LplexFrame]:
        time_us = wall_clock_us()
        return [
            codec.LplexFrame(seq=0, time_us=time_us, can_id=can_id, payload=payload)
            for can_id, payload in self._seeds()
        ]

    def is_avoided(self, leader: str) -> bool:
        """Whether this leader could not be reached a while ago."""
        return self._avoided.get(leader, 0) > self._clock_ms()

    def avoid(self, leader: str, reason: str) -> None:
        """Stay with the configured address."""
        now_ms = self._clock_ms()
        self._avoided = {address: until_ms for address, until_ms in self._avoided.items() if until_ms > now_ms}
        self._avoided[leader] = now_ms + _AVOID_MS
        self._log(f"uplink leader not reached address={leader} reason={reason!r}")

    def received(self, connection: _Connection, message: ToBoat) -> None:
        if connection is self._connection:
            if isinstance(message, Welcome) and not message.fork:
                self._came_up(message)
            self._carry_out(self._uplink.receive(message, self._clock_ms(), now_us=wall_clock_us()))
            self._wake.set()

    def broke(self, connection: _Connection, trouble: Trouble) -> None:
        if connection is self._connection:
            if trouble.kind != self._said:
                # A boat that is refused dials again and again: log when the reason changes, not for each dial.
                self._said = trouble.kind
                self._log(f"uplink broke reason={trouble.reason!r}")
            self._connection = None
            self._uplink.failed(trouble.kind, trouble.reason, self._clock_ms())
            self._wake.set()

    async def explain(self, target: UplinkTarget, error: Any) -> Trouble:
        """Why the Handshake gets no answer; gRPC does not report the TLS error."""
        code, details = error.code(), str(error.details())
        if code is grpc.StatusCode.UNAVAILABLE and not target.insecure_dev:
            found = own_trouble(target, wall_clock_us())
            now_ms = self._clock_ms()
            if found is None and now_ms >= self._probe_at_ms and not any(words in details for words in _NOT_TLS):
                self._probe_at_ms = now_ms + _PROBE_INTERVAL_MS
                self._probed = await asyncio.to_thread(probe, target)
            found = found or self._probed
            if found is not None:
                return Trouble(found.code, f"{found.code}: {found}")
        return trouble_of(error)

    def _came_up(self, welcome: Welcome) -> None:
        dials = self._uplink.sender.dials
        self._log(
            f"uplink up session={welcome.session} cursor={welcome.cursor} dials={dials - self._dials_before}"
            + (f" after={self._said!r}" if self._said else "")
        )
        self._said, self._dials_before = "", dials
        self._probed, self._probe_at_ms = None, 0

    def closed(self, connection: _Connection, crash: BaseException | None) -> None:
        """A connection's task has ended. A bug in it is raised by `run`."""
        self._closing.discard(connection)
        if crash is not None:
            self._crash = crash
            self._wake.set()

    def _drop(self) -> None:
        if self._connection is not None:
            self._closing.add(self._connection)
            self._connection.cancel()
            self._connection = None


class _Connection:
    """One dial: a Handshake, then both streams, until anything ends."""

    def __init__(self, client: UplinkClient, target: UplinkTarget, hello: bytes) -> None:
        self._client = client
        self._target = target
        self._hello = hello
        # Bounded by the sender's windows: no more than a few blocks are ever in flight.
        self._live: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._backfill: asyncio.Queue[_BackfillItem] = asyncio.Queue()
        self._session = 0
        self._is_up = False
        """The Handshake was answered."""
        self._answers = 0
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._client.closed(self, None if task.cancelled() else task.exception())

    def send(self, message: Any) -> None:
        match message:
            case LiveData():
                parts = LiveData(session=message.session, seqs=message.seqs, block=message.block.buffers)
                self._live.put_nowait(codec.encode_live(parts))
            case LiveStatus():
                self._live.put_nowait(codec.encode_live(message))
            case BackfillData():
                self._backfill.put_nowait(message)
            case BackfillGone():
                self._backfill.put_nowait(codec.encode_backfill(message))
            case LiveFrames(frames, base_seq):
                for frame in lplex_frames(frames, base_seq):
                    self._live.put_nowait(codec.encode_live(frame))
            case ForeignBlock(block):
                self._backfill.put_nowait(codec.encode_backfill(block))
            case BackfillDone():
                self._backfill.put_nowait(None)

    def cancel(self) -> None:
        self._task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        trouble = Trouble("ended", "the cloud ended the stream")
        try:
            async with contextlib.AsyncExitStack() as stack:
                await self._talk(stack)
        except* grpc.aio.AioRpcError as group:
            error: Any = group.exceptions[0]
            trouble = trouble_of(error) if self._is_up else await self._client.explain(self._target, error)
        except* BadMessage as group:
            trouble = Trouble("bad_message", f"the cloud's answer cannot be read: {group.exceptions[0]}")
        except* _Ended:
            pass
        self._client.broke(self, trouble)

    async def _shake_hands(self, stack: contextlib.AsyncExitStack) -> tuple[Any, bytes]:
        """The connection to use and its answer to the Handshake: the leader's, if it can be reached."""
        target = self._target
        channel = target.open_channel()
        stack.push_async_callback(channel.close)
        answer = await self._handshake(channel, _HANDSHAKE_S)
        leader = codec.leader_in_welcome(answer)
        if not leader or leader == target.address or self._client.is_avoided(leader):
            return channel, answer
        other = replace(target, address=leader).open_channel()
        stack.push_async_callback(other.close)
        try:
            return other, await self._handshake(other, _LEADER_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _UNREACHED:
                raise
            self._client.avoid(leader, f"{error.code().name}: {error.details()}")
        # The leader may have received it all the same, and then the session of the first answer is fenced. This session
        # is not.
        return channel, await self._handshake(channel, _HANDSHAKE_S)

    async def _handshake(self, channel: Any, timeout_s: float) -> bytes:
        answer: bytes = await channel.unary_unary(f"{_SERVICE}/Handshake")(
            self._hello, timeout=timeout_s, metadata=(("x-instance-id", self._target.instance),)
        )
        return answer

    async def _talk(self, stack: contextlib.AsyncExitStack) -> None:
        channel, answer = await self._shake_hands(stack)
        metadata: tuple[tuple[str, str], ...] = (("x-instance-id", self._target.instance),)
        welcome = codec.decode_welcome(answer, rate_frames_per_s=_SEED_RATE, burst_frames=_SEED_BURST)
        self._session, self._is_up = welcome.session, True
        metadata += (("x-session", str(welcome.session)),)
        is_lplex = not welcome.session
        if is_lplex:
            for seed in self._client.seeds():
                self._live.put_nowait(codec.encode_live(seed))
        live = channel.stream_stream(f"{_SERVICE}/Live")(metadata=metadata)
        tasks = [_write(live, self._live), self._read_live(live)]
        # An lplex cloud gets a Backfill stream only when it named holes, and closes the stream after the boat.
        if welcome.holes or not is_lplex:
            backfill = channel.stream_stream(f"{_SERVICE}/Backfill")(metadata=metadata)
            # Live messages that precede a block for an lplex cloud must be sent before it.
            after_live = self._live.join if is_lplex else _at_once
            tasks += [
                _write_backfill(backfill, self._backfill, after_live),
                self._read_backfill(backfill, ends=is_lplex),
            ]
        self._client.received(self, welcome)
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)

    async def _read_live(self, call: Any) -> None:
        async for data in call:
            self._client.received(self, codec.decode_live_ack(data, session=self._session))
        raise _Ended

    async def _read_backfill(self, call: Any, *, ends: bool) -> None:
        async for data in call:
            self._answers += 1
            ack = codec.decode_backfill_ack(data, session=self._session, answered=self._answers)
            self._client.received(self, ack)
        if not ends:
            raise _Ended


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a connection is over: its kind, and in words."""

    kind: str
    reason: str


def trouble_of(error: Any) -> Trouble:
    """The cloud's refusal: its code comes first in the details, the rest may differ each time."""
    name, details = error.code().name, str(error.details())
    kind = details.partition(":")[0]
    return Trouble(kind if kind.isidentifier() else name, f"{name}: {details}")


class _Ended(Exception):
    """A stream ended, so the connection ends."""


async def _at_once() -> None:
    pass


async def _write(call: Any, queue: asyncio.Queue[bytes | None]) -> None:
    """Send what is queued; None ends the boat's half of the stream."""
    with contextlib.suppress(asyncio.InvalidStateError):  # the call is over; its reader gets the reason
        while (message := await queue.get()) is not None:
            await call.write(message)
            queue.task_done()
        await call.done_writing()


async def _write_backfill(
    call: Any, queue: asyncio.Queue[_BackfillItem], after_live: Callable[[], Awaitable[None]]
) -> None:
    """The same for Backfill, where only the newest block counts: what waits when the last message was sent is the next
    one."""
    with contextlib.suppress(asyncio.InvalidStateError):
        while True:
            item: _BackfillItem = await queue.get()
            blocks: list[tuple[Buffer, Buffer]] = []
            file_offsets: list[int | None] = []
            size = 0
            while isinstance(item, BackfillData):
                blocks.append(item.block.buffers)
                file_offsets.append(item.file_offset)
                size += item.block.maker.stored_bytes
                if queue.empty() or size >= _BUNDLE_BYTES:
                    item = b""
                else:
                    item = queue.get_nowait()
            if blocks:
                await call.write(codec.encode_backfill_blocks(blocks, file_offsets))
            if item is None:
                await call.done_writing()
                return
            if item:
                await after_live()
                await call.write(item)
