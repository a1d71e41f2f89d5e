"""Deadlines of tests grow with the machine's slowness: beside ten busy processes no test fails for lack of time alone.

    async with asyncio.timeout(patient(30)):
        ...
    await wait_until(lambda: boat.all_acked(), "all frames acked")

How slow the machine is now is measured, not configured: a fixed chore for the processor and a sync of a small file,
each compared with what an idle machine takes, and how many processes wait for each core. It is measured again every few
seconds, when somebody asks. A deadline is never shorter than it says.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Final

CHORE_STEPS: Final = 400_000
CHORE_S: Final = 0.010
"""What that takes on an idle core of the machine that the deadlines were written on."""
SYNC_S: Final = 0.020
"""A sync on a disk that nobody else uses; a slow one is still no reason to wait longer."""
SLOWNESS_MAX: Final = 15.0
"""A machine that is slower than this is not waited for."""
AGAIN_S: Final = 10.0

WAIT_S: Final = 60.0
POLL_S: Final = 0.01

_slowness = 1.0
_measured_at: float | None = None


def patient(seconds: float) -> float:
    """This deadline, on the machine as it is now."""
    return seconds * slowness()


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], what: str = "what it waits for", deadline_s: float = WAIT_S
) -> None:
    """Return as soon as the condition holds; the test fails if it does not within the deadline."""
    end_s = time.monotonic() + patient(deadline_s)
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < end_s, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(POLL_S)


def block_until(condition: Callable[[], bool], what: str = "what it waits for", deadline_s: float = WAIT_S) -> None:
    """As `wait_until`, for code without an event loop."""
    end_s = time.monotonic() + patient(deadline_s)
    while not condition():
        assert time.monotonic() < end_s, f"not within {deadline_s:g} s: {what}"
        time.sleep(POLL_S)


def slowness() -> float:
    """How many times slower than an idle machine this one is, at least 1."""
    global _measured_at, _slowness
    now = time.monotonic()
    if _measured_at is None or now - _measured_at > AGAIN_S:
        _slowness = min(max(1.0, measured_slowness()), SLOWNESS_MAX)
        _measured_at = time.monotonic()
    return _slowness


def measured_slowness() -> float:
    waiting_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(_chore_s() / CHORE_S, _sync_s() / SYNC_S, waiting_per_core)


def _chore_s() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(CHORE_STEPS):
        total += number % 7
    assert total
    return time.perf_counter() - began


def _sync_s() -> float:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4_096))
        file.flush()
        began = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - began
