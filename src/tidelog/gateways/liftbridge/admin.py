"""Streams created, deleted, paused, made readonly, and their cursors: what administers, done by the native client.

LAD1  A stream is created from its highest partition down to 0, and deleted from 0 up: it exists only while all of it
     does. A retry finishes what a crash left half done.
LAD2  Partitions that a deletion left behind are not made part of a new stream while they hold messages.
LAD3  Nothing is done before the caller's grants for every channel concerned were looked at, in a newer catalog before
     one is missed (LS5).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.client import Client
from tidelog.client.admin import Created
from tidelog.client.records import holds_data
from tidelog.cluster.clients.access import ADMIN, READ, ClientAccess
from tidelog.codecs.client_codec import NUMBER_MAX
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace, channel_of, place_of
from tidelog.core.catalog import ChannelConfig, NodeState, group_cursor
from tidelog.errors import ConfigMismatch, LogError
from tidelog.gateways.liftbridge.names import RESERVED, WantedStream, configs_of, cursor_name, group_of_cursor
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.gateways.liftbridge.streams import Streams, require_stream

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

_LEADERS_S: Final = 5.0
_LOOK_S: Final = 0.02
_EMPTY_OFFSETS_MAX: Final = 4_096
"""A partition that nobody wrote to holds control records alone, and few."""
_CURSOR_BYTES_MAX: Final = 1_024


class Administration:
    """One for each gateway."""

    def __init__(self, node: Node, *, client: Client, streams: Streams, access: ClientAccess) -> None:
        self._node = node
        self._client = client
        self._streams = streams
        self._access = access

    # --- create and delete ---------------------------------------------------------------------------

    async def create(self, request: pb.CreateStreamRequest, principal: str) -> pb.CreateStreamResponse:
        nodes = [record for record in self._streams.catalog.nodes() if record.state is not NodeState.EXPECTED]
        configs = configs_of(_wanted(request), nodes=len(nodes), creation=secrets.token_hex(8))
        name = request.name
        names = [channel_of(name, partition) for partition in range(len(configs))]
        await self._streams.judged(lambda: self._require_all(principal, names, ADMIN))  # LAD3
        await self._streams.catch_up()
        if self._streams.partitions(name):
            raise GatewayRefusedError(Status.ALREADY_EXISTS, f"stream {name!r} exists already")
        higher = [channel_of(name, number) for number in range(len(configs) - 1, 0, -1)]
        await self._create_higher(name, higher, configs)
        try:
            created = await self._client.create_channel(name, configs[0])
        except ConfigMismatch as error:
            # Somebody else was faster: its creation mark is another.
            raise GatewayRefusedError(Status.ALREADY_EXISTS, f"stream {name!r} exists already") from error
        await self._wait_led([*higher, created.name])
        return pb.CreateStreamResponse()

    async def _create_higher(self, stream: str, names: Sequence[str], configs: Sequence[ChannelConfig]) -> None:
        if not names:
            return
        left = [name for name in names if self._streams.catalog.channel(name) is not None]
        for name in left:
            if await self._holds_messages(name):
                raise GatewayRefusedError(
                    Status.ALREADY_EXISTS,
                    f"partition {name!r} is left of a stream that was not deleted to the end; delete {stream!r} again",
                )
        for outcome in await self._client.create_channels(names, configs[1]):
            if isinstance(outcome, ConfigMismatch):
                raise GatewayRefusedError(
                    Status.ALREADY_EXISTS,
                    f"a partition of {stream!r} exists with other settings; delete {stream!r}, then create it",
                ) from outcome
            if isinstance(outcome, LogError):
                raise outcome
            assert isinstance(outcome, Created)

    async def _holds_messages(self, name: str) -> bool:
        """Whether anybody wrote to it (LAD2)."""
        offsets = await self._client.offsets(name)
        if offsets.committed_end - offsets.log_start > _EMPTY_OFFSETS_MAX:
            return True
        span = range(offsets.log_start, offsets.committed_end)
        if not span:
            return False
        async for block in self._client.fetch(name, span):
            if holds_data(block):
                return True
        return False

    async def _wait_led(self, names: Sequence[str]) -> None:
        """As Liftbridge does: a while, until leaders are up; a client that comes too early asks again."""
        try:
            async with asyncio.timeout(_LEADERS_S):
                await self._streams.catch_up()
                while not all(map(self._is_led, names)):  # noqa: ASYNC110 - the catalog has no event for it
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            pass  # the stream exists, which is what was asked for

    def _is_led(self, name: str) -> bool:
        record = self._streams.catalog.channel(name)
        if record is None or record.leader is None:
            return False
        here = self._node.core.channels.replicas.replica(record.channel_id)
        return record.leader != self._node.doors.node or (here is not None and here.serves)

    async def delete(self, request: pb.DeleteStreamRequest, principal: str) -> pb.DeleteStreamResponse:
        if request.name in RESERVED:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"{request.name} is reserved, and cannot be deleted")
        await self._streams.catch_up()
        names = self._all_of(request.name)
        self._require_all(principal, names or [request.name], ADMIN)
        if not names:
            raise GatewayRefusedError(Status.NOT_FOUND, f"there is no stream {request.name[:80]!a}")
        for name in names:
            await self._client.delete(name)
        return pb.DeleteStreamResponse()

    def _all_of(self, stream: str) -> list[str]:
        """Partitions in order; also those that are left of a stream whose partition 0 is gone (LAD1)."""
        found = [record.name for record in self._streams.partitions(stream)]
        if found:
            return found
        left = [place_of(record.name) for record in self._streams.catalog.channels()]
        return [channel_of(*place) for place in sorted(left) if place.stream == stream and place.partition > 0]

    # --- change --------------------------------------------------------------------------------------

    async def pause(self, request: pb.PauseStreamRequest, principal: str) -> pb.PauseStreamResponse:
        for name in await self._chosen(request.name, request.partitions, principal):
            await self._client.pause(name)
        await self._streams.catch_up()  # who asked here publishes here next
        return pb.PauseStreamResponse()

    async def set_readonly(self, request: pb.SetStreamReadonlyRequest, principal: str) -> pb.SetStreamReadonlyResponse:
        for name in await self._chosen(request.name, request.partitions, principal):
            await self._client.set_readonly(name, request.readonly)
        await self._streams.catch_up()
        return pb.SetStreamReadonlyResponse()

    async def _chosen(self, stream: str, partitions: Sequence[int], principal: str) -> list[str]:
        await self._streams.judged(lambda: self._require_all(principal, [stream], ADMIN))
        names = [record.name for record in await self._streams.require_partitions(stream, partitions)]
        self._require_all(principal, names, ADMIN)
        return names

    def _require_all(self, principal: str, names: Sequence[str], scope: str) -> None:
        for name in names:
            self._access.require(principal, name, scope)

    # --- cursors -------------------------------------------------------------------------------------

    async def set_cursor(self, request: pb.SetCursorRequest, principal: str) -> pb.SetCursorResponse:
        channel = await self._cursor_channel(request.stream, request.partition, request.cursorId, principal)
        name, ahead = _cursor(request.cursorId)
        if not -1 <= request.offset < NUMBER_MAX:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"a cursor cannot stand at {request.offset}; -1 is none")
        if request.offset == -1:
            await self._client.delete_cursor(channel, name)
        else:
            await self._client.set_cursor(channel, name, request.offset + ahead)
        return pb.SetCursorResponse()

    async def fetch_cursor(self, request: pb.FetchCursorRequest, principal: str) -> pb.FetchCursorResponse:
        channel = await self._cursor_channel(request.stream, request.partition, request.cursorId, principal)
        name, ahead = _cursor(request.cursorId)
        found = (await self._client.cursors(channel)).get(name)
        return pb.FetchCursorResponse(offset=-1 if found is None else found - ahead)

    async def _cursor_channel(self, stream: str, partition: int, cursor: str, principal: str) -> str:
        require_stream(stream)
        name = channel_of(stream, partition)
        await self._streams.judged(lambda: self._access.require(principal, name, READ))
        if not cursor or len(cursor) > _CURSOR_BYTES_MAX:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"a cursor id has 1 to {_CURSOR_BYTES_MAX} characters")
        return (await self._streams.require(StreamPlace(stream, partition))).name


def _cursor(cursor: str) -> tuple[str, int]:
    """The cursor's name on its channel, and how far it stands ahead of what the client says: Liftbridge's groups keep
    the last offset they read, ours the one they read next."""
    group = group_of_cursor(cursor)
    return (cursor_name(cursor), 0) if group is None else (group_cursor(group), 1)


def _wanted(request: pb.CreateStreamRequest) -> WantedStream:
    """What has a meaning here. Intervals and sizes of Liftbridge's own cleaning have none: cleaning is ours."""

    def number(field: str) -> int | None:
        return int(getattr(request, field).value) if request.HasField(field) else None

    return WantedStream(
        name=request.name,
        subject=request.subject,
        group=request.group,
        replication_factor=request.replicationFactor,
        partitions=request.partitions,
        retention_bytes=number("retentionMaxBytes"),
        retention_messages=number("retentionMaxMessages"),
        retention_age_ms=number("retentionMaxAge"),
        compacts=request.compactEnabled.value,
        encrypts=request.encryption.value,
        checks_offsets=request.optimisticConcurrencyControl.value,
        pauses_itself=request.autoPauseTime.value > 0,
        min_isr=number("minIsr"),
    )
