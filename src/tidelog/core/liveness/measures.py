"""The measured round trip and peak throughput of a link between two nodes.

Both keep a small window and drop old values, so that they follow a link that changed.

LME1  A peak is 1 Gbit/s until a transfer of enough bytes has shown another one (R10); small bursts never count.
LME2  A transfer that was held back by our own budget never lowers a peak. Else a budget of half the peak would halve
    the peak, then the budget, and so on to nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PEAK_BYTES_PER_S_FIRST: Final = 125_000_000
"""1 Gbit/s: the assumed peak of a link that has not been used (R10)."""

_SAMPLES_MAX: Final = 16
_OUTLIER_SAMPLES_MIN: Final = 5
_OUTLIER_FACTOR: Final = 8
_OUTLIERS_BELIEVED: Final = 3
_BUCKET_MS: Final = 60_000
_BUCKETS: Final = 10


class RoundTrips:
    """The last few round trips. One outlier is ignored; several in a row mean that the route has changed."""

    __slots__ = ("_samples", "_wild")

    def __init__(self) -> None:
        self._samples: deque[int] = deque(maxlen=_SAMPLES_MAX)
        self._wild: list[int] = []

    def add(self, rtt_us: int) -> bool:
        """Add a measurement; False if it was ignored. A negative one is the result of two clocks' rates over a long
        hold."""
        if rtt_us < 0:
            return False
        rtt_us = max(rtt_us, 1)
        median_us = self.median_us()
        if len(self._samples) >= _OUTLIER_SAMPLES_MIN and rtt_us > _OUTLIER_FACTOR * (median_us or 1):
            self._wild.append(rtt_us)
            if len(self._wild) < _OUTLIERS_BELIEVED:
                return False
            self._samples.clear()
            self._samples.extend(self._wild)
        else:
            self._samples.append(rtt_us)
        self._wild = []
        return True

    def median_us(self) -> int | None:
        return sorted(self._samples)[len(self._samples) // 2] if self._samples else None


class Peak:
    """The highest throughput of the last ten minutes of transfers.

    When no transfer in those minutes showed the link itself, the highest ever shown counts: the first transfer that the
    link then holds back corrects it. So one congested hour does not stay for ever (LME2).
    """

    __slots__ = ("_buckets", "_bytes_min", "_highest")

    def __init__(self, *, bytes_min: int) -> None:
        self._bytes_min = bytes_min
        self._buckets: deque[tuple[int, int]] = deque(maxlen=_BUCKETS)
        """(minute, highest of that minute), oldest first."""
        self._highest = 0

    def record(self, byte_count: int, elapsed_us: int, now_ms: int, *, limited: bool) -> None:
        """A transfer ended. `limited` says that our own budget held it back, not the link."""
        if byte_count < self._bytes_min or elapsed_us <= 0:
            return
        bytes_per_s = byte_count * 1_000_000 // elapsed_us
        if limited and bytes_per_s <= self.bytes_per_s(now_ms):
            return
        minute = now_ms // _BUCKET_MS
        if self._buckets and self._buckets[-1][0] >= minute:
            newest, highest = self._buckets.pop()
            self._buckets.append((newest, max(highest, bytes_per_s)))
        else:
            self._buckets.append((minute, bytes_per_s))
        self._highest = max(self._highest, bytes_per_s)

    def shown_bytes_per_s(self, now_ms: int) -> int:
        """The measured peak; 0 while there is none."""
        oldest = now_ms // _BUCKET_MS - _BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            self._buckets.popleft()
        return max((highest for _, highest in self._buckets), default=self._highest)

    def bytes_per_s(self, now_ms: int) -> int:
        return self.shown_bytes_per_s(now_ms) or PEAK_BYTES_PER_S_FIRST
