"""Repair: damaged records of a channel's log are fetched from another replica and put back in their place (B4).

A damaged range stays readable elsewhere while one other replica holds it; the log marks it with a placeholder and never
gets shorter. Blocks are fetched as clients fetch them, verified, and replace the placeholder in the
writer's thread.

MD1  Only whole blocks that lie inside one damaged range are put in; others are requested again later.
MD2  Only blocks of the epoch that the log had there: the same epoch and offset mean the same bytes (invariant 2), and a
     leader that is gone may still answer with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tidelog.blocks.block import Block, iterate_blocks
from tidelog.cluster.node.driver import NodeDriver
from tidelog.cluster.replication.orders import LogReady
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.state import Storage
from tidelog.codecs.client_codec import FETCH, decode_fetched, encode_fetch
from tidelog.core.client_messages import Fetch
from tidelog.errors import BadBlock, LogError, WaitTimedOut
from tidelog.units import MIB

LOOK_S: Final = 5.0
FETCH_MS: Final = 5_000
_FETCH_BYTES: Final = 4 * MIB
_RANGES_PER_LOOK: Final = 16


class ReplicaRepairer:
    def __init__(self, driver: NodeDriver) -> None:
        self._driver = driver
        self.repaired = 0
        """Records that were put back."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Repair known damage, a few ranges at a time."""
        driver = self._driver
        budget = _RANGES_PER_LOOK
        for channel_id in sorted(driver.channel_logs.damaged_channels()):
            replica = driver.core.channels.replicas.replica(channel_id)
            if replica is None or replica.storage is not Storage.READY:
                continue
            gaps = driver.channel_logs.log(channel_id).damaged()
            if replica.compare_damage(gaps):
                driver.pump_soon()
            for gap in gaps[:budget]:
                budget -= 1
                await self._repair(replica, gap)
            if budget <= 0:
                return

    async def _repair(self, replica: ChannelReplica, gap: range) -> None:
        for source in self._sources(replica):
            try:
                blocks = await self._fetch(replica, source, gap)
                if blocks:
                    await self._replace(replica, blocks)
                    return
            except LogError as error:
                self._driver.say("repair failed", channel=replica.name, source=source, error=str(error))

    def _sources(self, replica: ChannelReplica) -> list[str]:
        """The nodes to fetch from: the leader first, then the other members of the ISR."""
        record, me = replica.record, self._driver.core.node
        found = [record.leader] if record.leader not in (None, me) else []
        found += [node for node in record.isr_nodes if node != me and node not in found]
        return [node for node in found if node is not None]

    async def _fetch(self, replica: ChannelReplica, source: str, gap: range) -> Sequence[Block]:
        fetch = Fetch(channel_id=replica.channel_id, offset=gap.start, bytes_max=_FETCH_BYTES, wait_ms=0)
        answer = await self._driver.pool.request(source, FETCH, encode_fetch(fetch), timeout_ms=FETCH_MS)
        return fitting(b"".join(decode_fetched(answer).data), replica, gap)

    async def _replace(self, replica: ChannelReplica, blocks: Sequence[Block]) -> None:
        """Put blocks in place in the writer's thread, after all earlier orders."""
        driver, loop = self._driver, asyncio.get_running_loop()
        future: asyncio.Future[LogReady | LogError] = loop.create_future()
        logs, channel_id, generation = driver.channel_logs, replica.channel_id, replica.generation

        def act(_: int) -> None:
            outcome: LogReady | LogError
            try:
                logs.log(channel_id).replace(blocks)
                outcome = LogReady(
                    channel_id=channel_id, generation=generation, state=logs.state(channel_id), swept=True
                )
            except LogError as error:
                outcome = error
            loop.call_soon_threadsafe(settle, outcome)

        def settle(outcome: LogReady | LogError) -> None:
            if not future.done():
                future.set_result(outcome)

        assert driver.storage is not None
        driver.storage.writer.run_exclusive(act)
        try:
            async with asyncio.timeout(FETCH_MS / 1000):
                outcome = await future
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the writer", deadline_s=FETCH_MS / 1000) from None
        if isinstance(outcome, LogError):
            raise outcome
        self.repaired += sum(block.counted for block in blocks)
        driver.core.channels.replicas.storage_done(outcome, driver.now_ms())
        driver.pump_soon()
        driver.say("repaired", channel=replica.name, first=blocks[0].offsets.start, end=blocks[-1].end)


def fitting(data: bytes, replica: ChannelReplica, gap: range) -> list[Block]:
    """The first run of blocks that may be put into the gap (MD1, MD2)."""
    blocks: list[Block] = []
    try:
        for block in iterate_blocks(data):
            if block.offsets.start < gap.start or block.end > gap.stop:
                if blocks:
                    break
                continue
            if block.leader.leader_epoch != replica.last_epoch(block.end):
                break
            blocks.append(block)
    except BadBlock:
        return []
    return blocks
