"""One log, one faulty disk, one seed: everything that can happen to a log, in a random order.

A world drives a `Log` on a `SimDisk` through appends (as a leader, and of a peer's blocks), flushes,
syncs, rolls, truncations, retention, rebuilds, clean closes, killed processes, power cuts and disk
faults, and compares it with a `LogModel` after each recovery and at the end. A run is decided by its
seed alone: `tidelog sim log --seed N` shows a failure again.

Counters say how often each thing really happened, so that a run over many seeds in which one never
did fails instead of promising too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tidelog.blocks.block import Block
from tidelog.errors import (
    DamagedRange,
    DiskError,
    NotABlockBoundary,
    OffsetMismatch,
    OffsetOutOfRange,
    ReplacementRefused,
    StaleEpoch,
)
from tidelog.sim.log.model import LogModel, Violation
from tidelog.sim.log.run import LogRun
from tidelog.sim.seeds import WorldResult, run_world, seeds_runner
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES

STEPS: Final = 100
SOMETIMES: Final = (
    "clean_open",
    "crash",
    "cut",
    "flip",
    "full",
    "io_error",
    "kill",
    "misdirect",
    "not_a_boundary",
    "open_failed",
    "quarantine",
    "rebuild",
    "replacement",
    "retention",
    "roll",
    "stale_epoch",
    "stamped",
    "sync_failure",
    "torn",
    "truncation",
    "window",
)
"""What must have happened at least once in a run over many seeds."""

_CAPACITY: Final = 1 << 40


def run_log_world(seed: int, *, steps: int = STEPS) -> WorldResult:
    """Run one seed; raises `Violation` when the log breaks a promise."""
    world = _World(seed)
    return run_world(seed, world, lambda: world.run(steps), violation=Violation)


run_log_seeds: Final = seeds_runner(run_log_world, SOMETIMES)


class _World(LogRun):
    """The events, each of them a method."""

    def run(self, steps: int) -> None:
        names = list(_EVENTS)
        weights = [_EVENTS[name][0] for name in names]
        for name in self.rng.choices(names, weights, k=steps):
            self.step(name)
        self.last_event = "the end"
        self.reopen(crash=True, verify_all=True)
        self.repair_all()
        self.model.compare(self.log)
        self.log.close(self.now_us)

    def step(self, name: str) -> None:
        self.last_event = name
        self.events += 1
        self.now_us += self.rng.randrange(1, 400_000)
        _EVENTS[name][1](self)
        self.watch()

    # --- appending -------------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.rng.choice((1, 1, 1, 2, 4))):
            self.stage()
        chance = self.rng.random()
        if chance < 0.6:
            self.commit()
        elif chance < 0.85:
            self.flush()

    def commit(self) -> bool:
        if not self.attempt(lambda: self.log.commit(self.now_us)):
            self.after_refusal()
            return False
        self.model.expect(self.log.durable_end == self.log.log_end == self.model.end, "LLO1: a commit left a rest")
        return True

    def flush(self) -> None:
        if not self.attempt(lambda: self.log.flush(self.now_us)):
            if not self.poisoned() and self.rng.random() < 0.5:
                self.log.discard_staged()
            self.after_refusal()

    def sync(self) -> None:
        if not self.attempt(self.log.sync):
            self.after_refusal()

    def roll(self) -> None:
        segments = len(self.log.segments)
        if not self.attempt(lambda: self.log.roll(self.now_us)):
            self.after_refusal()
        elif len(self.log.segments) > segments:
            self.counters["roll"] += 1

    def bad_peer(self) -> None:
        """A block that does not continue the log changes nothing."""
        block = self.peer_block(self.made(), self.log.log_end + 1)
        self.epoch = max(self.epoch, self.log.epochs.newest)
        self.expect_error((OffsetMismatch, StaleEpoch), lambda: self.log.stage_stamped(block))

    # --- cutting ---------------------------------------------------------------------------------------

    def truncate(self) -> None:
        model, log = self.model, self.log
        if self.rng.random() < 0.3:
            self.truncate_inside()
            return
        # Mostly near the end: a log that is cut in half all the time never grows.
        boundaries = [offset for offset in model.boundaries() if offset >= log.log_start]
        offset = self.rng.choice(boundaries[-6:] if self.rng.random() < 0.8 else boundaries)
        bases = [segment.base_offset for segment in log.segments if segment.base_offset < offset]
        if self.attempt(lambda: log.truncate(offset)):
            model.truncate(offset)
            model.expect(log.log_end == offset, "LLO5: a truncation left a rest")
            self.counters["truncation"] += 1
        else:
            if self.poisoned():
                model.take_promises_back(offset)
                model.newest_base = max(bases, default=log.log_start)
                self.disk.faults.fail_after = None
                self.revive()
            else:
                self.after_refusal()

    def truncate_inside(self) -> None:
        whole = [block for block in self.model.blocks if block.stop - block.start > 1]
        whole = [block for block in whole if not block.spoilt and not block.damaged]
        if not whole:
            return
        block = self.rng.choice(whole)
        offset = self.rng.randrange(block.start + 1, block.stop)
        end = self.log.log_end
        try:
            self.log.truncate(offset)
        except NotABlockBoundary as error:
            self.model.expect(error.block == range(block.start, block.stop), "another block is named")
            self.model.expect(self.log.log_end == end, "a refused truncation cut something")
            self.counters["not_a_boundary"] += 1
        except DiskError:
            self.after_refusal()
        else:
            self.model.expect(False, f"a truncation to {offset} inside a block was not refused")

    def retain(self) -> None:
        log, model, rng = self.log, self.model, self.rng
        before, floor = log.log_start, rng.choice([*model.boundaries(), log.log_start])
        log.set_floor("reader", floor)
        target = rng.choice(model.boundaries())
        by_options = rng.random() < 0.5
        if self.attempt(lambda: log.sweep_retention(self.now_us) if by_options else log.trim(target, self.now_us)):
            model.expect(log.log_start <= max(floor, before), "retention went past a floor")
            model.expect(by_options or log.log_start <= max(target, before), "a trim went too far")
            model.trim(log.log_start)
            self.counters["retention"] += log.log_start > before
        else:
            model.trimmed_to = max(floor, before)
            self.disk.faults.fail_after = None
            model.promise(log.durable_end)
            self.revive()
        self.log.set_floor("reader", None)

    # --- repairing -------------------------------------------------------------------------------------

    def read(self) -> None:
        offset = self.rng.randint(self.log.log_start, self.log.log_end)
        self.expect_error(OffsetOutOfRange, lambda: self.log.read(self.log.log_end + 1))
        if offset == self.log.log_end:
            self.model.expect(self.log.read(offset) == [], "ML2: something is read at the end")
            return
        try:
            self.model.compare_at(self.log, offset)
        except DiskError:
            self.counters["io_error"] += 1
            self.after_refusal()

    def replace(self) -> None:
        gaps = self.log.damaged()
        if not gaps:
            stray = self.peer_block(self.made(), self.log.log_start)
            self.expect_error(ReplacementRefused, lambda: self.log.replace([stray]))
            return
        gap = self.rng.choice(gaps)
        held = [block for block in self.model.at(gap) if block.start >= gap.start and block.stop <= gap.stop]
        if self.rng.random() < 0.3:
            held = held[: self.rng.randint(1, len(held))]
        if not held:
            return
        if self.attempt(lambda: self.log.replace([Block.parse(block.data) for block in held])):
            self.counters["replacement"] += 1
            for placed in held:
                placed.damaged = False
            # The replacement checked the rest of the segment too, and may have found more.
            self.find_damage()
        else:
            self.after_refusal()

    def find_damage(self) -> None:
        for gap in self.log.damaged():
            self.model.note_damage(gap)

    def repair_all(self) -> None:
        """A peer has everything: afterwards the log must be whole."""
        while gaps := self.log.damaged():
            held = self.model.at(gaps[0])
            self.log.replace([Block.parse(block.data) for block in held])
            for block in held:
                block.damaged = False
            self.counters["replacement"] += 1
        self.find_damage()

    def rebuild(self) -> None:
        rng, log = self.rng, self.log
        self.epoch = max(self.epoch, log.epochs.newest)
        peer = LogModel()
        offset = peer.base = rng.choice((0, log.log_start, log.log_end, log.log_end + rng.randint(1, 1000)))
        blocks: list[Block] = []
        for _ in range(rng.randrange(8)):
            blocks.append(self.peer_block(self.made(), offset))
            offset = blocks[-1].offsets.stop
            peer.add(blocks[-1])
        if not blocks:
            peer.base = log.log_end
        if blocks and rng.random() < 0.2:
            self.expect_refused(lambda: log.rebuild_from(_breaking_off(blocks), self.now_us))
        if self.poisoned():
            self.after_refusal()
        elif self.attempt(lambda: log.rebuild_from(iter(blocks), self.now_us)):
            peer.checks = self.model.checks
            self.model = peer
            self.counters["rebuild"] += 1
        elif self.poisoned():
            self.rebuilt = peer
            self.after_refusal()
        self.model.expect(self.log.log_end == self.model.end or self.poisoned(), "a rebuild left the log half done")

    def expect_refused(self, action: Callable[[], object]) -> None:
        """The peer breaks off, unless the disk does before it."""
        try:
            action()
        except (DamagedRange, DiskError):
            return
        self.model.expect(False, "a rebuild went on although the peer broke off")

    # --- runs ------------------------------------------------------------------------------------------

    def close_and_open(self) -> None:
        log = self.log
        if self.attempt(lambda: log.close(self.now_us)):
            self.model.promise(log.log_end)
            self.model.clean = True
            self.reopen(crash=self.rng.random() < 0.3)
        else:
            self.reopen(crash=self.rng.random() < 0.5)

    def crash(self) -> None:
        self.reopen(crash=True)

    def kill(self) -> None:
        """The process dies, the machine does not: whatever was written is there."""
        self.reopen(crash=False)

    # --- faults ----------------------------------------------------------------------------------------

    def fault(self) -> None:
        """The next event meets a failing disk."""
        self.fail_soon()
        self.step(self.rng.choice(_MAY_FAIL))
        self.disk.faults.fail_after = None

    def fill(self) -> None:
        """The disk runs full; then space returns and everything goes on."""
        faults = self.disk.faults
        faults.capacity_bytes = _CAPACITY
        faults.capacity_bytes = _CAPACITY - self.disk.free_bytes() + self.rng.randrange(4000)
        for _ in range(self.rng.randint(1, 6)):
            self.step(self.rng.choice(("append", "append", "append", "retain", "truncate", "read", "replace")))
        faults.capacity_bytes = None
        self.stage()
        self.commit()

    def flip(self) -> None:
        """A bit flips in something that was durable."""
        segment = self.rng.choice(self.log.segments)
        if self.rng.random() < 0.05:
            self.disk.flip_bit(segment.path, self.rng.randrange(SEGMENT_HEAD_BYTES), self.rng.randrange(8))
            self.index_lost = True
            return
        durable = [part for part in self.layout(segment.path) if part[1].stop <= self.log.durable_end]
        if durable:
            position, offsets, data = self.rng.choice(durable)
            self.disk.flip_bit(segment.path, position + self.rng.randrange(len(data)), self.rng.randrange(8))
            self.model.spoil(offsets)
            self.counters["flip"] += 1

    def misdirect(self) -> None:
        """A write lands in a wrong place and reports success."""
        before = {segment.path: self.layout(segment.path) for segment in self.log.segments}
        end = self.log.written_end
        self.stage()
        self.disk.faults.misdirect_next_write = True
        self.commit()
        if not self.disk.faults.misdirect_next_write:
            self.counters["misdirect"] += 1
            self.index_lost = True
        self.disk.faults.misdirect_next_write = False
        self.model.spoil(range(end, max(end, self.log.log_end)))
        for path, parts in before.items():
            content = self.content(path)
            wrong = [part for part in parts if content[part[0] : part[0] + len(part[2])] != part[2]]
            if wrong and path == list(before)[-1]:
                # The same file holds a stray copy of a newer block: what lies between may be taken for older.
                wrong = [part for part in parts if part[0] >= wrong[0][0]]
            for part in wrong:
                self.model.spoil(part[1])


_MAY_FAIL: Final = (
    "append",
    "append",
    "flush",
    "sync",
    "roll",
    "truncate",
    "retain",
    "read",
    "replace",
    "rebuild",
    "close",
)

_EVENTS: Final[dict[str, tuple[float, Callable[[_World], object]]]] = {
    "append": (30, _World.append),
    "flush": (3, _World.flush),
    "sync": (4, _World.sync),
    "commit": (4, _World.commit),
    "roll": (3, _World.roll),
    "bad peer": (1, _World.bad_peer),
    "truncate": (4, _World.truncate),
    "retain": (3, _World.retain),
    "read": (4, _World.read),
    "replace": (4, _World.replace),
    "rebuild": (0.7, _World.rebuild),
    "close": (2, _World.close_and_open),
    "crash": (4, _World.crash),
    "kill": (2, _World.kill),
    "fault": (7, _World.fault),
    "fill": (1, _World.fill),
    "flip": (3, _World.flip),
    "misdirect": (1.5, _World.misdirect),
}


def _breaking_off(blocks: list[Block]) -> Iterator[Block]:
    yield from blocks[:-1]
    raise DamagedRange(start=0, end=1, problem="the peer has lost it")
