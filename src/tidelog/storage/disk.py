"""The interface to a file system: the only way to files.

Everything that Tidelog keeps goes through a `Disk`, so that the same code runs on a real file system (`OsDisk`) and on
a simulated one that tears, loses and corrupts writes by seed (`tidelog.sim.disk.SimDisk`). Paths are relative to the
disk's root, with forward slashes. Every failure is a typed `DiskError`; no `OSError` leaves an implementation.

What a caller must keep:
D1  A write is durable only after `File.sync` returned. A new name (create, rename, remove) is durable
    only after `sync_folder` of its folder returned.
D2  After `SyncFailed` nothing is known about any un-synced write of that file, ever again: do not
    retry the sync, open the file anew and verify (the kernel may have dropped the dirty pages).
D3  A failed `write_at` may have written any part of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Reads and writes name their position; there is no cursor."""

    @property
    def path(self) -> str: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other, growing the file where needed."""
        ...

    def sync(self) -> None:
        """Return once the file's bytes and length would survive a power cut (fdatasync)."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None:
        """Give the descriptor back. Does not sync. Closing twice is harmless."""
        ...


class FolderLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; `create` makes it, empty, if it is not there. Raises `FileMissing` otherwise."""
        ...

    def exists(self, path: str) -> bool: ...

    def list_folder(self, path: str) -> list[str]:
        """Names (not paths) in a folder, sorted. Raises `FileMissing`."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents; fine if it is there. Durable when it returns."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically replace `target` by `source`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine if it is gone already."""
        ...

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all in it; fine if it is gone already."""
        ...

    def sync_folder(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def lock_folder(self, path: str) -> FolderLock:
        """Refuse a second opener, in this process or another, with `FolderLocked`."""
        ...
