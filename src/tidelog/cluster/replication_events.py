"""What happened between one boat and the cloud: the newest events, in memory.

The types and details are those of lplex (live_start, live_stop, backfill_start, block_received,
backfill_stop, checkpoint) and some of ours (session_opened, fenced, lineage_opened, range_lost, refused).
Blocks that come one after the other share one event with a count, and so do refusals, so that a long Backfill
or a boat that tries for ever does not push everything else out.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from tidelog.cluster.cloud_view import ReplicationEvent

EVENTS_MAX: Final = 1_024
CHECKPOINT_FRAMES: Final = 50_000

_REASONS: Final = {"rate_exceeded": "rate_limit_exceeded", "lag_exceeded": "cloud_lag_exceeded"}


def stop_reason(code: str) -> str:
    """Why a stream was ended, in lplex's word where it has one."""
    return _REASONS.get(code, code)


class EventRing:
    """The newest `EVENTS_MAX` events of one boat."""

    def __init__(self, *, events_max: int = EVENTS_MAX) -> None:
        self._events: deque[ReplicationEvent] = deque(maxlen=events_max)

    def add(self, time_us: int, kind: str, **detail: Any) -> None:
        self._events.append(ReplicationEvent(time_us=time_us, type=kind, detail=detail))

    def block_received(self, time_us: int, *, base_seq: int, frame_count: int, size: int, compressed: bool) -> None:
        """Count a block of Backfill; it joins the newest event if that is one of blocks too."""
        detail = {"base_seq": base_seq, "frame_count": frame_count, "bytes": size, "compressed": compressed}
        blocks = 1
        if self._events and self._events[-1].type == "block_received":
            before = self._events.pop().detail
            detail["base_seq"] = min(base_seq, before["base_seq"])
            detail["frame_count"] = frame_count + before["frame_count"]
            detail["bytes"] = size + before["bytes"]
            detail["compressed"] = compressed or before["compressed"]
            blocks += before["blocks"]
        self.add(time_us, "block_received", **detail, blocks=blocks)

    def refused(self, time_us: int, code: str) -> None:
        """Count a refusal; one like the newest event joins it."""
        count = 1
        if self._events and self._events[-1].type == "refused" and self._events[-1].detail["code"] == code:
            count += self._events.pop().detail["count"]
        self.add(time_us, "refused", code=code, count=count)

    def newest(self, limit: int) -> list[ReplicationEvent]:
        """At most `limit` events, newest first."""
        found = list(self._events)[-limit:] if limit > 0 else []
        return found[::-1]
