"""Thousands of connections to one node that do nothing, of every kind that a node takes.

    crowd = IdleCrowd(kit, "n1", http=8081, liftbridge=9292)
    crowd.silent("http", 5_000)
    crowd.leave()

Plain sockets, without an event loop: what this side keeps for a connection is small, and what the node keeps is what is
measured. A node refuses or hangs up on callers over its limits; they count as having come.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks.kits.channel_kit import dial_node
from benchmarks.kits.cluster_kit import HOST, OPERATOR, ClusterKit

from tests.patience import patient
from tidelog.errors import LogError
from tidelog.transports.grpc.http2_frames import PREFACE, settings_frame
from tidelog.transports.link.link import Link

_CALLERS: Final = 16
_ANSWER_S: Final = 30.0
_SPARE_FILES: Final = 1_000


def raise_open_files(count: int) -> None:
    """So many descriptors for this process, and for the nodes that it starts from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _SPARE_FILES
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))


class IdleCrowd:
    def __init__(self, kit: ClusterKit, name: str, *, http: int, liftbridge: int) -> None:
        self._kit = kit
        self._node = name
        self._ports = {"http": http, "liftbridge": liftbridge, "link": kit.nodes[name].port}
        self._open: list[socket.socket] = []
        self._links: list[Link] = []

    def silent(self, listener: str, count: int) -> int:
        """Connect and say nothing, not even what TLS begins with."""
        return self._come(count, lambda: self._connected(listener))

    def greeted(self, listener: str, count: int) -> int:
        """Say what a client of this listener says first, and hear the answer."""
        return self._come(count, lambda: self._greeted(listener))

    async def links(self, count: int) -> int:
        """As clients of the cluster do, with their hello."""
        before = len(self._links)

        async def dial(_: int) -> None:
            with contextlib.suppress(LogError, OSError):
                self._links.append(await dial_node(self._kit, self._node))

        for start in range(0, count, _CALLERS):
            await asyncio.gather(*map(dial, range(start, min(start + _CALLERS, count))))
        return len(self._links) - before

    async def leave_links(self) -> None:
        for link in self._links:
            link.abort("it was idle")
        self._links.clear()

    def leave(self) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _come(self, count: int, arrive: Callable[[], socket.socket | None]) -> int:
        with ThreadPoolExecutor(_CALLERS) as pool:
            came = [found for found in pool.map(lambda _: arrive(), range(count)) if found is not None]
        self._open += came
        return len(came)

    def _connected(self, listener: str) -> socket.socket | None:
        try:
            return socket.create_connection((HOST, self._ports[listener]), timeout=patient(_ANSWER_S))
        except OSError:
            return None

    def _greeted(self, listener: str) -> socket.socket | None:
        connection = self._connected(listener)
        if connection is None:
            return None
        try:
            connection = self._tls(listener).wrap_socket(connection)
            connection.sendall(_GREETING[listener])
            if connection.recv(4_096):
                return connection
        except OSError:
            pass
        connection.close()
        return None

    def _tls(self, listener: str) -> ssl.SSLContext:
        place = self._kit.folder / "certificates"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(place / "ca.crt")
        context.load_cert_chain(place / f"{OPERATOR}.crt", place / f"{OPERATOR}.key")
        context.set_alpn_protocols(["h2" if listener == "liftbridge" else "http/1.1"])
        return context


_GREETING: Final = {
    "http": b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n",
    "liftbridge": PREFACE + settings_frame({}),
}
