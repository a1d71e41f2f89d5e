"""The contract of `Disk`, run against both disks, and what only a real file system can show."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import DiskError, DiskFull, FileMissing, FolderLocked, SyncFailed
from tidelog.sim.disk import SimDisk
from tidelog.storage.disk import Buffer, Disk
from tidelog.storage.os_disk import OsDisk


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return OsDisk(tmp_path) if request.param == "os" else SimDisk(random.Random(1))


@pytest.fixture
def os_disk(tmp_path: Path) -> OsDisk:
    return OsDisk(tmp_path)


def put(disk: Disk, path: str, data: bytes = b"") -> None:
    file = disk.open(path, create=True)
    file.write_at(0, [data])
    file.close()


def get(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    try:
        return file.read_at(0, file.size() + 1)
    finally:
        file.close()


# --- the contract: files -----------------------------------------------------------------------------


def test_a_write_is_read_back_at_its_position(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.write_at(0, [b"hello world"])
    file.write_at(6, [b"there"])
    assert file.path == "a"
    assert file.read_at(0, 11) == b"hello there"
    assert file.read_at(6, 3) == b"the"
    file.close()


def test_a_read_is_short_only_at_the_end(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open("a")
    assert file.read_at(1, 100) == b"bc"
    assert file.read_at(3, 1) == b""
    assert file.read_at(1000, 1) == b""
    assert file.read_at(0, 0) == b""
    file.close()


def test_a_write_past_the_end_fills_the_hole_with_zeros(disk: Disk) -> None:
    put(disk, "a", b"ab")
    file = disk.open("a")
    file.write_at(5, [b"z"])
    assert file.size() == 6
    file.close()
    assert get(disk, "a") == b"ab\0\0\0z"


@pytest.mark.parametrize("position", [0, 7, 100_000])
@pytest.mark.parametrize(
    "buffers",
    [
        [],
        [b""],
        [b"", b""],
        [b"one"],
        [bytearray(b"one"), memoryview(b"two"), b"three"],
        [b"h" * 128, b"b" * 70_000],
        [b"", b"x" * 9000, b"", b"y" * 9000],
        [b"t" * 10] * 5000,
        [b"v" * 5000] * 1030,
        [memoryview(array.array("q", [1, 2, 3]))],
        [memoryview(array.array("q", [1] * 2000)), b"w" * 9000],
    ],
    ids=["none", "empty", "empties", "one", "kinds", "block", "gaps", "tiny", "over_iov_max", "wide", "wide_vector"],
)
def test_buffers_are_written_one_after_the_other(disk: Disk, buffers: list[Buffer], position: int) -> None:
    file = disk.open("a", create=True)
    file.write_at(position, buffers)
    expected = b"".join(buffers)
    assert file.size() == (position + len(expected) if expected else 0)
    assert file.read_at(position, len(expected) + 1) == expected
    file.close()


def test_truncate_cuts_and_grows(disk: Disk) -> None:
    put(disk, "a", b"abcdef")
    file = disk.open("a")
    file.truncate(2)
    assert file.size() == 2
    file.truncate(4)
    file.sync()
    assert file.read_at(0, 10) == b"ab\0\0"
    file.close()


def test_closing_twice_is_harmless_and_a_closed_file_is_refused(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.close()
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        lambda: file.truncate(0),
        file.sync,
        file.size,
    ]
    for call in calls:
        with pytest.raises(DiskError):
            call()


def test_a_read_only_file_refuses_changes(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open("a", writable=False)
    with pytest.raises(DiskError):
        file.write_at(0, [b"x"])
    with pytest.raises(DiskError):
        file.truncate(0)
    assert file.read_at(0, 3) == b"abc"
    file.close()


def test_negative_positions_are_disk_errors(disk: Disk) -> None:
    file = disk.open("a", create=True)
    with pytest.raises(DiskError):
        file.read_at(-1, 1)
    with pytest.raises(DiskError):
        file.write_at(-1, [b"x"])
    with pytest.raises(DiskError):
        file.truncate(-1)
    file.close()


def test_two_handles_see_one_file(disk: Disk) -> None:
    writer = disk.open("a", create=True)
    reader = disk.open("a", writable=False)
    writer.write_at(0, [b"abc"])
    assert reader.read_at(0, 3) == b"abc"
    writer.close()
    assert reader.size() == 3
    reader.close()


def test_a_removed_file_is_still_read_through_its_handle(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open("a")
    disk.remove("a")
    assert not disk.exists("a")
    assert file.read_at(0, 3) == b"abc"
    file.close()


# --- the contract: names -----------------------------------------------------------------------------


def test_a_missing_file_is_file_missing(disk: Disk) -> None:
    with pytest.raises(FileMissing) as caught:
        disk.open("absent")
    assert caught.value.path == "absent"
    assert caught.value.operation == "open"
    for call in (
        lambda: disk.open("no/folder", create=True),
        lambda: disk.list_folder("absent"),
        lambda: disk.rename("absent", "b"),
        lambda: disk.sync_folder("absent"),
        lambda: disk.lock_folder("absent"),
    ):
        with pytest.raises(FileMissing):
            call()


def test_opening_with_create_keeps_what_is_there(disk: Disk) -> None:
    put(disk, "a", b"abc")
    disk.open("a", create=True).close()
    assert get(disk, "a") == b"abc"


def test_folders_are_made_with_their_parents_and_listed_sorted(disk: Disk) -> None:
    disk.make_folder("x/y")
    disk.make_folder("x/y")
    put(disk, "x/b")
    put(disk, "x/a")
    assert disk.list_folder("x") == ["a", "b", "y"]
    assert disk.list_folder("x/y") == []
    assert disk.list_folder("") == ["x"]
    assert disk.list_folder("./x//y/") == []
    assert disk.exists("x/y")
    assert disk.exists("")
    assert not disk.exists("x/c")
    assert not disk.exists("x/a/c")


def test_a_rename_replaces_its_target(disk: Disk) -> None:
    disk.make_folder("x")
    put(disk, "a", b"new")
    put(disk, "x/b", b"old")
    disk.rename("a", "x/b")
    disk.rename("x/b", "x/b")
    assert get(disk, "x/b") == b"new"
    assert not disk.exists("a")
    disk.sync_folder("")
    disk.sync_folder("x")


def test_a_folder_can_be_renamed_with_all_in_it(disk: Disk) -> None:
    disk.make_folder("x/y")
    disk.make_folder("empty")
    put(disk, "x/y/a", b"abc")
    disk.rename("x", "empty")
    assert get(disk, "empty/y/a") == b"abc"
    assert disk.list_folder("") == ["empty"]


def test_a_rename_that_makes_no_sense_is_refused(disk: Disk) -> None:
    disk.make_folder("x/y")
    disk.make_folder("z")
    put(disk, "a", b"abc")
    put(disk, "z/b")
    for source, target in [("x", "x/y/x"), ("a", "x"), ("x", "a"), ("x", "z"), ("a", "a/b"), ("a/b", "c")]:
        with pytest.raises(DiskError):
            disk.rename(source, target)
    assert disk.list_folder("") == ["a", "x", "z"]
    with pytest.raises(FileMissing):
        disk.rename("a", "absent/a")


def test_removing_what_is_gone_is_fine(disk: Disk) -> None:
    disk.make_folder("x/y")
    put(disk, "x/a")
    put(disk, "x/y/b")
    disk.remove("x/a")
    disk.remove("x/a")
    assert disk.list_folder("x") == ["y"]
    disk.remove_folder("x")
    disk.remove_folder("x")
    assert disk.list_folder("") == []


def test_a_file_is_not_a_folder_and_the_other_way_round(disk: Disk) -> None:
    disk.make_folder("x")
    put(disk, "a")
    calls: list[Callable[[], object]] = [
        lambda: disk.open("x"),
        lambda: disk.open("x", writable=False),
        lambda: disk.open("a/b", create=True),
        lambda: disk.list_folder("a"),
        lambda: disk.make_folder("a"),
        lambda: disk.make_folder("a/b"),
        lambda: disk.remove("x"),
        lambda: disk.remove_folder("a"),
        lambda: disk.sync_folder("a"),
        lambda: disk.lock_folder("a"),
    ]
    for call in calls:
        with pytest.raises(DiskError) as caught:
            call()
        assert not isinstance(caught.value, FileMissing | DiskFull | SyncFailed)
    assert disk.list_folder("") == ["a", "x"]


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "../a", "a/../../b", "a/..", "/"])
def test_a_path_that_leaves_the_root_is_refused(disk: Disk, path: str) -> None:
    disk.make_folder("a")
    calls: list[Callable[[], object]] = [
        lambda: disk.open(path, create=True),
        lambda: disk.exists(path),
        lambda: disk.list_folder(path),
        lambda: disk.make_folder(path),
        lambda: disk.rename(path, "b"),
        lambda: disk.rename("a", path),
        lambda: disk.remove(path),
        lambda: disk.remove_folder(path),
        lambda: disk.sync_folder(path),
        lambda: disk.lock_folder(path),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="leaves the disk's root"):
            call()


def test_the_root_is_never_removed(disk: Disk) -> None:
    with pytest.raises(ValueError, match="root"):
        disk.remove_folder("./")


def test_free_bytes_is_positive(disk: Disk) -> None:
    assert disk.free_bytes() > 0


# --- the contract: locks -----------------------------------------------------------------------------


def test_a_second_lock_in_this_process_is_refused_until_release(disk: Disk) -> None:
    disk.make_folder("x")
    lock = disk.lock_folder("x")
    with pytest.raises(FolderLocked, match="this process"):
        disk.lock_folder("x")
    lock.release()
    lock.release()
    second = disk.lock_folder("x")
    lock.release()
    with pytest.raises(FolderLocked):
        disk.lock_folder("x")
    second.release()


def test_a_lock_does_not_show_in_the_folder(disk: Disk) -> None:
    disk.make_folder("x")
    lock = disk.lock_folder("x")
    assert disk.list_folder("x") == []
    lock.release()
    assert disk.list_folder("x") == []


def test_a_folder_made_anew_can_be_locked_anew(disk: Disk) -> None:
    disk.make_folder("x")
    old = disk.lock_folder("x")
    disk.remove_folder("x")
    disk.make_folder("x")
    new = disk.lock_folder("x")
    old.release()
    with pytest.raises(FolderLocked):
        disk.lock_folder("x")
    new.release()


# --- the real file system ----------------------------------------------------------------------------

LOCKER = """
import sys
from tidelog.storage.os_disk import OsDisk
lock = OsDisk(sys.argv[1]).lock_folder("x")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_held_by_another_process_is_refused_with_its_pid_and_ends_with_it(os_disk: OsDisk) -> None:
    os_disk.make_folder("x")
    command = [sys.executable, "-c", LOCKER, os_disk.root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(FolderLocked, match=rf"process {holder.pid} has it open; stop it"):
            os_disk.lock_folder("x")
        holder.kill()
        holder.wait()
        os_disk.lock_folder("x").release()


def test_a_lock_whose_pid_cannot_be_read_is_still_refused(os_disk: OsDisk) -> None:
    os_disk.make_folder("x")
    lock = os_disk.lock_folder("x")
    Path(os_disk.root, "x", ".lock").write_bytes(b"nonsense")
    with pytest.raises(FolderLocked, match="another process"):
        os_disk.lock_folder("x")
    lock.release()


def test_a_folder_remade_while_it_is_being_locked_is_locked_once(
    os_disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    os_disk.make_folder("x")
    flock = fcntl.flock
    calls = 0

    def remake_then_flock(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            os_disk.remove_folder("x")
            os_disk.make_folder("x")
            Path(os_disk.root, "x", ".lock").touch()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remake_then_flock)
    lock = os_disk.lock_folder("x")
    assert calls == 2
    with pytest.raises(FolderLocked):
        os_disk.lock_folder("x")
    lock.release()


def test_a_refused_lock_leaves_no_descriptor_behind(os_disk: OsDisk) -> None:
    os_disk.make_folder("x")
    lock = os_disk.lock_folder("x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(FolderLocked):
            os_disk.lock_folder("x")
        with pytest.raises(DiskError):
            os_disk.open("x", writable=False)
        os_disk.sync_folder("x")
    assert len(os.listdir("/proc/self/fd")) == before
    lock.release()


def test_the_root_is_made_with_its_parents_and_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = OsDisk("deep/disk")
    with pytest.raises(FileMissing):
        disk.open("a", create=True)
    disk.make_folder("x")
    monkeypatch.chdir("/")
    put(disk, "x/a", b"abc")
    assert (tmp_path / "deep/disk/x/a").read_bytes() == b"abc"


def test_short_writes_and_reads_are_continued(os_disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    pwrite, pwritev, pread = os.pwrite, os.pwritev, os.pread

    def short_pwrite(fd: int, data: Any, position: int) -> int:
        view = memoryview(data).cast("B")
        return pwrite(fd, view[: rng.randint(1, max(1, len(view)))], position)

    def short_pwritev(fd: int, buffers: Any, position: int) -> int:
        joined = b"".join(buffers)
        return pwrite(fd, joined[: rng.randint(1, len(joined))], position)

    def short_pread(fd: int, length: int, position: int) -> bytes:
        return pread(fd, rng.randint(1, length) if length else 0, position)

    monkeypatch.setattr(os, "pwrite", short_pwrite)
    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pread", short_pread)
    wide = memoryview(array.array("q", range(1000)))
    file = os_disk.open("a", create=True)
    for buffers in ([rng.randbytes(50_000)], [rng.randbytes(9000) for _ in range(1100)], [b"ab"] * 500, [wide], [b""]):
        file.truncate(0)
        file.write_at(3, buffers)
        expected = b"".join(buffers)
        assert file.read_at(3, len(expected) + 10) == expected
    file.close()
    assert pwritev is not os.pwritev


def test_a_write_that_makes_no_progress_does_not_hang(os_disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = os_disk.open("a", create=True)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(DiskError, match="takes no more bytes"):
        file.write_at(0, [b"abc"])
    with pytest.raises(DiskError, match="takes no more bytes"):
        file.write_at(0, [b"x" * 9000] * 2)
    file.close()


def failing(code: int) -> Callable[..., Any]:
    def call(*_arguments: object, **_options: object) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ENOENT, errno.EROFS])
def test_no_os_error_leaves(os_disk: OsDisk, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    os_disk.make_folder("x")
    put(os_disk, "x/a", b"abc")
    file = os_disk.open("x/a")
    kind = {errno.ENOSPC: DiskFull, errno.ENOENT: FileMissing}.get(code, DiskError)
    cases: list[tuple[str, type[DiskError], Callable[[], object]]] = [
        ("pread", kind, lambda: file.read_at(0, 1)),
        ("pwrite", kind, lambda: file.write_at(0, [b"x"])),
        ("pwritev", kind, lambda: file.write_at(0, [b"x" * 9000] * 2)),
        ("ftruncate", kind, lambda: file.truncate(0)),
        ("fstat", kind, file.size),
        ("fdatasync", SyncFailed, file.sync),
        ("fsync", SyncFailed, lambda: os_disk.sync_folder("x")),
        ("fsync", SyncFailed, lambda: os_disk.make_folder("x/y")),
        ("open", kind, lambda: os_disk.open("x/b", create=True)),
        ("fstat", kind, lambda: os_disk.open("x/a", writable=False)),
        ("open", kind, lambda: os_disk.sync_folder("x")),
        ("open", kind, lambda: os_disk.lock_folder("x")),
        ("mkdir", kind, lambda: os_disk.make_folder("z")),
        ("replace", kind, lambda: os_disk.rename("x/a", "x/b")),
        ("listdir", kind, lambda: os_disk.list_folder("x")),
        ("statvfs", kind, os_disk.free_bytes),
    ]
    if code != errno.ENOENT:  # for these a missing file is an answer, not an error
        cases += [("unlink", kind, lambda: os_disk.remove("x/a")), ("stat", kind, lambda: os_disk.exists("x/a"))]
    for name, expected, call in cases:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(code))
            with pytest.raises(DiskError) as caught:
                call()
        assert type(caught.value) is expected, name
        assert isinstance(caught.value.__cause__, OSError)
        assert os_disk.root in caught.value.reason
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", failing(code))
        with pytest.raises(DiskError):
            os_disk.remove_folder("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing(code))
        fd = file._fd  # type: ignore[attr-defined]
        with pytest.raises(DiskError):
            file.close()
    os.close(fd)


def test_a_folder_lock_works_when_its_pid_cannot_be_written(os_disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    os_disk.make_folder("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(errno.ENOSPC))
        lock = os_disk.lock_folder("x")
    with pytest.raises(FolderLocked, match="another process"):
        os_disk.lock_folder("x")
    lock.release()


FILE_LIMIT = """
import resource, sys
from tidelog.errors import DiskFull
from tidelog.storage.os_disk import OsDisk
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
file = OsDisk(sys.argv[1]).open("a", create=True)
try:
    file.write_at(0, [b"x" * 10_000])
except DiskFull as error:
    print(file.size(), error.code)
"""


def test_a_file_size_limit_is_disk_full(os_disk: OsDisk) -> None:
    command = [sys.executable, "-c", FILE_LIMIT, os_disk.root]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"4096 disk_full\n"
