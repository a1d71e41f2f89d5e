"""What a process of ours does when its disk is full or fails, so that nobody has to sit beside it.

A full disk needs no new process: this one lets go of everything, says so over HTTP (503, with the reason), looks every
second whether there is room, and then begins anew in its own place, under the same process id. Any other trouble of the
disk ends the process with exit code 74: a supervisor starts it again, and what the disk holds is verified then.

DT1  One line says what happened and what to do, when it begins; one says that room is back. Nothing repeats itself.
DT2  A process that was told to stop does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tidelog.errors import DiskError, DiskFailed, DiskFull, FileMissing, FolderLocked, LogPoisoned, MetadataPoisoned
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.http.server import HttpOptions

EXIT_CODES: Final[Sequence[tuple[int, str, str]]] = (
    (0, "stopped as it was asked to, everything written", "nothing"),
    (2, "the settings or the data folder cannot be used; said before anything is changed", "repair what it names"),
    (70, "a bug in Tidelog", "restart it, and report the line it said"),
    (74, "the disk failed (I/O error, read-only), or was full when it was asked to stop", "restart it: it verifies"),
    (130, "interrupted before it had started", "nothing"),
)
"""Code, what it means, what a supervisor does."""

ROOM_BYTES: Final = 1 * MIB
"""What must fit before it is tried again: more than a node's own marks and the next of its metadata."""
LOOK_S: Final = 1.0
PAUSE_S: Final = 3.0
"""For a process that did not live for so long: a full start every second would keep the machine busy."""
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PROBE: Final = ".room"
_STARTED: Final = time.monotonic()


def is_full(error: BaseException) -> bool:
    """Whether it failed for want of space alone."""
    if isinstance(error, MetadataPoisoned):
        return error.is_full
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    return isinstance(error, DiskFull)


def is_failed(error: BaseException) -> bool:
    """Whether the disk is to blame, and not who called."""
    if isinstance(error, OSError):
        return error.errno in (errno.EIO, errno.EROFS) or is_full(error)
    if isinstance(error, FolderLocked | FileMissing):
        return False
    return isinstance(error, DiskError | DiskFailed | LogPoisoned | MetadataPoisoned)


def as_failure(error: Exception) -> DiskFailed:
    return error if isinstance(error, DiskFailed) else DiskFailed(cause=str(error))


def begin_anew_when_there_is_room(
    error: Exception, *, folder: Path, http: HttpOptions | None, say: Callable[[str], None]
) -> None:
    """Wait for room, then take this process's own place. Returns only when a signal asks to stop instead (DT2)."""
    say(
        f"the disk is full reason={str(error)!r} folder={folder} "
        f"do='free {ROOM_BYTES // MIB} MiB or more; it goes on by itself'"
    )
    began = time.monotonic()
    if not asyncio.run(_wait(str(error), folder, http, say)):
        return
    say(f"there is room again after_s={time.monotonic() - began:.0f}")
    _begin_anew()


async def _wait(reason: str, folder: Path, http: HttpOptions | None, say: Callable[[str], None]) -> bool:
    """True once there is room; False when it is to stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    server = None
    if http is not None:
        from tidelog.http.server import HttpServer
        from tidelog.http.waiting import TITLE, waiting_routes

        server = HttpServer(http, routes=waiting_routes(f"the disk is full: {reason}"), title=TITLE, log=say)
        await server.start()
    try:
        pause_s = LOOK_S if time.monotonic() - _STARTED > PAUSE_S else PAUSE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
            if stopping.is_set():
                return False
            if await asyncio.to_thread(has_room, folder):
                return True
            pause_s = LOOK_S
    finally:
        if server is not None:
            await server.stop()


def has_room(folder: Path) -> bool:
    """By trying it: what a file system says of its free space is not what one may use (quotas, reserved blocks)."""
    while not folder.is_dir() and folder.parent != folder:
        folder = folder.parent
    probe = folder / _PROBE
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, ROOM_BYTES)
            os.pwrite(descriptor, bytes(ROOM_BYTES), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError as error:
        return not is_full(error)  # whatever else is wrong with it: the process finds out, and says it
    return True


def _begin_anew() -> NoReturn:
    """A half-opened node has locks and threads; the kernel lets go of all of them, and of nothing too little."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
