"""TLS for accepted connections of an event loop, without a receive buffer for each of them.

asyncio gives every TLS connection 256 KiB to receive into when it is accepted, before anything came: five thousand idle
callers cost more than a gigabyte, and the allocator keeps it. Received bytes are passed to OpenSSL before the loop
turns to another connection, so all connections of a listener can share one buffer.

What a caller must keep: give it to `create_server` as the protocol factory, without `ssl`.

TA1  A connection that is idle, or has not sent anything, has no buffer of its own.
TA2  At most `handshakes_max` callers are in their handshake, for at most `handshake_s`; more are closed at once.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Final

from tidelog.units import KIB

_RECORD_BYTES: Final = 16 * KIB
"""The most that OpenSSL gives at once, whatever it is asked for."""
_RECEIVE_BYTES: Final = 256 * KIB


class TlsAccept:
    """`make` makes the protocol on top of TLS; it hears of a connection after the handshake."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        *,
        handshakes_max: int,
        handshake_s: int | None = None,
    ) -> None:
        self._context = context
        self._make = make
        self._handshake_s = handshake_s
        self._handshakes_max = handshakes_max
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self.handshakes = 0
        """Callers in their handshake."""
        self.refused = 0
        """Connections closed because there were too many."""

    def __call__(self) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        connection = _TlsConnection(
            loop, self._make(), self._context, waiter, server_side=True, ssl_handshake_timeout=self._handshake_s
        )
        connection.share(self, self._buffer)
        waiter.add_done_callback(connection.shaken)
        return connection

    def take_place(self) -> bool:
        """Whether there is room for one more handshake (TA2)."""
        if self.handshakes >= self._handshakes_max:
            self.refused += 1
            return False
        self.handshakes += 1
        return True

    def give_place_back(self) -> None:
        self.handshakes -= 1


class _TlsConnection(SSLProtocol):
    max_size = _RECORD_BYTES

    def share(self, accept: TlsAccept, buffer: memoryview) -> None:
        self._accept = accept
        self._has_place = False
        # The base class passes the filled part of its view to OpenSSL, in the call after `get_buffer` (TA1).
        self._ssl_buffer = bytearray()
        self._ssl_buffer_view = buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._has_place = self._accept.take_place()
        if self._has_place:
            super().connection_made(transport)
        else:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

    def get_buffer(self, n: int) -> memoryview:
        return self._ssl_buffer_view

    def shaken(self, waiter: asyncio.Future[None]) -> None:
        """The handshake has ended, successfully or not; a failure is not reported further."""
        if not waiter.cancelled():
            waiter.exception()
        if self._has_place:
            self._has_place = False
            self._accept.give_place_back()
