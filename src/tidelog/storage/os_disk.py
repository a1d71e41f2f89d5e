"""The real file system behind a `Disk`.

One descriptor per open file, positioned reads and writes, `fdatasync` for a file and `fsync` for a
folder. Nothing is cached here, so any number of threads may use one file at the same time; only
`close` must not race with them.

OD1  Every path stays under the root: an absolute path or one with `..` is a `ValueError`, because it is a bug of the
     caller.
OD2  No `OSError` leaves. It is translated once, here: no space (ENOSPC, EDQUOT, EFBIG) is `DiskFull`, ENOENT is
     `FileMissing`, anything out of fsync or fdatasync is `SyncFailed`, the rest `DiskError`.
OD3  `write_at` returns only after every byte was taken by the kernel. When it raises, a part may have been written
     (D3); the caller truncates.

EINTR needs no code: Python repeats the system call by itself (PEP 475).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Sequence

from tidelog.errors import DiskError, DiskFull, FileMissing, FolderLocked, SyncFailed
from tidelog.storage.disk import Buffer, File, FolderLock

LOCK_NAME = ".lock"
"""The lock file of a folder. It belongs to the disk, not to its user: `list_folder` leaves it out."""

_JOIN_BELOW_BYTES = 1024
"""Below this average size copying the buffers together costs less than handing each to the kernel. Measured on
ext4: 200 buffers of 300 bytes take 8 us joined and 12 us as a vector, 200 of 1,500 bytes 24 us and 18 us."""

_IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))  # 16 is the least that POSIX allows; -1 means "no limit known"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LOCK_ATTEMPTS = 8


def checked_path(path: str) -> str:
    """The path without empty and `.` parts; `""` is the root. Refuses to leave the root (OD1)."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise ValueError(f"{path!r} leaves the disk's root; use a relative path without '..'")
    return "/".join(part for part in parts if part not in ("", "."))


class OsFile:
    """One open descriptor. Made by `OsDisk.open`."""

    __slots__ = ("_fd", "_path", "_root")

    def __init__(self, *, fd: int, path: str, root: str) -> None:
        self._fd = fd
        self._path = path
        self._root = root

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, length: int) -> bytes:
        try:
            data = os.pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            return self._read_rest(position, length, data)
        except OSError as error:
            raise _translated(error, "read_at", self._path, self._root) from error

    def read_into(self, position: int, room: memoryview) -> int:
        """Fill `room`, and say how far: less only at the end of the file. Memory used again has no page faults."""
        try:
            got = os.preadv(self._fd, [room], position)
            while 0 < got < len(room) and (more := os.preadv(self._fd, [room[got:]], position + got)):
                got += more
            return got
        except OSError as error:
            raise _translated(error, "read_into", self._path, self._root) from error

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            count = len(buffers)
            if count == 1:
                data = buffers[0]
            elif count == 0:
                return
            elif sum(map(len, buffers)) < count * _JOIN_BELOW_BYTES:
                data = b"".join(buffers)
            else:
                _write_vector(self._fd, position, buffers)
                return
            written = os.pwrite(self._fd, data, position)
            if written != (len(data) if type(data) is bytes else _byte_count(data)):
                _write_rest(self._fd, position, [data], written)
        except OSError as error:
            raise _translated(error, "write_at", self._path, self._root) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise _sync_failed(error, "sync", self._path, self._root) from error
        except ValueError as error:  # unlike its siblings, fdatasync does not even ask the kernel about -1
            raise DiskError(operation="sync", path=self._path, reason="the file is closed; open it again") from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _translated(error, "truncate", self._path, self._root) from error

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _translated(error, "size", self._path, self._root) from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd == -1:
            return
        try:
            os.close(fd)
        except OSError as error:
            raise _translated(error, "close", self._path, self._root) from error

    def _read_rest(self, position: int, length: int, data: bytes) -> bytes:
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)


class OsFolderLock:
    """A held lock: an open descriptor with `flock` on it. The kernel drops it when the process dies."""

    __slots__ = ("_fd", "_path", "_root")

    def __init__(self, *, fd: int, path: str, root: str) -> None:
        self._fd = fd
        self._path = path
        self._root = root

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd == -1:
            return
        # The file stays: removing it would let two processes lock two different files of that name.
        # Only the pid is cleared, while the lock is still held; if that fails it is merely out of date.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        try:
            os.close(fd)
        except OSError as error:
            raise _translated(error, "release", self._path, self._root) from error


class OsDisk:
    """A folder of the real file system. The root itself is made by the first `make_folder`."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(root)  # a later chdir must not move the disk

    @property
    def root(self) -> str:
        return self._root

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        path = checked_path(path)
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        try:
            fd = os.open(self._full(path), flags, 0o644)
            # The kernel refuses to open a folder for writing, but not for reading.
            if not writable and stat.S_ISDIR(os.fstat(fd).st_mode):
                os.close(fd)
                raise DiskError(operation="open", path=path, reason="it is a folder")
        except OSError as error:
            raise _translated(error, "open", path, self._root) from error
        return OsFile(fd=fd, path=path, root=self._root)

    def exists(self, path: str) -> bool:
        path = checked_path(path)
        try:
            os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # unlike os.path.exists: an I/O error must not look like an absent file
            raise _translated(error, "exists", path, self._root) from error
        return True

    def list_folder(self, path: str) -> list[str]:
        path = checked_path(path)
        try:
            return sorted(name for name in os.listdir(self._full(path)) if name != LOCK_NAME)
        except OSError as error:
            raise _translated(error, "list_folder", path, self._root) from error

    def make_folder(self, path: str) -> None:
        path = checked_path(path)
        try:
            parent = self._root
            above: list[str] = []
            while not os.path.isdir(parent):
                above.append(os.path.basename(parent))
                parent = os.path.dirname(parent)
            for name in [*reversed(above), *filter(None, path.split("/"))]:
                folder = os.path.join(parent, name)
                try:
                    os.mkdir(folder, 0o755)
                except FileExistsError:
                    if not os.path.isdir(folder):
                        raise
                # Also when the folder was there: its creator may have died before the sync.
                self._sync_full(parent, "make_folder", path)
                parent = folder
        except OSError as error:
            raise _translated(error, "make_folder", path, self._root) from error

    def rename(self, source: str, target: str) -> None:
        source, target = checked_path(source), checked_path(target)
        try:
            os.replace(self._full(source), self._full(target))
        except OSError as error:
            raise _translated(error, "rename", source, self._root, f"to {target}: ") from error

    def remove(self, path: str) -> None:
        path = checked_path(path)
        try:
            os.unlink(self._full(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _translated(error, "remove", path, self._root) from error

    def remove_folder(self, path: str) -> None:
        path = checked_path(path)
        if not path:
            raise ValueError("the disk's root is not removed; name a folder in it")
        full = self._full(path)
        try:
            shutil.rmtree(full)
        except FileNotFoundError as error:
            if os.path.lexists(full):
                reason = "someone else changed it meanwhile; try again"
                raise DiskError(operation="remove_folder", path=path, reason=reason) from error
        except OSError as error:
            raise _translated(error, "remove_folder", path, self._root) from error

    def sync_folder(self, path: str) -> None:
        path = checked_path(path)
        self._sync_full(self._full(path), "sync_folder", path)

    def free_bytes(self) -> int:
        """The free space that an ordinary user may write; blocks reserved for root are not counted."""
        try:
            status = os.statvfs(self._root)
        except OSError as error:
            raise _translated(error, "free_bytes", "", self._root) from error
        return status.f_bavail * status.f_frsize

    def lock_folder(self, path: str) -> FolderLock:
        path = checked_path(path)
        full = os.path.join(self._full(path), LOCK_NAME)
        try:
            for _ in range(_LOCK_ATTEMPTS):
                fd = os.open(full, os.O_RDWR | os.O_CREAT, 0o644)
                if self._flock(fd, full, path):
                    return OsFolderLock(fd=fd, path=path, root=self._root)
        except OSError as error:
            raise _translated(error, "lock_folder", path, self._root) from error
        raise FolderLocked(operation="lock_folder", path=path, reason="its lock file keeps changing; try again")

    def _flock(self, fd: int, full: str, path: str) -> bool:
        """True when `fd` holds the lock; else `fd` is closed, and False asks for another attempt."""
        held = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and flock the folder may have been removed and made anew.
            held = os.path.exists(full) and os.path.samestat(os.fstat(fd), os.stat(full))
            if held:
                # The pid only helps a process that finds the lock taken; a full disk must not prevent locking.
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            return held
        except BlockingIOError as error:
            reason = f"{_holder(fd)} has it open; stop it or choose another folder"
            raise FolderLocked(operation="lock_folder", path=path, reason=reason) from error
        finally:
            if not held:
                os.close(fd)

    def _sync_full(self, full: str, operation: str, path: str) -> None:
        try:
            fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            except OSError as error:
                raise _sync_failed(error, operation, path, self._root) from error
            finally:
                os.close(fd)
        except OSError as error:
            raise _translated(error, operation, path, self._root) from error

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _byte_count(buffer: Buffer) -> int:
    # len() of a memoryview counts its items, which need not be bytes.
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _write_vector(fd: int, position: int, buffers: Sequence[Buffer]) -> None:
    written = 0
    if len(buffers) <= _IOV_MAX:
        written = os.pwritev(fd, buffers, position)
        if written == sum([len(b) if type(b) is bytes else _byte_count(b) for b in buffers]):
            return
    _write_rest(fd, position, buffers, written)


def _write_rest(fd: int, position: int, buffers: Sequence[Buffer], written: int) -> None:
    """Write what is left of `buffers` after `written` bytes of them, however small the kernel's steps."""
    views = [memoryview(buffer).cast("B") for buffer in buffers if _byte_count(buffer)]
    index = 0
    while True:
        position += written
        while index < len(views) and written >= len(views[index]):
            written -= len(views[index])
            index += 1
        if index == len(views):
            return
        views[index] = views[index][written:]
        written = os.pwritev(fd, views[index : index + _IOV_MAX], position)
        if written == 0:
            raise OSError(errno.EIO, "the kernel takes no more bytes and gives no reason")


def _holder(fd: int) -> str:
    try:
        pid = int(os.pread(fd, 32, 0))
    except (OSError, ValueError):  # not written yet, or the holder's disk was full
        return "another process"
    return f"this process (pid {pid})" if pid == os.getpid() else f"process {pid}"


def _translated(error: OSError, operation: str, path: str, root: str, detail: str = "") -> DiskError:
    kind = DiskError
    if error.errno in _NO_SPACE:
        kind = DiskFull
    elif error.errno == errno.ENOENT:
        kind = FileMissing
    return kind(operation=operation, path=path, reason=detail + _reason(error, root))


def _sync_failed(error: OSError, operation: str, path: str, root: str) -> SyncFailed:
    return SyncFailed(operation=operation, path=path, reason=_reason(error, root))


def _reason(error: OSError, root: str) -> str:
    return f"{error.strerror or error} (under {root})"
