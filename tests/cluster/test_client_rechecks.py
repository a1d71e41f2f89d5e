"""A node whose catalog is behind: nobody is refused for what was already undone when it asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.cluster.test_client_service import World, block, produce, run
from tests.patience import wait_until
from tests.transports.links import refusal_of
from tidelog.cluster.clients.rechecks import SharedBarrier
from tidelog.codecs.client_codec import OFFSETS
from tidelog.core.catalog import PauseChannel, ResumeChannel, SetReadonly
from tidelog.errors import AccessDenied, ChannelPaused, ChannelReadonly, LogError, NotLeader, UnknownChannel


def key_of(world: World) -> dict[str, int]:
    record = world.cluster.catalog.channel(world.bus)
    assert record is not None
    return {"channel_id": world.bus, "expected_channel_epoch": record.channel_epoch}


def hear_at_barrier(world: World, *news: Callable[[], object]) -> None:
    """What was committed elsewhere reaches this node's catalog only when it asks for it."""
    waiting = list(news)

    async def read_barrier() -> None:
        world.channels.barriers += 1
        await asyncio.sleep(0)
        while waiting:
            waiting.pop(0)()

    world.channels.read_barrier = read_barrier  # type: ignore[method-assign]
    world.service._producing.rechecks._read_barrier = read_barrier


def resume(world: World) -> None:
    world.cluster.take(ResumeChannel(**key_of(world)))
    record = world.cluster.catalog.channel(world.bus)
    assert record is not None


@pytest.mark.parametrize("what", ["readonly", "grant"])
def test_a_block_is_taken_that_only_an_old_catalog_refuses(what: str) -> None:
    async def work(world: World) -> None:
        client = await world.client(kind="client" if what == "grant" else "operator")
        if what == "grant":
            hear_at_barrier(world, lambda: world.grant("write:data"))
        else:
            world.cluster.take(SetReadonly(**key_of(world), readonly=True))
            hear_at_barrier(world, lambda: world.cluster.take(SetReadonly(**key_of(world), readonly=False)))
        produces = [produce(world.bus, block(b"%d" % number), token=number) for number in range(5)]
        client.send(*produces)
        await wait_until(lambda: len(client.answers) == 5)
        assert [(answer.token, answer.first_offset, answer.error) for answer in client.answers] == [
            (number, number, None) for number in range(5)
        ]
        assert world.channels.barriers == 1, "those that wait together look once"
        assert world.service.statistics().in_flight_bytes == 0

    run(work)


def test_a_refusal_that_a_newer_catalog_confirms_is_given() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        world.cluster.take(SetReadonly(**key_of(world), readonly=True))
        assert isinstance(await client.refusal(produce(world.bus)), ChannelReadonly)
        world.cluster.take(PauseChannel(**key_of(world)))
        assert isinstance(await client.refusal(produce(world.bus)), ChannelPaused)
        assert isinstance(await client.refusal(produce(99)), UnknownChannel)
        stranger = await world.client(kind="client")
        assert isinstance(await stranger.refusal(produce(world.bus)), AccessDenied)
        assert world.channels.barriers == 4
        assert world.service.statistics().in_flight_bytes == 0

    run(work)


def test_a_refusal_stands_where_nobody_leads_the_metadata() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        world.cluster.take(SetReadonly(**key_of(world), readonly=True))

        def nobody() -> None:
            raise NotLeader(leader=None)

        hear_at_barrier(world, nobody)
        assert isinstance(await client.refusal(produce(world.bus)), ChannelReadonly)

    run(work)


def test_what_comes_behind_a_block_that_is_judged_again_waits_behind_it() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        world.cluster.take(SetReadonly(**key_of(world), readonly=True))
        gate = asyncio.Event()

        async def read_barrier() -> None:
            await gate.wait()

        world.service._producing.rechecks._read_barrier = read_barrier
        client.send(produce(world.bus, block(b"0"), token=0))
        await wait_until(lambda: world.service._producing.rechecks.count == 1)
        world.cluster.take(SetReadonly(**key_of(world), readonly=False))
        client.send(produce(world.bus, block(b"1"), token=1))
        await asyncio.sleep(0.05)
        assert client.answers == []
        gate.set()
        await wait_until(lambda: len(client.answers) == 2)
        assert [(answer.token, answer.first_offset) for answer in client.answers] == [(0, 0), (1, 1)]

    run(work)


def test_questions_are_answered_by_a_newer_catalog_than_the_one_that_refused_them() -> None:
    async def work(world: World) -> None:
        client = await world.client(kind="client")
        hear_at_barrier(world, lambda: world.grant("read:data"))
        found = await client.ask(OFFSETS, channel_id=world.bus, at="latest")
        assert found["offset"] == 3
        world.cluster.take(PauseChannel(**key_of(world)))
        hear_at_barrier(world, lambda: resume(world))
        assert (await client.fetch(world.bus, 0)).committed_end == 0
        with pytest.raises(LogError):
            await client.fetch(77, 0)

    run(work)


def test_many_questions_that_are_refused_at_once_look_at_most_twice() -> None:
    async def work(world: World) -> None:
        stranger = await world.client(kind="client")
        rechecks, gate = world.service._producing.rechecks, asyncio.Event()
        barriers = 0

        async def read_barrier() -> None:
            nonlocal barriers
            barriers += 1
            await gate.wait()

        rechecks._read_barrier = read_barrier
        refusals = [
            asyncio.ensure_future(refusal_of(stranger.ask(OFFSETS, channel_id=world.bus, at="latest")))
            for _ in range(100)
        ]
        await wait_until(lambda: rechecks.waiting == 100)
        gate.set()
        assert {type(error) for error in await asyncio.gather(*refusals)} == {AccessDenied}
        assert 1 <= barriers <= 2

    run(work)


async def test_a_barrier_is_shared_by_all_that_came_before_it_began_and_by_nobody_else() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    begun = 0

    async def read_barrier() -> None:
        nonlocal begun
        begun += 1
        await gates[begun - 1].wait()
        if begun == 2:
            raise NotLeader(leader=None)

    shared = SharedBarrier(read_barrier)
    first = [asyncio.ensure_future(shared.wait()) for _ in range(3)]
    await wait_until(lambda: begun == 1)
    second = [asyncio.ensure_future(shared.wait()) for _ in range(3)]
    await wait_until(lambda: shared.waiting == 6)
    first[0].cancel()
    second[0].cancel()
    gates[0].set()
    await asyncio.gather(*first[1:])
    await wait_until(lambda: begun == 2)
    assert not any(waiting.done() for waiting in second[1:]), "the first had begun before they came"
    third = asyncio.ensure_future(shared.wait())
    gates[1].set()
    assert all(isinstance(error, NotLeader) for error in await asyncio.gather(*second[1:], return_exceptions=True))
    gates[2].set()
    await third
    assert (begun, shared.count, shared.waiting) == (3, 3, 0)
