"""One boat at the leader of its channel: the channel, and its one session, on the event loop.

What is to be appended goes through the `LedChannel`, and comes back in order once it is committed on the ISR.
What is of no concern to the protocol (events, devices, readers) is reported to the `InstanceWatch`.

UI1  An instance belongs to one leader epoch. When that ends, or an append was refused, its streams end with a status
     that tells the boat to come again, everything that was pending counts for nothing (U2), and the next Handshake
     begins from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.control import encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.cluster.boats.channel import LogAppend, UplinkChannel
from tidelog.cluster.boats.channel_log import OpenedLog, SnapshotPlace
from tidelog.cluster.boats.events import CHECKPOINT_FRAMES, stop_reason
from tidelog.cluster.boats.state_file import SavedState
from tidelog.cluster.boats.view import InstanceStatus
from tidelog.cluster.boats.watch import InstanceWatch
from tidelog.cluster.uplink.appends import BoatAppends
from tidelog.cluster.uplink.led_channel import LedChannel
from tidelog.cluster.uplink.lplex_frames import FRAMES_MAX, FrameGatherer
from tidelog.cluster.uplink.refusals import ROUTINE, UplinkRefusedError
from tidelog.cluster.uplink.session import Session
from tidelog.codecs import uplink_codec as codec
from tidelog.core.uplink.fold import LineageFold
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillUnread,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Refused,
    ToBoat,
    ToCloud,
    Welcome,
)
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import LogError, RateExceeded, SessionFenced, WaitTimedOut
from tidelog.storage.log.log import Log
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us
from tidelog.units import MIB

_HANDSHAKE_S: Final = 30.0
_WAITING_BYTES_MAX: Final = 8 * MIB
_SEEDS_MAX: Final = 1_024
"""An lplex boat introduces each of at most 252 devices with two frames."""
_EVENTS_INTERVAL_MS: Final = 1_000
"""A boat that is refused all the time must not fill its log with that."""


class Instance:
    """One boat: its channel and its one session. Everything runs on the event loop."""

    def __init__(
        self,
        *,
        opened: OpenedLog,
        led_channel: LedChannel,
        limits: ReceiverLimits,
        new_lineage: Callable[[], bytes],
        watch: InstanceWatch,
        save_soon: Callable[[Instance], None] = lambda _: None,
    ) -> None:
        self.name = led_channel.name
        self.led_channel = led_channel
        self.watch = watch
        self._limits = limits
        self._new_lineage = new_lineage
        self._save_soon = save_soon
        self._loop = asyncio.get_running_loop()
        self._appends = BoatAppends(
            opened=opened, led_channel=led_channel, limits=limits, settle_soon=self._settle_soon
        )
        self.session: Session | None = None
        self._welcome: asyncio.Future[Welcome] | None = None
        self._settling: list[tuple[int, asyncio.Event]] = []
        self._room = asyncio.Event()
        self._room.set()
        self._events_due_ms = 0
        self._frames = FrameGatherer(frames_max=min(FRAMES_MAX, limits.burst_frames))
        self._frames_session: Session | None = None
        self._frames_wait_for = 0
        """How many appends must be settled before the next block of gathered frames is due."""
        self._flush_is_due = False

    @property
    def log(self) -> Log:
        return self.led_channel.log

    @property
    def channel(self) -> UplinkChannel:
        return self._appends.channel

    @property
    def committed_end(self) -> int:
        """The committed fold is that of the log up to here."""
        return self._appends.committed_end

    @property
    def snapshot(self) -> SnapshotPlace | None:
        return self._appends.snapshot

    @property
    def bytes_since_snapshot(self) -> int:
        return self._appends.bytes_since_snapshot

    @property
    def failure(self) -> LogError | None:
        """Why this instance is over (UI1)."""
        return self._appends.failure

    # --- sessions --------------------------------------------------------------------------------

    async def hello(self, hello: Hello) -> Welcome:
        """Open a session; answers once it is committed."""
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._room.wait()
                welcome = await self._open_session(hello)
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the session to be committed", deadline_s=_HANDSHAKE_S) from None
        self.watch.journal_bytes, self.watch.head_said = hello.journal_bytes, hello.head
        self._save_soon(self)
        return welcome

    def _open_session(self, hello: Hello) -> asyncio.Future[Welcome]:
        refusal = self.handle(hello)
        if refusal is not None:
            raise UplinkRefusedError(refusal)
        newest = self.channel.receiver.session
        if self.session is not None and not self.session.over:
            fenced = SessionFenced(session=self.session.number, newest=newest)
            self.watch.add_event("fenced", session=self.session.number, by=newest)
            self.session.close(Refused(session=self.session.number, code=fenced.code, detail=str(fenced)))
        if self._welcome is not None and not self._welcome.done():
            # Two Handshakes at once: the newer one wins here too.
            self._welcome.set_exception(SessionFenced(session=newest - 1, newest=newest))
        self._welcome = self._loop.create_future()
        return self._welcome

    def refuse(self, session: Session, refusal: Refused) -> None:
        """End a session for a reason that the boat is told."""
        if not session.over:
            if refusal.code not in ROUTINE:
                self.watch.events.refused(wall_clock_us(), refusal.code)
            session.close(refusal)

    @property
    def connected(self) -> bool:
        session = self.session
        return session is not None and session.live.in_use and not session.over

    def live_started(self, session: Session) -> None:
        session.streams += 1
        session.had_live, session.live_frames = True, 0
        self.watch.add_event("live_start", boat_head_seq=self._head())

    def live_stopped(self, session: Session) -> None:
        detail: dict[str, object] = {"frames_received": session.live_frames}
        if session.refusal is not None:
            detail["reason"] = stop_reason(session.refusal.code)
        self.watch.add_event("live_stop", **detail)
        self._stream_ended(session)

    def backfill_started(self, session: Session) -> None:
        session.streams += 1
        session.backfill_blocks = 0
        self.watch.add_event("backfill_start", holes=len(self.channel.receiver.holes()))

    def backfill_stopped(self, session: Session) -> None:
        self.watch.add_event("backfill_stop", blocks_received=session.backfill_blocks)
        self._stream_ended(session)

    def _stream_ended(self, session: Session) -> None:
        """A session without streams is over, once it had a Live one: the boat shakes hands again (U2)."""
        session.streams -= 1
        if session.streams == 0 and session.had_live:
            self.channel.disconnected(session.number)
            gone = SessionFenced(session=session.number, newest=self.channel.receiver.session)
            session.close(Refused(session=session.number, code=gone.code, detail=str(gone)))
            self._save_soon(self)

    async def wait_settled(self) -> None:
        """Wait until all that was submitted so far is committed or refused."""
        if self._appends.settled_count < self._appends.submitted and self.failure is None:
            settled = asyncio.Event()
            self._settling.append((self._appends.submitted, settled))
            await settled.wait()

    async def wait_room(self) -> None:
        """Wait while too much is on its way to the disk: the stream's own flow control then slows the boat."""
        await self._room.wait()

    # --- messages --------------------------------------------------------------------------------

    def take(self, session: Session, message: ToCloud[MadeBlock]) -> Refused | None:
        """Handle a message of one of this session's streams."""
        match message:
            case LiveData():
                refusal = self.flush_frames() or self.handle(message)
                if refusal is None:
                    self._count_live(session, len(message.seqs))
                return refusal
            case BackfillData() | BackfillUnread():
                session.backfill_blocks += 1
                return self.handle(message)
            case LiveStatus():
                refusal = self.flush_frames() or self.handle(message)
                if refusal is None:
                    self.watch.journal_bytes = message.journal_bytes
                    self.watch.head_said = max(self.watch.head_said, message.head)
                return refusal
        return self.handle(message)

    def handle(self, message: ToCloud[MadeBlock]) -> Refused | None:
        needs_lineage = isinstance(message, Hello) or not self.channel.receiver.can_say_gone
        lineage = self._new_lineage() if needs_lineage else b""
        _, replies = self._appends.receive(
            message, new_lineage=lineage, now_ms=steady_clock_ms(), now_us=wall_clock_us()
        )
        if self._appends.waiting_bytes >= _WAITING_BYTES_MAX:
            self._room.clear()
        return self.deliver(replies)

    def _settle_soon(self) -> None:
        self._loop.call_soon(self._take_settled)

    def _take_settled(self) -> None:
        settled = self._appends.take_settled(now_ms=steady_clock_ms(), now_us=wall_clock_us())
        self.deliver(settled.replies)
        for append in settled.appends:
            if not append.is_own:
                self.watch.committed(append)
        if settled.error is not None:
            self.end(settled.error)
        settled_count = self._appends.settled_count
        while self._settling and self._settling[0][0] <= settled_count:
            self._settling.pop(0)[1].set()
        if self._appends.waiting_bytes < _WAITING_BYTES_MAX // 2:
            self._room.set()
        if self._frames and settled_count >= self._frames_wait_for:
            self._flush_soon()

    def end(self, error: LogError) -> None:
        """Everything is refused from here on, and nobody waits any longer (UI1)."""
        if not self._appends.end(error):
            return
        self._frames.drop()
        if self.session is not None:
            self.refuse(self.session, Refused(session=self.session.number, code=error.code, detail=str(error)))
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(error)
        for _, settled in self._settling:
            settled.set()
        self._settling.clear()
        self._room.set()

    def deliver(self, replies: Iterable[ToBoat]) -> Refused | None:
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

    def wake(self, at_ms: int) -> None:
        due_ms = self.channel.wake_at_ms()
        if due_ms is not None and due_ms <= at_ms:
            refusal = self.deliver(self.channel.wake(at_ms))
            if refusal is not None and self.session is not None and self.session.number == refusal.session:
                self.refuse(self.session, refusal)
        if self.watch.events.has_unlogged and at_ms >= self._events_due_ms:
            self._events_due_ms = at_ms + _EVENTS_INTERVAL_MS
            self.log_events()

    def log_events(self) -> None:
        """Append what happened and is in no record yet, so that it survives (EV1)."""
        if self._appends.may_append and self.watch.events.has_unlogged:
            records = self.watch.events.take_unlogged()
            self._appends.submit(
                LogAppend(encode_control(records, time_us=wall_clock_us()), is_own=True), is_control=True
            )

    # --- single frames of an lplex boat ----------------------------------------------------------

    def take_frame(self, session: Session, frame: codec.LplexFrame) -> Refused | None:
        """Gather one frame. It goes into the log at once, or with others when what is on its way is committed."""
        if not frame.seq:
            session.seeds += 1
            if session.seeds > _SEEDS_MAX:
                raise RateExceeded(frames_per_s=self._limits.rate_frames_per_s, burst=_SEEDS_MAX)
            self.watch.seed(frame)
            return None
        if session is not self._frames_session or not self._frames.fits(frame.seq):
            refusal = self.flush_frames()
            if refusal is not None:
                return refusal
            self._frames_session = session
        self._frames.add(frame)
        self._count_live(session, 1)
        if not self._flush_is_due and self._appends.settled_count >= self._frames_wait_for:
            self._flush_is_due = True
            self._loop.call_soon(self._flush_soon)
        return None

    def flush_frames(self) -> Refused | None:
        """Make a block of what is gathered."""
        session = self._frames_session
        if not self._frames or session is None:
            return None
        if session.over or session is not self.session:
            self._frames.drop()  # refused or fenced meanwhile: nothing more is taken from it
            return None
        base_seq, frames = self._frames.take()
        before, start, count = self._appends.submitted, 0, len(frames)
        refusal: Refused | None = None
        while count:
            part = frames.slice(start, start + count)
            producer = self.channel.receiver.lineage or b""
            made = encode_frames(part, base_seq=base_seq + start, producer=producer)
            refusal = self.handle(LiveData(session=session.number, seqs=made.maker.seqs, block=made))
            if refusal is None:
                start += count
                count = len(frames) - start
            elif refusal.code == RateExceeded.code and count > 1:
                count //= 2  # what the rate allows is taken, frame by frame if need be
            else:
                break
        if self._appends.submitted > before:
            self._frames_wait_for = self._appends.submitted
        if refusal is None:
            session.live_frame_came()
        return refusal

    def _flush_soon(self) -> None:
        self._flush_is_due = False
        if self._appends.settled_count < self._frames_wait_for:
            return  # a block went meanwhile; the rest follows when it is committed
        refusal = self.flush_frames()
        if refusal is not None and self._frames_session is not None:
            self.refuse(self._frames_session, refusal)

    def _count_live(self, session: Session, count: int) -> None:
        before = session.live_frames
        session.live_frames += count
        if before // CHECKPOINT_FRAMES != session.live_frames // CHECKPOINT_FRAMES:
            self.watch.add_event(
                "checkpoint",
                frames_received=session.live_frames,
                cursor=self.channel.receiver.cursor,
                boat_head_seq=self._head(),
            )

    # --- what others ask -------------------------------------------------------------------------

    def _current(self) -> LineageFold:
        fold = self.channel.receiver.fold
        return fold.lineages.get(fold.current or b"") or LineageFold()

    def _head(self) -> int:
        return max(self._current().head, self.watch.head_said)

    def status(self) -> InstanceStatus:
        """As of what is committed."""
        fold, current, watch = self.channel.receiver.fold, self._current(), self.watch
        return InstanceStatus(
            id=self.name,
            connected=self.connected,
            cursor=current.cursor,
            head=self._head(),
            journal_bytes=watch.journal_bytes,
            holes=tuple(current.holes()),
            lost=tuple(current.lost),
            void=tuple(current.void),
            lineage=fold.current.hex() if fold.current else "",
            session=fold.session,
            last_seen_us=watch.last_seen_us,
            frames_received=watch.frames_by_live + watch.frames_by_backfill,
            frames_by_live=watch.frames_by_live,
            frames_by_backfill=watch.frames_by_backfill,
            name_in_use=self.channel.tenure.refusals,
        )

    def saved_state(self) -> SavedState:
        snapshot = self.snapshot.offsets.start if self.snapshot is not None else None
        return SavedState(status=self.status(), log_end=self.committed_end, snapshot=snapshot)

    async def write_snapshot(self) -> None:
        """Append a record of the folds, so that the log start may pass what came before it (F3)."""
        self.submit_snapshot()
        await self.wait_settled()

    def submit_snapshot(self) -> None:
        """The same, and wait for nothing."""
        self._appends.submit_snapshot(now_us=wall_clock_us(), events=self.watch.events.to_state())
