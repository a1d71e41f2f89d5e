"""TLS connections that share the memory they receive into: what they cost, what they carry, how many may begin."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.test_tls import authority, node_files, trusting
from tests.patience import wait_until
from tidelog.transports.grpc.tls_accept import TlsAccept
from tidelog.units import KIB

HOST = "127.0.0.1"
CROWD = 100
HELD_BYTES_MAX = 32 * KIB
"""The memory that Python itself may use for one idle connection; asyncio alone takes 256 KiB."""
PLENTY = 1_000


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class House:
    def __init__(self, accept: TlsAccept, port: int, context: ssl.SSLContext) -> None:
        self.accept = accept
        self.port = port
        self._context = context

    async def silent(self) -> asyncio.StreamWriter:
        return (await asyncio.open_connection(HOST, self.port))[1]

    async def greeted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port, ssl=self._context, server_hostname="localhost")


@contextlib.asynccontextmanager
async def listening(
    folder: Path, *, handshakes_max: int = PLENTY, handshake_s: int | None = None
) -> AsyncIterator[House]:
    signer = authority("node")
    files = node_files(folder, signer, "n1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    accept = TlsAccept(context, Echo, handshakes_max=handshakes_max, handshake_s=handshake_s)
    server = await asyncio.get_running_loop().create_server(accept, HOST, 0)
    try:
        yield House(accept, server.sockets[0].getsockname()[1], trusting(signer))
    finally:
        server.close()


async def test_callers_that_say_nothing_hold_no_buffers(tmp_path: Path) -> None:
    """TA1."""

    async with listening(tmp_path) as house:
        writers = [await house.silent()]
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            writers += [await house.silent() for _ in range(CROWD)]
            await wait_until(lambda: house.accept.handshakes == len(writers), "all are accepted")
            held_bytes = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # Both ends are in this process; the caller's has no TLS.
        assert held_bytes < CROWD * HELD_BYTES_MAX
        for writer in writers:
            writer.close()
        await wait_until(lambda: house.accept.handshakes == 0, "their places are free")


async def test_many_connections_at_once_get_back_exactly_what_they_sent(tmp_path: Path) -> None:
    """The buffer is used by all in turn, and nobody sees another one's bytes."""

    async def talk(house: House, number: int) -> None:
        dice = random.Random(number)
        reader, writer = await house.greeted()
        for _ in range(5):
            data = dice.randbytes(dice.randint(1, 600 * KIB))
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
        writer.close()

    async with listening(tmp_path) as house, asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(talk(house, number))


async def test_too_many_handshakes_are_hung_up_on_and_places_come_back(tmp_path: Path) -> None:
    """TA2: a silent connection keeps its place; one that ended, well or not, gives it back."""

    async with listening(tmp_path, handshakes_max=2) as house:
        first, second = await house.silent(), await house.silent()
        await wait_until(lambda: house.accept.handshakes == 2, "both places are taken")
        with pytest.raises(OSError):
            await house.greeted()
        assert house.accept.refused == 1
        assert house.accept.handshakes == 2, "who was refused held no place"
        first.close()
        await wait_until(lambda: house.accept.handshakes == 1, "who left gave its place back")
        for _ in range(3):
            reader, writer = await house.greeted()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert house.accept.handshakes == 1, "an open connection holds no place"
            writer.close()
        stranger = await house.silent()
        stranger.write(b"this is no TLS at all\r\n\r\n")
        await wait_until(lambda: house.accept.handshakes == 1, "a handshake that failed gave its place back")
        second.close()
        stranger.close()


async def test_a_caller_that_says_nothing_is_not_waited_for_longer_than_it_may(tmp_path: Path) -> None:
    """TA2."""

    async with listening(tmp_path, handshake_s=1) as house:
        reader, writer = await asyncio.open_connection(HOST, house.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert house.accept.handshakes == 0
