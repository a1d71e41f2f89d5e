"""Commands that talk to a cluster until they are interrupted: SIGINT and SIGTERM cancel the work, which then cleans up.

The handlers are set however the process was started: what a script puts in the background, its shell starts deaf to
SIGINT, and Python leaves that so. A process with number 1, as in a container, would not end on SIGTERM either.

IN1  The first signal cancels the work, so that cursors are saved and links closed. If the loop waits, it is woken.
IN2  A second signal ends the command at once; so does `CLEAN_UP_S` of cleaning up, whatever it waits for. A thread that
     does not end then, which the interpreter would wait for, ends with the process `LAST_S` later.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

import click

CLEAN_UP_S: Final = 10.0
LAST_S: Final = 1.0
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


def run_until_told(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. `KeyboardInterrupt` after SIGINT; after SIGTERM the command exits with its code."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # only the main thread gets signals
    handlers = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGALRM)}
    told = _Told()
    try:
        return asyncio.run(_cancelled_when_told(work, told))
    except (asyncio.CancelledError, KeyboardInterrupt):
        if told.by == signal.SIGTERM:
            raise click.exceptions.Exit(EXIT_TERMINATED) from None
        raise KeyboardInterrupt from None
    finally:
        if not told.is_late:
            if told.by is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in handlers.items():
                if handler is not None:  # set by other code than Python's
                    signal.signal(number, handler)


class _Told:
    """The handlers. They run between any two steps of the main thread, also while it is blocked in a write."""

    def __init__(self) -> None:
        self.by: int | None = None
        """The first signal."""
        self.is_late = False
        """It was told again, or the time for cleaning up is over."""

    def on_signal(self, number: int, _: FrameType | None) -> None:
        if self.by is not None:
            self._late()
        self.by = number
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, CLEAN_UP_S, LAST_S)

    def _on_alarm(self, number: int, _: FrameType | None) -> None:
        if self.is_late:
            os._exit(128 + (self.by or signal.SIGINT))
        self._late()

    def _late(self) -> None:
        self.is_late = True
        signal.setitimer(signal.ITIMER_REAL, LAST_S, LAST_S)
        raise KeyboardInterrupt


async def _cancelled_when_told(work: Coroutine[Any, Any, T], told: _Told) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)  # this wakes the loop, also if another thread gets the signal
        signal.signal(number, told.on_signal)
    return await work
