"""The demo's link between boats and the cluster: a TCP forwarder that can be cut and restored.

It forwards to the first of its nodes that takes the call, as a load balancer in front of a cluster does. A cut ends
every connection at once, and new ones are closed as soon as they come. It forwards bytes and understands none of them:
TLS runs from end to end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Final

HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 65_536
_DIAL_S_MAX: Final = 5.0


class DemoLink:
    """Listens on `port` from the start, and forwards to one of `target_ports`, tried in turn."""

    def __init__(self, target_ports: Sequence[int]) -> None:
        self.target_ports = tuple(target_ports)
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._up = True
        threading.Thread(target=self._accept, name="demo-link", daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._up = False
            for one in self._open:
                _hang_up(one)

    def restore(self) -> None:
        with self._lock:
            self._up = True

    def close(self) -> None:
        self.cut()
        _hang_up(self._listener)  # closing alone would not wake the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), self._dial() as far:
            with self._lock:
                if not self._up:
                    return
                self._open |= {near, far}
            back = threading.Thread(target=_carry, args=(far, near), daemon=True)
            back.start()
            _carry(near, far)
            back.join()
            with self._lock:
                self._open -= {near, far}

    def _dial(self) -> socket.socket:
        for port in self.target_ports:
            with contextlib.suppress(OSError):
                far = socket.create_connection((HOST, port), timeout=_DIAL_S_MAX)
                far.settimeout(None)
                return far
        raise ConnectionRefusedError("no node takes the call")


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_READ_BYTES):
            sink.sendall(data)
    _hang_up(source)
    _hang_up(sink)


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
