"""A gRPC server in Python for many small messages: its own HTTP/2 under handlers as grpc's servers take them.

grpcio's server wakes the event loop through a thread for every message, which costs more than a hundred microseconds of
processor time each. Here everything from one read of the socket is handled in one turn, and all answers of a turn leave
in one write. Clients see no difference: it is gRPC over HTTP/2, with TLS and ALPN or in the clear.

Not offered: compression, reflection, metadata for handlers. Handlers are coroutines that write through their context,
or return the one answer.

What a caller must keep: `bind` once, then `start` in a running loop, `stop` at the end.

GS1  A handler's exception ends its own call alone, with UNKNOWN, and one line in the log.
GS2  Connections, streams of each, headers, messages and unsent data have limits; a peer that exceeds them or breaks the
     protocol loses its own connection and nothing else.
GS3  A connection that was silent for `idle_ping_s` is pinged, and closed when no answer comes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import grpc

from tidelog.transports.grpc.call import Ended, GrpcCall, GrpcOptions, timeout_of
from tidelog.transports.grpc.hpack import Header, encode_headers
from tidelog.transports.grpc.http2_connection import ConnectionFailed, Http2Connection, Received, Reset, StreamOpened
from tidelog.transports.grpc.http2_frames import Code
from tidelog.transports.grpc.tls_accept import TlsAccept

Status = grpc.StatusCode
_BACKLOG: Final = 512
_NOT_GRPC: Final = encode_headers([(b":status", b"415")])
_CLOSE_S: Final = 1.0


class _Details(NamedTuple):
    """The key by which grpc finds handlers."""

    method: str
    invocation_metadata: tuple[tuple[str, bytes], ...] = ()


class GrpcServer:
    """Started and stopped once."""

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        *,
        options: GrpcOptions | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.handlers = list(handlers)
        self.options = options or GrpcOptions()
        self.log = log
        self.connections: set[GrpcConnection] = set()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def bind(self, host: str, port: int) -> int:
        """Bind the port; clients that dial wait until `start`. Raises OSError where it is not available."""
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(infos, key=lambda info: info[0] != socket.AF_INET)
        # With the protocol named: asyncio sets TCP_NODELAY only on such sockets, and without it a window's update waits
        # 40 ms for an ACK of the peer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._socket = listener
        return int(listener.getsockname()[1])

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        assert self._socket is not None, "bind() first"
        loop = asyncio.get_running_loop()
        accept: Callable[[], asyncio.BaseProtocol] = partial(GrpcConnection, self)
        if tls is not None:
            accept = TlsAccept(tls, partial(GrpcConnection, self), handshakes_max=self.options.connections_max)
        self._server = await loop.create_server(accept, sock=self._socket, backlog=_BACKLOG)

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls; running ones may end within `grace_s`, then they end with UNAVAILABLE."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        connections = list(self.connections)
        for connection in connections:
            connection.go_away()
        tasks = [call.task for connection in connections for call in connection.calls.values() if call.task]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for connection in connections:
            connection.end_calls(Ended(Status.UNAVAILABLE, "this server is stopping"))
        if any(task for task in tasks if not task.done()):
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        for connection in connections:
            connection.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()  # its peer does not read
            await asyncio.sleep(0)

    def closed(self, connection: GrpcConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()

    def opened(self, connection: GrpcConnection) -> None:
        self.connections.add(connection)
        self._all_closed.clear()

    def handler(self, path: str) -> Any:
        """The handler of a method, or None."""
        for generic in self.handlers:
            found = generic.service(cast(Any, _Details(path)))
            if found is not None:
                return found
        return None


class GrpcConnection(asyncio.Protocol):
    """The protocol of one client's connection."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self.options = server.options
        self.http2 = Http2Connection()
        self.calls: dict[int, GrpcCall] = {}
        self.writers: set[GrpcCall] = set()
        self._transport: asyncio.Transport | None = None
        self._identity: Mapping[str, Sequence[bytes]] = {}
        self._flush_is_due = False
        self._heard_s = time.monotonic()
        self._pinged_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- the socket ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        secure: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if secure is not None:
            certificate = secure.getpeercert(binary_form=True)
            if certificate is not None:
                self._identity = {"x509_pem_cert": (ssl.DER_cert_to_PEM_cert(certificate).encode(),)}
        is_http2 = secure is None or secure.selected_alpn_protocol() == "h2"
        if not is_http2 or len(self._server.connections) >= self.options.connections_max:
            transport.close()
            return
        self._server.opened(self)
        self._look_later()
        self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.closed(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self.calls.values()):
            call.give_up()

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        for event in self.http2.receive(data):
            match event:
                case Received(stream=number, pieces=pieces, has_ended=has_ended):
                    call = self.calls.get(number)
                    if call is not None:
                        call.feed(pieces)
                        if has_ended:
                            call.end()
                    else:
                        self.http2.consumed(number, sum(map(len, pieces)))
                case StreamOpened(stream=number, headers=headers, has_ended=has_ended):
                    self._open(number, headers, has_ended=has_ended)
                case Reset(stream=number):
                    call = self.calls.get(number)
                    if call is not None:
                        call.give_up()
                case ConnectionFailed(problem=problem):
                    self._server.log(f"grpc connection closed reason={problem[:100]!a}")
        self._flush()
        if self.http2.is_over:
            self.close()

    def pause_writing(self) -> None:
        self.http2.is_blocked = True

    def resume_writing(self) -> None:
        self.http2.is_blocked = False
        self._flush()

    def flush_soon(self) -> None:
        """Send everything that was written in this turn."""
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.http2.flush()
        output = self.http2.take_output()
        if output:
            transport.write(output)
            if transport.get_write_buffer_size() > self.options.output_bytes_max:
                transport.abort()  # its peer sends requests and does not read (GS2)
                return
        if self.writers:
            self.writers = {call for call in self.writers if not call.sent_some()}

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(self.options.idle_ping_s, self.options.ping_answer_s), self._look)

    def _look(self) -> None:
        """Check whether the peer still answers (GS3)."""
        now_s = time.monotonic()
        if self._pinged_s is not None and self._heard_s < self._pinged_s:
            if now_s - self._pinged_s >= self.options.ping_answer_s and self._transport is not None:
                self._transport.abort()
                return
        elif now_s - self._heard_s >= self.options.idle_ping_s:
            self._pinged_s = now_s
            self.http2.ping()
            self._flush()
        self._look_later()

    def identity(self) -> Mapping[str, Sequence[bytes]]:
        """The client's certificate, if it presented one."""
        return self._identity

    def go_away(self) -> None:
        self.http2.go_away()
        self._flush()

    def end_calls(self, ended: Ended) -> None:
        for call in list(self.calls.values()):
            call.finish(ended.status, str(ended))
            if call.task is not None:
                call.task.cancel()
        self._flush()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- calls ---------------------------------------------------------------------------------------

    def _open(self, number: int, headers: list[Header], *, has_ended: bool) -> None:
        if len(self.calls) >= self.http2.options.streams_max:
            # Its streams were cancelled as fast as they were opened, and their handlers have not ended yet (GS2).
            self.http2.reset(number, Code.REFUSED_STREAM)
            return
        fields = dict(headers)
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            self.http2.finish(number, _NOT_GRPC)
            return
        handler = self._server.handler(fields.get(b":path", b"").decode(errors="replace"))
        serialize = getattr(handler, "response_serializer", None) or _same
        timeout_s = timeout_of(fields.get(b"grpc-timeout"))
        call = GrpcCall(self, number, timeout_s=timeout_s, serialize=serialize)
        if handler is None:
            call.finish(Status.UNIMPLEMENTED, "there is no such method")
            return
        if fields.get(b"grpc-encoding", b"identity") != b"identity":
            call.finish(Status.UNIMPLEMENTED, "compressed messages are not taken; send identity")
            return
        self.calls[number] = call
        if has_ended:
            call.end()
        call.task = asyncio.get_running_loop().create_task(self._run(call, handler, timeout_s))
        # Not in `_run` itself: a task that is cancelled before its first step never gets there.
        call.task.add_done_callback(lambda _: self._ended(call))

    def _ended(self, call: GrpcCall) -> None:
        self.calls.pop(call.stream, None)
        self.writers.discard(call)

    async def _run(self, call: GrpcCall, handler: Any, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._handled(call, handler)
            if limit.expired():  # handlers may swallow their cancellation
                raise TimeoutError
            call.finish()
        except Ended as ended:
            call.finish(ended.status, str(ended))
        except TimeoutError:
            if limit.expired():
                call.finish(Status.DEADLINE_EXCEEDED, "the deadline has passed")
            else:
                self._failed(call, handler, "TimeoutError")
        except grpc.aio.AbortError:
            call.finish(Status.UNKNOWN, "the call was aborted")
        except asyncio.CancelledError:
            raise
        except Exception as error:  # GS1: a bug in a handler must not end the node
            self._failed(call, handler, repr(error))

    def _failed(self, call: GrpcCall, handler: Any, problem: str) -> None:
        self._server.log(f"grpc handler failed problem={problem[:200]!a}")
        call.finish(Status.UNKNOWN, f"unexpected: {problem}"[:200])

    @staticmethod
    async def _handled(call: GrpcCall, handler: Any) -> None:
        read = handler.request_deserializer or _same
        if handler.request_streaming and handler.response_streaming:
            await handler.stream_stream(call, call)
        elif handler.response_streaming:
            await handler.unary_stream(read(await call.only_message()), call)
        else:
            assert not handler.request_streaming, "no method of ours takes many messages and gives one"
            await call.write(await handler.unary_unary(read(await call.only_message()), call))


def _same(message: Any) -> Any:
    return message
