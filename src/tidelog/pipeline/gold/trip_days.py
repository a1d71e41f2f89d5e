"""The days that must be loaded together to find the trips of a few of them.

A trip may begin days before the day that changed and end days after it. So the days around are loaded too, and
more of them as long as a trip at the edge is unsettled. Days without positions do not exist here: the day before is
the last one that has any.

TD1  Days of one stretch follow each other among the days that exist; stretches of a channel never touch.
TD2  Every stretch ends on both sides at a settled trip, or where no more days exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

DAY_ROWS_MIN: Final = 1_200
"""A day with fewer positions may lie inside a trip without showing movement; the search goes on beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayStretch:
    """Days of one channel, given as a range of places among the channel's days."""

    channel: str
    places: range


class ChannelDays:
    """The days of one channel that have positions, and how many."""

    def __init__(self, rows: Mapping[date, int]) -> None:
        self.days: Sequence[date] = sorted(rows)
        self._rows = rows

    def around(self, touched: Collection[date]) -> list[range]:
        """The stretches to begin with: every touched day and its neighbours."""
        ranges = []
        for day in sorted(touched):
            # A touched day without positions still separates the days before it from those after.
            first = self._before(sum(one < day for one in self.days) - 1)
            last = self._after(sum(one <= day for one in self.days))
            if last >= first:
                ranges.append(range(first, last + 1))
        return merged(ranges)

    def grown(self, places: range, *, before: bool, after: bool) -> range:
        """The stretch with as many days more on its unsettled sides as it has."""
        start = max(0, places.start - len(places)) if before else places.start
        stop = min(len(self.days), places.stop + len(places)) if after else places.stop
        return range(start, stop)

    def _before(self, place: int) -> int:
        while place > 0 and self._rows[self.days[place]] < DAY_ROWS_MIN:
            place -= 1
        return max(place, 0)

    def _after(self, place: int) -> int:
        last = len(self.days) - 1
        while place < last and self._rows[self.days[place]] < DAY_ROWS_MIN:
            place += 1
        return min(place, last)


def merged(ranges: Collection[range]) -> list[range]:
    """Ranges that overlap or touch, made one (TD1)."""
    found: list[range] = []
    for one in sorted(ranges, key=lambda places: places.start):
        if found and one.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.stop))
        else:
            found.append(one)
    return found
