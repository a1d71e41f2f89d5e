"""A partition's log as a subscription reads it: this node's own replica, or from afar where it has none.

Both give verified blocks, control blocks too, and nothing beyond the committed end. Reading one's own replica costs no
link; from afar (`readISRReplica` at a node without a replica) the native client reads from the nearest one.

LOG1  `read` ends within a moment, with what there is. It raises `GatewayRefusedError` where the log can no longer be
    read.
LOG2  Only the channel of one id is asked and read, and no other of its name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.blocks.block import Block, iterate_blocks
from tidelog.client import Client, Reader, Time
from tidelog.client.records import records_of
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.core.client_messages import Fetch
from tidelog.errors import NoReplicaHere, OffsetOutOfRange, ReplicaBehind, UnknownChannel
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.storage.log.writer import steady_clock_ms
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

BYTES_MAX: Final = MIB
"""Of one read: what a subscription holds in memory at a time."""
_LOOK_MS: Final = 500
"""How long a deletion, a pause or a move may go unnoticed while no message comes."""
_SILENT_S: Final = 10.0
"""A replica that cannot serve for so long ends its subscriptions."""


class PartitionEnds(NamedTuple):
    """How a log stands."""

    log_start: int
    committed_end: int
    log_end: int
    """What the replica holds, committed or not; from afar what is committed."""


class PartitionLog(Protocol):
    async def standing(self) -> PartitionEnds | None:
        """None where it cannot be said within a moment: look around, and ask again."""

    async def read(self, position: int) -> list[Block]:
        """What follows, if anything is committed there within a moment."""

    def blocks(self, low: int, high: int) -> AsyncIterator[Block]:
        """Those that hold these committed offsets."""

    async def first_from(self, time_us: int, end: int) -> int | None:
        """The first message of this time or a later one, below `end`."""

    async def close(self) -> None: ...


class LocalLog:
    """Of this node's replica."""

    def __init__(self, node: Node, channel_id: int) -> None:
        self._node = node
        self._channel_id = channel_id
        self._served_s = time.monotonic()
        """When the replica last could answer."""

    async def standing(self) -> PartitionEnds | None:
        """A leader that was elected just now has a record of its own to commit first (R2)."""
        if not self._replica().serves:
            await self._node.doors.wait_moved(self._channel_id, steady_clock_ms() + _LOOK_MS)
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
            return []  # trimmed meanwhile: the position moves up
        except ReplicaBehind:
            if not self._replica().serves:
                self._require_heard()
                return []
            blocks = []  # the position lies beyond the end, and waits to be reached
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
            log = self._node.channel_logs.log(self._channel_id)
            for block in log.blocks(end=end, from_time_us=time_us, skip_damaged=True):
                if (offset := _first_in(block, time_us)) is not None:
                    return offset
            return None

        return await self._node.doors.in_reader(search)

    async def close(self) -> None:
        """Nothing is held."""

    async def _fetched(self, fetch: Fetch) -> list[Block]:
        """Verified. What the node's gateway gives is cut for sending, also inside blocks."""
        return list(iterate_blocks(b"".join((await self._node.doors.fetch(fetch)).data)))

    def _replica(self) -> ChannelReplica:
        try:
            return self._node.doors.replica(self._channel_id)
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
    """Of other nodes' replicas."""

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
            # A position beyond the end is not one to read from yet; what comes before it is left out on the way.
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


def log_of(node: Node, client: Client, *, channel: str, channel_id: int) -> PartitionLog:
    """This node's own, if it has one."""
    if node.doors.channel_here(channel_id) is None:
        return RemoteLog(client, channel, channel_id)
    return LocalLog(node, channel_id)


def _first_in(block: Block, time_us: int) -> int | None:
    return next((record.offset for record in records_of(block, start=0) if record.time_us >= time_us), None)
