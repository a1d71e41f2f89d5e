"""Where a subscription begins and ends in a partition's log.

Offsets are ours as they are: control records take some, so the messages of a partition have gaps in their offsets, as
Liftbridge's have after compaction (docs/decisions/0014).

LO1  A start or an end by time is the offset of one message, found when the subscription begins: the first at or after
     the start, and the one before the first that is later than the end.
LO2  Nothing beyond the committed end is looked at. NEW_ONLY and the end of STOP_LATEST count what the replica holds.
LO3  A start beyond the end of the leader's log is its end: the next message is the first one given. Another replica may
     only be behind: there a start beyond its end is waited for, or messages would be given twice.
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
    """Offsets from `start` on; up to and with `stop`, if there is one."""

    start: int
    stop: int | None


async def span_of(
    log: PartitionLog, standing: PartitionEnds, request: pb.SubscribeRequest, *, is_leaders: bool = True
) -> OffsetSpan:
    """Raises `GatewayRefusedError` where there is nothing to subscribe to. `is_leaders`: the log is the leader's
    (LO3).
    """
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
                raise GatewayRefusedError(
                    Status.RESOURCE_EXHAUSTED, "the partition is empty, and the subscription ends with it"
                )
            if request.stopPosition == pb.STOP_LATEST:
                return places.log_end - 1
            later = await places.first_from(request.stopTimestamp // _NS_PER_US + 1)
            return (places.end if later is None else later) - 1
        case _:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"stop position {request.stopPosition} is not known")


class _Places:
    """A log as it stands when a subscription begins."""

    def __init__(self, log: PartitionLog, standing: PartitionEnds) -> None:
        self._log = log
        self.log_start, self.end, self.log_end = standing

    async def last_message(self) -> int | None:
        """Looked for from the end backwards, further and further: control records are few."""
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
        """The first message of this time or a later one (LO1)."""
        return await self._log.first_from(time_us, self.end)
