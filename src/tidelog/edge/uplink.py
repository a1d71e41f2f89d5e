"""A boat's side of the uplink: the journal, the ring of the newest frames, and the sender that decides.

Assembles the sender core with what the boat holds; still no I/O of its own but the journal's. Whoever
drives it (the gRPC shell, the simulator) calls `poll`, carries out what comes back in order, and passes
in the cloud's answers. Live takes frames from the ring before they are flushed, so no delay is added;
Backfill takes the journal's blocks as they lie there, byte for byte.

What a caller must keep: a frame is in the ring before the next `poll` after it was recorded. `now_ms` never
goes back; `now_us` is what the boat's clock says, which may, and is only for what the journal writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.frames import codec_for, encode_frames
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
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
from tidelog.core.uplink.sender import Dial, Hangup, Link, SenderConfig, SendStatus, UplinkSender
from tidelog.edge.journal import Journal
from tidelog.edge.ring import Ring
from tidelog.errors import DiskError, LogError

_DISK_RETRY_MS = 1_000


@dataclass(frozen=True, slots=True)
class Connect:
    """Dial the cloud; then send this."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection; `disconnected` has been taken care of."""

    reason: str


Out: TypeAlias = Connect | Disconnect | ToCloud[MadeBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkStatistics:
    connected: bool
    cursor: int
    missing: tuple[range, ...]
    live_frames_sent: int
    backfill_blocks_sent: int
    backfill_bytes_sent: int
    reconnects: int
    last_ack_ms: int | None


class BoatUplink:
    def __init__(
        self, *, journal: Journal, ring: Ring, config: SenderConfig, jitter: Callable[[], float], now_ms: int
    ) -> None:
        self._journal = journal
        self._ring = ring
        self.sender = UplinkSender(config=config, jitter=jitter, now_ms=now_ms)
        self._sent_through = journal.declared.opened_head
        """The newest seq that the cloud can know of from this journal (B7)."""
        self._disk_retry_ms: int | None = None
        """The journal could not be flushed or read; no use in trying again before."""
        self._live_frames_sent = 0
        self._backfill_blocks_sent = 0
        self._backfill_bytes_sent = 0

    def statistics(self) -> UplinkStatistics:
        return UplinkStatistics(
            connected=self.sender.link is Link.UP,
            cursor=self.sender.cursor,
            missing=tuple(self.sender.missing()),
            live_frames_sent=self._live_frames_sent,
            backfill_blocks_sent=self._backfill_blocks_sent,
            backfill_bytes_sent=self._backfill_bytes_sent,
            reconnects=self.sender.reconnects,
            last_ack_ms=self.sender.last_ack_ms,
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
                case SendStatus(session):
                    size = self._journal.size_bytes()
                    out.append(LiveStatus(session=session, head=self._journal.head, journal_bytes=size))
                case Hangup(reason):
                    self.sender.disconnected(now_ms=now_ms)
                    return [*out, Disconnect(reason)]
        return out + self._poll_live(now_ms) + self._poll_backfill(now_ms, now_us)

    def wake_at_ms(self, now_ms: int) -> int:
        """When to poll next if nothing arrives, from the bus or from the cloud."""
        sender = self.sender
        moments = (
            sender.wake_at_ms(),
            sender.live_ready_at_ms(self._journal.head, now_ms=now_ms),
            self._backfill_ready_at_ms(now_ms),
        )
        return max(now_ms, min(moment for moment in moments if moment is not None))

    def _backfill_ready_at_ms(self, now_ms: int) -> int | None:
        ready_ms = self.sender.backfill_ready_at_ms(now_ms=now_ms)
        if ready_ms is None or self._disk_retry_ms is None:
            return ready_ms
        return max(ready_ms, self._disk_retry_ms)

    def _hello(self) -> Hello:
        journal = self._journal
        hello = Hello(
            head=journal.head,
            lineage=journal.lineage,
            journal_bytes=journal.size_bytes(),
            life=journal.declared.life,
            sent_through=self._sent_through,
            earlier=tuple(journal.declared.earlier),
            lost=journal.declared.lost.freeze(),
            void=journal.declared.void.freeze(),
        )
        self._spoke_of(journal.declared.lost.end - 1)
        self._spoke_of(journal.declared.void.end - 1)
        return hello

    def _spoke_of(self, seq: int) -> None:
        self._sent_through = max(self._sent_through, seq)

    def _poll_live(self, now_ms: int) -> list[Out]:
        out: list[Out] = []
        while True:
            seqs = self.sender.next_live(self._journal.head, now_ms=now_ms)
            if seqs is None:
                return out
            if isinstance(seqs, Hangup):
                return [*out, Disconnect(seqs.reason)]
            frames = self._ring.frames(seqs)
            if frames is None:
                # Live is so far behind that the ring has moved on: what is missing becomes a hole.
                self.sender.disconnected(now_ms=now_ms)
                return [*out, Disconnect("Live fell out of the ring; the gap goes by Backfill")]
            made = encode_frames(
                frames,
                base_seq=seqs.start,
                producer=self._journal.lineage,
                codec=codec_for(frames),
                level=1,
            )
            self._live_frames_sent += len(seqs)
            self._spoke_of(seqs.stop - 1)
            out.append(LiveData(session=self.sender.session, seqs=seqs, block=made))

    def _poll_backfill(self, now_ms: int, now_us: int) -> list[Out]:
        out: list[Out] = []
        if self._disk_retry_ms is not None and now_ms >= self._disk_retry_ms:
            self._disk_retry_ms = None
        while (hole := self._next_hole(now_ms, now_us)) is not None:
            try:
                block = self._first_in(hole)
            except DiskError:
                # What cannot be read now is not gone.
                self._disk_retry_ms = now_ms + _DISK_RETRY_MS
                break
            start = block.maker.seqs.start if block else hole.stop
            if start > hole.start:
                gone = range(hole.start, min(start, hole.stop))
                self._spoke_of(gone.stop - 1)
                self.sender.backfilled(gone, size_bytes=0, now_ms=now_ms)
                out.append(BackfillGone(session=self.sender.session, seqs=gone))
                continue
            assert block is not None
            self.sender.backfilled(block.maker.seqs, size_bytes=block.size, now_ms=now_ms)
            self._spoke_of(block.maker.seqs.stop - 1)
            self._backfill_blocks_sent += 1
            self._backfill_bytes_sent += block.size
            out.append(BackfillData(session=self.sender.session, seqs=block.maker.seqs, block=block.made()))
        return out

    def _next_hole(self, now_ms: int, now_us: int) -> range | None:
        """The newest hole that the journal can speak for. What its disk has not taken yet is not gone."""
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
        blocks = self._journal.blocks(from_seq=hole.start, producer=self._journal.lineage, skip_damaged=True)
        block = next(blocks, None)
        return block if block is not None and block.maker.seqs.start < hole.stop else None

    # --- what arrives ----------------------------------------------------------------------------

    def receive(self, message: ToBoat, now_ms: int, *, now_us: int | None = None) -> list[Out]:
        """Take an answer of the current connection; returns what must be done at once."""
        match message:
            case Welcome():
                if message.fork:
                    return [self._fork(now_ms, 1000 * now_ms if now_us is None else now_us)]
                self.sender.welcomed(message, now_ms=now_ms)
                self._journal.declared.answered()
                self._journal.acknowledge(message.cursor)
            case LiveAck():
                if self.sender.live_acked(message, now_ms=now_ms):
                    self._journal.acknowledge(message.cursor)
            case BackfillAck():
                if self.sender.backfill_acked(message, now_ms=now_ms):
                    self._journal.acknowledge(message.cursor)
            case Refused():
                reason = self.sender.refused(message).reason
                self.sender.disconnected(now_ms=now_ms)
                return [Disconnect(reason)]
        return []

    def _fork(self, now_ms: int, now_us: int) -> Disconnect:
        self.sender.disconnected(now_ms=now_ms)
        try:
            self._journal.fork_lineage("the cluster knows this lineage from another journal", now_us)
        except LogError as error:
            # A full disk, say: the next Handshake brings us here again.
            return Disconnect(f"the journal must start a new lineage and cannot yet: {error}")
        self._sent_through = 0
        return Disconnect("the journal starts a new lineage")

    def disconnected(self, now_ms: int) -> None:
        """The connection broke, or could not be made."""
        self.sender.disconnected(now_ms=now_ms)
