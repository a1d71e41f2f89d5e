"""The writer of a node's channels: who carries orders out, in which order, and when the event loop does it itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.patience import patient
from tidelog.blocks.block import Block, make_block
from tidelog.blocks.header import BlockKind
from tidelog.cluster.replication import writer as replica_writer
from tidelog.cluster.replication.orders import AppendBlocks, Appended, CloseLog, StorageOrder, StorageResult
from tidelog.cluster.replication.writer import ReplicaWriter
from tidelog.errors import DiskFailed, LogError, LogPoisoned

WAIT_S = 30.0


class FakeLogs:
    """A store that is synced by every append, in no time unless told otherwise."""

    def __init__(self) -> None:
        self.syncs = 0
        self.is_ready = True
        self.stopped_by: LogError | None = None

    def stopped(self) -> LogError | None:
        return self.stopped_by

    def is_ready_for(self, byte_count: int) -> bool:
        return self.is_ready

    def maintain(self, now_us: int) -> int:
        return now_us + 3_600_000_000

    def close_all(self, now_us: int) -> None:
        pass


class FakeStorage:
    def __init__(self) -> None:
        self.logs = FakeLogs()
        self.now_us = 0
        self.takes_us = 0
        self.error: Exception | None = None
        self.done: list[tuple[str, int]] = []
        """Whose thread carried out what, in order."""

    def carry_out(self, orders: Sequence[StorageOrder], now_us: int) -> list[StorageResult]:
        if self.error is not None:
            raise self.error
        where = "loop" if threading.current_thread() is threading.main_thread() else "thread"
        self.done += [(where, order.generation) for order in orders]
        self.logs.syncs += 1
        self.now_us += self.takes_us
        appends = [order for order in orders if isinstance(order, AppendBlocks)]
        return [
            Appended(channel_id=1, generation=one.generation, held_end=one.generation, log_end=one.generation)
            for one in appends
        ]


def block(size: int) -> Block:
    made = make_block(bytes(size), kind=BlockKind.FRAMES, form=1, record_count=1)
    return made.stamp(base_offset=0, channel_id=1, leader_epoch=1, append_time_us=0, durable_end=0, path=0)


SMALL, LARGE = block(64), block(8_192)


def append(number: int, one: Block = SMALL) -> AppendBlocks:
    return AppendBlocks(channel_id=1, generation=number, blocks=(one,))


class World:
    """A writer over a fake storage, and what it answered. `life` numbers the orders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storage = FakeStorage()
        self.results: list[int] = []
        self.failures: list[Exception] = []
        self._moved = asyncio.Event()
        monkeypatch.setattr(replica_writer, "wall_clock_us", lambda: self.storage.now_us)
        storage: Any = self.storage
        self.writer = ReplicaWriter(storage, on_results=self._take, on_failed=self._fail)

    def _take(self, results: Sequence[StorageResult]) -> None:
        self.results += [result.generation for result in results]
        self._moved.set()

    def _fail(self, error: Exception) -> None:
        self.failures.append(error)
        self._moved.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Whatever is waited for comes with a result or with a failure."""
        async with asyncio.timeout(patient(WAIT_S)):
            while not is_so():
                self._moved.clear()
                await self._moved.wait()

    def has_result(self, number: int) -> bool:
        return number in self.results

    async def append(self, number: int, one: Block = SMALL) -> None:
        self.writer.put([append(number, one)])
        await self.until(lambda: number in self.results)

    async def warm_up(self, first: int = 1) -> int:
        """Let the thread see that the disk is quick; the number of the next order."""
        for number in range(first, first + replica_writer._QUICK_COMMITS):
            await self.append(number)
        return first + replica_writer._QUICK_COMMITS

    async def stop(self) -> None:
        self.writer.run_exclusive(lambda _: None)
        await asyncio.to_thread(self.writer.stop)


def run(monkeypatch: pytest.MonkeyPatch, scene: Callable[[World], Any]) -> World:
    async def whole() -> World:
        world = World(monkeypatch)
        try:
            await scene(world)
        finally:
            await world.stop()
        return world

    return asyncio.run(whole())


def test_a_small_append_is_committed_by_the_loop_once_the_disk_was_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        number = await world.warm_up()
        assert {where for where, _ in world.storage.done} == {"thread"}
        await world.append(number)
        assert world.storage.done[-1] == ("loop", number)
        assert world.writer.statistics.at_once == 1

    run(monkeypatch, scene)


def test_what_one_turn_brings_rides_in_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        number = await world.warm_up()
        for one in range(3):
            world.writer.put([append(number + one)])
        await world.until(lambda: number + 2 in world.results)
        assert world.writer.statistics.at_once == 1
        assert world.storage.done[-3:] == [("loop", number + one) for one in range(3)]

    run(monkeypatch, scene)


def test_after_a_slow_commit_the_thread_does_them_until_the_disk_is_quick_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(world: World) -> None:
        number = await world.warm_up()
        world.storage.takes_us = replica_writer._QUICK_US + 1
        await world.append(number)
        await world.append(number + 1)
        assert [where for where, _ in world.storage.done[-2:]] == ["loop", "thread"]
        world.storage.takes_us = 0
        number = await world.warm_up(number + 2)
        await world.append(number)
        assert world.storage.done[-1] == ("loop", number)

    run(monkeypatch, scene)


@pytest.mark.parametrize("case", ["large", "many", "other", "full"])
def test_what_may_take_long_is_the_threads(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        number = await world.warm_up()
        world.storage.logs.is_ready = case != "full"
        if case == "other":
            world.writer.put([append(number), CloseLog(channel_id=1, generation=number + 1)])
            await world.until(lambda: number in world.results)
            assert world.storage.done[-2:] == [("thread", number), ("thread", number + 1)]
        elif case == "many":
            count = replica_writer._SMALL_BYTES // SMALL.size + 1
            world.writer.put([append(number + one) for one in range(count)])
            await world.until(lambda: number + count - 1 in world.results)
        else:
            await world.append(number, LARGE if case == "large" else SMALL)
        assert world.writer.statistics.at_once == 0

    run(monkeypatch, scene)


def test_orders_and_results_keep_their_order_in_the_thread_and_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        number = first = await world.warm_up()
        for one in range(200):
            sizes = (SMALL, SMALL, LARGE) if one % 5 == 0 else (SMALL,)
            for size in sizes:
                world.writer.put([append(number, size)])
                number += 1
            if one % 3 == 0:
                await asyncio.sleep(0)
            if one % 20 == 0:
                await world.until(partial(world.has_result, number - 1))
        await world.until(partial(world.has_result, number - 1))
        assert [life for _, life in world.storage.done] == list(range(1, number))
        assert world.results == list(range(1, number))
        assert {where for where, life in world.storage.done if life >= first} == {"loop", "thread"}

    run(monkeypatch, scene)


def test_the_loop_does_not_wait_while_the_thread_tends_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        number = await world.warm_up()
        with world.writer._driving:
            world.writer.put([append(number)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert world.storage.done[-1][1] < number, "nobody drives beside the one who does (RW1)"
        await world.until(lambda: number in world.results)
        assert world.storage.done[-1] == ("thread", number)

    run(monkeypatch, scene)


def test_after_a_failure_nothing_is_written_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        number = await world.warm_up()
        world.storage.error = RuntimeError("a bug")
        world.writer.put([append(number)])
        await world.until(lambda: bool(world.failures))
        assert str(world.failures[0]) == "a bug"
        world.storage.error = None
        world.writer.put([append(number + 1), append(number + 2, LARGE)])

    world = run(monkeypatch, scene)  # which stops the thread, behind all that was ordered
    assert [life for _, life in world.storage.done] == list(range(1, 1 + replica_writer._QUICK_COMMITS))


@pytest.mark.parametrize("by", ["loop", "thread"])
def test_rw2_a_store_that_stopped_ends_the_node_and_answers_nothing(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: after a failed sync of the write-ahead file nobody may be told anything, and nothing more is written."""

    async def scene(world: World) -> None:
        number = await world.warm_up() if by == "loop" else 1
        world.storage.logs.stopped_by = LogPoisoned(log="the store", cause="sync 1.wal: Input/output error")
        world.writer.put([append(number)])
        await world.until(lambda: bool(world.failures))
        world.writer.put([append(number + 1)])
        await asyncio.sleep(0.05)
        assert number not in world.results
        assert (by, number) in world.storage.done
        assert (by, number + 1) not in world.storage.done

    world = run(monkeypatch, scene)
    (failure,) = world.failures
    assert isinstance(failure, DiskFailed)
    assert "sync 1.wal: Input/output error" in str(failure)
