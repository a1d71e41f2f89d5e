"""The gateway with certificates: who is let in, and what grants allow."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.gateways.gateway_kit import HOST, Api, Cluster
from tests.patience import wait_until
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.catalog import AddGrant, RemoveGrant
from tidelog.errors import InvalidConfig
from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway, LiftbridgeOptions
from tidelog.pki.authority import Authority
from tidelog.pki.certificates import DAY_US, AuthorityOptions
from tidelog.storage.log.writer import wall_clock_us

DENIED = grpc.StatusCode.PERMISSION_DENIED


class Tree:
    """The nodes' authority, and files of the holders that it signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now_us = wall_clock_us()
        self.authority = Authority.create(
            folder / "authority", AuthorityOptions(kind="node"), now_us=self._now_us - 30 * DAY_US
        )
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self.authority.certificate_pem)

    def issue(self, name: str, kind: Any) -> tuple[Path, Path]:
        names = [HOST, "localhost"] if kind == "node" else []
        issued = self.authority.issue(name, now_us=self._now_us, kind=kind, server_names=names)
        assert issued.key_pem is not None
        paths = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        for path, content in zip(paths, (issued.certificate_pem, issued.key_pem), strict=True):
            path.write_bytes(content)
            path.chmod(0o600)
        return paths

    def options(self, **more: Any) -> LiftbridgeOptions:
        certificate, key = self.issue("n1", "node")
        link_certificate, link_key = self.issue("liftbridge", "operator")
        return LiftbridgeOptions(
            listen=f"{HOST}:0",
            tls_cert=certificate,
            tls_key=key,
            tls_ca=self.ca,
            link_cert=link_certificate,
            link_key=link_key,
            **more,
        )


@contextlib.asynccontextmanager
async def secured(folder: Path, tree: Tree, options: LiftbridgeOptions) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, 1)
    assert options.tls_cert is not None
    assert options.tls_key is not None
    files = {"tls_cert": options.tls_cert, "tls_key": options.tls_key, "tls_ca": tree.ca}
    try:
        await cluster.start_node("n1", options, files)
        await wait_until(lambda: cluster.nodes["n1"].core.is_registered, f"the node is registered; {cluster.lines}")
        yield cluster
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def shown(cluster: Cluster, tree: Tree, files: tuple[Path, Path] | None) -> AsyncIterator[Api]:
    certificate, key = (None, None) if files is None else [path.read_bytes() for path in files]
    credentials = grpc.ssl_channel_credentials(tree.ca.read_bytes(), key, certificate)
    async with grpc.aio.secure_channel(f"{HOST}:{cluster.port('n1')}", credentials) as channel:
        yield Api(channel)


async def grant(cluster: Cluster, who: str, scope: str, channels: str) -> None:
    change = AddGrant(principal=f"client:{who}", scope=scope, channels=channels)
    await cluster.nodes["n1"].channels.propose(change, timeout_ms=10_000)


async def test_an_operator_may_everything_and_a_client_what_it_was_granted(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    operator, client = tree.issue("otto", "operator"), tree.issue("robot", "client")
    async with (
        secured(tmp_path, tree, tree.options()) as cluster,
        shown(cluster, tree, operator) as all_mighty,
        shown(cluster, tree, client) as robot,
    ):
        await all_mighty.create("foo")
        await all_mighty.create("secret")
        publish = pb.PublishRequest(stream="foo", value=b"x", ackPolicy=pb.ALL)
        for request in (
            publish,
            pb.CreateStreamRequest(name="new", subject="new"),
            pb.DeleteStreamRequest(name="foo"),
            pb.PauseStreamRequest(name="foo"),
            pb.SetStreamReadonlyRequest(name="foo", readonly=True),
            pb.SetCursorRequest(stream="foo", cursorId="c"),
            pb.FetchPartitionMetadataRequest(stream="foo"),
            pb.PublishToSubjectRequest(subject="foo"),
        ):
            assert (await robot.refusal(request)).code() is DENIED, type(request).__name__
        _, ended = await robot.read("foo", stopPosition=pb.STOP_LATEST)
        assert ended.code() is DENIED
        await grant(cluster, "robot", "write:data", "foo")
        await robot(publish)
        call = robot.publish_async()
        await call.write(pb.PublishRequest(stream="secret", correlationId="s"))
        assert (await call.read()).asyncError.code == pb.PublishAsyncError.PERMISSION_DENIED
        call.cancel()
        seen = await robot(pb.FetchMetadataRequest())
        assert [stream.name for stream in seen.streamMetadata] == ["foo", "__cursors"]
        (hidden,) = (await robot(pb.FetchMetadataRequest(streams=["secret"]))).streamMetadata
        assert hidden.error == pb.StreamMetadata.UNKNOWN_STREAM
        await grant(cluster, "robot", "read:data", "*")
        messages, _ = await robot.read("foo", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        assert [message.value for message in messages] == [b"x"]
        await all_mighty(pb.PauseStreamRequest(name="foo"))
        assert (await robot.refusal(publish)).code() is grpc.StatusCode.FAILED_PRECONDITION, "it may not resume"


async def test_nobody_is_let_in_without_a_certificate_or_with_that_of_a_node(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    node = tree.issue("n2", "node")
    async with secured(tmp_path, tree, tree.options()) as cluster:
        async with shown(cluster, tree, None) as nobody:
            refusal = await nobody.refusal(pb.FetchMetadataRequest())
            assert refusal.code() is grpc.StatusCode.UNAVAILABLE, "the handshake fails"
        async with shown(cluster, tree, node) as stranger:
            assert (await stranger.refusal(pb.FetchMetadataRequest())).code() is DENIED


async def test_a_revoked_certificate_opens_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    client = tree.issue("robot", "client")
    tree.authority.revoke("robot", now_us=wall_clock_us(), kind="client")
    options = tree.options(revocations=tree.authority.folder / "revoked.txt")
    async with secured(tmp_path, tree, options) as cluster, shown(cluster, tree, client) as robot:
        assert (await robot.refusal(pb.FetchMetadataRequest())).code() is DENIED


async def test_who_loses_a_grant_or_its_certificate_is_given_nothing_more(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    robot, reader = tree.issue("robot", "client"), tree.issue("reader", "client")
    tree.issue("gone", "client")
    tree.authority.revoke("gone", now_us=wall_clock_us(), kind="client")
    options = tree.options(revocations=tree.authority.folder / "revoked.txt")
    async with (
        secured(tmp_path, tree, options) as cluster,
        shown(cluster, tree, robot) as first,
        shown(cluster, tree, reader) as second,
    ):
        for who in ("robot", "reader"):
            await grant(cluster, who, "admin:channels", "*")
            await grant(cluster, who, "read:data", "*")
        await first.create("foo")
        calls = [api.subscribe("foo") for api in (first, second)]
        for call in calls:
            assert await call.read() == pb.Message()
        change = RemoveGrant(principal="client:robot", scope="read:data", channels="*")
        await cluster.nodes["n1"].channels.propose(change, timeout_ms=10_000)
        tree.authority.revoke("reader", now_us=wall_clock_us(), kind="client")
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() is DENIED


async def test_callers_without_certificates_are_whom_the_node_was_told(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    async with (
        secured(tmp_path, tree, tree.options(anonymous="guest")) as cluster,
        shown(cluster, tree, None) as guest,
    ):
        create = pb.CreateStreamRequest(name="foo", subject="foo")
        assert (await guest.refusal(create)).code() is DENIED
        await grant(cluster, "guest", "admin:channels", "foo")
        await grant(cluster, "guest", "write:data", "foo")
        await guest(create)
        await guest.publish("foo", b"x")


def test_a_gateway_without_certificates_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="operator"):
        LiftbridgeOptions(listen=f"{HOST}:0")


async def test_a_port_that_is_taken_is_refused_in_words() -> None:
    first = LiftbridgeGateway(LiftbridgeOptions(listen=f"{HOST}:0", insecure_dev=True))
    first.bind()
    second = LiftbridgeGateway(LiftbridgeOptions(listen=f"{HOST}:{first.port}", insecure_dev=True))
    with pytest.raises(InvalidConfig, match="cannot listen"):
        second.bind()
    await first.stop()
