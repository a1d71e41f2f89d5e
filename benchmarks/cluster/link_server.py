"""The serving processes of `tidelog bench link`: a node at the end of a link, and a bare TLS socket as the floor.

    python -m benchmarks.cluster.link_server link|socket <folder with server.crt, server.key, ca.crt>

Prints its port on one line and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Final

from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkListener, LinkTls, LinkTlsFiles

HOST: Final = "127.0.0.1"
SERVER: Final = "server"
CLIENT: Final = "client"
CLUSTER: Final = bytes(range(16))
NOTE: Final = 1
"""One way, counted."""
ECHO: Final = 2
COUNT: Final = 3
"""How many notes came so far."""
STORE: Final = 4
"""A large body, answered with nothing."""
_BODY_BYTES: Final = 1024 * 1024


def link_end(folder: Path, name: str) -> LinkEnd:
    files = LinkTlsFiles(certificate=folder / f"{name}.crt", key=folder / f"{name}.key", authority=folder / "ca.crt")
    return LinkEnd(identity=lambda: LinkIdentity(node=name, cluster=CLUSTER), tls=LinkTls(files))


class BenchHandler:
    """Counts, echoes and throws away."""

    def __init__(self) -> None:
        self.notes = 0

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        self.notes += 1

    def on_turn(self) -> None:
        """Nothing is put off."""

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        if kind == COUNT:
            return str(self.notes).encode()
        return body if kind == ECHO else b""


async def serve_link(folder: Path) -> None:
    links: list[Link] = []
    listener = LinkListener(f"{HOST}:0", end=link_end(folder, SERVER), handler=BenchHandler(), on_link=links.append)
    await listener.start()
    _say(listener.port)
    await asyncio.to_thread(os.read, 0, 1)
    await listener.close()
    for link in links:
        link.abort("the benchmark is over")


def serve_socket(folder: Path) -> None:
    """Receives whole bodies into one buffer; after a body whose first byte is 1 it answers with one byte."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / f"{SERVER}.crt", folder / f"{SERVER}.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    threading.Thread(target=_exit_with_input, daemon=True).start()
    with socket.create_server((HOST, 0)) as listening:
        _say(listening.getsockname()[1])
        connection, _ = listening.accept()
        with context.wrap_socket(connection, server_side=True) as secure:
            body = memoryview(bytearray(_BODY_BYTES))
            while _receive_whole(secure, body):
                if body[0] == 1:
                    secure.sendall(b"\1")


def _receive_whole(secure: ssl.SSLSocket, body: memoryview) -> bool:
    filled = 0
    while filled < len(body):
        count = secure.recv_into(body[filled:])
        if not count:
            return False
        filled += count
    return True


def _exit_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


def _say(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "link":
        asyncio.run(serve_link(folder))
    else:
        serve_socket(folder)


if __name__ == "__main__":
    main()
