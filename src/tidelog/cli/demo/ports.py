"""Ports for processes that one machine runs for a while: the nodes of the demo, of tests and of benchmarks.

CT2  Ports lie below those that the system gives to callers. Two nodes on one machine that dial a dead third on such a
     port can be connected to themselves.
"""

from __future__ import annotations

import random
import socket
from typing import Final

from tidelog.errors import AddressTaken

HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)
_TRIES_MAX: Final = 1_000


def free_port(rng: random.Random, *, taken: set[int]) -> int:
    """A port that nobody listens on now, outside the range of ephemeral ports (CT2)."""
    for _ in range(_TRIES_MAX):
        port = rng.choice(_PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise AddressTaken(
        address=f"{HOST}:{_PORTS.start}-{_PORTS.stop - 1}", problem="every port that was tried is in use"
    )
