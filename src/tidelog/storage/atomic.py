"""Small files that are always whole: a checksummed JSON object, replaced atomically.

A reader finds the old value or the new one, never a mixture; a damaged file reads as absent, so
every such file must be a mark, a cache or a hint that the caller can do without, or rebuild.
"""

from __future__ import annotations

import json
from typing import Any, cast

from fastcrc.crc32 import iscsi as crc32c

from tidelog.errors import DiskError, FileMissing
from tidelog.storage.disk import Disk

_SIZE_MAX = 64 * 1024 * 1024
COPY_SUFFIX = ".copy"


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def write_mark(disk: Disk, path: str, value: dict[str, Any]) -> None:
    """Durably replace the file at `path` by `value`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    temporary = f"{path}.tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [f"{crc32c(text):08x}\n".encode() + text + b"\n"])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_folder(folder_of(path))


def read_mark(disk: Disk, path: str) -> dict[str, Any] | None:
    """The value last written, or None when there is none or it is damaged."""
    try:
        file = disk.open(path, writable=False)
    except FileMissing:
        return None
    try:
        data = file.read_at(0, min(file.size(), _SIZE_MAX))
    finally:
        file.close()
    checksum, _, text = data.partition(b"\n")
    text = text.removesuffix(b"\n")
    if checksum != f"{crc32c(text):08x}".encode():
        return None
    return cast("dict[str, Any]", json.loads(text))


def write_mark_twice(disk: Disk, path: str, value: dict[str, Any]) -> None:
    """Like `write_mark`, with a copy, for what cannot be rebuilt from anything else.

    The copy is written first: until the file itself is replaced, nothing has happened yet.
    """
    write_mark(disk, path + COPY_SUFFIX, value)
    write_mark(disk, path, value)


def read_either_mark(disk: Disk, path: str) -> dict[str, Any] | None:
    """The value, from the copy if the file is missing, damaged or cannot be read.

    None means that neither is there. If one of them could not be read, nobody knows that, so its
    error is raised.
    """
    unread: DiskError | None = None
    for candidate in (path, path + COPY_SUFFIX):
        try:
            value = read_mark(disk, candidate)
        except DiskError as error:
            unread = error
            continue
        if value is not None:
            return value
    if unread is not None:
        raise unread
    return None


def marks_agree(disk: Disk, path: str) -> bool:
    """Whether the file and its copy are both whole and the same."""
    try:
        value = read_mark(disk, path)
        return value is not None and value == read_mark(disk, path + COPY_SUFFIX)
    except DiskError:
        return False


def remove_durably(disk: Disk, path: str) -> None:
    if disk.exists(path):
        disk.remove(path)
        disk.sync_folder(folder_of(path))
