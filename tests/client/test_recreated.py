"""A channel that is deleted and created again under the eyes of a client that used the old one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.fake_cluster import fake_client
from tests.client.group_kit import created, members, opened
from tests.client.test_reader import fill
from tests.patience import wait_until
from tests.transports.links import refusal_of
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.messages import encode_values
from tidelog.client import Record
from tidelog.client.routes import ChannelRoute, Routes
from tidelog.errors import ChannelDeleted, ChannelRecreated, InvalidConfig, OffsetOutOfRange, UnknownChannel


async def test_a_producer_goes_on_in_the_channel_that_was_created_again() -> None:
    async with fake_client("a") as (cluster, client):
        producer = client.producer("a", name="mine")
        assert await producer.send(b"old") == 0
        new = cluster.recreate("a")
        assert await producer.send(b"new") == 0
        assert await producer.send_many([b"1", b"2"]) == [range(1, 3)]
        assert new.values() == [b"new", b"1", b"2"]


async def test_a_new_producer_of_an_old_client_writes_to_the_channel_that_was_created_again() -> None:
    async with fake_client("a") as (cluster, client):
        assert await client.producer("a").send(b"old") == 0
        new = cluster.recreate("a")
        assert await client.producer("a").send(b"new") == 0
        assert new.values() == [b"new"]


async def test_no_record_of_the_old_channel_counts_as_there_already_in_the_new_one() -> None:
    """The answer to a block of the old channel is lost, and the block is sent again: under the same name and seqs it is
    news to the new channel."""

    async with fake_client("a") as (cluster, client):
        producer = client.producer("a", name="mine")
        await producer.send(b"0")
        node = cluster.nodes["n1"]
        node.holds_answers = True
        receipt = producer.send(b"1")
        await wait_until(lambda: cluster.log("a").values() == [b"0", b"1"])
        new = cluster.recreate("a")
        new.append(cluster_block(b"somebody else's"))
        node.held.clear()
        node.holds_answers = False
        node.drop_links()
        assert await receipt == 1
        assert new.values() == [b"somebody else's", b"1"]


def cluster_block(value: bytes) -> MadeBlock:
    return encode_values([value], time_us=1, base_seq=1)


async def test_what_was_wanted_at_an_offset_of_the_old_channel_is_refused_in_the_new_one() -> None:
    async with fake_client("a") as (cluster, client):
        producer = client.producer("a")
        await producer.send(b"0")
        new = cluster.recreate("a")
        new.append(cluster_block(b"x"))
        conditional = producer.send(b"at 1", expected_offset=1)
        plain = producer.send(b"anywhere")
        error = await refusal_of(conditional)
        assert isinstance(error, ChannelRecreated)
        assert error.found_id == new.channel_id
        assert await plain == 1
        assert await producer.send(b"at 2", expected_offset=2) == 2


async def test_a_producer_of_a_deleted_channel_refuses_and_goes_on_once_there_is_one_again() -> None:
    async with fake_client("a") as (cluster, client):
        producer = client.producer("a")
        await producer.send(b"0")
        cluster.alter({"channel": "a", "op": "delete"})
        assert isinstance(await refusal_of(producer.send(b"1")), ChannelDeleted)
        assert isinstance(await refusal_of(producer.send(b"2")), ChannelDeleted)
        cluster.create("a")
        assert await producer.send(b"3") == 0
        assert cluster.log("a").values() == [b"3"]


async def test_a_producer_of_one_channel_id_never_writes_to_another_of_its_name() -> None:
    async with fake_client("a") as (cluster, client):
        old = client.producer("a", name="writer", channel_id=cluster.log("a").channel_id)
        await old.send(b"0")
        new = cluster.recreate("a")
        # The client still knows the old channel: who names the new one's id finds it.
        fresh = client.producer("a", name="writer", channel_id=new.channel_id)
        assert await fresh.send(b"new") == 0
        assert isinstance(await refusal_of(old.send(b"1")), ChannelRecreated)
        assert await fresh.send(b"not fenced") == 1


async def test_a_reader_in_the_middle_is_told_and_a_new_one_begins_at_the_beginning() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2")
        async with client.reader("a") as reader:
            assert len(await reader.read()) == 3
            new = cluster.recreate("a")
            fill(cluster, b"x", b"y", b"z", b"w")
            error = await refusal_of(reader.read())
            assert isinstance(error, ChannelRecreated)
            assert (error.channel, error.found_id) == ("a", new.channel_id)
            assert isinstance(await refusal_of(reader.read()), ChannelRecreated)
        found = [record.value async for record in client.reader("a", follow=False) if isinstance(record, Record)]
        assert found == [b"x", b"y", b"z", b"w"]


async def test_a_reader_that_restarts_gives_the_new_channel_from_its_beginning() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2")
        async with client.reader("a", start=1, on_recreate="restart") as reader:
            assert [record.offset for record in await reader.read()] == [1, 2]
            waiting = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0)
            cluster.recreate("a")
            fill(cluster, b"x", b"y")
            records = await waiting
            assert [(record.offset, record.value) for record in records if isinstance(record, Record)] == [
                (0, b"x"),
                (1, b"y"),
            ]
            assert reader.restarts == 1
        with pytest.raises(InvalidConfig):
            client.reader("a", on_recreate="ignore")


async def test_a_reader_of_a_deleted_channel_is_told_so() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0")
        async with client.reader("a") as reader:
            await reader.read()
            cluster.alter({"channel": "a", "op": "delete"})
            assert isinstance(await refusal_of(reader.read()), ChannelDeleted)
        assert isinstance(await refusal_of(client.reader("a").read()), UnknownChannel)


async def test_a_cursor_of_the_old_channel_is_not_set_in_the_new_one() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2")
        async with client.reader("a", cursor="c", cursor_interval_ms=1) as reader:
            await reader.read()
            new = cluster.recreate("a")
            fill(cluster, b"x", b"y", b"z", b"w")
            assert isinstance(await refusal_of(reader.save()), ChannelRecreated)
        assert new.cursors == {}
        async with client.reader("a", cursor="c", follow=False) as again:
            assert [record.offset for record in await again.read()] == [0, 1, 2, 3]
        assert new.cursors == {"c": 4}


async def test_administration_and_fetches_by_name_find_the_channel_that_was_created_again() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2")
        await client.set_cursor("a", "c", 2)
        old_id = cluster.log("a").channel_id
        new = cluster.recreate("a")
        fill(cluster, b"x")
        assert (await client.offsets("a")).committed_end == 1
        assert await client.cursors("a") == {}
        cluster.recreate("a")
        fill(cluster, b"y")
        blocks = [block async for block in client.fetch("a", range(0, 1))]
        assert [block.leader.channel_id for block in blocks] == [cluster.log("a").channel_id]
        fetched = client.fetch("a", range(0, 1), channel_id=old_id)
        assert isinstance(await refusal_of(anext(fetched)), ChannelRecreated)
        assert new.channel_id > old_id
        beyond = client.fetch("a", range(0, 3))
        with pytest.raises(OffsetOutOfRange):
            [block async for block in beyond]


def test_a_deleted_channel_is_not_learned_again_from_a_node_that_is_behind() -> None:
    def route(channel_id: int) -> ChannelRoute:
        return ChannelRoute(channel_id=channel_id, name="a", leader="n1", leader_epoch=1, channel_epoch=1)

    routes = Routes(["127.0.0.1:1"])
    routes.learn(route(4))
    routes.deleted("a", 4)
    assert routes.channel("a") is None
    routes.learn(route(4))
    assert routes.channel("a") is None
    routes.learn(route(7))
    assert routes.channel("a") == route(7)
    routes.deleted("a", 4)
    assert routes.channel("a") == route(7)


async def test_a_group_goes_on_in_the_channel_that_was_created_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await created(client, ["a"], 1)
        await client.producer("a").send_many([b"0", b"1", b"2"])
        (member,) = await members(nodes, 1, ["a"], commit="explicit")
        await wait_until(lambda: len(member.values) == 3, "the old channel is read")
        old = member.batches[-1]
        await client.delete("a")
        await client.create_channel("a", factor=1)
        await client.producer("a").send_many([b"x", b"y", b"z", b"w"])
        await wait_until(lambda: len(member.values) == 7, f"the new channel is read; {member.failure}")
        assert [value for _, value in member.values[3:]] == [b"x", b"y", b"z", b"w"]
        assert isinstance(await refusal_of(member.group.commit(old)), ChannelRecreated)
        assert await client.cursors("a") == {}
        await member.group.commit(member.batches[-1])
        (offset,) = (await client.cursors("a")).values()
        assert offset == member.batches[-1].next_offset
        await member.stop()
        await client.close()
