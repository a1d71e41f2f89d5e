"""Nodes with a Liftbridge gateway, in this process, and a client made from the published .proto."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import grpc

from tests.patience import patient, wait_until
from tests.ports import free_port
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.groups.coordinator import GroupOptions
from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway, LiftbridgeOptions
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.parts import StoreOptions
from tidelog.transports.nats.connection import NatsOptions

HOST = "127.0.0.1"
DEADLINE_S = 100.0
FORM_S = 60.0
CALL_S = 30.0
"""A deadline, so that publishing waits for its ack."""

_UNARY = (
    "CreateStream",
    "DeleteStream",
    "PauseStream",
    "SetStreamReadonly",
    "FetchMetadata",
    "FetchPartitionMetadata",
    "Publish",
    "PublishToSubject",
    "SetCursor",
    "FetchCursor",
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments",
    "ReportConsumerGroupCoordinator",
)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(patient(DEADLINE_S)):
            await work

    asyncio.run(bounded())


class Api:
    """Liftbridge's API over one channel, by the names of its methods."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._calls = {
            name: channel.unary_unary(
                f"/proto.API/{name}",
                request_serializer=_bytes_of,
                response_deserializer=getattr(pb, f"{name}Response").FromString,
            )
            for name in _UNARY
        }
        self._subscribe = channel.unary_stream(
            "/proto.API/Subscribe", request_serializer=_bytes_of, response_deserializer=pb.Message.FromString
        )
        self._publish_async = channel.stream_stream(
            "/proto.API/PublishAsync", request_serializer=_bytes_of, response_deserializer=pb.PublishResponse.FromString
        )

    async def __call__(self, request: Any, *, deadline_s: float | None = CALL_S) -> Any:
        name = type(request).__name__.removesuffix("Request")
        return await self._calls[name](request, timeout=None if deadline_s is None else patient(deadline_s))

    async def refusal(self, request: Any, *, deadline_s: float | None = CALL_S) -> grpc.aio.AioRpcError:
        try:
            answer = await self(request, deadline_s=deadline_s)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"it was not refused: {answer}")

    async def create(self, name: str, *, subject: str = "", **more: Any) -> None:
        await self(pb.CreateStreamRequest(name=name, subject=subject or name, **more))

    async def publish(self, stream: str, *values: bytes, policy: int = pb.ALL, partition: int = 0) -> list[int]:
        offsets = []
        for value in values:
            request = pb.PublishRequest(stream=stream, value=value, partition=partition, ackPolicy=policy)  # type: ignore[arg-type]
            offsets.append((await self(request)).ack.offset)
        return offsets

    def subscribe(self, stream: str, **more: Any) -> Any:
        return self._subscribe(pb.SubscribeRequest(stream=stream, **more))

    async def read(self, stream: str, **more: Any) -> tuple[list[pb.Message], grpc.aio.AioRpcError]:
        """All messages of a subscription that ends by itself, and how it ended; the handshake is checked."""
        return await self.read_asked(pb.SubscribeRequest(stream=stream, **more))

    async def read_asked(self, request: pb.SubscribeRequest) -> tuple[list[pb.Message], grpc.aio.AioRpcError]:
        found: list[pb.Message] = []
        try:
            async for message in self._subscribe(request):
                found.append(message)
        except grpc.aio.AioRpcError as error:
            if found:
                assert found.pop(0) == pb.Message(), "the first message is the empty one"
            return found, error
        raise AssertionError("a subscription ends with a status")

    def publish_async(self) -> Any:
        return self._publish_async()


class Cluster:
    """Nodes n1, n2, ... with a gateway each."""

    def __init__(
        self, folder: Path, count: int, groups: GroupOptions | None = None, nats: NatsOptions | None = None
    ) -> None:
        self._folder = folder
        self._nats = nats
        self._groups = groups or GroupOptions()
        self.peers = {f"n{number}": f"{HOST}:{free_port()}" for number in range(1, count + 1)}
        self.nodes: dict[str, Node] = {}
        self.gateways: dict[str, LiftbridgeGateway] = {}
        self.lines: list[str] = []
        self.without_gateway: set[str] = set()
        """Nodes that are started without one."""

    async def start(self) -> None:
        for name in self.peers:
            await self.start_node(name)
        await wait_until(
            lambda: all(node.core.is_registered for node in self.nodes.values()), f"the cluster is formed; {self.lines}"
        )

    async def start_node(
        self, name: str, gateway_options: LiftbridgeOptions | None = None, node_files: dict[str, Path] | None = None
    ) -> None:
        """With certificates, if files of a node and options of a gateway with certificates are given."""
        options = gateway_options or LiftbridgeOptions(listen=f"{HOST}:0", insecure_dev=True)
        gateway = LiftbridgeGateway(options, log=self.lines.append)
        gateway.bind()
        files = node_files or {}
        node = Node(
            NodeProcessOptions(
                node=name,
                listen=self.peers[name],
                peers=self.peers,
                data_dir=self._folder / name,
                insecure_dev=options.insecure_dev,
                tls_cert=files.get("tls_cert"),
                tls_key=files.get("tls_key"),
                tls_ca=files.get("tls_ca"),
                store=StoreOptions(log=LogOptions(reserve_bytes=0)),
                groups=self._groups,
                nats=self._nats,
                gateway_addresses=() if name in self.without_gateway else (gateway.address(HOST),),
            ),
            log=self.lines.append,
        )
        await node.start()
        self.nodes[name] = node
        self.gateways[name] = gateway
        if name not in self.without_gateway:
            await gateway.start(node)

    async def stop_node(self, name: str) -> None:
        await self.gateways.pop(name).stop()
        await self.nodes.pop(name).stop()

    async def stop(self) -> None:
        for name in list(self.nodes):
            await self.stop_node(name)

    def port(self, name: str) -> int:
        return self.gateways[name].port

    def leader_of(self, channel: str) -> str:
        record = next(iter(self.nodes.values())).channels.catalog.channel(channel)
        assert record is not None
        assert record.leader is not None
        return record.leader


class NodeProcess:
    """`tidelog node` with a gateway, as a process of its own."""

    def __init__(self, folder: Path, name: str, peers: dict[str, str]) -> None:
        self.name = name
        self.port = free_port()
        self._log = folder / f"{name}.log"
        listed = ",".join(f"{node}={address}" for node, address in peers.items())
        self._command = [sys.executable, "-m", "tidelog.cli", "node", "-id", name, "-peers", listed, "-insecure-dev"]
        self._command += ["-data-dir", str(folder / name), "-liftbridge-listen", f"{HOST}:{self.port}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stderr=log, cwd=self._log.parent)

    def wait_served(self) -> None:
        assert self._process is not None
        give_up = time.monotonic() + patient(FORM_S)
        while b"liftbridge gateway up" not in self._log.read_bytes():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < give_up, self._log.read_text()
            time.sleep(0.02)

    def terminate(self) -> None:
        """It ends cleanly."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(patient(FORM_S)) == 0, self._log.read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.asynccontextmanager
async def dialled(port: int) -> AsyncIterator[Api]:
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        yield Api(channel)


@contextlib.asynccontextmanager
async def opened(
    folder: Path, count: int = 1, groups: GroupOptions | None = None, nats: NatsOptions | None = None
) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, count, groups, nats)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def one_node(folder: Path) -> AsyncIterator[Api]:
    """A node alone, and a client of its gateway."""
    async with opened(folder) as cluster, dialled(cluster.port("n1")) as api:
        yield api


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
