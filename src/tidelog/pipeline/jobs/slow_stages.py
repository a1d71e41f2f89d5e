"""The slow stages, gold and the rewriting of small files: one after the other in a thread of their own.

Decoding and the supervision of the stream must not wait for them. A stage is due at its interval, and again after its
pause when it failed; two stages never run at once, since both need all cores.

What a caller must keep: the work of a stage opens its tables itself, and no other thread calls the supervisors of these
stages while the thread runs (reading them is fine). `stop` before the Spark session is stopped.

SL1  Whatever a stage does, the caller's thread waits for it in `stop` alone, and there for a limited time.
SL2  An error that ends the pipeline ends the thread, and is raised in the caller's thread by `raise_failure`.
SL3  A stage pauses for four times as long as it worked: however much there is to do, others have most of the time.
SL4  Work that calls `breathe` between its steps takes at most half of the time while it runs: after each step it waits
     as long as the step took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.errors import StageFailed, StageRefused
from tidelog.pipeline.jobs.supervisor import Supervisor, failure_of

STOP_WAIT_S: Final = 20.0
"""How long a running stage may take to finish when the pipeline is stopped; then it is cancelled."""
GIVE_UP_WAIT_S: Final = 10.0
REST: Final = 4
"""The pause, as a multiple of the last run's duration (SL3)."""


@dataclass(slots=True, kw_only=True)
class SlowStage:
    """One stage. Its work may be killed or cancelled at any moment: the tables have the position to continue from."""

    work: Callable[[], object]
    every_ms: int
    supervisor: Supervisor
    due_ms: int
    runs: int = 0
    """Runs that succeeded."""


class SlowStages:
    """Runs stages until it is stopped. `give_up` is called by the caller's thread and makes running work fail soon."""

    def __init__(
        self,
        stages: Sequence[SlowStage],
        *,
        begin: Callable[[], None] = lambda: None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._stages = stages
        self._begin = begin
        self._give_up = give_up
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._step_began_ms = self._worked_ms = 0
        # A thread that does not end must not keep the process: files it writes belong to no version until committed.
        self._thread = threading.Thread(target=self._run, name="slow-stages", daemon=True)

    def start(self) -> None:
        if self._stages:
            self._thread.start()

    def runs(self, stage: str) -> int:
        """How often it has completed."""
        return sum(one.runs for one in self._stages if one.supervisor.stage == stage)

    def breathe(self) -> None:
        """Called by the work of a stage, between two steps: waits for as long as the step took, or to the stop
        (SL4)."""
        took_ms = now_ms() - self._step_began_ms
        self._worked_ms += took_ms
        self._stopping.wait(took_ms / 1000)
        self._step_began_ms = now_ms()

    def raise_failure(self) -> None:
        """Raise what ended the thread, if anything did (SL2)."""
        if self._failure is not None:
            raise self._failure

    def stop(self, *, wait_s: float = STOP_WAIT_S, give_up_wait_s: float = GIVE_UP_WAIT_S) -> bool:
        """Let the running stage finish, or cancel it; False if it does not even end then (SL1)."""
        self._stopping.set()
        if self._thread.ident is None:
            return True
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._give_up()
            self._thread.join(give_up_wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopping.is_set():
                for stage in self._stages:
                    self._attempt(stage)
                wait_ms = min(stage.due_ms for stage in self._stages) - now_ms()
                self._stopping.wait(max(0, wait_ms) / 1000)
        except BaseException as error:
            self._failure = error

    def _attempt(self, stage: SlowStage) -> None:
        began_ms = now_ms()
        if began_ms < stage.due_ms or self._stopping.is_set():
            return
        stage.due_ms = began_ms + stage.every_ms
        self._step_began_ms, self._worked_ms = began_ms, 0
        try:
            stage.work()
        except (StageFailed, StageRefused):
            raise
        except Exception as error:
            if self._stopping.is_set():
                return  # it was cancelled, or lost its Spark: no failure of its own
            stage.due_ms = stage.supervisor.failed(failure_of(error), now_ms())
        else:
            stage.supervisor.succeeded()
            stage.runs += 1
            ended_ms = now_ms()
            worked_ms = self._worked_ms + ended_ms - self._step_began_ms
            stage.due_ms = max(stage.due_ms, ended_ms + REST * worked_ms)


def now_ms() -> int:
    """The clock of the stages' intervals."""
    return time.monotonic_ns() // 1_000_000
