"""Messages of streams that check offsets: one after the other, each where its publisher expects it.

A publisher that expects offset N has read everything before N and wants its message only if nobody else's came since.
With Liftbridge that is the offset the message gets. Here the channel's own records (an epoch's first, cursors) take
offsets too, so the message may get a later one; what is promised stays: between N and its place there is no message.

How: the log takes a block only at the offset it is sent for. Where it refuses, what lies between is read, and if that
is the channel's own records alone, the message is sent again, for the log's end.

EX1  A message that expects N is in the log only if no other message lies at N or after, up to its own place.
EX2  Messages of one stream partition go one by one, in the order they were given: the next may count on the one before.
EX3  Whoever published is told when its message was last handed to the producer: not before the time that its record
     bears.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.client import Client
from tidelog.client.records import holds_data
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import LogError, OffsetConflict
from tidelog.gateways.liftbridge.logs import log_of
from tidelog.gateways.liftbridge.producers import GatewayProducers, OutgoingMessage
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

_TRIES_MAX: Final = 8
"""Between two of them a cursor was moved, or the leader."""
_BETWEEN_MAX: Final = 4_096
"""Offsets that are looked at; so many records of a channel's own do not come between two messages by chance."""
_COMMITTED_S: Final = 5.0
_LOOK_S: Final = 0.005


class Placed(NamedTuple):
    """Where a message is, and when it was last handed to its producer (EX3)."""

    offset: int
    received_ns: int


Told = Callable[[Placed | LogError], None]


class _Given(NamedTuple):
    record: ChannelRecord
    policy: int
    message: OutgoingMessage
    told: Told
    principal: str


class ExpectedOffsets:
    """One for each gateway."""

    def __init__(self, node: Node, *, client: Client, producers: GatewayProducers) -> None:
        self._node = node
        self._client = client
        self._producers = producers
        self._waiting: dict[int, deque[_Given]] = {}
        """By channel; the task that carries them out takes the first."""
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, record: ChannelRecord, policy: int, message: OutgoingMessage, told: Told, *, principal: str) -> None:
        """Take one message; `told` is called once, later. What waits is bounded by what may be unanswered."""
        waiting = self._waiting.get(record.channel_id)
        if waiting is None:
            waiting = self._waiting[record.channel_id] = deque()
            task = asyncio.get_running_loop().create_task(self._carry_out(record.channel_id, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append(_Given(record, policy, message, told, principal))

    async def _carry_out(self, channel_id: int, waiting: deque[_Given]) -> None:
        """EX2."""
        try:
            while waiting:
                given = waiting.popleft()
                outcome: Placed | LogError
                try:
                    outcome = await self._placed(given)
                except LogError as refusal:
                    outcome = refusal
                given.told(outcome)
        finally:
            del self._waiting[channel_id]

    async def _placed(self, given: _Given) -> Placed:
        record, expected = given.record, given.message.expected_offset
        if expected is None:
            return await self._sent(given, None)
        at = self._end_here(record.channel_id, expected)
        for _ in range(_TRIES_MAX):
            try:
                return await self._sent(given, at)
            except OffsetConflict as conflict:
                at = conflict.actual
            if at < expected or not await self._is_unwritten(record, expected, at):
                break
        raise OffsetConflict(channel=record.name, expected=expected, actual=at)

    def _end_here(self, channel_id: int, expected: int) -> int:
        """Where the message would come to lie, if this node leads and knows that nobody's lies between."""
        replica = self._node.core.channels.replicas.replica(channel_id)
        if replica is None or replica.leading is None or replica.fold is None:
            return expected
        return replica.log_end if replica.fold.data_end <= expected <= replica.log_end else expected

    async def _sent(self, given: _Given, expected: int | None) -> Placed:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answered(offset: int, error: LogError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(offset)
            else:
                done.set_exception(error)

        message = given.message._replace(expected_offset=expected)
        self._producers.send(given.record, given.policy, message, answered, principal=given.principal)
        received_ns = time.time_ns()  # after the producer has given the record its time (EX3)
        return Placed(await done, received_ns)

    async def _is_unwritten(self, record: ChannelRecord, low: int, high: int) -> bool:
        """Whether all of these offsets are the channel's own records (EX1). Also False where it cannot be told."""
        if not 0 < high - low <= _BETWEEN_MAX:
            return low == high
        log = log_of(self._node, self._client, channel=record.name, channel_id=record.channel_id)
        try:
            async with asyncio.timeout(_COMMITTED_S):
                while (standing := await log.standing()) is None or standing.committed_end < high:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
                if standing.log_start > low:
                    return False
                async for block in log.blocks(low, high):
                    if holds_data(block):
                        return False
            return True
        except (LogError, GatewayRefusedError, TimeoutError):
            return False
        finally:
            await log.close()
