"""The end of a loop that a blocking client, or a manager of logs, runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

_CLOSE_S: Final = 5.0
"""Longer is not waited for what was cancelled."""


def end_loop_thread(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Cancel what runs on the loop, then end its thread and close it."""
    asyncio.run_coroutine_threadsafe(_end(loop), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        done, _ = await asyncio.wait(others, timeout=_CLOSE_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody waits for it any more
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
