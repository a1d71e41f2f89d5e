"""What a leader knows of one follower: how far their logs agree, and what is in flight to it."""

from __future__ import annotations

import zlib
from collections import deque
from enum import Enum

from tidelog.core.raft.messages import Snapshot


class Pace(Enum):
    PROBE = "probe"
    """It is not known where the logs agree: one append at a time."""
    REPLICATE = "replicate"
    """Appends follow each other without waiting for answers, up to a limit."""
    SNAPSHOT = "snapshot"
    """The entries it needs next are compacted away; a snapshot is being sent in chunks."""


class MemberProgress:
    """Invariant: match < next. `match` never falls while this leader leads."""

    __slots__ = (
        "_flight",
        "_flight_bytes",
        "heard",
        "match",
        "next",
        "pace",
        "probed",
        "round",
        "snapshot",
        "snapshot_checksum",
        "snapshot_received",
        "told",
    )

    def __init__(self, next_index: int) -> None:
        self.match = 0
        self.next = next_index
        self.pace = Pace.PROBE
        self.probed = False
        """An append is in flight and nothing more is sent before the next heartbeat or answer."""
        self.heard = True
        """It was heard since the last check of the quorum; a new follower counts as heard."""
        self.round = 0
        """The newest round it has answered."""
        self.snapshot: Snapshot | None = None
        self.snapshot_checksum = self.snapshot_received = 0
        self.told = 0
        """The newest commit index that was sent to it."""
        self._flight: deque[tuple[int, int]] = deque()
        self._flight_bytes = 0

    def has_room(self, inflight_max: int, inflight_bytes_max: int) -> bool:
        return len(self._flight) < inflight_max and self._flight_bytes < inflight_bytes_max

    def sent(self, last_index: int, size_bytes: int) -> None:
        self.next = last_index + 1
        self._flight.append((last_index, size_bytes))
        self._flight_bytes += size_bytes

    def accepted(self, index: int) -> None:
        """It holds everything up to `index`, durably."""
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self._flight and self._flight[0][0] <= index:
            self._flight_bytes -= self._flight.popleft()[1]
        if self.pace is Pace.SNAPSHOT:
            assert self.snapshot is not None
            if index < self.snapshot.head.index:
                return
            self.snapshot = None
        self.pace = Pace.REPLICATE
        self.probed = False

    def probe_from(self, next_index: int) -> None:
        self.pace = Pace.PROBE
        self.probed = False
        self.next = max(next_index, self.match + 1)
        self.snapshot = None
        self._flight.clear()
        self._flight_bytes = 0

    def send_snapshot(self, snapshot: Snapshot) -> None:
        self.probe_from(self.next)
        self.pace = Pace.SNAPSHOT
        self.snapshot = snapshot
        self.snapshot_checksum = zlib.crc32(snapshot.data)
        self.snapshot_received = 0
