"""Whether to retry, and when. Nothing here does I/O; the generator for the jitter is passed in.

CR1  A request whose outcome is unknown is repeated only if doing it twice has the same effect as once.
CR2  Nothing is repeated after the deadline; the error then says whether the request may have had an effect.
CR3  Waits double up to a limit, with jitter, so that clients that lost the same node do not come back together.
"""

from __future__ import annotations

import random

from tidelog.errors import LogError, WaitTimedOut

_DOUBLINGS_MAX = 20


class Backoff:
    """Waits that grow until something succeeds."""

    def __init__(self, *, first_ms: int, max_ms: int, rng: random.Random) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._rng = rng
        self._failures = 0

    def failed(self) -> int:
        """How long to wait now: between half of the step and all of it."""
        step_ms = min(self._max_ms, self._first_ms << min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        return max(1, self._rng.randint((step_ms + 1) // 2, step_ms))

    def succeeded(self) -> None:
        self._failures = 0


class Retry:
    """The attempts of one call."""

    def __init__(
        self, *, what: str, now_ms: int, timeout_ms: int, backoff: Backoff, is_repeatable: bool = True
    ) -> None:
        self.what = what
        self.deadline_ms = now_ms + timeout_ms
        self._timeout_ms = timeout_ms
        self._backoff = backoff
        self._is_repeatable = is_repeatable
        self._may_have_happened = False
        self._problem: LogError | None = None

    @property
    def may_have_happened(self) -> bool:
        """Whether the outcome of an earlier attempt is unknown."""
        return self._may_have_happened

    def left_ms(self, now_ms: int) -> int:
        return max(0, self.deadline_ms - now_ms)

    def after(self, error: LogError, now_ms: int) -> int:
        """How long to wait before the next attempt. Raises where there must be none."""
        if not error.retriable or (not error.definite and not self._is_repeatable):
            raise error
        self._problem = error
        if not error.definite:
            self._may_have_happened = True
        wait_ms = self._backoff.failed()
        if now_ms + wait_ms >= self.deadline_ms:
            raise self.too_late()
        return wait_ms

    def too_late(self) -> LogError:
        """The error at the deadline: the last refusal if that is definite, else that the outcome is unknown."""
        if self._problem is not None and not self._may_have_happened:
            return self._problem
        error = WaitTimedOut(waiting_for=self.what, deadline_s=self._timeout_ms / 1000)
        if self._problem is not None:
            error.add_note(f"last: {self._problem}")
        return error
