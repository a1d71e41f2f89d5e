"""Publish and PublishToSubject, and what they share with PublishAsync: where messages go, and the checks before.

LU1  A call waits for its ack only if its policy is not NONE and it has a deadline, as in Liftbridge: python-liftbridge
     sets no deadline, and would wait for ever where the message cannot be written.
LU3  A message whose sender does not wait (NONE, or no deadline) is sent again like any other until its time is up.
LU5  If a partition is paused after messages were sent to it, it is resumed and they are sent again, perhaps behind
     later ones, as often as it is paused within `RESENT_S`. A caller who may not resume it gets `ChannelPaused`; other
     errors on the way are returned as they are.
LU6  A refusal for a pause, a readonly partition or a missing grant is given only if a newer catalog confirms it (LS5).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from tidelog.client import Client
from tidelog.cluster.clients.access import ADMIN, ALL_CHANNELS, WRITE, ClientAccess
from tidelog.codecs.nats_subjects import attached_subject
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace
from tidelog.core.catalog import ChannelRecord
from tidelog.core.subjects import subject_problem
from tidelog.errors import AccessDenied, ChannelPaused, ChannelReadonly, LogError
from tidelog.gateways.liftbridge.expected import ExpectedOffsets, Placed
from tidelog.gateways.liftbridge.names import own_headers_left_out
from tidelog.gateways.liftbridge.producers import RESENT_S, GatewayProducers, OutgoingMessage
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.gateways.liftbridge.streams import Streams, no_partition, require_stream
from tidelog.gateways.liftbridge.subjects import SubjectPublishing, Told

Outcome = pb.Ack | LogError | GatewayRefusedError

_NO_DEADLINE_S: Final = 1e9
_TARGETS_MAX: Final = 10_000
_POLICIES: Final = frozenset({pb.LEADER, pb.ALL, pb.NONE})


class Target(NamedTuple):
    """The partition that a message goes to."""

    record: ChannelRecord
    place: StreamPlace
    subject: str
    checks_offsets: bool

    def ack(self, policy: int, *, received_ns: int) -> pb.Ack:
        """The fields that acks of all messages to this partition share. An ack is built when its policy is satisfied;
        its commit time is that moment, for LEADER too, as in Liftbridge."""
        return pb.Ack(
            stream=self.place.stream,
            partitionSubject=self.subject,
            msgSubject=self.subject,
            ackPolicy=policy,  # type: ignore[arg-type]
            receptionTimestamp=received_ns,
            commitTimestamp=time.time_ns(),
        )


class WantedPublish(NamedTuple):
    """The fields that the three publish calls share."""

    outgoing: OutgoingMessage
    policy: int
    correlation: str
    inbox: str


class GatewayPublishing:
    """One for each gateway."""

    def __init__(
        self,
        *,
        client: Client,
        producers: GatewayProducers,
        expected: ExpectedOffsets,
        streams: Streams,
        access: ClientAccess,
        rng: random.Random,
        subjects: SubjectPublishing | None = None,
        namespace: str | None = None,
    ) -> None:
        """`subjects` and `namespace` belong to the node's NATS, if it has one."""
        self._client = client
        self.producers = producers
        producers.on_pause = self._resume_soon
        self._streams = streams
        self._access = access
        self._rng = rng
        self._expected = expected
        self._subjects = subjects
        self._namespace = namespace
        self._targets: dict[StreamPlace, Target] = {}
        self._resuming: set[asyncio.Task[None]] = set()
        self._resumed: set[int] = set()
        """Channels being resumed for blocks that wait in their producers (PS4)."""

    # --- the calls -----------------------------------------------------------------------------------

    async def publish(self, request: pb.PublishRequest, context: Any, principal: str) -> pb.PublishResponse:
        require_stream(request.stream)
        target = await self._writable(StreamPlace(request.stream, request.partition), principal)
        ack = await self._sent([target], _wanted(request, target), context, principal)
        return pb.PublishResponse(ack=ack, correlationId=request.correlationId)

    async def publish_to_subject(
        self, request: pb.PublishToSubjectRequest, context: Any, principal: str
    ) -> pb.PublishToSubjectResponse:
        """Publish to every stream with this subject, and to one stream of each group among them.

        While NATS is connected the message goes over NATS, to attached streams and to any other listener.
        """
        _require_policy(request.ackPolicy)
        subjects = self._subjects if self._subjects is not None and self._subjects.is_up else None
        if not request.subject or any(character.isspace() for character in request.subject):
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"{request.subject[:80]!a} is no subject")
        targets, refusal = [], None
        for place in self._chosen(request.subject) if subjects is None else self._streams.listening(request.subject):
            try:
                targets.append(await self._writable(place, principal))
            except (LogError, GatewayRefusedError) as error:
                if subjects is not None and isinstance(error, AccessDenied):
                    raise  # a message over NATS reaches all streams: this one could not be left out
                refusal = error
        if refusal is not None and not targets:
            raise refusal
        wanted = WantedPublish(
            OutgoingMessage(request.value, request.key or None, own_headers_left_out(request.headers)),
            request.ackPolicy,
            request.correlationId,
            request.ackInbox,
        )
        if subjects is None:
            return pb.PublishToSubjectResponse(ack=await self._sent(targets, wanted, context, principal))
        self._check_subject(request.subject, targets, principal)
        # Channels without a configured subject do not listen on NATS: they are published to directly.
        targets = [target for target in targets if target.record.config.subject is None]
        message = pb.Message(
            value=request.value,
            key=request.key,
            headers=dict(own_headers_left_out(request.headers)),
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
        )
        over_nats = partial(subjects.publish, request.subject, message)
        ack = await self._sent(targets, wanted, context, principal, over_nats=over_nats)
        return pb.PublishToSubjectResponse(ack=ack)

    def _check_subject(self, subject: str, targets: list[Target], principal: str) -> None:
        """Anybody on NATS may hear the message: it may not use the cluster's own subjects, and if no stream listens,
        whose grants would decide, the caller needs write access to all channels."""
        problem = subject_problem(subject, namespace=self._namespace)
        if problem is not None:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"subject {subject[:80]!a} {problem}")
        if not targets:
            self._access.require(principal, ALL_CHANNELS, WRITE)

    # --- targets -------------------------------------------------------------------------------------

    def _known(self, stream: str, partition: int) -> Target | None:
        """The target, from a cache that holds until the catalog changes the partition's record."""
        place = StreamPlace(stream, partition)
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

    async def _writable(self, place: StreamPlace, principal: str) -> Target:
        """The target; a paused partition is resumed if the caller may resume it."""
        await self._streams.require(place)
        target = await self._streams.judged(lambda: self._judged(place, principal))
        if not target.record.paused:
            return target
        await self._client.resume(target.record.name)
        await self._streams.catch_up()
        return self._here(place)

    def _judged(self, place: StreamPlace, principal: str) -> Target:
        """Decided by the local catalog; raises the reason why the caller may not write."""
        target = self._here(place)
        record = target.record
        self._access.require(principal, record.name, WRITE)
        if record.readonly:
            raise ChannelReadonly(channel=record.name)
        if record.paused and not self._access.allows(principal, record.name, ADMIN):
            raise ChannelPaused(channel=record.name)
        return target

    def _here(self, place: StreamPlace) -> Target:
        target = self._known(*place)
        if target is None:
            raise no_partition(place)
        return target

    def after_pause(
        self,
        place: StreamPlace,
        principal: str,
        send: Callable[[Target], None],
        refuse: Callable[[LogError | GatewayRefusedError], None],
    ) -> None:
        """Messages met a pause that this node's catalog did not show: resume, and `send` them again (LU5)."""
        self._begin(self._resume_and(place, principal, send, refuse))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        # `_resuming` keeps the task alive; the limit of unanswered messages bounds their number.
        task = asyncio.get_running_loop().create_task(work)
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)

    async def _resume_and(
        self,
        place: StreamPlace,
        principal: str,
        send: Callable[[Target], None],
        refuse: Callable[[LogError | GatewayRefusedError], None],
    ) -> None:
        try:
            await self._streams.catch_up()
            send(await self._writable(place, principal))
        except (LogError, GatewayRefusedError) as error:
            refuse(error)

    def _resume_soon(self, channel_id: int, principals: list[str]) -> None:
        """Resume a channel for the blocks that wait in its producer (PS4)."""
        if channel_id not in self._resumed:
            self._resumed.add(channel_id)
            self._begin(self._resume_if_allowed(channel_id, principals))

    async def _resume_if_allowed(self, channel_id: int, principals: list[str]) -> None:
        try:
            await self._streams.catch_up()
            record = self._streams.catalog.channel(channel_id)
            if record is None or not record.paused:
                return
            if any(self._access.allows(principal, record.name, ADMIN) for principal in principals):
                await self._client.resume(record.name)
        except LogError:
            return  # the block meets the pause again, which calls this again
        finally:
            self._resumed.discard(channel_id)

    def _chosen(self, subject: str) -> list[StreamPlace]:
        groups: dict[str, list[StreamPlace]] = {}
        places = []
        for place in self._streams.listening(subject):
            group = self._streams.facts(place.stream).group
            if group:
                groups.setdefault(group, []).append(place)
            else:
                places.append(place)
        return places + [self._rng.choice(members) for members in groups.values()]

    # --- for PublishAsync ----------------------------------------------------------------------------

    def ready(self, stream: str, partition: int, policy: int, principal: str) -> Target | None:
        """The target, if its messages need neither a wait nor a check each; else None: use `take`."""
        if policy not in _POLICIES:
            return None
        target = self._known(stream, partition)
        if target is None or target.checks_offsets:
            return None
        record = target.record
        if record.paused or record.readonly or not self._access.allows(principal, record.name, WRITE):
            return None
        return target

    async def take(self, request: pb.PublishRequest, principal: str, told: Callable[[Outcome], None]) -> None:
        """Take one message. Waits for room, and for what else it takes until the partition can be written."""
        target = await self._writable(StreamPlace(request.stream, request.partition), principal)
        await self.producers.wait_room()
        self._send(target, _wanted(request, target), principal, told)

    # --- sending -------------------------------------------------------------------------------------

    async def _sent(
        self,
        targets: list[Target],
        wanted: WantedPublish,
        context: Any,
        principal: str,
        *,
        over_nats: Callable[[Told | None], int] | None = None,
    ) -> pb.Ack | None:
        """The first ack, if the caller waits for one (LU1). `over_nats` also publishes the message over NATS."""
        left_s = context.time_remaining()
        waits = wanted.policy != pb.NONE and left_s is not None and left_s < _NO_DEADLINE_S
        first: asyncio.Future[pb.Ack] = asyncio.get_running_loop().create_future()
        left = len(targets) + (over_nats is not None)

        def told(outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            if first.done():
                return
            if isinstance(outcome, pb.Ack):
                first.set_result(outcome)
            elif left <= 0 and waits:
                first.set_exception(outcome)

        number = over_nats(told if waits else None) if over_nats is not None else 0
        try:
            for target in targets:
                await self.producers.wait_room()
                self._send(target, wanted, principal, told)
            if not waits:
                return None
            if not targets and over_nats is None:
                words = "no stream has this subject, so nobody will ack the message"
                raise GatewayRefusedError(Status.DEADLINE_EXCEEDED, words)
            return await first
        finally:
            if number and self._subjects is not None:
                self._subjects.forget(number)

    def _send(
        self,
        target: Target,
        wanted: WantedPublish,
        principal: str,
        told: Callable[[Outcome], None],
        *,
        until_s: float | None = None,
    ) -> None:
        """`until_s`: when a message that is sent again is given up (LU5)."""
        give_up_s = time.monotonic() + RESENT_S if until_s is None else until_s
        received_ns = 0

        def answered(outcome: Placed | LogError) -> None:
            if isinstance(outcome, Placed):
                told(_ack(target, wanted, outcome))
            elif isinstance(outcome, ChannelPaused) and time.monotonic() < give_up_s:
                send = partial(self._send, wanted=wanted, principal=principal, told=told, until_s=give_up_s)
                self.after_pause(target.place, principal, send, told)
            else:
                told(outcome)

        if target.checks_offsets:
            self._expected.send(target.record, wanted.policy, wanted.outgoing, answered, principal=principal)
            return

        def produced(offset: int, error: LogError | None) -> None:
            answered(Placed(offset, received_ns) if error is None else error)

        self.producers.send(target.record, wanted.policy, wanted.outgoing, produced, principal=principal)
        received_ns = time.time_ns()  # read after the producer has stamped the record


def _wanted(request: pb.PublishRequest, target: Target) -> WantedPublish:
    _require_policy(request.ackPolicy)
    expected = None
    if target.checks_offsets and request.expectedOffset != -1:
        expected = request.expectedOffset
    if target.checks_offsets and request.ackPolicy == pb.NONE:
        raise GatewayRefusedError(
            Status.INVALID_ARGUMENT, "a stream that checks offsets must tell; choose LEADER or ALL"
        )
    if expected is not None and expected < 0:
        raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"no message has offset {expected}; -1 leaves it open")
    outgoing = OutgoingMessage(request.value, request.key or None, own_headers_left_out(request.headers), expected)
    return WantedPublish(outgoing, request.ackPolicy, request.correlationId, request.ackInbox)


def _require_policy(policy: int) -> None:
    if policy not in _POLICIES:
        raise GatewayRefusedError(
            Status.INVALID_ARGUMENT, f"ack policy {policy} is not known; choose LEADER, ALL or NONE"
        )


def _ack(target: Target, wanted: WantedPublish, placed: Placed) -> pb.Ack:
    ack = target.ack(wanted.policy, received_ns=placed.received_ns)
    ack.offset, ack.ackInbox, ack.correlationId = placed.offset, wanted.inbox, wanted.correlation
    return ack
