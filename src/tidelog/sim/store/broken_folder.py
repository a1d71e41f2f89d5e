"""A `SimDisk` with bad sectors under one folder: what one channel may meet and others must not notice."""

from __future__ import annotations

from typing import Any

from tidelog.errors import DiskError
from tidelog.sim.disk import SimDisk


class BrokenFolder:
    """The same disk with bad sectors under one folder: writes or syncs of its segments fail."""

    def __init__(self, disk: SimDisk, folder: str, *, writes: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._writes = writes
        self.hits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, **options: Any) -> Any:
        file = self._disk.open(path, **options)
        return _BrokenFile(file, self) if path.startswith(f"{self._folder}/") and path.endswith(".seg") else file


class _BrokenFile:
    def __init__(self, file: Any, broken: BrokenFolder) -> None:
        self._file = file
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, buffers: Any) -> None:
        if self._broken._writes:
            self._broken.hits += 1
            raise DiskError(operation="write_at", path=self._file.path, reason="a bad sector")
        self._file.write_at(position, buffers)

    def sync(self) -> None:
        if not self._broken._writes:
            self._broken.hits += 1
            disk = self._broken._disk
            disk.faults.fail_after, disk.faults.fail_kind, disk.faults.fail_forever = 1, "sync", False
        self._file.sync()
