"""A long TCP link: everything is delayed by half a round trip each way, and the bytes are counted at the sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.kits.uplink_parties import HOST

_READ_BYTES = 65_536


class ShapedLink:
    """Forwards every connection to one port of this machine."""

    def __init__(self, target_port: int, *, round_trip_s: float) -> None:
        self._target_port = target_port
        self._delay_s = round_trip_s / 2
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0
        self.bytes_up = 0
        self.bytes_down = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        self._writers += [writer, far_writer]
        ways = ((reader, far_writer, True), (far_reader, writer, False))
        for source, sink, is_up in ways:
            task = asyncio.ensure_future(self._carry(source, sink, is_up=is_up))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_up: bool) -> None:
        loop = asyncio.get_running_loop()
        last_s = 0.0
        with contextlib.suppress(ConnectionError):
            while data := await source.read(_READ_BYTES):
                if is_up:
                    self.bytes_up += len(data)
                else:
                    self.bytes_down += len(data)
                # Never before what went ahead of it: timers of the same moment have no order of their own.
                last_s = max(last_s + 1e-6, loop.time() + self._delay_s)
                loop.call_at(last_s, sink.write, data)
        loop.call_at(max(last_s + 1e-6, loop.time() + self._delay_s), sink.close)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def open_link(target_port: int, *, round_trip_s: float) -> AsyncIterator[ShapedLink]:
    link = ShapedLink(target_port, round_trip_s=round_trip_s)
    server = await asyncio.start_server(link.serve, HOST, 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.close()
