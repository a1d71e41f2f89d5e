"""When a process returns free memory to the system, and that it does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.patience import patient
from tidelog.cli.idle_memory import FALL_MIN, SETTLE_LOOKS_MAX, ClosedFiles, open_files, returned_when_idle, trimmer

FILES = 4 * FALL_MIN


def looks(*files: int) -> list[bool]:
    closed = ClosedFiles()
    return [closed.is_due(count) for count in files]


def test_memory_is_returned_once_after_many_files_were_closed() -> None:
    assert looks(20, 5_020, 5_020, 20, 20, 20) == [False, False, False, False, True, False]


def test_growth_and_small_falls_return_nothing() -> None:
    small = FALL_MIN - 1
    assert not any(looks(20, 500, 5_000, 5_000 - small, 5_000, 5_000 - small, 5_000 - small))


def test_small_falls_add_up_from_the_peak() -> None:
    step = FALL_MIN // 2
    assert looks(1_000, 1_000 - step, 1_000 - step, 1_000 - 2 * step, 1_000 - 2 * step) == [*[False] * 4, True]


def test_a_fall_without_end_is_not_waited_for() -> None:
    falling = [10_000 - FALL_MIN * number for number in range(SETTLE_LOOKS_MAX + 1)]
    assert looks(*falling) == [*[False] * SETTLE_LOOKS_MAX, True]


def test_the_peak_begins_anew_after_memory_was_returned() -> None:
    assert looks(5_000, 1_000, 1_000, 1_000 + FALL_MIN - 1, 1_000, 1_000) == [False, False, True, False, False, False]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files are counted by Linux")
async def test_closing_real_files_has_memory_returned() -> None:
    loop = asyncio.get_running_loop()
    returned, saw_peak = asyncio.Event(), asyncio.Event()
    before = open_files()
    assert before is not None

    def count() -> int | None:
        files = open_files()
        if files is not None and files >= before + FILES:
            loop.call_soon_threadsafe(saw_peak.set)
        return files

    def trim() -> None:
        loop.call_soon_threadsafe(returned.set)

    async with returned_when_idle(look_s=0.01, count=count, trim=trim), asyncio.timeout(patient(10)):
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
        try:
            await saw_peak.wait()
            assert not returned.is_set()
        finally:
            for file in files:
                os.close(file)
        await returned.wait()


def test_a_system_that_counts_no_files_is_left_alone() -> None:
    async def scenario() -> int:
        trims = []
        looked = asyncio.Event()
        loop = asyncio.get_running_loop()
        counts = iter([5_000, None, 0])

        def count() -> int | None:
            found = next(counts, None)
            if found == 0:
                loop.call_soon_threadsafe(looked.set)
                return None
            return found

        async with returned_when_idle(look_s=0.001, count=count, trim=lambda: trims.append(1)):
            await looked.wait()
        return len(trims)

    assert asyncio.run(scenario()) == 0


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "confstr"), reason="a C library that says what it is")
def test_glibc_is_told_to_return_memory() -> None:
    is_glibc = "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    trim = trimmer()
    assert (trim is not None) == is_glibc
    if trim is not None:
        trim()
