"""Ports for the nodes and processes that tests start.

They lie outside the range from which the system takes ports for callers, so no connection can occupy one before its
node binds it, nor while the node is stopped; and a test process gives each out once.
"""

from __future__ import annotations

import random

from tidelog.cli.demo import ports

_RNG = random.Random()
"""Without a seed: test processes that run side by side must not draw the same ports."""
_TAKEN: set[int] = set()


def free_port() -> int:
    port = ports.free_port(_RNG, taken=_TAKEN)
    _TAKEN.add(port)
    return port
