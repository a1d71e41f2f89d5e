"""How long a boat waits before it dials again.

BO1  Every dial that failed, and every session that broke, doubles the wait, up to the largest, whatever came before.
BO2  Only a steady session resets it: one that the cloud acked for as long as the wait had become, and for ten seconds
     at least. So a cloud that accepts sessions and fails a moment later is not dialed without pause.
BO3  Half of each wait is random, or a fleet that lost its cloud would come back in one moment.
BO4  A session that the boat itself ends, since Live fell behind or the day's bytes are used up, causes no wait here and
     doubles nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class DialBackoff:
    """`jitter` gives numbers in [0, 1)."""

    def __init__(self, *, first_ms: int, longest_ms: int, steady_ms: int, jitter: Callable[[], float]) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._steady_ms = steady_ms
        self._jitter = jitter
        self.next_ms = first_ms
        """The longest that the next wait may be."""

    def session_was_acked(self, acked_for_ms: int) -> None:
        """A session ended; its last ack came this long after its Welcome."""
        if acked_for_ms >= max(self._steady_ms, self.next_ms):
            self.next_ms = self._first_ms

    def wait_ms(self) -> int:
        """How long to wait now; the next wait is twice as long."""
        longest_ms = self.next_ms
        self.next_ms = min(2 * longest_ms, self._longest_ms)
        return int(longest_ms / 2 + longest_ms / 2 * self._jitter())
