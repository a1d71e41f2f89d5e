"""A boat of the uplink world: disk, journal, ring and `BoatUplink`, a bus with traffic, and a driver.

The driver keeps the contract of the production code: it polls when asked to, wakes the journal, drops answers to older
connections, and reports broken ones. Everything that can happen to the boat's machine is here too; the world decides
what happens.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final, Protocol

from tidelog.blocks.columns import FrameColumns
from tidelog.core.uplink.messages import BackfillAck, BackfillData, BackfillGone, LiveAck, LiveData, LiveStatus, Welcome
from tidelog.core.uplink.sender import LinkState as LinkState
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.edge.journal.ring import Ring
from tidelog.edge.uplink.uplink import BoatUplink, Connect, Disconnect, Out
from tidelog.errors import DiskFull
from tidelog.sim.network import Connection, Scheduler, SimLink, Way
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.sim.uplink.cloud import START_US, SimChannel
from tidelog.sim.uplink.model import Frame, UplinkBroken, UplinkModel

FOLDER: Final = "boat"
POLLS_AT_ONCE_MAX: Final = 200
DIAL_WINDOWS_MS: Final = (20_000, 40_000)
Owned = dict[bytes, set[int]]


class ReachableCloud(Protocol):
    """The cloud that a boat talks to."""

    channels: dict[str, SimChannel]

    def receive(self, name: str, connection: Connection, message: Any) -> bool:
        """False when there is no receiver."""


class SimBoat:
    live_messages: tuple[type, ...] = (LiveData, LiveStatus)
    backfill_messages: tuple[type, ...] = (BackfillData, BackfillGone)

    def __init__(
        self,
        *,
        name: str,
        scheduler: Scheduler,
        rng: random.Random,
        link: SimLink,
        cloud: ReachableCloud,
        model: UplinkModel,
        counters: Counter[str],
        journal_options: JournalOptions,
        sender_config: SenderConfig,
        ring_frames: int,
        disk: PluggedDisk,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.rng = rng
        self.link = link
        self.cloud = cloud
        self.model = model
        self.counters = counters
        self.journal_options = journal_options
        self.sender_config = sender_config
        self.ring_frames = ring_frames
        self.disk = disk
        self.timeline = 0
        self.own: Owned = defaultdict(set)
        """Seqs that this machine has recorded and not lost, by lineage."""
        self.clock_jump_us = 0
        self.bus_frames = 3
        self.bus_pause_ms = 400
        self.burst_frames = 0
        self.connection: Connection | None = None
        self.connections = 0
        self.running = False
        self._dials: list[int] = []
        self._dials_max = {window_ms: dials_max(sender_config, window_ms) for window_ms in DIAL_WINDOWS_MS}
        self._dials_of: BoatUplink | None = None
        self._is_lag_dial = False
        self._poll_at_ms: int | None = None
        self._polled_ms = -1
        self._polls_at_once = 0
        self._forced_out_noted = 0
        self.journal: Journal
        self.ring: Ring
        self.uplink: BoatUplink

    # --- runs ------------------------------------------------------------------------------------

    def clock_us(self) -> int:
        return START_US + 1000 * self.scheduler.now_ms + self.clock_jump_us

    def open(self) -> None:
        if self.running:
            return
        self.disk.cut_after = None
        for _ in range(2):
            try:
                self.journal = open_journal(
                    self.disk,
                    FOLDER,
                    now_us=self.clock_us(),
                    new_lineage=lambda: self.rng.randbytes(16),
                    options=self.journal_options,
                )
                break
            except DiskFull:
                self.disk.faults.capacity_bytes = None
        self._account_for_carried()
        self.ring = Ring(frames_max=self.ring_frames)
        self.uplink = BoatUplink(
            journal=self.journal,
            ring=self.ring,
            config=self.sender_config,
            jitter=self.rng.random,
            now_ms=self.scheduler.now_ms,
        )
        self.connection = None
        self.running = True
        self._forced_out_noted = 0
        self.check_journal()
        self._boot += 1
        self._bus(self._boot)
        self._tick(self._boot)
        self.poll()

    _boot = 0

    def _account_for_carried(self) -> None:
        """Frames of an older lineage that are re-recorded come from no bus; the model gets them here."""
        journal, record_many = self.journal, self.journal.record_many

        def record(frames: FrameColumns, now_us: int) -> range:
            lineage, start = journal.lineage, journal.head + 1
            seqs = range(start, start + len(frames))
            for seq, row in zip(seqs, frames.rows(), strict=True):
                self.model.issue(lineage, seq, row, self.timeline)
            try:
                return record_many(frames, now_us)
            finally:
                # A power cut may come before they have their numbers, or after it.
                if journal.head >= start:
                    self.own[lineage].update(seqs)
                    self.counters["carried"] += 1
                else:
                    self.model.take_back(lineage, seqs, self.timeline)

        journal.record_many = record  # type: ignore[method-assign]

    def power_cut(self) -> None:
        """The power fails: what was in memory only is gone, and un-synced writes are torn."""
        self.counters["boat_crash"] += 1
        self.note_forced_out()
        journal = self.journal
        for seq in range(journal.durable_head + 1, journal.head + 1):
            if seq in self.own[journal.lineage]:
                self.own[journal.lineage].discard(seq)
                self.model.issued[journal.lineage].cut.add(seq)
        self.disk.crash()
        self._off()

    def stop(self) -> None:
        """A clean restart."""
        try:
            self.journal.close(self.clock_us())
        except DiskFull:
            self.counters["full"] += 1
            self.disk.faults.capacity_bytes = None
            self.journal.close(self.clock_us())
        self.note_forced_out()
        self.counters["boat_restart"] += 1
        self._off()

    def _off(self) -> None:
        self.running = False
        self._poll_at_ms = None
        if self.connection is not None:
            # What was sent may still arrive; sometimes the cloud never hears that the boat is gone.
            self.connection.close(Way.DOWN)
            self.connection = None

    def guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except PowerCut:
            self.counters["torn"] += 1
            self.power_cut()
            self.scheduler.after(self.rng.randrange(100, 30_000), self.open)

    def note_forced_out(self) -> None:
        """Frames that the disk limit removed, and that the journal declared, may be lost."""
        forced_lost = self.journal._forced_lost
        for seqs in forced_lost[self._forced_out_noted :]:
            for lineage, own in self.own.items():
                self.model.issued[lineage].gone.update(own.intersection(seqs))
                own.difference_update(seqs)
        self._forced_out_noted = len(forced_lost)

    def journaled(self) -> set[int]:
        """The seqs of the current lineage that the journal holds on disk."""
        found: set[int] = set()
        for block in self.journal.blocks(producer=self.journal.lineage):
            found.update(block.maker.seqs)
        return found

    def check_journal(self) -> None:
        """9: nothing above the ack is missing, unless it was reported lost. What survived a power cut is not cut."""
        journal = self.journal
        found = self.journaled()
        survived = found - self.own[journal.lineage]
        issued = self.model.issued[journal.lineage]
        survived &= issued.contents[self.timeline].keys()
        issued.cut -= survived
        self.own[journal.lineage] |= survived
        unflushed = range(journal.durable_head + 1, journal.head + 1)
        # A full disk may have refused to save the newest ack; what the cloud holds may be gone all the same.
        acked = self.model.held[journal.lineage].cursor
        for seq in self.own[journal.lineage] - found:
            if seq > acked and seq not in unflushed:
                raise UplinkBroken(f"9: the journal dropped seq {seq}, acked is {acked}, without a word")

    def check_carried(self) -> None:
        """Frames that this machine recorded under older lineages are in the cloud too, under whatever number."""
        older = [lineage for lineage, own in self.own.items() if own and lineage != self.journal.lineage]
        known = self.model.held_contents() if older else set()
        for lineage, issued in self.model.issued.items() if older else ():
            # Re-recorded frames may have been forced out and declared lost under their new seqs.
            known |= self.model.contents(lineage, issued.gone, self.timeline)
        for lineage in older:
            if left := self.model.contents(lineage, self.own[lineage], self.timeline) - known:
                raise UplinkBroken(
                    f"JC1: {len(left)} frames of the older lineage {lineage.hex()[:8]} are not in the cloud"
                )

    # --- the bus ---------------------------------------------------------------------------------

    def _bus(self, boot: int) -> bool:
        if not self.running or boot != self._boot:
            return False
        frames = self.burst_frames or self.bus_frames
        self.burst_frames = 0
        self.guarded(lambda: self._record(frames))
        pause_ms = self.bus_pause_ms
        self.scheduler.after(1 + pause_ms // 2 + int(self.rng.random() * pause_ms), lambda: self._bus(boot))
        return frames > 0

    def _record(self, frames: int) -> None:
        journal, clock_us = self.journal, self.clock_us()
        lineage, own, content = journal.lineage, self.own[journal.lineage], self.rng.randbytes(8 * frames)
        for number in range(frames):
            payload = content[8 * number : 8 * number + 8]
            frame: Frame = (clock_us + number, _IDS[payload[0] & 3], payload)
            try:
                seq = journal.record(*frame, clock_us)
            except DiskFull:
                self.counters["full"] += 1
                break
            self.model.issue(lineage, seq, frame, self.timeline)
            own.add(seq)
            self.ring.append(seq, *frame)
        if frames:
            self.poll()

    def _tick(self, boot: int) -> bool:
        if not self.running or boot != self._boot:
            return False
        self.guarded(self._wake_journal)
        self.scheduler.after(900, lambda: self._tick(boot))
        return True

    def _wake_journal(self) -> None:
        try:
            self.journal.wake(self.clock_us())
        except DiskFull:
            self.counters["full"] += 1
        if self.journal_options.disk_bytes_max is not None or self.disk.faults.capacity_bytes is not None:
            self.note_forced_out()

    # --- the uplink ------------------------------------------------------------------------------

    def poll(self) -> None:
        if not self.running:
            return
        now_ms = self.scheduler.now_ms
        self._polls_at_once = self._polls_at_once + 1 if now_ms == self._polled_ms else 0
        self._polled_ms = now_ms
        if self._polls_at_once > POLLS_AT_ONCE_MAX:
            raise UplinkBroken("the boat asks to be polled again at once, for ever")
        self.guarded(lambda: self._carry_out(self.uplink.poll(now_ms, now_us=self.clock_us())))
        self._arm()

    def _arm(self) -> None:
        if not self.running:
            return
        at_ms = self.uplink.wake_at_ms(self.scheduler.now_ms)
        if self._poll_at_ms is not None and self._poll_at_ms <= at_ms:
            return
        self._poll_at_ms = at_ms

        def due() -> bool:
            if self._poll_at_ms != at_ms:
                return False  # another poll came first
            self._poll_at_ms = None
            self.poll()
            return True

        self.scheduler.at(at_ms, due)

    def _carry_out(self, outs: list[Out]) -> None:
        for out in outs:
            match out:
                case Connect(hello):
                    self._dial(hello)
                case Disconnect(reason):
                    self._hang_up(reason)
                case _ if isinstance(out, self.live_messages):
                    self._send("live", out)
                case _ if isinstance(out, self.backfill_messages):
                    self._send("backfill", out)
                case _:
                    raise UplinkBroken(f"the boat wants to send {type(out).__name__}")
        if self.journal_options.disk_bytes_max is not None or self.disk.faults.capacity_bytes is not None:
            self.note_forced_out()

    def _check_dials(self) -> None:
        """16: whatever the cloud does, a boat dials no more often than its back-off allows, lag reconnects aside."""
        if self._dials_of is not self.uplink:
            self._dials_of, self._dials, self._is_lag_dial = self.uplink, [], False
        if not self._is_lag_dial:
            self._dials.append(self.scheduler.now_ms)
        self._is_lag_dial = False
        for window_ms in DIAL_WINDOWS_MS:
            dials_max = self._dials_max[window_ms]
            if sum(at_ms > self.scheduler.now_ms - window_ms for at_ms in self._dials) > dials_max:
                raise UplinkBroken(f"16: more than {dials_max} dials in {window_ms // 1000} s")

    def _dial(self, hello: Any) -> None:
        self._check_dials()
        self.counters["reconnect"] += self.connections > 0
        self.connections += 1
        if self.connection is not None:
            raise UplinkBroken("US1: the boat dials while it is connected")
        connection = self.link.dial(self._deliver)
        if connection is None:
            uplink = self.uplink

            def refused() -> None:
                if self.running and self.uplink is uplink and self.connection is None:
                    uplink.disconnected(self.scheduler.now_ms)
                    self._arm()

            self.scheduler.after(1 + int(self.rng.random() * 3000), refused)
            return
        self.connection = connection
        connection.send(Way.UP, "live", hello)

    def _send(self, stream: str, message: Any) -> None:
        if self.connection is None:
            raise UplinkBroken(f"US1: {type(message).__name__} without a connection")
        self.connection.send(Way.UP, stream, message)

    def _hang_up(self, reason: str) -> None:
        self._is_lag_dial = reason.startswith("Live fell behind")
        self.counters["lag_exit"] += self._is_lag_dial
        self.counters["ring_exit"] += reason.startswith("Live fell out of the ring")
        self.counters["dead_link"] += reason.startswith("no answer")
        if self.connection is not None:
            self.connection.close(Way.DOWN)
            self.connection = None

    def flap_for(self, times: int) -> None:
        """A cloud, or something before it, accepts the boat and disconnects a moment later, so many times."""
        self._break_off(times)

    def _break_off(self, left: int) -> bool:
        for connection in self.link.cut():
            self.counters["flapping"] += connection is self.connection
            self.broken(connection)
            channel = self.cloud.channels.get(self.name)
            if channel is not None:
                channel.ended(channel.channel.receiver.session)
        if left:
            self.scheduler.after(200 + int(self.rng.random() * 2_500), lambda: self._break_off(left - 1))
        return True

    def is_connected(self) -> bool:
        return self.running and self.uplink.sender.link is LinkState.UP

    def broken(self, connection: Connection) -> None:
        """The boat's socket reports an error."""
        if self.running and self.connection is connection:
            self.connection = None
            self.uplink.disconnected(self.scheduler.now_ms)
            self._arm()

    def _deliver(self, connection: Connection, way: Way, message: Any) -> bool:
        if way is Way.UP:
            return self.cloud.receive(self.name, connection, message)
        if not self.running or connection is not self.connection:
            return False
        self.guarded(lambda: self._receive(message))
        return True

    def _receive(self, message: Any) -> None:
        journal, uplink = self.journal, self.uplink
        outs = uplink.receive(message, self.scheduler.now_ms, now_us=self.clock_us())
        current = isinstance(message, Welcome | LiveAck | BackfillAck) and message.session == uplink.sender.session
        if current and uplink.sender.link is LinkState.UP:
            self.model.check_ack(journal.lineage, message.cursor, self.timeline, type(message).__name__)
        if journal.acked > self.model.held[journal.lineage].cursor:
            raise UplinkBroken(
                f"9: acked is {journal.acked}, the cloud holds {self.model.held[journal.lineage].cursor}"
            )
        self._carry_out(outs)
        self.poll()


_IDS: Final = (0x09F80100, 0x09F11200, 0x0DF50B00, 0x15FD0600)


def dials_max(config: SenderConfig, window_ms: int) -> int:
    """The most dials that the back-off allows within this time. Waits are at least half of first, twice first, four
    times ... up to half of the largest; each steady session between two dials takes its time, and resets the waits."""
    most = 0
    for restarts in range(window_ms // config.backoff_steady_ms + 1):
        left_ms, dials, longest_ms = window_ms - restarts * config.backoff_steady_ms, 1, config.backoff_first_ms
        while longest_ms < config.backoff_max_ms and left_ms >= (restarts + 1) * (longest_ms // 2):
            left_ms -= (restarts + 1) * (longest_ms // 2)
            dials += restarts + 1
            longest_ms = min(2 * longest_ms, config.backoff_max_ms)
        most = max(most, dials + left_ms // (longest_ms // 2))
    return most
