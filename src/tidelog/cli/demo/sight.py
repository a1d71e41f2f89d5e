"""How one boat of the demo and the cluster stand towards each other, looked at again and again.

Both are asked over HTTP, the cluster first: it never looks better than it is. The cluster's word is what the leader
of the boat's channel has committed, whichever node is asked.

DS1  A cursor that is less than one that was seen, or that the boat was told, is noticed for good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How boat and cluster are at one moment; of one that is down, what it said last."""

    head: int = 0
    """The newest seq the boat has recorded."""
    durable_head: int = 0
    """The newest seq on the boat's disk."""
    boat_void: tuple[range, ...] = ()
    connected: bool = False
    acked: int = 0
    """The cursor that the boat was told."""
    cursor: int = 0
    """The cursor that the committed log gives."""
    frames_by_live: int = 0
    """Since the leader leads."""
    holes: tuple[range, ...] = ()
    void: tuple[range, ...] = ()
    session: int = 0

    @property
    def missing(self) -> int:
        return sum(map(len, self.holes))

    def __str__(self) -> str:
        return f"head {self.head:,}   cursor {self.cursor:,}   missing {self.missing:,}"


class Question(Protocol):
    """What is asked; see `Parties`."""

    def ask_nodes(self, path: str) -> dict[str, Any] | None: ...

    def ask_boat(self, boat: str) -> dict[str, Any] | None: ...

    def wait(self, condition: Callable[[], bool], *, what: str, deadline_s: float) -> None: ...


class Watch:
    """Looks at one boat."""

    def __init__(self, parties: Question, boat: str) -> None:
        self._parties = parties
        self.boat = boat
        self.sight = Sight()
        self.cursor_went_back: str = ""
        """Says so if it did (DS1)."""

    def look(self) -> Sight:
        held = self._parties.ask_nodes(f"/instances/{self.boat}/status")
        if held is not None:
            known, cursor = max(self.sight.cursor, self.sight.acked), int(held["cursor"])
            if cursor < known:
                self.cursor_went_back = f"the cursor of {self.boat} went back from {known} to {cursor}"
            self.sight = replace(
                self.sight,
                cursor=cursor,
                frames_by_live=held["frames_by_live"],
                holes=_ranges(held["holes"]),
                void=_ranges(held["void"]),
                session=held["session"],
            )
        status = self._parties.ask_boat(self.boat)
        if status is not None:
            self.sight = replace(
                self.sight,
                head=status["local_head_seq"],
                durable_head=status["durable_head_seq"],
                boat_void=_ranges(status["void"]),
                connected=status["connected"],
                acked=status["cloud_cursor"],
            )
        return self.sight

    def wait(
        self,
        condition: Callable[[Sight], bool],
        *,
        what: str,
        deadline_s: float,
        each: Callable[[Sight], object] = lambda _: None,
    ) -> Sight:
        """Look until the condition holds; `each` gets every look."""

        def holds() -> bool:
            each(self.look())
            return condition(self.sight)

        self._parties.wait(holds, what=f"{what} of {self.boat}", deadline_s=deadline_s)
        return self.sight


def _ranges(parts: list[dict[str, Any]]) -> tuple[range, ...]:
    return tuple(range(part["start"], part["end"]) for part in parts)
