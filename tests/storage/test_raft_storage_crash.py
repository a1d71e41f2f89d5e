"""Every crash point, torn write and flipped bit: what was acked is held, or the metadata says that it is damaged."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.storage.raft import (
    FOLDER,
    FOUNDED,
    LIVE,
    SMALL,
    created,
    entries,
    entry,
    files_below,
    killed,
    new_disk,
    opened,
    ready,
    snapshot_at,
    state_of,
)
from tidelog.core.raft.messages import HardState, Ready, Snapshot
from tidelog.errors import DiskError, MetadataDamaged, MetadataPoisoned
from tidelog.sim.disk import FailKind, SimDisk
from tidelog.sim.metadata.stored_state import StoredState, state_after_compaction, states_of_write
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.storage.raft.files import MARK_SLOT_STEP
from tidelog.storage.raft.opening import open_raft_storage, set_aside
from tidelog.storage.raft.storage import RaftStorage

QUARANTINE = ".tidelog/quarantine"


class Story:
    """Every kind of change once, with all states that a crash at this moment may leave. None is a blank folder."""

    def __init__(self, disk: PluggedDisk) -> None:
        self.disk = disk
        self.possible: list[StoredState | None] = [None, FOUNDED]
        self.step = "create"
        self.storage: RaftStorage | None = None

    def run(self) -> None:
        self.storage = created(self.disk)
        self.possible = [FOUNDED]
        self.write("first entries", ready(*entries(1, 4)))
        self.write("vote and entries", ready(*entries(5, 24, 2, 500), hard_state=HardState(2, "n2")))
        self.change("settle", [self.state], self.storage.settle)
        self.write("replace in one segment", ready(entry(24, 2), entry(25, 2)))
        self.write("replace many segments", ready(*entries(3, 5, 1), hard_state=HardState(3, None)))
        self.compact("compact", snapshot_at(4), keep_from=2)
        self.write("go on", ready(*entries(6, 30, 3, 400)))
        self.compact("compact and trim", snapshot_at(28, 3), keep_from=29)
        self.write("install", ready(entry(41, 4), hard_state=HardState(4, "n1"), snapshot=snapshot_at(40, 3)))
        self.write("go on in the next log", ready(entry(42, 4)))
        self.change("close", [self.state], self.storage.close)

    @property
    def state(self) -> StoredState:
        assert self.possible[-1] is not None
        return self.possible[-1]

    def write(self, step: str, what: Ready) -> None:
        assert self.storage is not None
        storage = self.storage
        self.change(step, states_of_write(self.state, [what]), lambda: storage.write([what]))

    def compact(self, step: str, snapshot: Snapshot, keep_from: int) -> None:
        assert self.storage is not None
        storage = self.storage
        after = state_after_compaction(self.state, snapshot)
        self.change(step, [self.state, after], lambda: storage.save_snapshot(snapshot, keep_from_index=keep_from))

    def change(self, step: str, possible: list[StoredState], action: Callable[[], None]) -> None:
        self.step = step
        self.possible = list(possible)
        action()
        self.possible = [possible[-1]]

    def check(self) -> None:
        """Open what is left, twice: the second time after a power cut."""
        for power_cut in (False, True):
            if power_cut:
                self.disk.crash()
            storage = open_raft_storage(self.disk, FOLDER, now_us=3, options=SMALL)
            found = None if storage is None else state_of(storage)
            assert found in self.possible, f"{self.step}: {found}"
            self.possible = [found]
            if storage is not None:
                killed(storage)


def test_the_story_without_faults_ends_as_it_should() -> None:
    story = Story(new_disk())
    story.run()
    story.check()
    assert story.state == (HardState(4, "n1"), snapshot_at(40, 3), (entry(41, 4), entry(42, 4)))


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("kind", ["io", "full", "sync"])
def test_whichever_call_fails_nothing_acked_is_lost(kind: FailKind, power_cut: bool) -> None:
    for call in range(1, 2_000):
        disk = new_disk(call)
        story = Story(disk)
        disk.faults.fail_after, disk.faults.fail_kind = call, kind
        try:
            story.run()
        except (DiskError, MetadataPoisoned):
            pass
        finished = disk.faults.fail_after is not None
        disk.faults.fail_after = None
        if power_cut:
            disk.crash()
        elif story.storage is not None:
            killed(story.storage)
        story.check()
        if finished:
            assert call > 50
            return
    pytest.fail("the story never finished")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whenever_the_power_goes_nothing_acked_is_lost(seed: int) -> None:
    for call in range(1, 2_000):
        disk = new_disk(seed * 10_000 + call)
        story = Story(disk)
        disk.cut_after = call
        try:
            story.run()
        except PowerCut:
            disk.crash()
            story.check()
            continue
        assert call > 200
        return
    pytest.fail("the story never finished")


def test_whenever_the_power_goes_while_opening_nothing_acked_is_lost() -> None:
    for call in range(1, 500):
        disk = new_disk(call)
        storage = created(disk)
        storage.write([ready(*entries(1, 20, 1, 500))])
        storage.write([ready(*entries(12, 14, 1))])
        disk.crash()
        disk.cut_after = call
        try:
            opened(disk)
        except PowerCut:
            disk.crash()
            assert opened(disk).entries == [*entries(1, 11, 1, 500), *entries(12, 14, 1)], f"call {call}"
            continue
        assert call > 30
        return
    pytest.fail("opening never finished")


def test_whenever_the_power_goes_while_setting_aside_it_is_in_one_place_or_the_other() -> None:
    for call in range(1, 50):
        disk = new_disk(call)
        created(disk).close()
        disk.cut_after = call
        try:
            set_aside(disk, FOLDER, to=QUARANTINE)
        except PowerCut:
            disk.crash()
            moved = disk.exists(f"{QUARANTINE}/metadata-1")
            assert (open_raft_storage(disk, FOLDER, now_us=1) is None) == moved
            continue
        assert call > 5
        return
    pytest.fail("setting aside never finished")


# --- torn writes -----------------------------------------------------------------------------------


def test_the_last_write_torn_at_any_byte_leaves_any_first_part_of_it() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 3))])
    storage.settle()
    path = f"{LIVE}/log-1/{1:020d}.seg"
    start = len(disk.durable_bytes(path))
    storage.write([ready(*entries(4, 6))])
    # A clone holds what is durable: the entries, but not yet the mark of this write.
    twin = disk.clone(random.Random(1))
    whole = twin.durable_bytes(path)
    assert start < len(whole)
    longest = 0
    for cut in range(start, len(whole) + 1):
        for rest in (b"", bytes(len(whole) - cut), bytes([0xA5]) * (len(whole) - cut)):
            copy = twin.clone(random.Random(1))
            copy.replace_bytes(path, whole[:cut] + rest)
            storage = opened(copy)
            found = len(storage.entries)
            assert 3 <= found <= 6
            assert storage.entries == [*entries(1, found)], f"cut at {cut}"
            longest = max(longest, found)
    assert longest == 6


def test_a_torn_mark_leaves_the_older_one() -> None:
    disk = new_disk()
    storage = created(disk)
    path = f"{LIVE}/mark-1"
    for index in range(1, 4):
        storage.write([ready(entry(index))])
        before = disk.durable_bytes(path)
        twin = disk.clone(random.Random(1))
        storage.settle()
        after = disk.durable_bytes(path)
        changed = [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        assert len({place // MARK_SLOT_STEP for place in changed}) == 1, "MF2: one slot only"
        for cut in range(changed[0], changed[-1] + 2):
            for torn in (after[:cut] + before[cut:], before[:cut] + after[cut:]):
                copy = twin.clone(random.Random(1))
                copy.replace_bytes(path, torn)
                assert opened(copy).entries == [*entries(1, index)]


def test_many_marks_between_two_settles_never_touch_the_durable_slot() -> None:
    """Turning to the other slot with each write would leave both torn after a power cut."""
    for seed in range(60):
        disk = new_disk(seed)
        storage = created(disk)
        for index in range(1, 8):
            storage.write([ready(entry(index))])
        disk.crash()
        assert opened(disk).entries == [*entries(1, 7)], f"seed {seed}"


# --- flipped bits ----------------------------------------------------------------------------------


def rich_disk() -> tuple[SimDisk, StoredState]:
    """Several segments, a compacted front, a mark that was lowered; killed, or closed properly."""
    disk = new_disk(5)
    storage = created(disk)
    storage.write([ready(*entries(1, 9, 1, 400), hard_state=HardState(3, "n2"))])
    storage.save_snapshot(snapshot_at(6), keep_from_index=5)
    storage.write([ready(*entries(9, 16, 2, 400))])
    storage.write([ready(*entries(15, 18, 3, 100))])
    storage.settle()
    state = StoredState(HardState(3, "n2"), snapshot_at(6), (*entries(7, 8, 1, 400), *entries(9, 14, 2, 400)))
    return disk.clone(random.Random(5)), state._replace(entries=state.entries + entries(15, 18, 3, 100))


def flip_and_open(disk: SimDisk, state: StoredState, path: str, position: int, bit: int) -> bool:
    """Whether the flip was noticed; if not, it must be harmless."""
    copy = disk.clone(random.Random(1))
    copy.flip_bit(path, position, bit)
    try:
        storage = open_raft_storage(copy, FOLDER, now_us=3, options=SMALL)
    except MetadataDamaged:
        return True
    assert storage is not None, f"{path} at {position}, bit {bit}: blank"
    assert state_of(storage) == state, f"{path} at {position}, bit {bit}: {state_of(storage)}"
    return False


def count_noticed(
    disk: SimDisk, state: StoredState, step: int, bits: Callable[[int], range]
) -> dict[str, tuple[int, int]]:
    """(noticed, flipped) by file."""
    counts = {}
    for path, content in files_below(disk).items():
        flips = [(place, bit) for place in range(0, len(content), step) for bit in bits(place)]
        noticed = sum(flip_and_open(disk, state, path, place, bit) for place, bit in flips)
        counts[path.removeprefix(f"{LIVE}/")] = noticed, len(flips)
    return counts


def test_a_flipped_bit_is_harmless_or_damage_but_never_wrong_data() -> None:
    disk, state = rich_disk()
    assert flip_and_open(disk, state, f"{LIVE}/identity", 0, 0)
    counts = count_noticed(disk, state, 13, lambda place: range(place % 8, place % 8 + 1))
    for name in ("identity", "hard-state", "snapshot"):
        noticed, flipped = counts.pop(name)
        assert noticed == flipped > 3, f"{name}: a flip that nobody notices"
    assert counts.pop("mark-1")[0] == 0, "one slot is enough"
    segments = {name: count for name, count in counts.items() if name.endswith(".seg")}
    assert len(segments) > 1
    # Only the 64 bytes of a segment's head can be had from elsewhere.
    assert all(noticed >= flipped - 5 and noticed for noticed, flipped in segments.values()), segments
    assert not any(noticed for name, (noticed, _) in counts.items() if name not in segments)


@pytest.mark.slow
def test_every_flipped_bit_is_harmless_or_damage_but_never_wrong_data() -> None:
    disk, state = rich_disk()
    count_noticed(disk, state, 1, lambda place: range(0, 8, 3))


def test_a_flip_is_noticed_after_a_clean_close_too() -> None:
    disk, state = rich_disk()
    opened(disk).close()
    disk = disk.clone(random.Random(1))
    counts = count_noticed(disk, state, 41, lambda place: range(place % 8, place % 8 + 1))
    assert sum(noticed for noticed, _ in counts.values()) > 50
