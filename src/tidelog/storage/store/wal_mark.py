"""How far the write-ahead files were durable, kept outside of them so that missing files and bytes are noticed.

A write-ahead file cannot show whether its own last commit is complete, nor that another file is gone. This mark can: it
names the files that must be there and how long the newest one must be. It is written after every sync of the
write-ahead file, but not synced, so it costs one small write; it is synced when a file is begun, once a second, and
when the store closes.

WM1  The mark never promises more than was durable when it was written, so any version of it that survives is true.
WM2  It has two slots. One of them is always durable and whole; only the other one is written.
WM3  Without a power cut it covers everything that was acked. After one it may be a second behind: of what came after,
     rot is told from a torn write by later entries of the same file, or not at all.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from tidelog.errors import FileMissing
from tidelog.storage.disk import Disk
from tidelog.storage.raft.files import MARK_SLOT_STEP, replace_file

_MAGIC: Final = b"TLWMRK\x01\x00"
_SLOT: Final = struct.Struct("<8sQQQQ")
_CHECKSUM: Final = struct.Struct("<I")
_SLOT_BYTES: Final = _SLOT.size + _CHECKSUM.size


class WalEnd(NamedTuple):
    """Which write-ahead files must be there."""

    floor: int
    """The oldest that counts; 0 while no table was ever saved. The table may know a newer floor."""
    number: int
    """The newest that was begun."""
    size: int
    """How many bytes of the newest one were durable."""


class WalMark:
    """Written by one thread. The caller handles failures: the mark that is there stays true (WM1)."""

    def __init__(self, disk: Disk, path: str, end: WalEnd) -> None:
        """A new file with both slots at `end`, in place of the one that may be there.

        After a failed sync the old one may read as if it were whole (D2).
        """
        slot = _packed(0, end)
        replace_file(disk, path, [slot, bytes(MARK_SLOT_STEP - len(slot)), slot])
        self._file = disk.open(path)
        self._sequence = 0
        self._slot = 0
        self.settled = True
        """Nothing was noted since the last sync."""
        self._torn = False
        """The last write of the slot failed, so nobody knows what is in it (D3)."""

    def note(self, end: WalEnd) -> None:
        """Note that all this is durable. The note survives the process; a power cut only once settled."""
        self.settled = False
        self._sequence += 1
        self._torn = True
        self._file.write_at(self._slot * MARK_SLOT_STEP, [_packed(self._sequence, end)])
        self._torn = False

    def settle(self) -> None:
        """Make the last note durable. A slot that may be torn stays the one that is written (WM2)."""
        if not self.settled and not self._torn:
            self._torn = True  # after a failed sync the slot is written again before it counts (D2)
            self._file.sync()
            self._torn = False
            self._slot = 1 - self._slot
            self.settled = True

    def close(self) -> None:
        self._file.close()


def read_wal_end(disk: Disk, path: str) -> WalEnd | None:
    """What the newer of the slots that check out says; None if there is no such file, or neither does."""
    content = _content(disk, path)
    found = [] if content is None else _whole_slots(content)
    return max(found)[1] if found else None


def wal_mark_problems(disk: Disk, path: str, *, clean: bool) -> list[str]:
    """What is wrong with the file, in words. Only a store that was closed has two whole slots (WM2)."""
    content = _content(disk, path)
    if content is None:
        return []  # an older version wrote the store
    whole = len(_whole_slots(content))
    if whole == 0:
        return ["neither of its slots is whole"]
    if clean and whole == 1:
        return ["one of its two slots is damaged"]
    if any(content[_SLOT_BYTES:MARK_SLOT_STEP]) or len(content) > MARK_SLOT_STEP + _SLOT_BYTES:
        return ["it holds bytes where none belong"]
    return []


def _content(disk: Disk, path: str) -> bytes | None:
    """The whole file, with one byte more than it should have if it does; None if there is none."""
    try:
        file = disk.open(path, writable=False)
    except FileMissing:
        return None
    try:
        return file.read_at(0, MARK_SLOT_STEP + _SLOT_BYTES + 1)
    finally:
        file.close()


def _whole_slots(content: bytes) -> list[tuple[int, WalEnd]]:
    return [slot for start in (0, MARK_SLOT_STEP) if (slot := _unpacked(content[start : start + _SLOT_BYTES]))]


def _packed(sequence: int, end: WalEnd) -> bytes:
    data = _SLOT.pack(_MAGIC, sequence, *end)
    return data + _CHECKSUM.pack(crc32c(data))


def _unpacked(data: bytes) -> tuple[int, WalEnd] | None:
    if len(data) < _SLOT_BYTES or crc32c(data[: _SLOT.size]) != _CHECKSUM.unpack_from(data, _SLOT.size)[0]:
        return None
    magic, sequence, *end = _SLOT.unpack_from(data)
    return (sequence, WalEnd(*end)) if magic == _MAGIC else None
