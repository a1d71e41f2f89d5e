"""Disks that lie: the operations that the simulators use to take back what was synced."""

from __future__ import annotations

import random

import pytest

from tidelog.errors import FileMissing
from tidelog.sim.disk import SimDisk
from tidelog.sim.lying import (
    Lie,
    cut_file,
    durable_files,
    flip_bytes,
    put_back,
    remove_file,
    take_picture,
    tell_lie,
    zero_bytes,
)


def write(disk: SimDisk, path: str, data: bytes, *, sync: bool = True) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    if sync:
        file.sync()
        disk.sync_folder(path.rpartition("/")[0])
    file.close()


def filled() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_folder("a/b")
    write(disk, "a/one", b"0123456789")
    write(disk, "a/b/two", b"abcdef")
    return disk


def test_only_what_survives_a_power_cut_is_listed() -> None:
    disk = filled()
    file = disk.open("a/three", create=True)
    file.close()
    disk.lock_folder("a").release()
    assert durable_files(disk) == ["a/b/two", "a/one"]
    assert durable_files(disk, "a/b") == ["a/b/two"]
    assert durable_files(disk, "nowhere") == []


def test_bytes_that_were_synced_are_gone_zeroed_or_flipped_for_good() -> None:
    disk = filled()
    cut_file(disk, "a/one", 8)
    zero_bytes(disk, "a/one", 6)
    flip_bytes(disk, "a/one", 0, 1)
    disk.crash()
    assert disk.durable_bytes("a/one") == b"\xcf12345\0\0"
    assert disk.open("a/one").size() == 8


def test_a_removed_file_stays_away_over_a_power_cut() -> None:
    disk = filled()
    remove_file(disk, "a/one")
    disk.crash()
    assert durable_files(disk) == ["a/b/two"]
    with pytest.raises(FileMissing):
        remove_file(disk, "a/one")


def test_a_folder_is_an_older_copy_of_itself_as_often_as_one_likes() -> None:
    disk = filled()
    picture = take_picture(disk, "a")
    for turn in range(2):
        write(disk, "a/one", b"new bytes")
        write(disk, f"a/b/three-{turn}", b"x")
        remove_file(disk, "a/b/two")
        put_back(disk, picture)
        assert disk.durable_bytes("a/one") == b"0123456789"
        assert durable_files(disk) == ["a/b/two", "a/one"]
        disk.crash()
        assert disk.open("a/b/two").read_at(0, 10) == b"abcdef"


def test_a_picture_of_the_whole_disk_is_put_back() -> None:
    disk = filled()
    picture = take_picture(disk)
    disk.remove_folder("a")
    put_back(disk, picture)
    assert durable_files(disk) == ["a/b/two", "a/one"]


def test_a_sync_that_lies_reports_success_and_the_next_crash_takes_the_write() -> None:
    disk = filled()
    disk.faults.lying_syncs = 1
    file = disk.open("a/one")
    file.write_at(0, [b"ABC"])
    file.sync()
    assert disk.faults.lying_syncs == 0
    assert file.read_at(0, 3) == b"ABC"
    file.sync()  # an honest one comes too late: the kernel took the pages for clean
    disk.crash()
    assert disk.durable_bytes("a/one") == b"0123456789"


@pytest.mark.parametrize("lie", list(Lie))
def test_a_lie_changes_one_file_and_says_which(lie: Lie) -> None:
    for seed in range(50):
        disk = filled()
        before = {path: disk.durable_bytes(path) for path in durable_files(disk)}
        told = tell_lie(disk, random.Random(seed), "a", lie, choose=lambda path: path.endswith("one"))
        disk.crash()
        after = {path: disk.durable_bytes(path) for path in durable_files(disk)}
        assert (told or "").startswith("a/one"), f"seed {seed}"
        assert after != before, f"seed {seed}: {told}"
        assert after["a/b/two"] == before["a/b/two"], f"seed {seed}: {told}"
    assert tell_lie(disk, random.Random(1), "a", lie, choose=lambda path: False) is None
