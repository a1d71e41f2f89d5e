"""Gives memory back to the system after many connections were closed.

Every TLS connection holds small pieces of OpenSSL, spread over the heap. After they were freed, glibc keeps the pages:
it returns by itself only what lies at the heap's very end, and one living piece there keeps hundreds of megabytes. So
when the number of open files has fallen much and falls no more, the allocator is told to return every free page.

What a caller must keep: one `returned_when_idle` around the work of a process.

IM1  Nothing is done while the number grows, stays, or falls by less than `FALL_MIN` files from its peak:
     returning pages costs a walk through the heap, and a fault for each page that is needed again.
IM2  While it keeps falling, it is waited for, `SETTLE_LOOKS_MAX` looks at most.
IM3  It runs in a thread. Without glibc or /proc it does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import AsyncIterator, Callable
from typing import Final

FALL_MIN: Final = 128
LOOK_S: Final = 5.0
SETTLE_LOOKS_MAX: Final = 3
_FILES: Final = "/proc/self/fd"


class ClosedFiles:
    """Decides, from the number of open files at each look, when memory is to be returned."""

    def __init__(self) -> None:
        self._peak = 0
        """Since memory was last returned."""
        self._last = 0
        self._looks = 0
        """Since the number had fallen enough."""

    def is_due(self, files: int) -> bool:
        self._peak = max(self._peak, files)
        is_falling = files < self._last
        self._last = files
        if self._peak - files < FALL_MIN:
            self._looks = 0
            return False
        self._looks += 1
        if is_falling and self._looks < SETTLE_LOOKS_MAX:
            return False
        self._peak, self._looks = files, 0
        return True


@contextlib.asynccontextmanager
async def returned_when_idle(
    *,
    look_s: float = LOOK_S,
    count: Callable[[], int | None] | None = None,
    trim: Callable[[], object] | None = None,
) -> AsyncIterator[None]:
    """While the block runs, look every `look_s` seconds."""
    trim = trim or trimmer()
    if trim is None:
        yield
        return
    # Kept here, and cancelled with the block.
    looking = asyncio.get_running_loop().create_task(_look(look_s, count or open_files, trim))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def _look(look_s: float, count: Callable[[], int | None], trim: Callable[[], object]) -> None:
    closed = ClosedFiles()
    while True:
        await asyncio.sleep(look_s)
        files = await asyncio.to_thread(count)
        if files is not None and closed.is_due(files):
            await asyncio.to_thread(trim)


def open_files() -> int | None:
    """The resident memory of this process; None where the system does not report it."""
    try:
        # Linux says it as the folder's size since 6.2; listing ten thousand takes 20 ms.
        return os.stat(_FILES).st_size or len(os.listdir(_FILES))
    except OSError:
        return None


def trimmer() -> Callable[[], object] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return lambda: trim(0)
