"""The cloud of lplex, with a Tidelog boat.

It knows no sessions, takes single frames on Live and blocks of an lplex journal on Backfill, and acks only after a
frame. Its cursor moves by the next seq on Live, and with Backfill to the first hole; once none is left it jumps to the
head that it last heard of. Each Handshake asks for all that lies above the cursor. It has no message for void or lost
seqs, and refuses a boat that is too fast.

What must hold: a seq has the frame of the bus, or the substitute for a missing one where that is true; every seq below
the cursor has come; only seqs that a Handshake requested again come twice.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import decode_lpj_block, inflate_lpj
from tidelog.codecs.uplink_codec import LplexBlock
from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.budget import TokenBucket
from tidelog.core.uplink.messages import BackfillAck, BackfillDone, Hello, LiveAck, LiveStatus, Welcome
from tidelog.edge.uplink.lplex_cloud import NO_FRAME_ID, NO_FRAME_PAYLOAD
from tidelog.edge.uplink.uplink import ForeignBlock, LiveFrames
from tidelog.sim.network import Connection, Scheduler, Way
from tidelog.sim.uplink.cloud import SimChannel
from tidelog.sim.uplink.model import Frame, UplinkBroken, UplinkModel

RATE_FRAMES_PER_S: Final = 2_000
BURST_FRAMES: Final = 500
_ACK_MS: Final = 5_000


class SimLplexCloud:
    def __init__(self, *, scheduler: Scheduler, model: UplinkModel, counters: Counter[str], timeline: int) -> None:
        self.channels: dict[str, SimChannel] = {}
        """None: the shape of Tidelog's clouds."""
        self.scheduler = scheduler
        self.model = model
        self.counters = counters
        self.timeline = timeline
        self.cursor = 0
        self.head = 0
        self.holes = RangeSet()
        self.rows: dict[int, Frame] = {}
        """By seq; a frame is not replaced by a substitute."""
        self.lineage = b""
        """The lineage of the boat's journal. The cloud does not know it; the account does."""
        self._connection: Connection | None = None
        self._came: set[int] = set()
        """Since the Handshake."""
        self._bucket: TokenBucket | None = None
        self._is_known = False
        self._answered = 0
        self._acked_ms = 0

    def receive(self, name: str, connection: Connection, message: Any) -> bool:
        if isinstance(message, Hello):
            self._handshake(connection, message)
            return True
        if connection is not self._connection:
            return False  # a canceled call
        match message:
            case LiveStatus():
                if self._is_known:  # before the first frame its boat is not known
                    self.head = message.head
            case LiveFrames():
                self._live(connection, message)
            case ForeignBlock(block):
                self._backfill(connection, block)
            case BackfillDone():
                self.counters["fed_done"] += 1
            case _:
                raise UplinkBroken(f"an lplex cloud knows no {type(message).__name__}")
        return True

    def _handshake(self, connection: Connection, hello: Hello) -> None:
        if self.lineage not in (b"", hello.lineage):
            raise UplinkBroken("the boat began a new lineage without a reason")
        self.lineage = hello.lineage or b""
        self.counters["fed_session"] += 1
        self._connection = connection
        self._came.clear()
        self._is_known, self._answered, self._acked_ms = False, 0, self.scheduler.now_ms
        self._bucket = TokenBucket(per_s=RATE_FRAMES_PER_S, burst=BURST_FRAMES, now_ms=self.scheduler.now_ms)
        self.head = hello.head
        if self.cursor and self.head > self.cursor + 1:
            self.holes.add(range(self.cursor + 1, self.head))
            self.counters["fed_hole"] += 1
        welcome = Welcome(
            session=0,
            cursor=self.cursor,
            holes=tuple(self.holes),
            live_start=self.head if self.cursor else 1,
            known=self.cursor > 0,
            rate_frames_per_s=RATE_FRAMES_PER_S,
            burst_frames=BURST_FRAMES,
        )
        connection.send(Way.DOWN, "live", welcome)

    def _live(self, connection: Connection, message: LiveFrames) -> None:
        now_ms = self.scheduler.now_ms
        assert self._bucket is not None
        if not self._bucket.take(len(message.frames), now_ms):
            raise UplinkBroken(f"an lplex cloud refuses {len(message.frames)} frames more: the boat is too fast")
        self._is_known = True
        self._take(message.base_seq, message.frames)
        for seq in range(message.base_seq, message.base_seq + len(message.frames)):
            self.cursor += seq == self.cursor + 1
        self._check_cursor()
        if now_ms - self._acked_ms >= _ACK_MS:
            self._acked_ms = now_ms
            connection.send(
                Way.DOWN, "live", LiveAck(session=0, cursor=self.cursor, committed_through=self.cursor, holes=())
            )

    def _backfill(self, connection: Connection, block: LplexBlock) -> None:
        decoded = decode_lpj_block(inflate_lpj(block.data, block_size=block.block_size), version=2)
        if (decoded.base_seq, len(decoded.frames)) != (block.base_seq, block.frame_count):
            raise UplinkBroken("a block for an lplex cloud is not what its message says")
        self._take(block.base_seq, decoded.frames)
        self.holes.remove(range(block.base_seq, block.base_seq + block.frame_count))
        self.cursor = max(self.cursor, self.holes.start - 1 if self.holes else self.head)
        self._check_cursor()
        self._answered += 1
        answer = BackfillAck(session=0, cursor=self.cursor, answered=self._answered, remaining=tuple(self.holes))
        connection.send(Way.DOWN, "backfill", answer)

    # --- the account -----------------------------------------------------------------------------

    def _take(self, base_seq: int, frames: FrameColumns) -> None:
        self.model.checks += 1
        held = self.model.held[self.lineage]
        for place, row in enumerate(frames.rows()):
            seq = base_seq + place
            if seq in self._came or (seq <= self.cursor and seq in self.rows):
                raise UplinkBroken(f"seq {seq} came to an lplex cloud twice; its cursor is {self.cursor}")
            self._came.add(seq)
            if self._is_frame(seq, row):
                self.rows[seq] = row
            else:
                self.counters["fed_void"] += 1
                self.rows.setdefault(seq, row)
            held.frames[seq] = self.timeline
        held.advance()

    def _is_frame(self, seq: int, row: Frame) -> bool:
        """Whether this is the frame of its seq. False for a substitute."""
        issued = self.model.issued[self.lineage]
        content = issued.contents[self.timeline].get(seq)
        if row == content:
            return True
        if row[1:] != (NO_FRAME_ID, NO_FRAME_PAYLOAD):
            raise UplinkBroken(f"6: seq {seq} came to an lplex cloud with a frame that no bus gave it")
        if content is not None and seq not in issued.cut and seq not in issued.gone:
            raise UplinkBroken(f"an lplex cloud is told that there is no frame {seq}, and there is one")
        self.counters["fed_gone"] += seq in issued.gone
        return False

    def _check_cursor(self) -> None:
        came = self.model.held[self.lineage].cursor
        if self.cursor > came:
            raise UplinkBroken(f"the cursor of an lplex cloud is {self.cursor}, and only {came} frames have come")
