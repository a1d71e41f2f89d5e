"""How far each replica has confirmed the log, as its leader sees it, and the committed end that follows.

Pure arithmetic on offsets and times. `Lags` tells since when a replica has been behind; `committed_end` is the one
place where the high watermark is computed.

PG1  The committed end is the smallest durable end of the leader and of every counted replica, and only rises (R3).
PG2  It moves only while the ISR has at least `min_isr` members (R4); a joining replica does not count for that.
PG3  A replica whose end in this epoch is not known holds nothing that counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

_MARK_MS: Final = 50
"""The time resolution of the remembered log ends."""


class ReplicaProgress:
    """One replica in one epoch, as its leader sees it."""

    __slots__ = (
        "channel_epoch",
        "committed_told",
        "fetch_from",
        "held_end",
        "incarnation",
        "is_known",
        "notified_ms",
        "reading",
        "request_id",
        "seen_ms",
        "sent_end",
        "shrunk_ms",
        "since_ms",
        "stands",
        "wait_until_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.is_known = False
        """Whether it has sent a request in this epoch, with a history that matches."""
        self.incarnation = 0
        self.fetch_from = 0
        self.held_end = 0
        self.sent_end = 0
        self.committed_told = -1
        self.request_id = 0
        self.channel_epoch = 0
        """The committed end that it knew at its last request."""
        self.stands = False
        """A standing request of it waits for the next records."""
        self.reading = False
        """Old blocks are being read for it."""
        self.seen_ms = now_ms
        self.since_ms = now_ms
        """Since when its end is not known, if it is not."""
        self.notified_ms = now_ms
        self.shrunk_ms = 0
        """When its removal from the ISR for lost records was last proposed."""
        self.wait_until_ms = 0
        """Its last request was delayed until then."""

    def forget(self, now_ms: int) -> None:
        """What it asked and said counts no more; it has to ask again."""
        self.is_known = self.stands = False
        self.since_ms = now_ms


class Lags:
    """Tells since when a replica at some offset has been behind."""

    def __init__(self, log_end: int, now_ms: int) -> None:
        self._marks: deque[tuple[int, int]] = deque()
        """(when, where the log ended just before it grew), both ascending."""
        self._since_ms = now_ms
        self._log_end = log_end

    def grew(self, before: int, log_end: int, now_ms: int) -> None:
        """Records were appended at `before`."""
        self._log_end = log_end
        if not self._marks or now_ms - self._marks[-1][0] >= _MARK_MS:
            self._marks.append((now_ms, before))

    def forget_before(self, end: int) -> None:
        """Every replica that counts holds everything below `end`."""
        while len(self._marks) > 1 and self._marks[1][1] <= end:
            self._marks.popleft()

    def behind_since_ms(self, end: int) -> int | None:
        """When the log first ended beyond `end`; None if it does not."""
        if end >= self._log_end:
            return None
        found = self._since_ms
        for when_ms, before in self._marks:
            if before > end:
                break
            found = when_ms
        return found


class Uncommitted:
    """How many bytes a leader has appended in its epoch that are not committed yet."""

    __slots__ = ("_blocks", "bytes")

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, int]] = deque()
        """(end, bytes), ascending."""
        self.bytes = 0

    def grew(self, end: int, byte_count: int) -> None:
        self._blocks.append((end, byte_count))
        self.bytes += byte_count

    def settled(self, committed_end: int) -> None:
        blocks = self._blocks
        while blocks and blocks[0][0] <= committed_end:
            self.bytes -= blocks.popleft()[1]

    def cut(self, log_end: int) -> None:
        """The bytes beyond were refused."""
        blocks = self._blocks
        while blocks and blocks[-1][0] > log_end:
            self.bytes -= blocks.pop()[1]


def committed_end(
    *, current: int, own_end: int, counted: Iterable[ReplicaProgress], isr_count: int, min_isr: int
) -> int:
    """PG1, PG2, PG3. `counted` are the other members of the ISR and replicas that are joining it."""
    if isr_count < min_isr:
        return current
    smallest = own_end
    for progress in counted:
        if not progress.is_known:
            return current
        smallest = min(smallest, progress.held_end)
    return max(current, smallest)
