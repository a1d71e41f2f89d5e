"""One log and its disk in a simulation: staging blocks, refusals, crashes and recoveries.

The common part of all events of `tidelog.sim.log.world`. A run ends in a clean close, a killed process or a power cut;
the next one begins with a recovery, whose result is compared with the model at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.blocks.block import Block, MadeBlock, make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import (
    BadBlock,
    DiskError,
    DiskFull,
    FolderLocked,
    LogClosed,
    LogError,
    LogPoisoned,
    StaleEpoch,
    SyncFailed,
)
from tidelog.sim.disk import FailKind, SimDisk
from tidelog.sim.log.model import LogModel
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions, Retention
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, SEGMENT_SUFFIX

FOLDER: Final = "channel"
CHANNEL: Final = 7


class LogRun:
    """A log on a simulated disk, and the model of what it must hold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(self.rng.getrandbits(64)))
        self.options = _random_options(self.rng)
        self.model = LogModel()
        self.counters: Counter[str] = Counter()
        self.events = 0
        self.last_event = "open"
        self.now_us = 1_000_000
        self.epoch = 1
        self.next_seq = 1
        self.peer_is_ahead = self.rng.random() < 0.3
        self.index_lost = False
        """A segment may have to be scanned even after a clean close."""
        self.rebuilt: LogModel | None = None
        """What the log holds if the rebuild that failed took place after all."""
        self.log = open_log(self.disk, FOLDER, now_us=self.now_us, options=self.options, channel_id=CHANNEL)

    # --- trying ----------------------------------------------------------------------------------------

    @property
    def checks(self) -> int:
        return self.model.checks

    def watch(self) -> None:
        """Checked after every event; a caller that acks by `durable_end` has acked this."""
        log, model = self.log, self.model
        model.expect(log.log_start <= log.durable_end <= log.log_end, "LLO1: the ends are out of order")
        model.expect(log.written_end <= log.log_end, "LLO1: more is written than the log holds")
        model.promise(log.durable_end)
        model.newest_base = log.segments[-1].base_offset

    def attempt(self, action: Callable[[], object]) -> bool:
        """Do something that the disk may refuse. After a poisonous refusal the log is opened anew."""
        try:
            action()
        except DiskError as error:
            kind = "full" if isinstance(error, DiskFull) else "io_error"
            self.counters["sync_failure" if isinstance(error, SyncFailed) else kind] += 1
        except LogPoisoned:
            self.counters["refused"] += 1
        else:
            return True
        return False

    def poisoned(self) -> bool:
        try:
            self.log.check_usable()
        except LogPoisoned:
            return True
        except LogClosed:
            return False
        return False

    def after_refusal(self) -> None:
        """A poisoned log acks nothing more (LLO4); any other has taken back what it refused."""
        log, model = self.log, self.model
        if not self.poisoned():
            model.truncate(log.log_end)
            return
        self.disk.faults.fail_after = None
        promised = log.durable_end
        model.promise(promised)
        actions: list[Callable[[], object]] = [self.stage, lambda: log.commit(self.now_us), log.sync]
        for action in actions:
            try:
                action()
            except LogPoisoned:
                continue
            model.expect(False, "LLO4: a log whose sync failed goes on")
        model.expect(log.durable_end == promised, "LLO4: a log whose sync failed acks")
        self.revive()

    def revive(self) -> None:
        # What a peer knows to be durable is not believed of this disk after a failed sync, but cannot be told
        # apart here; a store can, for it knows what it has synced.
        self.reopen(crash=self.peer_is_ahead or self.rng.random() < 0.5)

    # --- appending -------------------------------------------------------------------------------------

    def made(self) -> MadeBlock:
        count = self.rng.randint(1, 50)
        self.next_seq += self.rng.choice((0, 0, 0, 100))
        made = make_block(
            self.rng.randbytes(count * self.rng.choice((1, 4, 20))),
            kind=BlockKind.MESSAGES,
            form=1,
            record_count=count,
            time_min_us=self.now_us,
            time_max_us=self.now_us + count,
            base_seq=self.next_seq,
        )
        self.next_seq += count
        return made

    def stage(self) -> None:
        """Stage one block, as leader or from a peer."""
        rng, log = self.rng, self.log
        if rng.random() < 0.05:
            self.epoch += rng.randint(1, 3)
        self.epoch = max(self.epoch, log.epochs.newest)
        if self.epoch > 1 and log.epochs.newest == self.epoch and rng.random() < 0.05:
            self.expect_error(StaleEpoch, lambda: log.stage(self.made(), epoch=self.epoch - 1, now_us=self.now_us))
            self.counters["stale_epoch"] += 1
        made = self.made()
        windows = _random_windows(rng, made.maker.record_count) if rng.random() < 0.15 else ()
        self.counters["window"] += bool(windows)
        if rng.random() < 0.3:
            block = self.peer_block(made, log.log_end, windows)
            log.stage_stamped(block)
            self.counters["stamped"] += 1
        else:
            staged = log.stage(made, epoch=self.epoch, now_us=self.now_us, windows=windows)
            assert staged is not None
            block = staged
        self.model.add(block)

    def peer_block(self, made: MadeBlock, offset: int, windows: tuple[range, ...] = ()) -> Block:
        """Stamped by the peer's leader; its sync mark is about the peer's disk."""
        block = made.stamp(
            base_offset=offset,
            channel_id=CHANNEL,
            leader_epoch=self.epoch,
            append_time_us=self.now_us,
            durable_end=self.peer_mark(offset),
            path=0,
            windows=windows,
        )
        return Block.parse(block.tobytes())

    def peer_mark(self, offset: int) -> int:
        known = [0, min(offset, self.log.durable_end)]
        return self.rng.choice([*known, offset] if self.peer_is_ahead else known)

    def expect_error(self, kind: type[LogError] | tuple[type[LogError], ...], action: Callable[[], object]) -> None:
        try:
            action()
        except kind:
            self.model.checks += 1
            return
        self.model.expect(False, f"{kind} was not raised")

    # --- runs ------------------------------------------------------------------------------------------

    def reopen(self, *, crash: bool, verify_all: bool = False) -> None:
        disk, model, old = self.disk, self.model, self.log
        disk.faults.fail_after = disk.faults.capacity_bytes = None
        disk.faults.misdirect_next_write = False
        spoilt = any(block.spoilt for block in model.blocks)
        healthy = not (crash or spoilt or self.poisoned() or self.rebuilt)
        complete_to = old.written_end if healthy else None
        # An index whose sync failed once may be read for a long time before a power cut shows what is left of it.
        self.index_lost |= spoilt or disk.statistics().faults > 0
        expect_clean = model.clean and not self.index_lost
        if crash:
            disk.crash()
        else:
            old.poison("the process was killed")
            old.close()
        self.counters["crash" if crash else "kill"] += 1
        verify_all = verify_all or self.rng.random() < 0.2
        before = self.segment_bytes()
        self.log, attempts = self.open_until_it_works(verify_all=verify_all)
        self.index_lost = False
        if self.rebuilt is not None and self.log.generation != old.generation:
            self.rebuilt.checks = model.checks
            model = self.model = self.rebuilt
        self.rebuilt = None
        report = self.log.recovery
        assert report is not None
        end = model.end
        if attempts == 1 and not report.quarantined:
            self.check_cut(before, report.bytes_cut)
        model.expect(self.log.incarnation > old.incarnation, "an incarnation came back")
        model.recovered(self.log, complete_to=complete_to if attempts == 1 else None)
        self.counters["torn"] += self.log.log_end < end
        self.counters["cut"] += report.bytes_cut > 0
        self.counters["quarantine"] += bool(report.quarantined)
        self.counters["clean_open"] += report.clean
        if attempts == 1 and expect_clean and not verify_all:
            model.expect(report.clean, "a log that was closed properly was scanned all the same")
        self.watch()

    def open_until_it_works(self, *, verify_all: bool) -> tuple[Log, int]:
        """Open the log; sometimes the disk fails in the middle of recovery, too."""
        attempts = 0
        while True:
            attempts += 1
            if attempts < 3 and self.rng.random() < 0.15:
                self.fail_soon()
            try:
                log = open_log(
                    self.disk, FOLDER, now_us=self.now_us, options=self.options, channel_id=99, verify_all=verify_all
                )
            except FolderLocked:
                raise
            except DiskError:
                self.model.expect(attempts < 4, "a log does not open although the disk works again")
                self.counters["open_failed"] += 1
                self.model.clean = False
                self.disk.faults.fail_after = None
                if self.rng.random() < 0.5:
                    self.disk.crash()
                continue
            self.disk.faults.fail_after = None
            self.model.expect(log.channel_id == CHANNEL, "the log forgot its channel")
            return log, attempts

    def check_cut(self, before: dict[str, int], bytes_cut: int) -> None:
        after = self.segment_bytes()
        prefix = f"{self.log.segment_folder}/0"
        removed = sum(
            sign * max(0, size - SEGMENT_HEAD_BYTES)
            for sign, sizes in ((1, before), (-1, after))
            for path, size in sizes.items()
            if path.startswith(prefix)
        )
        self.model.expect(removed == bytes_cut, f"{removed} bytes are gone, {bytes_cut} were reported")

    def fail_soon(self) -> None:
        kinds: tuple[FailKind, ...] = ("io", "io", "sync", "full")
        self.disk.faults.fail_kind = self.rng.choice(kinds)
        self.disk.faults.fail_after = self.rng.randint(1, 25)

    # --- files -----------------------------------------------------------------------------------------

    def segment_bytes(self) -> dict[str, int]:
        """The size of every segment file of every generation."""
        names = self.disk.list_folder(FOLDER)
        folders = [FOLDER, *(f"{FOLDER}/{name}" for name in names if name.startswith("generation-"))]
        paths = [f"{folder}/{name}" for folder in folders for name in self.disk.list_folder(folder)]
        return {path: len(self.content(path)) for path in paths if path.endswith(SEGMENT_SUFFIX)}

    def content(self, path: str) -> bytes:
        file = self.disk.open(path, writable=False)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def layout(self, path: str) -> list[tuple[int, range, bytes]]:
        """Position, offsets and bytes of the good blocks in a segment file."""
        content = self.content(path)
        position, parts = SEGMENT_HEAD_BYTES, []
        while position < len(content):
            try:
                block = Block.parse(content, position)
            except BadBlock:
                position += 8
                continue
            parts.append((position, block.offsets, content[position : position + block.size]))
            position += block.size
        return parts


def _random_options(rng: random.Random) -> LogOptions:
    retention = Retention(
        max_age_ms=rng.choice((None, 2_000)),
        max_bytes=rng.choice((None, 6_000)),
        max_events=rng.choice((None, 100)),
    )
    return LogOptions(
        segment_bytes_max=rng.choice((4096, 4096, 8192, 1 << 20)),
        segment_age_max_ms=rng.choice((None, None, 3_000)),
        index_interval_bytes=rng.choice((1, 600, 4096)),
        retention=retention,
        reserve_bytes=rng.choice((0, 0, 2048)),
    )


def _random_windows(rng: random.Random, count: int) -> tuple[range, ...]:
    edges = sorted(rng.sample(range(count + 1), k=min(count + 1, rng.choice((2, 2, 4))) & ~1))
    return tuple(range(edges[i], edges[i + 1]) for i in range(0, len(edges), 2))
