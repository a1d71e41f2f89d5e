"""Subscribe: committed messages of a partition, to one client.

A subscription reads a piece of the log, writes its messages one by one as the client takes them, and only then reads
the next. So a client that does not read costs one piece and what gRPC buffers, and holds up nobody.

LQ1  First an empty message, then messages in the order of their offsets, each once; nothing beyond the committed end.
LQ2  A subscription without `readISRReplica` lives only where the partition is led. When the leader moves it ends with
     UNAVAILABLE, which makes clients look for the new one and go on after their last offset.
LQ3  It ends in words: NOT_FOUND when the stream was deleted, FAILED_PRECONDITION when it was paused, RESOURCE_EXHAUSTED
     at its end or at the end of a readonly partition, DATA_LOSS where messages are damaged or were lost.
LQ4  Grants and certificates are looked at again with every read: who loses them is given nothing more.
LQ5  At most `subscriptions_max` at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.client import Client, Record
from tidelog.client.records import records_of
from tidelog.cluster.client_access import ADMIN, READ, ClientAccess
from tidelog.core.catalog import ChannelRecord
from tidelog.doors.liftbridge_logs import PartitionLog, Standing, log_of
from tidelog.doors.liftbridge_names import Place, channel_of
from tidelog.doors.liftbridge_positions import Span, span_of
from tidelog.doors.liftbridge_refusals import RefusedError, Status
from tidelog.doors.liftbridge_streams import Streams
from tidelog.errors import ChannelPaused
from tidelog.wire.nats_subjects import attached_subject
from tidelog.wire.proto import liftbridge_pb2 as pb

if TYPE_CHECKING:
    from tidelog.cluster.node import Node

_NS_PER_US: Final = 1_000


class Subscriptions:
    """One for each door."""

    def __init__(
        self, node: Node, *, client: Client, streams: Streams, access: ClientAccess, subscriptions_max: int = 1_000
    ) -> None:
        self._node = node
        self._client = client
        self._streams = streams
        self._access = access
        self._max = subscriptions_max
        self.running = 0
        self._is_closing = False

    def close(self) -> None:
        """The node is going down: subscriptions end with UNAVAILABLE, and their clients look for another."""
        self._is_closing = True

    def require_open(self) -> None:
        if self._is_closing:
            raise RefusedError(Status.UNAVAILABLE, "this node is stopping; ask another one")

    async def serve(
        self, request: pb.SubscribeRequest, context: Any, principal: str, *, still: Callable[[], str] = str
    ) -> None:
        """Ends by raising, as every subscription does (LQ3). `still` raises once the caller is nobody any more."""
        self.require_open()
        if self.running >= self._max:
            raise RefusedError(Status.UNAVAILABLE, f"this node has {self._max} subscriptions; ask another one")
        self.running += 1
        try:
            place = Place(request.stream, request.partition)
            record = await self._admitted(place, request, principal)
            is_leaders = not request.readISRReplica
            log = log_of(self._node, self._client, channel=record.name, channel_id=record.channel_id)
            name = self._node.doors.node
            try:

                def check() -> None:
                    self.require_open()
                    still()
                    self._access.require(principal, record.name, READ)

                running = _Subscription(check, name, log, self._streams, place, record, is_leaders=is_leaders)
                await running.run(request, context)
            finally:
                await log.close()
        finally:
            self.running -= 1

    async def _admitted(self, place: Place, request: pb.SubscribeRequest, principal: str) -> ChannelRecord:
        self._access.require(principal, channel_of(*place), READ)
        if request.HasField("consumer") and request.readISRReplica:
            raise RefusedError(Status.INVALID_ARGUMENT, "a consumer of a group reads from the leader alone")
        if request.HasField("consumer"):
            raise RefusedError(Status.UNIMPLEMENTED, "consumer groups are not offered here; subscribe without one")
        record = await self._streams.require(place)
        if record.paused and request.resume:
            if not self._access.allows(principal, record.name, ADMIN):
                raise ChannelPaused(channel=record.name)
            await self._client.resume(record.name)
            await self._streams.catch_up()
            record = await self._streams.require(place)
        return record


class _Subscription:
    def __init__(
        self,
        check: Callable[[], None],
        node: str,
        log: PartitionLog,
        streams: Streams,
        place: Place,
        record: ChannelRecord,
        *,
        is_leaders: bool,
    ) -> None:
        self._check_caller = check
        self._node = node
        self._log = log
        self._streams = streams
        self._place = place
        self._record = record
        self._is_leaders = is_leaders
        self._subject = attached_subject(streams.facts(place.stream).subject, place.partition)
        self._has_begun = False

    async def run(self, request: pb.SubscribeRequest, context: Any) -> None:
        span = await span_of(self._log, await self._standing(), request)
        await context.write(pb.Message())
        self._has_begun = True
        position = span.start
        while True:
            record = self._check()
            blocks = await self._log.read(position)
            for block in blocks:
                await self._give(block, position, span, context)
                position = max(position, block.offsets.stop)
                if span.stop is not None and position > span.stop:
                    self._stopped(span)
            if not blocks:
                standing = await self._standing()
                if record.readonly and position >= standing.log_end:
                    raise RefusedError(Status.RESOURCE_EXHAUSTED, f"the end of a readonly partition, {record.name!r}")
                position = max(position, standing.log_start)

    async def _standing(self) -> Standing:
        while True:
            self._check()
            standing = await self._log.standing()
            if standing is not None:
                return standing

    def _check(self) -> ChannelRecord:
        """The channel as it is now; raises what ends the subscription (LQ2, LQ3)."""
        self._check_caller()
        record = self._streams.catalog.channel(self._record.channel_id)
        if record is None:
            raise RefusedError(Status.NOT_FOUND, f"stream {self._place.stream!r} was deleted")
        if record.paused:
            raise ChannelPaused(channel=record.name)
        if self._is_leaders and record.leader != self._node:
            words = f"this node does not lead partition {self._place.partition} of {self._place.stream!r}"
            words += f"; ask {record.leader}" if record.leader else "; nobody does right now"
            raise RefusedError(Status.UNAVAILABLE if self._has_begun else Status.FAILED_PRECONDITION, words)
        if record.unclean != self._record.unclean:
            raise RefusedError(Status.DATA_LOSS, "an election lost committed messages; subscribe again where you want")
        return record

    async def _give(self, block: Block, position: int, span: Span, context: Any) -> None:
        kind = block.maker.kind
        if kind == BlockKind.MISSING:
            raise RefusedError(
                Status.DATA_LOSS, f"offsets {block.offsets.start} to {block.offsets.stop - 1} are damaged on this node"
            )
        if kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
            raise RefusedError(
                Status.FAILED_PRECONDITION, "this channel holds CAN frames; read it with a native client"
            )
        stream, partition, subject = self._place.stream, self._place.partition, self._subject
        subject_bytes = subject.encode()
        for record in records_of(block, start=position):
            assert isinstance(record, Record)
            if span.stop is not None and record.offset > span.stop:
                self._stopped(span)
            headers = dict(record.headers) if record.headers else {}
            headers["subject"] = subject_bytes
            headers["reply"] = b""
            await context.write(
                pb.Message(
                    offset=record.offset,
                    key=record.key or b"",
                    value=record.value or b"",
                    timestamp=record.time_us * _NS_PER_US,
                    stream=stream,
                    partition=partition,
                    subject=subject,
                    headers=headers,
                )
            )

    def _stopped(self, span: Span) -> NoReturn:
        raise RefusedError(Status.RESOURCE_EXHAUSTED, f"the subscription stopped at offset {span.stop}, as asked")
