"""All logs of a node against a plain model: the disk fails at every call, by seed, and is power-cut after that.

What the model allows after a power cut: of each channel a run of what was appended, from its start, that holds at
least what was promised; never a record of an earlier content, never a gap. The last tests turn a safety off and
demand that the model notices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.storage.test_channel_logs import block, config
from tidelog.blocks.block import Block
from tidelog.errors import DiskError, DiskFull, LogError, LogPoisoned
from tidelog.sim.disk import FailKind, SimDisk
from tidelog.storage.log.options import Fsync, LogOptions, Retention
from tidelog.storage.store import recovery as store_recovery
from tidelog.storage.store import store as store_module
from tidelog.storage.store.channel_logs import AppendOutcome, ChannelLogConfig, ChannelLogs
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store
from tidelog.storage.store.wal import WalEntryKind
from tidelog.units import KIB

NOW = 1_000_000
POLICIES = {1: Fsync.ALWAYS, 2: Fsync.ALWAYS, 3: Fsync.INTERVAL, 4: Fsync.NEVER}


class Broken(AssertionError):
    """The logs are not what the model allows."""


@dataclass(slots=True)
class Content:
    """One content of a channel: what may be there, and how much of it must be."""

    start: int = 0
    start_max: int = 0
    """Retention may have come so far."""
    blocks: list[Block] = field(default_factory=list)
    sure_end: int = 0

    @property
    def end(self) -> int:
        return self.blocks[-1].offsets.stop if self.blocks else self.start

    def allows(self, start: int, found: list[bytes]) -> bool:
        if not self.start <= start <= self.start_max:
            return False
        mine = [one for one in self.blocks if one.leader.base_offset >= start]
        if mine and mine[0].leader.base_offset != start:
            return False
        end = mine[len(found) - 1].offsets.stop if found and len(found) <= len(mine) else start
        return found == [one.tobytes() for one in mine[: len(found)]] and end >= min(self.sure_end, self.end)


class Driver:
    """Gives orders to the logs and keeps the model of what they may hold."""

    def __init__(self, disk: SimDisk, rng: random.Random, *, copy_bytes_max: int) -> None:
        self.disk = disk
        self.rng = rng
        self.options = StoreOptions(
            log=LogOptions(reserve_bytes=0),
            large_block_bytes=2 * KIB,
            wal_bytes_max=16 * KIB,
            copy_bytes_max=copy_bytes_max,
            copy_channel_bytes_max=KIB,
            scrub_bytes_per_s=0,
        )
        self.allowed: dict[int, list[Content | None]] = {number: [None] for number in POLICIES}
        """For each channel what may be found, the likeliest last; None means that it is not there."""
        self.now_us = NOW
        self.text = 0
        self.broken = False
        """A call failed in a way that leaves its effect open: the next thing must be an opening."""
        self.open_logs()

    # --- the model -------------------------------------------------------------------------------

    def content(self, number: int) -> Content:
        """What is there now, as long as nothing went wrong."""
        content = self.allowed[number][-1]
        return content if content is not None else Content()

    def attempt(self, number: int, action: Callable[[], Any], after: Content | None, *, kept: bool = True) -> None:
        """Carry out what leaves `after`; if its outcome is open, both what was and `after` are allowed."""
        before = list(self.allowed[number])
        try:
            action()
        except DiskFull:
            if self.stopped(number):
                self.allowed[number], self.broken = [*before, after], True
            elif kept:
                self.check(number)
        except LogError:
            self.allowed[number], self.broken = [*before, after], True
        else:
            self.allowed[number] = [after]

    def stopped(self, number: int) -> bool:
        try:
            self.logs._store.check_usable()
            return self.logs.log(number).poisoned
        except LogError:
            return True

    # --- orders ----------------------------------------------------------------------------------

    def append(self, numbers: list[int], *, large: bool = False) -> None:
        batch: list[tuple[int, list[Block]]] = []
        for number in dict.fromkeys(numbers):
            end, blocks = self.content(number).end, list[Block]()
            for _ in range(self.rng.randint(1, 3)):
                self.text += 1
                size = 3 * KIB if large and self.rng.random() < 0.5 else 0
                blocks.append(block(number, end, text=f"text {self.text}", size=size, records=1 + self.text % 3))
                end = blocks[-1].offsets.stop
            batch.append((number, blocks))
        for (number, blocks), outcome in zip(batch, self.logs.append(batch, self.now_us), strict=True):
            self.settle(number, blocks, outcome)

    def settle(self, number: int, blocks: list[Block], outcome: AppendOutcome) -> None:
        content = self.content(number)
        if outcome.error is not None and outcome.log_end == content.end and not self.stopped(number):
            if outcome.held_end < content.sure_end:
                raise Broken(f"channel {number}: held_end fell to {outcome.held_end}")
            self.check(number)
            return
        grown = Content(content.start, content.start_max, [*content.blocks, *blocks], content.sure_end)
        if outcome.error is not None:
            self.broken = True
            self.allowed[number].append(grown)
            return
        if outcome.held_end != grown.end:
            raise Broken(f"channel {number}: held_end is {outcome.held_end}, not {grown.end}")
        # A weaker channel is sure only of what its log knows to be durable.
        grown.sure_end = grown.end if POLICIES[number] is Fsync.ALWAYS else self.logs.state(number).durable_end
        self.allowed[number] = [grown]

    def truncate(self, number: int) -> None:
        content = self.content(number)
        places = [one.leader.base_offset for one in content.blocks if one.leader.base_offset >= content.start_max]
        offset = self.rng.choice([*places, content.end])
        kept = [one for one in content.blocks if one.leader.base_offset < offset]
        after = Content(content.start, content.start_max, kept, min(content.sure_end, offset))
        between = Content(content.start, content.start_max, content.blocks, min(content.sure_end, offset))
        self.attempt(number, lambda: self.logs.truncate(number, offset, self.now_us), after)
        if self.broken:
            self.allowed[number].append(between)

    def reset(self, number: int) -> None:
        base = self.rng.choice([0, 5, self.content(number).end, 1_000])
        after = Content(base, base, [], base)
        self.attempt(number, lambda: self.logs.reset(number, base, self.now_us), after)

    def delete(self, number: int) -> None:
        self.attempt(number, lambda: self.logs.delete(number, self.now_us), None)
        if not self.broken:
            self.open_one(number)

    def sweep(self, number: int) -> None:
        content = self.content(number)
        content.start_max = max(content.start_max, content.end)
        try:
            self.logs.sweep(number, self.now_us, floor=content.end, limits=Retention(max_bytes=2 * KIB))
        except DiskFull:
            pass
        except LogError:
            self.broken = True
            return
        if not self.stopped(number):
            start = self.logs.state(number).log_start
            blocks = [one for one in content.blocks if one.leader.base_offset >= start]
            sure_end = max(content.sure_end, start)
            self.allowed[number] = [Content(start, start, blocks, sure_end)] if content.end or content.start else [None]

    def maintain(self) -> None:
        self.now_us += 2_000_000
        self.logs.maintain(self.now_us)

    def checkpoint(self) -> None:
        try:
            self.logs._store.checkpoint(self.now_us)
        except DiskFull:
            pass
        except LogError:
            self.broken = True

    def reopen_one(self, number: int) -> None:
        try:
            self.logs.close(number, self.now_us)
        except LogError:
            self.broken = True
        else:
            self.open_one(number)

    # --- openings --------------------------------------------------------------------------------

    def config(self, number: int) -> ChannelLogConfig:
        return config(number, fsync=POLICIES[number], segment_bytes_max=4 * KIB, fsync_interval_ms=1_000)

    def open_one(self, number: int) -> None:
        try:
            self.logs.open(self.config(number), self.now_us)
        except LogError:
            self.broken = True

    def open_logs(self) -> None:
        self.logs = ChannelLogs(open_store(self.disk, now_us=self.now_us, options=self.options))

    def restart(self, *, clean: bool = False) -> None:
        """Cut the power (or close), open again, and take what is found for what there is."""
        if clean and not self.broken:
            try:
                self.logs.close_all(self.now_us)
            except DiskError:
                self.disk.crash()
        else:
            self.disk.crash()
        self.disk.faults.fail_after = None
        self.disk.faults.fail_forever = False
        self.disk.faults.capacity_bytes = None
        self.broken = False
        self.open_logs()
        if not self.logs.verified:
            raise Broken("damage was found where none was planted")
        for number in POLICIES:
            there = number in self.logs.known()
            self.open_one(number)
            self.adopt(number, there=there)

    def found(self, number: int) -> tuple[int, list[bytes]]:
        state = self.logs.state(number)
        blocks = list(self.logs.log(number).blocks())
        if state.damaged or (blocks[-1].offsets.stop if blocks else state.log_start) != state.log_end:
            raise Broken(f"channel {number}: {state}")
        return state.log_start, [one.tobytes() for one in blocks]

    def adopt(self, number: int, *, there: bool) -> None:
        start, found = self.found(number)
        for content in reversed(self.allowed[number]):
            if content is None:
                if not there or (not found and start == 0):
                    self.allowed[number] = [None]
                    return
            elif (there or not content.sure_end) and content.allows(start, found):
                kept = [one for one in content.blocks if one.leader.base_offset >= start][: len(found)]
                now = Content(start, start, kept, kept[-1].offsets.stop if kept else start)
                self.allowed[number] = [now if there else None]
                return
        raise Broken(
            f"channel {number} (on disk: {there}) starts at {start} with {len(found)} blocks; allowed are "
            f"{[(one.start, one.sure_end, one.end) if one else None for one in self.allowed[number]]}"
        )

    def check(self, number: int) -> None:
        content, armed = self.content(number), self.disk.faults.fail_after
        self.disk.faults.fail_after = None  # looking is not what shall fail
        start, found = self.found(number)
        self.disk.faults.fail_after = armed
        if start != content.start or found != [one.tobytes() for one in content.blocks]:
            raise Broken(f"channel {number} is not what it was before a refusal")

    # --- a random step ---------------------------------------------------------------------------

    def step(self) -> None:
        number = self.rng.choice(list(POLICIES))
        some = self.rng.choices(list(POLICIES), k=self.rng.randint(1, 4))
        actions: list[tuple[int, Callable[[], None]]] = [
            (10, lambda: self.append(some)),
            (5, lambda: self.append(some, large=True)),
            (3, lambda: self.truncate(number)),
            (2, lambda: self.reset(number)),
            (2, lambda: self.delete(number)),
            (2, lambda: self.sweep(number)),
            (2, self.checkpoint),
            (2, self.maintain),
            (1, lambda: self.reopen_one(number)),
            (1, lambda: self.restart(clean=self.rng.random() < 0.5)),
        ]
        self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()


def live(seed: int, steps: int = 60) -> Driver:
    """One seed: random orders, random faults, a power cut after each fault that leaves something open."""
    rng = random.Random(seed)
    driver = Driver(SimDisk(random.Random(rng.random())), rng, copy_bytes_max=rng.choice([0, 4 * KIB]))
    for number in POLICIES:
        driver.open_one(number)
    for _ in range(steps):
        if driver.disk.faults.fail_after is None and rng.random() < 0.15:
            driver.disk.faults.fail_kind = rng.choice(["io", "sync", "full"])
            driver.disk.faults.fail_after = rng.randint(1, 12)
        driver.step()
        if driver.broken or any(driver.stopped(number) for number in POLICIES):
            driver.restart()
    driver.restart()
    return driver


@pytest.mark.parametrize("seed", range(120))
def test_random_runs_hold_what_was_promised(seed: int) -> None:
    live(seed)


@pytest.mark.slow
def test_many_random_runs_hold_what_was_promised() -> None:
    for seed in range(1_000, 3_000):
        try:
            live(seed)
        except (Broken, LogError, AssertionError) as error:
            raise Broken(f"seed {seed}: {error}") from error


# --- every call fails once ---------------------------------------------------------------------------


def script(driver: Driver) -> Iterator[Callable[[], None]]:
    """A little of everything, always the same."""
    for number in POLICIES:
        yield lambda number=number: driver.open_one(number)  # type: ignore[misc]
    yield lambda: driver.append([1, 2, 3])
    yield lambda: driver.append([1, 4], large=True)
    yield driver.checkpoint
    yield lambda: driver.append([1, 2, 3, 4])
    yield lambda: driver.reset(1)
    yield lambda: driver.append([1, 2], large=True)
    yield lambda: driver.truncate(2)
    yield lambda: driver.delete(3)
    yield lambda: driver.append([3, 2])
    yield lambda: driver.sweep(2)
    yield driver.maintain
    yield lambda: driver.reset(3)
    yield lambda: driver.append([1, 2, 3, 4], large=True)
    yield driver.checkpoint
    yield lambda: driver.reopen_one(1)
    yield lambda: driver.delete(1)
    yield lambda: driver.append([1])


@pytest.mark.parametrize("kind", ["io", "sync", "full"])
@pytest.mark.parametrize("copy_bytes_max", [0, 4 * KIB])
def test_a_kill_at_every_call_of_the_disk_leaves_what_was_promised(kind: FailKind, copy_bytes_max: int) -> None:
    call = 0
    fired = True
    while fired:
        call += 1
        driver = Driver(SimDisk(random.Random(call)), random.Random(7), copy_bytes_max=copy_bytes_max)
        driver.disk.faults.fail_kind = kind
        driver.disk.faults.fail_after = call
        driver.disk.faults.fail_forever = True
        for action in script(driver):
            action()
            if driver.broken or any(driver.stopped(number) for number in driver.logs._opened):
                break
        fired = driver.disk.statistics().faults > 0
        try:
            driver.restart()
            driver.append(list(POLICIES))
            driver.restart()
        except (Broken, LogError) as error:
            raise Broken(f"{kind} at call {call}: {error}") from error
    assert call > 20


# --- proof that the model would notice ---------------------------------------------------------------


def assert_noticed() -> None:
    for seed in range(40):
        try:
            live(seed)
        except (AssertionError, LogError, LookupError):
            return
    pytest.fail("40 seeds did not notice")


def test_acks_without_a_sync_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync_wal(store: Store) -> None:
        for channel, end in store._unsynced_ends.values():
            if channel.log is not None:
                channel.log.note_durable(end)
        store._unsynced_ends.clear()

    monkeypatch.setattr(Store, "sync_wal", sync_wal)
    assert_noticed()


def test_a_reset_that_forgets_its_entry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry: Callable[..., None] = Store._write_entry

    def without_creations(store: Store, kind: WalEntryKind, *rest: Any) -> None:
        if kind is not WalEntryKind.CREATE:
            write_entry(store, kind, *rest)

    monkeypatch.setattr(Store, "_write_entry", without_creations)
    assert_noticed()


def test_a_replay_that_mixes_two_generations_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fold: Callable[..., None] = store_recovery._fold_creation

    def without_forgetting(store: Store, by_id: Any, waiting: dict[int, list[Block]], entry: Any) -> None:
        fold(store, by_id, dict(waiting), entry)

    monkeypatch.setattr(store_recovery, "_fold_creation", without_forgetting)
    assert_noticed()


def test_channels_that_are_carried_and_not_written_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "log_again", lambda *_: True)
    assert_noticed()


def test_the_typed_refusal_of_a_stopped_store_is_the_same_for_all() -> None:
    driver = Driver(SimDisk(random.Random(1)), random.Random(1), copy_bytes_max=0)
    for number in POLICIES:
        driver.open_one(number)
    driver.logs._store.poison("a test")
    outcomes = driver.logs.append([(number, [block(number, 0)]) for number in POLICIES], NOW)
    assert {type(one.error) for one in outcomes} == {LogPoisoned}
    assert [(one.held_end, one.log_end) for one in outcomes] == [(0, 0)] * 4
