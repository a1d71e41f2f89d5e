"""A TCP link that misbehaves: it cuts, delays, swallows one way or both, and refuses.

Runs on a thread of its own, so that it serves tests of real processes and tests on an event loop alike. Every
method may be called from any thread and has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.patience import patient

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)
_READ_BYTES = 65_536


@dataclass
class Direction:
    """What happens to the bytes that go one way."""

    swallows: bool = False
    delay_s: float = 0.0


class LinkProxy:
    """Listens on `port` and passes everything on to `target_port`, which may change between connections."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.connections = 0
        self.bytes_swallowed = 0
        self._up, self._down = Direction(), Direction()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what a test asks for --------------------------------------------------------------------

    def cut(self) -> None:
        """Every connection ends with a reset, at both ends; new ones are taken."""
        self._on_loop(self._reset_all)

    def swallow(self, *, up: bool = True, down: bool = True) -> None:
        """Half-open: bytes of this direction are read and vanish, and nobody is told. `up` is towards the target."""

        def act() -> None:
            self._up.swallows, self._down.swallows = up, down

        self._on_loop(act)

    def delay(self, seconds: float) -> None:
        """Bytes arrive this much later, both ways."""

        def act() -> None:
            self._up.delay_s = self._down.delay_s = seconds

        self._on_loop(act)

    def refuse(self) -> None:
        """Cut, and reset every new connection at once."""

        def act() -> None:
            self._refuses = True
            self._reset_all()

        self._on_loop(act)

    def heal(self) -> None:
        """A good link again. A connection that lost bytes cannot go on, so those that are open are reset."""

        def act() -> None:
            if self._up.swallows or self._down.swallows:
                self._reset_all()
            self._up, self._down, self._refuses = Direction(), Direction(), False

        self._on_loop(act)

    # --- how it is done --------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[LinkProxy]:
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(patient(10))
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._close(server), self._loop).result(patient(10))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(patient(10))
            self._loop.close()

    def _on_loop(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(patient(10)), "the proxy's thread is stuck"

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        self._reset_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            self._reset(writer)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refuses:
            self._reset(writer)
            return
        self._writers.add(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            self._reset(writer)
            return
        self._writers.add(there_writer)
        try:
            await asyncio.gather(
                self._pump(reader, there_writer, lambda: self._up),
                self._pump(there_reader, writer, lambda: self._down),
            )
        finally:
            for side in (writer, there_writer):
                self._reset(side)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Callable[[], Direction]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                if direction().delay_s:
                    await asyncio.sleep(direction().delay_s)
                if direction().swallows:
                    self.bytes_swallowed += len(data)
                    continue
                writer.write(data)
                await writer.drain()
        self._reset(writer)
