"""Publish, PublishAsync and PublishToSubject.

LU1  A call waits for its ack only if its policy is not NONE and it has a deadline, as with Liftbridge:
     python-liftbridge sets none, and would wait for ever where nobody can write.
LU2  PublishAsync never waits for one message before it takes the next. A stream has at most `_UNANSWERED_MAX` messages
     without a written answer; beyond it the client is read no further.
LU3  A message that nobody is told about (NONE, or no deadline) is sent again like any other until its time is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

from tidelog.client import Client
from tidelog.cluster.client_access import ADMIN, WRITE, ClientAccess
from tidelog.core.catalog import ChannelRecord
from tidelog.doors.liftbridge_names import Place
from tidelog.doors.liftbridge_producers import Outgoing, Producers
from tidelog.doors.liftbridge_refusals import RefusedError, Status, async_error_of
from tidelog.doors.liftbridge_streams import Streams
from tidelog.errors import ChannelPaused, ChannelReadonly, LogError
from tidelog.wire.nats_subjects import attached_subject
from tidelog.wire.proto import liftbridge_pb2 as pb

_UNANSWERED_MAX: Final = 8_192
_HALF_CLOSE_S: Final = 5.0
_STILL_S: Final = 1.0
"""How often the certificate of a stream is looked at again."""
_NO_DEADLINE_S: Final = 1e9
_TARGETS_MAX: Final = 10_000
_POLICIES: Final = frozenset({pb.LEADER, pb.ALL, pb.NONE})
_OWN_HEADERS: Final = frozenset({"subject", "reply"})
"""Set on the way out, whatever a client says."""


class Target(NamedTuple):
    """Where a message goes."""

    record: ChannelRecord
    place: Place
    subject: str
    checks_offsets: bool


class Wanted(NamedTuple):
    """What the three calls have in common."""

    outgoing: Outgoing
    policy: int
    correlation: str
    inbox: str
    received_ns: int


class Publishing:
    """One for each door."""

    def __init__(
        self, *, client: Client, producers: Producers, streams: Streams, access: ClientAccess, rng: random.Random
    ) -> None:
        self._client = client
        self._producers = producers
        self._streams = streams
        self._access = access
        self._rng = rng
        self._targets: dict[Place, Target] = {}

    # --- the calls -----------------------------------------------------------------------------------

    async def publish(self, request: pb.PublishRequest, context: Any, principal: str) -> pb.PublishResponse:
        target = self._known(request.stream, request.partition) or await self._found(request.stream, request.partition)
        target = await self._writable(target, principal)
        ack = await self._sent([target], _wanted(request, target), context)
        return pb.PublishResponse(ack=ack, correlationId=request.correlationId)

    async def publish_to_subject(
        self, request: pb.PublishToSubjectRequest, context: Any, principal: str
    ) -> pb.PublishToSubjectResponse:
        """To every stream with this subject; of those with the same group to one."""
        if not request.subject or any(character.isspace() for character in request.subject):
            raise RefusedError(Status.INVALID_ARGUMENT, f"{request.subject[:80]!a} is no subject")
        _require_policy(request.ackPolicy)
        targets, refusal = [], None
        for place in self._chosen(request.subject):
            try:
                targets.append(await self._writable(await self._found(*place), principal))
            except (LogError, RefusedError) as error:
                refusal = error
        if refusal is not None and not targets:
            raise refusal
        wanted = Wanted(
            Outgoing(request.value, request.key or None, _headers(request.headers)),
            request.ackPolicy,
            request.correlationId,
            request.ackInbox,
            time.time_ns(),
        )
        return pb.PublishToSubjectResponse(ack=await self._sent(targets, wanted, context))

    async def publish_async(
        self, requests: AsyncIterator[Any], context: Any, principal: str, *, still: Callable[[], str] = str
    ) -> None:
        """`still` raises once the caller is nobody any more; it is asked now and then."""
        await _AsyncStream(self, context, principal, still).run(requests)

    # --- where to ------------------------------------------------------------------------------------

    def _known(self, stream: str, partition: int) -> Target | None:
        """Without a wait, as long as the catalog has not moved the partition."""
        place = Place(stream, partition)
        target = self._targets.get(place)
        record = self._streams.find(place)
        if record is None or (target is not None and target.record is record):
            return None if record is None else target
        facts = self._streams.facts(stream)
        target = Target(record, place, attached_subject(facts.subject, partition), facts.checks_offsets)
        if len(self._targets) >= _TARGETS_MAX:
            self._targets.clear()
        self._targets[place] = target
        return target

    async def _found(self, stream: str, partition: int) -> Target:
        await self._streams.require(Place(stream, partition))
        target = self._known(stream, partition)
        if target is None:
            raise RefusedError(Status.NOT_FOUND, f"there is no partition {partition} of {stream[:80]!a}")
        return target

    async def _writable(self, target: Target, principal: str) -> Target:
        """A paused partition is resumed, by whoever may resume it."""
        record = target.record
        self._access.require(principal, record.name, WRITE)
        if record.readonly:
            raise ChannelReadonly(channel=record.name)
        if not record.paused:
            return target
        if not self._access.allows(principal, record.name, ADMIN):
            raise ChannelPaused(channel=record.name)
        await self._client.resume(record.name)
        await self._streams.catch_up()
        return await self._found(*target.place)

    def _chosen(self, subject: str) -> list[Place]:
        groups: dict[str, list[Place]] = {}
        places = []
        for place in self._streams.listening(subject):
            group = self._streams.facts(place.stream).group
            if group:
                groups.setdefault(group, []).append(place)
            else:
                places.append(place)
        return places + [self._rng.choice(members) for members in groups.values()]

    async def take(self, request: pb.PublishRequest, principal: str, answered: Any) -> None:
        """One message of PublishAsync: waits only for room, or where something is out of the ordinary."""
        target = self._known(request.stream, request.partition)
        if target is None:
            target = await self._found(request.stream, request.partition)
        record = target.record
        if record.paused or record.readonly or not self._access.allows(principal, record.name, WRITE):
            target = await self._writable(target, principal)
        wanted = _wanted(request, target)

        def done(offset: int, error: LogError | None) -> None:
            answered(error if error is not None else _ack(target, wanted, offset))

        await self._producers.wait_room()
        self._producers.send(target.record, wanted.policy, wanted.outgoing, done)

    # --- and off it goes -----------------------------------------------------------------------------

    async def _sent(self, targets: list[Target], wanted: Wanted, context: Any) -> pb.Ack | None:
        """The first ack, if the caller waits for one (LU1)."""
        left_s = context.time_remaining()
        waits = wanted.policy != pb.NONE and left_s is not None and left_s < _NO_DEADLINE_S
        first: asyncio.Future[pb.Ack] = asyncio.get_running_loop().create_future()
        left = len(targets)

        def answered(target: Target, offset: int, error: LogError | None) -> None:
            nonlocal left
            left -= 1
            if first.done():
                return
            if error is None:
                first.set_result(_ack(target, wanted, offset))
            elif left == 0 and waits:
                first.set_exception(error)

        for target in targets:
            await self._producers.wait_room()
            self._producers.send(
                target.record,
                wanted.policy,
                wanted.outgoing,
                lambda offset, error, target=target: answered(target, offset, error),  # type: ignore[misc]
            )
        if not waits:
            return None
        if not targets:
            raise RefusedError(Status.DEADLINE_EXCEEDED, "no stream has this subject, so nobody will ack the message")
        return await first


class _AsyncStream:
    """One client's PublishAsync."""

    def __init__(self, publishing: Publishing, context: Any, principal: str, still: Callable[[], str]) -> None:
        self._publishing = publishing
        self._context = context
        self._principal = principal
        self._still = still
        self._asked_s = time.monotonic()
        self._ready: deque[pb.PublishResponse] = deque()
        self._unanswered = 0
        """Messages whose answer is not written yet (LU2)."""
        self._has_ended = False
        self._work = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self, requests: AsyncIterator[pb.PublishRequest]) -> None:
        problem: LogError | None = None
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write())
            try:
                async for request in requests:
                    if time.monotonic() - self._asked_s > _STILL_S:
                        self._asked_s = time.monotonic()
                        self._still()
                    while self._unanswered >= _UNANSWERED_MAX:
                        self._room.clear()
                        await self._room.wait()
                    await self._take(request)
            except LogError as error:
                problem = error  # what came before it is answered first
            self._has_ended = True
            self._work.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HALF_CLOSE_S):
                    await asyncio.shield(writing)
            writing.cancel()
        if problem is not None:
            raise problem

    async def _take(self, request: pb.PublishRequest) -> None:
        is_silent = request.ackPolicy == pb.NONE
        correlation = request.correlationId

        def answered(outcome: pb.Ack | LogError) -> None:
            if isinstance(outcome, LogError):
                self._refuse(correlation, outcome)
            elif is_silent:
                self._settled()
            else:
                self._answer(pb.PublishResponse(ack=outcome, correlationId=correlation))

        self._unanswered += 1
        try:
            await self._publishing.take(request, self._principal, answered)
        except (LogError, RefusedError) as error:
            self._refuse(correlation, error)

    def _refuse(self, correlation: str, error: LogError | RefusedError) -> None:
        self._answer(pb.PublishResponse(ack=pb.Ack(), asyncError=async_error_of(error), correlationId=correlation))

    def _answer(self, response: pb.PublishResponse) -> None:
        self._ready.append(response)
        self._work.set()

    def _settled(self) -> None:
        self._unanswered -= 1
        self._room.set()
        if self._has_ended:
            self._work.set()

    async def _write(self) -> None:
        while not (self._has_ended and not self._unanswered):
            await self._work.wait()
            self._work.clear()
            while self._ready:
                await self._context.write(self._ready.popleft())
                self._settled()


def _wanted(request: pb.PublishRequest, target: Target) -> Wanted:
    _require_policy(request.ackPolicy)
    expected = None
    if target.checks_offsets and request.expectedOffset != -1:
        expected = request.expectedOffset
    if target.checks_offsets and request.ackPolicy == pb.NONE:
        raise RefusedError(Status.INVALID_ARGUMENT, "a stream that checks offsets must tell; choose LEADER or ALL")
    if expected is not None and expected < 0:
        raise RefusedError(Status.INVALID_ARGUMENT, f"no message has offset {expected}; -1 leaves it open")
    outgoing = Outgoing(request.value, request.key or None, _headers(request.headers), expected)
    return Wanted(outgoing, request.ackPolicy, request.correlationId, request.ackInbox, time.time_ns())


def _require_policy(policy: int) -> None:
    if policy not in _POLICIES:
        raise RefusedError(Status.INVALID_ARGUMENT, f"ack policy {policy} is not known; choose LEADER, ALL or NONE")


def _headers(headers: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    if not headers:
        return []
    return [(name, headers[name]) for name in sorted(headers) if name not in _OWN_HEADERS]


def _ack(target: Target, wanted: Wanted, offset: int) -> pb.Ack:
    return pb.Ack(
        stream=target.place.stream,
        partitionSubject=target.subject,
        msgSubject=target.subject,
        offset=offset,
        ackInbox=wanted.inbox,
        correlationId=wanted.correlation,
        ackPolicy=wanted.policy,  # type: ignore[arg-type]
        receptionTimestamp=wanted.received_ns,
        commitTimestamp=time.time_ns() if wanted.policy == pb.ALL else 0,
    )
