"""The floor under Live: bare grpcio that moves messages of the same sizes over the same TLS, and keeps nothing.

The server, a process of its own, reads messages of a bidirectional stream and answers with how many came, the newest
count only, as the cloud answers with its newest ack. The client keeps as many messages unanswered as the boat keeps
blocks. Neither looks into a message. A second method answers as an lplex cloud does: every five seconds, after a
message.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from benchmarks.kits.uplink_parties import HOST, Fleet, ServerProcess
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.units import MIB

_SERVICE = "bench.Floor"
_METHOD = f"/{_SERVICE}/Move"
LPLEX_METHOD = f"/{_SERVICE}/Lplex"
_LPLEX_ACK_S = 5.0
_COUNT_BYTES = 8


async def _move(requests: AsyncIterator[bytes], context: Any) -> None:
    count = 0
    arrived = asyncio.Event()

    async def answer() -> None:
        while True:
            await arrived.wait()
            arrived.clear()
            await context.write(count.to_bytes(_COUNT_BYTES, "little"))

    answering = asyncio.ensure_future(answer())
    try:
        async for _ in requests:
            count += 1
            arrived.set()
    finally:
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering


async def _lplex(requests: AsyncIterator[bytes], context: Any) -> None:
    count, due = 0, time.monotonic() + _LPLEX_ACK_S
    async for _ in requests:
        count += 1
        if time.monotonic() >= due:
            due = time.monotonic() + _LPLEX_ACK_S
            await context.write(pb.LiveDownstream(acked_through=count).SerializeToString())


async def _serve(certificate: bytes, key: bytes, boats: bytes) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 20 * MIB)])
    handlers = {
        "Move": grpc.stream_stream_rpc_method_handler(_move),
        "Lplex": grpc.stream_stream_rpc_method_handler(_lplex),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    credentials = grpc.ssl_server_credentials([(key, certificate)], boats, require_client_auth=True)
    port = server.add_secure_port(f"{HOST}:0", credentials)
    await server.start()
    sys.stderr.write(f"floor up port={port}\n")
    sys.stderr.flush()
    await server.wait_for_termination()


def start_floor(fleet: Fleet, folder: Path) -> ServerProcess:
    """The server as a process; stop it when done."""
    paths = [str(path) for path in fleet.write_node()]
    return ServerProcess([sys.executable, "-m", "benchmarks.uplink.floor", *paths], folder / "floor.log")


class FloorClient:
    """One stream to the floor server, kept open between rounds."""

    def __init__(self, target: UplinkTarget) -> None:
        self._channel = target.open_channel()
        self._call = self._channel.stream_stream(_METHOD)()
        self._answered = 0
        self._sent = 0

    async def move(self, messages: Sequence[bytes], *, window: int) -> float:
        """Send all, at most `window` unanswered; returns the seconds until the last answer."""
        waiting = deque(messages)
        room = asyncio.Event()
        room.set()
        end = self._sent + len(messages)

        async def write() -> None:
            while waiting:
                while self._sent - self._answered >= window:
                    room.clear()
                    await room.wait()
                self._sent += 1
                await self._call.write(waiting.popleft())

        start = time.perf_counter()
        writing = asyncio.ensure_future(write())
        while self._answered < end:
            self._answered = int.from_bytes(await self._call.read(), "little")
            room.set()
        seconds = time.perf_counter() - start
        await writing
        return seconds

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


if __name__ == "__main__":
    asyncio.run(_serve(*(Path(argument).read_bytes() for argument in sys.argv[1:4])))
