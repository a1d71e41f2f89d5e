"""A boat's side of the uplink: the journal, the ring of the newest frames, and the sender that decides.

Connects the sender core with the journal and the ring; it does no I/O except the journal's. Its driver (the gRPC shell,
the simulator) calls `poll`, carries out the orders in sequence, and passes in the cloud's answers. Live takes frames
from the ring before they are flushed, so no delay is added; Backfill takes the journal's blocks byte for byte. An lplex
cloud gets the same frames in its own formats.

What a caller must keep: a frame is in the ring before the next `poll` after it was recorded. `now_ms` never goes back;
`now_us` is the boat's clock, which may, and is used only in what the journal writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.frames import codec_for, encode_frames
from tidelog.codecs.uplink_codec import LplexBlock
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillDone,
    BackfillGone,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Refused,
    ToBoat,
    ToCloud,
    Welcome,
)
from tidelog.core.uplink.metering import Meter
from tidelog.core.uplink.sender import Dial, Hangup, LinkState, SenderConfig, SendStatus, UplinkSender
from tidelog.edge.journal.journal import Journal
from tidelog.edge.journal.re_recording import FRAMES_MAX, ReRecording
from tidelog.edge.journal.recorded import recorded_runs
from tidelog.edge.journal.ring import Ring
from tidelog.edge.journal.upkeep import Work
from tidelog.edge.uplink.lplex_cloud import NO_FRAMES_MAX, lplex_blocks, no_frames, without_gaps
from tidelog.errors import DiskError, LogError, NameInUse

_DISK_RETRY_MS = 1_000
_METER_RETRY_MS = 60_000
_RE_RECORD_INTERVAL_MS = 1_000
"""The pause after a step of `FRAMES_MAX` frames; a smaller step causes a shorter one."""
_RE_RECORD_INTERVAL_MIN_MS = 100
_LPLEX_FRAME_BYTES = 20
_WORTH_COMPRESSING_BYTES = 160
"""A link is slower than a disk: Live compresses what a journal would not."""
_METER = "meter"
_DECLARED_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Connect:
    """Dial the cloud; then send this."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection; `disconnected` has been called already."""

    reason: str


@dataclass(frozen=True, slots=True)
class LiveFrames:
    """Send these to an lplex cloud, one by one."""

    frames: FrameColumns
    base_seq: int


@dataclass(frozen=True, slots=True)
class ForeignBlock:
    """Send this to an lplex cloud by Backfill."""

    block: LplexBlock


Out: TypeAlias = Connect | Disconnect | LiveFrames | ForeignBlock | ToCloud[MadeBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkStatistics:
    connected: bool
    cursor: int
    missing: tuple[range, ...]
    live_frames_sent: int
    backfill_blocks_sent: int
    backfill_bytes_sent: int
    reconnects: int
    dials: int
    last_ack_us: int | None
    """When it came, by the boat's clock."""
    trouble: str
    """Why the cloud is not reached, in words; empty while it is, and before the first dial."""
    name_in_use: int
    """Dials that were refused and told to wait, since another process uses this boat's name."""
    live_bytes_today: int
    backfill_bytes_today: int
    live_bytes_total: int
    backfill_bytes_total: int
    """Counters over all openings of this journal."""
    daily_bytes: int | None
    """The budget, if there is one."""


class BoatUplink:
    def __init__(
        self,
        *,
        journal: Journal,
        ring: Ring,
        config: SenderConfig,
        jitter: Callable[[], float],
        now_ms: int,
        daily_bytes: int | None = None,
        reset_hour: int = 0,
    ) -> None:
        self._journal = journal
        self._ring = ring
        self._re_recording = ReRecording(journal)
        self._re_record_at_ms = now_ms
        self._meter = Meter(daily_bytes=daily_bytes, reset_hour=reset_hour, state=journal.kept.get(_METER))
        self.sender = UplinkSender(config=config, jitter=jitter, now_ms=now_ms)
        self._sent_through = journal.declared.opened_head
        """The newest seq from this journal that the cloud can know of (B7)."""
        self._disk_retry_ms: int | None = None
        """The journal could not be flushed or read; it is not tried again before this time."""
        self._meter_retry_ms: int | None = None
        """Backfill has used its share of the day's bytes; Live may still send."""
        self._reading: Iterator[Block] | None = None
        """Backfill's place in the journal."""
        self._read_next = (b"", 0)
        """The lineage and seq that come next there."""
        self._last_ack_us: int | None = None
        self._trouble = ""
        self._name_in_use = 0
        self._live_frames_sent = 0
        self._backfill_blocks_sent = 0
        self._backfill_bytes_sent = 0

    def statistics(self) -> UplinkStatistics:
        return UplinkStatistics(
            connected=self.sender.link is LinkState.UP,
            cursor=self.sender.cursor,
            missing=tuple(self.sender.missing()),
            live_frames_sent=self._live_frames_sent,
            backfill_blocks_sent=self._backfill_blocks_sent,
            backfill_bytes_sent=self._backfill_bytes_sent,
            reconnects=self.sender.reconnects,
            dials=self.sender.dials,
            last_ack_us=self._last_ack_us,
            trouble=self._trouble,
            name_in_use=self._name_in_use,
            live_bytes_today=self._meter.live_today,
            backfill_bytes_today=self._meter.backfill_today,
            live_bytes_total=self._meter.live_total,
            backfill_bytes_total=self._meter.backfill_total,
            daily_bytes=self._meter.daily_bytes,
        )

    # --- what leaves -----------------------------------------------------------------------------

    def poll(self, now_ms: int, *, now_us: int | None = None) -> list[Out]:
        """Everything that may leave now: Live first, Backfill in what is left (seed 000)."""
        now_us = 1000 * now_ms if now_us is None else now_us
        out: list[Out] = []
        for effect in self.sender.wake(now_ms):
            match effect:
                case Dial():
                    out.append(Connect(self._hello()))
                case SendStatus():
                    self._journal.kept[_METER] = self._meter.to_state()
                    out.append(self._status())
                case Hangup(reason):
                    self.sender.disconnected(now_ms=now_ms)
                    return [*out, Disconnect(reason)]
        if self.sender.link is LinkState.UP and self._meter.left(now_us) == 0:
            return [*out, self._rest(now_ms, now_us)]
        self._re_record_some(now_ms, now_us)
        return out + self._poll_live(now_ms, now_us) + self._poll_backfill(now_ms, now_us)

    def _status(self) -> LiveStatus:
        """Report Live's position to an lplex cloud: once no hole is left, its cursor claims everything that was
        reported."""
        sender, journal = self.sender, self._journal
        head = sender.live_position() - 1 if sender.speaks_lplex else journal.head
        return LiveStatus(session=sender.session, head=head, journal_bytes=journal.size_bytes())

    def _rest(self, now_ms: int, now_us: int) -> Disconnect:
        """Send nothing more today; frames recorded meanwhile are sent by Backfill tomorrow."""
        rest_ms = (self._meter.next_day_us(now_us) - now_us) // 1000
        self.sender.rest_until(now_ms + rest_ms, now_ms=now_ms)
        self._journal.kept[_METER] = self._meter.to_state()
        return Disconnect("the day's bytes are used up; the link rests until the next day")

    def _may_re_record(self) -> bool:
        sender = self.sender
        return (
            sender.link is LinkState.UP and self._re_recording.pending and sender.live_position() > self._journal.head
        )

    def _re_record_some(self, now_ms: int, now_us: int) -> None:
        """Give frames of an older lineage new seqs, only while Live has nothing to send and as many as it may send at
        once: a larger step would make Live fall behind, again in every session.
        """
        if not self._re_recording.pending:
            self._journal.upkeep.done(Work.RE_RECORD)  # no longer needed
        if not self._may_re_record() or now_ms < self._re_record_at_ms:
            return
        self._re_record_at_ms = now_ms + _RE_RECORD_INTERVAL_MIN_MS
        room = self.sender.live_room(now_ms)
        if not room:
            return
        try:
            with self._journal.upkeep.attempt(Work.RE_RECORD):
                re_recorded = self._re_recording.step(now_us, frames_max=room)
        except DiskError:
            self._re_record_at_ms = now_ms + _DISK_RETRY_MS
            return  # the frames are still in the journal; the next step tries again
        self._journal.upkeep.done(Work.RE_RECORD)
        if re_recorded is not None:
            seqs, frames = re_recorded
            pause_ms = _RE_RECORD_INTERVAL_MS * len(seqs) // FRAMES_MAX
            self._re_record_at_ms = now_ms + max(_RE_RECORD_INTERVAL_MIN_MS, pause_ms)
            for seq, row in zip(seqs, frames.rows(), strict=True):
                self._ring.append(seq, *row)

    def wake_at_ms(self, now_ms: int) -> int:
        """When to poll next if nothing arrives, from the bus or from the cloud."""
        sender = self.sender
        moments = (
            sender.wake_at_ms(),
            sender.live_ready_at_ms(self._journal.head, now_ms=now_ms),
            self._backfill_ready_at_ms(now_ms),
            self._re_record_at_ms if self._may_re_record() else None,
        )
        return max(now_ms, min(moment for moment in moments if moment is not None))

    def _backfill_ready_at_ms(self, now_ms: int) -> int | None:
        ready_ms = self.sender.backfill_ready_at_ms(now_ms=now_ms)
        waits = (ready_ms, self._disk_retry_ms, self._meter_retry_ms)
        return None if ready_ms is None else max(moment for moment in waits if moment is not None)

    def _hello(self) -> Hello:
        journal = self._journal
        hello = Hello(
            head=journal.head,
            lineage=journal.lineage,
            journal_bytes=journal.size_bytes(),
            boot_id=journal.declared.boot_id,
            sent_through=self._sent_through,
            earlier=tuple(journal.declared.earlier),
            # The oldest first: the rest is declared once the cursor has passed these.
            lost=journal.declared.lost.freeze()[:_DECLARED_MAX],
            void=journal.declared.void.freeze()[:_DECLARED_MAX],
            orphans=tuple(sorted(journal.orphans)),
        )
        self._spoke_of(journal.declared.lost.end - 1)
        self._spoke_of(journal.declared.void.end - 1)
        return hello

    def _spoke_of(self, seq: int) -> None:
        self._sent_through = max(self._sent_through, seq)

    def _poll_live(self, now_ms: int, now_us: int) -> list[Out]:
        out: list[Out] = []
        while True:
            through = self._lplex_live_through(now_us) if self.sender.speaks_lplex else self._journal.head
            seqs = self.sender.next_live(through, now_ms=now_ms)
            if seqs is None:
                return out
            if isinstance(seqs, Hangup):
                return [*out, Disconnect(seqs.reason)]
            frames = self._ring.frames(seqs)
            if self.sender.speaks_lplex:
                try:
                    out += self._lplex_live(seqs, frames, now_us)
                except DiskError as error:
                    self.sender.disconnected(now_ms=now_ms)
                    return [*out, Disconnect(f"the journal cannot be read: {error}")]
                continue
            if frames is None:
                # Live is so far behind that the ring has moved on: what is missing becomes a hole.
                self.sender.disconnected(now_ms=now_ms)
                return [*out, Disconnect("Live fell out of the ring; the gap goes by Backfill")]
            self._live_frames_sent += len(frames)
            self._spoke_of(seqs.stop - 1)
            made = encode_frames(
                frames,
                base_seq=seqs.start,
                producer=self._journal.lineage,
                codec=codec_for(frames, worth_bytes=_WORTH_COMPRESSING_BYTES),
                level=1,
            )
            self._meter.spend(now_us, live=sum(map(len, made.buffers)))
            out.append(LiveData(session=self.sender.session, seqs=seqs, block=made))

    def _lplex_live_through(self, now_us: int) -> int:
        """How far Live may go: through the frames in the ring, else through those that are surely on disk or void."""
        journal, position = self._journal, self.sender.live_position()
        if position in self._ring.seqs or position > journal.head:
            return journal.head
        if position > journal.durable_head:
            try:
                journal.flush(now_us)
            except LogError:
                return journal.durable_head  # seqs that cannot be written yet are neither void nor gone
            return journal.head
        return journal.durable_head

    def _lplex_live(self, seqs: range, frames: FrameColumns | None, now_us: int) -> list[Out]:
        """A new lplex cloud requests the whole past over Live, so frames that have left the ring come from the
        journal."""
        journal = self._journal
        runs = [(seqs.start, frames)] if frames is not None else []
        if frames is None:
            recorded = recorded_runs(journal, journal.lineage, from_seq=seqs.start, before_seq=seqs.stop)
            runs = list(without_gaps(recorded, seqs, now_us=now_us))
        for _, run in runs:
            self._live_frames_sent += len(run)
            self._meter.spend(now_us, live=len(run.payload) + _LPLEX_FRAME_BYTES * len(run))
        self._spoke_of(seqs.stop - 1)
        return [LiveFrames(run, base_seq) for base_seq, run in runs]

    def _poll_backfill(self, now_ms: int, now_us: int) -> list[Out]:
        out: list[Out] = []
        if self._disk_retry_ms is not None and now_ms >= self._disk_retry_ms:
            self._disk_retry_ms = None
        if not self.sender.is_missing_any():
            self._journal.upkeep.done(Work.READ)  # no longer needed
        while self.sender.is_missing_any() and self._backfill_is_affordable(now_ms, now_us):
            hole = self._next_hole(now_ms, now_us)
            if hole is None:
                break
            try:
                with self._journal.upkeep.attempt(Work.READ):
                    block = self._first_in(hole)
            except DiskError:
                # Seqs that cannot be read now are not gone.
                self._disk_retry_ms = now_ms + _DISK_RETRY_MS
                break
            self._journal.upkeep.done(Work.READ)
            start = min(block.maker.seqs.start, hole.stop) if block else hole.stop
            if self.sender.speaks_lplex:
                sent = self._lplex_backfill(block, hole, now_ms, now_us)
                out += sent
                if not any(isinstance(part, ForeignBlock) for part in sent):
                    break
            elif start > hole.start:
                out += self._gone(range(hole.start, start), now_ms)
            else:
                assert block is not None
                self._spoke_of(block.maker.seqs.stop - 1)
                out += self._raw(block, now_ms, now_us)
        if self.sender.take_backfill_end():
            out.append(BackfillDone(session=self.sender.session))
        return out

    def _backfill_is_affordable(self, now_ms: int, now_us: int) -> bool:
        if self._meter_retry_ms is not None and now_ms < self._meter_retry_ms:
            return False
        self._meter_retry_ms = now_ms + _METER_RETRY_MS if self._meter.backfill_left(now_us) == 0 else None
        return self._meter_retry_ms is None

    def _gone(self, seqs: range, now_ms: int) -> list[Out]:
        self._spoke_of(seqs.stop - 1)
        self.sender.backfilled(seqs, size_bytes=0, now_ms=now_ms)
        return [BackfillGone(session=self.sender.session, seqs=seqs)]

    def _raw(self, block: Block, now_ms: int, now_us: int) -> list[Out]:
        seqs = block.maker.seqs
        self._count_backfilled(seqs, block.size, now_ms, now_us)
        session = self.sender.session
        return [BackfillData(session=session, seqs=seqs, block=block.made(), file_offset=block.position)]

    def _lplex_backfill(self, block: Block | None, hole: range, now_ms: int, now_us: int) -> list[Out]:
        """The block's part of the hole, or substitutes for seqs before it that have no frame.

        Only a status, or nothing, while the last hole must not close yet.
        """
        held = block.maker.seqs if block is not None else range(hole.stop, hole.stop)
        has_frames = held.start <= hole.start
        end = min(held.stop if has_frames else min(held.start, hole.start + NO_FRAMES_MAX), hole.stop)
        seqs = range(hole.start, end)
        if self.sender.closes_last_hole(seqs):
            if self.sender.settle(now_ms):
                return [self._status()]
            if not self.sender.is_settled(now_ms):
                return []
        if block is not None and has_frames:
            frames = decode_block_frames(block.made()).slice(seqs.start - held.start, seqs.stop - held.start)
        else:
            frames = no_frames(len(seqs), now_us if block is None else block.maker.time_min_us)
        self._spoke_of(seqs.stop - 1)
        out: list[Out] = []
        for foreign in lplex_blocks(frames, seqs.start):
            part = range(foreign.base_seq, foreign.base_seq + foreign.frame_count)
            self._count_backfilled(part, len(foreign.data), now_ms, now_us)
            out.append(ForeignBlock(foreign))
        return out

    def _count_backfilled(self, seqs: range, size_bytes: int, now_ms: int, now_us: int) -> None:
        self.sender.backfilled(seqs, size_bytes=size_bytes, now_ms=now_ms)
        self._meter.spend(now_us, backfill=size_bytes)
        self._backfill_blocks_sent += 1
        self._backfill_bytes_sent += size_bytes

    def _next_hole(self, now_ms: int, now_us: int) -> range | None:
        """The newest hole for which the journal is complete. Seqs that its disk has not taken yet are not gone."""
        hole = self.sender.next_backfill(now_ms=now_ms)
        if hole is None or hole.stop - 1 <= self._journal.durable_head:
            return hole
        if self._disk_retry_ms is None:
            try:
                # The newest part of a hole may sit in memory: flush it, or it would never be sent.
                self._journal.flush(now_us)
                return hole
            except LogError:
                self._disk_retry_ms = now_ms + _DISK_RETRY_MS
        return self.sender.next_backfill(now_ms=now_ms, through=self._journal.durable_head)

    def _first_in(self, hole: range) -> Block | None:
        """The first block of the journal that holds a seq of the hole."""
        block = self._next_in_line(hole.start)
        if block is None:
            lineage = self._journal.lineage
            self._reading = self._journal.blocks(from_seq=hole.start, producer=lineage, skip_damaged=True)
            block = next(self._reading, None)
        self._read_next = (self._journal.lineage, block.maker.seqs.stop if block is not None else 0)
        return block if block is not None and block.maker.seqs.start < hole.stop else None

    def _next_in_line(self, seq: int) -> Block | None:
        """The block after the one that was read last, if it holds this seq: finding a place costs more than reading."""
        if self._reading is None or self._read_next != (self._journal.lineage, seq):
            return None
        try:
            block = next(self._reading, None)
        except LogError:
            return None  # looking for the place anew raises the reason
        return block if block is not None and seq in block.maker.seqs else None

    # --- what arrives ----------------------------------------------------------------------------

    def receive(self, message: ToBoat, now_ms: int, *, now_us: int | None = None) -> list[Out]:
        """Take an answer of the current connection; returns what must be done at once."""
        now_us = 1000 * now_ms if now_us is None else now_us
        match message:
            case Welcome():
                if message.fork:
                    return [self._fork(now_ms, now_us)]
                self.sender.welcomed(message, now_ms=now_ms)
                self._trouble = ""
                self._journal.declared.answered()
                self._journal.acknowledge(message.cursor)
                for lineage, cursor in message.orphan_cursors:
                    self._journal.acknowledge(cursor, lineage)
                self._journal.orphans.clear()
            case LiveAck():
                if self.sender.live_acked(message, now_ms=now_ms):
                    self._acked(message.cursor, now_us)
            case BackfillAck():
                if self.sender.backfill_acked(message, now_ms=now_ms):
                    self._acked(message.cursor, now_us)
            case Refused():
                reason = self.sender.refused(message).reason
                self.failed(message.code, reason, now_ms)
                return [Disconnect(reason)]
        return []

    def _acked(self, cursor: int, now_us: int) -> None:
        self._last_ack_us = now_us
        self._journal.acknowledge(cursor)

    def _fork(self, now_ms: int, now_us: int) -> Disconnect:
        self.sender.disconnected(now_ms=now_ms)
        try:
            self._journal.fork_lineage("the cluster knows this lineage from another journal", now_us)
        except LogError as error:
            # A full disk, say: the next Handshake brings us here again.
            return Disconnect(f"the journal must start a new lineage and cannot yet: {error}")
        self._sent_through = 0
        return Disconnect("the journal starts a new lineage")

    def failed(self, kind: str, reason: str, now_ms: int) -> None:
        """The connection broke, or could not be made, for this reason; `kind` is the code of an error, if it is one."""
        self._trouble = reason
        self._name_in_use += kind == NameInUse.code
        self.disconnected(now_ms)

    def disconnected(self, now_ms: int) -> None:
        """The connection broke, or could not be made."""
        self.sender.disconnected(now_ms=now_ms)
