"""Nothing that the tests start outlives them, also when they are interrupted or killed.

Every process of a test run inherits a mark in its environment. A small process beside the run waits for the end of it,
however that comes (its end of a pipe closes), and then ends whatever still carries the mark: nodes, boats, servers, and
what those have started. No test and no kit has to think of it; it needs Linux's /proc and does nothing elsewhere.

What a caller must keep: give a process our environment, with changes; one that has an empty one is not found.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "TESTS_OF_TIDELOG_RUNS"
"""The runs that a process belongs to: one that a test starts belongs to its own and to that of the test."""
GIVES_UP_S = 30.0
POLL_S = 0.1


def watch_over_this_run() -> None:
    """Mark what this process starts from now on, and have it ended when this process is gone."""
    if not Path("/proc/self/environ").exists():
        return
    run = secrets.token_hex(8)
    command = [sys.executable, "-S", "-E", __file__, run]
    # A session of its own: the terminal's Ctrl-C is for the tests. Its pipe is ours, and no child of ours inherits it.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    _watchers.append(process)
    os.environ[VARIABLE] = ",".join(filter(None, [os.environ.get(VARIABLE, ""), run]))


_watchers: list[subprocess.Popen[bytes]] = []
"""Kept, or their pipes would be closed."""


def marked(run: str) -> dict[int, str]:
    """Processes of this run that are alive: their command lines by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile, or is not ours
        runs = next((one.partition(b"=")[2] for one in variables if one.startswith(f"{VARIABLE}=".encode())), b"")
        if run.encode() in runs.split(b",") and command:
            found[int(folder.name)] = command
    return found


def end_all(run: str) -> None:
    """Again and again, since what is being ended may start something."""
    give_up = time.monotonic() + GIVES_UP_S
    while (found := marked(run)) and time.monotonic() < give_up:
        for pid, command in found.items():
            print(f"the tests are over and left a process, which is ended: {pid} {command[:200]}", file=sys.stderr)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(POLL_S)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_all(sys.argv[1])


if __name__ == "__main__":
    main()
