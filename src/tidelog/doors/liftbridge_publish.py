"""Publish, PublishAsync and PublishToSubject: where messages go, and what is checked before.

LU1  A call waits for its ack only if its policy is not NONE and it has a deadline, as with Liftbridge:
     python-liftbridge sets none, and would wait for ever where nobody can write.
LU3  A message that nobody is told about (NONE, or no deadline) is sent again like any other until its time is up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from tidelog.client import Client
from tidelog.cluster.client_access import ADMIN, ALL_CHANNELS, WRITE, ClientAccess
from tidelog.core.catalog import ChannelRecord
from tidelog.core.subjects import subject_problem
from tidelog.doors.liftbridge_async import AsyncStream
from tidelog.doors.liftbridge_names import OWN_HEADERS
from tidelog.doors.liftbridge_producers import Outgoing, Producers
from tidelog.doors.liftbridge_refusals import RefusedError, Status
from tidelog.doors.liftbridge_streams import Streams
from tidelog.doors.liftbridge_subjects import SubjectPublishing, Told
from tidelog.errors import AccessDenied, ChannelPaused, ChannelReadonly, LogError
from tidelog.wire.nats_subjects import attached_subject
from tidelog.wire.proto import liftbridge_pb2 as pb
from tidelog.wire.stream_names import Place

_NO_DEADLINE_S: Final = 1e9
_TARGETS_MAX: Final = 10_000
_POLICIES: Final = frozenset({pb.LEADER, pb.ALL, pb.NONE})


class Target(NamedTuple):
    """Where a message goes."""

    record: ChannelRecord
    place: Place
    subject: str
    checks_offsets: bool

    def ack(self, policy: int, *, received_ns: int) -> pb.Ack:
        """What acks of messages that go there have in common; an ack for ALL is made when they are committed."""
        return pb.Ack(
            stream=self.place.stream,
            partitionSubject=self.subject,
            msgSubject=self.subject,
            ackPolicy=policy,  # type: ignore[arg-type]
            receptionTimestamp=received_ns,
            commitTimestamp=time.time_ns() if policy == pb.ALL else 0,
        )


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
        self,
        *,
        client: Client,
        producers: Producers,
        streams: Streams,
        access: ClientAccess,
        rng: random.Random,
        subjects: SubjectPublishing | None = None,
        namespace: str | None = None,
    ) -> None:
        """`subjects` and `namespace`: of the node's NATS, if it has one."""
        self._client = client
        self.producers = producers
        self._streams = streams
        self._access = access
        self._rng = rng
        self._subjects = subjects
        self._namespace = namespace
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
        """To every stream with this subject; of those with the same group to one.

        While NATS is reached, attached streams are told over it, and so is whoever else listens there.
        """
        _require_policy(request.ackPolicy)
        subjects = self._subjects if self._subjects is not None and self._subjects.is_up else None
        if not request.subject or any(character.isspace() for character in request.subject):
            raise RefusedError(Status.INVALID_ARGUMENT, f"{request.subject[:80]!a} is no subject")
        targets, refusal = [], None
        for place in self._chosen(request.subject) if subjects is None else self._streams.listening(request.subject):
            try:
                targets.append(await self._writable(await self._found(*place), principal))
            except (LogError, RefusedError) as error:
                if subjects is not None and isinstance(error, AccessDenied):
                    raise  # over NATS nobody could be left out
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
        if subjects is None:
            return pb.PublishToSubjectResponse(ack=await self._sent(targets, wanted, context))
        self._check_carried(request.subject, targets, principal)
        # Channels whose name alone is their subject are not attached: they are reached as without NATS.
        targets = [target for target in targets if target.record.config.subject is None]
        message = pb.Message(
            value=request.value,
            key=request.key,
            headers=dict(_headers(request.headers)),
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
        )
        ack = await self._sent(targets, wanted, context, carry=partial(subjects.publish, request.subject, message))
        return pb.PublishToSubjectResponse(ack=ack)

    def _check_carried(self, subject: str, targets: list[Target], principal: str) -> None:
        """What goes over NATS may be heard by anybody: it keeps away from the cluster's own subjects, and where no
        stream's grants say who may, it takes a grant for all."""
        problem = subject_problem(subject, namespace=self._namespace)
        if problem is not None:
            raise RefusedError(Status.INVALID_ARGUMENT, f"subject {subject[:80]!a} {problem}")
        if not targets:
            self._access.require(principal, ALL_CHANNELS, WRITE)

    async def publish_async(
        self, requests: Any, context: Any, principal: str, *, still: Callable[[], str] = str
    ) -> None:
        """`still` raises once the caller is nobody any more; it is asked now and then."""
        await AsyncStream(self, context, principal, still).run(requests)

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

    # --- one message of many -------------------------------------------------------------------------

    async def wait_room(self) -> None:
        """Until the node takes more."""
        await self.producers.wait_room()

    def ready(self, stream: str, partition: int, policy: int, principal: str) -> Target | None:
        """Where messages go that need no wait and no look at each; None: let `take` see to them."""
        if policy not in _POLICIES:
            return None
        target = self._known(stream, partition)
        if target is None or target.checks_offsets:
            return None
        record = target.record
        if record.paused or record.readonly or not self._access.allows(principal, record.name, WRITE):
            return None
        return target

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

        await self.producers.wait_room()
        self.producers.send(target.record, wanted.policy, wanted.outgoing, done)

    # --- and off it goes -----------------------------------------------------------------------------

    async def _sent(
        self, targets: list[Target], wanted: Wanted, context: Any, *, carry: Callable[[Told | None], int] | None = None
    ) -> pb.Ack | None:
        """The first ack, if the caller waits for one (LU1). `carry` sends it over NATS too."""
        left_s = context.time_remaining()
        waits = wanted.policy != pb.NONE and left_s is not None and left_s < _NO_DEADLINE_S
        first: asyncio.Future[pb.Ack] = asyncio.get_running_loop().create_future()
        left = len(targets) + (carry is not None)

        def told(outcome: pb.Ack | LogError | RefusedError) -> None:
            nonlocal left
            left -= 1
            if first.done():
                return
            if isinstance(outcome, pb.Ack):
                first.set_result(outcome)
            elif left <= 0 and waits:
                first.set_exception(outcome)

        number = carry(told if waits else None) if carry is not None else 0
        try:
            await self._send_each(targets, wanted, told)
            if not waits:
                return None
            if not targets and carry is None:
                words = "no stream has this subject, so nobody will ack the message"
                raise RefusedError(Status.DEADLINE_EXCEEDED, words)
            return await first
        finally:
            if number and self._subjects is not None:
                self._subjects.forget(number)

    async def _send_each(
        self, targets: list[Target], wanted: Wanted, told: Callable[[pb.Ack | LogError], None]
    ) -> None:
        def answered(target: Target, offset: int, error: LogError | None) -> None:
            told(error if error is not None else _ack(target, wanted, offset))

        for target in targets:
            await self.producers.wait_room()
            self.producers.send(
                target.record,
                wanted.policy,
                wanted.outgoing,
                partial(answered, target),
            )


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
    return [(name, headers[name]) for name in sorted(headers) if name not in OWN_HEADERS]


def _ack(target: Target, wanted: Wanted, offset: int) -> pb.Ack:
    ack = target.ack(wanted.policy, received_ns=wanted.received_ns)
    ack.offset, ack.ackInbox, ack.correlationId = offset, wanted.inbox, wanted.correlation
    return ack
