"""Synced data that the store found missing: remembered until the channels were compared with whole copies.

A channel whose last records are gone from a write-ahead file is shorter than what was acked, and nothing in its own log
shows it. So the loss is written to the store's state before the evidence is removed, and every later opening reports it
again. A loss that stands as placeholders in a log needs no such memory: the log itself shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidelog.storage.atomic import write_mark_twice
from tidelog.storage.disk import Disk
from tidelog.storage.store.parts import STATE_PATH, StoreRecovery

_REASON_LENGTH_MAX: Final = 2_000


@dataclass(slots=True, kw_only=True)
class StoreState:
    """The store's state mark: how its last run ended, how many there were, and what was lost."""

    incarnation: int
    marked: bool = False
    """The mark of the write-ahead files was made, so if it is missing that is a loss."""
    lost: str = ""
    """What was lost and not yet compared with whole copies; empty if nothing."""
    shown: list[str] = field(default_factory=list)
    """Losses found in this run that stand as placeholders in the logs."""

    def save(self, disk: Disk, *, clean: bool = False) -> None:
        value: dict[str, Any] = {"clean": clean, "incarnation": self.incarnation, "marked": self.marked}
        if self.lost:
            value["lost"] = self.lost
        write_mark_twice(disk, STATE_PATH, value)

    def lose(self, reasons: Iterable[str]) -> None:
        """Remember this loss; `save` it before the evidence is removed."""
        for reason in reasons:
            if reason not in self.lost:
                self.lost = f"{self.lost}; {reason}" if self.lost else reason
        if len(self.lost) > _REASON_LENGTH_MAX:
            self.lost = f"{self.lost[: _REASON_LENGTH_MAX - 4]} ..."

    def reason(self) -> str:
        return "; ".join(filter(None, [self.lost, *self.shown[:10]]))

    def added_to(self, recovery: StoreRecovery) -> StoreRecovery:
        reason = self.reason()
        return replace(recovery, synced_loss=bool(reason), synced_loss_reason=reason)
