"""A bounded cache of open files, so that ten thousand channels do not need ten thousand descriptors.

A file in use is pinned and never closed under its user; the least recently used unpinned one goes
first when the limit is reached. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import AbstractContextManager

from tidelog.storage.disk import Disk, File


class FileCache:
    def __init__(self, disk: Disk, *, open_max: int = 256) -> None:
        self._disk = disk
        self._open_max = open_max
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _Entry] = OrderedDict()

    def use(self, path: str) -> AbstractContextManager[File]:
        """The open file at `path`, pinned until the block ends."""
        with self._lock:
            entry = self._files.get(path)
            if entry is None:
                entry = _Entry(self._disk.open(path), self._lock)
                self._files[path] = entry
                self._shrink(spare=entry)
            else:
                self._files.move_to_end(path)
            entry.pins += 1
        return entry

    def drop(self, path: str) -> None:
        """Forget a file that was removed, replaced or is no longer needed."""
        with self._lock:
            entry = self._files.pop(path, None)
            if entry is not None:
                self._retire(entry)

    def close(self) -> None:
        with self._lock:
            for entry in self._files.values():
                self._retire(entry)
            self._files.clear()

    def open_count(self) -> int:
        with self._lock:
            return len(self._files)

    def _shrink(self, *, spare: _Entry) -> None:
        if len(self._files) <= self._open_max:
            return
        for path, entry in list(self._files.items()):
            if len(self._files) <= self._open_max:
                break
            if not entry.pins and entry is not spare:
                del self._files[path]
                entry.file.close()

    @staticmethod
    def _retire(entry: _Entry) -> None:
        entry.dropped = True
        if not entry.pins:
            entry.file.close()


class _Entry:
    """An open file that is its own context manager: every append passes here twice, a generator would cost more."""

    __slots__ = ("_lock", "dropped", "file", "pins")

    def __init__(self, file: File, lock: threading.Lock) -> None:
        self.file = file
        self.pins = 0
        self.dropped = False
        self._lock = lock

    def __enter__(self) -> File:
        return self.file

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.pins -= 1
            if self.dropped and not self.pins:
                self.file.close()
