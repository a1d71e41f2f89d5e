"""A TCP proxy in front of every node of a `ClusterKit`, so that one node can be cut off from the others.

    with NodeFronts(kit) as fronts:
        fronts.start_all()
        fronts.isolate("n1")
        fronts.heal()

Nodes advertise their front, so everybody who dials a node passes it. Who dials is found out from the system: the
process that has the other end of the connection. Only what nodes say to each other is cut; clients reach everybody.

What a caller must keep: use it as a context manager, around everything that runs the nodes. Linux only.

KNF1  What is cut vanishes: bytes are read and dropped both ways, connections stay open, and new ones get no answer.
     That is a network that broke, not a process that ended: nobody is told.
KNF2  Healing resets the connections that lost bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from benchmarks.kits.cluster_kit import HOST, ClusterKit

_READ_BYTES: Final = 256 * 1024
_ACT_S: Final = 10.0
_LOOPBACK: Final = "0100007F"


@dataclass(eq=False, slots=True)
class _Passage:
    """One connection through a front."""

    ends: frozenset[str]
    """The node in front of which it is, and the node that dialled; only the first if that was somebody else."""
    writers: tuple[asyncio.StreamWriter, ...]
    lost: bool = False


class NodeFronts:
    def __init__(self, kit: ClusterKit) -> None:
        self._kit = kit
        self.ports: dict[str, int] = {}
        self._isolated: str | None = None
        self._passages: set[_Passage] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="node fronts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_ACT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_ACT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ACT_S)
        self._loop.close()

    def start_all(self) -> None:
        """Start every node of the kit behind its front."""
        through = self._kit.peers(**{name: f"{HOST}:{port}" for name, port in self.ports.items()})
        for name in self._kit.names:
            self._kit.start(name, "-advertise", f"{HOST}:{self.ports[name]}", peers=through)

    def isolate(self, name: str) -> None:
        """Nothing passes between this node and the others from now on (KNF1)."""

        def act() -> None:
            self._isolated = name

        self._on_loop(act)

    def heal(self) -> None:
        def act() -> None:
            self._isolated = None
            for passage in self._passages:
                if passage.lost:
                    _reset(passage)

        self._on_loop(act)

    # --- on the thread of the fronts ---------------------------------------------------------------------

    def _on_loop(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(_ACT_S), "the thread of the fronts is stuck"

    async def _listen(self) -> None:
        for name in self._kit.names:
            server = await asyncio.start_server(
                lambda reader, writer, name=name: self._accept(name, reader, writer),  # type: ignore[misc]
                HOST,
                0,
            )
            self._servers.append(server)
            self.ports[name] = server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for passage in self._passages:
            _reset(passage)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Kept in `_tasks`, and cancelled by `_close`.
        task = self._loop.create_task(self._serve(name, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = _owner(writer.get_extra_info("peername")[1], self._pids())
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, self._kit.nodes[name].port)
        except OSError:
            writer.transport.abort()
            return
        passage = _Passage(frozenset({name, caller} if caller else {name}), (writer, there_writer))
        self._passages.add(passage)
        try:
            await asyncio.gather(
                self._pass_on(passage, reader, there_writer), self._pass_on(passage, there_reader, writer)
            )
        finally:
            self._passages.discard(passage)
            _reset(passage)

    async def _pass_on(self, passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if self._isolated in passage.ends and len(passage.ends) > 1:
                    passage.lost = True
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def _pids(self) -> dict[str, int]:
        return {
            node.name: node.process.pid
            for node in self._kit.nodes.values()
            if node.process is not None and node.is_running
        }


def _reset(passage: _Passage) -> None:
    for writer in passage.writers:
        writer.transport.abort()


def _owner(port: int, pids: dict[str, int]) -> str | None:
    """Whose socket has this local port; None if none of these processes'."""
    inode = _inode(port)
    if inode is None:
        return None
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{descriptor}") == f"socket:[{inode}]":
                        return name
    return None


def _inode(port: int) -> str | None:
    place = f"{_LOOPBACK}:{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table:
            fields = line.split()
            if fields[1] == place:
                return fields[9]
    return None
