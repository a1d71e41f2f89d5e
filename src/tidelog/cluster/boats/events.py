"""Events between one boat and the cluster: the newest, in memory and in the log.

The types and details are those of lplex (live_start, live_stop, backfill_start, block_received, backfill_stop,
checkpoint) and Tidelog's own (session_opened, fenced, lineage_opened, range_lost, refused). Blocks that come one after
the other share one event with a count, and so do refusals, so that a long Backfill or a boat that tries for ever does
not displace all other events.

EV1  Events are a fold over the log (F1). Some follow from its records (a session opened, a range lost, a block of
     Backfill); the others are records of their own, which the leader appends soon after, and the newest of all are in
     every fold snapshot. So they survive restarts and leader changes, but for those of the last moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.control import (
    ControlRecord,
    FoldSnapshot,
    LineageOpened,
    RangeLost,
    ReplicationEventNoted,
    SessionOpened,
    decode_control,
)
from tidelog.blocks.header import BlockKind, Codec, Path
from tidelog.cluster.boats.view import ReplicationEvent

EVENTS_MAX: Final = 1_024
EVENTS_KEPT: Final = 128
"""How many of them are kept in a fold snapshot."""
CHECKPOINT_FRAMES: Final = 50_000
_UNLOGGED_MAX: Final = 256

_REASONS: Final = {"rate_exceeded": "rate_limit_exceeded", "lag_exceeded": "cloud_lag_exceeded"}


def stop_reason(code: str) -> str:
    """Why a stream ended, in lplex's word where it has one."""
    return _REASONS.get(code, code)


class EventRing:
    """The newest `EVENTS_MAX` events of one boat."""

    def __init__(self, *, events_max: int = EVENTS_MAX) -> None:
        self._events: deque[ReplicationEvent] = deque(maxlen=events_max)
        self._unlogged: deque[ReplicationEvent] = deque(maxlen=_UNLOGGED_MAX)
        """Events that are in no record of the log yet (EV1)."""

    def add(self, time_us: int, kind: str, **detail: Any) -> None:
        """An event that follows from records of the log."""
        self._events.append(ReplicationEvent(time_us=time_us, type=kind, detail=detail))

    def note(self, time_us: int, kind: str, **detail: Any) -> None:
        """An event that needs a record of its own in the log."""
        self.add(time_us, kind, **detail)
        self._unlogged.append(self._events[-1])

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
        if self._is_refusal(code):
            joined = self._events.pop()
            count += joined.detail["count"]
            if self._unlogged and self._unlogged[-1] is joined:
                self._unlogged.pop()
        self.note(time_us, "refused", code=code, count=count)

    def _is_refusal(self, code: str) -> bool:
        return bool(self._events) and self._events[-1].type == "refused" and self._events[-1].detail["code"] == code

    def newest(self, limit: int) -> list[ReplicationEvent]:
        """At most `limit` events, newest first."""
        found = list(self._events)[-limit:] if limit > 0 else []
        return found[::-1]

    # --- the log ---------------------------------------------------------------------------------

    @property
    def has_unlogged(self) -> bool:
        return bool(self._unlogged)

    def take_unlogged(self) -> list[ControlRecord]:
        """Records of events that are not in the log yet, oldest first."""
        taken = [
            ReplicationEventNoted(time_us=event.time_us, kind=event.type, detail=event.detail)
            for event in self._unlogged
        ]
        self._unlogged.clear()
        return list(taken)

    def to_state(self) -> list[dict[str, Any]]:
        """The newest events, for a fold snapshot."""
        return [
            {"time_us": event.time_us, "kind": event.type, "detail": event.detail}
            for event in list(self._events)[-EVENTS_KEPT:]
        ]

    def replace(self, folded: EventRing) -> None:
        """Start from the events of a log, and those that are not in it yet."""
        events = [*folded._events, *self._unlogged]
        self._events.clear()
        self._events.extend(sorted(events, key=lambda event: event.time_us))

    def fold(self, block: Block) -> None:
        """Fold the next block of a log."""
        if block.maker.kind == BlockKind.CONTROL:
            self.fold_control(
                decode_control(block.maker, block.raw_body()), time_us=max(block.leader.append_time_us, 0)
            )
        elif block.leader.path == Path.BACKFILL:
            self.backfilled(block.made(), max(block.leader.append_time_us, 0))

    def fold_control(self, records: Iterable[ControlRecord], *, time_us: int) -> None:
        lost: list[RangeLost] = []
        for record in records:
            match record:
                case SessionOpened():
                    detail = {"session": record.session, "lineage": record.lineage, "boat_head_seq": record.head}
                    self.add(time_us, "session_opened", **detail)
                case LineageOpened():
                    detail = {"lineage": record.lineage, "previous": record.previous, "reason": record.reason}
                    self.add(time_us, "lineage_opened", **detail)
                case RangeLost():
                    lost.append(record)
                case ReplicationEventNoted():
                    if record.kind == "refused" and self._is_refusal(str(record.detail.get("code"))):
                        self._events.pop()  # its count has grown
                    self.add(record.time_us, record.kind, **record.detail)
                case FoldSnapshot():
                    self._restore(record.state.get("events", ()))
        if lost:
            # One event for all of them, which ascend: a boat may return with a thousand holes in its journal.
            detail = {"start": lost[0].start, "end": lost[-1].end, "ranges": len(lost), "reason": lost[0].reason}
            self.add(time_us, "range_lost", **detail)

    def _restore(self, state: Iterable[dict[str, Any]]) -> None:
        self._events.clear()
        for item in state:
            self.add(int(item["time_us"]), str(item["kind"]), **item["detail"])

    def backfilled(self, made: MadeBlock, time_us: int) -> None:
        """A block came by Backfill."""
        self.block_received(
            time_us,
            base_seq=made.maker.base_seq,
            frame_count=made.maker.record_count,
            size=made.maker.stored_bytes,
            compressed=_is_compressed(made),
        )


def _is_compressed(made: MadeBlock) -> bool:
    if made.maker.kind == BlockKind.FOREIGN:
        return made.maker.stored_bytes < made.maker.raw_bytes
    return made.maker.codec == Codec.ZSTD
