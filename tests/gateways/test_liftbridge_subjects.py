"""PublishToSubject with a real nats-server: what leaves the gateway, who hears it, and what comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from tests.gateways.gateway_kit import Api, Cluster, dialled, opened, run
from tests.patience import patient, wait_until
from tests.transports.nats_server import NatsServer
from tidelog.client import connect
from tidelog.codecs.liftbridge_envelope import MessageType, encode_envelope, open_envelope
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.catalog import ChannelConfig
from tidelog.transports.nats.connection import NatsMessage, NatsOptions

Status = grpc.StatusCode
SPAN = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}
FED_S = 30.0


async def values_of(api: Api, stream: str, partition: int = 0) -> list[bytes]:
    messages, _ = await api.read(stream, partition=partition, **SPAN)
    return [message.value for message in messages]


async def _heard(cluster: Cluster, subject: str) -> list[NatsMessage]:
    """What a program on the same server hears there."""
    heard: list[NatsMessage] = []
    nats = cluster.nodes["n1"].nats
    assert nats is not None
    await wait_until(lambda: nats.is_up, "the server is reached")
    nats.subscribe(subject, heard.extend)
    return heard


def test_a_message_goes_over_nats_to_streams_and_to_other_subscribers(tmp_path: Path) -> None:
    async def scenario(server: NatsServer) -> None:
        options = NatsOptions(servers=(server.url,))
        async with opened(tmp_path, nats=options) as cluster, dialled(cluster.port("n1")) as api:
            heard = await _heard(cluster, "s")
            await api.create("one", subject="s")
            await api.create("two", subject="s", partitions=2)
            attach = cluster.nodes["n1"].attach
            await wait_until(lambda: attach.status()["subjects"] == 3, "their leader listens")
            request = pb.PublishToSubjectRequest(
                subject="s", key=b"k", value=b"v", headers={"h": b"1"}, correlationId="c", ackPolicy=pb.ALL
            )
            ack = (await api(request)).ack
            assert (ack.stream in ("one", "two"), ack.correlationId, ack.msgSubject) == (True, "c", "s")
            assert ack.commitTimestamp >= ack.receptionTimestamp > 0
            for stream in ("one", "two"):
                await wait_last(api, stream, b"v")
                messages, _ = await api.read(stream, **SPAN)
                assert (messages[-1].key, messages[-1].headers["h"]) == (b"k", b"1")
                assert [message.value for message in messages].count(b"v") == 1, "once, and not once more directly"
            await wait_until(lambda: any(one.payload.endswith(b"c") or b"v" in one.payload for one in heard), "heard")
            sent = pb.Message.FromString(bytes(open_envelope(heard[-1].payload, MessageType.PUBLISH)))
            assert (sent.key, sent.value, sent.correlationId, sent.ackPolicy) == (b"k", b"v", "c", pb.ALL)
            await _refusals(api)

    with NatsServer(tmp_path / "nats") as server:
        run(scenario(server))


async def wait_last(api: Api, stream: str, value: bytes) -> None:
    async with asyncio.timeout(patient(FED_S)):
        async for message in api.subscribe(stream, startPosition=pb.EARLIEST):
            if message.value == value:
                return


async def _refusals(api: Api) -> None:
    for subject in ("tidelog-default.one.0.replicate", "_INBOX.x", "$SYS.x", "a.*", "a..b", "a b", ""):
        request = pb.PublishToSubjectRequest(subject=subject, value=b"x")
        assert (await api.refusal(request)).code() is Status.INVALID_ARGUMENT, subject
    large = pb.PublishToSubjectRequest(subject="s", value=bytes(2**20), ackPolicy=pb.ALL)
    assert (await api.refusal(large)).code() is Status.INVALID_ARGUMENT
    unheard = pb.PublishToSubjectRequest(subject="nobody", ackPolicy=pb.ALL)
    assert (await api.refusal(unheard, deadline_s=0.5)).code() is Status.DEADLINE_EXCEEDED
    assert not (await api(unheard, deadline_s=None)).HasField("ack")


def test_channels_that_are_not_attached_are_reached_too_and_so_are_all_without_the_server(tmp_path: Path) -> None:
    async def scenario(server: NatsServer) -> None:
        options = NatsOptions(servers=(server.url,))
        async with opened(tmp_path, nats=options) as cluster, dialled(cluster.port("n1")) as api:
            await _heard(cluster, "anything")
            async with await connect(cluster.peers["n1"], insecure_dev=True) as client:
                await client.create_channel("plain", ChannelConfig(factor=1))
            request = pb.PublishToSubjectRequest(subject="plain", value=b"x", ackPolicy=pb.ALL)
            assert (await api(request)).ack.stream == "plain"
            await api.create("foo", subject="s")
            server.kill()
            nats = cluster.nodes["n1"].nats
            assert nats is not None
            await wait_until(lambda: not nats.is_up, "the server is gone")
            request = pb.PublishToSubjectRequest(subject="s", value=b"y", ackPolicy=pb.ALL)
            assert (await api(request)).ack.stream == "foo"
            assert await values_of(api, "plain") == [b"x"]
            assert await values_of(api, "foo") == [b"y"]

    with NatsServer(tmp_path / "nats") as server:
        run(scenario(server))


def test_only_good_acks_in_the_right_inbox_answer_a_call(tmp_path: Path) -> None:
    """Anybody on the server can send to an inbox (LJ1)."""

    async def scenario(server: NatsServer) -> None:
        options = NatsOptions(servers=(server.url,))
        async with opened(tmp_path, nats=options) as cluster, dialled(cluster.port("n1")) as api:
            heard = await _heard(cluster, "quiz")
            nats = cluster.nodes["n1"].nats
            assert nats is not None
            call = asyncio.ensure_future(api(pb.PublishToSubjectRequest(subject="quiz", value=b"?", ackPolicy=pb.ALL)))
            await wait_until(lambda: bool(heard), "the question is out")
            inbox = pb.Message.FromString(bytes(open_envelope(heard[0].payload, MessageType.PUBLISH))).ackInbox
            good = encode_envelope(MessageType.ACK, pb.Ack(stream="elsewhere", offset=7).SerializeToString())
            prefix = inbox.rpartition(".")[0]
            for subject, payload in (
                (inbox, b"rubbish"),
                (inbox, encode_envelope(MessageType.ACK, b"\xff\xff")),
                (inbox, encode_envelope(MessageType.PUBLISH, b"")),
                (f"{prefix}.999", good),
                (f"{prefix}.x", good),
            ):
                nats.publish(subject, [payload])
            done, _ = await asyncio.wait({call}, timeout=0.3)
            assert not done
            nats.publish(inbox, [good])
            ack = (await call).ack
            assert (ack.stream, ack.offset) == ("elsewhere", 7), "a stream of any cluster may ack"

    with NatsServer(tmp_path / "nats") as server:
        run(scenario(server))
