"""Dispatches the methods of `proto.API` and turns errors into statuses.

Clients connect as soon as the node starts, so calls wait a while for the node to be registered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from tidelog.cluster.clients.access import ANY_OF_THEM
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace, channel_of
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import AccessDenied, BadMessage, LogError
from tidelog.gateways.liftbridge.admin import Administration
from tidelog.gateways.liftbridge.callers import Callers
from tidelog.gateways.liftbridge.groups import ConsumerGroups
from tidelog.gateways.liftbridge.publish import GatewayPublishing
from tidelog.gateways.liftbridge.publish_async import AsyncStream
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status, abort
from tidelog.gateways.liftbridge.streams import Streams
from tidelog.gateways.liftbridge.subscribe import Subscriptions

SERVICE: Final = "proto.API"
HEALTH: Final = "grpc.health.v1.Health"
_STARTING_S: Final = 10.0
_LOOK_S: Final = 0.02
_SERVING: Final = b"\x08\x01"
_HEALTH_ASKED: Final = frozenset({b"", b"\x0a\x09proto.API"})
"""A HealthCheckRequest for the whole server, or for our service."""


class LiftbridgeService:
    """The gRPC service; `handlers()` is added to a server."""

    def __init__(
        self,
        *,
        callers: Callers,
        streams: Streams,
        administration: Administration,
        publishing: GatewayPublishing,
        subscriptions: Subscriptions,
        groups: ConsumerGroups,
        channels: LocalChannels,
    ) -> None:
        self._callers = callers
        self._streams = streams
        self._publishing = publishing
        self._subscriptions = subscriptions
        self._groups = groups
        self._administration = administration
        self._channels = channels

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        administration, groups = self._administration, self._groups
        unary: dict[str, Callable[[Any, Any, str], Awaitable[Any]]] = {
            "Publish": self._publishing.publish,
            "PublishToSubject": self._publishing.publish_to_subject,
        }
        without_context: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
            "CreateStream": administration.create,
            "DeleteStream": administration.delete,
            "PauseStream": administration.pause,
            "SetStreamReadonly": administration.set_readonly,
            "FetchMetadata": self._fetch_metadata,
            "FetchPartitionMetadata": self._fetch_partition_metadata,
            "SetCursor": administration.set_cursor,
            "FetchCursor": administration.fetch_cursor,
            "JoinConsumerGroup": groups.join,
            "LeaveConsumerGroup": groups.leave,
            "FetchConsumerGroupAssignments": groups.assignments,
            "ReportConsumerGroupCoordinator": groups.report,
        }
        unary |= {name: _without_context(work) for name, work in without_context.items()}
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._guarded(getattr(pb, f"{name}Request"), work), response_serializer=_bytes_of
            )
            for name, work in unary.items()
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
                principal = await self._authenticated(context)
                return await work(request, context, principal)
            except (GatewayRefusedError, LogError) as error:
                await abort(context, error)
            raise AssertionError("abort returned")

        return call

    async def _wait_registered(self) -> None:
        if self._channels.is_registered:
            return
        try:
            async with asyncio.timeout(_STARTING_S):
                while not self._channels.is_registered:  # noqa: ASYNC110 - the core has no event for it
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise GatewayRefusedError(Status.UNAVAILABLE, "this node has not joined a cluster yet; try again") from None

    # --- metadata ------------------------------------------------------------------------------------

    async def _fetch_metadata(self, request: pb.FetchMetadataRequest, principal: str) -> pb.FetchMetadataResponse:
        access = self._callers.access
        found = await self._streams.metadata(request, lambda name: access.allows(principal, name, *ANY_OF_THEM))
        found.groupMetadata.extend(self._groups.metadata(request.groups, principal))
        return found

    async def _fetch_partition_metadata(
        self, request: pb.FetchPartitionMetadataRequest, principal: str
    ) -> pb.FetchPartitionMetadataResponse:
        place = StreamPlace(request.stream, request.partition)
        record = await self._streams.judged(lambda: self._led_here(place, principal))
        return pb.FetchPartitionMetadataResponse(metadata=self._streams.partition(place.partition, record))

    def _led_here(self, place: StreamPlace, principal: str) -> ChannelRecord:
        """Decided by the local catalog; raises the reason why this node does not answer the caller."""
        if not self._callers.access.allows(principal, channel_of(*place), *ANY_OF_THEM):
            raise AccessDenied(principal=principal, scope=" or ".join(ANY_OF_THEM), channel=channel_of(*place))
        record = self._streams.found(place)
        if record.leader != self._channels.node:
            raise GatewayRefusedError(
                Status.FAILED_PRECONDITION, f"this node does not lead it; ask {record.leader or 'later'}"
            )
        return record

    # --- streams -------------------------------------------------------------------------------------

    async def _subscribe(self, data: bytes, context: Any) -> None:
        async def serve() -> None:
            request = _parsed(pb.SubscribeRequest, data)
            principal = await self._authenticated(context)
            still = partial(self._callers.principal, context)
            await self._subscriptions.serve(request, context, principal, still=still)

        await _streamed(serve, context)

    async def _publish_async(self, requests: Any, context: Any) -> None:
        async def serve() -> None:
            principal = await self._authenticated(context)
            still = partial(self._callers.principal, context)
            await AsyncStream(self._publishing, context, principal, still=still).run(requests)

        await _streamed(serve, context)

    async def _authenticated(self, context: Any) -> str:
        principal = self._callers.principal(context)
        await self._wait_registered()
        return principal


def _without_context(work: Callable[[Any, str], Awaitable[Any]]) -> Callable[[Any, Any, str], Awaitable[Any]]:
    return lambda request, _, principal: work(request, principal)


async def _streamed(serve: Callable[[], Awaitable[None]], context: Any) -> None:
    # The handler of a broken call is cancelled. Nobody is left to be told, and gRPC would print a traceback.
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await serve()
        except (GatewayRefusedError, LogError) as error:
            await abort(context, error)


def _parsed(kind: type[Any], data: bytes) -> Any:
    """Parsed here, since gRPC prints a traceback for every request it cannot parse."""
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
