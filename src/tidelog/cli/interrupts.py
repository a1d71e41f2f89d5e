"""Commands that talk to a cluster until they are interrupted: SIGINT and SIGTERM cancel the work, which then cleans up.

The handlers are set however the process was started: what a script puts in the background, its shell starts deaf to
SIGINT, and Python leaves that so. A process with number 1, as in a container, would not end on SIGTERM either.

IN1  The first signal cancels the work, so that cursors are saved and links closed. If the loop waits, it is woken.
IN2  A second signal ends the command at once; so does `CLEAN_UP_S` of cleaning up, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

import click

CLEAN_UP_S: Final = 10.0
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


def run_until_told(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. `KeyboardInterrupt` after SIGINT; after SIGTERM the command exits with its code."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)  # only the main thread gets signals
    handlers = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGALRM)}
    told: list[int] = []
    try:
        return asyncio.run(_cancelled_when_told(work, told))
    except (asyncio.CancelledError, KeyboardInterrupt):
        if told and told[0] == signal.SIGTERM:
            raise click.exceptions.Exit(EXIT_TERMINATED) from None
        raise KeyboardInterrupt from None
    finally:
        if told:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            if handler is not None:  # set by other code than Python's
                signal.signal(number, handler)


async def _cancelled_when_told(work: Coroutine[Any, Any, T], told: list[int]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_signal(number: int, _: FrameType | None) -> None:
        """Runs between any two steps of the main thread, also while it is blocked in a write."""
        told.append(number)
        if len(told) > 1:
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, _give_up)
        # Again and again: what is cleaned up after the first time may take its time too.
        signal.setitimer(signal.ITIMER_REAL, CLEAN_UP_S, CLEAN_UP_S)

    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)  # this wakes the loop, also if another thread gets the signal
        signal.signal(number, on_signal)
    return await work


def _give_up(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
