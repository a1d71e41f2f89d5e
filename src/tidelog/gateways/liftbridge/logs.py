"""Reads a partition's log for a subscription, from this node's replica or, where there is none, from another node's.

Both readers give verified blocks, including control blocks, and nothing beyond the committed end. The remote one
(`readISRReplica` at a node without a replica) uses the native client, which reads from the nearest replica.

LOG1  `read` returns within `_LOOK_MS` with what there is. It raises `GatewayRefusedError` if the log can no longer be
    read.
LOG2  Reads are by channel id: a channel created again under the same name is never read instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

from tidelog.blocks.block import Block, iterate_blocks
from tidelog.client import Client, Reader, Time
from tidelog.client.records import records_of
from tidelog.cluster.local_channels import LocalChannels, LocalReplica
from tidelog.core.client_messages import Fetch
from tidelog.errors import NoReplicaHere, OffsetOutOfRange, ReplicaBehind, UnknownChannel
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.storage.log.writer import steady_clock_ms
from tidelog.units import MIB

BYTES_MAX: Final = MIB
"""Limit of one read, hence of a subscription's memory."""
_LOOK_MS: Final = 500
"""How long a deletion, a pause or a new leader may go unnoticed while no message comes."""
_SILENT_S: Final = 10.0
"""A replica that cannot serve reads for this long ends its subscriptions."""


class PartitionEnds(NamedTuple):
    """Bounds of a log."""

    log_start: int
    committed_end: int
    log_end: int
    """The end of what the replica holds, committed or not; for a remote log the committed end."""


class PartitionLog(Protocol):
    async def standing(self) -> PartitionEnds | None:
        """The log's bounds; None if the replica cannot tell yet: check the caller, and ask again."""

    async def read(self, position: int) -> list[Block]:
        """The committed blocks at `position`; empty if none come within `_LOOK_MS`."""

    def blocks(self, low: int, high: int) -> AsyncIterator[Block]:
        """The blocks that hold these committed offsets."""

    async def first_from(self, time_us: int, end: int) -> int | None:
        """The offset of the first message at or after this time, below `end`."""

    async def close(self) -> None: ...


class LocalLog:
    """The log of this node's replica."""

    def __init__(self, channels: LocalChannels, channel_id: int) -> None:
        self._channels = channels
        self._channel_id = channel_id
        self._served_s = time.monotonic()
        """When the replica last answered."""

    async def standing(self) -> PartitionEnds | None:
        """A newly elected leader first has to commit the first record of its epoch (R2)."""
        if not self._replica().serves:
            await self._channels.wait_moved(self._channel_id, steady_clock_ms() + _LOOK_MS)
        replica = self._replica()
        if not replica.serves:
            self._require_heard()
            return None
        return PartitionEnds(replica.log_start, replica.committed_end, replica.log_end)

    async def read(self, position: int) -> list[Block]:
        fetch = Fetch(channel_id=self._channel_id, offset=position, bytes_max=BYTES_MAX, wait_ms=_LOOK_MS)
        try:
            blocks = await self._fetched(fetch)
        except (UnknownChannel, NoReplicaHere):
            self._replica()
            return []
        except OffsetOutOfRange:
            return []  # trimmed meanwhile: the caller moves its position up
        except ReplicaBehind:
            if not self._replica().serves:
                self._require_heard()
                return []
            blocks = []  # the position lies beyond the end: wait until the log reaches it
        self._served_s = time.monotonic()
        return blocks

    async def blocks(self, low: int, high: int) -> AsyncIterator[Block]:
        while low < high:
            fetch = Fetch(channel_id=self._channel_id, offset=low, bytes_max=BYTES_MAX, wait_ms=0)
            found = await self._fetched(fetch)
            if not found:
                return
            for block in found:
                if block.offsets.start < high:
                    yield block
            low = found[-1].offsets.stop

    async def first_from(self, time_us: int, end: int) -> int | None:
        def search() -> int | None:
            log = self._channels.log(self._channel_id)
            for block in log.blocks(end=end, from_time_us=time_us, skip_damaged=True):
                if (offset := _first_in(block, time_us)) is not None:
                    return offset
            return None

        return await self._channels.in_reader(search)

    async def close(self) -> None:
        """The local log holds no resources."""

    async def _fetched(self, fetch: Fetch) -> list[Block]:
        """Verified blocks. The node cuts what it gives by size, also inside blocks."""
        return list(iterate_blocks(b"".join((await self._channels.fetch(fetch)).data)))

    def _replica(self) -> LocalReplica:
        try:
            return self._channels.replica(self._channel_id)
        except UnknownChannel:
            raise GatewayRefusedError(Status.NOT_FOUND, "the stream was deleted") from None
        except NoReplicaHere as error:
            raise GatewayRefusedError(Status.UNAVAILABLE, str(error)) from error

    def _require_heard(self) -> None:
        if time.monotonic() - self._served_s > _SILENT_S:
            raise GatewayRefusedError(
                Status.UNAVAILABLE, "this replica has no contact with its leader; ask another node"
            )


class RemoteLog:
    """The log of other nodes' replicas."""

    def __init__(self, client: Client, channel: str, channel_id: int) -> None:
        self._client = client
        self._channel = channel
        self._channel_id = channel_id
        self._reader: Reader | None = None
        self._blocks: AsyncIterator[Block] | None = None
        self._next: asyncio.Future[Block] | None = None

    async def standing(self) -> PartitionEnds:
        found = await self._client.offsets(self._channel, channel_id=self._channel_id)
        return PartitionEnds(found.log_start, found.committed_end, found.committed_end)

    async def read(self, position: int) -> list[Block]:
        if self._blocks is None:
            # A reader cannot start beyond the end; the caller skips what lies before its position.
            start = min(position, (await self.standing()).committed_end)
            options = {"start": start, "nearest": True, "on_trim": "skip", "bytes_max": BYTES_MAX}
            self._reader = self._client.reader(self._channel, channel_id=self._channel_id, **options)
            self._blocks = self._reader.blocks()
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._blocks))
        done, _ = await asyncio.wait({self._next}, timeout=_LOOK_MS / 1000)
        if not done:
            return []
        block, self._next = self._next.result(), None
        return [block]

    def blocks(self, low: int, high: int) -> AsyncIterator[Block]:
        return self._client.fetch(self._channel, range(low, high), channel_id=self._channel_id)

    async def first_from(self, time_us: int, end: int) -> int | None:
        start = await self._client.offset_at(self._channel, Time(time_us), channel_id=self._channel_id)
        if start >= end:
            return None
        async for block in self.blocks(start, end):
            if (offset := _first_in(block, time_us)) is not None:
                return offset
        return None

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        if self._reader is not None:
            await self._reader.close()


def log_of(channels: LocalChannels, client: Client, *, channel: str, channel_id: int) -> PartitionLog:
    """The local log if this node has a replica, else the remote one."""
    if channels.channel_here(channel_id) is None:
        return RemoteLog(client, channel, channel_id)
    return LocalLog(channels, channel_id)


def _first_in(block: Block, time_us: int) -> int | None:
    return next((record.offset for record in records_of(block, start=0) if record.time_us >= time_us), None)
