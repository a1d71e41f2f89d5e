"""Subscribe: a partition's committed messages, streamed to one client.

A subscription reads a piece of the log, writes its messages in batches as the client takes them, and only then reads
the next piece. So a client that does not read costs one piece and gRPC's buffers, and delays no other.

LQ1  First an empty message, then messages in the order of their offsets, each once; nothing beyond the committed end.
LQ2  A subscription without `readISRReplica` is served by the partition's leader alone. When the leader changes it ends
     with UNAVAILABLE; clients then look up the new leader and continue after their last offset.
LQ3  It ends with a status: NOT_FOUND when the stream was deleted, FAILED_PRECONDITION when it was paused,
     RESOURCE_EXHAUSTED at its stop position or at the end of a readonly partition, DATA_LOSS where messages are damaged
     or lost.
LQ4  Grants and certificates are checked before every read: a caller who loses them gets no more messages.
LQ5  At most `subscriptions_max` at once.
LQ6  A subscription is refused at the start, or ended for a readonly partition, only if a newer catalog confirms the
     reason (LS5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from google.protobuf.unknown_fields import UnknownFieldSet

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.client import Client, Record
from tidelog.client.records import AnyRecord, records_of
from tidelog.cluster.clients.access import ADMIN, READ, ClientAccess
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.nats_subjects import attached_subject
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace, channel_of
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import ChannelPaused
from tidelog.gateways.liftbridge.groups import ConsumerGroups
from tidelog.gateways.liftbridge.logs import PartitionEnds, PartitionLog, log_of
from tidelog.gateways.liftbridge.names import OWN_HEADERS, REPLY
from tidelog.gateways.liftbridge.positions import OffsetSpan, span_of
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.gateways.liftbridge.streams import Streams
from tidelog.units import KIB

_NS_PER_US: Final = 1_000
_WRITTEN_RECORDS: Final = 512
_WRITTEN_BYTES: Final = 64 * KIB
"""Limits of one batch: it is serialized without giving other tasks a turn."""


class Subscriptions:
    """One for each gateway."""

    def __init__(
        self,
        channels: LocalChannels,
        *,
        client: Client,
        streams: Streams,
        access: ClientAccess,
        groups: ConsumerGroups,
        subscriptions_max: int = 1_000,
    ) -> None:
        self._channels = channels
        self._groups = groups
        self._client = client
        self._streams = streams
        self._access = access
        self._max = subscriptions_max
        self.running = 0
        self._is_closing = False

    def close(self) -> None:
        """The node is stopping: subscriptions end with UNAVAILABLE, and clients go to another node."""
        self._is_closing = True

    def require_open(self) -> None:
        if self._is_closing:
            raise GatewayRefusedError(Status.UNAVAILABLE, "this node is stopping; ask another one")

    async def serve(
        self, request: pb.SubscribeRequest, context: Any, principal: str, *, still: Callable[[], str] = str
    ) -> None:
        """Ends by raising, as every subscription does (LQ3). `still` raises once the caller is not authenticated."""
        self.require_open()
        if self.running >= self._max:
            raise GatewayRefusedError(Status.UNAVAILABLE, f"this node has {self._max} subscriptions; ask another one")
        self.running += 1
        try:
            place = StreamPlace(request.stream, request.partition)
            record = await self._admitted(place, request, principal)
            still_assigned = await self._joined(request, record, principal)
            is_leaders = not request.readISRReplica
            log = log_of(self._channels, self._client, channel=record.name, channel_id=record.channel_id)
            name = self._channels.node
            try:

                def check() -> None:
                    self.require_open()
                    still()
                    still_assigned()
                    self._access.require(principal, record.name, READ)

                running = _Subscription(check, name, log, self._streams, place, record, is_leaders=is_leaders)
                await running.run(request, context)
            finally:
                await log.close()
        finally:
            self.running -= 1

    async def _joined(self, request: pb.SubscribeRequest, record: ChannelRecord, principal: str) -> Callable[[], None]:
        """A check that raises once the partition is no longer assigned to the consumer."""
        if not request.HasField("consumer") or not request.consumer.groupId:
            return lambda: None
        return await self._groups.subscribed(request.consumer, record, principal)

    async def _admitted(self, place: StreamPlace, request: pb.SubscribeRequest, principal: str) -> ChannelRecord:
        _require_known(request)
        if request.HasField("consumer") and request.readISRReplica:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, "a consumer of a group reads from the leader alone")
        record = await self._streams.judged(lambda: self._judged(place, request, principal))
        if self._channels.channel_here(record.channel_id) is None:
            # Remote reads are by channel id, which a channel created again does not have: bring the catalog up to date.
            await self._streams.look_again()
            record = self._judged(place, request, principal)
        if record.paused:
            await self._client.resume(record.name)
            await self._streams.catch_up()
            record = await self._streams.require(place)
        return record

    def _judged(self, place: StreamPlace, request: pb.SubscribeRequest, principal: str) -> ChannelRecord:
        """Decided by the local catalog; raises the reason why the caller may not read. A paused partition passes only
        if the request resumes it and the caller may."""
        self._access.require(principal, channel_of(*place), READ)
        record = self._streams.found(place)
        may_resume = request.resume and self._access.allows(principal, record.name, ADMIN)
        if record.paused and not may_resume:
            raise ChannelPaused(channel=record.name)
        if not request.readISRReplica and record.leader != self._channels.node:
            raise GatewayRefusedError(Status.FAILED_PRECONDITION, _not_led(place, record))
        return record


class _Subscription:
    def __init__(
        self,
        check: Callable[[], None],
        node: str,
        log: PartitionLog,
        streams: Streams,
        place: StreamPlace,
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
        subject = attached_subject(streams.facts(place.stream).subject, place.partition)
        self._message = pb.Message(stream=place.stream, partition=place.partition, subject=subject)
        """The fields that all messages share."""
        self._message.headers["subject"] = subject.encode()
        self._message.headers[REPLY] = b""
        self._has_begun = False

    async def run(self, request: pb.SubscribeRequest, context: Any) -> None:
        span = await span_of(self._log, await self._standing(), request, is_leaders=self._is_leaders)
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
                    await self._streams.judged(self._require_growing)
                position = max(position, standing.log_start)

    async def _standing(self) -> PartitionEnds:
        while True:
            self._check()
            standing = await self._log.standing()
            if standing is not None:
                return standing

    def _check(self) -> ChannelRecord:
        """The channel as the catalog has it now; raises what ends the subscription (LQ2, LQ3)."""
        self._check_caller()
        record = self._streams.catalog.channel(self._record.channel_id)
        if record is None:
            raise GatewayRefusedError(Status.NOT_FOUND, f"stream {self._place.stream!r} was deleted")
        if record.paused:
            raise ChannelPaused(channel=record.name)
        if self._is_leaders and record.leader != self._node:
            status = Status.UNAVAILABLE if self._has_begun else Status.FAILED_PRECONDITION
            raise GatewayRefusedError(status, _not_led(self._place, record))
        if record.unclean != self._record.unclean:
            raise GatewayRefusedError(
                Status.DATA_LOSS, "an unclean election lost committed messages; subscribe again from where you want"
            )
        return record

    def _require_growing(self) -> None:
        """Raises if all messages were given and the partition is readonly."""
        record = self._check()
        if record.readonly:
            raise GatewayRefusedError(Status.RESOURCE_EXHAUSTED, f"the end of a readonly partition, {record.name!r}")

    async def _give(self, block: Block, position: int, span: OffsetSpan, context: Any) -> None:
        kind = block.maker.kind
        if kind == BlockKind.MISSING:
            raise GatewayRefusedError(
                Status.DATA_LOSS, f"offsets {block.offsets.start} to {block.offsets.stop - 1} are damaged on this node"
            )
        if kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
            raise GatewayRefusedError(
                Status.FAILED_PRECONDITION, "this channel holds CAN frames; read it with a native client"
            )
        records = records_of(block, start=position)
        is_last = span.stop is not None and bool(records) and records[-1].offset > span.stop
        if is_last:
            records = [record for record in records if record.offset <= (span.stop or 0)]
        for first in range(0, len(records), _WRITTEN_RECORDS):
            await self._write(records[first : first + _WRITTEN_RECORDS], context)
        if is_last:
            self._stopped(span)

    async def _write(self, records: Sequence[AnyRecord], context: Any) -> None:
        """One message object is reused for all records: creating one each would cost more than everything else."""
        message = self._message
        messages: list[bytes] = []
        size = 0
        for record in records:
            assert isinstance(record, Record)
            message.offset = record.offset
            message.timestamp = record.time_us * _NS_PER_US
            message.key = record.key or b""
            message.value = record.value or b""
            data = self._with_headers(record) if record.headers else message.SerializeToString()
            messages.append(data)
            size += len(data)
            if size >= _WRITTEN_BYTES:
                await context.write_batch(messages)
                messages, size = [], 0
        if messages:
            await context.write_batch(messages)

    def _with_headers(self, record: Record) -> bytes:
        full = pb.Message()
        full.CopyFrom(self._message)
        for name, content in record.headers:
            if name not in OWN_HEADERS:
                full.headers[name] = content
            elif name == REPLY:
                # A message received over NATS: the subject where its sender waits for a reply.
                full.headers[name] = content
                full.replySubject = content.decode(errors="replace")
        return full.SerializeToString()

    def _stopped(self, span: OffsetSpan) -> NoReturn:
        raise GatewayRefusedError(
            Status.RESOURCE_EXHAUSTED, f"the subscription stopped at offset {span.stop}, as asked"
        )


def _not_led(place: StreamPlace, record: ChannelRecord) -> str:
    words = f"this node does not lead partition {place.partition} of {place.stream!r}"
    return words + (f"; ask {record.leader}" if record.leader else "; nobody does right now")


def _require_known(request: pb.SubscribeRequest) -> None:
    """Refuse requests with fields that are not offered: ignoring `reverse`, for one, would give the wrong messages."""
    unknown = UnknownFieldSet(request)
    if len(unknown):
        words = f"field {unknown[0].field_number} of the request is not known here; reading in reverse is not offered"
        raise GatewayRefusedError(
            Status.INVALID_ARGUMENT, f"{words}; read forwards, from the offset where you want to end"
        )
