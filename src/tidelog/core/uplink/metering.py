"""The bytes a boat has sent today, and may still send: for links that are paid by the byte.

Bytes are those of the messages; TLS and TCP add a few per cent. The budget is for everything; Live comes first, so
Backfill gets what is left once Live's share for the rest of the day is put aside. When even Live has used it up, the
boat stays offline until the next day: nothing is lost, since Backfill sends it then.

The day begins at `reset_hour` UTC by the boat's clock. A clock that is set back starts no new day.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.units import US_PER_S

_HOUR_US = 3_600 * US_PER_S
_DAY_US = 24 * _HOUR_US


class Meter:
    """`state` is the result of `to_state` before a restart."""

    def __init__(
        self, *, daily_bytes: int | None = None, reset_hour: int = 0, state: Mapping[str, Any] | None = None
    ) -> None:
        state = state or {}
        self.daily_bytes = daily_bytes
        self._shift_us = reset_hour * _HOUR_US
        self._day = int(state.get("day", -1))
        self.live_today = int(state.get("live_today", 0))
        self.backfill_today = int(state.get("backfill_today", 0))
        self.live_total = int(state.get("live_total", 0))
        self.backfill_total = int(state.get("backfill_total", 0))
        self._live_per_day = float(state.get("live_per_day", 0.0))
        """The bytes of Live on the last whole day."""
        self._first_us = int(state.get("first_us", 0))
        """When today's first byte left."""

    def to_state(self) -> dict[str, Any]:
        return {
            "day": self._day,
            "live_today": self.live_today,
            "backfill_today": self.backfill_today,
            "live_total": self.live_total,
            "backfill_total": self.backfill_total,
            "live_per_day": self._live_per_day,
            "first_us": self._first_us,
        }

    def spend(self, now_us: int, *, live: int = 0, backfill: int = 0) -> None:
        self._turn(now_us)
        self.live_today += live
        self.backfill_today += backfill
        self.live_total += live
        self.backfill_total += backfill

    def _turn(self, now_us: int) -> None:
        day = (now_us - self._shift_us) // _DAY_US
        if day > self._day:
            if self._day >= 0:
                self._live_per_day = self._live_rate(self.next_day_us(self._first_us)) * _DAY_US
            self.live_today = self.backfill_today = 0
            self._first_us = now_us
        self._day = day

    def _live_rate(self, now_us: int) -> float:
        """Live's bytes per microsecond today; over an hour at least, or the first block would look like a flood."""
        return self.live_today / max(now_us - self._first_us, _HOUR_US)

    def next_day_us(self, now_us: int) -> int:
        return ((now_us - self._shift_us) // _DAY_US + 1) * _DAY_US + self._shift_us

    def left(self, now_us: int) -> int | None:
        """Bytes that may still leave today; None without a budget."""
        if self.daily_bytes is None:
            return None
        self._turn(now_us)
        return max(0, self.daily_bytes - self.live_today - self.backfill_today)

    def backfill_left(self, now_us: int) -> int | None:
        """Bytes that Backfill may use now: what Live will not need before the day ends."""
        left = self.left(now_us)
        if left is None:
            return None
        rest_us = self.next_day_us(now_us) - now_us
        for_live = max(self._live_rate(now_us) * rest_us, self._live_per_day * rest_us / _DAY_US)
        return max(0, left - int(for_live))
