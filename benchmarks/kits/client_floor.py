"""The floor of fetching in `tidelog bench client`: a bare TLS socket in a process of its own, which sends from memory.

    python -m benchmarks.kits.client_floor <folder with <name>.crt, <name>.key, ca.crt> <name>

Prints its port on one line and serves one connection after the other until its standard input ends. A caller sends
eight bytes, a count, and is sent so many.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from benchmarks.kits.cluster_kit import HOST
from benchmarks.kits.measure import serving_process
from tidelog.units import MIB

COUNT_BYTES: Final = 8
_BODY_BYTES: Final = MIB


class FloorFailed(RuntimeError):
    """The serving process hung up."""


def tls_context(folder: Path, name: str, *, server_side: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def floor_serving(folder: Path, name: str) -> AbstractContextManager[int]:
    """A serving process, and its port."""
    return serving_process("benchmarks.kits.client_floor", str(folder), name)


def receive_floor(connection: ssl.SSLSocket, count: int) -> float:
    """Seconds to receive so many bytes, from asking for them."""
    room = memoryview(bytearray(_BODY_BYTES))
    start = time.perf_counter()
    connection.sendall(count.to_bytes(COUNT_BYTES, "little"))
    left = count
    while left:
        came = connection.recv_into(room[: min(left, len(room))])
        if not came:
            raise FloorFailed("the floor hung up")
        left -= came
    return time.perf_counter() - start


def connect_floor(folder: Path, name: str, port: int) -> ssl.SSLSocket:
    return tls_context(folder, name, server_side=False).wrap_socket(socket.create_connection((HOST, port)))


def _serve(folder: Path, name: str) -> None:
    threading.Thread(target=_exit_with_input, daemon=True).start()
    context = tls_context(folder, name, server_side=True)
    body = memoryview(secrets.token_bytes(_BODY_BYTES))
    with socket.create_server((HOST, 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            connection, _ = listening.accept()
            with context.wrap_socket(connection, server_side=True) as secure:
                while asked := secure.recv(COUNT_BYTES):
                    left = int.from_bytes(asked, "little")
                    while left:
                        size = min(left, len(body))
                        secure.sendall(body[:size])
                        left -= size


def _exit_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2])
