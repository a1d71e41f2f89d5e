"""The methods of `proto.API`, each handed to the part that carries it out; refusals become statuses here.

A call that comes before the node is registered waits for it a while: clients dial at once after a start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from tidelog.cluster.clients.access import ANY_OF_THEM
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace, channel_of
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import AccessDenied, BadMessage, LogError
from tidelog.gateways.liftbridge.admin import Administration
from tidelog.gateways.liftbridge.callers import Callers
from tidelog.gateways.liftbridge.groups import ConsumerGroups
from tidelog.gateways.liftbridge.publish import GatewayPublishing
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status, abort
from tidelog.gateways.liftbridge.streams import Streams
from tidelog.gateways.liftbridge.subscribe import Subscriptions

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

SERVICE: Final = "proto.API"
HEALTH: Final = "grpc.health.v1.Health"
_STARTING_S: Final = 10.0
_LOOK_S: Final = 0.02
_SERVING: Final = b"\x08\x01"
_HEALTH_ASKED: Final = frozenset({b"", b"\x0a\x09proto.API"})
"""A HealthCheckRequest for the whole server, or for our service."""


class LiftbridgeService:
    """Add `handlers()` to a server."""

    def __init__(
        self,
        *,
        callers: Callers,
        streams: Streams,
        administration: Administration,
        publishing: GatewayPublishing,
        subscriptions: Subscriptions,
        groups: ConsumerGroups,
        node: Node,
    ) -> None:
        self._callers = callers
        self._streams = streams
        self._publishing = publishing
        self._subscriptions = subscriptions
        self._groups = groups
        self._administration = administration
        self._node = node

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        administration, groups = self._administration, self._groups
        unary: dict[str, tuple[type[Any], Callable[[Any, Any, str], Awaitable[Any]]]] = {
            "CreateStream": (pb.CreateStreamRequest, lambda ask, _, who: administration.create(ask, who)),
            "DeleteStream": (pb.DeleteStreamRequest, lambda ask, _, who: administration.delete(ask, who)),
            "PauseStream": (pb.PauseStreamRequest, lambda ask, _, who: administration.pause(ask, who)),
            "SetStreamReadonly": (
                pb.SetStreamReadonlyRequest,
                lambda ask, _, who: administration.set_readonly(ask, who),
            ),
            "FetchMetadata": (pb.FetchMetadataRequest, self._fetch_metadata),
            "FetchPartitionMetadata": (pb.FetchPartitionMetadataRequest, self._fetch_partition_metadata),
            "Publish": (pb.PublishRequest, self._publishing.publish),
            "PublishToSubject": (pb.PublishToSubjectRequest, self._publishing.publish_to_subject),
            "SetCursor": (pb.SetCursorRequest, lambda ask, _, who: administration.set_cursor(ask, who)),
            "FetchCursor": (pb.FetchCursorRequest, lambda ask, _, who: administration.fetch_cursor(ask, who)),
            "JoinConsumerGroup": (pb.JoinConsumerGroupRequest, lambda ask, _, who: groups.join(ask, who)),
            "LeaveConsumerGroup": (pb.LeaveConsumerGroupRequest, lambda ask, _, who: groups.leave(ask, who)),
            "FetchConsumerGroupAssignments": (
                pb.FetchConsumerGroupAssignmentsRequest,
                lambda ask, _, who: groups.assignments(ask, who),
            ),
            "ReportConsumerGroupCoordinator": (
                pb.ReportConsumerGroupCoordinatorRequest,
                lambda ask, _, who: groups.report(ask, who),
            ),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(self._guarded(kind, work), response_serializer=_bytes_of)
            for name, (kind, work) in unary.items()
        }
        methods["Subscribe"] = grpc.unary_stream_rpc_method_handler(self._subscribe, response_serializer=_bytes_of)
        methods["PublishAsync"] = grpc.stream_stream_rpc_method_handler(
            self._publish_async, response_serializer=_bytes_of
        )
        health = {"Check": grpc.unary_unary_rpc_method_handler(_health)}
        return (
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH, health),
        )

    def _guarded(
        self, kind: type[Any], work: Callable[[Any, Any, str], Awaitable[Any]]
    ) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def call(data: bytes, context: Any) -> Any:
            try:
                request = _parsed(kind, data)
                principal = self._callers.principal(context)
                await self._wait_registered()
                return await work(request, context, principal)
            except (GatewayRefusedError, LogError) as error:
                await abort(context, error)
            raise AssertionError("abort returned")

        return call

    async def _wait_registered(self) -> None:
        if self._node.core.is_registered:
            return
        try:
            async with asyncio.timeout(_STARTING_S):
                while not self._node.core.is_registered:  # noqa: ASYNC110 - the core has no event for it
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise GatewayRefusedError(Status.UNAVAILABLE, "this node is not part of a cluster yet; ask again") from None

    # --- what the catalog says -----------------------------------------------------------------------

    async def _fetch_metadata(
        self, request: pb.FetchMetadataRequest, context: Any, principal: str
    ) -> pb.FetchMetadataResponse:
        access = self._callers.access
        found = await self._streams.metadata(request, lambda name: access.allows(principal, name, *ANY_OF_THEM))
        found.groupMetadata.extend(self._groups.metadata(request.groups, principal))
        return found

    async def _fetch_partition_metadata(
        self, request: pb.FetchPartitionMetadataRequest, context: Any, principal: str
    ) -> pb.FetchPartitionMetadataResponse:
        place = StreamPlace(request.stream, request.partition)
        record = await self._streams.judged(lambda: self._led_here(place, principal))
        return pb.FetchPartitionMetadataResponse(metadata=self._streams.partition(place.partition, record))

    def _led_here(self, place: StreamPlace, principal: str) -> ChannelRecord:
        """By the catalog as it is; raises what keeps the caller from being told of it here."""
        if not self._callers.access.allows(principal, channel_of(*place), *ANY_OF_THEM):
            raise AccessDenied(principal=principal, scope=" or ".join(ANY_OF_THEM), channel=channel_of(*place))
        record = self._streams.found(place)
        if record.leader != self._node.doors.node:
            raise GatewayRefusedError(
                Status.FAILED_PRECONDITION, f"this node does not lead it; ask {record.leader or 'later'}"
            )
        return record

    # --- streams -------------------------------------------------------------------------------------

    # The handler of a broken call is cancelled. There is nobody left to tell, and gRPC would print a traceback.

    async def _subscribe(self, data: bytes, context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                request = _parsed(pb.SubscribeRequest, data)
                principal = self._callers.principal(context)
                await self._wait_registered()
                await self._subscriptions.serve(
                    request, context, principal, still=lambda: self._callers.principal(context)
                )
            except (GatewayRefusedError, LogError) as error:
                await abort(context, error)

    async def _publish_async(self, requests: Any, context: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                principal = self._callers.principal(context)
                await self._wait_registered()
                await self._publishing.publish_async(
                    requests, context, principal, still=lambda: self._callers.principal(context)
                )
            except (GatewayRefusedError, LogError) as error:
                await abort(context, error)


def _parsed(kind: type[Any], data: bytes) -> Any:
    """Not left to gRPC, which prints a traceback for every client that sends rubbish."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadMessage(problem=f"these bytes are no {kind.DESCRIPTOR.name}") from error


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def _health(request: bytes, context: Any) -> bytes:
    if request not in _HEALTH_ASKED:
        await context.abort(Status.NOT_FOUND, f"this server has {SERVICE} and nothing else")
    return _SERVING
