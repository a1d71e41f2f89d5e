"""Disk space that appends leave alone, so that truncation and metadata still work when it is full (S4)."""

from __future__ import annotations

from tidelog.errors import DiskFull
from tidelog.storage.disk import Disk


class Reserve:
    """Refuses what would touch the reserve. Asking the file system costs as much as a small write, so it asks
    once per quarter of the reserve, and before every write while the disk is near full."""

    __slots__ = ("_disk", "_near_full", "_reserve_bytes", "_unchecked_bytes")

    def __init__(self, disk: Disk, *, reserve_bytes: int) -> None:
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._unchecked_bytes = 0
        self._near_full = True
        """Until the disk is known to have room."""

    def check(self, path: str, size: int) -> None:
        """Raise `DiskFull` when `size` more bytes at `path` would leave less than the reserve."""
        reserve = self._reserve_bytes
        self._unchecked_bytes += size
        if not reserve or (self._unchecked_bytes < reserve // 4 and not self._near_full):
            return
        free = self._disk.free_bytes()
        self._near_full = free < 2 * reserve
        if free < reserve + size:
            reason = f"{free} bytes are free, {reserve} are kept in reserve"
            raise DiskFull(operation="append to", path=path, reason=reason)
        self._unchecked_bytes = 0
