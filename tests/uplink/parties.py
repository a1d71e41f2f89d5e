"""Who takes part in an uplink over real sockets: certificates, a cloud, boats of ours and of lplex, a bad link."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.patience import patient, wait_until
from tests.pki.certificates import PrivateKey, crafted
from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.blocks.lpj import encode_lpj_block
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.uplink.boats import Boats
from tidelog.cluster.uplink.identity import UplinkIdentity
from tidelog.cluster.uplink.options import RelayOptions
from tidelog.cluster.uplink.relay import UplinkRelay
from tidelog.cluster.uplink.service import MESSAGE_BYTES_MAX, SERVICE, UplinkService
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.catalog import ChannelConfig
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import Journal, open_journal
from tidelog.edge.journal.options import JournalOptions
from tidelog.edge.journal.ring import Ring
from tidelog.edge.uplink.client import UplinkClient, UplinkTarget
from tidelog.edge.uplink.uplink import BoatUplink
from tidelog.errors import DiskFull, LogClosed
from tidelog.pki.authority import Authority
from tidelog.pki.certificates import DAY_US, AuthorityOptions, Signer, certificate_pem, key_pem
from tidelog.pki.revocation import RevocationList
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions

DEADLINE_S = 20.0
ANSWER_S = 10.0
HOST = "127.0.0.1"
START_US = 1_750_000_000_000_000
FAST = SenderConfig(backoff_first_ms=40, backoff_max_ms=160)
"""A boat that dials again soon, so that tests need not wait for it."""

T = TypeVar("T")
Row = tuple[int, int, bytes]
Metadata = Sequence[tuple[str, str]]


def run(scenario: Coroutine[Any, Any, T], deadline_s: float = 60.0) -> T:
    return asyncio.run(asyncio.wait_for(scenario, patient(deadline_s)))


def row(seq: int) -> Row:
    """The frame with this seq: every one is different, so that a wrong one cannot pass for it."""
    return START_US + 500 * seq, 0x09F80100 + seq % 7, seq.to_bytes(8, "little")


# --- certificates --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Credentials:
    certificate: bytes
    key: bytes
    serial: int = 0


class Fleet:
    """Both authorities, made a month ago, and the certificates that they issue."""

    def __init__(self, folder: Path) -> None:
        self.now_us = wall_clock_us()
        self._made_us = self.now_us - 30 * DAY_US
        self.boats = self.authority(folder / "boats")
        self.nodes = Authority.create(folder / "nodes", AuthorityOptions(kind="node"), now_us=self._made_us)
        issued = self.nodes.issue("node-1", now_us=self.now_us, server_names=[HOST, "localhost"])
        assert issued.key_pem is not None
        self.node = Credentials(issued.certificate_pem, issued.key_pem, issued.serial)
        self._issued: dict[str, Credentials] = {}

    def authority(self, folder: Path) -> Authority:
        return Authority.create(folder, AuthorityOptions(kind="boat"), now_us=self._made_us)

    def boat(self, name: str) -> Credentials:
        if name not in self._issued:
            self._issued[name] = self.issue(name)
        return self._issued[name]

    def issue(
        self, name: str, *, authority: Authority | None = None, days: int = 730, age_days: int = 0
    ) -> Credentials:
        now_us = self.now_us - age_days * DAY_US
        issued = (authority or self.boats).issue(name, now_us=now_us, days=days)
        assert issued.key_pem is not None
        return Credentials(issued.certificate_pem, issued.key_pem, issued.serial)

    def signer(self, authority: Authority | None = None) -> Signer:
        authority = authority or self.boats
        key = serialization.load_pem_private_key((authority.folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return Signer(authority.certificate, key)

    def crafted(self, *, key: PrivateKey | None = None, signer: Signer | None = None, **contents: Any) -> Credentials:
        """A certificate that the boats' authority would never issue, but signed."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        certificate: x509.Certificate = crafted(key=key, signer=signer or self.signer(), **contents)
        return Credentials(certificate_pem(certificate), key_pem(key), certificate.serial_number)  # type: ignore[arg-type]

    def revocations(self) -> RevocationList:
        path = self.boats.folder / "revoked.txt"
        return RevocationList(path, now_us=self.now_us, check_interval_us=50_000)


# --- the cloud -----------------------------------------------------------------------------------


class TightDisk:
    """Stands before a node's channels: their disk can be full for a while."""

    def __init__(self, node: Node) -> None:
        self.is_full = False
        self._submit = node.channels.submit
        node.channels.submit = self.submit  # type: ignore[method-assign]

    def submit(self, channel_id: int, order: ProduceOrder) -> None:
        if self.is_full:
            raise DiskFull(operation="write", path="segment", reason="no space left")
        self._submit(channel_id, order)


class CloudParty:
    """A cloud of one node on a folder; it can be stopped as a kill would stop it, and started again."""

    def __init__(
        self,
        folder: Path,
        fleet: Fleet | None,
        *,
        limits: ReceiverLimits | None = None,
        revocations: RevocationList | None = None,
        insecure_dev: bool = False,
        ask_for_certificates: bool = True,
        client_authority: bytes | None = None,
    ) -> None:
        self.folder = folder
        self.fleet = fleet
        self._client_authority = client_authority
        self.port = 0
        self.lines: list[str] = []
        """What the log says of boats."""
        self._limits = limits or ReceiverLimits()
        self._revocations = revocations
        self._insecure_dev = insecure_dev or fleet is None
        self._ask_for_certificates = ask_for_certificates

    async def start(self) -> None:
        """A cluster of one, with a gRPC server of the test's own in front of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        node = self.node = Node(
            NodeProcessOptions(
                node="node-1",
                listen=None,
                peers={"node-1": ""},
                data_dir=self.folder,
                store=StoreOptions(log=LogOptions(reserve_bytes=0)),
            )
        )
        await node.start()
        await wait_until(lambda: node.core.is_registered, "the node is registered")
        self.disk = TightDisk(node)
        boats = Boats(
            node.channels,
            admin=node.admin,
            disk=OsDisk(self.folder),
            limits=self._limits,
            new_lineage=lambda: uuid.uuid4().bytes,
            config=ChannelConfig(factor=1),
        )
        node.channels.watch(boats.moved)
        self.service = UplinkService(
            boats=boats,
            identity=UplinkIdentity(insecure_dev=self._insecure_dev, revocations=self._revocations),
            relay=UplinkRelay(boats, RelayOptions()),
            log=self.lines.append,
        )
        self.service.open()
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
        )
        self._server.add_generic_rpc_handlers((self.service.handler(),))
        await wait_until(self._bind, f"port {self.port} is free")
        await self._server.start()
        self._acks = asyncio.ensure_future(self.service.run_acks())

    def _bind(self) -> bool:
        address = f"{HOST}:{self.port}"
        try:
            if self.fleet is None:
                self.port = self._server.add_insecure_port(address)
                return True
            pair = (self.fleet.node.key, self.fleet.node.certificate)
            if self._ask_for_certificates:
                authority = self._client_authority or self.fleet.boats.certificate_pem
                credentials = grpc.ssl_server_credentials([pair], authority, require_client_auth=True)
            else:
                credentials = grpc.ssl_server_credentials([pair])
            self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            return False
        return True

    async def stop(self) -> None:
        await self._server.stop(0)
        self._acks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._acks
        await self.node.stop()

    async def crash(self) -> None:
        """Stop, and leave in a new folder what the disk held at that moment: nothing was flushed or closed."""
        await self._server.stop(0)
        image = self.folder.with_name(self.folder.name + "-crashed")
        shutil.copytree(self.folder, image)
        await self.stop()
        self.folder = image

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CloudParty]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    def names(self) -> list[str]:
        """The names of all channels."""
        catalog = self.node.core.catalog
        return [] if catalog is None else [record.name for record in catalog.channels()]

    def log(self, name: str) -> Log:
        return log_of(self.node, name)

    def held(self, name: str, lineage: bytes | None = None) -> list[tuple[int, Row]]:
        """Every (seq, frame) that counts, in the order of the log."""
        found: list[tuple[int, Row]] = []
        for block in blocks_of(self.node, name):
            if block.maker.kind == BlockKind.CONTROL or (lineage and block.maker.producer != lineage):
                continue
            seqs = [seq for part in block.counted_seqs() for seq in part]
            found += zip(seqs, counted_frames(block).rows(), strict=True)
        return found

    def session(self, name: str) -> int:
        instance = self.service.instances.get(name)
        return instance.session.number if instance is not None and instance.session is not None else 0


def log_of(node: Node, name: str) -> Log:
    """A channel's log on a node; waits for nothing."""
    return node.channel_logs.log(node.channels.channel_named(name).channel_id)


def blocks_of(node: Node, name: str) -> list[Block]:
    """All that a node holds of a channel: nothing, as long as the channel is unknown or known and not yet open."""
    catalog = node.core.catalog
    record = None if catalog is None else catalog.channel(name)
    if record is None:
        return []
    try:
        return list(node.channel_logs.log(record.channel_id).blocks())
    except LogClosed:
        return []


# --- boats of ours -------------------------------------------------------------------------------


class BoatParty:
    def __init__(self, folder: Path, *, config: SenderConfig = FAST, jitter_seed: int = 7) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.journal: Journal = open_journal(
            OsDisk(folder),
            "journal",
            now_us=wall_clock_us(),
            new_lineage=lambda: uuid.uuid4().bytes,
            options=JournalOptions(reserve_bytes=0),
        )
        self.ring = Ring()
        self.downs: list[str] = []
        """What the client said when the link went down, and why it could not come up again."""
        self.ups: list[str] = []
        self.uplink = BoatUplink(
            journal=self.journal,
            ring=self.ring,
            config=config,
            jitter=random.Random(jitter_seed).random,
            now_ms=steady_clock_ms(),
        )
        self._client: UplinkClient | None = None
        self._task: asyncio.Task[None] | None = None

    def record(self, count: int) -> None:
        now_us = wall_clock_us()
        for _ in range(count):
            time_us, can_id, payload = row(self.journal.head + 1)
            seq = self.journal.record(time_us, can_id, payload, now_us)
            self.ring.append(seq, time_us, can_id, payload)
        if self._client is not None:
            self._client.notify()

    def hear(self, line: str) -> None:
        (self.ups if line.startswith("uplink up") else self.downs).append(line)

    async def sail(self, steps: int, *, each: int = 10) -> None:
        """Record as a bus would: a few frames, then a moment of nothing."""
        for _ in range(steps):
            self.record(each)
            await asyncio.sleep(0.01)

    def dial(self, target: UplinkTarget) -> None:
        self.dial_as(lambda: target)

    def dial_as(self, target: Callable[[], UplinkTarget]) -> None:
        """`target` is asked at every dial."""
        self._client = UplinkClient(uplink=self.uplink, target=target, log=self.hear)
        self._task = asyncio.ensure_future(self._client.run())

    @property
    def is_done(self) -> bool:
        if self._task is not None and self._task.done():
            self._task.result()
        return self.journal.acked == self.journal.head

    @property
    def is_connected(self) -> bool:
        return self.uplink.statistics().connected

    async def wait_acked(self, deadline_s: float = DEADLINE_S) -> None:
        await wait_until(lambda: self.is_done, f"everything is acked; {self.downs}", deadline_s)

    async def hang_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self.uplink.disconnected(steady_clock_ms())
        self._task = None

    async def close(self) -> None:
        await self.hang_up()
        self.journal.close(wall_clock_us())

    def held(self) -> list[tuple[int, Row]]:
        self.journal.flush(wall_clock_us())
        return [
            (seq, found)
            for block in self.journal.blocks(producer=self.journal.lineage)
            for seq, found in zip(block.maker.seqs, counted_frames(block).rows(), strict=True)
            if block.maker.kind == BlockKind.FRAMES
        ]


def target(fleet: Fleet, port: int, name: str, credentials: Credentials | None = None) -> UplinkTarget:
    credentials = credentials or fleet.boat(name)
    return UplinkTarget(
        address=f"{HOST}:{port}",
        instance=name,
        certificate=credentials.certificate,
        key=credentials.key,
        authority=fleet.nodes.certificate_pem,
    )


def assert_equal_logs(boat: BoatParty, cloud: CloudParty, name: str) -> None:
    """Record for record, each once; the cloud may hold them in another order."""
    there = sorted(cloud.held(name, boat.journal.lineage))
    assert [seq for seq, _ in there] == list(range(1, boat.journal.head + 1)), "each seq once"
    assert there == boat.held()
    assert there == [(seq, row(seq)) for seq in range(1, boat.journal.head + 1)]
    assert boat.journal.acked == boat.journal.head
    assert not cloud.service.instances[name].channel.receiver.holes()


# --- a boat spoken by hand -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def dialed(
    port: int, fleet: Fleet | None = None, credentials: Credentials | None = None, *, tls: bool = True
) -> AsyncIterator[Any]:
    """A raw gRPC channel: with this certificate, with none, or in plaintext."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 2 * MESSAGE_BYTES_MAX)]
    if fleet is None or not tls:
        channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=options)
    else:
        pair = (credentials.key, credentials.certificate) if credentials is not None else (None, None)
        secrets = grpc.ssl_channel_credentials(fleet.nodes.certificate_pem, *pair)
        channel = grpc.aio.secure_channel(f"{HOST}:{port}", secrets, options=options)
    try:
        yield channel
    finally:
        await channel.close()


class LplexBoat:
    """Speaks as lplex does: no lineage, one frame per message, `.lpj` blocks, no word about what is gone."""

    def __init__(self, channel: Any, name: str, metadata: Metadata | None = None) -> None:
        self._channel = channel
        self.name = name
        self.metadata = (("x-instance-id", name),) if metadata is None else metadata
        self._streams: list[Any] = []

    def hang_up(self) -> None:
        while self._streams:
            self._streams.pop().cancel()

    async def handshake(self, head: int, *, journal_bytes: int = 4096, **fields: Any) -> pb.HandshakeResponse:
        request = pb.HandshakeRequest(instance_id=self.name, head_seq=head, journal_bytes=journal_bytes, **fields)
        return await self.handshake_raw(request.SerializeToString())

    async def handshake_raw(self, data: bytes) -> pb.HandshakeResponse:
        call = self._channel.unary_unary(f"/{SERVICE}/Handshake")
        return pb.HandshakeResponse.FromString(await call(data, timeout=patient(ANSWER_S)))

    def live(self, metadata: Metadata | None = None) -> Any:
        return self._open("Live", metadata)

    def backfill(self, metadata: Metadata | None = None) -> Any:
        return self._open("Backfill", metadata)

    def _open(self, method: str, metadata: Metadata | None) -> Any:
        call = self._channel.stream_stream(f"/{SERVICE}/{method}")
        self._streams.append(call(metadata=metadata or self.metadata, timeout=patient(60)))
        return self._streams[-1]


def live_frame(seq: int) -> bytes:
    time_us, can_id, payload = row(seq)
    frame = pb.LiveFrame(seq=seq, timestamp_us=time_us, can_id=can_id, data=payload)
    return pb.LiveUpstream(frame=frame).SerializeToString()


def lpj_block(seqs: range, block_size: int = 4096) -> bytes:
    return encode_lpj_block(FrameColumns.from_rows(map(row, seqs)), base_seq=seqs.start, block_size=block_size)


def backfill_block(seqs: range, data: bytes, *, block_size: int = 4096, **claims: Any) -> bytes:
    fields = {
        "base_seq": seqs.start,
        "base_time_us": row(seqs.start)[0],
        "frame_count": len(seqs),
        "data": data,
        "block_size": block_size,
        **claims,
    }
    return pb.BackfillUpstream(block=pb.Block(**fields)).SerializeToString()


async def send_frames(stream: Any, seqs: range) -> int:
    """Send, then read acks until the last one is in; the cursor that was acked."""
    for seq in seqs:
        await stream.write(live_frame(seq))
    while (ack := pb.LiveDownstream.FromString(await answer(stream))).live_committed_through < seqs.stop - 1:
        pass
    return ack.acked_through


async def answer(stream: Any) -> bytes:
    """The next answer, as bytes; a refusal comes as the call's error."""
    data = await asyncio.wait_for(stream.read(), patient(ANSWER_S))
    assert isinstance(data, bytes), "the stream ended without an answer"
    return data


async def code_of(stream: Any) -> grpc.StatusCode:
    """How the call ends. Answers are read on the way: gRPC shows a status only behind them."""
    async with asyncio.timeout(patient(ANSWER_S)):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await stream.read(), bytes):
                pass
        return await stream.code()


def blast(fleet: Fleet, port: int, name: str, seqs: range) -> tuple[grpc.StatusCode, str]:
    """Frames as fast as they go, until the cloud has had enough. Blocks: run it in a thread.

    By the synchronous API, because the asyncio one reports a write that failed on a finished call as INTERNAL.
    """
    credentials = fleet.boat(name)
    secrets = grpc.ssl_channel_credentials(fleet.nodes.certificate_pem, credentials.key, credentials.certificate)
    with grpc.secure_channel(f"{HOST}:{port}", secrets) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Live")(map(live_frame, seqs), timeout=patient(ANSWER_S))
        try:
            for _ in call:
                pass
        except grpc.RpcError:
            pass  # the code says what it was
        return call.code(), call.details()


def holes(message: Any) -> list[tuple[int, int]]:
    found = message.holes if isinstance(message, pb.HandshakeResponse) else message.remaining
    return [(part.start, part.end) for part in found]


# --- a link that can be cut ----------------------------------------------------------------------


class Proxy:
    """Passes bytes on, until it is told to cut its connections or to swallow everything."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.refusing = False
        self.connections = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port: int = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for pump in list(self._pumps):
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refusing:
            writer.transport.abort()
            return
        self._writers.append(writer)
        task = asyncio.ensure_future(self._connect(reader, writer))
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(HOST, self._target)
        self._writers.append(there_writer)
        try:
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        finally:
            for side in (writer, there_writer):
                side.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def swallow(self) -> None:
        """Half-open: both ends think that they are connected, and nothing arrives."""
        self._open.clear()

    def heal(self) -> None:
        """What was swallowed is gone with its connections; new ones work."""
        self.cut()
        for pump in list(self._pumps):
            pump.cancel()
        self._open.set()
        self.refusing = False
