"""Commands that are interrupted end, whatever their cleaning up waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.patience import patient
from tidelog.cli.interrupts import EXIT_TERMINATED, run_until_told

DEADLINE_S = 30.0
SCRIPT = """
import asyncio, sys, time
import click
from tidelog.cli import interrupts

async def saves():
    try:
        print("begun", flush=True)
        await asyncio.sleep(3_600)
    finally:
        await asyncio.sleep(0)
        print("saved", flush=True)

async def never_cleaned_up():
    try:
        await saves()
    finally:
        print("stuck", flush=True)
        await asyncio.Event().wait()

async def deaf():
    while True:
        try:
            await never_cleaned_up()
        except asyncio.CancelledError:
            print("swallowed", flush=True)

async def in_a_thread():
    try:
        print("begun", flush=True)
        await asyncio.to_thread(time.sleep, 3_600)
    finally:
        print("stuck", flush=True)

interrupts.CLEAN_UP_S = float(sys.argv[2])
try:
    interrupts.run_until_told(globals()[sys.argv[1]]())
except KeyboardInterrupt:
    sys.exit(130)
except click.exceptions.Exit as leave:
    sys.exit(leave.exit_code)
"""


def interrupted(work: str, *, clean_up_s: float, signals: Sequence[signal.Signals], awaits: str) -> tuple[int, str]:
    """Interrupt the work once it has begun, and again once it says what is awaited; its exit code, and what it said."""
    command = [sys.executable, "-c", SCRIPT, work, str(clean_up_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            process.send_signal(signals[0])
            for number in signals[1:]:
                while awaits not in said:
                    said += process.stdout.readline()
                process.send_signal(number)
            process.wait(patient(DEADLINE_S))
            return process.returncode, said + process.stdout.read()
        finally:
            process.kill()


def test_the_first_signal_lets_the_work_clean_up() -> None:
    """IN1."""
    code, said = interrupted("saves", clean_up_s=3_600, signals=[signal.SIGINT], awaits="")
    assert (code, said) == (130, "begun\nsaved\n")


@pytest.mark.parametrize("work", ["never_cleaned_up", "deaf", "in_a_thread"])
def test_cleaning_up_has_a_deadline(work: str) -> None:
    """IN2: also where a cancellation is swallowed, or a thread goes on."""
    code, said = interrupted(work, clean_up_s=0.2, signals=[signal.SIGINT], awaits="")
    assert code == 130
    assert "stuck" in said


def test_the_second_signal_does_not_wait_for_the_deadline() -> None:
    """IN2."""
    signals = [signal.SIGINT, signal.SIGINT]
    code, _ = interrupted("never_cleaned_up", clean_up_s=3_600, signals=signals, awaits="stuck")
    assert code == 130


def test_handlers_are_those_of_before_once_the_work_is_over() -> None:
    async def work() -> str:
        assert signal.getsignal(signal.SIGTERM) != before[1]
        return "done"

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    assert run_until_told(work()) == "done"
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]


def test_a_command_that_is_terminated_says_so_by_its_exit_code() -> None:
    code, said = interrupted("saves", clean_up_s=3_600, signals=[signal.SIGTERM], awaits="")
    assert (code, said) == (EXIT_TERMINATED, "begun\nsaved\n")
    assert EXIT_TERMINATED == 143
