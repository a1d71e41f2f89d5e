"""Small files that are whole or absent, for keys and certificates.

PFI1  A reader finds the old bytes or the new ones, never a part; a returned write has been synced.
PFI2  A private key is never readable by others, not even while it is being written.
PFI3  `write_new` never replaces a file, even in a race with another process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidelog.errors import AuthorityError, DiskError, DiskFull, FileMissing, FolderLocked

PUBLIC_MODE = 0o644
PRIVATE_MODE = 0o600
FOLDER_MODE = 0o755
LOCK_NAME = ".lock"

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Memory cards are FAT more often than not, and FAT has no hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@contextlib.contextmanager
def translated(operation: str, path: Path) -> Iterator[None]:
    """Translate `OSError` into a Tidelog error, once, at the edge."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_SPACE:
            raise DiskFull(operation=operation, path=str(path), reason=reason) from error
        if error.errno == errno.ENOENT:
            raise FileMissing(operation=operation, path=str(path), reason=reason) from error
        raise DiskError(operation=operation, path=str(path), reason=reason) from error


def read_file(path: Path, *, bytes_max: int) -> bytes:
    with translated("read", path), open(path, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise AuthorityError(path=str(path), problem=f"it is larger than {bytes_max} bytes, which cannot be right")
    return data


def write_new(path: Path, data: bytes, *, mode: int = PUBLIC_MODE) -> None:
    """Make a file that must not exist (PFI3)."""
    with translated("write", path):
        temporary = _written(path, data, mode)
        try:
            _put_new(temporary, path)
        except FileExistsError:
            problem = "it exists and is never overwritten; move it away or choose another folder"
            raise AuthorityError(path=str(path), problem=problem) from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(path.parent)


def replace_file(path: Path, data: bytes, *, mode: int = PUBLIC_MODE) -> None:
    """Make a file, or replace it as a whole (PFI1)."""
    with translated("write", path):
        temporary = _written(path, data, mode)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time changes what is in `folder`."""
    path = folder / LOCK_NAME
    with translated("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = "another command is working in this folder; wait for it to end"
            raise FolderLocked(operation="lock", path=str(folder), reason=reason) from None
        yield
    finally:
        os.close(descriptor)


def _written(path: Path, data: bytes, mode: int) -> str:
    """A synced temporary file beside `path`; its name is secret-free and its mode is private until it is whole
    (PFI2).
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            with contextlib.suppress(PermissionError):  # a card without modes keeps its own
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _put_new(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links, reserving the name first keeps PFI3; the empty file is then replaced as a whole.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_MODE))
        os.replace(temporary, path)
