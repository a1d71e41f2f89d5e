"""A disk in memory with a size limit, for memory logs. Nothing survives the process, by design."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidelog.errors import DiskFull, FileMissing, FolderLocked
from tidelog.storage.disk import Buffer, File, FolderLock


class RamDisk:
    """Files as byte arrays, at most `bytes_max` together."""

    def __init__(self, *, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.resizing = threading.Lock()
        """A byte array cannot grow while a reader looks at it."""
        self._files: dict[str, bytearray] = {}
        self._folders: set[str] = {""}
        self._locked: set[str] = set()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        content = self._files.get(path)
        if content is None:
            if not create:
                raise FileMissing(operation="open", path=path, reason="no such file")
            content = self._files[path] = bytearray()
        return _RamFile(self, path, content)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._folders

    def list_folder(self, path: str) -> list[str]:
        if path not in self._folders:
            raise FileMissing(operation="list", path=path, reason="no such folder")
        prefix = f"{path}/" if path else ""
        names = (entry[len(prefix) :] for entry in (*self._files, *self._folders) if entry.startswith(prefix))
        return sorted({name.partition("/")[0] for name in names if name})

    def make_folder(self, path: str) -> None:
        while path not in self._folders:
            self._folders.add(path)
            path = path.rpartition("/")[0]

    def rename(self, source: str, target: str) -> None:
        if source not in self._files:
            raise FileMissing(operation="rename", path=source, reason="no such file")
        if source != target:
            self.remove(target)
            self._files[target] = self._files.pop(source)

    def remove(self, path: str) -> None:
        content = self._files.pop(path, None)
        if content is not None:
            self.bytes_used -= len(content)

    def remove_folder(self, path: str) -> None:
        for name in [name for name in self._files if name.startswith(f"{path}/")]:
            self.remove(name)
        self._folders -= {name for name in self._folders if name == path or name.startswith(f"{path}/")}

    def sync_folder(self, path: str) -> None:
        pass

    def free_bytes(self) -> int:
        return self.bytes_max - self.bytes_used

    def lock_folder(self, path: str) -> FolderLock:
        if path in self._locked:
            raise FolderLocked(operation="lock", path=path, reason="it is open already")
        self._locked.add(path)
        return _RamLock(self._locked, path)


class _RamLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


class _RamFile:
    __slots__ = ("_content", "_disk", "path")

    def __init__(self, disk: RamDisk, path: str, content: bytearray) -> None:
        self._disk = disk
        self.path = path
        self._content = content

    def read_at(self, position: int, length: int) -> bytes:
        # Slicing a memoryview first spares the copy that slicing a bytearray would add.
        with self._disk.resizing, memoryview(self._content) as view:
            return bytes(view[position : position + length])

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        content = self._content
        with self._disk.resizing:
            growth = position + sum(map(len, buffers)) - len(content)
            if growth > self._disk.free_bytes():
                raise DiskFull(operation="write", path=self.path, reason=f"{self._disk.bytes_max} bytes are used")
            if growth > 0:
                self._disk.bytes_used += growth
            if position > len(content):
                content += bytes(position - len(content))
            for buffer in buffers:
                content[position : position + len(buffer)] = buffer
                position += len(buffer)

    def sync(self) -> None:
        pass

    def truncate(self, size: int) -> None:
        if size > len(self._content):
            self.write_at(len(self._content), [bytes(size - len(self._content))])
            return
        with self._disk.resizing:
            self._disk.bytes_used -= len(self._content) - size
            del self._content[size:]

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None:
        pass
