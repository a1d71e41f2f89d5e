"""A store that lost what it had synced says so: files removed, cut, zeroed and flipped, on real files.

`killed` copies the files of a running store: what is there after `kill -9`. `stopped` is a store that closed.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.block import make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import DiskError
from tidelog.sim.disk import SimDisk
from tidelog.sim.lying import remove_file
from tidelog.storage.atomic import COPY_SUFFIX, read_mark, write_mark_twice
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.writer import Append
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import STATE_PATH, TABLE_PATH, WAL_FOLDER, WAL_MARK_PATH, StoreOptions, StoreRecovery
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store
from tidelog.storage.store.wal_mark import WalEnd, WalMark, read_wal_end
from tidelog.units import KIB, US_PER_S

NOW = 1_000_000
RECORDS = 40
CARRYING = StoreOptions(log=LogOptions(reserve_bytes=0), copy_bytes_max=1 << 20)
WRITING_BACK = StoreOptions(log=LogOptions(reserve_bytes=0, segment_bytes_max=4 * KIB))


def opened(folder: Path, options: StoreOptions = CARRYING) -> Store:
    return open_store(OsDisk(folder), now_us=NOW, options=options)


def recovery_of(store: Store) -> StoreRecovery:
    assert store.recovery is not None
    return store.recovery


def fill(store: Store, *, count: int = RECORDS, name: str = "boat-1") -> None:
    if name not in store.channels:
        store.create_channel(name, now_us=NOW)
    for number in range(count):
        body = f"record {number}".encode().ljust(200, b".")
        append = Append(
            store.log(name, now_us=NOW), make_block(body, kind=BlockKind.FRAMES, form=1, record_count=1), epoch=1
        )
        store.commit_appends([append], NOW)
        append.future.result(timeout=0)


def killed(store: Store, folder: Path, target: Path) -> Path:
    """What `kill -9` leaves of a store."""
    shutil.copytree(folder, target)
    store.close(NOW)
    return target


def wals(folder: Path) -> list[Path]:
    return sorted((folder / WAL_FOLDER).glob("*.wal"))


def spoil(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def flip_last_byte(path: Path) -> None:
    spoil(path, path.stat().st_size - 1, bytes([path.read_bytes()[-1] ^ 0x01]))


def zero_from_the_middle(path: Path) -> None:
    size = path.stat().st_size
    spoil(path, size // 2, bytes(size - size // 2))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_the_last_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


DAMAGES = (os.remove, zero_from_the_middle, flip_last_byte, cut_in_half, cut_the_last_byte, empty)


# --- write-ahead files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("stop", ["killed", "closed"])
def test_a_write_ahead_file_that_lost_what_was_synced_is_noticed(
    tmp_path: Path, damage: Callable[[Path], None], stop: str
) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    if stop == "killed":
        folder = killed(store, folder, tmp_path / "killed")
    else:
        store.close(NOW)
    (wal,) = wals(folder)
    damage(wal)
    found = opened(folder)
    recovery = recovery_of(found)
    assert recovery.synced_loss
    assert f"{WAL_FOLDER}/{wal.name}" in recovery.synced_loss_reason
    assert not recovery.clean
    if stop == "closed":
        # The table knew where the channel ends: the log is not shorter, and says which part is gone.
        log = found.log("boat-1", now_us=NOW)
        assert log.log_end == RECORDS
        assert log.damaged()
    found.close(NOW)


def test_what_nothing_happened_to_is_no_loss(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    copy = killed(store, folder, tmp_path / "killed")
    for place in (copy, folder):
        for _ in range(3):
            store = opened(place)
            recovery = recovery_of(store)
            assert (recovery.synced_loss, recovery.synced_loss_reason) == (False, "")
            assert store.log("boat-1", now_us=NOW).log_end == RECORDS
            store.close(NOW)


def test_bytes_after_the_last_sync_are_a_torn_write_and_no_loss(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    copy = killed(store, folder, tmp_path / "killed")
    (wal,) = wals(copy)
    with wal.open("ab") as file:
        file.write(b"TLW1" + bytes(500))
    store = opened(copy)
    assert recovery_of(store).bytes_cut == 504
    assert not recovery_of(store).synced_loss
    store.close(NOW)


def test_the_loss_is_told_again_until_somebody_has_compared(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    folder = killed(store, folder, tmp_path / "killed")
    wals(folder)[0].unlink()
    for _ in range(3):
        store = opened(folder)
        assert recovery_of(store).synced_loss
        fill(store, count=2, name="boat-2")
        store.close(NOW)
    store = opened(folder)
    store.forget_loss()
    store.close(NOW)
    store = opened(folder)
    assert not recovery_of(store).synced_loss
    assert recovery_of(store).clean
    store.close(NOW)


def test_a_gap_in_the_chain_of_files_is_noticed(tmp_path: Path) -> None:
    """Old files stay while a checkpoint cannot free them; one of them goes, or gets shorter."""
    folder = tmp_path / "store"
    store = opened(folder)
    for _ in range(3):
        fill(store, count=5)
        store.wals.finish()  # as a checkpoint that could not write back, on a disk that is full
    fill(store, count=5)
    copies = [shutil.copytree(folder, tmp_path / name) for name in ("whole", "gap", "shorter")]
    store.close(NOW)
    assert len(wals(copies[0])) == 4
    wals(copies[1])[1].unlink()
    cut_the_last_byte(wals(copies[2])[2])
    found = []
    for copy in copies:
        store = opened(copy)
        found.append(recovery_of(store).synced_loss_reason)
        assert store.log("boat-1", now_us=NOW).log_end == 20
        store.close(NOW)
    assert found[0] == ""
    assert "000000000002.wal is missing" in found[1]
    assert "000000000003.wal was durable up to byte" in found[2]


def test_a_head_that_rotted_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    folder = killed(store, folder, tmp_path / "killed")
    spoil(wals(folder)[0], 20, b"\xff")
    store = opened(folder)
    assert recovery_of(store).synced_loss
    assert store.log("boat-1", now_us=NOW).log_end == RECORDS, "no entry was in it"
    store.close(NOW)


def test_the_folder_of_the_write_ahead_files_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    folder = killed(store, folder, tmp_path / "killed")
    shutil.rmtree(folder / WAL_FOLDER)
    store = opened(folder)
    assert recovery_of(store).synced_loss
    store.close(NOW)


@pytest.mark.parametrize(
    "paths", [[WAL_MARK_PATH], [TABLE_PATH, TABLE_PATH + COPY_SUFFIX], [STATE_PATH, STATE_PATH + COPY_SUFFIX]]
)
def test_the_small_files_that_would_know_are_gone(tmp_path: Path, paths: list[str]) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    fill(store)
    folder = killed(store, folder, tmp_path / "killed")
    for path in paths:
        (folder / path).unlink()
    store = opened(folder)
    assert paths[0] in recovery_of(store).synced_loss_reason
    assert store.log("boat-1", now_us=NOW).log_end == RECORDS
    store.close(NOW)


# --- segments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["first but one", "last", "all"])
@pytest.mark.parametrize("stop", ["killed", "closed"])
def test_a_missing_segment_is_a_hole_and_never_a_shorter_log(tmp_path: Path, which: str, stop: str) -> None:
    folder = tmp_path / "store"
    store = opened(folder, WRITING_BACK)
    fill(store, count=100)
    store.checkpoint(NOW)
    channel = folder / store.channels["boat-1"].folder
    if stop == "killed":
        copy = killed(store, folder, tmp_path / "killed")
        channel = copy / channel.relative_to(folder)
        folder = copy
    else:
        store.close(NOW)
    segments = sorted(channel.glob("*.seg"))
    assert len(segments) > 3, sorted(channel.iterdir())
    for path in {"first but one": segments[1:2], "last": segments[-1:], "all": segments}[which]:
        path.unlink()
        path.with_suffix(path.suffix + ".index").unlink(missing_ok=True)
    store = opened(folder, WRITING_BACK)
    log = store.log("boat-1", now_us=NOW)
    assert log.log_end == 100
    assert log.damaged()
    assert recovery_of(store).synced_loss
    assert "boat-1" in recovery_of(store).synced_loss_reason
    store.close(NOW)


# --- the mark ------------------------------------------------------------------------------------------


def test_a_mark_survives_any_power_cut_after_any_failed_write_or_sync() -> None:
    """One slot is whole whatever fails, and it never says more than was noted."""
    for seed in range(300):
        rng = random.Random(seed)
        disk = SimDisk(random.Random(seed + 1_000))
        mark = WalMark(disk, "mark", WalEnd(1, 1, 0))
        settled, noted = 0, 0
        for size in range(1, rng.randint(2, 12)):
            disk.faults.fail_after = 1 if rng.random() < 0.3 else None
            try:
                noted = size
                mark.note(WalEnd(1, 1, size))
                if rng.random() < 0.5:
                    mark.settle()
                    settled = size if mark.settled else settled
            except DiskError:
                disk.faults.fail_after = None
                if rng.random() < 0.5:
                    mark.settle()
                    assert not mark.settled, f"seed {seed}: what failed is not settled by trying again"
        disk.faults.fail_after = None
        disk.crash()
        end = read_wal_end(disk, "mark")
        assert end is not None, f"seed {seed}"
        assert settled <= end.size <= noted, f"seed {seed}"


# --- power cuts, old forms -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_after_an_idle_second_leaves_no_doubt(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    store = open_store(disk, now_us=NOW, options=CARRYING)
    fill(store)
    store.maintain(NOW + 2 * US_PER_S)
    disk.crash()
    (name,) = (name for name in disk.list_folder(WAL_FOLDER) if name.endswith(".wal"))
    path = f"{WAL_FOLDER}/{name}"
    size = len(disk.durable_bytes(path))
    disk.flip_bit(path, size - 1, seed % 8)
    found = recovery_of(open_store(disk, now_us=NOW, options=CARRYING))
    assert found.synced_loss, f"seed {seed}: the last entry rotted"
    assert found.damaged_bytes > 0, f"seed {seed}"
    assert found.bytes_cut == 0, f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_a_sync_that_lied_is_found_out(seed: int) -> None:
    disk = SimDisk(random.Random(seed))
    store = open_store(disk, now_us=NOW, options=CARRYING)
    fill(store, count=3)
    disk.faults.lying_syncs = 1
    fill(store, count=1)
    store.maintain(NOW + 2 * US_PER_S)  # the mark's own sync is honest
    disk.crash()
    found = recovery_of(open_store(disk, now_us=NOW, options=CARRYING))
    assert found.synced_loss, f"seed {seed}"


def test_a_store_of_an_earlier_version_opens_and_is_protected_from_then_on() -> None:
    disk = SimDisk(random.Random(1))
    store = open_store(disk, now_us=NOW, options=CARRYING)
    fill(store)
    disk.crash()
    make_old(disk)
    store = open_store(disk, now_us=NOW, options=CARRYING)
    assert not recovery_of(store).synced_loss
    assert store.log("boat-1", now_us=NOW).log_end == RECORDS
    fill(store, count=1)
    (name,) = disk.list_folder(WAL_FOLDER)
    disk.sync_folder(WAL_FOLDER)
    disk.crash()
    remove_file(disk, f"{WAL_FOLDER}/{name}")
    assert recovery_of(open_store(disk, now_us=NOW, options=CARRYING)).synced_loss


def make_old(disk: SimDisk) -> None:
    """As files were before marks: no mark, plain heads, no `marked` in the state nor `entered` in the table."""
    remove_file(disk, WAL_MARK_PATH)
    for path, key in ((STATE_PATH, "marked"), (TABLE_PATH, "entered")):
        value = read_mark(disk, path)
        assert value is not None
        assert key in value
        write_mark_twice(disk, path, {name: part for name, part in value.items() if name != key})
    for name in disk.list_folder(WAL_FOLDER):
        path = f"{WAL_FOLDER}/{name}"
        data = disk.durable_bytes(path)
        head = data[:16] + bytes(44)
        disk.replace_bytes(path, head + struct.pack("<I", crc32c(head)) + data[64:])
