"""PublishAsync: a client's stream of messages, and their answers.

Messages of a batch that go to one partition under one ack policy are given to the producer as one run and answered
together, however they were mixed with messages for other partitions. Messages of streams that check offsets are sent
singly, as are messages whose partition first has to be looked up or resumed.

LPA2  PublishAsync never waits for one message before it takes the next. A stream has at most `UNANSWERED_MAX` messages
     without a written answer; at the limit no more is read from the client.
LPA4  Messages reach their producer in the order of their arrival, in runs or singly: LEADER and NONE share the
     producer of a partition, ALL has its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError

from tidelog.blocks.messages import Message
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.errors import BadMessage, ChannelPaused, LogError
from tidelog.gateways.liftbridge.names import own_headers_left_out
from tidelog.gateways.liftbridge.producers import MESSAGE_BYTES_MAX, RESENT_S, size_of
from tidelog.gateways.liftbridge.publish import GatewayPublishing, Target
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, async_error_of
from tidelog.transports.grpc.call import Ended

UNANSWERED_MAX: Final = 8_192
HALF_CLOSE_S: Final = 5.0
_STILL_S: Final = 1.0
"""How often the caller's certificate is checked again."""


class _Run:
    """Messages for one partition under one policy."""

    __slots__ = (
        "correlations",
        "has_inbox",
        "inboxes",
        "policy",
        "received_ns",
        "resent_until_s",
        "rows",
        "target",
        "time_us",
        "values",
    )

    def __init__(self, policy: int, target: Target) -> None:
        self.policy = policy
        self.target = target
        self.values: list[bytes] = []
        self.rows: list[Message] | None = None
        """Replaces `values` once a message has a key or headers."""
        self.time_us = time.time_ns() // 1000
        self.correlations: list[str] = []
        self.inboxes: list[str] = []
        self.has_inbox = False
        self.received_ns = 0
        self.resent_until_s = time.monotonic() + RESENT_S

    def __len__(self) -> int:
        return len(self.correlations)

    def add(self, value: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> bool:
        """Append a message; False if it is too large."""
        if not key and not headers:
            if len(value) > MESSAGE_BYTES_MAX:
                return False
            if self.rows is None:
                self.values.append(value)
            else:
                self.rows.append(Message(self.time_us, value))
            return True
        row = Message(self.time_us, value, key or None, headers)
        if size_of(row) > MESSAGE_BYTES_MAX:
            return False
        if self.rows is None:
            self.rows = [Message(self.time_us, one) for one in self.values]
            self.values = []
        self.rows.append(row)
        return True

    def messages(self, part: range) -> list[bytes] | list[Message]:
        """The messages of `part`."""
        found: list[bytes] | list[Message] = self.values if self.rows is None else self.rows
        return found if len(part) == len(found) else found[part.start : part.stop]


class AsyncStream:
    """One call of PublishAsync."""

    def __init__(
        self, publishing: GatewayPublishing, context: Any, principal: str, *, still: Callable[[], str] = str
    ) -> None:
        """`still` raises once the caller is no longer authenticated; it is called about once a second."""
        self._publishing = publishing
        self._context = context
        self._principal = principal
        self._still = still
        self._asked_s = time.monotonic()
        self._ready: list[bytes] = []
        self._runs: dict[tuple[str, int, bool], _Run] = {}
        """By partition and producer, in the order in which they began."""
        self._unanswered = 0
        """Messages whose answer is not written yet (LPA2)."""
        self._has_ended = False
        self._work = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self, requests: Any) -> None:
        """`requests` yields batches of serialized messages, as `GrpcCall` does."""
        problem: Exception | None = None
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write())
            try:
                while batch := await requests.read_batch():
                    self._ask_still()
                    await self._take_batch(batch)
            except (LogError, GatewayRefusedError, Ended) as error:
                problem = error  # the messages before it are answered first
            self._has_ended = True
            self._work.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HALF_CLOSE_S):
                    await asyncio.shield(writing)
            writing.cancel()
        if problem is not None:
            raise problem

    def _ask_still(self) -> None:
        if time.monotonic() - self._asked_s > _STILL_S:
            self._asked_s = time.monotonic()
            self._still()

    # --- requests ------------------------------------------------------------------------------------

    async def _take_batch(self, batch: Sequence[bytes]) -> None:
        taken = 0
        while taken < len(batch):
            while (room := UNANSWERED_MAX - self._unanswered) <= 0:
                self._room.clear()
                await self._room.wait()
            await self._publishing.producers.wait_room()
            part = batch[taken : taken + room]
            taken += len(part)
            try:
                for data in part:
                    request = pb.PublishRequest.FromString(data)
                    if not self._joins(request):
                        await self._take_alone(request)
            except DecodeError as error:
                raise BadMessage(problem="these bytes are no PublishRequest") from error
            finally:
                self._send_runs()

    def _joins(self, request: pb.PublishRequest) -> bool:
        """Append the message to its partition's run, if the partition is ready."""
        stream, partition, policy = request.stream, request.partition, request.ackPolicy
        place = (stream, partition, policy == pb.ALL)
        run = self._runs.get(place)
        if run is None or run.policy != policy:
            if run is not None:
                self._send_run(self._runs.pop(place))  # it shares the producer, so it is sent first (LPA4)
            target = self._publishing.ready(stream, partition, policy, self._principal)
            if target is None:
                return False
            run = self._runs[place] = _Run(policy, target)
        headers = request.headers
        if not run.add(request.value, request.key, own_headers_left_out(headers) if headers else ()):
            return False
        run.correlations.append(request.correlationId)
        inbox = request.ackInbox
        run.inboxes.append(inbox)
        if inbox:
            run.has_inbox = True
        self._unanswered += 1
        return True

    def _send_runs(self) -> None:
        """Give the runs to their producers, before anything that came later (LPA4)."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self._send_run(run)

    def _send_run(self, run: _Run) -> None:
        if run:
            self._send_values(run, run.target, range(len(run)))

    def _send_values(self, run: _Run, target: Target, part: range) -> None:
        def refuse(numbers: range, error: LogError | GatewayRefusedError) -> None:
            for number in numbers:
                self._refuse(run.correlations[number], error)

        def answered(places: range, offset: int, error: LogError | None) -> None:
            which = part[places.start : places.stop]
            if isinstance(error, ChannelPaused) and time.monotonic() < run.resent_until_s:
                again = partial(self._send_values, run, part=which)
                self._publishing.after_pause(target.place, self._principal, again, partial(refuse, which))
            elif error is not None:
                refuse(which, error)
            elif run.policy == pb.NONE:
                self._settled(len(which))
            else:
                self._answer(_acks(run, which, offset))

        try:
            producers, messages = self._publishing.producers, run.messages(part)
            producers.send_run(target.record, run.policy, messages, answered, principal=self._principal)
            run.received_ns = time.time_ns()  # read after the producer has stamped the records
        except LogError as error:
            refuse(part, error)

    async def _take_alone(self, request: pb.PublishRequest) -> None:
        self._send_runs()
        is_silent = request.ackPolicy == pb.NONE
        correlation = request.correlationId

        def answered(outcome: pb.Ack | LogError | GatewayRefusedError) -> None:
            if not isinstance(outcome, pb.Ack):
                self._refuse(correlation, outcome)
            elif is_silent:
                self._settled(1)
            else:
                self._answer([pb.PublishResponse(ack=outcome, correlationId=correlation).SerializeToString()])

        self._unanswered += 1
        try:
            await self._publishing.take(request, self._principal, answered)
        except (LogError, GatewayRefusedError) as error:
            self._refuse(correlation, error)

    # --- answers -------------------------------------------------------------------------------------

    def _refuse(self, correlation: str, error: LogError | GatewayRefusedError) -> None:
        refusal = pb.PublishResponse(ack=pb.Ack(), asyncError=async_error_of(error), correlationId=correlation)
        self._answer([refusal.SerializeToString()])

    def _answer(self, responses: list[bytes]) -> None:
        self._ready += responses
        self._work.set()

    def _settled(self, count: int) -> None:
        self._unanswered -= count
        self._room.set()
        if self._has_ended:
            self._work.set()

    async def _write(self) -> None:
        while not (self._has_ended and not self._unanswered):
            await self._work.wait()
            self._work.clear()
            while self._ready:
                ready, self._ready = self._ready, []
                await self._context.write_batch(ready)
                self._settled(len(ready))


def _acks(run: _Run, which: range, offset: int) -> list[bytes]:
    """One message object is reused for all: creating one costs more than the rest of an answer."""
    response = pb.PublishResponse(ack=run.target.ack(run.policy, received_ns=run.received_ns))
    ack = response.ack
    correlations, inboxes = run.correlations, run.inboxes if run.has_inbox else None
    found = []
    for number in which:
        ack.offset = offset
        offset += 1
        ack.correlationId = response.correlationId = correlations[number]
        if inboxes is not None:
            ack.ackInbox = inboxes[number]
        found.append(response.SerializeToString())
    return found
