"""Faults that lose synced data: it is gone, zeroed, flipped or removed, or a folder is an older copy of itself.

`SimDisk.crash` loses only what was not promised (DI1). These functions break that promise: call them between two runs
of the owner of the files, when it has stopped or lost its power. What they leave is durable.

    picture = take_picture(disk, ".tidelog")            # a backup, a snapshot of the virtual machine
    told = tell_lie(disk, rng, ".tidelog/wal", Lie.ZEROED)   # one file of a folder, chosen by seed; says what it did
    put_back(disk, picture)                             # the folder as it was then

A sync that falsely reports success while the owner runs is `DiskFaults.lying_syncs`: it reports success, and the next
crash takes the writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tidelog.errors import FileMissing
from tidelog.sim.disk import SimDisk
from tidelog.sim.disk_nodes import FileNode, FolderNode, copy_durable, settle_folder
from tidelog.storage.os_disk import LOCK_NAME

_FLIPPED_BYTES_MAX = 64


class Lie(StrEnum):
    GONE = "gone"
    """The last synced bytes are missing: the file is shorter."""
    ZEROED = "zeroed"
    """From some place on the file reads as zeros; its length is right."""
    FLIPPED = "flipped"
    """Some bytes within one file are others; its length is right."""
    REMOVED = "removed"
    """A whole file is missing."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A folder as it was durable at one moment. It can be put back any number of times."""

    path: str
    root: FolderNode


def durable_files(disk: SimDisk, folder: str = "") -> list[str]:
    """Paths of all files under a folder that would survive a power cut now, sorted; locks are none."""
    node = _durable_folder(disk, folder)
    found: list[str] = []
    waiting = [] if node is None else [(folder, node)]
    while waiting:
        path, one = waiting.pop()
        for name, child in one.durable.items():
            place = f"{path}/{name}" if path else name
            if isinstance(child, FolderNode):
                waiting.append((place, child))
            elif name != LOCK_NAME:
                found.append(place)
    return sorted(found)


def cut_file(disk: SimDisk, path: str, size: int) -> None:
    """The file keeps its first `size` bytes."""
    disk.replace_bytes(path, disk.durable_bytes(path)[:size])


def zero_bytes(disk: SimDisk, path: str, start: int, stop: int | None = None) -> None:
    data = bytearray(disk.durable_bytes(path))
    stop = len(data) if stop is None else min(stop, len(data))
    data[start:stop] = bytes(max(0, stop - start))
    disk.replace_bytes(path, bytes(data))


def flip_bytes(disk: SimDisk, path: str, start: int, stop: int) -> None:
    """Flip every bit from `start` up to `stop`."""
    data = bytearray(disk.durable_bytes(path))
    data[start:stop] = bytes(byte ^ 0xFF for byte in data[start:stop])
    disk.replace_bytes(path, bytes(data))


def remove_file(disk: SimDisk, path: str) -> None:
    """Remove the file as if it had never existed."""
    above, _, name = path.rpartition("/")
    parent = disk._folder("remove_file", above)
    node = parent.names.get(name)
    if not isinstance(node, FileNode):
        raise FileMissing(operation="remove_file", path=path, reason="there is no such file")
    disk._forget(node)
    del parent.names[name]
    parent.durable.pop(name, None)


def take_picture(disk: SimDisk, folder: str = "") -> Picture:
    """What is durable in a folder now. A folder that is not there makes an empty picture."""
    node = _durable_folder(disk, folder)
    return Picture(folder, copy_durable(node) if node is not None else FolderNode())


def put_back(disk: SimDisk, picture: Picture) -> None:
    """The folder is again what it was when the picture was taken. Nobody may have a file of it open."""
    root = copy_durable(picture.root)
    if picture.path:
        disk.make_folder(picture.path)
        above, _, name = picture.path.rpartition("/")
        parent = disk._folder("put_back", above)
        parent.names[name] = parent.durable[name] = root
    else:
        disk._root = root
    # Boots the disk again: used bytes are counted anew, and no journal of a folder that is gone is left.
    disk.crash()


def end_process(disk: SimDisk) -> None:
    """The owner of the files was killed and the machine runs on: all it wrote is there, its handles and locks are not.

    What the page cache held is durable after that: the kernel had all the time to write it.
    """
    for handle in list(disk._handles):
        handle.close()
    waiting = [disk._root]
    while waiting:
        folder = waiting.pop()
        folder.lock = None
        settle_folder(folder, disk._dirty)
        for child in folder.names.values():
            if isinstance(child, FolderNode):
                waiting.append(child)
            else:
                child.settle()


def write_all(disk: SimDisk) -> None:
    """All that can be read becomes durable, also writes whose sync falsely reported success."""
    waiting = [disk._root]
    while waiting:
        folder = waiting.pop()
        settle_folder(folder, disk._dirty)
        for child in folder.names.values():
            if isinstance(child, FolderNode):
                waiting.append(child)
            else:
                child.pending.clear()
                child.durable[:] = child.content


def tell_lie(
    disk: SimDisk, rng: random.Random, folder: str, lie: Lie, *, choose: Callable[[str], bool] | None = None
) -> str | None:
    """Damage one file under `folder` (one that `choose` takes, with bytes in it); says what, None if there is none."""
    paths = [path for path in durable_files(disk, folder) if choose is None or choose(path)]
    paths = [path for path in paths if disk._find("tell_lie", path) is not None]  # perhaps removed, but not durably
    paths = [path for path in paths if lie is Lie.REMOVED or disk.durable_bytes(path)]
    if not paths:
        return None
    path = rng.choice(paths)
    size = len(disk.durable_bytes(path))
    if lie is Lie.REMOVED:
        remove_file(disk, path)
        return f"{path} of {size} bytes was removed"
    start = rng.randrange(size)
    if lie is Lie.GONE:
        cut_file(disk, path, start)
        return f"{path} was cut from {size} bytes to {start}"
    if lie is Lie.ZEROED:
        zero_bytes(disk, path, start)
        return f"{path} of {size} bytes was zeroed from {start}"
    # Half of the time the very last bytes, which no later write proves.
    length = rng.randint(1, min(_FLIPPED_BYTES_MAX, size))
    start = size - length if rng.random() < 0.5 else min(start, size - length)
    flip_bytes(disk, path, start, start + length)
    return f"{path} of {size} bytes was flipped from {start} to {start + length}"


def _durable_folder(disk: SimDisk, path: str) -> FolderNode | None:
    node: FolderNode = disk._root
    for part in path.split("/") if path else []:
        child = node.durable.get(part)
        if not isinstance(child, FolderNode):
            return None
        node = child
    return node
