"""The settings of liveness: how often nodes send heartbeats, and how long silence may last. `problems` lists all that
is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.errors import InvalidConfig

HEARTBEAT_MS_MIN: Final = 100
HEARTBEAT_MS_MAX: Final = 60_000
NODES_MAX: Final = 64
"""Hearing reports grow with the square of the number of nodes; with this many they are still cheap."""
CLAIMS_BYTES_MAX: Final = 64 * 1024
ROUNDING_MS: Final = 4
"""The rounding error of the two or three millisecond clocks of a session together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessConfig:
    """Must be the same on all nodes of a cluster, except where a field says otherwise."""

    heartbeat_ms: int = 500
    """How often two nodes exchange heartbeats, and how often a session is renewed. Single pairs may be quicker, never
    slower."""

    session_timeout_ms: int = 1_500
    """Silence after which the metadata leader ends a node's session: three heartbeats (R6). A node uses the smaller of
    its own setting and the leader's, so that a rolling change is safe."""

    session_margin_percent: int = 10
    """How much earlier than the leader a node ends its own session. 10 tolerates clocks that run 5 % wrong in opposite
    directions; real ones stay within 0.01 %."""

    deaf_percent: int = 250
    """Silence, in percent of the pair's interval, from which one node counts as unheard by another. One lost
    heartbeat makes a silence of 200."""

    hears_percent: int = 150
    """Silence up to which it counts as heard again; between the two nothing changes."""

    fade_ms: int = 60_000
    """How long a round trip or a peak counts that was not measured again. May differ between nodes."""

    transfer_bytes_min: int = 1024 * 1024
    """Smaller transfers are not measured: buffers accept them at any speed. May differ between nodes."""

    nodes_max: int = NODES_MAX

    def __post_init__(self) -> None:
        problems = []
        if not HEARTBEAT_MS_MIN <= self.heartbeat_ms <= HEARTBEAT_MS_MAX:
            problems.append(f"heartbeat_ms must be from {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}")
        if self.session_timeout_ms < 3 * self.heartbeat_ms:
            problems.append("session_timeout_ms must be at least 3 x heartbeat_ms, or a short hiccup fences nodes (R6)")
        if self.session_timeout_ms > 60 * HEARTBEAT_MS_MAX:
            problems.append(f"session_timeout_ms must be at most {60 * HEARTBEAT_MS_MAX}")
        if not 1 <= self.session_margin_percent <= 30:
            problems.append("session_margin_percent must be from 1 to 30; 10 tolerates clocks that run 5 % wrong")
        if not 210 <= self.deaf_percent <= 1_000:
            problems.append("deaf_percent must be from 210 to 1000; one lost heartbeat alone makes 200")
        if not 110 <= self.hears_percent <= 200:
            problems.append("hears_percent must be from 110 to 200; a heartbeat that is just due makes 100")
        if self.fade_ms < 10 * self.heartbeat_ms:
            problems.append("fade_ms must be at least 10 x heartbeat_ms")
        if self.transfer_bytes_min < 1:
            problems.append("transfer_bytes_min must be positive")
        if not 1 <= self.nodes_max <= NODES_MAX:
            problems.append(f"nodes_max must be from 1 to {NODES_MAX}")
        if problems:
            raise InvalidConfig(section="liveness", problems=problems)

    @property
    def report_fresh_ms(self) -> int:
        """How long a hearing report is evidence of a cut: its sender may itself have fallen silent."""
        return self.heartbeat_ms * self.deaf_percent // 100


def believed_ms(*, timeout_ms: int, confirmed_ago_ms: int, margin_percent: int) -> int:
    """How long after sending a renewal a node may rely on the session that the answer promises.

    The leader counts from the arrival, which is later. A successor counts from when it began to lead, which may be as
    early as the leader's last proof of leading, so that proof's age, extended by the same margin, is subtracted.
    """
    kept_percent = 100 - margin_percent
    return timeout_ms * kept_percent // 100 - -(-confirmed_ago_ms * 100 // kept_percent) - ROUNDING_MS
