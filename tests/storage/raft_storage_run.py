"""The storage of one member of the metadata group under random faults, compared with a model.

The model is a hard state, a snapshot and a list of entries, and for the call in progress every state that a crash may
leave behind. After each reopening the storage must hold one of those, exactly: not shorter than acked, never a mixture,
never `MetadataDamaged` unless a bit was flipped. A flipped bit is either harmless or `MetadataDamaged`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from tidelog.core.raft.members import Members
from tidelog.core.raft.messages import Entry, EntryKind, HardState, Ready, Snapshot, SnapshotHead
from tidelog.errors import DiskError, MetadataDamaged, MetadataPoisoned
from tidelog.sim.disk import FailKind
from tidelog.sim.metadata.stored_state import StoredState, state_after_compaction, states_of_write
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.sim.seeds import WorldResult, WorldViolation
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.segment import SEGMENT_SUFFIX
from tidelog.storage.raft.files import StoredIdentity
from tidelog.storage.raft.opening import LIVE_NAME, create_raft_storage, open_raft_storage, set_aside
from tidelog.storage.raft.storage import RaftStorage

FOLDER = ".tidelog/metadata"
QUARANTINE = ".tidelog/quarantine"
ACTIONS = 60

SOMETIMES = (
    "appended",
    "replaced",
    "replaced_by_older_term",
    "installed",
    "compacted",
    "rolled",
    "settled",
    "power_cut",
    "crash",
    "kill",
    "clean_close",
    "poisoned",
    "opening_failed",
    "torn_write",
    "rot_harmless",
    "rot_damaged",
    "created",
    "create_failed",
    "full",
)


class RaftStorageViolation(WorldViolation):
    """A promise of `RaftStorage` was broken."""

    world: ClassVar[str] = "raft-storage"

    def __init__(self, seed: int, problem: str) -> None:
        super().__init__(seed, problem)
        self.args = (f"seed {seed}: {problem}\nreplay: tests.storage.raft_storage_run.run_raft_storage({seed})",)


def run_raft_storage(seed: int, *, actions: int = ACTIONS) -> WorldResult:
    """One run. Raises `RaftStorageViolation`."""
    run = _Run(seed)
    for _ in range(actions):
        run.act()
    run.finish()
    return WorldResult(seed=seed, events=run.events, checks=run.checks, counters=run.counters)


class _Run:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.disk = PluggedDisk(random.Random(rng.random()))
        self.counters: Counter[str] = Counter()
        self.events = self.checks = 0
        self.creations = 0
        self.now_us = 1
        self.options = LogOptions(
            segment_bytes_max=rng.choice((4096, 4096, 1 << 20)),
            index_interval_bytes=rng.choice((1, 600, 65536)),
            reserve_bytes=0,
        )
        self.create()

    def expect(self, condition: bool, problem: str) -> None:
        self.checks += 1
        if not condition:
            recent = "\n".join(map(str, self.disk.recent_operations()[-30:]))
            raise RaftStorageViolation(self.seed, f"{problem}\nlast calls of the disk:\n{recent}")

    # --- one action ----------------------------------------------------------------------------------

    def act(self) -> None:
        self.events += 1
        self.now_us += 1000
        if self.rng.random() < 0.25:
            self.trouble_ahead()
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.write, 10),
            (self.settle, 2),
            (self.compact, 2),
            (self.reopen_after_crash, 1),
            (self.reopen_after_kill, 1),
            (self.reopen_after_close, 1),
            (self.rot, 1),
        ]
        choices, weights = zip(*weighted, strict=True)
        self.rng.choices(choices, weights)[0]()

    def trouble_ahead(self) -> None:
        """In one of the next calls the power fails, or the disk fails or is full."""
        disk, rng = self.disk, self.rng
        calls = rng.randint(1, 25) if rng.random() < 0.5 else rng.randint(1, 4)
        if rng.random() < 0.5:
            disk.cut_in_sync = rng.random() < 0.5
            disk.cut_after = calls
        else:
            kinds: tuple[FailKind, ...] = ("io", "sync", "full")
            disk.faults.fail_kind = rng.choice(kinds)
            disk.faults.fail_after = calls
            disk.faults.fail_forever = rng.random() < 0.3

    def all_well(self) -> None:
        self.disk.cut_after = None
        self.disk.faults.fail_after = None
        self.disk.faults.fail_forever = False

    def change(self, possible: list[StoredState], action: Callable[[], None]) -> bool:
        """Run a change of the storage; the last of the possible states is the one when it returns."""
        storage = self.storage
        self.possible = possible
        try:
            action()
        except PowerCut:
            self.counters["power_cut"] += 1
            self.reopen(crash=True)
            return False
        except MetadataPoisoned as error:
            self.counters["poisoned"] += 1
            self.counters["full"] += "no space" in error.problem
            self.all_well()
            self.check_poisoned(storage)
            self.reopen(crash=self.rng.random() < 0.5)
            return False
        self.state = possible[-1]
        self.possible = [self.state]
        return True

    def check_poisoned(self, storage: RaftStorage) -> None:
        """RST7: nothing is acked until it was opened anew."""
        actions: tuple[Callable[[], None], ...] = (lambda: storage.write([_ready(())]), storage.settle)
        for action in actions:
            try:
                action()
            except MetadataPoisoned:
                continue
            self.expect(False, "RST7: a poisoned storage goes on")

    # --- changes -------------------------------------------------------------------------------------

    def write(self) -> None:
        rng = self.rng
        readys, after = [], self.state
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            ready = self.made_ready(after)
            readys.append(ready)
            after = states_of_write(after, [ready])[-1]
        possible = states_of_write(self.state, readys)
        assert possible[-1] == after, "Readys together come to the same as one after the other"
        segments = self.storage.statistics().segments
        if self.change(possible, lambda: self.storage.write(readys)):
            self.counters["rolled"] += self.storage.statistics().segments > segments

    def made_ready(self, state: StoredState) -> Ready:
        """An order that a core might give in this state: any mix of the three parts."""
        rng = self.rng
        hard_state = snapshot = None
        if rng.random() < 0.2:
            held = state.hard_state
            vote = rng.choice(("n1", "n2", None))
            if held.vote is None and rng.random() < 0.5:
                hard_state = replace(held, vote=vote)
            else:
                hard_state = HardState(held.term + rng.randint(1, 3), vote)
            state = state._replace(hard_state=hard_state)
        if rng.random() < 0.1:
            snapshot = self.made_snapshot(state)
            state = state._replace(snapshot=snapshot, entries=())
            self.counters["installed"] += 1
        entries = self.made_entries(state) if rng.random() < 0.85 else ()
        return replace(_ready(entries), hard_state=hard_state, snapshot=snapshot)

    def made_snapshot(self, state: StoredState) -> Snapshot:
        rng, head = self.rng, state.snapshot.head
        index = rng.randint(head.index, state.last_index + 5)
        term = rng.randint(head.term, state.hard_state.term)
        return Snapshot(SnapshotHead(index, term, self.made_members()), rng.randbytes(rng.choice((0, 10, 2000))))

    def made_members(self) -> Members:
        names = sorted(self.rng.sample(("n1", "n2", "n3", "n4"), 3))
        return Members(tuple(names[:2]), tuple(names[2:]))

    def made_entries(self, state: StoredState) -> tuple[Entry, ...]:
        rng, base = self.rng, state.snapshot.head.index
        first = state.last_index + 1
        if first > base + 1 and rng.random() < 0.2:
            first = rng.randint(max(base + 1, first - 6), first - 1)
            self.counters["replaced"] += 1
        term = before = state.term_at(first - 1)
        entries = []
        for index in range(first, first + rng.choice((1, 1, 1, 2, 5, 20))):
            if rng.random() < 0.3:
                term = rng.randint(max(term, 1), state.hard_state.term)
            entries.append(self.made_entry(index, max(term, 1)))
        if first <= state.last_index and before <= entries[0].term < state.term_at(first):
            self.counters["replaced_by_older_term"] += 1
        self.counters["appended"] += len(entries)
        return tuple(entries)

    def made_entry(self, index: int, term: int) -> Entry:
        rng = self.rng
        if rng.random() < 0.1:
            return Entry(index, term, EntryKind.MEMBERS, b"", self.made_members())
        return Entry(index, term, EntryKind.CHANGE, rng.randbytes(rng.choice((0, 8, 100, 700))))

    def settle(self) -> None:
        self.counters["settled"] += self.change([self.state], self.storage.settle)

    def compact(self) -> None:
        rng, state = self.rng, self.state
        index = rng.randint(state.snapshot.head.index, state.last_index)
        head = SnapshotHead(index, state.term_at(index), self.made_members())
        snapshot = Snapshot(head, rng.randbytes(rng.choice((0, 50, 3000))))
        after = state_after_compaction(state, snapshot)
        keep_from = rng.randint(max(0, index - 20), index + 5)
        action = lambda: self.storage.save_snapshot(snapshot, keep_from_index=keep_from)  # noqa: E731
        self.counters["compacted"] += self.change([state, after], action)

    # --- the end of a process, and the next one ------------------------------------------------------

    def reopen_after_crash(self) -> None:
        self.reopen(crash=True)

    def reopen_after_kill(self) -> None:
        self.reopen(crash=False)

    def reopen_after_close(self) -> None:
        if self.change([self.state], self.storage.close):
            self.counters["clean_close"] += 1
            self.reopen(crash=self.rng.random() < 0.3)

    def reopen(self, *, crash: bool) -> None:
        self.counters["crash" if crash else "kill"] += 1
        if crash:
            self.disk.crash()
        else:
            self.kill()
        try:
            storage = self.opened()
        except MetadataDamaged as error:
            self.expect(False, f"a crash alone looks like damage: {error}")
            raise
        self.expect(storage is not None, "metadata that was complete reads as blank")
        assert storage is not None
        self.storage = storage
        self.recognise()

    def kill(self) -> None:
        """The process is gone, the machine is not."""
        self.storage._poison = self.storage._poison or "the process was killed"
        self.all_well()
        self.storage.close()

    def opened(self) -> RaftStorage | None:
        """Open; in the first attempts the disk may fail or the power go."""
        for _ in range(2):
            if self.rng.random() < 0.15:
                self.trouble_ahead()
            try:
                return open_raft_storage(self.disk, FOLDER, now_us=self.now_us, options=self.options)
            except PowerCut:
                self.disk.crash()
            except DiskError:
                self.all_well()
                if self.rng.random() < 0.5:
                    self.disk.crash()
            finally:
                self.all_well()
            self.counters["opening_failed"] += 1
        return open_raft_storage(self.disk, FOLDER, now_us=self.now_us, options=self.options)

    def recognise(self) -> None:
        """The storage holds one of the possible states, and has its identity."""
        storage = self.storage
        found = StoredState(storage.hard_state, storage.snapshot, tuple(storage.entries))
        self.expect(storage.identity == self.identity, "whose metadata this is has changed")
        if found not in self.possible:
            self.expect(False, f"found {_shown(found)}\npossible: {[_shown(state) for state in self.possible]}")
        self.checks += 1
        self.expect(storage.last.index == found.last_index, "the end is not where the entries end")
        self.expect(storage.last.term == found.term_at(found.last_index), "the last term is not the last entry's")
        self.counters["torn_write"] += found not in (self.possible[0], self.possible[-1])
        self.state = found
        self.possible = [found]

    # --- rot -----------------------------------------------------------------------------------------

    def rot(self) -> None:
        """One bit of one file flips while the process is down: damage, or nothing at all."""
        self.all_well()
        self.storage.settle()
        how = self.rng.randrange(3)
        if how == 0:
            self.storage.close()
        if how == 1:
            self.kill()
        else:
            self.disk.crash()
        path = self.flip_somewhere()
        try:
            storage = open_raft_storage(self.disk, FOLDER, now_us=self.now_us, options=self.options)
        except MetadataDamaged:
            self.counters["rot_damaged"] += 1
            self.relearn()
            return
        self.counters["rot_harmless"] += 1
        self.expect(storage is not None, f"a flipped bit of {path} makes metadata look blank")
        assert storage is not None
        self.storage = storage
        self.recognise()

    def flip_somewhere(self) -> str:
        """Anywhere, or in the last block of a segment, where only the mark can tell."""
        rng = self.rng
        files = self.files(f"{FOLDER}/{LIVE_NAME}")
        segments = [path for path in files if path.endswith(SEGMENT_SUFFIX)]
        path = rng.choice(files if rng.random() < 0.6 else segments)
        if path in segments and rng.random() < 0.5:
            size = len(self.disk.durable_bytes(path))
            self.disk.flip_bit(path, size - rng.randint(1, min(size, 100)), rng.randrange(8))
        else:
            self.disk.flip_random_bit(path)
        return path

    def relearn(self) -> None:
        """Damaged metadata stays damaged until it is set aside; then the member begins anew."""
        try:
            open_raft_storage(self.disk, FOLDER, now_us=self.now_us, options=self.options)
        except MetadataDamaged:
            before = len(self.disk.list_folder(QUARANTINE)) if self.disk.exists(QUARANTINE) else 0
            place = set_aside(self.disk, FOLDER, to=QUARANTINE)
            self.disk.crash()
            self.expect(len(self.disk.list_folder(QUARANTINE)) == before + 1, "what was set aside is gone")
            self.expect(bool(self.files(place)), "what was set aside is empty")
            self.create()
            return
        self.expect(False, "opening damaged metadata a second time finds nothing wrong")

    def create(self) -> None:
        """A new member. Creation may fail at any call, and leaves blank or complete."""
        rng = self.rng
        self.creations += 1
        self.identity = StoredIdentity(cluster=rng.randbytes(16), node="n1", disk=f"{self.creations:016x}")
        term = rng.randint(1, 3)
        index = rng.choice((0, 0, 7))
        head = SnapshotHead(index, term if index else 0, self.made_members())
        self.state = StoredState(HardState(term, None), Snapshot(head, rng.randbytes(rng.choice((0, 90)))), ())
        self.possible = [self.state]
        if rng.random() < 0.4:
            self.trouble_ahead()
        try:
            self.storage = self.created()
        except (PowerCut, DiskError) as error:
            self.counters["create_failed"] += 1
            self.all_well()
            if isinstance(error, PowerCut) or rng.random() < 0.5:
                self.disk.crash()
            storage = open_raft_storage(self.disk, FOLDER, now_us=self.now_us, options=self.options)
            self.storage = self.created() if storage is None else storage
        self.all_well()
        self.counters["created"] += 1
        self.recognise()

    def created(self) -> RaftStorage:
        return create_raft_storage(
            self.disk,
            FOLDER,
            identity=self.identity,
            snapshot=self.state.snapshot,
            hard_state=self.state.hard_state,
            now_us=self.now_us,
            options=self.options,
        )

    def files(self, folder: str) -> list[str]:
        """The files below a folder that are not empty."""
        found = []
        for name in self.disk.list_folder(folder):
            path = f"{folder}/{name}"
            try:
                file = self.disk.open(path, writable=False)
            except DiskError:
                found += self.files(path)
                continue
            if file.size():
                found.append(path)
            file.close()
        return found

    def finish(self) -> None:
        self.all_well()
        self.reopen(crash=True)
        self.storage.close()


def _ready(entries: tuple[Entry, ...]) -> Ready:
    return Ready(
        number=1,
        hard_state=None,
        snapshot=None,
        entries=entries,
        messages=(),
        messages_after=(),
        committed=(),
        reads=(),
    )


def _shown(state: StoredState) -> str:
    terms = [entry.term for entry in state.entries]
    return f"{state.hard_state}, snapshot {state.snapshot.head}, {len(terms)} entries of terms {terms}"
