"""Creates, deletes and changes streams, and stores cursors, through the native client.

LAD1  Partitions are created from the highest number down to 0 and deleted from 0 up, so a stream exists only while all
     its partitions do. A retry finishes what a crash interrupted.
LAD2  Partitions left by an interrupted deletion do not become part of a new stream while they hold messages.
LAD3  The caller's grants for all channels concerned are checked before the first change; a missing grant is confirmed
     in a newer catalog first (LS5).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from tidelog.client import Client
from tidelog.client.admin import Created
from tidelog.client.records import holds_data
from tidelog.cluster.clients.access import ADMIN, READ, ClientAccess
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.client_codec import NUMBER_MAX
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace, channel_of, place_of
from tidelog.core.catalog import ChannelConfig, NodeState, group_cursor
from tidelog.errors import ConfigMismatch, LogError
from tidelog.gateways.liftbridge.names import RESERVED, WantedStream, configs_of, cursor_name, group_of_cursor
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.gateways.liftbridge.streams import Streams, require_stream

_LEADERS_S: Final = 5.0
_LOOK_S: Final = 0.02
_EMPTY_OFFSETS_MAX: Final = 4_096
"""A partition without messages holds only control records, and few of them."""
_CURSOR_BYTES_MAX: Final = 1_024


class Administration:
    """One for each gateway."""

    def __init__(self, channels: LocalChannels, *, client: Client, streams: Streams, access: ClientAccess) -> None:
        self._channels = channels
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
            # Another request created it first: its creation mark differs.
            raise GatewayRefusedError(Status.ALREADY_EXISTS, f"stream {name!r} exists already") from error
        await self._wait_led([*higher, created.name])
        return pb.CreateStreamResponse()

    async def _create_higher(self, stream: str, names: Sequence[str], configs: Sequence[ChannelConfig]) -> None:
        left = [name for name in names if self._streams.catalog.channel(name) is not None]
        for name in left:
            if await self._holds_messages(name):
                raise GatewayRefusedError(
                    Status.ALREADY_EXISTS,
                    f"partition {name!r} remains of a stream whose deletion was interrupted; delete {stream!r} again",
                )
        for outcome in await self._client.create_channels(names, configs[1]) if names else ():
            if isinstance(outcome, ConfigMismatch):
                raise GatewayRefusedError(
                    Status.ALREADY_EXISTS,
                    f"a partition of {stream!r} exists with other settings; delete {stream!r}, then create it",
                ) from outcome
            if isinstance(outcome, LogError):
                raise outcome
            assert isinstance(outcome, Created)

    async def _holds_messages(self, name: str) -> bool:
        """Whether the channel holds anything but control records (LAD2)."""
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
        """Wait a few seconds for leaders, as Liftbridge does; a client that comes before they are elected retries."""
        try:
            async with asyncio.timeout(_LEADERS_S):
                await self._streams.catch_up()
                while not all(map(self._is_led, names)):  # noqa: ASYNC110 - the catalog has no event for it
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            pass  # the stream was created, which is what the caller requested

    def _is_led(self, name: str) -> bool:
        record = self._streams.catalog.channel(name)
        if record is None or record.leader is None:
            return False
        here = self._channels.find_replica(record.channel_id)
        return record.leader != self._channels.node or (here is not None and here.serves)

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
        """Partitions in order, including those that remain of a stream whose partition 0 is gone (LAD1)."""
        found = [record.name for record in self._streams.partitions(stream)]
        if found:
            return found
        left = [place_of(record.name) for record in self._streams.catalog.channels()]
        return [channel_of(*place) for place in sorted(left) if place.stream == stream and place.partition > 0]

    # --- change --------------------------------------------------------------------------------------

    async def pause(self, request: pb.PauseStreamRequest, principal: str) -> pb.PauseStreamResponse:
        for name in await self._chosen(request.name, request.partitions, principal):
            await self._client.pause(name)
        await self._streams.catch_up()  # so that a following Publish at this node sees the pause
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
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"{request.offset} is no cursor offset; -1 deletes it")
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
    """The cursor's name on its channel, and its distance from the client's number: Liftbridge's groups store the last
    offset read, ours the next one to read."""
    group = group_of_cursor(cursor)
    return (cursor_name(cursor), 0) if group is None else (group_cursor(group), 1)


def _wanted(request: pb.CreateStreamRequest) -> WantedStream:
    """The fields that apply here. Liftbridge's cleaner intervals and segment sizes are ignored."""

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
