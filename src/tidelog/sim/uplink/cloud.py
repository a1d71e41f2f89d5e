"""The cloud of the uplink world: one disk, a log and an `UplinkChannel` per boat, and their driver.

Commits come late on purpose: what was staged is durable only after `log.commit`, and `committed` is called
only then. After a crash, or when the disk refused a commit, the channel is built anew from the log's fold.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockLimits
from tidelog.cluster.boats.channel import LogAppend, UplinkChannel, fold_log, held_block
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import BackfillAck, Hello, LiveAck, Refused, ToBoat, Welcome
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import DiskError, DiskFull
from tidelog.sim.network import Connection, Scheduler, Way
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.sim.uplink.model import UplinkBroken, UplinkModel
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.units import MIB

START_US: Final = 1_750_000_000_000_000
HONEST_REFUSALS: Final = frozenset({"session_fenced", "lag_exceeded", "name_in_use"})
"""All refusals that a Tidelog boat may get; the rate limit is not among them (U4)."""
_COUNTED: Final = {"session_fenced": "fence", "lag_exceeded": "cloud_lag", "name_in_use": "name_in_use"}
BLOCK_LIMITS: Final = BlockLimits(raw_bytes_max=1 * MIB, stored_bytes_max=1 * MIB, records_max=1 << 16)


HEARD_MS: Final = 12_000
"""A process that was heard within this time is alive: boats report every 5 s."""


@dataclass(slots=True)
class Speaker:
    boot_id: bytes
    session: int
    heard_ms: int


class SimChannel:
    """One boat's log and channel, alive."""

    def __init__(self, name: str, log: Log, limits: ReceiverLimits, model: UplinkModel) -> None:
        self.name = name
        self.log = log
        self.limits = limits
        self.model = model
        self.connection: Connection | None = None
        """That of the newest session."""
        self.staged: list[Block] = []
        self.commit_at_ms: int | None = None
        self.snapshot_offset: int | None = None
        self.snapshot_at = log.log_start
        self.wakes_at_ms = -1
        self.speaker: Speaker | None = None
        """The opener of the newest session, until the cloud knows that it is over."""
        self.channel = self.fold()

    def ended(self, session: int) -> None:
        """The cloud noticed that a session's streams are over."""
        if self.speaker is not None and self.speaker.session == session:
            self.speaker = None
        self.channel.disconnected(session)

    def check_hello(self, hello: Hello, *, taken: bool, now_ms: int) -> None:
        """15: two processes do not take the session from each other, and a boat is not kept from its own."""
        speaker = self.speaker
        is_heard = speaker is not None and now_ms - speaker.heard_ms < HEARD_MS
        if not hello.boot_id or speaker is None or not speaker.boot_id:
            return  # they cannot be told apart
        if taken and is_heard and speaker.boot_id != hello.boot_id:
            raise UplinkBroken("15: a second process took the session of one that is heard")
        if not taken and (not is_heard or speaker.boot_id == hello.boot_id):
            raise UplinkBroken("15: a boat was told to wait for a process that is gone, or for itself")

    def fold(self) -> UplinkChannel:
        """Build the channel from what the log says, all of which is durable."""
        log = self.log
        if log.durable_end != log.log_end:
            raise UplinkBroken("the cloud's log was opened and is not durable")
        held = functools.partial(held_block, log)
        channel = UplinkChannel(
            instance=self.name, fold=self.fold_again(), limits=self.limits, held=held, block_limits=BLOCK_LIMITS
        )
        self.channel, self.speaker = channel, None
        self.model.touched.update(self.model.held)
        self.check()
        return channel

    def fold_again(self) -> ChannelFold:
        """The fold over the log as it lies on the disk, which must be what was once committed, byte for byte."""
        blocks = list(self.log.blocks(self.log.log_start, self.log.durable_end))
        self.model.read_log(blocks, log_start=self.log.log_start, durable_end=self.log.durable_end)
        return fold_log(blocks)

    def check(self) -> None:
        self.model.check_fold(self.channel.receiver.fold)


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
        self.index_interval_bytes = rng.choice((64, 512, 4_096))
        self.snapshot_records = rng.choice((300, 1_000, 4_000))
        """A log that has grown by so much since its last snapshot gets another one."""
        self.on_down: Callable[[], None] = lambda: None
        self.open()

    # --- runs ------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return bool(self.channels)

    def now_us(self) -> int:
        return START_US + 1000 * self.scheduler.now_ms

    def open(self) -> None:
        options = LogOptions(reserve_bytes=0, segment_bytes_max=16_384, index_interval_bytes=self.index_interval_bytes)
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

    def receive(self, name: str, connection: Connection, message: Any) -> bool:
        """False when the cloud is down."""
        known = self.channels.get(name)
        if known is None:
            return False
        self.guarded(lambda: self._receive(known, connection, message))
        return True

    def _receive(self, known: SimChannel, connection: Connection, message: Any) -> None:
        now_ms = self.scheduler.now_ms
        appends, replies = known.channel.receive(message, new_lineage=self.rng.randbytes(16), now_ms=now_ms)
        is_taken = not any(isinstance(reply, Refused) for reply in replies)
        self._note_speaker(known, connection, message, is_taken=is_taken)
        for reply in replies:
            if isinstance(reply, Refused):
                self._refuse(known, connection, reply)
        self._answer(known, [reply for reply in replies if not isinstance(reply, Refused)])
        for append in appends:
            self._stage(known, append)
        if appends:
            self._commit_later(known)
        self.watch(known)

    def _note_speaker(self, known: SimChannel, connection: Connection, message: Any, *, is_taken: bool) -> None:
        now_ms = self.scheduler.now_ms
        if isinstance(message, Hello):
            if known.model.honest:
                known.check_hello(message, taken=is_taken, now_ms=now_ms)
            if is_taken:
                known.connection = connection
                known.speaker = Speaker(message.boot_id, known.channel.receiver.session, now_ms)
        elif is_taken and known.speaker is not None and known.speaker.session == message.session:
            known.speaker.heard_ms = now_ms

    def _refuse(self, known: SimChannel, connection: Connection, reply: Refused) -> None:
        if reply.code not in HONEST_REFUSALS:
            if reply.code not in known.model.refusals:
                raise UplinkBroken(f"an honest boat was refused: {reply.code}: {reply.detail}")
            self.counters[f"refused_{reply.code}"] += 1
        elif known.model.honest:
            self.counters[_COUNTED[reply.code]] += 1
        connection.send(Way.DOWN, "live", reply)
        if self.rng.random() < 0.5:
            connection.close(Way.UP)
            known.ended(reply.session)

    def _answer(self, known: SimChannel, replies: list[ToBoat]) -> None:
        connection = known.connection
        for reply in replies:
            if known.model.honest:
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
            raise UplinkBroken("an append without records")
        known.staged.append(block)
        return block.offsets.start

    def _commit_later(self, known: SimChannel) -> None:
        if known.commit_at_ms is not None:
            return
        delay_ms = int(self.rng.random() * self.commit_delay_ms) + self.commit_stall_ms
        known.commit_at_ms = self.scheduler.now_ms + delay_ms

        def commit() -> bool:
            if self.channels.get(known.name) is not known:
                return False
            self.guarded(lambda: self.commit(known))
            return True

        self.scheduler.after(delay_ms, commit)

    def commit(self, known: SimChannel) -> None:
        staged, known.staged, known.commit_at_ms = known.staged, [], None
        log = known.log
        try:
            log.commit(self.now_us())
        except DiskFull:
            self.counters["full"] += 1
            self._start_over(known)
            return
        known.model.take_committed(staged, log.durable_end)
        replies = known.channel.committed(len(staged), now_ms=self.scheduler.now_ms)
        known.check()
        self._answer(known, replies)
        self._trim(known)
        if log.durable_end - known.snapshot_at > self.snapshot_records:
            self.snapshot(known.name)

    def _start_over(self, known: SimChannel) -> None:
        """A refused write was taken back: appends that the channel counts as on their way are not. Fold the log
        again."""
        known.snapshot_offset = None
        try:
            known.log.commit(self.now_us())
        except DiskError as error:
            raise UplinkBroken(f"a sync failed after a refused write: {error}") from error
        known.fold()
        known.connection = None

    # --- time ------------------------------------------------------------------------------------

    def watch(self, known: SimChannel) -> None:
        """Wake the channel when it asks for it."""
        wake_at_ms = known.channel.wake_at_ms()
        if wake_at_ms is None or known.wakes_at_ms >= self.scheduler.now_ms:
            return
        known.wakes_at_ms = wake_at_ms

        def wake() -> bool:
            known.wakes_at_ms = -1
            if self.channels.get(known.name) is not known:
                return False
            self._answer(known, known.channel.wake(self.scheduler.now_ms))
            self.watch(known)
            return True

        self.scheduler.at(wake_at_ms, wake)

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot(self, name: str) -> None:
        """Write the fold down, so that the log may lose what came before it (F3)."""
        known = self.channels.get(name)
        if known is None:
            return

        def write() -> None:
            known.snapshot_offset = self._stage(known, known.channel.snapshot(self.scheduler.now_ms))
            known.snapshot_at = known.snapshot_offset
            self._commit_later(known)

        self.guarded(write)

    def _trim(self, known: SimChannel) -> None:
        if known.snapshot_offset is None:
            return
        log, offset = known.log, known.snapshot_offset
        known.snapshot_offset = None
        log.set_floor("snapshot", offset)
        self.counters["snapshot_trim"] += log.trim(offset, self.now_us()).segments > 0
