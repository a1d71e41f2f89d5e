"""What a node's log says of boats that come, are fenced, are refused and come back: a line for each change.

A boat that is refused dials again and again. The first refusal is a line, those of the same kind after it are counted,
and the count is in the line that says that the boat is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.cluster.uplink.refusals import ROUTINE
from tidelog.core.uplink.messages import Refused

NAMES_MAX: Final = 10_000
"""Boats whose refusals are remembered: a stranger may claim any name."""
_DETAIL_CHARACTERS: Final = 300


@dataclass(slots=True)
class _Refusals:
    code: str
    count: int
    since_ms: int


class BoatLines:
    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._refused: dict[str, _Refusals] = {}

    def connected(self, name: str, *, session: int, head: int, cursor: int, now_ms: int) -> None:
        before = self._refused.pop(name, None)
        facts = f"name={name} session={session} head={head} cursor={cursor}"
        if before is None:
            self._log(f"boat connected {facts}")
            return
        seconds = (now_ms - before.since_ms) // 1000
        self._log(f"boat recovered {facts} refused={before.code} refusals={before.count} seconds={seconds}")

    def fenced(self, name: str, *, session: int, newest: int) -> None:
        self._log(f"boat fenced name={name} session={session} by={newest}")

    def refused(self, name: str, refusal: Refused, *, now_ms: int) -> None:
        """`name` may be what a stranger claims."""
        if refusal.code in ROUTINE:
            return  # said elsewhere, if at all: by the session that fenced it, and by the node that stops
        before = self._refused.get(name)
        if before is not None and before.code == refusal.code:
            before.count += 1
            return
        if len(self._refused) >= NAMES_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = _Refusals(refusal.code, 1, now_ms)
        verb = "revoked" if refusal.code == "certificate_revoked" else "refused"
        self._log(f"boat {verb} name={name!a} code={refusal.code} reason={refusal.detail[:_DETAIL_CHARACTERS]!a}")
