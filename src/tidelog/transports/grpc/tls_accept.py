"""TLS for accepted connections of an event loop, without a receive buffer for each of them.

asyncio gives every TLS connection 256 KiB to receive into when it is accepted, before anything came: five thousand idle
callers cost more than a gigabyte, and the allocator keeps it. What is received is handed to OpenSSL before the loop
looks at another connection, so all connections of a listener can share one buffer.

What a caller must keep: give it to `create_server` as the protocol factory, without `ssl`.

TA1  A connection that is idle, or that has not said a word, has no buffer of its own.
TA2  At most `handshakes_max` callers are in their handshake; more are hung up on at once, and each has `handshake_s`.
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
    """`make` makes the protocol that speaks over TLS; it hears of a connection after the handshake."""

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
        """Callers that were hung up on because there were too many."""

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
        """For one more handshake (TA2)."""
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
        # The base class hands the part of its view that was filled to OpenSSL, in the call after `get_buffer` (TA1).
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
        """The handshake has ended, well or not; why it failed is between OpenSSL and the caller."""
        if not waiter.cancelled():
            waiter.exception()
        if self._has_place:
            self._has_place = False
            self._accept.give_place_back()
