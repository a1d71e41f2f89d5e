"""Resolves the start and stop positions of a subscription to offsets.

Offsets are Tidelog's own: control records take some, so the messages of a partition have gaps in their offsets, like
Liftbridge's after compaction (docs/decisions/0014).

LO1  A start or stop by time is resolved when the subscription begins: the start to the first message at or after that
     time, the stop to the message before the first one that is later.
LO2  Nothing beyond the committed end is read. NEW_ONLY and STOP_LATEST use the end of what the replica holds.
LO3  A start beyond the end of the leader's log means its end: the next message is the first one given. Another replica
     may only be behind, so there the subscription waits for the start; else messages would be given twice.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.client.records import records_of
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.gateways.liftbridge.logs import PartitionEnds, PartitionLog
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status

_NS_PER_US: Final = 1_000
_WINDOW_FIRST: Final = 16
_WINDOW_FACTOR: Final = 16


class OffsetSpan(NamedTuple):
    """Offsets from `start` up to and including `stop`, if there is one."""

    start: int
    stop: int | None


async def span_of(
    log: PartitionLog, standing: PartitionEnds, request: pb.SubscribeRequest, *, is_leaders: bool = True
) -> OffsetSpan:
    """Raises `GatewayRefusedError` if the span is empty or invalid. `is_leaders`: the log is the leader's (LO3)."""
    places = _Places(log, standing)
    stop = await _stop(places, request)
    start = await _start(places, request)
    if stop is not None and stop < start:
        raise GatewayRefusedError(
            Status.INVALID_ARGUMENT, f"the subscription would stop at {stop}, before it starts at {start}"
        )
    return OffsetSpan(min(start, standing.log_end) if is_leaders else start, stop)


async def _start(places: _Places, request: pb.SubscribeRequest) -> int:
    match request.startPosition:
        case pb.NEW_ONLY:
            return places.log_end
        case pb.OFFSET:
            return max(request.startOffset, places.log_start)
        case pb.EARLIEST:
            return places.log_start
        case pb.LATEST:
            last = await places.last_message()
            return places.end if last is None else last
        case pb.TIMESTAMP:
            at_us = -(-request.startTimestamp // _NS_PER_US)
            found = await places.first_from(at_us)
            return places.end if found is None else found
        case _:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"start position {request.startPosition} is not known")


async def _stop(places: _Places, request: pb.SubscribeRequest) -> int | None:
    match request.stopPosition:
        case pb.STOP_ON_CANCEL:
            return None
        case pb.STOP_OFFSET:
            return int(request.stopOffset)
        case pb.STOP_LATEST | pb.STOP_TIMESTAMP:
            if await places.last_message() is None and places.log_end == places.end:
                raise GatewayRefusedError(Status.RESOURCE_EXHAUSTED, "the partition is empty, so the subscription ends")
            if request.stopPosition == pb.STOP_LATEST:
                return places.log_end - 1
            later = await places.first_from(request.stopTimestamp // _NS_PER_US + 1)
            return (places.end if later is None else later) - 1
        case _:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"stop position {request.stopPosition} is not known")


class _Places:
    """A log as it was when the subscription began."""

    def __init__(self, log: PartitionLog, standing: PartitionEnds) -> None:
        self._log = log
        self.log_start, self.end, self.log_end = standing

    async def last_message(self) -> int | None:
        """Searched backwards from the end in growing windows, since control records are few."""
        window, high = _WINDOW_FIRST, self.end
        while high > self.log_start:
            low = max(self.log_start, self.end - window)
            found = None
            async for block in self._log.blocks(low, high):
                for record in records_of(block, start=low)[-1:]:
                    found = record.offset
            if found is not None:
                return found
            high, window = low, window * _WINDOW_FACTOR
        return None

    async def first_from(self, time_us: int) -> int | None:
        """The first message at or after this time (LO1)."""
        return await self._log.first_from(time_us, self.end)
