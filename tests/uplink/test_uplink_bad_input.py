"""Attacks on a real cloud process over real sockets: a typed answer each, a healthy boat notices nothing.

In every test a second boat streams all the time. It must never be disconnected, have a hole or wait long for its
acks, and at the end of the module the cloud's disk holds all of its frames, each once. What the cloud needs in
memory is bounded: its peak is read from the operating system after every attack.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard

from tests.patience import patient, wait_until
from tests.uplink.parties import (
    ANSWER_S,
    HOST,
    BoatParty,
    CloudParty,
    Credentials,
    Fleet,
    LplexBoat,
    answer,
    backfill_block,
    code_of,
    dialed,
    holes,
    lpj_block,
    row,
    send_frames,
    target,
)
from tests.uplink.processes import CloudProcess, frames_of, open_files, seed_of_the_day
from tests.uplink.proxy import LinkProxy
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import BlockKind, Codec, pack_maker
from tidelog.cluster.boats.channel import fold_log
from tidelog.cluster.uplink.service import MESSAGE_BYTES_MAX, SERVICE
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.recovery import open_store

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
STALL_S_MAX = 5.0
"""The longest a healthy boat may wait for an ack; it hangs up after 25 s of silence."""
PEAK_MIB_MAX = 320.0
"""The memory limit of the whole cloud. Idle it takes 70; a message may have 20 MiB, and a few are in flight."""
LINEAGE = bytes(15) + b"\x07"


class Bystander:
    """A healthy boat, and the longest that it had to wait for an ack."""

    def __init__(self, folder: Path) -> None:
        self.party = BoatParty(folder)
        self.stall_s = 0.0
        self._acked_at = time.monotonic()
        self._acked = 0
        self.done = asyncio.Event()

    async def sail(self) -> None:
        while not self.done.is_set():
            self.party.record(5)
            self._watch()
            await asyncio.sleep(0.01)

    def _watch(self) -> None:
        journal, now = self.party.journal, time.monotonic()
        if journal.acked > self._acked:
            self._acked, self._acked_at = journal.acked, now
        self.stall_s = max(self.stall_s, now - self._acked_at)


class Harbour:
    """The cloud under attack, and every healthy boat that it has served."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self.served: list[tuple[str, bytes, int]] = []
        self.fleet = Fleet(folder / "fleet")
        node = (self.fleet.node.certificate, self.fleet.node.key)
        self.cloud = CloudProcess(folder, node=node, boats_authority=self.fleet.boats.certificate_pem)
        self.cloud.start()

    @property
    def port(self) -> int:
        return self.cloud.port

    def name(self) -> str:
        return f"attacker-{next(self._numbers)}"

    @contextlib.asynccontextmanager
    async def bystander(self) -> AsyncIterator[Bystander]:
        """A healthy boat that streams for as long as this is open, and has noticed nothing when it closes."""
        name = f"healthy-{next(self._numbers)}"
        healthy = Bystander(self._folder / name)
        boat = healthy.party
        self.cloud.forget_peak()
        boat.dial(target(self.fleet, self.port, name))
        boat.record(5)
        await boat.wait_acked()
        sailing = asyncio.ensure_future(healthy.sail())
        try:
            yield healthy
        finally:
            healthy.done.set()
            await sailing
            await boat.wait_acked()
            statistics = boat.uplink.statistics()
            await boat.close()
        self.served.append((name, boat.journal.lineage, boat.journal.head))
        print(f"longest wait for an ack {healthy.stall_s:.2f} s, peak {self.cloud.peak_mib():.0f} MiB")
        assert not boat.downs, "the healthy boat was never disconnected"
        assert not statistics.missing
        assert healthy.stall_s < patient(STALL_S_MAX), f"the healthy boat waited {healthy.stall_s:.1f} s for an ack"
        assert self.cloud.process.poll() is None, self.cloud.said()
        assert self.cloud.peak_mib() < PEAK_MIB_MAX, f"{self.cloud.peak_mib():.0f} MiB"
        assert "Traceback" not in self.cloud.said(), self.cloud.said()[-3000:]

    @contextlib.asynccontextmanager
    async def attacker(self, name: str | None = None) -> AsyncIterator[LplexBoat]:
        name = name or self.name()
        async with dialed(self.port, self.fleet, self.fleet.boat(name)) as channel:
            yield LplexBoat(channel, name)

    def check_disk(self) -> None:
        """The healthy boats' frames are all there, each once."""
        store = open_store(OsDisk(self.cloud.folder / "data"), now_us=wall_clock_us())
        try:
            for name in store.names():  # what an attacker may have left can be read as well
                log = store.log(name, now_us=wall_clock_us())
                fold_log(log.blocks()).check()
                assert frames_of(log.blocks()) is not None
            for name, lineage, head in self.served:
                held = frames_of(store.log(name, now_us=wall_clock_us()).blocks())
                assert held == {(lineage, seq): row(seq) for seq in range(1, head + 1)}
        finally:
            store.close(wall_clock_us())


@pytest.fixture(scope="module")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harbour]:
    found = Harbour(tmp_path_factory.mktemp("harbour"))
    try:
        yield found
        found.cloud.stop()
        found.check_disk()
    finally:
        found.cloud.kill()


# --- below gRPC ----------------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=patient(ANSWER_S))


def tls(harbour: Harbour, credentials: Credentials, *, protocols: list[str], folder: Path) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=harbour.fleet.nodes.certificate_pem.decode())
    pair = folder / "pair.pem"
    pair.write_bytes(credentials.key + credentials.certificate)
    context.load_cert_chain(pair)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context.wrap_socket(connect(harbour.port), server_hostname="localhost")


def read_to_the_end(found: socket.socket) -> bytes:
    """What the cloud says before it hangs up. It must hang up by itself."""
    said = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := found.recv(65_536):
            said += data
            assert len(said) < 1_000_000
    return said


async def test_500_connections_that_never_begin_tls_keep_nobody_out(harbour: Harbour) -> None:
    async with harbour.bystander():
        files = open_files(harbour.cloud.process)
        idle = [connect(harbour.port) for _ in range(500)]
        for number, found in enumerate(idle):
            if number % 2:
                found.send(b"\x16\x03\x01\x02\x00\x01\x00")  # a ClientHello that stops in the middle
        async with harbour.attacker() as boat:
            await boat.handshake(0)
            assert await send_frames(boat.live(), range(1, 11)) == 10, "a new boat is served beside them"
        for found in idle:
            found.close()
        await wait_until(lambda: open_files(harbour.cloud.process) <= files + 10, "no file stays open")


@pytest.mark.parametrize(
    "said",
    [
        b"GET /instances HTTP/1.1\r\nHost: cloud\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
        b"\x00" * 4096,
        bytes(range(256)) * 4096,
        b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000,
    ],
    ids=["http 1.1", "http 2 in plaintext", "zeroes", "1 MiB of garbage", "a TLS record that is too long"],
)
async def test_what_is_not_tls_is_hung_up_on(harbour: Harbour, said: bytes) -> None:
    def attack() -> bytes:
        with connect(harbour.port) as found, contextlib.suppress(ConnectionError):
            found.sendall(said)
            return read_to_the_end(found)
        return b""

    async with harbour.bystander():
        assert b"HTTP/1.1 200" not in await asyncio.to_thread(attack)


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]], ids=["no protocol", "http/1.1"])
async def test_http_1_inside_tls_is_hung_up_on(harbour: Harbour, tmp_path: Path, protocols: list[str]) -> None:
    def attack(credentials: Credentials) -> bytes:
        try:
            with tls(harbour, credentials, protocols=protocols, folder=tmp_path) as found:
                found.sendall(b"GET /instances HTTP/1.1\r\nHost: cloud\r\n\r\n")
                return read_to_the_end(found)
        except (ConnectionError, ssl.SSLError):
            return b""

    async with harbour.bystander():
        assert not (await asyncio.to_thread(attack, harbour.fleet.boat("attacker-http"))).startswith(b"HTTP/1.1 2")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def endless_headers() -> Iterator[bytes]:
    """HEADERS without an end, then CONTINUATION for ever: a literal header whose value never stops."""
    yield PREFACE + h2_frame(1, 0, 1, b"\x00\x01a\x7f\xe1\xff\xff\xff\x03" + b"b" * 1000)
    while True:
        yield h2_frame(9, 0, 1, b"b" * 16_000)


def endless_small_headers() -> Iterator[bytes]:
    yield PREFACE + h2_frame(1, 0, 1, b"\x00\x01a\x01b")
    while True:
        yield h2_frame(9, 0, 1, b"\x00\x01a\x01b" * 3_000)


def endless_settings() -> Iterator[bytes]:
    yield PREFACE
    while True:
        yield h2_frame(4, 0, 0, struct.pack(">HI", 3, 100)) * 1_000


def garbage_frames() -> Iterator[bytes]:
    yield PREFACE
    while True:
        yield h2_frame(1, 4, 1, b"\xff" * 100)


@pytest.mark.parametrize("attack", [endless_headers, endless_small_headers, endless_settings, garbage_frames])
async def test_http_2_that_never_ends_is_hung_up_on_or_costs_nothing(
    harbour: Harbour, tmp_path: Path, attack: Any
) -> None:
    def send(credentials: Credentials) -> int:
        sent = 0
        end = time.monotonic() + 1
        with tls(harbour, credentials, protocols=["h2"], folder=tmp_path) as found:
            found.settimeout(2)
            with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
                for data in attack():
                    found.sendall(data)
                    sent += len(data)
                    if time.monotonic() > end or sent > 64 * 2**20:
                        break
        return sent

    async with harbour.bystander():
        credentials = harbour.fleet.boat("attacker-h2")
        print(f"{await asyncio.to_thread(send, credentials)} bytes were taken")


async def test_connections_reset_in_the_middle_of_a_message_leave_nothing_behind(harbour: Harbour) -> None:
    async def one(proxy: LinkProxy, name: str, number: int) -> None:
        credentials = harbour.fleet.boat(name)
        async with dialed(proxy.port, harbour.fleet, credentials) as channel:
            boat = LplexBoat(channel, name)
            await boat.handshake(number)
            backfill = boat.backfill()
            writing = asyncio.ensure_future(backfill.write(bytes(8 * 2**20)))
            await asyncio.sleep(0.005 * number)
            proxy.cut()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.wait_for(writing, patient(ANSWER_S))

    name = harbour.name()
    with LinkProxy(harbour.port).running() as proxy:
        async with harbour.bystander():
            files = open_files(harbour.cloud.process)
            for number in range(10):
                await one(proxy, name, number)
            await wait_until(lambda: open_files(harbour.cloud.process) <= files + 2, "no file stays open")


# --- gRPC ----------------------------------------------------------------------------------------


async def refusal_of(stream: Any) -> tuple[grpc.StatusCode, str]:
    try:
        code = await code_of(stream)
    except TimeoutError:
        pytest.fail("it was not refused")
    return code, await stream.details()


async def refused_handshake(boat: LplexBoat, data: bytes) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await boat.handshake_raw(data)
    return refusal.value.code(), refusal.value.details() or ""


async def test_message_above_the_limit_is_refused_on_every_rpc(harbour: Harbour) -> None:
    huge = bytes(MESSAGE_BYTES_MAX + 1)
    async with harbour.bystander(), harbour.attacker() as boat:
        await boat.handshake(0)
        assert (await refused_handshake(boat, huge))[0] is EXHAUSTED
        for stream in (boat.live(), boat.backfill()):
            await stream.write(huge)
            assert await code_of(stream) is EXHAUSTED


async def test_message_that_inflates_above_the_limit_is_refused(harbour: Harbour) -> None:
    name = harbour.name()
    credentials = harbour.fleet.boat(name)
    secrets = grpc.ssl_channel_credentials(
        harbour.fleet.nodes.certificate_pem, credentials.key, credentials.certificate
    )
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    async with (
        harbour.bystander(),
        grpc.aio.secure_channel(
            f"{HOST}:{harbour.port}", secrets, options=options, compression=grpc.Compression.Gzip
        ) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_unary(f"/{SERVICE}/Handshake")(bytes(100 * 2**20), timeout=patient(30))
        assert refusal.value.code() is EXHAUSTED


async def test_headers_of_a_megabyte_are_refused_on_every_rpc(harbour: Harbour) -> None:
    async with harbour.bystander(), harbour.attacker() as boat:
        await boat.handshake(0)
        metadata = (("x-session", "1" * 1_000_000),)
        for stream in (boat.live(metadata), boat.backfill(metadata)):
            assert await code_of(stream) is EXHAUSTED
        await boat.handshake(0)


async def test_stream_without_a_handshake_is_refused(harbour: Harbour) -> None:
    async with harbour.bystander(), harbour.attacker() as boat:
        for stream in (boat.live(), boat.backfill()):
            code, details = await refusal_of(stream)
            assert code is PRECONDITION
            assert details.startswith("session_fenced")


async def test_a_thousand_streams_that_are_opened_and_cancelled_cost_nothing(harbour: Harbour) -> None:
    """A rapid reset: the first Live stays, all others are refused or gone."""

    async with harbour.bystander(), harbour.attacker() as boat:
        await boat.handshake(0)
        live = boat.live()
        await send_frames(live, range(1, 4))
        for _ in range(10):
            streams = [boat.live() for _ in range(50)] + [boat.backfill() for _ in range(50)]
            await asyncio.sleep(0)
            for stream in streams:
                stream.cancel()
        assert await code_of(boat.live()) is INVALID, "one Live stream of a session at a time"
        assert await send_frames(live, range(4, 7)) == 6


async def test_five_hundred_streams_at_once_are_all_answered(harbour: Harbour) -> None:
    async with harbour.bystander(), harbour.attacker() as boat:
        await boat.handshake(0)
        live = boat.live()
        await send_frames(live, range(1, 4))
        found = await asyncio.gather(*(code_of(boat.live()) for _ in range(500)))
        assert set(found) == {INVALID}
        assert await send_frames(live, range(4, 7)) == 6


async def test_a_storm_of_handshakes_of_one_boat_ends_with_one_session(harbour: Harbour) -> None:
    async with harbour.bystander(), harbour.attacker() as boat:
        answers = await asyncio.gather(*(boat.handshake(0) for _ in range(300)), return_exceptions=True)
        refused = [found for found in answers if isinstance(found, grpc.aio.AioRpcError)]
        assert {found.code() for found in refused} <= {PRECONDITION}
        assert await send_frames(boat.live(), range(1, 4)) == 3


async def test_a_boat_that_never_reads_its_acks_costs_no_memory(harbour: Harbour) -> None:
    """What it sends is known already, so every message is answered at once and nothing slows it down but the link."""

    async with harbour.bystander(), harbour.attacker() as boat:
        await boat.handshake(0)
        await send_frames(boat.live(), range(1, 101))
        await boat.handshake(100)
        backfill = boat.backfill()
        message = backfill_block(range(1, 51), lpj_block(range(1, 51)))
        for _ in range(1_000):
            await backfill.write(message)
        backfill.cancel()
        assert (await boat.handshake(100)).cursor >= 99, "nothing was lost by it"


# --- content -------------------------------------------------------------------------------------


def made_bytes(made: MadeBlock) -> bytes:
    return b"".join(map(bytes, made.buffers))


def made_frames(seqs: range, producer: bytes = LINEAGE) -> MadeBlock:
    return encode_frames(FrameColumns.from_rows(map(row, seqs)), base_seq=seqs.start, producer=producer)


def forged(seqs: range, **claims: Any) -> bytes:
    """A block of ours whose header says something else about its body; all checksums are right."""
    honest = encode_frames(
        FrameColumns.from_rows(map(row, seqs)), base_seq=seqs.start, producer=LINEAGE, codec=Codec.NONE
    )
    maker = honest.maker
    fields: dict[str, Any] = {
        "kind": maker.kind,
        "form": maker.form,
        "codec": maker.codec,
        "time_min_us": maker.time_min_us,
        "time_max_us": maker.time_max_us,
        "base_seq": maker.base_seq,
        "producer": maker.producer,
        "record_count": maker.record_count,
        "raw_bytes": maker.raw_bytes,
        "body": bytes(honest.body),
        "stored_bytes": maker.stored_bytes,
        **claims,
    }
    return bytes(pack_maker(**fields) + fields["body"])


def zstd_bomb(size: int) -> dict[str, Any]:
    body = zstandard.ZstdCompressor(level=19).compress(bytes(size))
    return {"codec": Codec.ZSTD, "body": body + bytes(-len(body) & 7), "stored_bytes": len(body)}


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def hostile_blocks() -> dict[str, bytes]:
    seqs = range(1, 51)
    honest = forged(seqs)
    return {
        "count too high": forged(seqs, record_count=51),
        "count too low": forged(seqs, record_count=49),
        "count of millions": forged(seqs, record_count=2**31),
        "count of none": forged(seqs, record_count=0),
        "seq that ends beyond 2^63": forged(seqs, base_seq=2**63 - 10),
        "seq 2^63": forged(seqs, base_seq=2**63),
        "seq 0": forged(seqs, base_seq=0),
        "raw size too high": forged(seqs, raw_bytes=2**31),
        "raw size too low": forged(seqs, raw_bytes=8),
        "control records": forged(seqs, kind=BlockKind.CONTROL),
        "messages": forged(seqs, kind=BlockKind.MESSAGES),
        "lplex form of nothing": forged(seqs, kind=BlockKind.FOREIGN, form=5),
        "zstd bomb": forged(seqs, **zstd_bomb(256 * 2**20)),
        "zstd bomb that says its size": forged(seqs, raw_bytes=256 * 2**20, **zstd_bomb(256 * 2**20)),
        "zstd of noise": forged(seqs, codec=Codec.ZSTD),
        "header, one bit off": flipped(honest, 20),
        "body, one bit off": flipped(honest, len(honest) - 10),
        "cut off": honest[:-8],
        "more than it says": honest + bytes(8),
        "header alone": honest[:64],
        "header of zeroes": bytes(64),
        "header of ones": b"\xff" * 256,
    }


async def test_hostile_blocks_are_refused_by_type_on_both_streams_and_nothing_is_taken(harbour: Harbour) -> None:
    name = harbour.name()
    hello: dict[str, Any] = {"lineage": LINEAGE, "life": b"1", "sent_through": 60}
    async with harbour.bystander(), harbour.attacker(name) as boat:
        for what, block in hostile_blocks().items():
            for path in ("live", "backfill"):
                print(f"{what} by {path}")
                welcome = await boat.handshake(60, **hello)
                assert (welcome.cursor, holes(welcome)) == (0, [(1, 61)]), f"after {what}"
                stream = boat.live() if path == "live" else boat.backfill()
                live = pb.LiveUpstream(made_block=block)
                backfill = pb.BackfillUpstream(made_blocks=[block], file_offsets=[4_711])
                await stream.write((live if path == "live" else backfill).SerializeToString())
                code, details = await refusal_of(stream)
                assert code is INVALID, f"{what} by {path}: {code} {details}"
                assert details.split(":")[0] in TYPED, f"{what} by {path}: {details}"
                is_placed = path == "backfill" and details.startswith("block_corrupt")
                assert ("at byte 4711 of its segment file" in details) == is_placed, f"{what} by {path}: {details}"
        await boat.handshake(60, **hello)
        backfill = boat.backfill()
        honest = made_bytes(made_frames(range(1, 61)))
        await backfill.write(pb.BackfillUpstream(made_blocks=[honest]).SerializeToString())
        ack = pb.BackfillDownstream.FromString(await answer(backfill))
        assert (ack.continuous_through, holes(ack)) == (60, []), "the honest one is taken"


TYPED = {"bad_message", "bad_block", "block_corrupt", "block_truncated", "block_too_large", "invalid_record"}


def hello_bytes(name: str, **fields: Any) -> bytes:
    return pb.HandshakeRequest(instance_id=name, journal_bytes=4096, **fields).SerializeToString()


def spread(count: int) -> list[pb.SeqRange]:
    return [pb.SeqRange(start=3 * place + 1, end=3 * place + 2) for place in range(count)]


async def test_hello_with_a_million_ranges_is_refused(harbour: Harbour) -> None:
    name = harbour.name()
    # A message that is written twice is read as one: so repeated fields add up.
    message = hello_bytes(name, head_seq=4_000_000, lineage=LINEAGE)
    message += 1_000_000 * pb.HandshakeRequest(lost=spread(1)).SerializeToString()
    async with harbour.bystander(), harbour.attacker(name) as boat:
        code, details = await refused_handshake(boat, message)
        assert (code, details.split(":")[0]) in {(INVALID, "bad_message"), (EXHAUSTED, "too_many_holes")}
        await boat.handshake(0, lineage=LINEAGE)


async def test_hello_with_five_thousand_ranges_does_not_hold_up_the_others(harbour: Harbour) -> None:
    name = harbour.name()
    message = hello_bytes(name, head_seq=20_000, lineage=LINEAGE, life=b"1", lost=spread(5_000))
    async with harbour.bystander(), harbour.attacker(name) as boat:
        welcome = await boat.handshake_raw(message)
        assert welcome.cursor == 1
        assert (await boat.handshake_raw(message)).cursor == 1, "and the same again"


def every_second(count: int) -> Iterator[bytes]:
    for place in range(count):
        made = made_bytes(made_frames(range(2 * place + 2, 2 * place + 3)))
        yield pb.BackfillUpstream(made_blocks=[made]).SerializeToString()


async def test_a_boat_that_sends_every_second_seq_holds_up_nobody(harbour: Harbour) -> None:
    name, count = harbour.name(), 1_500
    async with harbour.bystander(), harbour.attacker(name) as boat:
        head = 2 * count
        await boat.handshake(head, lineage=LINEAGE, life=b"1", sent_through=head)
        backfill = boat.backfill()
        reading = asyncio.ensure_future(last_ack(backfill))
        for message in every_second(count):
            await backfill.write(message)
        await backfill.done_writing()
        assert (await reading).continuous_through == 0
        assert await backfill.code() is grpc.StatusCode.OK
        welcome = await boat.handshake(head, lineage=LINEAGE, life=b"1", sent_through=head)
        assert (welcome.cursor, len(welcome.holes)) == (0, 1_000), "only so many are named at once"


async def last_ack(stream: Any) -> pb.BackfillDownstream:
    """The last one before the stream ends."""
    data = b""
    while isinstance(found := await stream.read(), bytes):
        data = found
    return pb.BackfillDownstream.FromString(data)


async def test_too_many_holes_are_refused_by_type_and_honest_backfill_still_gets_through(
    harbour: Harbour, tmp_path: Path
) -> None:
    """With a limit of 50 instead of 100,000, which would take minutes to reach."""

    async def refused(boat: LplexBoat, hello: dict[str, Any]) -> tuple[grpc.StatusCode, str]:
        await boat.handshake(200, **hello)
        backfill = boat.backfill()
        # No more than that: the client hides the reason of a refusal when it writes after it.
        for message in every_second(51):
            await backfill.write(message)
        return await refusal_of(backfill)

    name = harbour.name()
    hello: dict[str, Any] = {"lineage": LINEAGE, "life": b"1", "sent_through": 200}
    cloud = CloudParty(tmp_path / "cloud", harbour.fleet, limits=ReceiverLimits(holes_max=50))
    async with cloud.running(), dialed(cloud.port, harbour.fleet, harbour.fleet.boat(name)) as channel:
        boat = LplexBoat(channel, name)
        code, details = await refused(boat, hello)
        assert (code, details.split(":")[0]) == (EXHAUSTED, "too_many_holes")
        await wait_until(lambda: len(cloud.held(name)) == 50, "so many are kept")
        await boat.handshake(200, **hello)
        backfill = boat.backfill()
        cursor = 0
        for start in range(1, 201, 20):  # from the first hole on, as a boat of ours fills it
            made = made_bytes(made_frames(range(start, start + 20)))
            await backfill.write(pb.BackfillUpstream(made_blocks=[made]).SerializeToString())
        while cursor < 200:
            cursor = pb.BackfillDownstream.FromString(await answer(backfill)).continuous_through
        assert sorted(cloud.held(name)) == [(seq, row(seq)) for seq in range(1, 201)]


async def test_live_frames_at_the_end_of_all_seqs_are_taken_or_refused_by_type(harbour: Harbour) -> None:
    async with harbour.bystander(), harbour.attacker() as boat:
        for seq, is_taken in ((2**63 - 1, True), (2**63, False), (2**64 - 1, False)):
            await boat.handshake(2**63 - 1)
            live = boat.live()
            frame = pb.LiveFrame(seq=seq, timestamp_us=1, can_id=1, data=b"x")
            await live.write(pb.LiveUpstream(frame=frame).SerializeToString())
            if is_taken:
                ack = pb.LiveDownstream.FromString(await answer(live))
                assert (ack.acked_through, ack.live_committed_through) == (0, seq)
            else:
                code, details = await refusal_of(live)
                assert (code, details.split(":")[0]) == (INVALID, "bad_message")


ODD_FRAMES: dict[str, dict[str, Any]] = {
    "1970": {"timestamp_us": 0},
    "before 1970": {"timestamp_us": -1},
    "the first moment": {"timestamp_us": -(2**63)},
    "the last moment": {"timestamp_us": 2**63 - 1},
    "no payload": {"data": b""},
    "longest payload": {"data": bytes(1785)},
    "payload one too long": {"data": bytes(1786)},
    "largest id": {"can_id": 2**29 - 1},
    "id of 30 bits": {"can_id": 2**29},
}


async def test_odd_frames_are_taken_or_refused_by_type_and_the_channel_goes_on(harbour: Harbour) -> None:
    taken: list[str] = []
    async with harbour.bystander(), harbour.attacker() as boat:
        for what, fields in ODD_FRAMES.items():
            await boat.handshake(len(taken))
            live = boat.live()
            frame = {"seq": len(taken) + 1, "timestamp_us": row(1)[0], "can_id": 1, "data": b"x", **fields}
            await live.write(pb.LiveUpstream(frame=pb.LiveFrame(**frame)).SerializeToString())
            await live.done_writing()
            if (code := await code_of(live)) is grpc.StatusCode.OK:
                taken.append(what)
            else:
                assert code is INVALID, what
                assert (await live.details()).split(":")[0] in TYPED, what
            assert (await boat.handshake(len(taken))).cursor == len(taken), what
        assert {"1970", "no payload", "longest payload", "largest id"} <= set(taken)
        await boat.handshake(len(taken))
        assert await send_frames(boat.live(), range(len(taken) + 1, len(taken) + 4)) == len(taken) + 3


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The message with a few bytes changed, cut out or repeated."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(found) + 1)
        size = rng.randrange(1, 9)
        match rng.randrange(3):
            case 0:
                found[place : place + size] = rng.randbytes(size)
            case 1:
                del found[place : place + size]
            case _:
                found[place:place] = found[place : place + size]
    return bytes(found)


async def test_mutated_messages_are_taken_or_refused_by_type(harbour: Harbour) -> None:
    """Never an error without a name: that would be a bug of ours in the boat's log."""
    seed = seed_of_the_day(31)

    rng = random.Random(seed)
    name = harbour.name()
    lost = [pb.SeqRange(start=3, end=5)]
    hello = hello_bytes(name, head_seq=60, lineage=LINEAGE, life=b"1", sent_through=60, lost=lost)
    made = forged(range(11, 21))
    live_messages = [pb.LiveUpstream(made_block=made), pb.LiveUpstream(status=pb.LiveStatus(head_seq=60))]
    backfills = [pb.BackfillUpstream(made_blocks=[made]), pb.BackfillUpstream(gone=pb.SeqRange(start=1, end=9))]
    async with harbour.bystander(), harbour.attacker(name) as boat:
        for number in range(60):
            await accepted_or_typed(boat.handshake_raw(hello))
            stream, messages = (boat.live(), live_messages) if number % 2 else (boat.backfill(), backfills)
            await stream.write(mutated(rng.choice(messages).SerializeToString(), rng))
            await stream.done_writing()
            assert await code_of(stream) in NAMED, await stream.details()
        for _ in range(300):
            await accepted_or_typed(boat.handshake_raw(mutated(hello, rng)))


NAMED = {grpc.StatusCode.OK, INVALID, EXHAUSTED, PRECONDITION, grpc.StatusCode.PERMISSION_DENIED}


async def accepted_or_typed(call: Awaitable[object]) -> None:
    code, details = grpc.StatusCode.OK, ""
    try:
        await call
    except grpc.aio.AioRpcError as refusal:
        code, details = refusal.code(), refusal.details() or ""
    assert code in NAMED, details


async def test_hello_with_as_many_ranges_as_are_allowed_does_not_hold_up_the_others(harbour: Harbour) -> None:
    name = harbour.name()
    message = hello_bytes(name, head_seq=400_000, lineage=LINEAGE, life=b"1", lost=spread(99_000))
    async with harbour.bystander(), harbour.attacker(name) as boat:
        with contextlib.suppress(grpc.aio.AioRpcError):  # taken or refused: others must not wait
            await boat.handshake_raw(message)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000, 1_000_000])
@pytest.mark.timeout(1900)
async def test_a_boat_that_sends_every_second_seq_is_bounded(harbour: Harbour, count: int) -> None:
    async def ending(stream: Any) -> tuple[grpc.StatusCode, str]:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await stream.read(), bytes):
                pass
        return await stream.code(), await stream.details()

    name = harbour.name()
    async with harbour.bystander(), harbour.attacker(name) as boat:
        head = 2 * count
        await boat.handshake(head, lineage=LINEAGE, life=b"1", sent_through=head)
        backfill = boat._channel.stream_stream(f"/{SERVICE}/Backfill")(metadata=boat.metadata, timeout=patient(1_800))
        reading = asyncio.ensure_future(ending(backfill))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for message in every_second(count):
                await backfill.write(message)
            await backfill.done_writing()
        code, details = await reading
        if count > 100_000:  # the client may hide the reason when it writes after the refusal
            assert code in (EXHAUSTED, grpc.StatusCode.INTERNAL), details
        else:
            assert code is grpc.StatusCode.OK, details
