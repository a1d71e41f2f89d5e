"""A file whose channel is replicated: written at its leader, read from any replica.

There is one writer per channel, its leader (seed 001). A file on another node refuses to append and names the leader: a
follower that took a record would have a log of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.blocks.block import Block, MadeBlock
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.state import Storage
from tidelog.core.client_messages import AckPolicy
from tidelog.core.replication.config import FileConfig
from tidelog.embedded.chain_reader import ChainReader
from tidelog.embedded.coordinator import ReplicationCoordinator
from tidelog.embedded.log_file import READ_BYTES, LogFile
from tidelog.errors import NoReplicaHere, NotChannelLeader, NotEnoughReplicas, WaitTimedOut
from tidelog.storage.log.writer import steady_clock_ms

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

_PUBLISH_PATH: Final = 3
_LOOK_MS: Final = 10
_SWEEP_MS: Final = 5_000
_SWEEPS_MAX: Final = 3
"""The timeout of one call: a leader may first have to write and commit a snapshot."""


class ReplicatedFile(LogFile):
    def __init__(
        self,
        name: str,
        config: FileConfig,
        *,
        node: Node,
        coordinator: ReplicationCoordinator,
        close: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__(name, config)
        self._node = node
        self.coordinator = coordinator
        self.channel_id = coordinator.channel_id
        self.reader = ChainReader(node, channel=name, channel_id=coordinator.channel_id)
        self._close = close

    @property
    def _replica(self) -> ChannelReplica | None:
        """This node's own log, while it can be used."""
        replica = self._node.core.channels.replicas.replica(self.channel_id)
        return replica if replica is not None and replica.storage is not Storage.CLOSED else None

    @property
    def log_start(self) -> int:
        """The start on this node; where it has no replica, as another node last reported."""
        replica = self._replica
        return self.reader.log_start if replica is None else replica.log_start

    @property
    def log_end(self) -> int:
        replica = self._replica
        return self.reader.known_end if replica is None else replica.log_end

    @property
    def committed_end(self) -> int:
        """The committed end that this node knows: a follower hears of it a moment after the leader."""
        replica = self._replica
        return max(self.reader.known_end, 0 if replica is None else replica.committed_end)

    @property
    def leader(self) -> str | None:
        """The address of the leader, to append there."""
        return self.coordinator.leader

    # --- writing -------------------------------------------------------------------------------------------------

    async def _append(self, made: MadeBlock, expected_offset: int, timeout_ms: int) -> int:
        deadline_ms = steady_clock_ms() + timeout_ms
        while True:
            left_ms = deadline_ms - steady_clock_ms()
            try:
                self._check_leads()
                order = ProduceOrder(None, made, AckPolicy.ALL, path=_PUBLISH_PATH, expected_offset=expected_offset)
                return await self._node.channels.append(self.channel_id, order, timeout_ms=max(1, left_ms))
            except NotChannelLeader as error:
                # Nothing was written. If another node leads, the caller has to go there; a moment without a leader, or
                # before this one has taken over, is waited out.
                if error.leader not in (None, self._node.core.node) or left_ms <= 0:
                    raise
            except NotEnoughReplicas:
                # Definite too. Replicas that come back are admitted within moments; if none does, the caller gets the
                # error.
                if left_ms <= 0:
                    raise
            await asyncio.sleep(_LOOK_MS / 1000)
            self._check_open()

    def _check_leads(self) -> None:
        record = self.reader.record()
        replica = self._node.core.channels.replicas.replica(self.channel_id)
        if replica is None or replica.leading is None:
            raise NotChannelLeader(
                channel=self.name,
                leader=record.leader,
                address=self._node.channels.leader_address(record),
                leader_epoch=record.leader_epoch,
            )

    # --- reading -------------------------------------------------------------------------------------------------

    async def _fetch(self, offset: int, wait_ms: int) -> Sequence[Block]:
        self._check_open()
        return await self.reader.fetch(offset, bytes_max=READ_BYTES, wait_ms=wait_ms)

    def _unclean_epoch(self) -> int:
        return self.reader.unclean_epoch()

    # --- keeping -------------------------------------------------------------------------------------------------

    async def sweep_retention(self) -> int:
        """Sweep on this node: replicas trim independently, and equally, because they have the same settings."""
        self._check_open()
        replica = self._own_replica()
        deadline_ms = steady_clock_ms() + _SWEEP_MS
        while not replica.order_fold():
            self._node.driver.pump_soon()
            if steady_clock_ms() >= deadline_ms:
                raise WaitTimedOut(waiting_for="the log to be read", deadline_s=_SWEEP_MS / 1000)
            await asyncio.sleep(_LOOK_MS / 1000)
        start = replica.log_start
        for _ in range(_SWEEPS_MAX):
            replica.apply_retention(self._node.now_ms())
            await self._settle()
            if replica.log_start > start:
                break
            await self._wait_committed(replica, deadline_ms)
        return replica.log_start

    async def _settle(self) -> None:
        """Wait until the writer's thread has carried out earlier orders, and the replica knows."""
        storage, loop = self._node.storage, asyncio.get_running_loop()
        assert storage is not None
        done: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def in_line(_: int) -> None:
            loop.call_soon_threadsafe(finish)

        self._node.driver.pump_soon()
        await asyncio.sleep(0)  # the pump runs in between, so the orders are in line before this
        storage.writer.run_exclusive(in_line)
        async with asyncio.timeout(_SWEEP_MS / 1000):
            await done

    async def sync(self) -> None:
        """Wait until all records in this node's log are committed or, on a follower, durable here."""
        self._check_open()
        replica = self._own_replica()
        if not await self._wait_committed(replica, steady_clock_ms() + _SWEEP_MS):
            raise WaitTimedOut(waiting_for=f"the commit of {self.name!r}", deadline_s=_SWEEP_MS / 1000)

    async def _wait_committed(self, replica: ChannelReplica, deadline_ms: int) -> bool:
        end = replica.log_end
        while (replica.committed_end if replica.leading is not None else replica.held_end) < min(end, replica.log_end):
            if steady_clock_ms() >= deadline_ms:
                return False
            await asyncio.sleep(_LOOK_MS / 1000)
        return True

    def _own_replica(self) -> ChannelReplica:
        replica = self._replica
        if replica is None:
            raise NoReplicaHere(channel=self.name, replicas=self.reader.record().replicas)
        return replica

    async def close(self) -> None:
        await self._close(self.name)

    async def let_go(self, *, timeout_ms: int) -> None:
        """Called by the manager: a leader hands over, as in seed 001; the copy stays, since the catalog counts it."""
        self._is_closed = True
        await self.coordinator.hand_over(timeout_ms=timeout_ms)
        self.coordinator.detach()
