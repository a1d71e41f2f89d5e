"""The uplink over gRPC, boat side: dials, shakes hands, and carries Live and Backfill.

A thin shell around `BoatUplink`: it polls, carries out what comes back in order, passes answers in, and
reports a broken connection. One connection at a time; answers of an old one are dropped with it.

What a caller must keep: run `run` as a task; call `notify` after recording frames, so that they leave
at once; touch journal and ring only from the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from tidelog.core.uplink.messages import BackfillData, BackfillGone, LiveData, LiveStatus, ToBoat
from tidelog.edge.uplink import BoatUplink, Connect, Disconnect, Out
from tidelog.errors import BadMessage, InvalidConfig
from tidelog.storage.writer import wall_clock_us
from tidelog.units import MIB
from tidelog.wire import uplink_codec as codec

_SERVICE: Final = "/lplex.replication.v1.Replication"
_HANDSHAKE_S: Final = 20.0
_IDLE_S: Final = 5.0
_SEED_RATE: Final = 2_000.0
_SEED_BURST: Final = 500
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 20 * MIB),
    ("grpc.max_send_message_length", 20 * MIB),
    # A half-open link is noticed by silence (the sender's business); this only keeps middleboxes awake. lplex
    # clouds refuse pings more often than every five minutes.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.enable_retries", 0),
    # Every dial makes its own connection: never the dead one of the dial before.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkTarget:
    """Where the cloud is, and who we are. PEM bytes; plaintext only with `insecure_dev`."""

    address: str
    instance: str
    certificate: bytes | None = None
    key: bytes | None = None
    authority: bytes | None = None
    server_name: str | None = None
    insecure_dev: bool = False

    def __post_init__(self) -> None:
        if not self.insecure_dev and (self.certificate is None or self.key is None or self.authority is None):
            raise InvalidConfig(section="replication.tls", problems=["cert, key and ca are needed to reach the cloud"])

    def open_channel(self) -> Any:
        options: list[tuple[str, int | str]] = [*_OPTIONS]
        if self.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        if self.insecure_dev:
            return grpc.aio.insecure_channel(self.address, options=options)
        credentials = grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
        return grpc.aio.secure_channel(self.address, credentials, options=options)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class UplinkClient:
    def __init__(
        self,
        *,
        uplink: BoatUplink,
        target: UplinkTarget,
        log: Callable[[str], None] = lambda _: None,
        clock_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._uplink = uplink
        self._target = target
        self._log = log
        self._clock_ms = clock_ms
        self._wake = asyncio.Event()
        self._connection: _Connection | None = None
        self._closing: set[_Connection] = set()
        """Given up, and not closed yet."""
        self._crash: BaseException | None = None

    def notify(self) -> None:
        """Frames were recorded, or something else changed: look at once."""
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
                    first = codec.encode_hello(hello, instance=self._target.instance)
                    self._connection = _Connection(self, self._target, first)
                case Disconnect(reason):
                    self._log(f"uplink down reason={reason!r}")
                    self._drop()
                case LiveData() | LiveStatus() | BackfillData() | BackfillGone():
                    if self._connection is not None:
                        self._connection.send(out)

    def received(self, connection: _Connection, message: ToBoat) -> None:
        if connection is self._connection:
            self._carry_out(self._uplink.receive(message, self._clock_ms(), now_us=wall_clock_us()))
            self._wake.set()

    def broke(self, connection: _Connection, reason: str) -> None:
        if connection is self._connection:
            self._log(f"uplink broke reason={reason!r}")
            self._connection = None
            self._uplink.disconnected(self._clock_ms())
            self._wake.set()

    def closed(self, connection: _Connection, crash: BaseException | None) -> None:
        """A connection's task is over. A bug in it is ours to raise; `run` does."""
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
        self._live: asyncio.Queue[bytes] = asyncio.Queue()
        self._backfill: asyncio.Queue[bytes] = asyncio.Queue()
        self._session = 0
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
                data = BackfillData(session=message.session, seqs=message.seqs, block=message.block.buffers)
                self._backfill.put_nowait(codec.encode_backfill(data))
            case BackfillGone():
                self._backfill.put_nowait(codec.encode_backfill(message))

    def cancel(self) -> None:
        self._task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        reason = "the cloud ended the stream"
        channel = self._target.open_channel()
        try:
            await self._talk(channel)
        except* grpc.aio.AioRpcError as group:
            error: Any = group.exceptions[0]
            reason = f"{error.code().name}: {error.details()}"
        except* BadMessage as group:
            reason = f"the cloud's answer cannot be read: {group.exceptions[0]}"
        except* _Ended:
            pass
        finally:
            await channel.close()
        self._client.broke(self, reason)

    async def _talk(self, channel: Any) -> None:
        metadata: tuple[tuple[str, str], ...] = (("x-instance-id", self._target.instance),)
        shake = channel.unary_unary(f"{_SERVICE}/Handshake")
        answer = await shake(self._hello, timeout=_HANDSHAKE_S, metadata=metadata)
        welcome = codec.decode_welcome(answer, rate_frames_per_s=_SEED_RATE, burst_frames=_SEED_BURST)
        self._session = welcome.session
        metadata += (("x-session", str(welcome.session)),)
        live = channel.stream_stream(f"{_SERVICE}/Live")(metadata=metadata)
        backfill = channel.stream_stream(f"{_SERVICE}/Backfill")(metadata=metadata)
        self._client.received(self, welcome)
        async with asyncio.TaskGroup() as group:
            group.create_task(_write(live, self._live))
            group.create_task(_write(backfill, self._backfill))
            group.create_task(self._read_live(live))
            group.create_task(self._read_backfill(backfill))

    async def _read_live(self, call: Any) -> None:
        async for data in call:
            self._client.received(self, codec.decode_live_ack(data, session=self._session))
        raise _Ended

    async def _read_backfill(self, call: Any) -> None:
        async for data in call:
            self._answers += 1
            ack = codec.decode_backfill_ack(data, session=self._session, answered=self._answers)
            self._client.received(self, ack)
        raise _Ended


class _Ended(Exception):
    """A stream came to its end; so does the connection."""


async def _write(call: Any, queue: asyncio.Queue[bytes]) -> None:
    while True:
        message = await queue.get()
        try:
            await call.write(message)
        except asyncio.InvalidStateError:
            return  # the call is over; whoever reads it hears why
