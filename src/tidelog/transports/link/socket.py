"""A socket of a link, with TLS or (in development) plain, non-blocking and without copies.

TLS runs on the descriptor itself: asyncio's own TLS copies every byte through two more buffers. What a caller must
keep: all calls from the event loop's thread; after `send` took nothing, send the same bytes again, as TLS requires.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import ssl
import sys
import termios
import traceback
from typing import Final

from tidelog.errors import PeerUnreachable, TlsFailed
from tidelog.units import KIB

_NOT_SENT_BYTES_MAX: Final = 128 * KIB
"""The most unsent bytes in the kernel: a heartbeat can no longer overtake them."""
_WANT_NOW: Final = (BlockingIOError, InterruptedError)


class LinkSocket:
    """One connection. `name` is for log messages, until the peer's name is known."""

    def __init__(self, connection: socket.socket, *, name: str) -> None:
        self.name = name
        self._socket = connection
        self._secure: ssl.SSLSocket | None = None
        self.read_wants_write = False
        self.send_wants_read = False
        self._waiting = bytearray(4)
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # not TCP, or a kernel without these: slower, not wrong
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES_MAX)

    def fileno(self) -> int:
        return self._socket.fileno()

    async def secure(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        """The TLS handshake. The caller bounds its time."""
        try:
            secure = context.wrap_socket(self._socket, server_side=server_side, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            _close_lost(error)
            raise TlsFailed(peer=self.name, problem=words(error)) from error
        self._socket = self._secure = secure
        while True:
            try:
                secure.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self.wait_readable()
            except ssl.SSLWantWriteError:
                await self.wait_writable()
            except (OSError, ValueError) as error:
                raise TlsFailed(peer=self.name, problem=words(error)) from error

    def certificate(self) -> bytes:
        """The peer's certificate, in DER."""
        der = None if self._secure is None else self._secure.getpeercert(binary_form=True)
        if der is None:
            raise TlsFailed(peer=self.name, problem="it shows no certificate")
        return der

    def receive_into(self, view: memoryview) -> int | None:
        """How many bytes came; 0 at the end, None if there are none now. Raises OSError when the connection broke."""
        try:
            return self._socket.recv_into(view)
        except (ssl.SSLWantReadError, *_WANT_NOW):
            return None
        except ssl.SSLWantWriteError:
            self.read_wants_write = True
            return None

    def fill(self, view: memoryview) -> int | None:
        """As `receive_into`, again and again until `view` is full or no more is there. For large bodies."""
        filled, size = 0, len(view)
        receive_into = self._socket.recv_into
        try:
            while filled < size:
                # TLS gives one record at a time; with the size given, Python need not determine it for every 16 KiB.
                count = receive_into(view[filled:], size - filled)
                if not count:
                    break  # the next call finds the end again
                filled += count
        except (ssl.SSLWantReadError, *_WANT_NOW):
            return filled or None
        except ssl.SSLWantWriteError:
            self.read_wants_write = True
            return filled or None
        return filled

    def send(self, view: memoryview) -> int:
        """How many bytes were taken; 0 if none can be now. Raises OSError when the connection broke."""
        try:
            return self._socket.send(view)
        except (ssl.SSLWantWriteError, *_WANT_NOW):
            return 0
        except ssl.SSLWantReadError:
            self.send_wants_read = True
            return 0

    def send_all(self, view: memoryview) -> int:
        """As `send`, again and again until all of `view` is taken or no more can be now. For large bodies."""
        sent, size = 0, len(view)
        send = self._socket.send
        try:
            while sent < size:
                sent += send(view[sent:])
        except (ssl.SSLWantWriteError, *_WANT_NOW):
            return sent
        except ssl.SSLWantReadError:
            self.send_wants_read = True
        return sent

    @property
    def has_more(self) -> bool:
        """Whether bytes are here, decrypted or not. Checking costs a tenth of a failed receive."""
        if self._secure is not None and self._secure.pending() > 0:
            return True
        fcntl.ioctl(self._socket, termios.FIONREAD, self._waiting)
        return int.from_bytes(self._waiting, sys.byteorder) > 0

    @property
    def has_pending(self) -> bool:
        """Whether decrypted bytes wait that no selector sees."""
        return self._secure is not None and self._secure.pending() > 0

    async def wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready, descriptor = loop.create_future(), self.fileno()
        loop.add_reader(descriptor, _resolve, ready)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)

    async def wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready, descriptor = loop.create_future(), self.fileno()
        loop.add_writer(descriptor, _resolve, ready)
        try:
            await ready
        finally:
            loop.remove_writer(descriptor)

    async def finish(self) -> None:
        """Make sure the peer can read the last bytes: shut down sending, and wait until it has closed."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            rest = memoryview(bytearray(4096))
            while True:
                count = self.receive_into(rest)
                if count == 0:
                    return
                if count is None:
                    await self.wait_readable()

    def close(self) -> None:
        # No TLS close: the link has its own (DONE), and a broken one must not wait for another.
        self._socket.close()


async def connect(address: str) -> LinkSocket:
    """A connection to `host:port`; the first of its addresses that answers."""
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    problem = "it has no address"
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PeerUnreachable(address=address, problem=words(error)) from error
    for family, kind, protocol, _, place in found:
        try:
            with contextlib.ExitStack() as unless_connected:
                connection = unless_connected.enter_context(socket.socket(family, kind, protocol))
                connection.setblocking(False)
                await loop.sock_connect(connection, place)
                unless_connected.pop_all()
                return LinkSocket(connection, name=address)
        except OSError as error:
            problem = words(error)
    raise PeerUnreachable(address=address, problem=problem)


def reached_host(listen: str, host: str) -> str:
    """The host of an address that is listened on, or `host` where that is every interface."""
    named = listen.rpartition(":")[0]
    return host if named in ("", "0.0.0.0", "[::]", "::") else named


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[::1]:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise PeerUnreachable(address=address, problem="it is not of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def words(error: Exception) -> str:
    """A foreign error in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"


def _close_lost(error: Exception) -> None:
    """For a connection that is reset already, `wrap_socket` takes the descriptor over and then fails: the socket is
    referenced by the traceback alone, and would stay open as long as the error is kept."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        lost = frame.f_locals.get("self")
        if isinstance(lost, ssl.SSLSocket):
            lost.close()


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
