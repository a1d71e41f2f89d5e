"""What `SimDisk` does beyond the contract (tests/storage/test_os_disk.py): power cuts and faults, by seed.

The numbers DI1 to DI5 are those of `tidelog.sim.disk`. The seed of a failure is in the test's name or
in the assertion's message.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest

from tidelog.errors import DiskError, DiskFull, FileMissing, FolderLocked, SyncFailed
from tidelog.sim.disk import SECTOR_BYTES, DiskFaults, FailKind, SimDisk
from tidelog.storage.disk import File

SEEDS = range(300)


def new_disk(seed: int = 0, faults: DiskFaults | None = None) -> SimDisk:
    return SimDisk(random.Random(seed), faults=faults)


def durable_file(disk: SimDisk, path: str, data: bytes = b"") -> File:
    """An open file whose name and bytes survive a crash."""
    file = disk.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    disk.sync_folder(path.rpartition("/")[0])
    return file


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    data = file.read_at(0, file.size())
    file.close()
    return data


def outcomes(prepare: Callable[[SimDisk], None], path: str = "a", seeds: range = SEEDS) -> set[bytes | None]:
    """What a file can hold after a crash, over all seeds; None where it is gone."""
    seen: set[bytes | None] = set()
    for seed in seeds:
        disk = new_disk(seed)
        prepare(disk)
        disk.crash()
        seen.add(content(disk, path) if disk.exists(path) else None)
    return seen


# --- power cuts: bytes -------------------------------------------------------------------------------


class RandomWorkload:
    """Random changes to a few files, and a model of which bytes a crash may leave there (DI1, DI2)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = new_disk(seed + 1)
        self.possible: dict[str, list[set[int]]] = {}  # per byte: the values it may have after a crash
        self.sizes: dict[str, set[int]] = {}
        self.visible: dict[str, bytearray] = {}

    def run(self, steps: int) -> None:
        files = {name: durable_file(self.disk, name) for name in ("a", "b")}
        for name in files:
            self.possible[name], self.sizes[name], self.visible[name] = [], {0}, bytearray()
        for _ in range(steps):
            name = self.rng.choice(sorted(files))
            match self.rng.randrange(6):
                case 0:
                    files[name].sync()
                    self.sync(name)
                case 1 if self.rng.random() < 0.3:
                    self.truncate(name, files[name], self.rng.randint(0, len(self.visible[name]) + 200))
                case _:
                    self.write(name, files[name])
            assert files[name].read_at(0, 1 << 20) == self.visible[name]

    def write(self, name: str, file: File) -> None:
        position = self.rng.randint(0, len(self.visible[name]) + 50)
        data = self.rng.randbytes(self.rng.choice([1, 20, 700, 2000]))
        file.write_at(position, [data])
        visible = self.visible[name]
        visible.extend(bytes(max(0, position - len(visible))))
        visible[position : position + len(data)] = data
        possible = self.possible[name]
        possible.extend({0} for _ in range(position + len(data) - len(possible)))
        for index, value in enumerate(data, position):
            possible[index] |= {value, 0}
        self.sizes[name].add(len(visible))

    def truncate(self, name: str, file: File, size: int) -> None:
        file.truncate(size)
        visible = self.visible[name]
        for values in self.possible[name][size:]:
            values.add(0)  # cut and grown again
        del visible[size:]
        visible.extend(bytes(size - len(visible)))
        self.possible[name].extend({0} for _ in range(size - len(self.possible[name])))
        self.sizes[name].add(size)

    def sync(self, name: str) -> None:
        assert self.disk.durable_bytes(name) == self.visible[name]
        self.possible[name] = [{value} for value in self.visible[name]]
        self.sizes[name] = {len(self.visible[name])}

    def check(self) -> None:
        for name, possible in self.possible.items():
            data = content(self.disk, name)
            assert min(self.sizes[name]) <= len(data) <= len(possible)
            for index, value in enumerate(data):
                assert value in possible[index], f"{name} byte {index}"
            assert self.disk.durable_bytes(name) == data


@pytest.mark.parametrize("seed", range(150))
def test_a_crash_leaves_synced_bytes_and_invents_none(seed: int) -> None:
    workload = RandomWorkload(seed)
    workload.run(40)
    workload.disk.crash()
    workload.check()


def test_the_same_seed_gives_the_same_crash() -> None:
    def image(seed: int) -> tuple[bytes, ...]:
        workload = RandomWorkload(seed)
        workload.run(30)
        workload.disk.crash()
        return tuple(content(workload.disk, name) for name in ("a", "b"))

    assert [image(seed) for seed in range(20)] == [image(seed) for seed in range(20)]
    assert len({image(seed) for seed in range(20)}) == 20


def test_an_unsynced_write_is_lost_kept_or_torn() -> None:
    old, new = b"o" * 2048, b"n" * 2048

    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", old).write_at(0, [new])

    seen = outcomes(prepare)
    assert old in seen
    assert new in seen
    assert any(data and data == data.rstrip(b"o") + b"o" * data.count(b"o") and b"n" in data for data in seen)
    sectors = {data[i : i + SECTOR_BYTES] for data in seen if data for i in range(0, 2048, SECTOR_BYTES)}
    assert {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES, bytes(SECTOR_BYTES)} <= sectors
    assert any(data and data.startswith(b"o" * SECTOR_BYTES) and data.endswith(b"n") for data in seen)


def test_a_later_write_may_survive_an_earlier_one() -> None:
    def prepare(disk: SimDisk) -> None:
        file = durable_file(disk, "a", b"....")
        file.write_at(0, [b"11"])
        file.write_at(2, [b"22"])

    assert {b"....", b"1122", b"11..", b"..22"} <= outcomes(prepare)


def test_a_lost_append_may_leave_its_length_as_zeros() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"kept").write_at(4, [b"lost"])

    seen = outcomes(prepare)
    assert {b"kept", b"kept\0\0\0\0", b"keptlost", b"keptlo", b"keptlo\0\0"} <= seen


def test_an_unsynced_truncate_is_kept_or_lost_and_may_revive_what_it_cut() -> None:
    def prepare(disk: SimDisk) -> None:
        file = durable_file(disk, "a", b"abcdef")
        file.truncate(2)
        file.write_at(2, [b"X"])

    seen = outcomes(prepare)
    assert {b"ab", b"abX", b"abcdef", b"abXdef"} <= seen
    assert seen <= {b"ab", b"abX", b"abcdef", b"abXdef", b"ab\0", b"ab\0def"}


def test_a_torn_write_never_touches_its_neighbours_in_the_sector() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"s" * 1000).write_at(500, [b"w" * 100])

    for data in outcomes(prepare):
        assert data is not None
        assert data[:500] == b"s" * 500
        assert data[600:] == b"s" * 400


# --- power cuts: names -------------------------------------------------------------------------------


def test_a_name_is_durable_only_after_its_folder_was_synced() -> None:
    def prepare(disk: SimDisk) -> None:
        file = disk.open("a", create=True)
        file.write_at(0, [b"data"])
        file.sync()

    assert outcomes(prepare) == {None, b"data"}
    disk = new_disk()
    prepare(disk)
    with pytest.raises(FileMissing):
        disk.durable_bytes("a")
    disk.sync_folder("")
    assert disk.durable_bytes("a") == b"data"


def test_a_renamed_file_that_was_not_synced_may_be_empty() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"old")
        disk.open("a.new", create=True).write_at(0, [b"new"])
        disk.rename("a.new", "a")
        disk.sync_folder("")

    seen = outcomes(prepare)
    assert {b"", b"new"} <= seen
    assert b"old" not in seen


def test_a_rename_without_folder_sync_leaves_the_old_or_the_new_file() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"old")
        durable_file(disk, "a.new", b"new")
        disk.rename("a.new", "a")

    assert outcomes(prepare) == {b"old", b"new"}


def test_a_removed_file_may_come_back_until_its_folder_is_synced() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"back")
        disk.remove("a")

    def prepare_synced(disk: SimDisk) -> None:
        prepare(disk)
        disk.sync_folder("")

    assert outcomes(prepare) == {None, b"back"}
    assert outcomes(prepare_synced) == {None}


@pytest.mark.parametrize("seed", range(50))
def test_of_the_unsynced_names_of_a_folder_a_prefix_survives(seed: int) -> None:
    disk = new_disk(seed)
    for number in range(8):
        disk.open(f"{number}", create=True)
    disk.crash()
    names = disk.list_folder("")
    assert names == [f"{number}" for number in range(len(names))]


@pytest.mark.parametrize("seed", range(100))
def test_a_rename_between_folders_never_loses_or_doubles_the_file(seed: int) -> None:
    disk = new_disk(seed)
    rng = random.Random(seed)
    folders = ["x", "y", "z"]
    for folder in folders:
        disk.make_folder(folder)
    places = {}
    for name in "abcd":
        folder = rng.choice(folders)
        durable_file(disk, f"{folder}/{name}", name.encode())
        places[name] = folder
    synced: dict[str, str] = {}
    for _ in range(30):
        name, target = rng.choice("abcd"), rng.choice(folders)
        disk.rename(f"{places[name]}/{name}", f"{target}/{name}")
        places[name] = target
        synced.pop(name, None)
        if rng.random() < 0.3:
            disk.sync_folder(target)
            synced |= {moved: folder for moved, folder in places.items() if folder == target}
    disk.crash()
    found = [name for folder in folders for name in disk.list_folder(folder)]
    assert sorted(found) == ["a", "b", "c", "d"]
    for name, folder in synced.items():
        assert content(disk, f"{folder}/{name}") == name.encode()


def test_a_file_moved_out_of_a_removed_folder_is_never_lost() -> None:
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_folder("x")
        disk.make_folder("y")
        durable_file(disk, "x/a", b"precious")
        disk.rename("x/a", "y/a")
        disk.remove_folder("x")
        disk.crash()
        assert disk.exists("x/a") != disk.exists("y/a"), f"seed={seed}"


def test_a_removed_folder_may_come_back_with_any_part_of_its_files() -> None:
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_folder("x")
        for name in "abc":
            durable_file(disk, f"x/{name}")
        disk.remove_folder("x")
        disk.crash()
        seen.add("".join(disk.list_folder("x")) if disk.exists("x") else None)
    assert {None, "", "a", "b", "c", "ab", "bc", "abc"} <= seen


def test_a_made_folder_is_durable_at_once() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        disk.open("before", create=True)
        disk.make_folder("x/y")
        disk.crash()
        assert disk.list_folder("x") == ["y"], f"seed={seed}"
        assert disk.exists("before"), f"seed={seed}: the sync of the parent covers earlier names"


def test_a_crash_kills_handles_and_releases_locks() -> None:
    disk = new_disk()
    disk.make_folder("x")
    file = durable_file(disk, "x/a", b"abc")
    lock = disk.lock_folder("x")
    disk.crash()
    calls: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        lambda: file.truncate(0),
        file.sync,
        file.size,
    ]
    for call in calls:
        with pytest.raises(DiskError, match="lost power"):
            call()
    file.close()
    again = disk.lock_folder("x")
    lock.release()  # the dead machine's lock is not the new one's
    with pytest.raises(FolderLocked):
        disk.lock_folder("x")
    again.release()
    assert content(disk, "x/a") == b"abc"
    assert disk.statistics().crashes == 1


# --- injected errors ---------------------------------------------------------------------------------


def save(disk: SimDisk) -> None:
    """The textbook way to replace a file; ten calls or so."""
    disk.make_folder("x")
    file = disk.open("x/a.new", create=True)
    file.truncate(0)
    file.write_at(0, [b"new"])
    file.sync()
    assert file.read_at(0, 3) == b"new"
    file.close()
    disk.rename("x/a.new", "x/a")
    disk.sync_folder("x")


@pytest.mark.parametrize(("kind", "calls"), [("io", 8), ("full", 4), ("sync", 2)])
def test_count_down_fails_every_call_of_its_kind_once(kind: FailKind, calls: int) -> None:
    raised = {"io": DiskError, "full": DiskFull, "sync": SyncFailed}[kind]
    for n in count(1):
        disk = new_disk(n)
        disk.make_folder("x")
        durable_file(disk, "x/a", b"old")
        disk.faults.fail_after, disk.faults.fail_kind = n, kind
        try:
            save(disk)
        except raised:
            assert disk.statistics().faults == 1
            assert not disk.faults.fail_after
            disk.crash()
            assert content(disk, "x/a") in (b"old", b"new"), f"n={n}"
        else:
            break
    assert n == calls + 1
    disk.faults.fail_after = None
    assert content(disk, "x/a") == b"new"


def test_fail_forever_goes_on_until_it_is_cleared() -> None:
    disk = new_disk(faults=DiskFaults(fail_after=2, fail_forever=True))
    assert not disk.exists("a")
    for _ in range(3):
        with pytest.raises(DiskError):
            disk.exists("a")
    disk.faults.fail_after = None
    assert not disk.exists("a")


def test_a_failed_write_may_leave_any_part() -> None:
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = durable_file(disk, "a", b"..")
        disk.faults.fail_after = 1
        with pytest.raises(DiskError):
            file.write_at(2, [b"abc"])
        seen.add(content(disk, "a"))
    assert seen == {b"..", b"..a", b"..ab", b"..abc"}


def test_after_a_failed_sync_the_writes_are_read_but_no_retry_makes_them_durable() -> None:
    for seed in range(50):
        disk = new_disk(seed)
        file = durable_file(disk, "a", b"kept")
        file.write_at(4, [b"gone"])
        disk.faults.fail_after, disk.faults.fail_kind = 1, "sync"
        with pytest.raises(SyncFailed):
            file.sync()
        file.sync()
        assert content(disk, "a") == b"keptgone"
        assert disk.durable_bytes("a") == b"kept"
        file.write_at(8, [b"next"])
        file.sync()
        disk.crash()
        assert content(disk, "a") == b"kept\0\0\0\0next", f"seed={seed}"


def test_a_failed_folder_sync_leaves_the_names_undecided() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.open("a", create=True)
        disk.faults.fail_after, disk.faults.fail_kind = 1, "sync"
        with pytest.raises(SyncFailed):
            disk.sync_folder("")

    assert outcomes(prepare) == {None, b""}


# --- a full disk -------------------------------------------------------------------------------------


def test_a_full_disk_takes_a_part_and_works_again_when_space_returns() -> None:
    parts = set()
    for seed in range(100):
        disk = new_disk(seed, DiskFaults(capacity_bytes=10))
        file = disk.open("a", create=True)
        file.write_at(0, [b"123456"])
        assert disk.free_bytes() == 4
        with pytest.raises(DiskFull):
            file.write_at(6, [b"7890abc"])
        parts.add(file.size())
        file.write_at(0, [b"overwr"])  # needs no space
        file.truncate(6)
        file.write_at(6, [b"7890"])
        assert disk.free_bytes() == 0
        with pytest.raises(DiskFull):
            file.truncate(11)
        disk.faults.capacity_bytes = 11
        file.truncate(11)
        assert content(disk, "a") == b"overwr7890\0", f"seed={seed}"
    assert parts == {6, 7, 8, 9, 10}


def test_removing_replacing_and_crashing_give_space_back() -> None:
    disk = new_disk(faults=DiskFaults(capacity_bytes=100))
    disk.make_folder("x")
    for name in ("a", "b", "x/c"):
        durable_file(disk, name, bytes(20))
    assert disk.free_bytes() == 40
    handle = disk.open("a")
    disk.remove("a")
    assert disk.free_bytes() == 60
    handle.write_at(20, [bytes(30)])  # a file without a name does not count
    assert disk.free_bytes() == 60
    disk.rename("b", "x/c")
    assert disk.free_bytes() == 80
    disk.remove_folder("x")
    assert disk.free_bytes() == 100
    disk.sync_folder("")
    disk.crash()
    assert disk.free_bytes() == 100
    disk.open("lost", create=True).write_at(0, [bytes(60)])
    disk.crash()
    assert disk.free_bytes() == 100 - (len(content(disk, "lost")) if disk.exists("lost") else 0)


# --- silent damage -----------------------------------------------------------------------------------


def test_a_flipped_bit_is_seen_by_reads_survives_sync_and_crash() -> None:
    disk = new_disk(3)
    file = durable_file(disk, "a", b"\0\0\0\0")
    file.write_at(2, [b"\0\0\0"])
    disk.flip_bit("a", 1, 0)
    disk.flip_bit("a", 3, 7)
    expected = b"\0\x01\0\x80\0"
    assert content(disk, "a") == expected
    file.sync()
    assert disk.durable_bytes("a") == expected
    disk.crash()
    assert content(disk, "a") == expected
    for position, bit in [(5, 0), (-1, 0), (0, 8)]:
        with pytest.raises(ValueError, match="there is no bit"):
            disk.flip_bit("a", position, bit)


def test_a_random_flip_changes_exactly_one_bit() -> None:
    for seed in range(50):
        disk = new_disk(seed)
        durable_file(disk, "a", bytes(20))
        position, bit = disk.flip_random_bit("a")
        assert content(disk, "a") == bytes(position) + bytes([1 << bit]) + bytes(19 - position), f"seed={seed}"
    disk.open("empty", create=True)
    with pytest.raises(ValueError, match="empty"):
        disk.flip_random_bit("empty")


def test_a_misdirected_write_lands_in_the_same_file_or_in_another_open_one() -> None:
    places = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file, other = durable_file(disk, "a", b"." * 10), durable_file(disk, "b", b"." * 10)
        durable_file(disk, "closed", b"." * 10).close()
        disk.faults.misdirect_next_write = True
        file.write_at(10, [b"XX"])
        assert not disk.faults.misdirect_next_write
        assert file.size() == 12, f"seed={seed}: the length is what the file system believes"
        assert other.size() == 10
        assert file.read_at(10, 2) != b"XX", f"seed={seed}"
        assert content(disk, "closed") == b"." * 10
        places.add("a" if b"X" in content(disk, "a") else "b" if b"X" in content(disk, "b") else "nowhere")
        file.write_at(10, [b"YY"])
        assert file.read_at(10, 2) == b"YY"
    assert places == {"a", "b"}


def test_a_misdirected_first_write_of_a_lone_file_is_damaged() -> None:
    for data in (b"X", b"XYZ"):
        for seed in range(30):
            disk = new_disk(seed)
            file = disk.open("a", create=True)
            disk.faults.misdirect_next_write = True
            file.write_at(0, [data])
            assert file.size() == len(data)
            assert file.read_at(0, 10) != data, f"seed={seed}"


# --- for the harness ---------------------------------------------------------------------------------


def test_syncs_stall_by_simulated_time() -> None:
    disk = new_disk(faults=DiskFaults(stall_ms=30))
    file = disk.open("a", create=True)
    file.sync()
    disk.sync_folder("")
    assert disk.stalled_ms == 60
    disk.faults.stall_ms = 0
    file.sync()
    assert disk.stalled_ms == 60


def test_statistics_and_the_trace_count_what_was_done() -> None:
    disk = new_disk()
    file = durable_file(disk, "a", b"abc")
    file.read_at(1, 10)
    statistics = disk.statistics()
    assert (statistics.reads, statistics.writes, statistics.syncs) == (1, 1, 2)
    assert (statistics.bytes_read, statistics.bytes_written, statistics.faults) == (2, 3, 0)
    assert disk.recent_operations()[-1] == ("read_at", "a", 1, 10)
    for _ in range(1000):
        file.size()
    assert len(disk.recent_operations()) == 256


def test_replaced_bytes_are_seen_and_durable() -> None:
    disk = new_disk(faults=DiskFaults(capacity_bytes=100))
    file = durable_file(disk, "a", b"abcdef")
    file.write_at(0, [b"X"])
    disk.replace_bytes("a", b"abc")
    assert file.read_at(0, 10) == b"abc"
    assert disk.durable_bytes("a") == b"abc"
    assert disk.free_bytes() == 97
    file.sync()
    assert disk.durable_bytes("a") == b"abc"
    with pytest.raises(FileMissing):
        disk.replace_bytes("absent", b"")


def test_a_clone_has_the_durable_state_and_a_future_of_its_own() -> None:
    disk = new_disk()
    disk.make_folder("x/y")
    file = durable_file(disk, "x/y/a", b"abc")
    file.write_at(3, [b"unsynced"])
    disk.open("x/unsynced", create=True)
    disk.lock_folder("x")
    twin = disk.clone(random.Random(1))
    assert twin.list_folder("x") == ["y"]
    assert content(twin, "x/y/a") == b"abc"
    twin.lock_folder("x")
    twin.replace_bytes("x/y/a", b"other")
    assert content(disk, "x/y/a") == b"abcunsynced"
    assert disk.durable_bytes("x/y/a") == b"abc"


def test_the_generator_is_not_touched_without_faults_and_crashes() -> None:
    rng = random.Random(5)
    disk = SimDisk(rng)
    save(disk)
    content(disk, "x/a")
    assert rng.getstate() == random.Random(5).getstate()
