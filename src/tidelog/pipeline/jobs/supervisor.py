"""Whether and when a failed stage is started again.

Spark passes failures of tasks and of the source's process on as text; `failure_of` finds the original error in it.
Temporary failures are tried again after growing pauses; permanent ones end the pipeline at once, with the error's
message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from tidelog import errors
from tidelog.errors import LogError, StageFailed, StageRefused

FIRST_WAIT_MS: Final = 1_000
_RAISED: Final = re.compile(r"\btidelog\.errors\.\w+\.(\w+): ([^\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure, as far as it is known."""

    code: str
    message: str
    retriable: bool


def failure_of(*found: BaseException | None) -> Failure:
    """The failure behind these exceptions: the first with a Tidelog error, else the first one."""
    given = [one for one in found if one is not None]
    assert given, "no failure without an exception"
    for one in given:
        for cause in _causes(one):
            if isinstance(cause, LogError):
                notes = "".join(f" ({note})" for note in getattr(cause, "__notes__", ()))
                return Failure(code=cause.code, message=f"{cause}{notes}", retriable=cause.retriable)
    for one in given:
        told = _RAISED.findall(str(one))
        if told:
            name, message = told[-1]
            kind = getattr(errors, name, LogError)
            return Failure(code=kind.code, message=message, retriable=kind.retriable)
    # Failures of Spark, Java or a dead worker may be over at the next try.
    first = given[0]
    lines = [line for line in str(first).splitlines() if line.strip()]
    return Failure(code="stage_failed", message=lines[0] if lines else type(first).__name__, retriable=True)


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Counts the failures of one stage. `failed` returns when to start it again, or raises."""

    stage: str
    restarts_max: int
    wait_max_ms: int
    failures: int = 0
    last: Failure | None = None
    due_ms: int = field(default=0)

    def failed(self, failure: Failure, now_ms: int) -> int:
        """When to start again. Raises the error that ends the pipeline."""
        self.failures += 1
        self.last = failure
        if not failure.retriable:
            raise StageRefused(stage=self.stage, cause=failure.code, problem=failure.message)
        if self.failures > self.restarts_max:
            raise StageFailed(stage=self.stage, attempts=self.failures, problem=failure.message)
        self.due_ms = now_ms + min(self.wait_max_ms, FIRST_WAIT_MS * 2 ** (self.failures - 1))
        return self.due_ms

    def succeeded(self) -> None:
        self.failures = 0
