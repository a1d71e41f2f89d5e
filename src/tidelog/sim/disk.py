"""A disk in memory that loses, tears and corrupts writes and fills up, by seed.

`SimDisk` keeps the contract of `tidelog.storage.disk` and nothing beyond it, so that code which relies on more is
found. Each file has what reads see and what is durable, with the un-synced writes and truncates between the two in
order. Each folder has visible and durable names, with a journal of un-synced name operations between them.

What survives `crash`, the power cut:
DI1  A byte that was synced and not written since is never lost, torn or changed.
DI2  Each un-synced write is, on its own, lost, kept or torn (a prefix, or sectors of 512 bytes that are
    new, zero or old). So a later write may survive an earlier one. The file may have the new length all
    the same, filled with zeros. An un-synced truncate is kept or lost.
DI3  Of a folder's un-synced name operations a prefix is kept, for metadata is journaled in order. A rename
    is kept in both folders or in neither. Syncing a file says nothing about its name: one that
    never became durable is gone.
DI4  After a failed `sync` the writes it should have made durable are still read, and are lost in the next
    crash, even if a later `sync` succeeds (the kernel marked the pages clean).
DI5  Handles and locks do not survive; the same object then is the rebooted machine.

Everything follows from the `rng` passed in and the order of the calls: no clock, no threads, no global
state. Only faults, crashes and the order in which `remove_folder` empties a folder draw from it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelog.errors import DiskError, DiskFull, FileMissing, FolderLocked, SyncFailed
from tidelog.sim.disk_nodes import (
    SECTOR_BYTES as SECTOR_BYTES,
)
from tidelog.sim.disk_nodes import (
    FileNode,
    FolderNode,
    NameChange,
    Node,
    SimFolderLock,
    copy_durable,
    put,
    set_length,
    settle_folder,
    survive,
    surviving_name_changes,
)
from tidelog.storage.disk import Buffer, File, FolderLock
from tidelog.storage.os_disk import LOCK_NAME, checked_path

UNLIMITED_FREE_BYTES = 1 << 40
"""What `free_bytes` says while `capacity_bytes` is not set."""

_RECENT_MAX = 256
_NEEDS_SPACE = frozenset({"write_at", "create", "make_folder", "rename"})
_SYNCS = frozenset({"sync", "sync_folder"})

FailKind: TypeAlias = Literal["io", "full", "sync"]
Operation: TypeAlias = tuple[str, str, int, int]
"""Name, path, position (or size), length: a line of the bounded trace."""


@dataclass(slots=True, kw_only=True)
class DiskFaults:
    """The faults from now on. Change the fields of `SimDisk.faults` at any time."""

    fail_after: int | None = None
    """Fail the n-th call from now that `fail_kind` counts; 1 is the next one. None again once it fired,
    so a test that tries n = 1, 2, 3 ... is done when a run leaves it set."""

    fail_kind: FailKind = "io"
    """`io` counts every call and raises DiskError (SyncFailed from a sync), `full` counts the calls that
    need space and raises DiskFull, `sync` counts syncs and raises SyncFailed. A failing write may write a part."""

    fail_forever: bool = False
    """Go on failing after the first time: `fail_after` then stays at 1 until the test clears it."""

    capacity_bytes: int | None = None
    """The size of the disk. The visible length of every named file counts, holes too; names are free."""

    misdirect_next_write: bool = False
    """The next write reports success, but its bytes land elsewhere in that file or in another open one."""

    lying_syncs: int = 0
    """So many file syncs from now report success and make nothing durable: the writes are read until the next crash
    loses them, as in DI4."""

    lying_folder: str = ""
    """Only syncs of files below it report success falsely."""

    stall_ms: int = 0
    """Simulated time that each sync takes, added to `SimDisk.stalled_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStatistics:
    reads: int
    writes: int
    syncs: int
    """File and folder syncs together, failed ones too."""
    bytes_read: int
    bytes_written: int
    faults: int
    """Calls that failed because `DiskFaults` said so, a full disk included."""
    crashes: int


class SimFile:
    """An open file of a `SimDisk`. Dead after `close` and after a crash."""

    __slots__ = ("_disk", "_node", "_path", "_writable")

    def __init__(self, *, disk: SimDisk, node: FileNode, path: str, writable: bool) -> None:
        self._disk = disk
        self._node: FileNode | None = node
        self._path = path
        self._writable = writable

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, length: int) -> bytes:
        node = self._alive("read_at", position | length)
        disk = self._disk
        disk._step("read_at", self._path, position, length)
        with memoryview(node.content) as content:
            data = bytes(content[position : position + length])
        disk._reads += 1
        disk._bytes_read += len(data)
        return data

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        node = self._alive("write_at", position)
        if not self._writable:
            raise DiskError(operation="write_at", path=self._path, reason="it was opened for reading only")
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        self._disk._write(node, self._path, position, data)

    def sync(self) -> None:
        node = self._alive("sync", 0)
        disk = self._disk
        disk._syncs += 1
        disk.stalled_ms += disk.faults.stall_ms
        try:
            disk._step("sync", self._path, 0, 0)
        except SyncFailed:
            node.lose_pending()
            raise
        if disk.faults.lying_syncs and node.pending and self._path.startswith(disk.faults.lying_folder):
            disk.faults.lying_syncs -= 1
            node.lose_pending()
        else:
            node.settle()

    def truncate(self, size: int) -> None:
        node = self._alive("truncate", size)
        if not self._writable:
            raise DiskError(operation="truncate", path=self._path, reason="it was opened for reading only")
        disk = self._disk
        disk._step("truncate", self._path, size, 0)
        growth = size - len(node.content)
        if growth > disk._room_bytes():
            raise disk._full("truncate", self._path)
        if growth:
            set_length(node.content, size)
            node.pending.append((size, None))
            disk._count_growth(node, growth)

    def size(self) -> int:
        node = self._alive("size", 0)
        self._disk._step("size", self._path, 0, 0)
        return len(node.content)

    def close(self) -> None:
        self._node = None
        self._disk._handles.pop(self, None)

    def _alive(self, operation: str, argument: int) -> FileNode:
        node = self._node
        if node is None:
            reason = "this handle was closed, or the machine lost power; open the file again"
            raise DiskError(operation=operation, path=self._path, reason=reason)
        if argument < 0:
            raise DiskError(operation=operation, path=self._path, reason="a position or length is negative")
        return node


class SimDisk:
    """See the module's docstring. `faults` may be changed at any time."""

    def __init__(self, rng: random.Random, *, faults: DiskFaults | None = None) -> None:
        self.faults = faults or DiskFaults()
        self.stalled_ms = 0
        """Simulated time spent in syncs; the caller adds it to its own clock."""
        self._rng = rng
        self._root = FolderNode()
        self._dirty: dict[FolderNode, None] = {}  # folders with a journal; a dict keeps the order, a set does not
        self._handles: dict[SimFile, None] = {}
        self._recent: deque[Operation] = deque(maxlen=_RECENT_MAX)
        self._used_bytes = 0
        self._name_changes = 0
        self._reads = self._writes = self._syncs = 0
        self._bytes_read = self._bytes_written = 0
        self._faults_raised = self._crashes = 0

    # --- the Disk ------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        path = checked_path(path)
        node = self._find("open", path)
        if isinstance(node, FolderNode):
            raise DiskError(operation="open", path=path, reason="it is a folder")
        if node is None:
            parent, name = self._parent("open", path)
            if not create:
                raise FileMissing(operation="open", path=path, reason="there is no such file")
            self._step("create", path, 0, 0)
            node = FileNode()
            self._change_names([(parent, name, node)])
        else:
            self._step("open", path, 0, 0)
        handle = SimFile(disk=self, node=node, path=path, writable=writable)
        self._handles[handle] = None
        return handle

    def exists(self, path: str) -> bool:
        path = checked_path(path)
        self._step("exists", path, 0, 0)
        node: Node | None = self._root
        for part in _parts(path):
            node = node.names.get(part) if isinstance(node, FolderNode) else None
        return node is not None

    def list_folder(self, path: str) -> list[str]:
        path = checked_path(path)
        self._step("list_folder", path, 0, 0)
        return sorted(name for name in self._folder("list_folder", path).names if name != LOCK_NAME)

    def make_folder(self, path: str) -> None:
        path = checked_path(path)
        self._step("make_folder", path, 0, 0)
        folder = self._root
        for part in _parts(path):
            child = folder.names.get(part)
            if isinstance(child, FileNode):
                raise DiskError(operation="make_folder", path=path, reason=f"{part} is a file")
            if child is None:
                child = FolderNode()
                self._change_names([(folder, part, child)])
            # Durable on return, and with it, as on a real disk, all earlier names of that folder.
            settle_folder(folder, self._dirty)
            folder = child

    def rename(self, source: str, target: str) -> None:
        source, target = checked_path(source), checked_path(target)
        node = self._find("rename", source)
        if node is None:
            raise FileMissing(operation="rename", path=source, reason="there is no such file or folder")
        source_parent, source_name = self._parent("rename", source)
        target_parent, target_name = self._parent("rename", target)
        if f"{target}/".startswith(f"{source}/") and target != source:
            raise DiskError(operation="rename", path=source, reason="a folder cannot be moved into itself")
        replaced = target_parent.names.get(target_name)
        self._check_replaceable(source, node, replaced)
        self._step("rename", source, 0, 0)
        if replaced is node:
            return
        folders = [source_parent] if source_parent is target_parent else [source_parent, target_parent]
        if isinstance(replaced, FileNode):
            self._forget(replaced)
        self._change_names([(source_parent, source_name, None), (target_parent, target_name, node)], folders)

    def remove(self, path: str) -> None:
        path = checked_path(path)
        self._step("remove", path, 0, 0)
        node = self._find("remove", path)
        if isinstance(node, FolderNode):
            raise DiskError(operation="remove", path=path, reason="it is a folder")
        if node is not None:
            parent, name = self._parent("remove", path)
            self._forget(node)
            self._change_names([(parent, name, None)])

    def remove_folder(self, path: str) -> None:
        path = checked_path(path)
        if not path:
            raise ValueError("the disk's root is not removed; name a folder in it")
        self._step("remove_folder", path, 0, 0)
        node = self._find("remove_folder", path)
        if isinstance(node, FileNode):
            raise DiskError(operation="remove_folder", path=path, reason="it is a file")
        if node is not None:
            self._remove_tree(*self._parent("remove_folder", path), node)

    def sync_folder(self, path: str) -> None:
        path = checked_path(path)
        self._syncs += 1
        self.stalled_ms += self.faults.stall_ms
        folder = self._folder("sync_folder", path)
        self._step("sync_folder", path, 0, 0)
        settle_folder(folder, self._dirty)

    def free_bytes(self) -> int:
        self._step("free_bytes", "", 0, 0)
        return min(self._room_bytes(), UNLIMITED_FREE_BYTES)

    def lock_folder(self, path: str) -> FolderLock:
        path = checked_path(path)
        self._step("lock_folder", path, 0, 0)
        folder = self._folder("lock_folder", path)
        if folder.lock is not None:
            reason = "this process has it open; stop it or choose another folder"
            raise FolderLocked(operation="lock_folder", path=path, reason=reason)
        folder.lock = SimFolderLock(folder)
        return folder.lock

    # --- what goes wrong -----------------------------------------------------------------------------

    def crash(self) -> None:
        """Cut the power and boot again: DI1 to DI5."""
        self._crashes += 1
        self._recent.append(("crash", "", 0, 0))
        for handle in self._handles:
            handle._node = None
        self._handles.clear()
        for change in sorted(surviving_name_changes(self._dirty, self._rng), key=lambda change: change.number):
            change.apply_to_durable()
        self._dirty.clear()
        self._used_bytes = 0
        self._boot(self._root)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Flip one bit, on the platter and in the cache. Un-synced writes over it carry the flip too."""
        node = self._file("flip_bit", path)
        if not (0 <= position < len(node.content) and 0 <= bit < 8):
            raise ValueError(f"{path} has {len(node.content)} bytes of 8 bits; there is no bit {bit} at {position}")
        mask = 1 << bit
        node.content[position] ^= mask
        if position < len(node.durable):
            node.durable[position] ^= mask
        for index, (start, data) in enumerate(node.pending):
            if data is not None and start <= position < start + len(data):
                flipped = bytearray(data)
                flipped[position - start] ^= mask
                node.pending[index] = (start, bytes(flipped))

    def flip_random_bit(self, path: str) -> tuple[int, int]:
        """Flip any bit of a file that is not empty; returns its (position, bit)."""
        size = len(self._file("flip_random_bit", path).content)
        if size == 0:
            raise ValueError(f"{path} is empty and has no bit to flip")
        position, bit = self._rng.randrange(size), self._rng.randrange(8)
        self.flip_bit(path, position, bit)
        return position, bit

    # --- what tests look at --------------------------------------------------------------------------

    def durable_bytes(self, path: str) -> bytes:
        """The content of a file if the power failed now and every un-synced change were lost."""
        path = checked_path(path)
        node: Node | None = self._root
        for part in _parts(path):
            node = node.durable.get(part) if isinstance(node, FolderNode) else None
        if not isinstance(node, FileNode):
            raise FileMissing(operation="durable_bytes", path=path, reason="no file of this name is durable")
        return bytes(node.durable)

    def replace_bytes(self, path: str, data: bytes) -> None:
        """Replace the content of an existing file durably, without any call of its owner."""
        node = self._file("replace_bytes", path)
        self._count_growth(node, len(data) - len(node.content))
        node.content[:] = data
        node.durable[:] = data
        node.pending.clear()

    def clone(self, rng: random.Random) -> SimDisk:
        """A second machine with a copy of this one's durable state: no un-synced changes, handles, locks, faults."""
        twin = SimDisk(rng)
        twin._root = copy_durable(self._root)
        twin._boot(twin._root)
        return twin

    def statistics(self) -> DiskStatistics:
        return DiskStatistics(
            reads=self._reads,
            writes=self._writes,
            syncs=self._syncs,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            faults=self._faults_raised,
            crashes=self._crashes,
        )

    def recent_operations(self) -> list[Operation]:
        """The last 256 calls, oldest first, to print when a seed fails."""
        return list(self._recent)

    # --- inside: faults ------------------------------------------------------------------------------

    def _step(self, operation: str, path: str, position: int, length: int) -> None:
        """Record the call, and fail it if its turn has come."""
        self._recent.append((operation, path, position, length))
        if self.faults.fail_after is not None:
            self._count_down(operation, path)

    def _count_down(self, operation: str, path: str) -> None:
        faults = self.faults
        assert faults.fail_after is not None
        if faults.fail_kind == "full" and operation not in _NEEDS_SPACE:
            return
        if faults.fail_kind == "sync" and operation not in _SYNCS:
            return
        if faults.fail_after > 1:
            faults.fail_after -= 1
            return
        faults.fail_after = 1 if faults.fail_forever else None
        if faults.fail_kind == "full":
            raise self._full(operation, path)
        self._faults_raised += 1
        kind = SyncFailed if operation in _SYNCS else DiskError
        raise kind(operation=operation, path=path, reason="injected I/O error")

    def _full(self, operation: str, path: str) -> DiskFull:
        self._faults_raised += 1
        return DiskFull(operation=operation, path=path, reason="no space left on the simulated disk")

    def _room_bytes(self) -> int:
        if self.faults.capacity_bytes is None:
            return UNLIMITED_FREE_BYTES
        return max(0, self.faults.capacity_bytes - self._used_bytes)

    def _count_growth(self, node: FileNode, growth: int) -> None:
        if node.named:
            self._used_bytes += growth

    def _forget(self, node: FileNode) -> None:
        """The space of a removed file is free at once, even while a handle still reads it."""
        self._count_growth(node, -len(node.content))
        node.named = False

    # --- inside: bytes -------------------------------------------------------------------------------

    def _write(self, node: FileNode, path: str, position: int, data: bytes) -> None:
        size = len(node.content)
        end = position + len(data)
        self._writes += 1
        try:
            self._step("write_at", path, position, len(data))
            if data and end - size > self._room_bytes():
                raise self._full("write_at", path)
        except DiskError:
            # D3: any part may be there, as far as the space reaches.
            possible = min(end, size + self._room_bytes()) - position
            if possible > 0:
                self._put(node, position, data[: self._rng.randint(0, possible)])
            raise
        if self.faults.misdirect_next_write and data:
            self.faults.misdirect_next_write = False
            self._misdirect(node, position, data)
        else:
            self._put(node, position, data)

    def _put(self, node: FileNode, position: int, data: bytes) -> None:
        if not data:
            return
        before = len(node.content)
        put(node.content, position, data)
        node.pending.append((position, data))
        if (growth := len(node.content) - before) and node.named:
            self._used_bytes += growth
        self._bytes_written += len(data)

    def _misdirect(self, node: FileNode, position: int, data: bytes) -> None:
        """The file gets its new length, as the file system believes; the bytes go to a wrong place."""
        growth = position + len(data) - len(node.content)
        if growth > 0:
            set_length(node.content, position + len(data))
            node.pending.append((position + len(data), None))
            self._count_growth(node, growth)
        # By inode: two handles of one file are one target. A wrong sector is always one that exists.
        others = {id(h._node): h._node for h in self._handles if h._node is not node and h._node and h._node.content}
        if others and self._rng.random() < 0.5:
            victim = list(others.values())[self._rng.randrange(len(others))]
            place = self._rng.randrange(len(victim.content))
        else:
            victim = node
            place = self._rng.randrange(len(node.content) - 1) if len(node.content) > 1 else 1
            place += place >= position  # any place but the right one
        self._put(victim, place, data[: max(0, len(victim.content) - place)])

    # --- inside: names -------------------------------------------------------------------------------

    def _find(self, operation: str, path: str) -> Node | None:
        node: Node = self._root
        for part in _parts(path):
            if isinstance(node, FileNode):
                raise DiskError(operation=operation, path=path, reason="a part of the path is a file")
            child = node.names.get(part)
            if child is None:
                return None
            node = child
        return node

    def _folder(self, operation: str, path: str) -> FolderNode:
        node = self._find(operation, path)
        if node is None:
            raise FileMissing(operation=operation, path=path, reason="there is no such folder")
        if isinstance(node, FileNode):
            raise DiskError(operation=operation, path=path, reason="it is a file")
        return node

    def _file(self, operation: str, path: str) -> FileNode:
        node = self._find(operation, checked_path(path))
        if not isinstance(node, FileNode):
            raise FileMissing(operation=operation, path=path, reason="there is no such file")
        return node

    def _parent(self, operation: str, path: str) -> tuple[FolderNode, str]:
        if not path:
            raise DiskError(operation=operation, path=path, reason="the root has no name")
        above, _, name = path.rpartition("/")
        parent = self._find(operation, above)
        if parent is None:
            raise FileMissing(operation=operation, path=path, reason=f"there is no folder {above}")
        if isinstance(parent, FileNode):
            raise DiskError(operation=operation, path=path, reason=f"{above} is a file")
        return parent, name

    def _check_replaceable(self, source: str, node: Node, replaced: Node | None) -> None:
        if replaced is None or replaced is node:
            return
        if type(replaced) is not type(node):
            raise DiskError(operation="rename", path=source, reason="a file and a folder cannot replace each other")
        if isinstance(replaced, FolderNode) and replaced.names:
            raise DiskError(operation="rename", path=source, reason="the target folder is not empty")

    def _change_names(
        self, effects: list[tuple[FolderNode, str, Node | None]], folders: list[FolderNode] | None = None
    ) -> None:
        self._name_changes += 1
        change = NameChange(self._name_changes, effects, folders or [effects[0][0]])
        for folder, name, node in effects:
            if node is None:
                del folder.names[name]
            else:
                folder.names[name] = node
        for folder in change.folders:
            folder.journal.append(change)
            self._dirty[folder] = None

    def _remove_tree(self, parent: FolderNode, name: str, folder: FolderNode) -> None:
        children = list(folder.names.items())
        self._rng.shuffle(children)  # a real folder is emptied in the order of its hash table
        for child_name, child in children:
            if isinstance(child, FolderNode):
                self._remove_tree(folder, child_name, child)
            else:
                self._forget(child)
                self._change_names([(folder, child_name, None)])
        # The removed folder's own journal comes first, else a file moved out of it just before could vanish.
        self._change_names([(parent, name, None)], [parent, folder])

    # --- inside: power -------------------------------------------------------------------------------

    def _boot(self, folder: FolderNode) -> None:
        """The durable state becomes the visible one, after the outcome of every un-synced change is drawn."""
        folder.names = dict(folder.durable)
        folder.journal = []
        folder.lock = None
        for node in folder.names.values():
            if isinstance(node, FolderNode):
                self._boot(node)
                continue
            for position, data in node.pending:
                if data is not None:
                    survive(self._rng, node.durable, position, data)
                elif self._rng.random() < 0.5:
                    set_length(node.durable, position)
            node.pending = []
            node.content = bytearray(node.durable)
            node.named = True
            self._used_bytes += len(node.content)


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []
