"""What `OsDisk` does on a real file system that has no room left."""

from __future__ import annotations

import pytest

from tidelog.errors import DiskFull
from tidelog.storage.os_disk import OsDisk


@pytest.mark.parametrize("buffers", [[b"x" * (2 << 20)], [b"x" * 65536] * 32, [b"x" * 64] * 32768])
def test_a_full_disk_refuses_the_write_and_works_again_after_truncate(tiny_disk: OsDisk, buffers: list[bytes]) -> None:
    file = tiny_disk.open("a", create=True)
    file.write_at(0, [b"kept"])
    file.sync()
    with pytest.raises(DiskFull) as caught:
        file.write_at(4, buffers)
    assert caught.value.retriable
    assert file.size() > 4  # D3: a part was written
    assert tiny_disk.free_bytes() == 0
    file.truncate(4)
    file.sync()
    assert tiny_disk.free_bytes() >= 1_000_000
    file.write_at(4, [b" on"])
    assert file.read_at(0, 100) == b"kept on"
    file.close()


def test_a_disk_without_room_for_another_file_is_full(tiny_disk: OsDisk) -> None:
    def fill() -> None:
        for number in range(9):
            tiny_disk.open(f"{number}", create=True).close()

    with pytest.raises(DiskFull) as caught:
        fill()
    assert caught.value.operation == "open"
    with pytest.raises(DiskFull):
        tiny_disk.make_folder("x")
    tiny_disk.remove("0")
    tiny_disk.make_folder("x")


def test_a_full_disk_still_removes_renames_and_locks(tiny_disk: OsDisk) -> None:
    tiny_disk.make_folder("x")
    tiny_disk.lock_folder("x").release()
    file = tiny_disk.open("x/a", create=True)
    with pytest.raises(DiskFull):
        file.write_at(0, [b"x" * (2 << 20)])
    file.close()
    assert tiny_disk.free_bytes() == 0
    lock = tiny_disk.lock_folder("x")
    tiny_disk.rename("x/a", "x/b")
    tiny_disk.sync_folder("x")
    lock.release()
    tiny_disk.remove_folder("x")
    assert tiny_disk.free_bytes() >= 1_000_000
