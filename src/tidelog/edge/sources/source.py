"""Sources of a boat's frames: a CAN bus or several, a file, or a simulated voyage.

All are a `FrameSource` and are driven by their caller's clock: `read` gives what is due, `wake_at_us` says when
to ask again. Nothing here waits, so tests and simulators pass any time they like. Frames come out
whole (fast packets assembled) and in the order in which they are to be journaled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np

from tidelog.blocks.columns import FrameColumns
from tidelog.edge.sources.replay import ReplayOptions, ReplaySource, ReplayStatistics
from tidelog.edge.sources.socketcan import SocketCanOptions, SocketCanSource, SocketCanStatistics
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import InvalidConfig, SourceFailed
from tidelog.units import US_PER_MS, US_PER_S

VOYAGE_TICK_US: Final = 10 * US_PER_MS
VOYAGE_LEAP_US: Final = 60 * US_PER_S
VOYAGE_STEP_BACK_US: Final = US_PER_S
VOYAGE_FRAMES_PER_READ: Final = 8192
BUS_RETRY_US: Final = 5 * US_PER_S


class FrameSource(Protocol):
    """What the boat process needs of a source; it uses nothing else."""

    @property
    def ended(self) -> bool:
        """Whether no frame will come any more."""
        ...

    def read(self, now_us: int) -> FrameColumns:
        """The frames that are due, at most a few thousand; none is an answer too.

        Raises `SourceFailed` once, after the last good frame, when the source broke: close it, wait, open a new one.
        """
        ...

    def wake_at_us(self) -> int | None:
        """When to read next; now or earlier if more is due already. None when the clock cannot tell: the source has
        ended, or it announces frames by itself."""
        ...

    def close(self) -> None:
        """Close file, bus and thread. May be called twice."""
        ...


class VoyageSource:
    """A simulated voyage in the caller's time.

    After a leap of the clock of more than a minute the voyage goes on at the new time instead of making up for it; when
    the clock is set back, that stretch is given again, as a real bus would. A step back of less than a second is waited
    out.
    """

    def __init__(self, *, seed: int, now_us: int, frames_per_s: float | None = None) -> None:
        if frames_per_s is not None and not 0 < frames_per_s <= 1e6:
            problem = f"{frames_per_s:g} frames a second is no rate; choose one above 0 and up to a million"
            raise InvalidConfig(section="voyage", problems=[problem])
        self._voyage = Voyage(seed=seed, start_us=now_us)
        self._frames_per_s = frames_per_s
        # Making a stretch costs two milliseconds however short it is, so a second is made at a time and given out as
        # due.
        self._stretch_us = int(min(1.0, VOYAGE_FRAMES_PER_READ / (frames_per_s or 100)) * US_PER_S)
        self._made = FrameColumns.from_rows([])
        self._made_until_us = now_us
        self._given = 0
        self._clock_us = now_us
        self.frame_count = 0

    @property
    def ended(self) -> bool:
        return False

    def read(self, now_us: int) -> FrameColumns:
        if not -VOYAGE_STEP_BACK_US <= now_us - self._clock_us <= VOYAGE_LEAP_US:
            self._made = FrameColumns.from_rows([])
            self._made_until_us, self._given = now_us, 0
        self._clock_us = now_us
        if self._given == len(self._made) and self._made_until_us <= now_us:
            start_us, self._made_until_us = self._made_until_us, self._made_until_us + self._stretch_us
            self._made = self._voyage.frames(start_us, self._made_until_us, frames_per_s=self._frames_per_s)
            self._given = 0
        end = max(self._given, int(np.searchsorted(self._made.times_us, now_us, side="right")))
        frames = self._made.slice(self._given, end)
        self._given = end
        self.frame_count += len(frames)
        return frames

    def wake_at_us(self) -> int:
        more = self._given == len(self._made) and self._made_until_us <= self._clock_us
        return self._clock_us if more else self._clock_us + VOYAGE_TICK_US

    def close(self) -> None:
        pass


class MergedSource:
    """Several sources as one, such as the two buses of a boat. The source of a frame is not recorded.

    Frames of one read are merged by time; those of one bus stay in their order. A bus that breaks is opened again after
    a pause, while the others go on.
    """

    def __init__(
        self, buses: Mapping[str, Callable[[], FrameSource]], *, log: Callable[[str], None] = lambda _: None
    ) -> None:
        if not buses:
            raise InvalidConfig(section="interfaces", problems=["there is no bus to listen on; name at least one"])
        self._open = dict(buses)
        self._sources: dict[str, FrameSource] = {}
        self._retry_at_us = dict.fromkeys(buses, 0)
        self._log = log
        self._closed = False

    @property
    def ended(self) -> bool:
        return self._closed or (
            len(self._sources) == len(self._open) and all(source.ended for source in self._sources.values())
        )

    def read(self, now_us: int) -> FrameColumns:
        parts = []
        for name in self._open:
            try:
                source = self._opened(name, now_us)
                if source is not None:
                    parts.append(source.read(now_us))
            except SourceFailed as error:
                self._log(f"source failed reason={str(error)!r} retry_s={BUS_RETRY_US / US_PER_S:g}")
                self._retry_at_us[name] = now_us + BUS_RETRY_US
                failed = self._sources.pop(name, None)
                if failed is not None:
                    failed.close()
        heard = [part for part in parts if len(part)]
        if len(heard) == 1:
            return heard[0]
        return FrameColumns.from_rows(heapq.merge(*(part.rows() for part in heard), key=lambda row: row[0]))

    def wake_at_us(self) -> int | None:
        moments = [source.wake_at_us() for source in self._sources.values()]
        moments += [self._retry_at_us[name] for name in self._open if name not in self._sources]
        return min((moment for moment in moments if moment is not None), default=None)

    def close(self) -> None:
        self._closed = True
        for source in self._sources.values():
            source.close()

    def _opened(self, name: str, now_us: int) -> FrameSource | None:
        # A clock that was set back must not keep a bus closed for longer than the pause.
        if name not in self._sources and not 0 < self._retry_at_us[name] - now_us <= BUS_RETRY_US:
            self._sources[name] = self._open[name]()
        return self._sources.get(name)


__all__ = [
    "FrameSource",
    "MergedSource",
    "ReplayOptions",
    "ReplaySource",
    "ReplayStatistics",
    "SocketCanOptions",
    "SocketCanSource",
    "SocketCanStatistics",
    "VoyageSource",
]
