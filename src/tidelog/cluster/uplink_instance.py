"""One boat in the cloud: its channel, its log and its one session, on the event loop.

What is to be appended goes to the store's committer thread, and what it commits comes back to the loop in order.
Acks are cumulative, so each stream's outbox holds only the newest: a boat that does not read costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from tidelog.blocks.block import MadeBlock
from tidelog.cluster.uplink_channel import UplinkChannel
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import BackfillAck, Hello, LiveAck, Refused, ToBoat, ToCloud, Welcome
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import BadMessage, LogError, SessionFenced, WaitTimedOut
from tidelog.storage.log import Log
from tidelog.storage.writer import Append, Committer, wall_clock_us
from tidelog.units import MIB
from tidelog.wire import uplink_codec as codec

_HANDSHAKE_S: Final = 30.0
_WAITING_BYTES_MAX: Final = 8 * MIB


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Outbox:
    """The newest answer of one stream; a newer one replaces it. One stream at a time reads it."""

    def __init__(self) -> None:
        self._message: bytes | None = None
        self._ready = asyncio.Event()
        self._refusal: Refused | None = None
        self._finishing = False
        self.in_use = False

    def open(self) -> None:
        if self.in_use:
            raise BadMessage(problem="this session has such a stream already")
        self.in_use, self._finishing = True, False

    def put(self, message: bytes) -> None:
        self._message = message
        self._ready.set()

    def close(self, refusal: Refused) -> None:
        self._refusal = self._refusal or refusal
        self._ready.set()

    def finish(self) -> None:
        """Nothing more is to be answered: what is left goes out, then the stream ends."""
        self._finishing = True
        self._ready.set()

    async def wait_message(self) -> bytes | Refused | None:
        """The newest answer; else why there will be none, None for a stream that the boat ended itself."""
        while True:
            await self._ready.wait()
            message, self._message = self._message, None
            if message is not None:
                return message
            if self._refusal is not None or self._finishing:
                return self._refusal
            self._ready.clear()


@dataclass(slots=True)
class Session:
    number: int
    serial: int | None = None
    """Serial number of the certificate that opened it; None in insecure development."""
    live: Outbox = field(default_factory=Outbox)
    backfill: Outbox = field(default_factory=Outbox)
    over: bool = False
    """Refused or fenced. A boat that does not read would not hear of it, so nothing more is taken from it."""

    def close(self, refusal: Refused) -> None:
        self.over = True
        self.live.close(refusal)
        self.backfill.close(refusal)


OpenLog = Callable[[str], tuple[Log, ChannelFold]]
"""Opens a boat's log and folds it; slow for a long one, so it runs in a thread."""


class Instance:
    """One boat: its channel, its log, its one session. Lives on the event loop."""

    def __init__(
        self,
        *,
        name: str,
        log: Log,
        fold: ChannelFold,
        committer: Committer,
        limits: ReceiverLimits,
        new_lineage: Callable[[], bytes],
        open_log: OpenLog,
    ) -> None:
        self.name = name
        self.log = log
        self._committer = committer
        self._limits = limits
        self._new_lineage = new_lineage
        self._open_log = open_log
        self._loop = asyncio.get_running_loop()
        # A cloud of one node raises its epoch whenever it opens a channel (R1).
        self._epoch = log.epochs.newest + 1
        self.channel = UplinkChannel(instance=name, fold=fold, limits=limits)
        self.session: Session | None = None
        self._welcome: asyncio.Future[Welcome] | None = None
        self._recovering = asyncio.Lock()
        self._submitted = 0
        self._settled_count = 0
        self._settling: list[tuple[int, asyncio.Event]] = []
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._failure: LogError | None = None

    async def hello(self, hello: Hello) -> Welcome:
        """Open a session; answers once it is committed."""
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._recover()
                await self._room.wait()
                return await self._open_session(hello)
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the session to be committed", deadline_s=_HANDSHAKE_S) from None

    def _open_session(self, hello: Hello) -> asyncio.Future[Welcome]:
        refusal = self.handle(hello)
        if refusal is not None:
            raise RefusedError(refusal)
        newest = self.channel.receiver.session
        if self.session is not None:
            fenced = SessionFenced(session=self.session.number, newest=newest)
            self.session.close(Refused(session=self.session.number, code=fenced.code, detail=str(fenced)))
        if self._welcome is not None and not self._welcome.done():
            # Two Handshakes at once: the newer one wins here too.
            self._welcome.set_exception(SessionFenced(session=newest - 1, newest=newest))
        self._welcome = self._loop.create_future()
        return self._welcome

    async def _recover(self) -> None:
        """After a refused append: it is in the receiver's mind but not in the log, so start again from the log."""
        async with self._recovering:
            if self._failure is None:
                return
            await self.wait_settled()
            self.log, fold = await asyncio.to_thread(self._open_log, self.name)
            self.channel = UplinkChannel(instance=self.name, fold=fold, limits=self._limits)
            self._failure = None

    async def wait_settled(self) -> None:
        """Wait until all that was handed to the committer so far is committed or refused."""
        if self._settled_count < self._submitted:
            settled = asyncio.Event()
            self._settling.append((self._submitted, settled))
            await settled.wait()

    async def wait_room(self) -> None:
        """Wait while too much is on its way to the disk: the stream's own flow control then slows the boat."""
        await self._room.wait()

    def handle(self, message: ToCloud[MadeBlock]) -> Refused | None:
        if self._failure is not None:
            return Refused(session=0, code=self._failure.code, detail=str(self._failure))
        lineage = self._new_lineage()
        appends, replies = self.channel.receive(message, new_lineage=lineage, now_ms=now_ms(), now_us=wall_clock_us())
        for append in appends:
            request = Append(self.log, append.made, epoch=self._epoch, path=append.path, windows=append.windows)
            self._submitted += 1
            self._waiting_bytes += request.size
            try:
                future = self._committer.submit(request)
            except LogError as error:
                future = Future()
                future.set_exception(error)
            future.add_done_callback(self._settled_elsewhere(request.size))
        if self._waiting_bytes >= _WAITING_BYTES_MAX:
            self._room.clear()
        return self.deliver(replies)

    def _settled_elsewhere(self, size: int) -> Callable[[Future[range]], None]:
        def to_the_loop(future: Future[range]) -> None:
            self._loop.call_soon_threadsafe(self._settled, future, size)

        return to_the_loop

    def _settled(self, future: Future[range], size: int) -> None:
        """Back on the loop, in the order of submission."""
        self._settled_count += 1
        self._waiting_bytes -= size
        error = future.exception()
        if error is not None:
            assert isinstance(error, LogError), "the committer fails with typed errors only"
            self._fail(error)
        elif self._failure is None:
            self.deliver(self.channel.committed(1, now_ms=now_ms()))
        while self._settling and self._settling[0][0] <= self._settled_count:
            self._settling.pop(0)[1].set()
        if self._waiting_bytes < _WAITING_BYTES_MAX // 2:
            self._room.set()

    def _fail(self, error: LogError) -> None:
        """Everything is refused from here to the next Handshake, which starts from the log again."""
        self._failure = self._failure or error
        if self.session is not None:
            self.session.close(Refused(session=self.session.number, code=error.code, detail=str(error)))
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(error)

    def deliver(self, replies: list[ToBoat]) -> Refused | None:
        for reply in replies:
            match reply:
                case Welcome():
                    self.session = Session(reply.session)
                    if self._welcome is not None and not self._welcome.done():
                        self._welcome.set_result(reply)
                case LiveAck() if self.session is not None:
                    self.session.live.put(codec.encode_live_ack(reply))
                case BackfillAck() if self.session is not None:
                    self.session.backfill.put(codec.encode_backfill_ack(reply))
                case Refused():
                    return reply
        return None

    def wake(self) -> None:
        self.deliver(self.channel.wake(now_ms()))


class RefusedError(Exception):
    """A refusal on its way to the boat."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal
