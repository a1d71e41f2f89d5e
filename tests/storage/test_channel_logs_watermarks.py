"""The watermarks: hints that survive a restart, and are nothing when they are damaged."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tidelog.errors import DiskError, DiskFull
from tidelog.sim.disk import SimDisk
from tidelog.storage.store.parts import INTERNALS
from tidelog.storage.store.watermarks import WATERMARKS_PATH, Watermark, Watermarks


def new_disk(seed: int = 1) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_folder(INTERNALS)
    return disk


def test_what_was_saved_is_there_after_a_power_cut_and_the_rest_is_not() -> None:
    disk = new_disk()
    marks = Watermarks(disk)
    assert marks.channels() == {}
    assert not marks.save()
    marks.note(1, 10, {"leader_epoch": 3})
    marks.note(2, 0)
    assert marks.save()
    assert not marks.save()
    marks.note(1, 10, {"leader_epoch": 3})
    assert not marks.save(), "nothing has changed"
    marks.note(1, 99)
    disk.crash()
    marks = Watermarks(disk)
    assert marks.get(1) == Watermark(committed_end=10, hints={"leader_epoch": 3})
    assert marks.get(2) == Watermark(committed_end=0)
    assert marks.get(3) is None
    marks.forget(1)
    marks.forget(77)
    assert marks.save()
    assert sorted(Watermarks(disk).channels()) == [2]


def test_a_damaged_file_is_an_empty_one() -> None:
    disk = new_disk()
    marks = Watermarks(disk)
    marks.note(1, 10)
    marks.save()
    saved = disk.durable_bytes(WATERMARKS_PATH)
    for position in range(len(saved)):
        disk.replace_bytes(WATERMARKS_PATH, saved)
        disk.flip_bit(WATERMARKS_PATH, position, 2)
        found = Watermarks(disk).channels()
        assert found in ({}, {1: Watermark(committed_end=10)}), f"byte {position}"
        disk.replace_bytes(WATERMARKS_PATH, saved[:position])
        assert Watermarks(disk).channels() in ({}, {1: Watermark(committed_end=10)}), f"cut at {position}"


@pytest.mark.parametrize("content", [b"", b"00000000\n", b"\xff" * 100])
def test_a_file_of_something_else_is_an_empty_one(content: bytes) -> None:
    disk = new_disk()
    disk.open(WATERMARKS_PATH, create=True).close()
    disk.replace_bytes(WATERMARKS_PATH, content)
    assert Watermarks(disk).channels() == {}


def test_every_failing_call_leaves_the_old_marks_or_the_new() -> None:
    for call in range(1, 12):
        disk = new_disk(call)
        marks = Watermarks(disk)
        marks.note(1, 10)
        marks.save()
        marks.note(1, 20)
        disk.faults.fail_after, disk.faults.fail_kind = call, "io"
        with suppress(DiskError):
            marks.save()
        disk.faults.fail_after = None
        disk.crash()
        mark = Watermarks(disk).get(1)
        assert mark is not None
        assert mark.committed_end in (10, 20), f"call {call}"


def test_a_full_disk_is_said_and_tried_again() -> None:
    disk = new_disk()
    marks = Watermarks(disk)
    marks.note(1, 10)
    disk.faults.capacity_bytes = 1
    with pytest.raises(DiskFull):
        marks.save()
    disk.faults.capacity_bytes = None
    assert marks.save()
    assert Watermarks(disk).get(1) == Watermark(committed_end=10)
