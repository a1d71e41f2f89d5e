"""The storage of a running node: what fails without anybody waiting for it is said (NT2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.patience import patient
from tidelog.blocks.block import Block
from tidelog.blocks.messages import encode_values
from tidelog.cluster.node.store_thread import StoreThread
from tidelog.cluster.replication.orders import AppendBlocks, DeleteLog, OpenLog, StorageOrder, StorageResult, SweepLog
from tidelog.core.catalog import ChannelConfig
from tidelog.core.catalog.channel_config import ChannelRetention
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.parts import StoreOptions

RECORDS = 100
CONFIG = ChannelConfig(retention=ChannelRetention(max_bytes=64 * 1024))


class World:
    """A node's storage on a simulated disk, and what it said."""

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.lines: list[str] = []
        self.failures: list[Exception] = []
        self.storage: StoreThread

    async def open(self) -> None:
        options = StoreOptions(log=LogOptions(reserve_bytes=0, retention_interval_ms=3_600_000), scrub_bytes_per_s=0)
        self.storage = await StoreThread.open(
            self.disk, options=options, on_results=self._take, on_failed=self.failures.append, log=self.lines.append
        )

    def _take(self, results: Sequence[StorageResult]) -> None:
        for result in results:
            assert getattr(result, "error", None) is None, result

    async def order(self, *orders: StorageOrder) -> None:
        """Carried out when this returns."""
        self.storage.writer.put(orders)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def finish(_: int) -> None:
            loop.call_soon_threadsafe(done.set)

        self.storage.writer.run_exclusive(finish)
        async with asyncio.timeout(patient(30.0)):
            await done.wait()

    def look(self) -> list[str]:
        """The lines since the last look."""
        self.storage.look_at_upkeep()
        lines, self.lines[:] = list(self.lines), []
        return lines


def blocks() -> tuple[Block, ...]:
    rng = random.Random(1)
    made = [encode_values([rng.randbytes(4096)], time_us=offset) for offset in range(RECORDS)]
    return tuple(
        one.stamp(base_offset=offset, channel_id=1, leader_epoch=1, append_time_us=offset, durable_end=0, path=0)
        for offset, one in enumerate(made)
    )


@pytest.mark.parametrize(
    ("work", "kind"),
    [(SweepLog(channel_id=1, generation=1, floor=RECORDS), "io"), (DeleteLog(channel_id=1, generation=1), "full")],
    ids=["sweep", "delete"],
)
async def test_files_that_cannot_be_removed_are_said_once_and_again_when_they_can(
    work: StorageOrder, kind: str
) -> None:
    world = World()
    await world.open()
    await world.order(
        OpenLog(channel_id=1, generation=1, name="spray", config=CONFIG),
        AppendBlocks(channel_id=1, generation=1, blocks=blocks()),
    )
    assert world.look() == []
    world.disk.faults.fail_kind = kind  # type: ignore[assignment]
    world.disk.faults.fail_after, world.disk.faults.fail_forever = 1, True
    await world.order(work)
    await world.order(work)
    world.disk.faults.fail_after, world.disk.faults.fail_forever = None, False
    (line,) = world.look()
    assert line.startswith("the disk is not kept in order reason=")
    problem = world.storage.upkeep_problem
    assert problem is not None
    assert world.look() == []
    await world.order(work)
    assert world.look() == ["the disk is kept in order again"]
    assert world.storage.upkeep_problem is None
    assert world.failures == []
    await world.storage.close()


async def test_a_segment_that_cannot_be_written_is_said_until_it_can() -> None:
    world = World()
    await world.open()
    await world.order(
        OpenLog(channel_id=1, generation=1, name="spray", config=CONFIG),
        AppendBlocks(channel_id=1, generation=1, blocks=blocks()),
    )
    store = world.storage.logs._store

    async def checkpoint() -> None:
        world.storage.writer.run_exclusive(store.checkpoint_or_keep)
        await world.order()

    faults = world.disk.faults
    faults.fail_kind, faults.fail_after, faults.fail_forever = "full", 1, True
    await checkpoint()
    faults.fail_after, faults.fail_forever = None, False
    (line,) = world.look()
    assert line.startswith("the disk is not kept in order reason=")
    await checkpoint()
    assert world.look() == ["the disk is kept in order again"]
    await world.storage.close()
