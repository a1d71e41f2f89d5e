"""Token buckets: the cloud's rate limit for a boat, and the boat's own limit for itself."""

from __future__ import annotations


class TokenBucket:
    """Starts full, refills at `per_s` up to `burst`. Time comes in as an argument and may stand still.

    Tokens that are *held* for something in flight do not come back before it is released. A sender that holds them
    until the other side has answered knows less than the receiver's bucket has, however the link bunches what was sent:
    level(sender) <= level(receiver) - what has not arrived yet.
    """

    __slots__ = ("_burst", "_held", "_per_ms", "_tokens", "_updated_ms")

    def __init__(self, *, per_s: float, burst: float, now_ms: int) -> None:
        assert per_s > 0
        assert burst > 0
        self._per_ms = per_s / 1000
        self._burst = burst
        self._tokens = burst
        self._held = 0.0
        self._updated_ms = now_ms

    def _refill(self, now_ms: int) -> None:
        elapsed_ms = max(0, now_ms - self._updated_ms)
        self._tokens = min(self.ceiling, self._tokens + elapsed_ms * self._per_ms)
        self._updated_ms = max(self._updated_ms, now_ms)

    @property
    def ceiling(self) -> float:
        """The highest level before something is released."""
        return self._burst - self._held

    def take(self, tokens: float, now_ms: int) -> bool:
        """Take them all or none. A request above the burst can never succeed."""
        self._refill(now_ms)
        if tokens > self._tokens:
            return False
        self._tokens -= tokens
        return True

    def take_and_hold(self, tokens: float, now_ms: int) -> bool:
        taken = self.take(tokens, now_ms)
        self._held += tokens if taken else 0.0
        return taken

    def release(self, tokens: float, now_ms: int) -> None:
        """Release held tokens: they refill from now on."""
        self._refill(now_ms)
        self._held = max(0.0, self._held - tokens)

    def available(self, now_ms: int) -> float:
        self._refill(now_ms)
        return self._tokens

    def ready_at_ms(self, tokens: float, now_ms: int) -> int:
        """When `tokens` (at most the ceiling) will be there."""
        self._refill(now_ms)
        lacking = min(tokens, self.ceiling) - self._tokens
        return now_ms if lacking <= 0 else now_ms + int(lacking / self._per_ms) + 1

    def spend(self, tokens: float, now_ms: int) -> None:
        """Take tokens even below zero: for work whose size is known only once it is done."""
        self._refill(now_ms)
        self._tokens -= tokens
