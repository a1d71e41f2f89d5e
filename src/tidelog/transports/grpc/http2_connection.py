"""The server's end of one HTTP/2 connection (RFC 9113), without I/O: bytes in, events and bytes out.

It does what a gRPC server needs, in batches: frames that come together are passed on together, and data sent in one
turn becomes few large frames. Priorities are ignored, nothing is pushed.

What a caller must keep: give every received byte to `receive`; send what `take_output` gives after each call; report
with `consumed` what the program has taken of a request, or the peer may send no more; drop the connection after
`ConnectionFailed`.

HT1  Data beyond a limit is not accepted: a peer that exceeds a window, a size or a number of streams loses the stream
     or the connection. So at most `connection_window_bytes` wait here for the program.
HT2  Nothing is sent beyond the peer's windows, nor while `is_blocked`. Waiting data is in `unsent`.
HT3  `receive` never raises: at worst the connection ends with GOAWAY and `ConnectionFailed`.
HT4  After `finish` or `reset` of a stream, or its `Reset`, there are no more events of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.errors import BadMessage
from tidelog.transports.grpc.hpack import LIST_BYTES_MAX, Header, HeaderDecoder
from tidelog.transports.grpc.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    HEAD,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    STREAM_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Code,
    Http2FrameKind,
    Http2Setting,
    frame,
    frame_head,
    goaway_frame,
    number_of,
    reset_frame,
    settings_frame,
    settings_of,
    window_frame,
)
from tidelog.units import KIB, MIB

_SENT_FRAME_BYTES_MAX: Final = 64 * KIB
_TURN_BYTES: Final = 64 * KIB
"""How much one stream sends before the next one gets its turn."""
_PRIORITY_BYTES: Final = 5
_PING_BYTES: Final = 8
_SETTING_BYTES: Final = 6
_CONTINUATIONS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Options:
    """The limits that the peer is granted."""

    streams_max: int = 1_024
    stream_window_bytes: int = 512 * KIB
    connection_window_bytes: int = 8 * MIB
    frame_bytes_max: int = 64 * KIB
    header_block_bytes_max: int = LIST_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOpened:
    """A request. `has_ended`: nothing follows its headers."""

    stream: int
    headers: list[Header]
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The new data of a request's body, in order. It counts against the window until `consumed`."""

    stream: int
    pieces: list[bytes]
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The peer cancelled a stream, or broke the protocol on it."""

    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFailed:
    """The connection is over; send what is left to send and close it."""

    problem: str


Event: TypeAlias = StreamOpened | Received | Reset | ConnectionFailed


class _ConnectionBroken(Exception):
    def __init__(self, code: Code, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class _Stream:
    __slots__ = ("has_ended_here", "has_ended_there", "outbox", "send_left", "taken", "uncredited", "unsent")

    def __init__(self, send_left: int) -> None:
        self.send_left = send_left
        self.outbox: deque[bytes] = deque()
        self.unsent = 0
        self.taken = 0
        """Received and not consumed yet."""
        self.uncredited = 0
        """Consumed, and not granted to the peer again yet."""
        self.has_ended_here = False
        self.has_ended_there = False


class Http2Connection:
    """One for each accepted connection."""

    def __init__(self, options: Http2Options | None = None) -> None:
        self.options = options or Http2Options()
        self._decoder = HeaderDecoder()
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._input = b""
        self._output: list[bytes] = []
        self._events: list[Event] = []
        self._gathered: dict[int, Received] = {}
        self._has_preface = False
        self._has_settings = False
        self._header_block: tuple[int, int, list[bytes]] | None = None
        """Stream, flags and pieces of headers that go on in the next frame."""
        self._send_left = WINDOW_DEFAULT
        self._peer_window = WINDOW_DEFAULT
        self._peer_frame_bytes = FRAME_BYTES_DEFAULT
        self._taken = 0
        self._uncredited = 0
        self._waiting: dict[int, _Stream] = {}
        """Streams with something to send, in round-robin order."""
        self._endings: dict[int, bytes] = {}
        """Trailers to send after the last byte of a stream."""
        self.is_blocked = False
        """Set while the socket takes no more; call `flush` after it does again."""
        self.is_over = False
        self._goes_away = False
        self._start()

    def _start(self) -> None:
        options = self.options
        settings = {
            Http2Setting.MAX_CONCURRENT_STREAMS: options.streams_max,
            Http2Setting.INITIAL_WINDOW_SIZE: options.stream_window_bytes,
            Http2Setting.MAX_FRAME_SIZE: options.frame_bytes_max,
            Http2Setting.MAX_HEADER_LIST_SIZE: LIST_BYTES_MAX,
        }
        self._output.append(settings_frame(settings))
        self._output.append(window_frame(0, options.connection_window_bytes - WINDOW_DEFAULT))

    # --- what comes ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """The events in these bytes (HT3)."""
        if self.is_over:
            return []
        self._input = self._input + data if self._input else data
        try:
            self._read_frames()
        except _ConnectionBroken as broken:
            self._fail(broken.code, str(broken))
        except BadMessage as error:
            self._fail(Code.COMPRESSION_ERROR, error.problem)
        self.flush()
        events, self._events = self._events, []
        self._gathered.clear()
        return events

    def _fail(self, code: Code, problem: str) -> None:
        self.is_over = True
        self._output.append(goaway_frame(self._last_stream, code, problem.encode()[:100]))
        self._events.append(ConnectionFailed(problem=problem))

    def _read_frames(self) -> None:
        data, position = self._input, 0
        if not self._has_preface:
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                return
            if not data.startswith(PREFACE):
                raise _ConnectionBroken(Code.PROTOCOL_ERROR, "this is no HTTP/2")
            self._has_preface = True
            position = len(PREFACE)
        size, frame_bytes_max = len(data), self.options.frame_bytes_max
        streams, unpack_head = self._streams, HEAD.unpack_from
        try:
            while position + HEAD_BYTES <= size:
                high, low, kind, flags, number = unpack_head(data, position)
                length = high << 16 | low
                if length > frame_bytes_max:
                    raise _ConnectionBroken(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
                begin = position + HEAD_BYTES
                end = begin + length
                if end > size:
                    return
                position = end
                if not kind and not flags and number in streams and self._header_block is None:
                    self._take(number, streams[number], data[begin:end])  # the usual case
                else:
                    self._read_frame(kind, flags, number & STREAM_MAX, data[begin:end])
        finally:
            self._input = data[position:]

    def _read_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._has_settings and kind != Http2FrameKind.SETTINGS:
            raise _ConnectionBroken(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if (self._header_block is not None) != (kind == Http2FrameKind.CONTINUATION):
            raise _ConnectionBroken(Code.PROTOCOL_ERROR, "headers are continued by another frame, or from nowhere")
        read = _READERS.get(kind)
        if read is not None:
            read(self, flags, number, payload)  # unknown frames are skipped

    def _read_data(self, flags: int, number: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number)
            self._credit(len(payload))  # for a stream that has ended meanwhile
            return
        content = _without_padding(payload, flags)
        padding_bytes = len(payload) - len(content)
        self._take(number, stream, content, padding_bytes=padding_bytes)
        self.consumed(number, padding_bytes)
        if flags & END_STREAM and number in self._streams:
            self._ended_there(number, stream)

    def _take(self, number: int, stream: _Stream, content: bytes, *, padding_bytes: int = 0) -> None:
        size = len(content) + padding_bytes
        if stream.has_ended_there:
            raise _ConnectionBroken(Code.STREAM_CLOSED, f"data after the end of stream {number}")
        if self._taken + self._uncredited + size > self.options.connection_window_bytes:
            raise _ConnectionBroken(Code.FLOW_CONTROL_ERROR, "more data than granted")
        if stream.taken + stream.uncredited + size > self.options.stream_window_bytes:
            self._credit_later(size)
            self._drop(number, Code.FLOW_CONTROL_ERROR)
            return
        stream.taken += size
        self._taken += size
        if content:
            self._gather(number).pieces.append(content)

    def _gather(self, number: int) -> Received:
        gathered = self._gathered.get(number)
        if gathered is None:
            gathered = self._gathered[number] = Received(stream=number, pieces=[], has_ended=False)
            self._events.append(gathered)
        return gathered

    def _ended_there(self, number: int, stream: _Stream) -> None:
        stream.has_ended_there = True
        self._events.append(Received(stream=number, pieces=[], has_ended=True))

    def _read_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise _ConnectionBroken(Code.PROTOCOL_ERROR, f"a client cannot open stream {number}")
        content = _without_padding(payload, flags)
        if flags & PRIORITY:
            if len(content) < _PRIORITY_BYTES:
                raise _ConnectionBroken(Code.FRAME_SIZE_ERROR, "a priority is cut off")
            content = content[_PRIORITY_BYTES:]
        self._header_block = (number, flags, [content])
        if flags & END_HEADERS:
            self._end_headers()

    def _read_continuation(self, flags: int, number: int, payload: bytes) -> None:
        assert self._header_block is not None
        begun, _, pieces = self._header_block
        if begun != number:
            raise _ConnectionBroken(Code.PROTOCOL_ERROR, "headers are continued on another stream")
        pieces.append(payload)
        if len(pieces) > _CONTINUATIONS_MAX or sum(map(len, pieces)) > self.options.header_block_bytes_max:
            raise _ConnectionBroken(Code.ENHANCE_YOUR_CALM, "headers without end")
        if flags & END_HEADERS:
            self._end_headers()

    def _end_headers(self) -> None:
        assert self._header_block is not None
        number, flags, pieces = self._header_block
        self._header_block = None
        block = b"".join(pieces)
        if len(block) > self.options.header_block_bytes_max:
            raise _ConnectionBroken(Code.ENHANCE_YOUR_CALM, "headers without end")
        headers = self._decoder.decode(block)
        stream = self._streams.get(number)
        if stream is not None:
            self._read_trailers(number, stream, flags)
        elif number > self._last_stream:
            self._open(number, headers, has_ended=bool(flags & END_STREAM))

    def _read_trailers(self, number: int, stream: _Stream, flags: int) -> None:
        if stream.has_ended_there or not flags & END_STREAM:
            raise _ConnectionBroken(Code.PROTOCOL_ERROR, f"headers in the middle of stream {number}")
        self._ended_there(number, stream)

    def _open(self, number: int, headers: list[Header], *, has_ended: bool) -> None:
        self._last_stream = number
        if self._goes_away or len(self._streams) >= self.options.streams_max:
            self._output.append(reset_frame(number, Code.REFUSED_STREAM))
            return
        stream = self._streams[number] = _Stream(self._peer_window)
        stream.has_ended_there = has_ended
        self._events.append(StreamOpened(stream=number, headers=headers, has_ended=has_ended))

    def _read_reset(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != len("code"):
            raise _ConnectionBroken(Code.FRAME_SIZE_ERROR, "a reset has four bytes")
        self._require_known(number)
        if number in self._streams:
            self._forget(number)
            self._events.append(Reset(stream=number))

    def _read_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % _SETTING_BYTES or (flags & ACK and payload):
            raise _ConnectionBroken(Code.FRAME_SIZE_ERROR, "settings cannot be read")
        self._has_settings = True
        if flags & ACK:
            return
        for name, value in settings_of(payload):
            if name == Http2Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise _ConnectionBroken(Code.FLOW_CONTROL_ERROR, f"a window of {value} bytes cannot be")
                for stream in self._streams.values():
                    stream.send_left += value - self._peer_window
                self._peer_window = value
            elif name == Http2Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise _ConnectionBroken(Code.PROTOCOL_ERROR, f"frames of {value} bytes cannot be")
                self._peer_frame_bytes = value
        self._output.append(frame(Http2FrameKind.SETTINGS, flags=ACK))

    def _read_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != _PING_BYTES:
            raise _ConnectionBroken(Code.FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & ACK:
            self._output.append(frame(Http2FrameKind.PING, payload, flags=ACK))

    def _read_window(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != len("size"):
            raise _ConnectionBroken(Code.FRAME_SIZE_ERROR, "a window has four bytes")
        increment = number_of(payload)
        if not number:
            self._send_left += increment
            if not increment or self._send_left > WINDOW_MAX:
                raise _ConnectionBroken(Code.FLOW_CONTROL_ERROR, "a window that cannot be")
            return
        stream = self._streams.get(number)
        if stream is None:
            self._require_known(number)
            return
        stream.send_left += increment
        if not increment or stream.send_left > WINDOW_MAX:
            self._drop(number, Code.FLOW_CONTROL_ERROR)

    def _read_goaway(self, flags: int, number: int, payload: bytes) -> None:
        """The peer opens no more streams; running ones continue."""
        self._goes_away = True

    def _refuse_push(self, flags: int, number: int, payload: bytes) -> None:
        raise _ConnectionBroken(Code.PROTOCOL_ERROR, "a client cannot promise")

    def _require_known(self, number: int) -> None:
        if not number or number > self._last_stream:
            raise _ConnectionBroken(Code.PROTOCOL_ERROR, f"stream {number} was never opened")

    def _drop(self, number: int, code: Code) -> None:
        self.reset(number, code)
        self._events.append(Reset(stream=number))

    # --- what the program does -----------------------------------------------------------------------

    def consumed(self, number: int, size: int) -> None:
        """The program has taken this much of a request: the peer may send as much again."""
        stream = self._streams.get(number)
        if stream is None:
            return  # all of it was given back when the stream ended
        assert 0 <= size <= stream.taken, "consumed more than came"
        stream.taken -= size
        self._taken -= size
        stream.uncredited += size
        if stream.uncredited * 2 >= self.options.stream_window_bytes and not stream.has_ended_there:
            self._output.append(window_frame(number, stream.uncredited))
            stream.uncredited = 0
        self._credit_later(size)

    def _credit_later(self, size: int) -> None:
        self._uncredited += size
        if self._uncredited * 2 >= self.options.connection_window_bytes:
            self._output.append(window_frame(0, self._uncredited))
            self._uncredited = 0

    def _credit(self, size: int) -> None:
        if size:
            self._output.append(window_frame(0, size))

    def send_headers(self, number: int, block: bytes) -> None:
        """Begin the answer."""
        if number in self._streams:
            self._output.append(frame(Http2FrameKind.HEADERS, block, flags=END_HEADERS, stream=number))

    def send(self, number: int, data: bytes) -> None:
        """More of the answer, sent as soon as windows allow; see `unsent`. Nothing happens on a stream that is gone."""
        stream = self._streams.get(number)
        if stream is None or not data:
            return
        assert not stream.has_ended_here, "data after the end"
        stream.outbox.append(data)
        stream.unsent += len(data)
        self._waiting[number] = stream

    def finish(self, number: int, trailers: bytes) -> None:
        """End the answer after the data, with these trailers; the rest of the request is not read."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.has_ended_here = True
        self._endings[number] = trailers
        if not stream.unsent:
            self._end_here(number, stream)

    def _end_here(self, number: int, stream: _Stream) -> None:
        trailers = self._endings.pop(number)
        self._output.append(frame(Http2FrameKind.HEADERS, trailers, flags=END_HEADERS | END_STREAM, stream=number))
        if not stream.has_ended_there:
            self._output.append(reset_frame(number, Code.NO_ERROR))
        self._forget(number)

    def reset(self, number: int, code: Code = Code.CANCEL) -> None:
        if number in self._streams:
            self._output.append(reset_frame(number, code))
            self._forget(number)

    def _forget(self, number: int) -> None:
        stream = self._streams.pop(number)
        self._waiting.pop(number, None)
        self._endings.pop(number, None)
        self._taken -= stream.taken
        self._credit_later(stream.taken)

    def taken(self, number: int) -> int:
        """Received bytes of a stream that were not consumed."""
        stream = self._streams.get(number)
        return 0 if stream is None else stream.taken

    def unsent(self, number: int) -> int:
        """Bytes of a stream that wait for the peer or the socket."""
        stream = self._streams.get(number)
        return 0 if stream is None else stream.unsent

    def ping(self) -> None:
        self._output.append(frame(Http2FrameKind.PING, bytes(_PING_BYTES)))

    def go_away(self) -> None:
        """Accept no new requests; running ones continue."""
        if not self._goes_away:
            self._goes_away = True
            self._output.append(goaway_frame(self._last_stream, Code.NO_ERROR))

    # --- what goes -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what may be sent of all streams, in turns (HT2)."""
        while self._waiting and not self.is_blocked and self._send_left > 0 and not self.is_over:
            has_sent = False
            for number, stream in list(self._waiting.items()):
                if self._send_some(number, stream):
                    has_sent = True
                if not stream.unsent:
                    self._waiting.pop(number, None)
                    if stream.has_ended_here:
                        self._end_here(number, stream)
            if not has_sent:
                return

    def _send_some(self, number: int, stream: _Stream) -> bool:
        left = min(stream.send_left, self._send_left, _TURN_BYTES)
        frame_bytes_max = min(self._peer_frame_bytes, _SENT_FRAME_BYTES_MAX)
        sent = 0
        while left > sent and stream.outbox:
            size = min(left - sent, frame_bytes_max, stream.unsent - sent)
            self._output.append(frame_head(Http2FrameKind.DATA, length=size, stream=number))
            sent += size
            _move(stream.outbox, self._output, size)
        stream.unsent -= sent
        stream.send_left -= sent
        self._send_left -= sent
        return sent > 0

    def take_output(self) -> bytes:
        """The bytes to send now."""
        output, self._output = self._output, []
        return b"".join(output)


def _move(outbox: deque[bytes], output: list[bytes], size: int) -> None:
    """As many bytes from one to the other."""
    while size:
        piece = outbox.popleft()
        if len(piece) > size:
            outbox.appendleft(piece[size:])
            piece = piece[:size]
        output.append(piece)
        size -= len(piece)


def _without_padding(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise _ConnectionBroken(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


_READERS: Final[dict[int, Callable[[Http2Connection, int, int, bytes], None]]] = {
    Http2FrameKind.DATA: Http2Connection._read_data,
    Http2FrameKind.HEADERS: Http2Connection._read_headers,
    Http2FrameKind.RST_STREAM: Http2Connection._read_reset,
    Http2FrameKind.SETTINGS: Http2Connection._read_settings,
    Http2FrameKind.PUSH_PROMISE: Http2Connection._refuse_push,
    Http2FrameKind.PING: Http2Connection._read_ping,
    Http2FrameKind.GOAWAY: Http2Connection._read_goaway,
    Http2FrameKind.WINDOW_UPDATE: Http2Connection._read_window,
    Http2FrameKind.CONTINUATION: Http2Connection._read_continuation,
}
