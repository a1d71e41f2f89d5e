"""An lplex boat in the uplink world: no lineage, single frames on Live, one Backfill pass per session.

It cannot say what is gone and counts from 1 again after every restart; each *run* from one restart to the next is a
history of its own. What must hold: a lineage of the cloud never mixes two runs, every frame of a run is there at most
once, and the last run is there whole once the world has healed, but for what the boat's own retention took.

One limit of lplex is kept out of the way: a run that has grown past what the cloud knows of the one before it
before it can say so looks like that one going on. So after a restart the bus is silent until the cloud has answered.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any, Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.core.uplink.messages import BackfillAck, BackfillData, BackfillDone, Hello, LiveAck, LiveData, Welcome
from tidelog.sim.network import Connection, Link, Scheduler, Way
from tidelog.sim.uplink_cloud import START_US, SimCloud
from tidelog.sim.uplink_model import Broken, Frame, Issued, UplinkModel

_SILENCE_MS: Final = 30_000
_BLOCK_FRAMES: Final = 16
_CAN_ID: Final = 0x09F80100


class LplexModel(UplinkModel):
    """The lineages are the cloud's, so content is looked for in the runs."""

    honest = False
    refusals = frozenset({"rate_exceeded"})
    """A link that bunches single frames makes an lplex boat meet the limit."""

    def __init__(self, counters: Counter[str]) -> None:
        super().__init__(counters)
        runs = Issued()
        self.issued = defaultdict(lambda: runs)
        self.runs = runs
        self.gone: dict[int, set[int]] = defaultdict(set)
        """Seqs by run that the boat's own retention took from it."""
        self.run_of: dict[bytes, int] = {}

    def record(self, run: int, seq: int, frame: Frame) -> None:
        self.issue(b"", seq, frame, run)

    def _take_lost(self, lineage: bytes, seqs: range) -> None:
        held = self.held[lineage]
        self.touched.add(lineage)
        new = {seq for seq in seqs if seq not in held.frames}
        self.counters["lplex_lost"] += bool(new)
        if wrong := new - self.gone[self.run_of[lineage]]:
            raise Broken(f"F5: seqs {min(wrong)}..{max(wrong)} of an lplex boat are called lost; it still has them")
        held.lost.update(new)
        held.advance()


class LplexBoat:
    def __init__(
        self,
        *,
        name: str,
        scheduler: Scheduler,
        rng: random.Random,
        link: Link,
        cloud: SimCloud,
        model: LplexModel,
        counters: Counter[str],
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.rng = rng
        self.link = link
        self.cloud = cloud
        self.model = model
        self.counters = counters
        self.run = 1
        self.head = 0
        self.journal: list[range] = []
        """Blocks on disk, ascending."""
        self._flushed = 0
        self._known = False
        """Whether the cloud has answered this run."""
        self._connection: Connection | None = None
        self._session = 0
        self._heard_ms = 0
        self._holes_left = True
        self._welcomed = False
        self._lineage = b""
        self._live_next = 0
        self._healed = False
        self._pause_ms = rng.choice((150, 500, 2_000))
        scheduler.after(0, self._bus)
        scheduler.after(rng.randrange(2_000), self._tick)

    # --- what happens on board -------------------------------------------------------------------

    def _bus(self) -> bool:
        if self._healed:
            return False
        rng = self.rng
        self.scheduler.after(1 + int(rng.random() * 2 * self._pause_ms), self._bus)
        if not self._known:
            return False
        for _ in range(rng.randrange(1, 4)):
            self.head += 1
            frame = (START_US + 1000 * self.scheduler.now_ms, _CAN_ID, rng.randbytes(8))
            self.model.record(self.run, self.head, frame)
        self._send_live()
        return True

    def _tick(self) -> bool:
        """Flush, see to the connection; now and then forget all but the newest block, or restart."""
        rng = self.rng
        self.scheduler.after(1_000 + rng.randrange(1_000), self._tick)
        if self._healed or rng.random() < 0.5:
            for start in range(self._flushed + 1, self.head + 1, _BLOCK_FRAMES):
                self.journal.append(range(start, min(start + _BLOCK_FRAMES, self.head + 1)))
            self._flushed = self.head
        if not self._healed and not self._welcomed and rng.random() < 0.1:
            for seqs in self.journal[:-1]:
                self.model.gone[self.run].update(seqs)
            del self.journal[:-1]
        if not self._healed and rng.random() < 0.01:
            self._restart()
        silent = self.scheduler.now_ms - self._heard_ms > _SILENCE_MS
        # Lplex goes through its journal once per session: what that left is asked for by the next one.
        again = self._healed and self._welcomed and self._holes_left and rng.random() < 0.1
        if self._connection is None or silent or again or (not self._healed and rng.random() < 0.05):
            self._dial()
        return True

    def _restart(self) -> None:
        self.counters["lplex_restart"] += self.head > 0
        self._hang_up()
        self.run += 1
        self.head = self._flushed = 0
        self.journal = []
        self._known = False

    def heal(self) -> None:
        self._healed = True
        self.link.weather.up, self.link.weather.spike_chance = True, 0.0

    # --- the connection --------------------------------------------------------------------------

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.cut = True  # a canceled call: nothing of it arrives later
            self._connection = None

    def broken(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection, self._welcomed = None, False

    def _dial(self) -> None:
        self._hang_up()
        self._welcomed = False
        self._heard_ms = self.scheduler.now_ms
        self._connection = self.link.dial(self._deliver)
        if self._connection is not None:
            self._connection.send(Way.UP, "live", Hello(head=self.head, journal_bytes=1 + self._flushed))

    def _deliver(self, connection: Connection, way: Way, message: Any) -> bool:
        if connection is not self._connection:
            return False
        if way is Way.DOWN:
            self._receive(message)
            return True
        known = self.cloud.channels.get(self.name)
        if known is None:
            return False
        if isinstance(message, Hello):
            taken = self.cloud.receive(self.name, connection, message)
            self._lineage = known.channel.receiver.lineage or b""
            self.model.run_of[self._lineage] = self.run
            return taken
        if isinstance(message, range):
            # The cloud's edge makes blocks of what an lplex boat sends, in the lineage it has chosen for it.
            block, session = self._block(message), self._session
            message = LiveData(session=session, seqs=message, block=block)
        return self.cloud.receive(self.name, connection, message)

    def _block(self, seqs: range) -> MadeBlock:
        rows = [self.model.runs.contents[self.run][seq] for seq in seqs]
        return encode_frames(FrameColumns.from_rows(rows), base_seq=seqs.start, producer=self._lineage)

    def _receive(self, message: Any) -> None:
        self._heard_ms = self.scheduler.now_ms
        if isinstance(message, Welcome):
            self.counters["lplex_session"] += 1
            self._known = self._welcomed = True
            self._session = message.session
            self._live_next = message.live_start
            self._holes_left = bool(message.holes)
            self.model.check_ack(self._lineage, message.cursor, self.run, "Welcome")
            self._backfill(message.holes)
            self._send_live()
        elif isinstance(message, LiveAck | BackfillAck):
            if message.session == self._session:
                self.model.check_ack(self._lineage, message.cursor, self.run, type(message).__name__)
        else:
            self._hang_up()

    def _send_live(self) -> None:
        if self._connection is None or not self._welcomed:
            return
        for seq in range(max(self._live_next, 1), self.head + 1):
            self._connection.send(Way.UP, "live", range(seq, seq + 1))
        self._live_next = max(self._live_next, self.head + 1)

    def _backfill(self, holes: tuple[range, ...]) -> None:
        """One pass over the journal, oldest block first, then the end of the stream."""
        assert self._connection is not None
        for seqs in self.journal:
            if any(hole.start < seqs.stop and seqs.start < hole.stop for hole in holes):
                block = self._block(seqs)
                self._connection.send(Way.UP, "backfill", BackfillData(session=self._session, seqs=seqs, block=block))
        if self.journal:
            self._connection.send(Way.UP, "backfill", BackfillDone(session=self._session))

    # --- the end ---------------------------------------------------------------------------------

    def is_restless(self) -> bool:
        return not self._known or not self._lineage or bool(self._missing())

    def _missing(self) -> set[int]:
        """What the boat still has and the cloud has not.

        What retention took may stay a hole for ever: the cloud calls it lost only after a later block came by Backfill.
        """
        issued = self.model.runs.contents[self.run].keys()
        return issued - self.model.held[self._lineage].frames.keys() - self.model.gone[self.run]

    def unrest(self) -> str:
        held = self.model.held[self._lineage]
        return f"{self.name} head {self.head} flushed {self._flushed}, cloud cursor {held.cursor}"

    def check_end(self) -> None:
        if missing := self._missing():
            raise Broken(f"F5: {len(missing)} frames of an lplex boat's last run are not in the cloud")
