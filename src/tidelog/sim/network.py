"""Virtual time, and a link between a boat and its cloud that behaves as badly as a real one.

A `Scheduler` is a heap of calls by virtual millisecond; calls of the same millisecond run in the order in which they
were made. A `SimLink` makes `Connection`s as TCP would: each has independent streams (Live and Backfill do not wait for
each other), a stream keeps its order, and nothing is lost while the connection is open. A cut loses messages in flight.
A half-open connection silently drops one direction, from some moment on. A side that closes stops listening, but its
messages may still arrive, even after its next connection was opened: the driver of a core must drop answers to an older
connection.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

Call = Callable[[], bool | None]
"""Returns False when it found that it had nothing to do any more."""


class Scheduler:
    """Calls in order of virtual time. `events` counts those that had something to do."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.events = 0
        self._calls: list[tuple[int, int, Call]] = []
        self._number = 0

    def at(self, at_ms: int, call: Call) -> None:
        self._number += 1
        heapq.heappush(self._calls, (max(at_ms, self.now_ms), self._number, call))

    def after(self, delay_ms: int, call: Call) -> None:
        self.at(self.now_ms + delay_ms, call)

    def run_until(self, end_ms: int, done: Callable[[], bool] | None = None) -> bool:
        """Run what is due up to `end_ms`; False when the time was up before `done`."""
        calls, pop = self._calls, heapq.heappop
        while calls and calls[0][0] <= end_ms:
            self.now_ms, _, call = pop(calls)
            if call() is False:
                continue
            self.events += 1
            if done is not None and done():
                return True
        self.now_ms = max(self.now_ms, end_ms)
        return False


class Way(Enum):
    UP = "to the cloud"
    DOWN = "to the boat"


@dataclass(slots=True)
class Weather:
    """The state of the link. Change the fields at any time."""

    up: bool = True
    delay_ms: int = 20
    jitter_ms: int = 20
    spike_chance: float = 0.0
    """A message, and all behind it on its stream, is held up for seconds."""
    spike_ms: int = 0
    swallows: Way | None = None
    """New connections lose everything in this direction."""


class Connection:
    """One dialed connection. `deliver` takes a message at the far end, or returns False when there is no receiver."""

    def __init__(self, link: SimLink, deliver: Callable[[Connection, Way, Any], bool]) -> None:
        self._link = link
        self._deliver = deliver
        self.cut = False
        """Both directions are dead and what was in flight is lost."""
        self.closed: set[Way] = set()
        """Directions whose receiving side has hung up."""
        self.swallowed: set[Way] = set()
        """Directions that silently lose everything."""
        self.newest: Any = None
        """The newest message to the cloud, arrived or not."""
        self._arrives_ms: dict[tuple[Way, str], int] = {}

    def send(self, way: Way, stream: str, message: Any) -> None:
        link = self._link
        if way is Way.UP:
            self.newest = message
        if self.cut or way in self.swallowed:
            return
        scheduler, weather, rng = link.scheduler, link.weather, link.rng
        delay_ms = weather.delay_ms + int(rng.random() * weather.jitter_ms)
        if weather.spike_chance and rng.random() < weather.spike_chance:
            delay_ms += int(rng.random() * weather.spike_ms)
        arrives_ms = max(scheduler.now_ms + delay_ms, self._arrives_ms.get((way, stream), 0))
        self._arrives_ms[way, stream] = arrives_ms

        def arrive() -> bool:
            if self.cut or way in self.closed or way in self.swallowed:
                return False
            return self._deliver(self, way, message)

        scheduler.at(arrives_ms, arrive)

    def close(self, side: Way) -> None:
        """One side hangs up: `side` is the direction it listened to. What it sent may still arrive."""
        self.closed.add(side)


class SimLink:
    """The way from one boat to the cloud. Keeps the connections that are not cut."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, weather: Weather) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.weather = weather
        self._open: list[Connection] = []

    def dial(self, deliver: Callable[[Connection, Way, Any], bool]) -> Connection | None:
        """A new connection, or None when there is no link."""
        if not self.weather.up:
            return None
        self._open = [known for known in self._open if not known.cut]
        connection = Connection(self, deliver)
        if self.weather.swallows is not None:
            connection.swallowed.add(self.weather.swallows)
        self._open.append(connection)
        return connection

    def cut(self) -> list[Connection]:
        """Cut every connection; returns them, for those who will notice."""
        broken, self._open = self._open, []
        for connection in broken:
            connection.cut = True
        return broken

    def half_open(self, way: Way) -> bool:
        """Swallow one direction of every open connection; False when there is none."""
        for connection in self._open:
            connection.swallowed.add(way)
        return bool(self._open)
