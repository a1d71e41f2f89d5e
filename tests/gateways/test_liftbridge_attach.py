"""A Liftbridge stream whose partitions are fed from a real nats-server."""

from __future__ import annotations

from pathlib import Path

from tests.gateways.gateway_kit import dialled, opened
from tests.nats.subject_kit import Publisher
from tests.patience import wait_until
from tests.transports.nats_server import NatsServer
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.transports.nats.connection import NatsOptions


async def test_each_partition_of_a_stream_is_fed_from_its_own_subject(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        nats = NatsOptions(servers=(server.url,))
        async with (
            opened(tmp_path, nats=nats) as cluster,
            dialled(cluster.port("n1")) as api,
            Publisher(server.url) as publisher,
        ):
            await api.create("foo", subject="sea.state", partitions=2, group="g")
            node = cluster.nodes["n1"]
            await wait_until(lambda: node.attach.status()["subjects"] == 2, "both partitions listen")
            assert node.nats is not None
            await publisher.hears(node.nats)
            publisher.send("sea.state", b"zero", token="0", headers={"h": b"1"})
            publisher.send("sea.state.1", b"one", token="1")
            publisher.nats.publish("sea.state.1", [b"plain"])
            await publisher.acked("0", "1")
            groups = {one["queue_group"] for one in node.attach.status()["channels"]}
            assert groups == {"g"}
            await wait_until(lambda: node.attach.statistics().appended == 3, "all are stored")
            earliest = {"startPosition": pb.EARLIEST, "stopPosition": pb.STOP_LATEST}
            (zero,), _ = await api.read("foo", **earliest)
            one, plain = (await api.read("foo", partition=1, **earliest))[0]
            assert (zero.value, zero.subject, zero.headers["h"]) == (b"zero", "sea.state", b"1")
            assert (one.value, one.subject, plain.value) == (b"one", "sea.state.1", b"plain")
            assert publisher.acks["1"].stream == "foo"
            assert publisher.acks["1"].partitionSubject == "sea.state.1"
            assert (zero.offset, one.offset) == (publisher.acks["0"].offset, publisher.acks["1"].offset)
