"""The client against the node's own side of the protocol, so that both agree on every request and answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.client.fake_cluster import QUICK
from tests.cluster.test_client_service import World, opened
from tests.patience import patient
from tests.transports.links import HOST, refusal_of
from tidelog.client import Client, Created, Record, connect
from tidelog.errors import (
    AccessDenied,
    ChannelPaused,
    ChannelReadonly,
    ConfigMismatch,
    LogError,
    ProducerFenced,
    UnknownChannel,
)

DEADLINE_S = 120


def run(work: Callable[[World, Client], Awaitable[None]], *, insecure_dev: bool = True) -> None:
    async def whole() -> None:
        async with asyncio.timeout(patient(DEADLINE_S)), opened(World(insecure_dev=insecure_dev)) as world:
            assert world.listener is not None
            address = f"{HOST}:{world.listener.port}"
            async with await connect(address, insecure_dev=True, name="plotter", options=QUICK) as client:
                await work(world, client)

    asyncio.run(whole())


def test_records_go_in_and_come_out() -> None:
    async def work(world: World, client: Client) -> None:
        producer = client.producer("bus", name="log")
        assert await producer.send(b"one", key=b"k") == 0
        assert await producer.send_many([b"%d" % number for number in range(5_000)]) == [range(1, 5_001)]
        reader = client.reader("bus", start=3)
        found: list[Record] = []
        while len(found) < 4_998:
            found += [record for record in await reader.read() if isinstance(record, Record)]
        assert [record.value for record in found] == [b"%d" % number for number in range(2, 5_000)]
        await reader.close()
        # The test serves n1 only; the other replicas cannot be reached.
        blocks = [block async for block in client.fetch("bus", range(0, 4_000))]
        assert blocks[0].offsets.start == 0
        again = client.producer("bus", name="log")
        assert await again.send(b"x") == 5_001
        assert isinstance(await refusal_of(producer.send(b"y")), ProducerFenced)

    run(work)


def test_cursors_and_offsets_are_understood() -> None:
    async def work(world: World, client: Client) -> None:
        await client.producer("bus").send_many([b"x"] * 10)
        await client.set_cursor("bus", "job", 7)
        assert await client.cursors("bus") == {"job": 7}
        async with client.reader("bus", cursor="job", follow=False) as reader:
            assert [record.offset async for record in reader] == [7, 8, 9]
        assert await client.cursors("bus") == {"job": 10}
        await client.delete_cursor("bus", "job")
        assert await client.cursors("bus") == {}
        assert (await client.offsets("bus")).committed_end == 10

    run(work)


def test_administration_is_understood() -> None:
    async def work(world: World, client: Client) -> None:
        assert (await client.cluster())["node"] == "n1"
        created = await client.create_channel("new", factor=2)
        assert not created.existed
        assert (await client.create_channel("new", factor=2)).existed
        assert isinstance(await refusal_of(client.create_channel("new", factor=1)), ConfigMismatch)
        many = await client.create_channels(["x1", "x2"], factor=1)
        assert all(isinstance(one, Created) for one in many)
        assert {channel["name"] for channel in await client.channels()} == {"bus", "new", "x1", "x2"}
        assert (await client.alter("new", heartbeat_ms=700))["config"]["heartbeat_ms"] == 700
        assert (await client.pause("bus"))["paused"]
        assert isinstance(await refusal_of(client.producer("bus").send(b"x")), ChannelPaused)
        assert not (await client.resume("bus"))["paused"]
        assert (await client.set_readonly("bus"))["readonly"]
        assert isinstance(await refusal_of(client.producer("bus").send(b"x")), ChannelReadonly)
        assert not (await client.set_readonly("bus", False))["readonly"]
        assert isinstance((await client.rebalance())["moves"], list)
        await client.delete("new")
        assert isinstance(await refusal_of(client.describe("new")), UnknownChannel)
        assert isinstance(await refusal_of(client.pause("new")), UnknownChannel)

    run(work)


def test_who_may_not_is_told_by_every_call() -> None:
    async def work(world: World, client: Client) -> None:
        async def produced() -> None:
            await client.producer("bus").send(b"x")

        async def read() -> None:
            await client.reader("bus").read()

        calls = [client.create_channel("new"), client.describe("bus"), client.pause("bus"), produced(), read()]
        for call in calls:
            error: LogError = await refusal_of(call)
            assert isinstance(error, AccessDenied), error
            assert error.definite

    run(work, insecure_dev=False)
