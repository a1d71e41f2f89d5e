"""Publish, PublishAsync and PublishToSubject: where messages go, and what is checked before.

LU1  A call waits for its ack only if its policy is not NONE and it has a deadline, as with Liftbridge:
     python-liftbridge sets none, and would wait for ever where nobody can write.
LU3  A message that nobody is told about (NONE, or no deadline) is sent again like any other until its time is up.
LU5  A partition that was paused after its messages left here resumes for them: they are sent once more, perhaps behind
     others that came later. Who may not resume it is told that it is paused.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from tidelog.client import Client
from tidelog.cluster.client_access import ADMIN, ALL_CHANNELS, WRITE, ClientAccess
from tidelog.core.catalog import ChannelRecord
from tidelog.core.subjects import subject_problem
from tidelog.doors.liftbridge_async import AsyncStream
from tidelog.doors.liftbridge_expected import ExpectedOffsets
from tidelog.doors.liftbridge_names import own_headers_left_out
from tidelog.doors.liftbridge_producers import Outgoing, Producers
from tidelog.doors.liftbridge_refusals import RefusedError, Status
from tidelog.doors.liftbridge_streams import Streams, require_stream
from tidelog.doors.liftbridge_subjects import SubjectPublishing, Told
from tidelog.errors import AccessDenied, ChannelPaused, ChannelReadonly, LogError
from tidelog.wire.nats_subjects import attached_subject
from tidelog.wire.proto import liftbridge_pb2 as pb
from tidelog.wire.stream_names import Place, channel_of

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
        """What acks of messages that go there have in common. They are made when the policy is satisfied, and for
        LEADER too the time of that is the commit's, as with Liftbridge."""
        return pb.Ack(
            stream=self.place.stream,
            partitionSubject=self.subject,
            msgSubject=self.subject,
            ackPolicy=policy,  # type: ignore[arg-type]
            receptionTimestamp=received_ns,
            commitTimestamp=time.time_ns(),
        )


class Wanted(NamedTuple):
    """What the three calls have in common."""

    outgoing: Outgoing
    policy: int
    correlation: str
    inbox: str


class Publishing:
    """One for each door."""

    def __init__(
        self,
        *,
        client: Client,
        producers: Producers,
        expected: ExpectedOffsets,
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
        self._expected = expected
        self._subjects = subjects
        self._namespace = namespace
        self._targets: dict[Place, Target] = {}
        self._resuming: set[asyncio.Task[None]] = set()

    # --- the calls -----------------------------------------------------------------------------------

    async def publish(self, request: pb.PublishRequest, context: Any, principal: str) -> pb.PublishResponse:
        require_stream(request.stream)
        target = self._known(request.stream, request.partition) or await self._found(request.stream, request.partition)
        target = await self._writable(target, principal)
        ack = await self._sent([target], _wanted(request, target), context, principal)
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
            Outgoing(request.value, request.key or None, own_headers_left_out(request.headers)),
            request.ackPolicy,
            request.correlationId,
            request.ackInbox,
        )
        if subjects is None:
            return pb.PublishToSubjectResponse(ack=await self._sent(targets, wanted, context, principal))
        self._check_carried(request.subject, targets, principal)
        # Channels whose name alone is their subject are not attached: they are reached as without NATS.
        targets = [target for target in targets if target.record.config.subject is None]
        message = pb.Message(
            value=request.value,
            key=request.key,
            headers=dict(own_headers_left_out(request.headers)),
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
        )
        carry = partial(subjects.publish, request.subject, message)
        ack = await self._sent(targets, wanted, context, principal, carry=carry)
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
        if record.readonly or not self._access.allows(principal, record.name, WRITE):
            # What is refused was perhaps allowed a moment ago, at another node.
            await self._streams.catch_up()
            target = await self._found(*target.place)
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

    def after_pause(
        self, place: Place, principal: str, send: Callable[[Target], None], refuse: Callable[[LogError], None]
    ) -> None:
        """Messages met a pause of which this node had not heard: resume, and `send` them once more (LU5)."""
        # Kept in `_resuming` until it is done; bounded by what may be unanswered at all.
        task = asyncio.get_running_loop().create_task(self._resume_and(place, principal, send, refuse))
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)

    async def _resume_and(
        self, place: Place, principal: str, send: Callable[[Target], None], refuse: Callable[[LogError], None]
    ) -> None:
        try:
            await self._streams.catch_up()
            send(await self._writable(await self._found(*place), principal))
        except LogError as error:
            refuse(error)
        except RefusedError:
            refuse(ChannelPaused(channel=channel_of(*place)))

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
        await self.producers.wait_room()
        self._send(target, _wanted(request, target), principal, answered)

    # --- and off it goes -----------------------------------------------------------------------------

    async def _sent(
        self,
        targets: list[Target],
        wanted: Wanted,
        context: Any,
        principal: str,
        *,
        carry: Callable[[Told | None], int] | None = None,
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
            for target in targets:
                await self.producers.wait_room()
                self._send(target, wanted, principal, told)
            if not waits:
                return None
            if not targets and carry is None:
                words = "no stream has this subject, so nobody will ack the message"
                raise RefusedError(Status.DEADLINE_EXCEEDED, words)
            return await first
        finally:
            if number and self._subjects is not None:
                self._subjects.forget(number)

    def _send(
        self,
        target: Target,
        wanted: Wanted,
        principal: str,
        told: Callable[[pb.Ack | LogError], None],
        *,
        is_second: bool = False,
    ) -> None:
        received_ns = 0

        def answered(offset: int, error: LogError | None) -> None:
            if isinstance(error, ChannelPaused) and not is_second:
                send = partial(self._send, wanted=wanted, principal=principal, told=told, is_second=True)
                self.after_pause(target.place, principal, send, told)
            else:
                told(error if error is not None else _ack(target, wanted, offset, received_ns))

        if target.checks_offsets:
            self._expected.send(target.record, wanted.policy, wanted.outgoing, answered)
        else:
            self.producers.send(target.record, wanted.policy, wanted.outgoing, answered)
        received_ns = time.time_ns()  # not before the time that the producer has given the record


def _wanted(request: pb.PublishRequest, target: Target) -> Wanted:
    _require_policy(request.ackPolicy)
    expected = None
    if target.checks_offsets and request.expectedOffset != -1:
        expected = request.expectedOffset
    if target.checks_offsets and request.ackPolicy == pb.NONE:
        raise RefusedError(Status.INVALID_ARGUMENT, "a stream that checks offsets must tell; choose LEADER or ALL")
    if expected is not None and expected < 0:
        raise RefusedError(Status.INVALID_ARGUMENT, f"no message has offset {expected}; -1 leaves it open")
    outgoing = Outgoing(request.value, request.key or None, own_headers_left_out(request.headers), expected)
    return Wanted(outgoing, request.ackPolicy, request.correlationId, request.ackInbox)


def _require_policy(policy: int) -> None:
    if policy not in _POLICIES:
        raise RefusedError(Status.INVALID_ARGUMENT, f"ack policy {policy} is not known; choose LEADER, ALL or NONE")


def _ack(target: Target, wanted: Wanted, offset: int, received_ns: int) -> pb.Ack:
    ack = target.ack(wanted.policy, received_ns=received_ns)
    ack.offset, ack.ackInbox, ack.correlationId = offset, wanted.inbox, wanted.correlation
    return ack
