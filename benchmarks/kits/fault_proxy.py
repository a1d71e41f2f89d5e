"""A network between the nodes of a `ClusterKit` that can be cut: both ways, one way, and healed.

Every node has a port here and advertises it to the others (`-advertise`). Connections run through the port of the node
that was dialled; the dialling node is the process that holds the other end, so each ordered pair of nodes can be
treated separately. Clients of this process are no peers and are not affected.

    with FaultProxy(lambda: {name: process id}) as proxy:
        proxy_port = proxy.open_proxy_port("n1", target_port)

What a caller must keep: Linux; every method may be called from any thread and has taken effect when it returns.

KFP1  A stalled direction loses nothing: bytes wait in the proxy, as TCP would send them again, and arrive late after
     `heal`. So old messages do come, as they do in a real network.
KFP2  Memory is bounded: a side that is not read from is not read from here either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

HOST: Final = "127.0.0.1"
NOBODY: Final = ""
"""Who dialled, if it was none of the nodes."""
_RESET: Final = struct.pack("ii", 1, 0)
_WAIT_S: Final = 10.0
_HELD_BYTES_MAX: Final = 1 << 20
_LOOPBACK: Final = "0100007F"


class FaultProxy:
    """`pids` tells the process of each node, as they are now."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        self._pids = pids
        self._stalled: set[tuple[str, str]] = set()
        self._refused: set[frozenset[str]] = set()
        self._pipes: set[_Pipe] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self.connections = 0
        self.unknown = 0
        """Connections whose dialler was gone before it could be found; they were reset."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_loop(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    def open_proxy_port(self, node: str, target_port: int) -> int:
        """The port by which the others reach this node."""

        async def listen() -> asyncio.Server:
            return await self._loop.create_server(lambda: _Side(self, node, target_port), HOST, 0)

        server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(_WAIT_S)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    # --- what goes wrong -----------------------------------------------------------------------------------

    def stall(self, *ways: tuple[str, str]) -> None:
        """What goes from the first to the second of each way waits until `heal`; nobody is told (KFP1)."""
        self._on_loop(lambda: self._stalled.update(ways))

    def cut(self, nodes: Iterable[str], others: Iterable[str]) -> None:
        """Connections between the two sides are reset, and so are new ones."""
        pairs = {frozenset((one, other)) for one in nodes for other in others if one != other}

        def act() -> None:
            self._refused |= pairs
            for pipe in [pipe for pipe in self._pipes if pipe.pair in self._refused]:
                pipe.reset()

        self._on_loop(act)

    def heal(self) -> None:
        """A good network again; what was stalled arrives now."""

        def act() -> None:
            self._stalled.clear()
            self._refused.clear()
            for pipe in list(self._pipes):
                pipe.release()

        self._on_loop(act)

    # --- how it is done --------------------------------------------------------------------------------------

    def is_stalled(self, way: tuple[str, str]) -> bool:
        return way in self._stalled

    def is_refused(self, pair: frozenset[str]) -> bool:
        return pair in self._refused

    def dialler_of(self, port: int, proxy_port: int) -> str | None:
        """The node whose process holds the other end; `NOBODY` if it is none of them, None if it is gone already."""
        inode = _inode(port, proxy_port)
        if inode is None:
            return None
        wanted = f"socket:[{inode}]"
        for name, pid in self._pids().items():
            if _holds(pid, wanted):
                return name
        return NOBODY

    def began(self, pipe: _Pipe) -> None:
        self.connections += 1
        self._pipes.add(pipe)

    def ended(self, pipe: _Pipe) -> None:
        self._pipes.discard(pipe)

    def _on_loop(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                act()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(_WAIT_S), "the proxy's thread is stuck"

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        for pipe in list(self._pipes):
            pipe.reset()


class _Pipe:
    """One connection: the dialler's side and the target's."""

    def __init__(self, proxy: FaultProxy, dialler: str, target: str, near: _Side) -> None:
        self._proxy = proxy
        self._ways = (dialler, target), (target, dialler)
        self.pair = frozenset((dialler, target))
        self.near = near
        self.far: _Side | None = None

    def passes(self, side: _Side) -> bool:
        """Whether what comes from this side may go on now."""
        return not self._proxy.is_stalled(self._ways[0] if side is self.near else self._ways[1])

    def other(self, side: _Side) -> _Side | None:
        return self.far if side is self.near else self.near

    def sides(self) -> list[_Side]:
        return [side for side in (self.near, self.far) if side is not None]

    def release(self) -> None:
        for side in self.sides():
            side.release()

    def reset(self) -> None:
        self._proxy.ended(self)
        for side in self.sides():
            side.reset()


class _Side(asyncio.Protocol):
    """One end of a connection: what arrives is written to the other, or held."""

    def __init__(self, proxy: FaultProxy, node: str, target_port: int, pipe: _Pipe | None = None) -> None:
        self._proxy, self._node, self._target_port = proxy, node, target_port
        self._pipe = pipe
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_over = False
        self._is_choked = False
        """The other end takes no more."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._pipe is not None:
            return
        proxy = self._proxy
        dialler = proxy.dialler_of(transport.get_extra_info("peername")[1], transport.get_extra_info("sockname")[1])
        if dialler is None or proxy.is_refused(frozenset((dialler, self._node))):
            proxy.unknown += dialler is None
            self.reset()
            return
        self._pipe = _Pipe(proxy, dialler, self._node, self)
        proxy.began(self._pipe)
        # Kept in `_task`; ends with the attempt to connect.
        self._task = asyncio.get_running_loop().create_task(self._dial(self._pipe))

    async def _dial(self, pipe: _Pipe) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, far = await loop.create_connection(
                lambda: _Side(self._proxy, self._node, self._target_port, pipe), HOST, self._target_port
            )
        except OSError:
            pipe.reset()
            return
        pipe.far = far
        if self._is_over:
            far.reset()
        self.release()

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self.release()

    def release(self) -> None:
        """Pass on what may be passed on; read no more than may be held (KFP2)."""
        pipe, transport = self._pipe, self._transport
        if pipe is None or transport is None or self._is_over:
            return
        other = pipe.other(self)
        if other is not None and pipe.passes(self):
            held, self._held, self._held_bytes = self._held, [], 0
            for data in held:
                other.write(data)
        if self._held_bytes > _HELD_BYTES_MAX or (other is not None and other._is_choked):
            transport.pause_reading()
        else:
            transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_over:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._is_choked = True
        self._tell_other()

    def resume_writing(self) -> None:
        self._is_choked = False
        self._tell_other()

    def _tell_other(self) -> None:
        other = None if self._pipe is None else self._pipe.other(self)
        if other is not None:
            other.release()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        if self._pipe is not None:
            self._pipe.reset()

    def reset(self) -> None:
        """End this side as a broken network would."""
        if self._is_over or self._transport is None:
            return
        self._is_over = True
        held = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()


def _inode(port: int, proxy_port: int) -> str | None:
    """The inode of the socket that is bound to `port` and connected to `proxy_port`, both on this machine."""
    local, remote = f"{_LOOPBACK}:{port:04X}", f"{_LOOPBACK}:{proxy_port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        columns = line.split()
        if columns[1] == local and columns[2] == remote and columns[9] != "0":
            return columns[9]
    return None


def _holds(pid: int, wanted: str) -> bool:
    """Whether the process has this socket open; one that is gone has nothing."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{entry}") == wanted:
                    return True
    return False
