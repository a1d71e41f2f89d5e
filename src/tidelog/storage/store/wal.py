"""The write-ahead file of a store: one place where everything small becomes durable first.

Files are numbered and lie in one folder. Each starts with a 64-byte header and holds entries of 32 bytes plus a
payload, end to end, eight-byte aligned. A block's payload is the block itself, which carries its own checksums; other
payloads are JSON and covered by the entry's checksum. Every commit opens with a mark that says up to where the file was
known to be durable, so that replay can tell a torn tail (above the last mark: cut) from damage (below it: reported, and
stepped over), as B4 does for segments. Entries carry the file's number, so bytes of another file are never taken for
its own. Whether a file's last commit was durable and whether a file is missing is known from the mark beside the files
(`tidelog.storage.store.wal_mark`) and from the head of the next file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockLimits
from tidelog.errors import BadBlock, DiskError, FileMissing
from tidelog.storage.disk import Buffer, Disk, File

WAL_SUFFIX: Final = ".wal"
WAL_MAGIC: Final = b"TLWAL\x01\x00\x00"
WAL_HEAD_BYTES: Final = 64
ENTRY_MAGIC: Final = b"TLW1"
ENTRY_BYTES: Final = 32
_ENTRY: Final = struct.Struct("<4sB3xQQI")
_CHECKSUM: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<8sQQQ28x")
"""Magic, number, and of the file before: its number and how many bytes of it were durable."""


class WalEntryKind(IntEnum):
    MARK = 1
    """`subject` is the position up to which this file was durable."""
    BLOCK = 2
    CREATE = 3
    DELETE = 4
    TRUNCATE = 5
    DIRECT = 6
    """The channel's segments are synced up to an offset: large blocks went straight there (S1)."""


@dataclass(frozen=True, slots=True)
class WalEntry:
    kind: WalEntryKind
    subject: int
    """Channel id, or the position of a mark."""
    block: Block | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class WalScan:
    """What replaying one file found."""

    entries: list[WalEntry] = field(default_factory=list)
    bytes_cut: int = 0
    damaged_bytes: int = 0
    """Bytes below the sync point that are unreadable, or not there at all."""
    file_bytes: int = 0
    sync_point: int = 0
    """Up to here the file is known to have been durable."""


def wal_name(number: int) -> str:
    return f"{number:012d}{WAL_SUFFIX}"


def wal_numbers(disk: Disk, folder: str) -> list[int]:
    """Numbers of the write-ahead files in a folder, ascending."""
    try:
        names = disk.list_folder(folder)
    except FileMissing:
        return []
    stems = (name.removesuffix(WAL_SUFFIX) for name in names if name.endswith(WAL_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


class WalWriter:
    """Appends to one write-ahead file. After an error in `write` nothing of that write remains."""

    def __init__(self, disk: Disk, folder: str, number: int, *, previous: tuple[int, int] = (0, 0)) -> None:
        """`previous` is the number of the file before, and how many bytes of it were durable; zeros: not known."""
        self.number = number
        self.path = f"{folder}/{wal_name(number)}"
        self.size = WAL_HEAD_BYTES
        self.undo_failed = False
        """A refused write could not be cut off again; nothing may be written after it."""
        self.durable_size = 0
        self._file: File = disk.open(self.path, create=True)
        try:
            head = _HEAD.pack(WAL_MAGIC, number, *previous)
            self._file.truncate(0)
            self._file.write_at(0, [head + _CHECKSUM.pack(crc32c(head))])
            self._file.sync()
            disk.sync_folder(folder)
        except DiskError:
            self._file.close()
            raise
        self.durable_size = self.size

    def write(self, entries: Sequence[Buffer]) -> None:
        """Write one commit: a mark, then these entries. Raises `DiskError`; `undo_failed` tells if it left traces."""
        buffers: list[Buffer] = [_entry_head(WalEntryKind.MARK, self.durable_size, self.number, 0), *entries]
        try:
            self._file.write_at(self.size, buffers)
        except DiskError:
            # What was refused must not come back in a crash, so cutting it off is synced too (B5).
            self.undo_failed = True
            self._file.truncate(self.size)
            self._file.sync()
            self.undo_failed = False
            raise
        self.size += sum(map(len, buffers))

    def sync(self) -> None:
        size = self.size
        self._file.sync()
        self.durable_size = size

    def block_entry(self, block: Block) -> tuple[Buffer, ...]:
        return (_entry_head(WalEntryKind.BLOCK, block.leader.channel_id, self.number, block.size), *block.buffers)

    def other_entry(self, kind: WalEntryKind, subject: int, fields: dict[str, Any]) -> bytes:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        payload = text + b" " * (-len(text) & 7)
        return _entry_head(kind, subject, self.number, len(payload), payload) + payload

    def close(self) -> None:
        self._file.close()


def _entry_head(kind: WalEntryKind, subject: int, number: int, length: int, covered: bytes = b"") -> bytes:
    head = _ENTRY.pack(ENTRY_MAGIC, kind, subject, number, length)
    return head + _CHECKSUM.pack(crc32c(covered, crc32c(head)))


class WalHead(NamedTuple):
    number: int
    previous_number: int
    previous_size: int
    """How much of the file before was durable; 0 if this one was written before that was noted."""


def read_wal_head(disk: Disk, folder: str, number: int) -> WalHead | None:
    """The head of a file, or None if it is not whole."""
    file = disk.open(f"{folder}/{wal_name(number)}", writable=False)
    try:
        return _parse_head(file.read_at(0, WAL_HEAD_BYTES), number)
    finally:
        file.close()


def _parse_head(data: bytes, number: int) -> WalHead | None:
    if len(data) < WAL_HEAD_BYTES or crc32c(data[: _HEAD.size]) != _CHECKSUM.unpack_from(data, _HEAD.size)[0]:
        return None
    magic, *numbers = _HEAD.unpack_from(data)
    head = WalHead(*numbers)
    return head if magic == WAL_MAGIC and head.number == number else None


def scan_wal(disk: Disk, folder: str, number: int, limits: BlockLimits, *, durable_size: int = 0) -> WalScan:
    """Read one file from front to back; never raises for what it finds.

    `durable_size` is for a caller that already knows that so many bytes were durable.
    """
    file = disk.open(f"{folder}/{wal_name(number)}", writable=False)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    found = list(_walk(data, number, limits))
    marks = [item.subject for _, _, item in found if item and item.kind is WalEntryKind.MARK]
    sync_point = max([durable_size, *marks])
    scan = WalScan(file_bytes=len(data), sync_point=sync_point)
    if sync_point and _parse_head(data[:WAL_HEAD_BYTES], number) is None:
        scan.damaged_bytes += min(len(data), WAL_HEAD_BYTES)  # it was synced before anything else
    scan.damaged_bytes += max(0, sync_point - len(data))
    for start, end, entry in found:
        if entry is not None:
            scan.entries.append(entry)
        elif start >= sync_point:
            scan.bytes_cut = len(data) - start
            break
        else:
            scan.damaged_bytes += end - start
    return scan


def _walk(data: bytes, number: int, limits: BlockLimits) -> Iterator[tuple[int, int, WalEntry | None]]:
    """(start, end, entry) of each good entry; None stands for bytes that are none."""
    view = memoryview(data)
    position = WAL_HEAD_BYTES
    while position < len(data):
        entry, end = _parse_entry(view, position, number, limits)
        if end is None:
            end = _next_magic(data, position + 8)
        yield position, end, entry
        position = end


def _next_magic(data: bytes, position: int) -> int:
    """The next eight-byte boundary at or after `position` where an entry may start, or the end."""
    found = data.find(ENTRY_MAGIC, position)
    while found >= 0 and found % 8:
        found = data.find(ENTRY_MAGIC, found + 1)
    return found if found >= 0 else len(data)


def _parse_entry(
    view: memoryview, position: int, number: int, limits: BlockLimits
) -> tuple[WalEntry | None, int | None]:
    """The entry at `position`, or None, and where it ends, or None when nobody knows.

    A damaged block under a good head is stepped over whole: what its body holds is not ours to read.
    """
    head = view[position : position + ENTRY_BYTES]
    if len(head) < ENTRY_BYTES or bytes(head[:4]) != ENTRY_MAGIC:
        return None, None
    _, kind, subject, file_number, length = _ENTRY.unpack_from(head)
    payload = view[position + ENTRY_BYTES : position + ENTRY_BYTES + length]
    if file_number != number or len(payload) != length or length % 8:
        return None, None
    covered = payload if kind > WalEntryKind.BLOCK else b""
    if crc32c(covered, crc32c(head[:28])) != _CHECKSUM.unpack_from(head, 28)[0]:
        return None, None
    end = position + ENTRY_BYTES + length
    if kind == WalEntryKind.BLOCK:
        try:
            block = Block.parse(payload, 0, limits)
        except BadBlock:
            return None, end
        if block.size != length or block.leader.channel_id != subject:
            return None, end
        return WalEntry(WalEntryKind.BLOCK, subject, block=block), end
    if kind == WalEntryKind.MARK:
        return WalEntry(WalEntryKind.MARK, subject), end
    if not WalEntryKind.CREATE <= kind <= WalEntryKind.DIRECT:
        return None, end
    return WalEntry(WalEntryKind(kind), subject, fields=json.loads(bytes(payload))), end
