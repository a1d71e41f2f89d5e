"""Publishes to streams that check expected offsets: one message at a time, each only at the offset it expects.

A publisher that expects offset N has read everything before N and wants its message only if no other message was
published since. In Liftbridge N is the offset that the message gets. Here the channel's control records (the first
record of an epoch, cursors) take offsets too, so the message may get a later one; still no other message lies between N
and its offset.

The log takes a block only at the offset it is sent for. On a conflict the gateway reads the offsets from N up to the
log's end, and if they hold only control records, sends the message again for the log's end.

EX1  A message that expects N is in the log only if no other message has an offset from N up to its own.
EX2  Messages of one partition are sent one by one in the order given, since each may depend on the one before.
EX3  The reception time in an ack is the time at which the message was last given to the producer, so it is never
     before the timestamp of the record.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog.client import Client
from tidelog.client.records import holds_data
from tidelog.cluster.local_channels import LocalChannels
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import LogError, OffsetConflict
from tidelog.gateways.liftbridge.logs import log_of
from tidelog.gateways.liftbridge.producers import GatewayProducers, OutgoingMessage
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError

_TRIES_MAX: Final = 8
"""Between two attempts a cursor or the leader changed."""
_BETWEEN_MAX: Final = 4_096
"""How many offsets are searched; a channel does not get that many control records between two messages."""
_COMMITTED_S: Final = 5.0
_LOOK_S: Final = 0.005


class Placed(NamedTuple):
    """A message's offset, and when it was last given to its producer (EX3)."""

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

    def __init__(self, channels: LocalChannels, *, client: Client, producers: GatewayProducers) -> None:
        self._channels = channels
        self._client = client
        self._producers = producers
        self._waiting: dict[int, deque[_Given]] = {}
        """By channel; one task per channel sends the first message of the queue."""
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, record: ChannelRecord, policy: int, message: OutgoingMessage, told: Told, *, principal: str) -> None:
        """Queue one message; `told` is called once, later. The caller bounds how many are queued."""
        waiting = self._waiting.get(record.channel_id)
        if waiting is None:
            waiting = self._waiting[record.channel_id] = deque()
            task = asyncio.get_running_loop().create_task(self._carry_out(record.channel_id, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append(_Given(record, policy, message, told, principal))

    async def _carry_out(self, channel_id: int, waiting: deque[_Given]) -> None:
        """Send the channel's queued messages one by one (EX2)."""
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
        """The log's end, if this node leads and its fold shows no message between `expected` and that end."""
        replica = self._channels.find_replica(channel_id)
        if replica is None or not replica.leads or replica.fold is None:
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
        """Whether these offsets hold only control records (EX1). False also if that cannot be determined."""
        if not 0 < high - low <= _BETWEEN_MAX:
            return low == high
        log = log_of(self._channels, self._client, channel=record.name, channel_id=record.channel_id)
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
