"""A gRPC client for measuring: raw HTTP/2, so that a server and not its client is what is measured.

grpcio's client in Python spends more than a hundred microseconds on each message of a stream. This one sends messages
that were made before, many in one write, and counts what comes back; clients in compiled languages do about as much.

GP1  What is counted are whole answers that were received. Nobody looks into them: count what the server holds.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Final, cast

from tidelog.errors import BadMessage
from tidelog.transports.grpc.hpack import Header, HeaderDecoder, encode_headers
from tidelog.transports.grpc.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    PREFACE,
    STREAM_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Http2FrameKind,
    Http2Setting,
    frame,
    number_of,
    settings_frame,
    settings_of,
    window_frame,
)
from tidelog.units import KIB

_STREAM: Final = 1
_PREFIX: Final = struct.Struct(">BI")
_WINDOW: Final = WINDOW_MAX // 2
_FRAME_BYTES: Final = 16 * KIB


def grpc_message(data: bytes) -> bytes:
    """As it lies in a stream."""
    return _PREFIX.pack(0, len(data)) + data


class GrpcPump(asyncio.Protocol):
    """One call on one connection."""

    def __init__(self, path: str, *, grants: bool = True) -> None:
        """Without `grants` the peer may send what HTTP/2 allows at first, and no more: a client that takes nothing."""
        self._path = path
        self._grants = grants
        self._transport: asyncio.Transport | None = None
        self._input = b""
        self._partial = b""
        self._decoder = HeaderDecoder()
        self._stream_left = WINDOW_DEFAULT
        self._connection_left = WINDOW_DEFAULT
        self._peer_window = WINDOW_DEFAULT
        self._taken = 0
        self._changed = asyncio.Event()
        self.answers = 0
        self.trailers: dict[bytes, bytes] = {}
        self.is_closed = False

    @classmethod
    async def dial(
        cls, host: str, port: int, path: str, *, tls: ssl.SSLContext | None = None, grants: bool = True
    ) -> GrpcPump:
        loop = asyncio.get_running_loop()
        _, pump = await loop.create_connection(lambda: cls(path, grants=grants), host, port, ssl=tls)
        return pump

    # --- what goes -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        headers: list[Header] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", self._path.encode()),
            (b":authority", b"bench"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        window = _WINDOW if self._grants else WINDOW_DEFAULT
        self._transport.write(
            PREFACE
            + settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: window, Http2Setting.MAX_FRAME_SIZE: 4 * _FRAME_BYTES})
            + (window_frame(0, _WINDOW) if self._grants else b"")
            + frame(Http2FrameKind.HEADERS, encode_headers(headers), flags=END_HEADERS, stream=_STREAM)
        )

    async def send(self, messages: bytes) -> None:
        """Messages as `grpc_message` makes them; waits for the peer's windows."""
        position = 0
        while position < len(messages):
            while (room := min(self._stream_left, self._connection_left)) <= 0:
                await self.wait_changed()
            pieces = []
            end = min(position + room, len(messages))
            self._stream_left -= end - position
            self._connection_left -= end - position
            while position < end:
                piece = messages[position : min(position + _FRAME_BYTES, end)]
                pieces.append(frame(Http2FrameKind.DATA, piece, stream=_STREAM))
                position += len(piece)
            assert self._transport is not None
            self._transport.write(b"".join(pieces))

    def end(self) -> None:
        """Half-close."""
        assert self._transport is not None
        self._transport.write(frame(Http2FrameKind.DATA, flags=END_STREAM, stream=_STREAM))

    async def wait_changed(self) -> None:
        """Until something has come. Raises when nothing will any more."""
        if self.is_closed:
            raise BadMessage(problem=f"the call ended early: {self.trailers}")
        self._changed.clear()
        await self._changed.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- what comes ----------------------------------------------------------------------------------

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        data = self._input + data
        position, size = 0, len(data)
        while position + HEAD_BYTES <= size:
            high, low, kind, flags, number = HEAD.unpack_from(data, position)
            end = position + HEAD_BYTES + (high << 16 | low)
            if end > size:
                break
            self._take(kind, flags, number & STREAM_MAX, data[position + HEAD_BYTES : end])
            position = end
        self._input = data[position:]
        if self._taken > _WINDOW // 2:
            assert self._transport is not None
            self._transport.write(window_frame(0, self._taken) + window_frame(_STREAM, self._taken))
            self._taken = 0
        self._changed.set()

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == Http2FrameKind.DATA:
            self._taken += len(payload)
            self._count(payload)
        elif kind == Http2FrameKind.WINDOW_UPDATE:
            if number:
                self._stream_left += number_of(payload)
            else:
                self._connection_left += number_of(payload)
        elif kind == Http2FrameKind.SETTINGS and not flags & ACK:
            window = dict(settings_of(payload)).get(Http2Setting.INITIAL_WINDOW_SIZE, self._peer_window)
            self._stream_left += window - self._peer_window
            self._peer_window = window
            assert self._transport is not None
            self._transport.write(frame(Http2FrameKind.SETTINGS, flags=ACK))
        elif kind == Http2FrameKind.PING and not flags & ACK:
            assert self._transport is not None
            self._transport.write(frame(Http2FrameKind.PING, payload, flags=ACK))
        elif kind == Http2FrameKind.HEADERS:
            self.trailers |= dict(self._decoder.decode(payload))
        self.is_closed |= kind in (Http2FrameKind.RST_STREAM, Http2FrameKind.GOAWAY) or (
            kind == Http2FrameKind.HEADERS and bool(flags & END_STREAM)
        )

    def _count(self, payload: bytes) -> None:
        data = self._partial + payload
        position, size = 0, len(data)
        while position + _PREFIX.size <= size:
            end = position + _PREFIX.size + _PREFIX.unpack_from(data, position)[1]
            if end > size:
                break
            self.answers += 1
            position = end
        self._partial = data[position:]
