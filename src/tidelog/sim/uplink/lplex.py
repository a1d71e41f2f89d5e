"""An lplex boat in the uplink world: no lineage, single frames on Live, one Backfill pass per session.

It cannot declare lost seqs and counts from 1 again after every restart; each *run* from one restart to the next is a
history of its own. Its files stay over a restart, and are sent for any run with their seqs. Its bus sends before the
Handshake, its largest lag is a setting of its own, its clock is set back and forth, its newest frames lie in a ring and
in a block that is not written yet, and its writer spoils a block now and then. Some keep no journal; some write blocks
that only lplex can read.

What must hold: a lineage of the cloud never mixes two runs; a frame is in one lineage, once; nothing is called lost
that the boat can still send; and once the world has healed, all that the boat has of runs that the cloud has heard of
is there.

Two limits of lplex are kept out of the way. Runs follow each other in time: a clock that was set back is right again
after a restart, and is not set back to before its run began. And a boat whose files tell nothing (none, or unreadable
ones) does not count past what the cloud knows of the run before until the cloud has answered.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.foreign import Salvaged, salvage_foreign
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.lpj import LpjCompression
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillDone,
    BackfillUnread,
    Hello,
    LiveAck,
    LiveData,
    Refused,
    Welcome,
)
from tidelog.sim.network import Connection, Scheduler, SimLink, Way
from tidelog.sim.uplink.cloud import START_US, SimCloud
from tidelog.sim.uplink.lplex_blocks import journal_times, overwritten_lpj_block
from tidelog.sim.uplink.model import Frame, HeldInCloud, IssuedFrames, UplinkBroken, UplinkModel

_SILENCE_MS: Final = 30_000
_ARRIVES_MS: Final = 400
"""What is sent has arrived by then."""
_LAG_RECONNECT_MS: Final = 30_000
_LAG_AT_LEAST: Final = 64
"""A boat that leaves sooner would never bring a block that it has not written yet, and the 16 frames before it."""
_GATHERED_FRAMES: Final = 16
_LPJ_BYTES: Final = 4_096
_CAN_ID: Final = 0x09F80100
_ASKED_AT_LEAST: Final = 16
"""However small the cloud assumes a ring to be, it requests this many frames."""


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block in one of the boat's files."""

    run: int
    seqs: range
    spoiled: int = 0
    """Records at its end that a device entry was written over."""


class LplexModel(UplinkModel):
    """The lineages are the cloud's, so content is looked up in the runs."""

    honest = False
    refusals = frozenset({"rate_exceeded"})
    """A link that bunches single frames makes an lplex boat meet the limit."""

    def __init__(self, counters: Counter[str]) -> None:
        super().__init__(counters)
        runs = IssuedFrames()
        self.issued = defaultdict(lambda: runs)
        self.runs = runs
        self.gone: dict[int, set[int]] = defaultdict(set)
        """Seqs by run that the boat cannot send any more, or never could."""
        self.late: dict[tuple[int, int], Frame] = {}
        """By run and seq: the journal's time of a frame after a step back of the clock."""
        self.run_of: dict[bytes, int] = {}
        self.run = 1
        """The current run."""
        self.lineage_of: dict[tuple[int, int], bytes] = {}
        self.keeps_journal = True
        self.unasked_below = 0
        """For a boat without a journal: below this is more than any cloud requests from its ring."""

    def record(self, run: int, seq: int, frame: Frame) -> None:
        self.issue(b"", seq, frame, run)

    def _take_run(
        self, lineage: bytes, issued: IssuedFrames, held: HeldInCloud, seqs: range, rows: list[Frame]
    ) -> None:
        for seq, row in zip(seqs, rows, strict=True):
            run = self._owner(lineage, seq, row)
            if run is None:
                raise UplinkBroken(f"6: seq {seq} of an lplex boat is not what its bus gave it in any run")
            known = self.run_of.setdefault(lineage, run)
            if known != run:
                raise UplinkBroken(
                    f"F6: seq {seq} of lineage {lineage.hex()[:8]} is of run {run}, others of run {known}"
                )
            if (other := self.lineage_of.setdefault((run, seq), lineage)) != lineage:
                raise UplinkBroken(f"6: seq {seq} of run {run} is in {lineage.hex()[:8]} and in {other.hex()[:8]}")
            held.frames[seq] = run
            held.lost.discard(seq)

    def _owner(self, lineage: bytes, seq: int, row: Frame) -> int | None:
        known = self.run_of.get(lineage)
        runs = self.runs.contents
        for run in (known, *runs) if known is not None else runs:
            if runs[run].get(seq) == row or self.late.get((run, seq)) == row:
                return run
        return None

    def _take_lost(self, lineage: bytes, seqs: range) -> None:
        held = self.held[lineage]
        self.touched.add(lineage)
        new = {seq for seq in seqs if seq not in held.frames}
        self.counters["lplex_lost"] += bool(new)
        run = self.run_of.get(lineage, self.run)
        # Blocks of one run with a gap between them may be in two lineages: what one lacks the other may hold.
        wrong = {seq for seq in new - self.gone[run] if (run, seq) not in self.lineage_of}
        if run != self.run:
            # The cloud does not learn where a run ended, and the head that it was sent may be that of the next run:
            # seqs that the boat never gave to the run are called lost along with those that are.
            wrong &= self.runs.contents[run].keys()
        if not self.keeps_journal and run == self.run:
            wrong = {seq for seq in wrong if seq >= self.unasked_below}
        if wrong:
            raise UplinkBroken(
                f"F5: seqs {min(wrong)}..{max(wrong)} of an lplex boat are called lost; it still has them"
            )
        held.lost.update(new)
        held.advance()

    def missing(self) -> set[tuple[int, int]]:
        """Frames that the boat can send, of runs that the cloud knows, and that the cloud does not have."""
        heard = set(self.run_of.values())
        lost = {(self.run_of[key], seq) for key, held in self.held.items() if key in self.run_of for seq in held.lost}
        return {
            (run, seq)
            for run in heard
            for seq in self.runs.contents[run]
            if seq not in self.gone[run] and (run, seq) not in self.lineage_of and (run, seq) not in lost
        }


class LplexBoat:
    def __init__(
        self,
        *,
        name: str,
        scheduler: Scheduler,
        rng: random.Random,
        link: SimLink,
        cloud: SimCloud,
        model: LplexModel,
        counters: Counter[str],
        settings: random.Random,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.rng = rng
        self.link = link
        self.cloud = cloud
        self.model = model
        self.counters = counters
        self.head = 0
        self.files: list[FileBlock] = []
        """Blocks on disk, in the order in which they were written, of all runs."""
        limits = cloud.limits
        self._max_lag = max(_LAG_AT_LEAST, int(limits.max_live_lag * settings.choice((1 / 8, 1 / 2, 1))))
        self.counters["lplex_short_lag"] += self._max_lag < limits.max_live_lag
        self._lag_check_frames = settings.choice((10, 40))
        self._ring_frames = 40 if rng.random() < 0.1 else limits.ring_frames + 100
        self._journal = rng.choice(("plain", "plain", "plain", "plain", "none", "dictionaries"))
        model.keeps_journal = self._journal != "none"
        self.counters[f"lplex_{self._journal}"] += 1
        self._block_frames = rng.choice((8, 16, 24))
        self._is_steady = rng.random() < 0.15
        """Its bus sends the same all the time: then only times tell its runs apart, and its clock is right."""
        self._flushed = 0
        self._clock_us = 0
        self._newest_us = 0
        self._began_us = START_US
        self._known = False
        """Whether the cloud has answered this run."""
        self._connection: Connection | None = None
        self._session = 0
        self._lineages: set[bytes] = set()
        """The runs of this session: acks belong to one of them."""
        self._heard_ms = 0
        self._dial_at_ms = 0
        self._lag_exit_ms = -_LAG_RECONNECT_MS
        self._welcomed = False
        self._live_next = 0
        self._live_sent = 0
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
        tells_nothing = self._journal != "plain"
        if not self._known and tells_nothing and self.head >= min(self._max_lag, self._ring_frames) // 2:
            return False
        for _ in range(rng.randrange(1, 4)):
            self._record()
        self._send_live()
        return True

    def _record(self) -> None:
        self.head += 1
        now_us = self._now_us()
        self._newest_us = max(self._newest_us, now_us)
        payload = b"steady.." if self._is_steady else self.rng.randbytes(8)
        self.model.record(self.model.run, self.head, (now_us, _CAN_ID, payload))
        if self._journal != "none" and self.head - self._flushed >= self._block_frames:
            self._flush()
        if not self.model.keeps_journal:
            reach = min(self._max_lag, self.cloud.limits.ring_frames, _ASKED_AT_LEAST)
            self.model.unasked_below = self.head - reach

    def _flush(self) -> None:
        """A block is full, or lplex stops."""
        run, seqs = self.model.run, range(self._flushed + 1, self.head + 1)
        self._flushed = self.head
        if not seqs:
            return
        spoiled = self.rng.randrange(1, 3) if len(seqs) > 3 and self.rng.random() < 0.1 else 0
        self.files.append(FileBlock(run, seqs, spoiled))
        for seq, row in zip(seqs, journal_times(self._frames(run, seqs)).rows(), strict=True):
            if row != self.model.runs.contents[run][seq]:
                self.model.late[run, seq] = row
        if self._journal == "dictionaries":
            self.model.gone[run].update(seqs)
        elif spoiled:
            self.counters["lplex_odd"] += 1
            self.model.gone[run].update(seqs[-spoiled:])

    def _tick(self) -> bool:
        """Handle the connection; sometimes step the clock, remove the oldest files, or restart."""
        rng = self.rng
        self.scheduler.after(1_000 + rng.randrange(1_000), self._tick)
        if not self._healed:
            if rng.random() < 0.03 and not self._is_steady:
                self._step_clock(rng.choice((-20, -3, 3, 3600)) * 1_000_000)
            if not self._welcomed and rng.random() < 0.05:
                self._forget_files(rng.randrange(1, 4))
            if rng.random() < 0.02:
                self._restart()
        now_ms = self.scheduler.now_ms
        silent = now_ms - self._heard_ms > _SILENCE_MS
        if self._connection is None or silent or (not self._healed and rng.random() < 0.05):
            self._dial()
        return True

    def _step_clock(self, step_us: int) -> None:
        if self._now_us() + step_us > self._began_us:
            self._clock_us += step_us
            self.counters["lplex_step"] += 1

    def _now_us(self) -> int:
        return START_US + 1000 * self.scheduler.now_ms + self._clock_us

    def _forget_files(self, count: int) -> None:
        """Retention removes the oldest, whether the cloud has them or not."""
        for block in self.files[:-1][:count]:
            self.model.gone[block.run].update(block.seqs)
            self.files.remove(block)

    def _restart(self) -> None:
        """Cleanly, or by a power cut that takes what was not written. The files stay."""
        self.counters["lplex_restart"] += self.head > 0
        self._hang_up()
        model = self.model
        if self._journal == "none":
            model.gone[model.run].update(model.runs.contents[model.run])
        elif self.rng.random() < 0.5:
            self._flush()
        else:
            model.gone[model.run].update(range(self._flushed + 1, self.head + 1))
        model.run += 1
        model.unasked_below = 0
        self.head = self._flushed = 0
        self._known = False
        self._clock_us = max(0, self._newest_us + 1_000_000 - START_US - 1000 * self.scheduler.now_ms)
        self._began_us = self._now_us()

    def heal(self) -> None:
        self._healed = True
        self.link.weather.up, self.link.weather.spike_chance = True, 0.0

    def _frames(self, run: int, seqs: range) -> FrameColumns:
        return FrameColumns.from_rows(self.model.runs.contents[run][seq] for seq in seqs)

    # --- the connection --------------------------------------------------------------------------

    def _hang_up(self) -> None:
        self._welcomed = False
        if self._connection is not None:
            self._connection.cut = True  # a canceled call: nothing of it arrives later
            self._connection = None

    def broken(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection, self._welcomed = None, False

    def _dial(self) -> None:
        if self.scheduler.now_ms < self._dial_at_ms:
            return
        self._hang_up()
        self._heard_ms = self.scheduler.now_ms
        self._connection = self.link.dial(self._deliver)
        if self._connection is not None:
            journal_bytes = 0 if self._journal == "none" else 16 + len(self.files)
            self._connection.send(Way.UP, "live", Hello(head=self.head, journal_bytes=journal_bytes))

    def _deliver(self, connection: Connection, way: Way, message: Any) -> bool:
        if connection is not self._connection:
            return False
        if way is Way.DOWN:
            self._receive(message)
            return True
        known = self.cloud.channels.get(self.name)
        if known is None:
            return False
        receiver = known.channel.receiver
        before = receiver.lineage
        if isinstance(message, Hello):
            self._lineages.clear()
        elif isinstance(message, range):
            # The cloud's edge makes blocks of what an lplex boat sends, in the lineage it has chosen for it.
            frames = self._frames(self.model.run, message)
            block = encode_frames(frames, base_seq=message.start, producer=before or b"")
            message = LiveData(session=self._session, seqs=message, block=block)
        taken = self.cloud.receive(self.name, connection, message)
        if receiver.lineage is not None:
            self._lineages.add(receiver.lineage)
        if not isinstance(message, Hello) and receiver.lineage != before:
            self.counters["lplex_switch"] += 1
        return taken

    def _receive(self, message: Any) -> None:
        self._heard_ms = self.scheduler.now_ms
        if isinstance(message, Welcome):
            self.counters["lplex_session"] += 1
            self._known = self._welcomed = True
            self._session = message.session
            self._live_next = message.live_start if 0 < message.live_start <= self.head + 1 else self.head + 1
            self._live_sent = 0
            self._check_ack(message.cursor)
            if message.holes:
                self._backfill(message.holes)
            self._send_live()
        elif isinstance(message, LiveAck | BackfillAck):
            if message.session == self._session:
                self._check_ack(message.cursor)
        else:
            assert isinstance(message, Refused)
            self.counters["lplex_again"] += message.code == "holes_left"
            self._hang_up()

    def _check_ack(self, cursor: int) -> None:
        """A cursor is durable: of the lineage that spoke when it was told."""
        self.model.checks += 1
        durable = max((self.model.held[lineage].cursor for lineage in self._lineages), default=0)
        if cursor > durable:
            raise UplinkBroken(f"9: an lplex boat was told {cursor}, durable are {durable}")

    def _send_live(self) -> None:
        """From the ring, as fast as possible; more than the largest lag behind, it leaves and dials again."""
        if self._connection is None or not self._welcomed:
            return
        while self._live_next <= self.head:
            if self._live_next <= self.head - self._ring_frames:
                self.counters["lplex_fallen_behind"] += 1
                self._dial_at_ms = self.scheduler.now_ms + self.rng.randrange(1_000, 4_000)
                self._hang_up()
                return
            to_check = self._lag_check_frames - self._live_sent % self._lag_check_frames
            stop = min(self._live_next + min(_GATHERED_FRAMES, to_check), self.head + 1)
            self._connection.send(Way.UP, "live", range(self._live_next, stop))
            self._live_sent += stop - self._live_next
            self._live_next = stop
            if self._live_sent % self._lag_check_frames == 0 and self.head - self._live_next > self._max_lag:
                self._leave_for_lag()
                return

    def _leave_for_lag(self) -> None:
        """What was sent arrives: the call ends behind it."""
        self.counters["lplex_lag_exit"] += 1
        now_ms, connection = self.scheduler.now_ms, self._connection
        self._dial_at_ms = max(now_ms + _ARRIVES_MS, self._lag_exit_ms + _LAG_RECONNECT_MS)
        self._lag_exit_ms = self._dial_at_ms
        self._welcomed = False

        def leave() -> None:
            if self._connection is connection:
                self._hang_up()
                self._dial()

        self.scheduler.at(self._dial_at_ms, leave)

    def _backfill(self, holes: tuple[range, ...]) -> None:
        """One pass over the files for each hole, the newest hole first, then the end of the stream."""
        assert self._connection is not None
        if self._journal == "none":
            return  # lplex leaves the stream open
        for hole in sorted(holes, key=lambda hole: hole.start, reverse=True):
            for block in self.files:
                if hole.start < block.seqs.stop and block.seqs.start < hole.stop:
                    self.counters["lplex_old_files"] += block.run != self.model.run
                    self._connection.send(Way.UP, "backfill", self._block_message(block))
        self._connection.send(Way.UP, "backfill", BackfillDone(session=self._session))

    def _block_message(self, block: FileBlock) -> Any:
        frames = journal_times(self._frames(block.run, block.seqs))
        seqs, session, first_us = block.seqs, self._session, int(frames.times_us[0])
        if self._journal == "dictionaries":
            return BackfillUnread(session=session, seqs=seqs, time_us=first_us)
        if not block.spoiled:
            return BackfillData(session=session, seqs=seqs, block=encode_frames(frames, base_seq=seqs.start))
        found = _spoiled(frames, seqs.start, block.spoiled)
        assert found.made is not None
        good = found.made.maker.seqs
        return BackfillData(session=session, seqs=good, block=found.made, lost=found.lost, problem=found.problem)

    # --- the end ---------------------------------------------------------------------------------

    def is_restless(self) -> bool:
        if not self._known or not self._welcomed or bool(self.model.missing()):
            return True
        # Unreadable blocks, and frames in no journal, are lost in the end: the cursor passes them.
        return self._journal != "plain" and self._cursor() < self.head

    def _cursor(self) -> int:
        channel = self.cloud.channels.get(self.name)
        lineage = channel.channel.receiver.lineage if channel is not None else None
        return self.model.held[lineage or b""].cursor

    def unrest(self) -> str:
        missing = sorted(self.model.missing())
        return (
            f"{self.name} ({self._journal}) run {self.model.run} head {self.head} flushed {self._flushed}, cursor "
            f"{self._cursor()}, {len(missing)} missing from {missing[:1]} to {missing[-1:]}"
        )

    def check_end(self) -> None:
        if missing := self.model.missing():
            raise UplinkBroken(f"F5: {len(missing)} frames that an lplex boat has are not in the cloud")


def _spoiled(frames: FrameColumns, base_seq: int, records: int) -> Salvaged:
    """The block as lplex left it, and as the cloud's edge reads it."""
    block = overwritten_lpj_block(frames, base_seq=base_seq, block_size=_LPJ_BYTES, records=records)
    return salvage_foreign(block, version=2, compression=LpjCompression.NONE, block_size=_LPJ_BYTES)
