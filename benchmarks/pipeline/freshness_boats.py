"""The fleet of `tidelog bench freshness`: whole boats in one process, each with journal, ring, sender and voyage.

Frames are made a little ahead and are on the bus when their own time has come, so the time of a row in a table is the
moment at which the bus had it.

Started with one argument, a JSON file with the fields of `Sailing`. Prints "ready" once every boat is connected, sails
when a line comes on its standard input and until another one does, and prints one JSON object when everything is acked.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.kits.uplink_parties import BenchBoat, sailing, wait_until
from benchmarks.pipeline.boat_cluster import boat_target
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.sources.voyage import Voyage
from tidelog.storage.log.writer import wall_clock_us
from tidelog.units import US_PER_S

_TICK_S: Final = 0.02
_STRETCH_US: Final = 5 * US_PER_S
"""The part of the voyage that is computed at a time."""
_DRAIN_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sailing:
    """What the process is told to do."""

    addresses: Sequence[str]
    """The addresses of the nodes' uplinks; boats are spread over them."""
    names: Sequence[str]
    folder: str
    """Holds `<name>.crt`, `<name>.key` and `ca.crt`; the journals are made here."""
    frames_per_s: float

    def command(self, file: Path) -> list[str]:
        file.write_text(json.dumps(asdict(self)))
        return [sys.executable, "-m", "benchmarks.pipeline.freshness_boats", str(file)]


class _Played:
    """One boat's frames, a stretch at a time, and how many of them were on the bus."""

    def __init__(self, boat: BenchBoat, *, seed: int, start_us: int, frames_per_s: float) -> None:
        self._boat = boat
        self._voyage = Voyage(seed=seed, start_us=start_us)
        self._frames_per_s = frames_per_s
        self._made_us = start_us
        self._due: deque[tuple[int, int, bytes]] = deque()
        self.count = 0

    def play(self, now_us: int) -> None:
        """Record what is due."""
        while self._made_us <= now_us:
            end_us = self._made_us + _STRETCH_US
            self._due += self._voyage.frames(self._made_us, end_us, frames_per_s=self._frames_per_s).rows()
            self._made_us = end_us
        boat, before = self._boat, self.count
        while self._due and self._due[0][0] <= now_us:
            boat.record(*self._due.popleft())
            self.count += 1
        if self.count > before:
            boat.client.notify()
        if now_us >= boat.journal.wake_at_us():
            boat.journal.wake(now_us)


async def _sail(told: Sailing) -> dict[str, object]:
    async with AsyncExitStack() as stack:
        boats = []
        for number, name in enumerate(told.names):
            target = boat_target(Path(told.folder), name, told.addresses[number % len(told.addresses)])
            boat = BenchBoat(Path(told.folder) / name, target, config=SenderConfig())
            boats.append(await stack.enter_async_context(sailing(boat)))
        _say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        start_us = wall_clock_us()
        played = [
            _Played(boat, seed=number, start_us=start_us, frames_per_s=told.frames_per_s)
            for number, boat in enumerate(boats)
        ]
        home = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        late_s = 0.0
        while not home.done():
            began_s = time.monotonic()
            for one in played:
                one.play(wall_clock_us())
            await asyncio.sleep(_TICK_S)
            late_s = max(late_s, time.monotonic() - began_s - _TICK_S)
        now_us = wall_clock_us()
        for boat in boats:
            boat.journal.flush(now_us)
            boat.client.notify()
        await wait_until(lambda: all(boat.all_acked() for boat in boats), "the last ack", deadline_s=_DRAIN_S)
        return {
            "frames": sum(one.count for one in played),
            "late_max_s": round(late_s, 3),
            "troubles": sum(len(boat.troubles) for boat in boats),
        }


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    told = Sailing(**json.loads(Path(sys.argv[1]).read_text()))
    _say(json.dumps(asyncio.run(_sail(told))))


if __name__ == "__main__":
    main()
