"""The cloud of the uplink world: one disk, a log and an `UplinkChannel` per boat, and the hand that drives them.

Commits come late on purpose: what was staged is durable only after `log.commit`, and `committed` is called
only then. After a crash, or when the disk refused a commit, the channel is built anew from the log's fold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tidelog.cluster.uplink_channel import LogAppend, UplinkChannel, fold_log
from tidelog.core.uplink.messages import BackfillAck, Hello, LiveAck, Refused, ToBoat, Welcome
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import DiskError, DiskFull
from tidelog.sim.network import Connection, Scheduler, Way
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.sim.uplink_model import Broken, UplinkModel
from tidelog.storage.log import Log
from tidelog.storage.options import LogOptions
from tidelog.storage.recovery import open_log

START_US: Final = 1_750_000_000_000_000
HONEST_REFUSALS: Final = frozenset({"session_fenced", "lag_exceeded"})
"""All that a boat of ours may ever hear; the rate limit is not among them (U4)."""


class SimChannel:
    """One boat's log and channel, alive."""

    def __init__(self, name: str, log: Log, limits: ReceiverLimits, model: UplinkModel) -> None:
        self.name = name
        self.log = log
        self.limits = limits
        self.model = model
        self.connection: Connection | None = None
        """That of the newest session."""
        self.staged = 0
        self.commit_at_ms: int | None = None
        self.snapshot_offset: int | None = None
        self.wakes_at_ms = -1
        self.channel = self.fold()

    def fold(self) -> UplinkChannel:
        """Build the channel from what the log says, all of which is durable."""
        log = self.log
        if log.durable_end != log.log_end:
            raise Broken("the cloud's log was opened and is not durable")
        self.model.read_log(log.blocks(max(log.log_start, self.model.verified_end)), log.durable_end)
        channel = UplinkChannel(instance=self.name, fold=fold_log(log.blocks()), limits=self.limits)
        self.channel = channel
        self.check()
        return channel

    def check(self) -> None:
        """The committed fold and the model's plain account agree (8)."""
        fold = self.channel.receiver.fold
        fold.check()
        self.model.checks += 1
        for lineage, held in self.model.held.items():
            known = fold.lineages.get(lineage)
            cursor = known.cursor if known else 0
            if cursor != held.cursor:
                raise Broken(f"8: the cursor of {lineage.hex()[:8]} is {cursor}, the log says {held.cursor}")
            if known and known.held.count() != len(held.frames):
                raise Broken(f"8: the fold holds {known.held.count()} frames, the log {len(held.frames)}")


class SimCloud:
    def __init__(
        self,
        *,
        scheduler: Scheduler,
        rng: random.Random,
        limits: ReceiverLimits,
        models: dict[str, UplinkModel],
        counters: Counter[str],
    ) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.limits = limits
        self.models = models
        self.counters = counters
        self.disk = PluggedDisk(random.Random(rng.getrandbits(64)))
        self.channels: dict[str, SimChannel] = {}
        self.commit_delay_ms = rng.choice((0, 5, 50))
        self.commit_stall_ms = 0
        self.on_down: Callable[[], None] = lambda: None
        self.open()

    # --- lives -----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return bool(self.channels)

    def now_us(self) -> int:
        return START_US + 1000 * self.scheduler.now_ms

    def open(self) -> None:
        options = LogOptions(reserve_bytes=0, segment_bytes_max=16_384, index_interval_bytes=512)
        self.disk.faults.capacity_bytes = self.disk.cut_after = None
        for name, model in self.models.items():
            log = open_log(self.disk, name, now_us=self.now_us(), options=options)
            self.channels[name] = SimChannel(name, log, self.limits, model)
            self.watch(self.channels[name])

    def crash(self) -> None:
        self.counters["cloud_crash"] += 1
        unsynced = any(known.staged for known in self.channels.values())
        self.counters["torn"] += unsynced
        self.channels = {}
        self.disk.crash()
        self.on_down()

    def stop(self) -> None:
        """A clean end: what is staged is not answered and not written."""
        self.counters["cloud_restart"] += 1
        self.disk.faults.capacity_bytes = None
        for known in self.channels.values():
            known.log.discard_staged()
            known.log.close(self.now_us())
        self.channels = {}
        self.on_down()

    def guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except PowerCut:
            self.counters["torn"] += 1
            self.crash()
            self.scheduler.after(self.rng.randrange(100, 20_000), self.reopen)

    def reopen(self) -> None:
        if not self.running:
            self.open()

    # --- messages --------------------------------------------------------------------------------

    def receive(self, name: str, connection: Connection, message: Any) -> None:
        known = self.channels.get(name)
        if known is not None:
            self.guarded(lambda: self._receive(known, connection, message))

    def _receive(self, known: SimChannel, connection: Connection, message: Any) -> None:
        now_ms = self.scheduler.now_ms
        if isinstance(message, Hello):
            known.connection = connection
        appends, replies = known.channel.receive(message, new_lineage=self.rng.randbytes(16), now_ms=now_ms)
        for reply in replies:
            if isinstance(reply, Refused):
                self._refuse(known, connection, reply)
        self._answer(known, [reply for reply in replies if not isinstance(reply, Refused)])
        for append in appends:
            self._stage(known, append)
        if appends:
            self._commit_later(known)
        self.watch(known)

    def _refuse(self, known: SimChannel, connection: Connection, reply: Refused) -> None:
        if reply.code not in HONEST_REFUSALS:
            raise Broken(f"an honest boat was refused: {reply.code}: {reply.detail}")
        self.counters["fence" if reply.code == "session_fenced" else "cloud_lag"] += 1
        connection.send(Way.DOWN, "live", reply)
        if self.rng.random() < 0.5:
            connection.close(Way.UP)
            known.channel.disconnected(reply.session)

    def _answer(self, known: SimChannel, replies: list[ToBoat]) -> None:
        connection = known.connection
        for reply in replies:
            self._count(reply)
            if connection is not None:
                connection.send(Way.DOWN, "backfill" if isinstance(reply, BackfillAck) else "live", reply)

    def _count(self, reply: ToBoat) -> None:
        if isinstance(reply, Welcome):
            self.counters["hole"] += bool(reply.holes)
            self.counters["fork"] += reply.fork
        elif isinstance(reply, LiveAck) and reply.holes and reply.holes[-1].stop <= reply.committed_through:
            self.counters["hole_told_live"] += 1

    def _stage(self, known: SimChannel, append: LogAppend) -> int:
        log = known.log
        epoch = max(log.epochs.newest, log.incarnation)
        block = log.stage(append.made, epoch=epoch, now_us=self.now_us(), path=append.path, windows=append.windows)
        if block is None:
            raise Broken("an append without records")
        known.staged += 1
        return block.offsets.start

    def _commit_later(self, known: SimChannel) -> None:
        if known.commit_at_ms is not None:
            return
        delay_ms = int(self.rng.random() * self.commit_delay_ms) + self.commit_stall_ms
        known.commit_at_ms = self.scheduler.now_ms + delay_ms

        def commit() -> None:
            if self.channels.get(known.name) is known:
                self.guarded(lambda: self.commit(known))

        self.scheduler.after(delay_ms, commit)

    def commit(self, known: SimChannel) -> None:
        count, known.staged, known.commit_at_ms = known.staged, 0, None
        log = known.log
        try:
            log.commit(self.now_us())
        except DiskFull:
            self.counters["full"] += 1
            self._start_over(known)
            return
        known.model.read_log(log.blocks(known.model.verified_end, log.durable_end), log.durable_end)
        replies = known.channel.committed(count, now_ms=self.scheduler.now_ms)
        known.check()
        self._answer(known, replies)
        self._trim(known)

    def _start_over(self, known: SimChannel) -> None:
        """A refused write was taken back: what the channel believes to be on its way is not. Fold the log again."""
        known.snapshot_offset = None
        try:
            known.log.commit(self.now_us())
        except DiskError as error:
            raise Broken(f"a sync failed after a refused write: {error}") from error
        known.fold()
        known.connection = None

    # --- time ------------------------------------------------------------------------------------

    def watch(self, known: SimChannel) -> None:
        """Wake the channel when it asks for it."""
        wake_at_ms = known.channel.wake_at_ms()
        if wake_at_ms is None or known.wakes_at_ms >= self.scheduler.now_ms:
            return
        known.wakes_at_ms = wake_at_ms

        def wake() -> None:
            known.wakes_at_ms = -1
            if self.channels.get(known.name) is known:
                self._answer(known, known.channel.wake(self.scheduler.now_ms))
                self.watch(known)

        self.scheduler.at(wake_at_ms, wake)

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot(self, name: str) -> None:
        """Write the fold down, so that the log may lose what came before it (F3)."""
        known = self.channels.get(name)
        if known is None:
            return

        def write() -> None:
            known.snapshot_offset = self._stage(known, known.channel.snapshot(self.scheduler.now_ms))
            self._commit_later(known)

        self.guarded(write)

    def _trim(self, known: SimChannel) -> None:
        if known.snapshot_offset is None:
            return
        log, offset = known.log, known.snapshot_offset
        known.snapshot_offset = None
        log.set_floor("snapshot", offset)
        self.counters["snapshot_trim"] += log.trim(offset, self.now_us()).segments > 0
