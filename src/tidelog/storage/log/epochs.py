"""Which leader epoch began at which offset: the history that truncation is decided by (KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class EpochHistory:
    """(epoch, first offset) pairs, both strictly ascending; computed from block headers."""

    __slots__ = ("_epochs", "_floor", "_starts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = (), *, floor: int = 0) -> None:
        self._floor = floor
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in pairs:
            self.note(epoch, start)

    def note(self, epoch: int, start: int) -> None:
        """A block of this epoch begins at `start`."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(start)

    @property
    def newest(self) -> int:
        """The newest epoch known: of a record, or `floor`, since the records may have been trimmed."""
        return max(self._epochs[-1] if self._epochs else 0, self._floor)

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """(largest epoch not above `epoch`, where it ends), or None when the log is younger than that."""
        place = bisect_right(self._epochs, epoch) - 1
        if place < 0:
            return None
        end = self._starts[place + 1] if place + 1 < len(self._starts) else log_end
        return self._epochs[place], end

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; 0 when the log knows none."""
        place = bisect_right(self._starts, offset) - 1
        return self._epochs[place] if place >= 0 else 0

    def next_start(self, offset: int) -> int:
        """Where the first epoch that began after `offset` began; beyond every offset when there is none."""
        place = bisect_right(self._starts, offset)
        return self._starts[place] if place < len(self._starts) else 2**64

    def truncate(self, log_end: int) -> None:
        """Forget epochs that began at or after the new end."""
        while self._starts and self._starts[-1] >= log_end:
            self._starts.pop()
            self._epochs.pop()

    def trim(self, log_start: int) -> None:
        """Forget epochs that ended at or before the new start."""
        keep = max(bisect_right(self._starts, log_start) - 1, 0)
        del self._starts[:keep]
        del self._epochs[:keep]
        if self._starts:
            self._starts[0] = max(self._starts[0], log_start)

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))
