"""Timestamps in partition metadata: first and latest message, pause and readonly change.

Message times come from the replica's fold over its log. The catalog has no times of pauses and readonly changes; they
are those at which this node applied the change, since its start, as in Liftbridge's servers.

The caller calls `start` once the node runs and `close` at the end, both on the event loop.

TI1  At most `CHANNELS_MAX` channels are remembered; the one that changed longest ago is dropped first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.catalog import Applied, Batch, DeleteChannel, PauseChannel, ResumeChannel, SetReadonly

CHANNELS_MAX: Final = 10_000
_NS_PER_US: Final = 1_000


@dataclass(slots=True)
class _Span:
    """First and latest time of an event; 0 is never."""

    first_ns: int = 0
    latest_ns: int = 0

    def note(self, now_ns: int) -> None:
        self.first_ns = self.first_ns or now_ns
        self.latest_ns = now_ns


@dataclass(slots=True)
class _Times:
    paused: _Span = field(default_factory=_Span)
    readonly: _Span = field(default_factory=_Span)


class PartitionTimes:
    """One for each gateway."""

    def __init__(self, channels: LocalChannels, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._channels = channels
        self._now_ns = now_ns
        self._unwatch: Callable[[], None] = _watch_nothing
        self._times: OrderedDict[int, _Times] = OrderedDict()

    def start(self) -> None:
        self._unwatch = self._channels.watch_catalog(self.applied)

    def close(self) -> None:
        self._unwatch()
        self._unwatch = _watch_nothing

    def applied(self, applied: Sequence[Applied]) -> None:
        """Catalog watcher. Changes that a starting node replays have no time."""
        if not self._channels.is_registered:
            return
        for one in applied:
            if one.refusal is not None:
                continue
            for change in one.change.changes if isinstance(one.change, Batch) else (one.change,):
                match change:
                    case PauseChannel(channel_id=channel_id) | ResumeChannel(channel_id=channel_id):
                        self._of(channel_id).paused.note(self._now_ns())
                    case SetReadonly(channel_id=channel_id):
                        self._of(channel_id).readonly.note(self._now_ns())
                    case DeleteChannel(channel_id=channel_id):
                        self._times.pop(channel_id, None)

    def _of(self, channel_id: int) -> _Times:
        times = self._times.setdefault(channel_id, _Times())
        self._times.move_to_end(channel_id)
        if len(self._times) > CHANNELS_MAX:
            self._times.popitem(last=False)  # TI1
        return times

    def fill(self, channel_id: int, found: pb.PartitionMetadata) -> None:
        """Fill in the timestamps; 0 where this node does not know."""
        replica = self._channels.find_replica(channel_id)
        fold = None if replica is None else replica.fold
        received = _Span()
        if fold is not None:
            received = _Span(fold.first_data_us * _NS_PER_US, fold.latest_data_us * _NS_PER_US)
        times = self._times.get(channel_id) or _Times()
        for shown, span in (
            (found.messagesReceivedTimestamps, received),
            (found.pauseTimestamps, times.paused),
            (found.readonlyTimestamps, times.readonly),
        ):
            shown.SetInParent()
            shown.firstTimestamp, shown.latestTimestamp = span.first_ns, span.latest_ns


def _watch_nothing() -> None:
    """Stands for the end of a watch that has not begun."""
