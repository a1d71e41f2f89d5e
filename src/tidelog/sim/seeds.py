"""The common part of all worlds: the result of a seed, the violation of a promise, and running many seeds.

A world runs one seed and returns a `WorldResult`, or raises its own kind of `WorldViolation`. The counters count
events; those that a world lists as "sometimes" must have happened at least once over many seeds, or the run proved less
than it seems.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol


class WorldViolation(AssertionError):
    """A promise was broken. Has the seed and how to reproduce it."""

    world: ClassVar[str]
    """The name behind `tidelog sim`."""

    def __init__(self, seed: int, problem: str) -> None:
        super().__init__(f"seed {seed}: {problem}\nreplay: tidelog sim {self.world} --seed {seed}")
        self.seed = seed
        self.problem = problem


class WorldBroken(Exception):
    """A promise was broken, without the seed. Each world has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    seed: int
    events: int
    checks: int
    counters: Counter[str]
    simulated_ms: int | None = None
    """None for a world without a clock."""


class World(Protocol):
    """What is read off a world after its run."""

    counters: Counter[str]

    @property
    def events(self) -> int: ...

    @property
    def checks(self) -> int: ...

    @property
    def last_event(self) -> str: ...


def run_world(
    seed: int,
    world: World,
    run: Callable[[], None],
    *,
    violation: type[WorldViolation],
    clock_ms: Callable[[], int] | None = None,
) -> WorldResult:
    """Run one seed. A broken promise, or an unhandled error, is raised as the world's kind of violation."""
    try:
        run()
    except WorldBroken as error:
        problem = f"{error} (after {world.events} events, the last was {world.last_event})"
        raise violation(seed, problem) from error
    except Exception as error:
        problem = f"{world.last_event} raised {type(error).__name__}: {error} (after {world.events} events)"
        raise violation(seed, problem) from error
    return WorldResult(
        seed=seed,
        events=world.events,
        checks=world.checks,
        simulated_ms=None if clock_ms is None else clock_ms(),
        counters=world.counters,
    )


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Pause the collection of cycles while a seed runs: it takes a sixth of its time. Afterwards the objects made by
    the seed are collected, and not those of the whole process, which in a test run are many."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def seeds_runner(live: Callable[..., WorldResult], sometimes: Sequence[str], **usual: Any) -> Callable[..., Any]:
    """`run_seeds` for one world. Its callers may say how long a run takes, in the world's own terms."""

    def run(first: int, count: int, *, progress: Callable[[int], None] | None = None, **length: Any) -> dict[str, Any]:
        return run_seeds(
            first, count, live=partial(live, **{**usual, **length}), sometimes=sometimes, progress=progress
        )

    return run


def run_seeds(
    first: int,
    count: int,
    *,
    live: Callable[[int], WorldResult],
    sometimes: Sequence[str],
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Run many seeds. `violations` lists the seeds that failed; `never` the events that did not happen."""
    counters: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    events = checks = 0
    simulated_ms: int | None = None
    for seed in range(first, first + count):
        try:
            with _garbage_kept():
                result = live(seed)
        except WorldViolation as violation:
            violations.append({"seed": seed, "problem": violation.problem})
        else:
            events += result.events
            checks += result.checks
            counters.update(result.counters)
            if result.simulated_ms is not None:
                simulated_ms = (simulated_ms or 0) + result.simulated_ms
        if progress is not None:
            progress(seed)
    clock = {} if simulated_ms is None else {"simulated_hours": round(simulated_ms / 3_600_000, 3)}
    return {
        "seeds": count,
        "first_seed": first,
        "events": events,
        "checks": checks,
        **clock,
        "violations": violations,
        "never": [name for name in sometimes if not counters[name]],
        **{name: counters[name] for name in sometimes},
    }
