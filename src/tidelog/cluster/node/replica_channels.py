"""`LocalChannels` over the replicas of a running node: produce, fetch, offsets, cursors.

Everything runs on the event loop; disk access runs in the writer's or a reader's thread. All waits have an end.

DO1  Nothing beyond the committed end, or beyond what is durable here, is given out.
DO2  A produced block is answered once: with its offset when its ack policy is satisfied, or with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tidelog.blocks.block import Block, MadeBlock, buffers_to_send
from tidelog.blocks.control import CursorMoved, encode_control
from tidelog.cluster.clients.producer_admin import listed
from tidelog.cluster.clients.requests import AtSeq, AtTime, Earliest, Place, ProducersRequest
from tidelog.cluster.local_channels import OffsetsAnswer
from tidelog.cluster.node.driver import NodeDriver
from tidelog.cluster.node.requests import NodeRequests
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.fold import CURSORS_MAX
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.core.catalog import Applied, Catalog, Change, ChannelRecord
from tidelog.core.client_messages import Fetch, Fetched, Produce, Produced
from tidelog.core.liveness import ProximityGraph
from tidelog.core.replication.placement import NodeLoad
from tidelog.errors import (
    CatalogFull,
    DamagedRange,
    DiskError,
    LogError,
    NoReplicaHere,
    NotLeader,
    OffsetOutOfRange,
    ReplicaBehind,
    UnknownChannel,
    WaitTimedOut,
)
from tidelog.storage.log.log import Log
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us

_READERS: Final = 2
CURSOR_MS: Final = 5_000

T = TypeVar("T")


class ReplicaChannels:
    """Implements `cluster.local_channels.LocalChannels`."""

    def __init__(self, driver: NodeDriver, requests: NodeRequests) -> None:
        self._driver = driver
        self._requests = requests
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        """Readers that wait for a channel to change."""
        self._readers = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="tidelog-fetch")
        self._watchers: dict[int | None, list[Callable[[ChannelReplica], None]]] = {None: []}
        """By channel; None has watchers of all channels."""
        driver.moved_watchers.append(self._moved)

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        for waiting in self._waiting.values():
            for future in waiting:
                future.cancel()

    # --- where things are ------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        return self._driver.core.node

    @property
    def catalog(self) -> Catalog:
        catalog = self._driver.core.catalog
        if catalog is None:
            raise NotLeader(leader=None)
        return catalog

    @property
    def known_catalog(self) -> Catalog | None:
        return self._driver.core.catalog

    @property
    def is_registered(self) -> bool:
        return self._driver.core.is_registered

    @property
    def disk_problem(self) -> str | None:
        storage = self._driver.storage
        return None if storage is None else storage.problem

    def now_ms(self) -> int:
        return self._driver.now_ms()

    def wall_ms(self) -> int:
        return wall_clock_us() // 1000

    # --- the metadata ----------------------------------------------------------------------------------------

    @property
    def metadata_leader(self) -> str | None:
        return self._driver.core.leader

    @property
    def is_metadata_leader(self) -> bool:
        return self._driver.core.is_leader

    @property
    def proximity(self) -> ProximityGraph:
        return self._driver.core.proximity

    def node_loads(self) -> Mapping[str, NodeLoad]:
        return self._driver.core.channels.controller.node_loads(self.catalog)

    def is_linked(self, node: str) -> bool:
        return self._driver.pool.link_to(node) is not None

    async def propose(self, change: Change, *, timeout_ms: int) -> int:
        return await self._requests.propose(change, timeout_ms=timeout_ms)

    async def ask_node(self, node: str | None, kind: int, body: bytes, *, timeout_ms: int) -> memoryview:
        asked = self._driver.core.leader if node is None else node
        if asked is None or (node is None and asked == self.node):
            raise NotLeader(leader=None)
        return await self._driver.pool.request(asked, kind, body, timeout_ms=timeout_ms)

    async def wait_applied(self, index: int, *, timeout_ms: int) -> None:
        await self._requests.wait_applied(index, timeout_ms=timeout_ms)

    async def read_barrier(self) -> None:
        await self._requests.read_barrier()

    # --- replicas --------------------------------------------------------------------------------------------

    def find_replica(self, channel_id: int) -> ChannelReplica | None:
        return self._driver.core.channels.replicas.replica(channel_id)

    def replicas(self) -> Iterable[ChannelReplica]:
        return self._driver.core.channels.replicas.replicas()

    def replica(self, channel_id: int) -> ChannelReplica:
        replica = self.find_replica(channel_id)
        if replica is None:
            record = self.catalog.channel(channel_id)
            if record is None:
                raise UnknownChannel(channel=f"id {channel_id}")
            raise NoReplicaHere(channel=record.name, replicas=record.replicas)
        return replica

    def channel_here(self, channel_id: int) -> Mapping[str, Any] | None:
        replica = self.find_replica(channel_id)
        if replica is None:
            return None
        return {
            "role": replica.role.name.lower(),
            "log_start": replica.log_start,
            "log_end": replica.log_end,
            "held_end": replica.held_end,
            "committed_end": replica.committed_end,
            "problem": replica.problem,
        }

    # --- producing ---------------------------------------------------------------------------------------------

    def produce(self, request: Produce, made: MadeBlock, answer: Callable[[Produced], None]) -> None:
        replica = self.replica(request.channel_id)
        if replica.leading is None or request.leader_epoch not in (0, replica.leading.epoch):
            raise replica.not_leader()
        token = request.token

        def answered(first_offset: int, error: LogError | None) -> None:
            answer(Produced(token=token, first_offset=first_offset, error=error))

        order = ProduceOrder(answered, made, request.ack, path=_PUBLISH, expected_offset=request.expected_offset)
        replica.produce(order, self._driver.now_ms())
        self._driver.pump_soon()

    def submit(self, channel_id: int, order: ProduceOrder) -> None:
        """Append a block of this node's own; `order.token` is called once, with (first offset, error)."""
        self.replica(channel_id).produce(order, self._driver.now_ms())
        self._driver.pump_soon()

    async def append(self, channel_id: int, order: ProduceOrder, *, timeout_ms: int) -> int:
        """The offset of a block once its ack policy is satisfied. `order.token` is not used."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answered(first_offset: int, error: LogError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(first_offset)
            else:
                future.set_exception(error)

        self.submit(
            channel_id,
            ProduceOrder(
                answered, order.made, order.ack, order.path, order.windows, order.expected_offset, order.is_control
            ),
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the commit", deadline_s=timeout_ms / 1000) from None

    def apply_retention(self, channel_id: int) -> None:
        self.replica(channel_id).apply_retention(self._driver.now_ms())
        self._driver.pump_soon()

    # --- reading -----------------------------------------------------------------------------------------------

    def _moved(self, replicas: Sequence[ChannelReplica]) -> None:
        for replica in replicas:
            for future in self._waiting.pop(replica.channel_id, ()):
                if not future.done():
                    future.set_result(None)
            for watcher in (*self._watchers.get(replica.channel_id, ()), *self._watchers[None]):
                watcher(replica)

    def watch(self, watcher: Callable[[ChannelReplica], None], *, channel_id: int | None = None) -> Callable[[], None]:
        """Call `watcher` on the loop when the replica of a channel changed, or any replica; the returned function ends
        it."""
        watchers = self._watchers.setdefault(channel_id, [])
        watchers.append(watcher)
        return lambda: watchers.remove(watcher)

    def watch_catalog(self, watcher: Callable[[Sequence[Applied]], None]) -> Callable[[], None]:
        """Call `watcher` on the loop with the changes that were applied here; the returned function ends it."""
        self._driver.catalog_watchers.append(watcher)
        return lambda: self._driver.catalog_watchers.remove(watcher)

    async def wait_moved(self, channel_id: int, deadline_ms: int) -> bool:
        """Wait until the replica's role, committed end or log start changes; False when the time is up."""
        left_ms = deadline_ms - steady_clock_ms()
        if left_ms <= 0:
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(channel_id, set()).add(future)
        try:
            async with asyncio.timeout(left_ms / 1000):
                await future
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(channel_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[channel_id]
        return True

    async def fetch(self, fetch: Fetch, *, for_node: bool = False) -> Fetched:
        """Committed blocks, of a leader or of a replica in contact with one (DO1).

        A node that repairs its log is answered even by a replica that serves nothing, and by a leader with all that it
        holds: if every replica is needed for `min_isr`, a new leader may have to wait for this repair. The repairing
        node takes only blocks of the epoch that its own log had there.
        """
        deadline_ms = steady_clock_ms() + fetch.wait_ms
        while True:
            replica = self.replica(fetch.channel_id)
            record = replica.record
            knows = (replica.serves or for_node) and fetch.leader_epoch <= record.leader_epoch
            end = replica.held_end if for_node and replica.leading is not None else replica.committed_end
            if knows and fetch.offset < end:
                return await self._read(replica, fetch, end)
            if not await self.wait_moved(fetch.channel_id, deadline_ms):
                break
        replica = self.replica(fetch.channel_id)
        if not replica.serves or fetch.leader_epoch > replica.record.leader_epoch:
            raise self._behind(replica)
        if fetch.offset > replica.committed_end:
            raise self._behind(replica)
        return self._fetched(replica, ())

    @staticmethod
    def _behind(replica: ChannelReplica) -> ReplicaBehind:
        return ReplicaBehind(
            channel=replica.name, leader_epoch=replica.record.leader_epoch, committed_end=replica.committed_end
        )

    async def _read(self, replica: ChannelReplica, fetch: Fetch, end: int) -> Fetched:
        if fetch.offset < replica.log_start:
            raise OffsetOutOfRange(offset=fetch.offset, log_start=replica.log_start, log_end=replica.committed_end)
        blocks = replica.tail.take(fetch.offset, bytes_max=fetch.bytes_max, end=end)
        if blocks is None:
            blocks = await self.read_log(replica, fetch.offset, bytes_max=fetch.bytes_max, end=end)
        return self._fetched(replica, blocks)

    async def read_log(self, replica: ChannelReplica, offset: int, *, bytes_max: int, end: int) -> Sequence[Block]:
        """Blocks from the disk, in a reader's thread."""
        logs = self._driver.channel_logs
        try:
            blocks = await asyncio.get_running_loop().run_in_executor(
                self._readers,
                lambda: logs.read(replica.channel_id, offset, bytes_max=bytes_max, end=end),
            )
        except (DamagedRange, DiskError) as error:
            replica.read_failed(error, offset)
            self._driver.pump_soon()
            if isinstance(error, DiskError) and replica.others():
                raise replica.not_leader() from error  # another replica has them
            raise
        if blocks:
            replica.read_succeeded(range(blocks[0].leader.base_offset, blocks[-1].end))
        return blocks

    def log(self, channel_id: int) -> Log:
        return self._driver.channel_logs.log(channel_id)

    async def in_reader(self, read: Callable[..., T], *arguments: Any) -> T:
        """Have something read from the disk, in a reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, read, *arguments)

    @staticmethod
    def _fetched(replica: ChannelReplica, blocks: Sequence[Block]) -> Fetched:
        return Fetched(
            leader_epoch=replica.record.leader_epoch,
            committed_end=replica.committed_end,
            log_start=replica.log_start,
            data=buffers_to_send(blocks, sum(block.size for block in blocks)),
        )

    async def offset_at(self, channel_id: int, at: Place) -> OffsetsAnswer:
        """The offset of a place. Times and seqs are found by range, not by order (B2)."""
        replica = self.replica(channel_id)
        if replica.leading is None:
            # A follower may know of a smaller committed end than another node has reported before (invariant 4).
            raise replica.not_leader()
        if not replica.serves:
            raise self._behind(replica)
        # Read together, before any wait: afterwards this node may know of a newer epoch and of less.
        end, log_start, epoch = replica.committed_end, replica.log_start, replica.leading.epoch
        if isinstance(at, Earliest):
            offset = log_start
        elif isinstance(at, AtTime | AtSeq):
            offset = await asyncio.get_running_loop().run_in_executor(
                self._readers, lambda: self._search(channel_id, at, end)
            )
        else:
            offset = end
        return OffsetsAnswer(offset=offset, committed_end=end, log_start=log_start, leader_epoch=epoch)

    def _search(self, channel_id: int, at: AtTime | AtSeq, end: int) -> int:
        """The first block that reaches into the range; records before it in that block are the reader's to skip."""
        log = self._driver.channel_logs.log(channel_id)
        if isinstance(at, AtTime):
            found = log.blocks(end=end, from_time_us=at.time_us, skip_damaged=True)
        else:
            found = log.blocks(end=end, from_seq=at.seq, producer=at.lineage, skip_damaged=True)
        block = next(iter(found), None)
        return end if block is None else block.offsets.start

    # --- cursors -----------------------------------------------------------------------------------------------

    async def cursors(self, channel_id: int) -> Mapping[str, int]:
        replica = await self._folded(channel_id)
        assert replica.fold is not None
        return dict(replica.fold.cursors)

    def producers(self, request: ProducersRequest) -> dict[str, Any]:
        replica = self.replica(request.channel_id)
        if replica.leading is None:
            raise replica.not_leader()
        return listed(self.catalog, replica, request)

    async def set_cursor(self, channel_id: int, name: str, offset: int | None) -> None:
        """A control record in the channel itself: replicated and durable like all others (F1, R12)."""
        fold = (await self._folded(channel_id)).fold
        assert fold is not None
        if offset is not None and name not in fold.cursors and len(fold.cursors) >= CURSORS_MAX:
            raise CatalogFull(what="cursors of one channel", count_max=CURSORS_MAX)
        record = CursorMoved(name=name, offset=-1 if offset is None else offset)
        made = encode_control([record], time_us=wall_clock_us())
        await self.append(channel_id, ProduceOrder(None, made, is_control=True), timeout_ms=CURSOR_MS)

    async def _folded(self, channel_id: int) -> ChannelReplica:
        """The leader's replica, with its fold."""
        deadline_ms = steady_clock_ms() + CURSOR_MS
        while True:
            replica = self.replica(channel_id)
            if replica.leading is None:
                raise replica.not_leader()
            if replica.order_fold():
                return replica
            self._driver.pump_soon()
            if not await self.wait_moved(channel_id, deadline_ms):
                raise WaitTimedOut(waiting_for="the log to be read", deadline_s=CURSOR_MS / 1000)

    def channel_named(self, name: str) -> ChannelRecord:
        record = self.catalog.channel(name)
        if record is None:
            raise UnknownChannel(channel=name)
        return record

    def leader_address(self, record: ChannelRecord) -> str:
        """The address of a channel's leader for clients; empty if there is none or it is not known."""
        node = None if record.leader is None else self.catalog.node(record.leader)
        return "" if node is None else dict(node.addresses).get("link", "")


_PUBLISH: Final = 3
