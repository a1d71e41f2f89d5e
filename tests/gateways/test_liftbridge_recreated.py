"""A stream that is deleted and created again under the eyes of the nodes' gateways, whose clients used the old one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import Api, dialled, opened
from tests.gateways.test_liftbridge_groups import joining, until_assigned
from tests.gateways.test_liftbridge_stale import Late, Status
from tests.transports.links import refusal_of
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.errors import ChannelRecreated
from tidelog.gateways.liftbridge.logs import RemoteLog


async def recreate(api: Api, name: str) -> None:
    await api(pb.DeleteStreamRequest(name=name))
    await api.create(name)


async def cursor(api: Api) -> int:
    found: int = (await api(pb.FetchCursorRequest(stream="foo", cursorId="c"))).offset
    return found


async def test_cursors_of_the_old_stream_are_gone_and_the_new_one_takes_its_own(tmp_path: Path) -> None:
    async with (
        opened(tmp_path, 2) as cluster,
        dialled(cluster.port("n1")) as first,
        dialled(cluster.port("n2")) as second,
    ):
        await first.create("foo")
        for number in range(3):
            for api in (first, second):
                assert await cursor(api) == -1
                await api(pb.SetCursorRequest(stream="foo", cursorId="c", offset=number))
                assert [await cursor(first), await cursor(second)] == [number, number]
                await recreate(first, "foo")


async def test_a_consumer_of_a_group_reads_the_new_stream_from_its_beginning(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        await api(joining())
        for value in (b"old", b"new", b"newest"):
            await until_assigned(api, "c1", {"foo": [0]})
            (offset,) = await api.publish("foo", value)
            epoch = (await api(pb.FetchMetadataRequest(groups=["g"]))).groupMetadata[0].epoch
            consumer = pb.Consumer(groupId="g", consumerId="c1", groupEpoch=epoch)
            kept: dict[str, Any] = {"stream": "foo", "cursorId": "__group:g"}
            assert (await api(pb.FetchCursorRequest(**kept))).offset == -1
            call = api.subscribe("foo", startPosition=pb.EARLIEST, consumer=consumer)
            assert [(await call.read()).value for _ in range(2)] == [b"", value]
            await api(pb.SetCursorRequest(offset=offset, **kept))
            assert (await api(pb.FetchCursorRequest(**kept))).offset == offset
            await recreate(api, "foo")
            call.cancel()


async def test_a_node_without_a_replica_gives_the_new_stream_even_if_it_has_not_heard_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, 2) as cluster, dialled(cluster.port("n1")) as first:
        await first.create("foo")
        (other,) = set(cluster.peers) - {cluster.leader_of("foo")}
        late = Late(cluster.nodes[other], cluster.gateways[other], monkeypatch)
        async with dialled(cluster.port(other)) as api:
            await first.publish("foo", b"old 1", b"old 2", b"old 3")
            call = api.subscribe("foo", startPosition=pb.EARLIEST, readISRReplica=True)
            assert [(await call.read()).value for _ in range(4)] == [b"", b"old 1", b"old 2", b"old 3"]
            await first.publish("foo", b"old 4")
            assert (await call.read()).value == b"old 4"
            old = copy.deepcopy(late.newest)
            await first(pb.DeleteStreamRequest(name="foo"))
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() is Status.NOT_FOUND
            await first.create("foo")
            while cluster.leader_of("foo") == other:  # its one replica is to be where it is not read
                await recreate(first, "foo")
            await first.publish("foo", b"new")
            late.show(old)
            again = api.subscribe("foo", startPosition=pb.EARLIEST, readISRReplica=True)
            assert [(await again.read()).value for _ in range(2)] == [b"", b"new"]
            again.cancel()


async def test_a_log_from_afar_is_that_of_one_channel_and_of_no_other_of_its_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as cluster, dialled(cluster.port("n1")) as api:
        await api.create("foo")
        await api.publish("foo", b"old")
        node, client = cluster.nodes["n1"], cluster.gateways["n1"]._client
        assert client is not None
        record = node.channels.catalog.channel("foo")
        assert record is not None
        log = RemoteLog(client, "foo", record.channel_id)
        assert (await log.standing()).committed_end == 2
        assert await log.first_from(0, 2) == 1
        await recreate(api, "foo")
        await api.publish("foo", b"new")
        assert isinstance(await refusal_of(log.standing()), ChannelRecreated)
        assert isinstance(await refusal_of(log.first_from(0, 2)), ChannelRecreated)
        assert isinstance(await refusal_of(log.read(1)), ChannelRecreated)
        await log.close()
