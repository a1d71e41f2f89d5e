"""One boat's journal, one faulty disk, one seed: everything that can happen to a journal, in a random order.

A world records frames one at a time and in bulk, lets time pass on a clock that the boat may set
forwards and backwards, seals, acks, trims, forks, closes, cuts the power (also in the middle of a
call), fills the disk, fails syncs, flips bits and throws files away, and compares the journal with a
`JournalModel` after each opening and at the end. A run is decided by its seed alone: `tidelog sim
journal --seed N` shows a failure again.

Counters say how often each thing really happened, so that a run over many seeds in which one never
did fails instead of promising too much.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened
from tidelog.edge.journal.journal import FRESH, META_NAME, SEALED
from tidelog.errors import BadBlock, LogError
from tidelog.sim.disk import FailKind
from tidelog.sim.journal.model import Frame, JournalBroken, JournalViolation
from tidelog.sim.journal.run import FOLDER, SECOND_US, JournalRun
from tidelog.sim.power import PowerCut
from tidelog.sim.seeds import WorldResult, run_world, seeds_runner
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, SEGMENT_SUFFIX

STEPS: Final = 60
SOMETIMES: Final = (
    "acked",
    "buffer_full",
    "burst",
    "clean_open",
    "clock_back",
    "clock_forward",
    "crash",
    "crash_in_call",
    "damaged_fresh",
    "damaged_sealed",
    "disk_full",
    "flip",
    "forced_out",
    "fork",
    "frames_lost_in_crash",
    "fresh_lost",
    "healed_later",
    "late_wake",
    "meta_lost",
    "open_failed",
    "poisoned",
    "power_cut_in_call",
    "power_cut_in_open",
    "record_many",
    "retention",
    "seal",
    "seal_all",
    "sync_failure",
    "void",
)
"""What must have happened at least once in a run over many seeds."""


def run_journal_world(seed: int, *, steps: int = STEPS) -> WorldResult:
    """Run one seed; raises `JournalViolation` when the journal breaks a promise."""
    world = _World(seed)
    return run_world(seed, world, lambda: world.run(steps), violation=JournalViolation)


run_journal_seeds: Final = seeds_runner(run_journal_world, SOMETIMES)


class _World(JournalRun):
    def run(self, steps: int) -> None:
        names, weights = zip(*((name, weight) for name, (weight, _) in _EVENTS.items()), strict=True)
        for _ in range(steps):
            self.events += 1
            self.last_event = self.rng.choices(names, weights)[0]
            _EVENTS[self.last_event][1](self)
            self.settle()
        self.last_event = "the end"
        self.restore()
        self.journal.flush(self.clock_us)
        self.settle()
        self.check()
        if self.rng.random() < 0.5:
            self.close_and_open()
            self.journal.seal_all(self.clock_us)
            self.settle()
            self.check()

    # --- time and recording ---------------------------------------------------------------------

    def wait(self) -> None:
        self.pass_time(self.rng.choice((10_000, SECOND_US, 5 * SECOND_US, 70 * SECOND_US)))

    def wait_late(self) -> None:
        self.pass_time(self.rng.choice((SECOND_US, 20 * SECOND_US)), late=True)

    def set_clock(self) -> None:
        by_us = self.rng.choice((-3600, -5, 5, 3600, 86400 * 400)) * SECOND_US
        self.clock_us = max(0, self.clock_us + by_us)
        self.counters["clock_back" if by_us < 0 else "clock_forward"] += 1
        if by_us < 0:
            # The driver does not see it: it wakes within a flush interval, whatever time it was given before.
            self.late_us = max(self.late_us, self.options.flush_interval_ms * 1000)

    def frame(self) -> Frame:
        rng = self.rng
        drift = rng.choice((0, 0, 0, rng.randrange(-(10**7), 10**7), rng.randrange(-(2**62), 2**62)))
        time_us = max(-(2**63), min(2**63 - 1, self.clock_us + drift))
        can_id = rng.choice(self.busy_ids) if rng.random() < 0.9 else rng.getrandbits(29)
        length = rng.choice((8, 8, 8, 8, 0, 3, rng.randrange(224), 1785 if rng.random() < 0.05 else 8))
        return time_us, can_id, rng.randbytes(length)

    def record(self) -> None:
        """Frames as they come from a bus, with time between them."""
        for _ in range(self.rng.choice((1, 5, 20))):
            frame = self.frame()
            self.record_one(frame)
            if self.rng.random() < 0.3:
                self.pass_time(self.rng.randrange(300_000))

    def record_one(self, frame: Frame) -> None:
        journal = self.journal
        lineage, head = journal.lineage, journal.head
        accepted = self.try_call(lambda: journal.record(*frame, self.clock_us))
        if accepted:
            # A frame that a power cut kept from getting its seq was not taken: it is appended last.
            self.model.issue(lineage, journal.head, [frame], self.true_us)
        if journal.head != head + accepted:
            raise JournalBroken(f"the head went from {head} to {journal.head}; the frame was taken: {accepted}")

    def burst(self) -> None:
        self.counters["burst"] += 1
        for _ in range(self.rng.randrange(self.options.flush_frames_max, 3 * self.options.flush_frames_max)):
            self.record_one(self.frame())

    def record_many(self) -> None:
        journal = self.journal
        frames = [self.frame() for _ in range(self.rng.randrange(3 * self.options.flush_frames_max))]
        lineage, head = journal.lineage, journal.head
        columns = FrameColumns.from_rows(frames)
        self.counters["record_many"] += 1
        accepted = False
        try:
            accepted = self.try_call(lambda: journal.record_many(columns, self.clock_us))
        finally:
            if journal.head not in (head, head + len(frames)) or (accepted and journal.head != head + len(frames)):
                raise JournalBroken(f"of {len(frames)} frames {journal.head - head} were taken")
            if journal.head > head:
                # An error that is not definite, or a power cut, may come after they were taken.
                self.model.issue(lineage, head + 1, frames, self.true_us)

    def flush(self) -> None:
        if self.try_call(lambda: self.journal.flush(self.clock_us)) and self.journal.head:
            waiting = self.journal.statistics().frames_buffered
            if waiting:
                raise JournalBroken(f"{waiting} frames are in memory after a flush")

    def seal_all(self) -> None:
        if self.try_call(lambda: self.journal.seal_all(self.clock_us)):
            self.counters["seal_all"] += 1
            if self.journal.sealed.log_end != self.journal.log_end:
                raise JournalBroken("seal_all left something unsealed")

    def note(self) -> None:
        """Control records lie between the frames."""
        lineage = self.rng.randbytes(16).hex()
        self.try_call(lambda: self.journal.note([LineageOpened(lineage=lineage, reason="a test")], self.clock_us))

    def acknowledge(self) -> None:
        """The cluster acks what it was sent: something durable, or the end of a void range."""
        journal = self.journal
        lineage = self.rng.choice([journal.lineage, journal.lineage, *self.model.lineages])
        known = self.model.lineages[lineage]
        newest = max(known.durable, default=0)
        if newest <= known.acked:
            return
        known.acked = self.rng.choice((newest, self.rng.randint(known.acked, newest)))
        journal.acknowledge(known.acked, lineage)
        self.counters["acked"] += 1

    def sweep(self) -> None:
        if not self.try_call(lambda: self.journal.sweep_retention(self.clock_us)):
            return
        limit = self.options.disk_bytes_max
        if limit is not None and self.journal.size_bytes() > limit:
            raise JournalBroken(f"{self.journal.size_bytes()} bytes are held after a sweep, the limit is {limit}")

    def fork(self) -> None:
        lineage = self.journal.lineage
        if self.try_call(lambda: self.journal.fork_lineage("a test", self.clock_us)):
            self.counters["fork"] += 1
            self.model.close_lineage(lineage)
            if self.journal.lineage == lineage or self.journal.head:
                raise JournalBroken("a fork kept the lineage or its seqs")

    # --- faults ----------------------------------------------------------------------------------

    def crash(self) -> None:
        """The power fails; what was not durable may be gone."""
        self.counters["crash"] += 1
        self.closed_head = None
        self.settle()
        self.check_waiting()
        self.counters["frames_lost_in_crash"] += self.model.oldest_waiting_us() is not None
        self.model.power_cut()
        self.disk.crash()
        if self.rng.random() < 0.1:
            self.lose_meta()
        if self.rng.random() < 0.2:
            # The next power cut comes while the journal recovers from this one.
            self.disk.cut_after, self.disk.cut_in_sync = self.rng.randrange(1, 80), False
        elif self.rng.random() < 0.2:
            self.disk.faults.fail_after = self.rng.randrange(1, 60)
            self.disk.faults.fail_kind = "io"
            self.disk_is_bad = True
        self.open()

    def pull_plug(self) -> None:
        """The power fails in the middle of a call."""
        self.disk.cut_in_sync = self.rng.random() < 0.5
        self.disk.cut_after = self.rng.randrange(1, 4 if self.disk.cut_in_sync else 80)
        event = self.rng.choice(_MAY_FAIL)
        self.last_event = f"{event} while the power fails"
        try:
            _EVENTS[event][1](self)
        except PowerCut:
            self.counters["power_cut_in_call"] += 1
        self.disk.cut_after = None
        self.crash()

    def close_and_open(self) -> None:
        if not self.try_call(lambda: self.journal.close(self.clock_us)):
            self.leave()
            return
        self.settle()
        self.closed_head = self.journal.head
        if not self.disk_is_bad and self.rng.random() < 0.1:
            self.lose_meta()
        self.open()

    def leave(self) -> None:
        """The journal cannot go on: drop it as a process that ends, or as a machine that loses its power."""
        self.settle()
        if self.rng.random() < 0.5:
            self.crash()
            return
        self.restore()
        with suppress(LogError):
            self.journal.let_go(self.clock_us)
        self.model.power_cut()
        self.open()

    def fault(self) -> None:
        """A call to the disk fails in the middle of things; then go on, open anew or lose the power."""
        kinds: tuple[FailKind, ...] = ("io", "sync", "full")
        self.disk.faults.fail_kind = self.rng.choice(kinds)
        self.disk.faults.fail_after = self.rng.choice((self.rng.randrange(1, 8), self.rng.randrange(1, 60)))
        self.disk_is_bad = self.refused = True
        if self.disk.faults.fail_kind == "full":
            self.model.may_force_out = self.model.may_trim_acked = True
        event = self.rng.choice(_MAY_FAIL)
        self.last_event = f"{event} on a failing disk"
        _EVENTS[event][1](self)
        self.disk_is_bad = False
        fired = self.disk.faults.fail_after is None
        self.disk.faults.fail_after = None
        self.settle()
        if fired and self.rng.random() < 0.5:
            self.counters["crash_in_call"] += 1
            self.crash()
        elif self.is_poisoned():
            self.leave()

    def is_poisoned(self) -> bool:
        try:
            self.journal.fresh.check_usable()
            self.journal.sealed.check_usable()
        except LogError:
            return True
        return False

    def fill(self) -> None:
        """Other files fill the disk; recording goes on in memory, until it may not; then there is room again."""
        self.exceed_limit()
        used = sum(len(self.content(path)) for path in self.files())
        self.disk.faults.capacity_bytes = used + self.rng.choice((0, 500, 5_000, 20_000)) + self.options.reserve_bytes
        self.disk_is_bad = self.refused = True
        self.model.may_force_out = self.model.may_trim_acked = True
        for _ in range(self.rng.randrange(1, 8)):
            event = self.rng.choice(("burst", "record", "record_many", "wait", "seal", "sweep", "acknowledge"))
            _EVENTS[event][1](self)
            buffered = self.journal.statistics().frames_buffered
            if buffered >= self.options.buffer_frames_max:
                self.counters["buffer_full"] += 1
            if buffered > self.options.buffer_frames_max + 3 * self.options.flush_frames_max:
                raise JournalBroken(f"{buffered} frames are in memory, the limit is {self.options.buffer_frames_max}")
        self.disk_is_bad = False
        self.settle()
        if self.is_poisoned():
            self.leave()
        elif self.rng.random() < 0.2:
            self.disk_is_bad = True
            self.crash()
        else:
            self.restore()
            self.pass_time(2 * SECOND_US)
            if self.journal.statistics().frames_buffered:
                raise JournalBroken("there is room on the disk, and frames still wait in memory")
            self.refused = False
            self.settle()
            self.check()

    def exceed_limit(self) -> None:
        """More is written than the disk limit allows: sweeps on the full disk make room, announce what they remove, and
        meet frames that were refused before.
        """
        limit = self.options.disk_bytes_max
        while limit is not None and self.journal.size_bytes() <= 2 * limit:
            self.record_many()

    # --- rot -------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        folders = (f"{FOLDER}/{FRESH}", f"{FOLDER}/{SEALED}")
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in self.disk.list_folder(folder)
            if name.endswith(SEGMENT_SUFFIX)
        ]

    def content(self, path: str) -> bytes:
        file = self.disk.open(path, writable=False)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def flip(self) -> None:
        """A bit of a segment flips."""
        path = self.rng.choice(self.files())
        data = self.content(path)
        position = self.rng.randrange(len(data))
        for block in _hit_blocks(data, position):
            self.model.damage(block)
        self.disk.flip_bit(path, position, self.rng.randrange(8))
        self.counters["flip"] += 1
        if self.rng.random() < 0.3:
            self.check()

    def lose_meta(self) -> None:
        """The journal cannot prove which seqs it used: it must start a new lineage (JJ2)."""
        path = f"{FOLDER}/{META_NAME}"
        if self.rng.random() < 0.5:
            self.disk.remove(path)
            self.disk.sync_folder(FOLDER)
        else:
            self.disk.flip_random_bit(path)
        self.meta_lost = True
        self.counters["meta_lost"] += 1

    def lose_fresh(self) -> None:
        """The folder of small blocks is gone; what was sealed is still there."""
        self.settle()
        sealed: dict[bytes, set[int]] = {}
        for block in self.journal.sealed.blocks(None, self.journal.sealed.durable_end, skip_damaged=True):
            sealed.setdefault(block.maker.producer, set()).update(block.maker.seqs)
        for lineage, known in self.model.lineages.items():
            known.damaged |= set(known.issued) - sealed.get(lineage, set())
        self.counters["fresh_lost"] += 1
        self.model.power_cut()
        self.disk.crash()
        self.disk.remove_folder(f"{FOLDER}/{FRESH}")
        self.disk.sync_folder(FOLDER)
        self.open()


_MAY_FAIL: Final = (
    "record",
    "burst",
    "record_many",
    "flush",
    "wait",
    "seal",
    "sweep",
    "fork",
    "close",
)

_EVENTS: Final[dict[str, tuple[float, Callable[[_World], object]]]] = {
    "record": (20, _World.record),
    "burst": (3, _World.burst),
    "record_many": (6, _World.record_many),
    "flush": (3, _World.flush),
    "wait": (10, _World.wait),
    "wait late": (2, _World.wait_late),
    "set clock": (1.5, _World.set_clock),
    "seal": (4, _World.seal_all),
    "acknowledge": (6, _World.acknowledge),
    "sweep": (3, _World.sweep),
    "note": (3, _World.note),
    "fork": (0.7, _World.fork),
    "close": (3, _World.close_and_open),
    "crash": (3, _World.crash),
    "pull plug": (5, _World.pull_plug),
    "fault": (7, _World.fault),
    "fill": (2, _World.fill),
    "flip": (1.5, _World.flip),
    "lose fresh": (0.4, _World.lose_fresh),
}


def _hit_blocks(data: bytes, position: int) -> list[Block]:
    """The block that holds this byte, and those after it that no later sync mark proves to have been synced."""
    blocks: list[tuple[int, Block]] = []
    place = SEGMENT_HEAD_BYTES
    while place < len(data):
        try:
            block = Block.parse(data, place)
        except BadBlock:
            place += 8  # rot that nobody has read yet
            continue
        blocks.append((place, block))
        place += block.size
    hit = next((number for number, (start, block) in enumerate(blocks) if start <= position < start + block.size), None)
    if hit is None:
        return []
    mark = max((block.leader.durable_end for _, block in blocks[hit + 1 :]), default=0)
    return [blocks[hit][1], *(block for _, block in blocks[hit + 1 :] if block.leader.base_offset >= mark)]
