"""One store of many channels, one faulty disk, one seed.

A world drives a `Store` on a `SimDisk` through creations, deletions, appends (small and large, as a
leader and of a leader's stamped blocks), truncations, checkpoints, retention, clean closes, power cuts
and disk faults, and keeps a plain model beside it. After each opening and at the end it checks:

SW1  Every acked record of every channel is there, byte for byte, unless a planted bit flip hit it, which
    is then reported: as a damaged range, or in the damaged bytes of the write-ahead files.
SW2  Nothing is there that was not appended; what was refused, truncated or trimmed stays away.
SW3  Deleted channels stay deleted, created ones exist, and no channel id is used twice.
SW4  Offsets continue each other; the incarnation rises by one with each opening.
SW5  After a failed sync of the write-ahead file nothing is acked until the store is opened anew (ST4).
SW6  The write-ahead files of a working store stay few, whatever happens to one channel (S3).
How a run ends, and what must hold then, is in `tidelog.sim.store.lies` (SW7, SW8).

`tidelog sim store --seed N` repeats a run exactly. A run in which one of the counted things never happened fails.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tidelog.blocks.block import MadeBlock, make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import ChannelExists, DiskError, DiskFull, LogError, LogPoisoned, SyncFailed, UnknownChannel
from tidelog.sim.disk import SimDisk
from tidelog.sim.seeds import WorldResult, WorldViolation, run_world, seeds_runner
from tidelog.sim.store.broken_folder import BrokenFolder
from tidelog.sim.store.lies import stop_and_lie
from tidelog.sim.store.model import Intent, StoreChannelModel, StoreModel, stopped
from tidelog.storage.atomic import COPY_SUFFIX
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions, Retention
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES
from tidelog.storage.log.writer import Append
from tidelog.storage.store.parts import STATE_PATH, TABLE_PATH, WAL_FOLDER, StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.wal import WAL_HEAD_BYTES
from tidelog.units import KIB

STEPS: Final = 70
LARGE_BYTES: Final = 2 * KIB
WAL_FILES_MAX: Final = 4
SOMETIMES: Final = (
    "checkpoint",
    "clean_open",
    "crash",
    "create",
    "delete",
    "direct",
    "disk_full",
    "floor_held",
    "hidden_crash",
    "lie_flipped",
    "lie_gone",
    "lie_removed",
    "lie_zeroed",
    "loss_noticed",
    "loss_of_channels",
    "mark_lost",
    "one_error",
    "open_failed",
    "recreate",
    "relogged",
    "reopened",
    "retention",
    "segment_error",
    "segment_flip",
    "space_returned",
    "stamped",
    "stopped_closed",
    "stopped_killed",
    "stopped_power_cut",
    "torn",
    "truncation",
    "wal_cut",
    "wal_flip",
    "wal_sync_failed",
)
"""What must have happened at least once in a run over many seeds."""


class StoreViolation(WorldViolation):
    """The store broke a promise."""

    world = "store"


def run_store_world(seed: int, *, steps: int = STEPS) -> WorldResult:
    """Run one seed; raises `StoreViolation` when the store breaks a promise."""
    world = _World(seed)
    return run_world(seed, world, lambda: world.run(steps), violation=StoreViolation)


run_store_seeds: Final = seeds_runner(run_store_world, SOMETIMES)


class _World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(self.rng.getrandbits(64)))
        self.options = _random_options(self.rng)
        self.model = StoreModel()
        self.counters: Counter[str] = Counter()
        self.events = 0
        self.last_event = "open"
        self.now_us = 1_000_000
        self.flipped_wals: set[str] = set()
        """Damaged write-ahead files that are still there: a checkpoint that fails keeps them."""
        self.uncertain = False
        """A fault is armed: what an event did is known only after the next opening."""
        self.store = open_store(self.disk, now_us=self.now_us, options=self.options)

    @property
    def checks(self) -> int:
        return self.model.checks

    def run(self, steps: int) -> None:
        self.model.opened(self.store, self.now_us, 1)
        for _ in range(steps):
            self.events += 1
            self.now_us += self.rng.choice((1_000, 50_000, 2_000_000))
            self.last_event = self.rng.choices(_EVENTS, _WEIGHTS)[0]
            getattr(self, self.last_event)()
            self.model.check_live(self.store)
            self.model.expect(
                self.store.trouble is not None or len(self.disk.list_folder(WAL_FOLDER)) <= WAL_FILES_MAX,
                "write-ahead files pile up",
            )
        self.last_event = "the end"
        self.disk.faults.capacity_bytes = None
        self.reopen(crash=self.rng.random() < 0.5)
        for name in list(self.model.channels):
            self.append_to([name])
        self.reopen(crash=True)
        self.last_event = "a disk that lies"
        self.lie()

    def lie(self) -> None:
        """Run a last stretch of events, stop, and let the disk lose something of it."""
        self.model.check_all(self.store, self.now_us)
        self.store.forget_loss()  # an earlier event planted it
        self.store.checkpoint(self.now_us)
        for _ in range(self.rng.randint(0, 6)):
            self.now_us += self.rng.choice((1_000, 2_000_000))
            getattr(self, self.rng.choice(("append", "append", "create", "checkpoint", "settle_mark")))()
        self.counters += stop_and_lie(self.store, self.disk, self.rng, self.model, self.options, self.now_us)

    def settle_mark(self) -> None:
        self.store.wals.settle()
        self.model.cover()

    # --- channels --------------------------------------------------------------------------------

    def create(self) -> None:
        name = self.rng.choice(_NAMES)
        self.model.intent = Intent(action="create", name=name)
        try:
            log = self.store.create_channel(name, now_us=self.now_us)
        except ChannelExists:
            self.model.expect(name in self.model.channels, f"{name} exists and was never created")
            return
        except DiskFull:
            self.model.intent = None
            raise
        self.model.intent = None
        self.counters["create"] += 1
        self.counters["recreate"] += name in self.model.deleted_names
        self.model.created(name, log.channel_id)

    def delete(self) -> None:
        name = self.rng.choice(_NAMES)
        self.model.intent = Intent(action="delete", name=name)
        try:
            self.store.delete_channel(name, now_us=self.now_us)
        except UnknownChannel:
            self.model.expect(name not in self.model.channels, f"{name} was created and is unknown")
            return
        self.model.intent = None
        self.counters["delete"] += 1
        self.model.deleted(name)

    def log_of(self, name: str) -> Log:
        return self.store.log(name, now_us=self.now_us)

    def some_channel(self) -> StoreChannelModel | None:
        return self.model.channels[self.rng.choice(sorted(self.model.channels))] if self.model.channels else None

    # --- appending -------------------------------------------------------------------------------

    def append(self) -> None:
        if self.model.channels:
            names = sorted(self.model.channels)
            self.append_to([self.rng.choice(names) for _ in range(self.rng.randint(1, 5))])

    def append_to(self, names: list[str]) -> None:
        """One group commit over these channels."""
        appends = []
        ends: dict[str, int] = {}
        for name in names:
            log, channel = self.log_of(name), self.model.channels[name]
            made = self.made()
            if self.rng.random() < 0.3:
                # A leader stamped it: `durable_end` speaks of another disk.
                self.counters["stamped"] += 1
                end = ends.get(name, log.log_end)
                block = made.stamp(
                    base_offset=end,
                    channel_id=log.channel_id,
                    leader_epoch=channel.epoch,
                    append_time_us=self.now_us,
                    durable_end=self.rng.randint(0, end),
                    path=0,
                )
                appends.append(Append(log, block))
            else:
                appends.append(Append(log, made, epoch=channel.epoch))
            ends[name] = ends.get(name, log.log_end) + made.maker.record_count
        self.store.commit_appends(appends, self.now_us)
        for name in dict.fromkeys(names):
            self.settle(name, [append for append, owner in zip(appends, names, strict=True) if owner == name])
        self.counters["direct"] += any(append.size >= LARGE_BYTES for append in appends)

    def settle(self, name: str, appends: list[Append]) -> None:
        """Tell the model what was acked, what was refused, and what may or may not have happened."""
        channel = self.model.channels[name]
        for append in appends:
            error = append.future.exception(timeout=0)
            if error is None:
                self.model.expect(not self.model.poisoned, "SW5: an append was acked after the store stopped")
                channel.acked(append)
            elif isinstance(error, SyncFailed) or (isinstance(error, DiskError) and stopped(append.log)):
                channel.in_doubt(append)
            else:
                self.model.expect(isinstance(error, LogError), f"an append failed with {error!r}")

    def made(self) -> MadeBlock:
        count = self.rng.randint(1, 4)
        large = self.rng.random() < 0.25
        size = self.rng.randint(LARGE_BYTES, 2 * LARGE_BYTES) if large else self.rng.randint(0, 300)
        return make_block(self.rng.randbytes(size), kind=BlockKind.FRAMES, form=1, record_count=count)

    def new_epoch(self) -> None:
        if (channel := self.some_channel()) is not None:
            channel.epoch += 1

    # --- trimming --------------------------------------------------------------------------------

    def truncate(self) -> None:
        channel = self.some_channel()
        if channel is None or not channel.blocks:
            return
        log = self.log_of(channel.name)
        offset = self.rng.choice(channel.boundaries())
        if offset < log.log_start:
            return
        self.model.intent = Intent(action="truncate", name=channel.name, offset=offset)
        try:
            self.store.truncate(channel.name, offset, now_us=self.now_us)
        except DiskFull:
            self.model.intent = None
            raise
        self.model.intent = None
        self.counters["truncation"] += 1
        channel.truncate(offset)

    def retain(self) -> None:
        channel = self.some_channel()
        if channel is None:
            return
        log = self.log_of(channel.name)
        if self.rng.random() < 0.5:
            floor = self.rng.randint(log.log_start, log.log_end)
            log.set_floor("reader", floor)
        self.model.intent = Intent(action="trim")
        sweep = log.sweep_retention(self.now_us)
        self.counters["retention"] += sweep.segments > 0
        self.counters["floor_held"] += sweep.held_back > 0
        self.model.expect(log.log_start <= max(log.floor(), channel.start), "retention went past a floor")
        self.trimmed([channel])

    def checkpoint(self) -> None:
        self.store.checkpoint(self.now_us)
        self.counters["checkpoint"] += 1
        if self.store.trouble is None:
            self.model.cover()

    def maintain(self) -> None:
        starts = {name: self.log_of(name).log_start for name in self.model.channels}
        self.model.intent = Intent(action="trim")
        self.store.maintain(self.now_us)
        self.counters["retention"] += any(self.log_of(name).log_start > start for name, start in starts.items())
        self.trimmed(list(self.model.channels.values()))

    def trimmed(self, channels: list[StoreChannelModel]) -> None:
        if self.uncertain:
            return  # the disk may have failed in the middle: opening will show how far it came
        self.model.intent = None
        for channel in channels:
            channel.trim(self.log_of(channel.name).log_start)

    # --- opening ---------------------------------------------------------------------------------

    def close_and_open(self) -> None:
        self.reopen(crash=False)
        self.counters["clean_open"] += bool(self.store.recovery and self.store.recovery.clean)

    def crash(self) -> None:
        self.reopen(crash=True)

    def reopen(self, *, crash: bool) -> None:
        if crash:
            self.counters["crash"] += 1
            self.counters["torn"] += any(channel.doubtful for channel in self.model.channels.values())
            self.disk.crash()
        else:
            self.store.close(self.now_us)
        self.disk.faults.fail_after = None
        attempts = self.open_until_it_works()
        recovery = self.store.recovery
        assert recovery is not None
        self.counters["wal_cut"] += recovery.bytes_cut > 0
        if attempts > 1:
            self.counters["open_failed"] += 1  # what that opening found, it could not tell
        elif self.model.losses_allowed:
            self.model.expect(recovery.damaged_bytes > 0, "SW1: a flip in a write-ahead file was not reported")
            self.model.expect(recovery.synced_loss, "SW7: a flip in a write-ahead file is no loss")
        elif not self.flipped_wals:
            self.model.expect(recovery.damaged_bytes == 0, "damage was reported where none was planted")
            self.model.expect(not self.store.state.lost, f"SW7: nothing was lost, but {self.store.state.lost}")
        if self.store.state.lost:
            self.store.forget_loss()
        self.flipped_wals = set(filter(self.disk.exists, self.flipped_wals))
        self.model.opened(self.store, self.now_us, attempts)

    def open_until_it_works(self) -> int:
        """Open the store; sometimes the disk fails in the middle of that, too."""
        attempts = 0
        while True:
            attempts += 1
            if attempts < 3 and self.rng.random() < 0.1:
                self.fail(self.rng.randint(1, 80), self.rng.choice(("io", "sync", "full")))
            try:
                self.store = open_store(self.disk, now_us=self.now_us, options=self.options)
            except (DiskError, LogPoisoned):
                self.model.expect(attempts < 4, "a store does not open although the disk works again")
            else:
                self.disk.faults.fail_after = None
                for channel in list(self.store.channels.values()):
                    if channel.log is not None and stopped(channel.log):
                        self.store.reopen_channel(channel.name, now_us=self.now_us)  # a fault hit this one only
                return attempts
            self.disk.faults.fail_after = None
            if self.rng.random() < 0.5:
                self.disk.crash()

    # --- what goes wrong -------------------------------------------------------------------------

    def wal_sync_fails(self) -> None:
        """ST4: nothing is acked after a failed sync of the write-ahead file."""
        if not self.model.channels:
            return
        name = self.rng.choice(sorted(self.model.channels))
        log, channel = self.log_of(name), self.model.channels[name]
        self.append_to([name])  # so that the write-ahead file exists, and its sync is the next one
        small = make_block(b"small", kind=BlockKind.FRAMES, form=1, record_count=1)
        self.fail(1, "sync")
        append = Append(log, small, epoch=channel.epoch)
        self.store.commit_appends([append], self.now_us)
        self.disk.faults.fail_after = None
        self.settle(name, [append])
        if append.future.exception(timeout=0) is None:
            return
        self.counters["wal_sync_failed"] += 1
        self.model.poisoned = True
        self.append()
        for action in (self.checkpoint, self.delete, self.create):
            try:
                action()
            except LogPoisoned:
                self.model.intent = None
                continue
            self.model.expect(False, "ST4: a stopped store went on")
        self.reopen(crash=self.rng.random() < 0.7)

    def segment_fails(self) -> None:
        """S3: a checkpoint cannot write one channel's segment; the others must not notice."""
        if not self.model.channels:
            return
        self.append_to(sorted(self.model.channels))
        failing = self.rng.choice(sorted(self.model.channels))
        folder = self.store.channels[failing].folder
        broken = BrokenFolder(self.disk, folder, writes=self.rng.random() < 0.5)
        self.store.files.close()
        self.swap_disk(broken)
        try:
            self.store.checkpoint(self.now_us)
        finally:
            self.swap_disk(self.disk)
            self.store.files.close()
        self.counters["segment_error"] += broken.hits > 0
        self.counters["relogged"] += self.store.channels[failing].relogged is not None
        if self.rng.random() < 0.5:
            self.reopen(crash=True)
            return
        self.append()  # acked for all but the channel that stopped
        if self.rng.random() < 0.7:
            self.counters["reopened"] += 1
            self.store.reopen_channel(failing, now_us=self.now_us)
            self.model.channels[failing].doubtful.clear()
            self.append_to([failing])
        else:
            self.reopen(crash=self.rng.random() < 0.5)

    def swap_disk(self, disk: Any) -> None:
        self.store.disk = disk
        self.store.files._disk = disk
        for channel in self.store.channels.values():
            if channel.log is not None:
                channel.log.disk = disk

    def hidden_crash(self) -> None:
        """The power fails in the middle of the next event."""
        self.uncertain = True
        self.fail(self.rng.randint(1, 40), "io", forever=True)
        try:
            getattr(self, self.rng.choice(_INTERRUPTED))()
        except LogError:
            self.counters["hidden_crash"] += 1
        self.disk.faults.fail_forever = False
        self.disk.faults.fail_after = None
        self.reopen(crash=True)
        self.uncertain = False

    def one_error(self) -> None:
        """A single call fails in the middle of the next event, and the run goes on if it can."""
        self.uncertain = True
        self.fail(self.rng.randint(1, 25), self.rng.choice(("io", "sync", "full")))
        failed = False
        try:
            getattr(self, self.rng.choice(_INTERRUPTED))()
        except LogError:
            failed = True
        hit = self.disk.faults.fail_after is None
        self.counters["one_error"] += hit
        self.disk.faults.fail_after = None
        logs = [channel.log for channel in self.store.channels.values() if channel.log is not None]
        if failed or self.model.intent is not None or any(map(stopped, logs)):
            self.reopen(crash=self.rng.random() < 0.5)
        self.uncertain = False

    def fill_disk(self) -> None:
        """A full disk refuses appends in words, loses nothing, and works again when space returns."""
        if not self.model.channels:
            return
        reserve = self.options.log.reserve_bytes
        used = self.disk._used_bytes
        self.disk.faults.capacity_bytes = used + self.rng.choice((0, reserve // 2, reserve, reserve + 3_000))
        for _ in range(self.rng.randint(1, 4)):
            faults = self.disk.statistics().faults
            name = self.rng.choice(sorted(self.model.channels))
            append = Append(self.log_of(name), self.made(), epoch=self.model.channels[name].epoch)
            self.store.commit_appends([append], self.now_us)
            self.settle(name, [append])
            error = append.future.exception(timeout=0)
            self.model.expect(error is None or isinstance(error, DiskFull), f"a full disk said {error!r}")
            self.counters["disk_full"] += error is not None or self.disk.statistics().faults > faults
            self.attempt_full(self.checkpoint)
            self.attempt_full(self.truncate if self.rng.random() < 0.3 else self.create)
        crash = self.rng.random() < 0.3
        self.disk.faults.capacity_bytes = None
        if crash:
            self.reopen(crash=True)
        self.append_to([name])
        self.checkpoint()
        channel = self.model.channels[name]
        self.model.expect(not channel.doubtful, "an append was in doubt on a healthy disk")
        self.counters["space_returned"] += 1

    def attempt_full(self, action: Callable[[], object]) -> None:
        try:
            action()
        except DiskFull:
            self.counters["disk_full"] += 1

    def flip_wal(self) -> None:
        """Damage in the newest write-ahead file, below its last mark; then the power fails."""
        wal = self.store.wals.current
        if wal is None or not self.model.channels:
            return
        end = wal.durable_size
        self.append_to(sorted(self.model.channels)[:1])  # its mark covers everything before it
        if self.store.wals.current is not wal or wal.durable_size <= end or end <= WAL_HEAD_BYTES:
            return
        position = self.rng.randrange(WAL_HEAD_BYTES, end)
        self.disk.flip_bit(wal.path, position, self.rng.randrange(8))
        self.flipped_wals.add(wal.path)
        self.counters["wal_flip"] += 1
        self.model.spoil_wal(self.store)
        self.reopen(crash=True)

    def flip_segment(self) -> None:
        """Damage in a block that a checkpoint has synced; found by the next reader."""
        channel = self.some_channel()
        if channel is None:
            return
        self.checkpoint()
        log = self.log_of(channel.name)
        if log.written_end == log.log_start:
            return
        segment = self.rng.choice([part for part in log.segments if part.index.blocks])
        position = self.rng.randrange(SEGMENT_HEAD_BYTES, segment.index.size)
        block = channel.block_in(segment, position)
        if block is None:
            return
        block.spoilt = True
        self.disk.flip_bit(segment.path, position, self.rng.randrange(8))
        self.counters["segment_flip"] += 1
        if self.rng.random() < 0.7:
            self.reopen(crash=self.rng.random() < 0.5)
        self.model.check_all(self.store, self.now_us)

    def lose_mark(self) -> None:
        """One of the store's small files is gone or damaged after a crash."""
        path = self.rng.choice((STATE_PATH, TABLE_PATH)) + self.rng.choice(("", COPY_SUFFIX))
        self.disk.crash()
        self.counters["crash"] += 1
        if self.disk.exists(path):
            self.counters["mark_lost"] += 1
            if self.rng.random() < 0.5:
                self.disk.replace_bytes(path, b"")
                self.disk.remove(path)
            else:
                self.disk.flip_random_bit(path)
        self.disk.crash()
        self.reopen(crash=True)

    def fail(self, after: int, kind: Any, *, forever: bool = False) -> None:
        faults = self.disk.faults
        faults.fail_after, faults.fail_kind, faults.fail_forever = after, kind, forever


_NAMES: Final = ("boat-1", "boat-2", "..", ".hidden/x", "müsli ~ 7", "long " + "x" * 300)
_EVENTS_AND_WEIGHTS: Final = {
    "append": 40,
    "create": 8,
    "delete": 2,
    "new_epoch": 3,
    "truncate": 5,
    "retain": 4,
    "checkpoint": 4,
    "maintain": 4,
    "close_and_open": 3,
    "crash": 5,
    "hidden_crash": 5,
    "one_error": 6,
    "wal_sync_fails": 2,
    "segment_fails": 3,
    "fill_disk": 2,
    "flip_wal": 3,
    "flip_segment": 3,
    "lose_mark": 2,
}
_EVENTS: Final = list(_EVENTS_AND_WEIGHTS)
_WEIGHTS: Final = list(_EVENTS_AND_WEIGHTS.values())
_INTERRUPTED: Final = ("append", "create", "delete", "truncate", "retain", "checkpoint", "maintain")


def _random_options(rng: random.Random) -> StoreOptions:
    return StoreOptions(
        log=LogOptions(
            segment_bytes_max=rng.choice((4 * KIB, 16 * KIB)),
            segment_age_max_ms=rng.choice((None, 20_000)),
            index_interval_bytes=rng.choice((1, 1 * KIB, 64 * KIB)),
            retention=Retention(max_bytes=rng.choice((None, 8 * KIB, 40 * KIB))),
            retention_interval_ms=10_000,
            reserve_bytes=rng.choice((0, 64 * KIB)),
        ),
        large_block_bytes=LARGE_BYTES,
        wal_bytes_max=rng.choice((4 * KIB, 64 * KIB)),
        checkpoint_interval_ms=rng.choice((5_000, 60_000)),
        open_files_max=8,
        copy_bytes_max=rng.choice((0, 0, 2 * KIB)),
        copy_channel_bytes_max=1 * KIB,
    )
