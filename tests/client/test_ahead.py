"""Fetches under way behind the one that is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.client.fake_cluster import QUICK
from tests.client.running import run as run_bounded
from tests.cluster.test_client_service import World, opened
from tests.patience import patient
from tests.transports.links import HOST
from tidelog.client import Client, connect
from tidelog.client.reading.ahead import DEPTH
from tidelog.core.client_messages import Fetch, Fetched
from tidelog.errors import LogError
from tidelog.units import KIB

BLOCK_BYTES = 20 * KIB
BLOCKS = 40


class Spy:
    """What the node's log was asked for."""

    def __init__(self, world: World) -> None:
        self.offsets: list[int] = []
        self.continued = 0
        self.before: Callable[[Fetch], Awaitable[None]] | None = None
        self._fetch = world.channels.fetch
        world.channels.fetch = self.fetch  # type: ignore[method-assign]

    async def fetch(self, fetch: Fetch, *, for_node: bool = False) -> Fetched:
        self.offsets.append(fetch.offset)
        self.continued += bool(getattr(fetch, "continues", False))
        if self.before is not None:
            await self.before(fetch)
        return await self._fetch(fetch)


def run(work: Callable[[World, Client, Spy], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with opened(World(insecure_dev=True)) as world:
            assert world.listener is not None
            quick = replace(QUICK, fetch_bytes_max=3 * BLOCK_BYTES, **options)
            address = f"{HOST}:{world.listener.port}"
            async with await connect(address, insecure_dev=True, name="plotter", options=quick) as client:
                producer = client.producer("bus")
                for number in range(BLOCKS):
                    await producer.send(bytes([number]) * BLOCK_BYTES)
                await work(world, client, Spy(world))

    run_bounded(whole())


async def fetched(client: Client, offsets: range) -> list[int]:
    return [block.leader.base_offset async for block in client.fetch("bus", offsets, nearest=False)]


def test_what_follows_is_asked_for_before_it_is_wanted_and_comes_once() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        assert await fetched(client, range(BLOCKS)) == list(range(BLOCKS))
        assert spy.offsets == sorted(set(spy.offsets)), "nothing was read twice"
        assert spy.continued >= BLOCKS // 3 - 2 * DEPTH

    run(work)


def test_a_range_is_not_followed_much_beyond_its_end() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        assert await fetched(client, range(5, 9)) == list(range(5, 9))
        assert max(spy.offsets) < 5 + 3 * (2 + DEPTH)

    run(work)


def test_a_reader_gets_every_record_once_whichever_way_it_comes() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        async with client.reader("bus", start=0, follow=False) as reader:
            assert [record.offset async for record in reader] == list(range(BLOCKS))
        assert spy.continued

    run(work)


def test_a_node_that_forgets_the_chain_is_asked_with_an_offset() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        async def forget(_: Fetch) -> None:
            for link in world.service._clients.values():
                link.chains._ends.clear()

        spy.before = forget
        assert await fetched(client, range(BLOCKS)) == list(range(BLOCKS))

    run(work)


def test_a_fetch_ahead_that_is_not_answered_is_given_up_in_time() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        held = 0

        async def hold(fetch: Fetch) -> None:
            nonlocal held
            if getattr(fetch, "continues", False) and held < 2:
                held += 1
                await asyncio.sleep(3_600)

        spy.before = hold
        assert await fetched(client, range(BLOCKS)) == list(range(BLOCKS))
        assert held

    run(work)


def test_who_stops_reading_leaves_nothing_under_way() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        blocks = client.fetch("bus", range(BLOCKS), nearest=False)
        await anext(blocks)
        await blocks.aclose()  # type: ignore[attr-defined]
        (link,) = world.service._clients
        async with asyncio.timeout(patient(30)):
            while link.statistics().requests_running:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.005)

    run(work)


def test_a_node_that_never_answers_is_a_typed_error() -> None:
    async def work(world: World, client: Client, spy: Spy) -> None:
        async def hold(_: Fetch) -> None:
            await asyncio.sleep(3_600)

        spy.before = hold
        with pytest.raises(LogError):
            [block async for block in client.fetch("bus", range(BLOCKS), nearest=False, timeout_ms=1_500)]

    run(work)
