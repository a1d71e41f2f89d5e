"""Inodes, folders and name journals of a `SimDisk`.

A file has the bytes that reads see and the bytes that are durable, with the un-synced writes between them; a folder has
the same for names. This module decides which un-synced changes survive a power cut (DI1 to DI3 of `tidelog.sim.disk`);
it knows nothing of faults, capacity or handles.
"""

from __future__ import annotations

import random
from typing import TypeAlias

SECTOR_BYTES = 512


class FileNode:
    """An inode. `pending` holds (position, data) for a write and (size, None) for a truncate."""

    __slots__ = ("content", "durable", "named", "pending")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.content = bytearray(data)
        self.durable = bytearray(data)
        self.pending: list[tuple[int, bytes | None]] = []
        self.named = True  # counts against the capacity

    def settle(self) -> None:
        durable = self.durable
        for position, data in self.pending:
            if data is None:
                set_length(durable, position)
            else:
                put(durable, position, data)
        self.pending.clear()

    def lose_pending(self) -> None:
        """DI4. Truncates stay pending: they are metadata, and the journal still has them."""
        self.pending = [change for change in self.pending if change[1] is None]


class FolderNode:
    __slots__ = ("durable", "journal", "lock", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.journal: list[NameChange] = []
        self.lock: SimFolderLock | None = None


Node: TypeAlias = FileNode | FolderNode


class NameChange:
    """One atomic step of the metadata journal; it stands in the journal of every folder in `folders`."""

    __slots__ = ("effects", "folders", "number")

    def __init__(
        self, number: int, effects: list[tuple[FolderNode, str, Node | None]], folders: list[FolderNode]
    ) -> None:
        self.number = number
        self.effects = effects
        self.folders = folders

    def apply_to_durable(self) -> None:
        for folder, name, node in self.effects:
            if node is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = node


class SimFolderLock:
    __slots__ = ("_folder",)

    def __init__(self, folder: FolderNode) -> None:
        self._folder = folder

    def release(self) -> None:
        # After a crash the folder may be locked by someone else; that lock is not ours to release.
        if self._folder.lock is self:
            self._folder.lock = None


def settle_folder(folder: FolderNode, dirty: dict[FolderNode, None]) -> None:
    """Make a folder's names durable, and whatever must precede them in the other folder of a rename."""
    if not folder.journal:
        return
    needed: dict[int, NameChange] = {}
    waiting = list(folder.journal)
    while waiting:
        change = waiting.pop()
        if change.number in needed:
            continue
        needed[change.number] = change
        if len(change.folders) > 1:
            for other in change.folders:
                waiting += [earlier for earlier in other.journal if earlier.number < change.number]
    for number in sorted(needed):
        needed[number].apply_to_durable()
    for touched in {one: None for change in needed.values() for one in change.folders}:
        touched.journal = [change for change in touched.journal if change.number not in needed]
        if not touched.journal:
            del dirty[touched]


def surviving_name_changes(dirty: dict[FolderNode, None], rng: random.Random) -> list[NameChange]:
    """A prefix of each folder's journal, shortened until every kept change is kept in all its folders (DI3)."""
    kept = {folder: rng.randint(0, len(folder.journal)) for folder in dirty}
    shrinking = True
    while shrinking:
        shrinking = False
        last = {folder: folder.journal[count - 1].number if count else 0 for folder, count in kept.items()}
        for folder, count in kept.items():
            for index, change in enumerate(folder.journal[:count]):
                if any(change.number > last[other] for other in change.folders):
                    kept[folder] = index
                    shrinking = True
                    break
    chosen = {change.number: change for folder, count in kept.items() for change in folder.journal[:count]}
    return list(chosen.values())


def survive(rng: random.Random, durable: bytearray, position: int, data: bytes) -> None:
    """Draw the fate of one un-synced write (DI2). Touches no byte outside it (DI1)."""
    fate = rng.randrange(4)
    if fate == 1:
        put(durable, position, data)
    elif fate == 2:
        put(durable, position, data[: rng.randrange(len(data))])
    elif fate == 3:
        start = 0
        while start < len(data):
            stop = min(len(data), start + SECTOR_BYTES - (position + start) % SECTOR_BYTES)
            match rng.randrange(3):
                case 0:
                    put(durable, position + start, data[start:stop])
                case 1:
                    put(durable, position + start, bytes(stop - start))
                case _:
                    pass  # the old bytes stay
            start = stop
    if position + len(data) > len(durable) and rng.random() < 0.5:
        set_length(durable, position + len(data))


def put(content: bytearray, position: int, data: bytes) -> None:
    if not data:
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def set_length(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def copy_durable(folder: FolderNode) -> FolderNode:
    copy = FolderNode()
    for name, node in folder.durable.items():
        copy.durable[name] = copy_durable(node) if isinstance(node, FolderNode) else FileNode(node.durable)
    return copy
