"""Small files that are always whole: a checksummed JSON object, replaced atomically.

A reader finds the old value or the new one, never a mixture; a damaged file reads as absent, so
every such file must be a mark, a cache or a hint that the caller can do without, or rebuild.
"""

from __future__ import annotations

import json
from typing import Any, cast

from fastcrc.crc32 import iscsi as crc32c

from tidelog.errors import FileMissing
from tidelog.storage.disk import Disk

_SIZE_MAX = 64 * 1024 * 1024


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


def remove_durably(disk: Disk, path: str) -> None:
    if disk.exists(path):
        disk.remove(path)
        disk.sync_folder(folder_of(path))
