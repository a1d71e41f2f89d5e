"""One call of gRPC on a stream of HTTP/2: messages in and out, a deadline, a status at the end.

It is also the context that handlers get, with the methods of grpc's own that they use: `read`, `write`, `abort`,
`time_remaining`, `auth_context`. Beyond that it has batches: `read_batch` gives everything that has come, `write_batch`
takes many messages at once. A message costs Python little compared with waking up for it.

GCA1  A call ends once, with one status; a client that cancelled it is sent nothing more.
GCA2  A client that sends faster than its handler reads is stopped by its window; a handler that writes faster than its
      client reads waits in `write`. Neither costs more memory than the limits in `GrpcOptions`.
GCA3  A deadline that has passed cancels the handler.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import grpc

from tidelog.transports.grpc.hpack import encode_headers
from tidelog.transports.grpc.http2_connection import Http2Connection
from tidelog.units import KIB, MIB

_PREFIX: Final = struct.Struct(">BI")
_PREFIX_BYTES: Final = _PREFIX.size
_BEGIN: Final = encode_headers(
    [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity")]
)
_OK: Final = encode_headers([(b"grpc-status", b"0")])
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """Limits of one server."""

    message_bytes_max: int = 4 * MIB
    unsent_bytes_max: int = 256 * KIB
    """How many bytes a handler may write ahead of its client."""
    connections_max: int = 4_096
    output_bytes_max: int = 4 * MIB
    """Answers to control frames for a peer that does not read: beyond this the connection is closed."""
    idle_ping_s: float = 30.0
    ping_answer_s: float = 20.0


class Ended(Exception):
    """The call is over with this status."""

    def __init__(self, status: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.status = status


class Line(Protocol):
    """The methods of a connection that a call needs."""

    http2: Http2Connection
    options: GrpcOptions
    writers: set[GrpcCall]
    """Calls whose handlers wait until their client has read more."""

    def flush_soon(self) -> None: ...

    def identity(self) -> Mapping[str, Sequence[bytes]]: ...


class GrpcCall:
    """Made by the connection when a request comes; receives its data; passed to the handler as its context."""

    def __init__(self, line: Line, stream: int, *, timeout_s: float | None, serialize: Callable[[Any], bytes]) -> None:
        self._line = line
        self._http2 = line.http2
        self.stream = stream
        self._serialize = serialize
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._messages: list[bytes] = []
        self._singles: deque[bytes] = deque()
        """Messages of a batch that is read one by one."""
        self._partial = bytearray()
        """Bytes of an incomplete message."""
        self._needed_bytes = _PREFIX_BYTES
        """How many bytes must have come before it is parsed again."""
        self._has_ended = False
        self._refusal: Ended | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._has_begun = False
        self.is_gone = False
        """The client cancelled it, or its connection broke."""
        self.task: asyncio.Task[None] | None = None

    # --- what comes ----------------------------------------------------------------------------------

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Bytes of the request."""
        if self._refusal is not None:
            self._consume()
            return
        data = b"".join(pieces)
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed_bytes:
                # Not parsed yet: a large message sent byte by byte would be copied for every byte.
                if not self._messages:
                    self._consume()  # or a message larger than the window would never be whole
                return
            data = bytes(self._partial)
        messages, position, size = self._messages, 0, len(data)
        self._needed_bytes = _PREFIX_BYTES
        unpack, bytes_max = _PREFIX.unpack_from, self._line.options.message_bytes_max
        while position + _PREFIX_BYTES <= size:
            flags, length = unpack(data, position)
            if flags or length > bytes_max:
                self._refuse(flags, length)
                break
            end = position + _PREFIX_BYTES + length
            if end > size:
                self._needed_bytes = end - position
                break
            messages.append(data[position + _PREFIX_BYTES : end])
            position = end
        self._partial = bytearray(data[position:])
        if not messages:
            self._consume()
        self._wake_reader()

    def _consume(self) -> None:
        """The handler has taken every whole message: the client may send more (GCA2)."""
        self._http2.consumed(self.stream, self._http2.taken(self.stream))

    def _refuse(self, flags: int, length: int) -> None:
        if flags:
            self._refusal = Ended(grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not taken; send identity")
        else:
            words = f"a message of {length} bytes is over the limit of {self._line.options.message_bytes_max}"
            self._refusal = Ended(grpc.StatusCode.RESOURCE_EXHAUSTED, words)

    def end(self) -> None:
        """The client has ended its half of the stream."""
        if self._partial and self._refusal is None:
            self._refusal = Ended(grpc.StatusCode.INTERNAL, "the request ends in the middle of a message")
        self._has_ended = True
        self._wake_reader()

    def give_up(self) -> None:
        """The client is gone (GCA1)."""
        self.is_gone = True
        if self.task is not None:
            self.task.cancel()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read_batch(self) -> list[bytes]:
        """All messages that have come, at least one; nothing at the end of the request."""
        while not self._messages:
            if self._refusal is not None:
                raise self._refusal
            if self._has_ended:
                return []
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        batch, self._messages = self._messages, []
        self._consume()
        self._line.flush_soon()
        return batch

    async def only_message(self) -> bytes:
        """The message of a call that has one."""
        found: list[bytes] = []
        while batch := await self.read_batch():
            found += batch
            if len(found) > 1:
                break
        if len(found) != 1:
            raise Ended(grpc.StatusCode.UNIMPLEMENTED, "this method takes one message, neither none nor several")
        return found[0]

    def __aiter__(self) -> GrpcCall:
        return self

    async def __anext__(self) -> bytes:
        if not self._singles:
            self._singles = deque(await self.read_batch())
            if not self._singles:
                raise StopAsyncIteration
        return self._singles.popleft()

    # --- what goes -----------------------------------------------------------------------------------

    async def write(self, message: Any) -> None:
        """One message. Waits while the client does not read (GCA2)."""
        await self.write_batch((self._serialize(message),))

    async def write_batch(self, messages: Sequence[bytes]) -> None:
        """Many, serialized already."""
        self._begin()
        parts: list[bytes] = []
        for message in messages:
            parts += _PREFIX.pack(0, len(message)), message
        self._http2.send(self.stream, b"".join(parts))
        self._line.flush_soon()
        while self._http2.unsent(self.stream) > self._line.options.unsent_bytes_max and not self.is_gone:
            self._writer = asyncio.get_running_loop().create_future()
            self._line.writers.add(self)
            await self._writer

    def sent_some(self) -> bool:
        """The connection could send; returns whether the handler may continue."""
        writer = self._writer
        if writer is None or writer.done():
            return True
        if self._http2.unsent(self.stream) > self._line.options.unsent_bytes_max:
            return False
        writer.set_result(None)
        return True

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._http2.send_headers(self.stream, _BEGIN)

    def finish(self, status: grpc.StatusCode = grpc.StatusCode.OK, words: str = "") -> None:
        """The last message that is sent (GCA1)."""
        if self.is_gone:
            return
        self.is_gone = True
        trailers = _OK
        if status is not grpc.StatusCode.OK:
            number = str(status.value[0]).encode()
            trailers = encode_headers([(b"grpc-status", number), (b"grpc-message", percent_encoded(words))])
        if not self._has_begun:
            trailers = _BEGIN + trailers
        self._http2.finish(self.stream, trailers)
        self._line.flush_soon()

    # --- what handlers ask ---------------------------------------------------------------------------

    async def abort(self, status: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call. Does not return."""
        raise Ended(status, details)

    def time_remaining(self) -> float | None:
        return None if self._deadline_s is None else max(self._deadline_s - time.monotonic(), 0.0)

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._line.identity()


def timeout_of(value: bytes | None) -> float | None:
    """The header grpc-timeout, in seconds. An unreadable one counts as none: the client keeps its own time."""
    found = None if value is None else _TIMEOUT.fullmatch(value)
    return None if found is None else int(found[1]) * _UNIT_S[found[2]]


def percent_encoded(words: str) -> bytes:
    """The message of a status in the form of a header."""
    data = words.encode(errors="replace")
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in data)
