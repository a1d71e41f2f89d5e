"""Processor time of this process and of everything it has started, as the kernel counts it.

Spark is a Java process with Python workers below it. On a machine that others use too, the clock says how much of it
was left for us; processor time says what the work costs. Only Linux tells; elsewhere the answer is this process alone.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict

_PROCESSES = "/proc"
_PARENT, _TIMES = 1, slice(11, 15)
"""Places in a process's `stat` behind its name: its parent; user and system time, its own and of ended children."""


def tree_processor_s() -> float:
    """Seconds of processor time so far, of this process and all below it, ended ones included."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    try:
        names = [name for name in os.listdir(_PROCESSES) if name.isdecimal()]
    except OSError:
        return time.process_time()
    for name in names:
        try:
            with open(f"{_PROCESSES}/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked; its parent counts its time
        children[int(fields[_PARENT])].append(int(name))
        ticks[int(name)] = sum(map(int, fields[_TIMES]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")
