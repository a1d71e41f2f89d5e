"""Frames of HTTP/2 (RFC 9113): their head, their numbers, and those that are written.

0  3  length of the payload        4  1  flags
3  1  kind                         5  4  stream, 0 for the connection
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""
HEAD_BYTES: Final = 9
FRAME_BYTES_DEFAULT: Final = 16_384
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
STREAM_MAX: Final = 2**31 - 1

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

HEAD: Final = struct.Struct(">BHBBI")
_NUMBER: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")


class Http2FrameKind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame_head(kind: int, *, length: int, flags: int = 0, stream: int = 0) -> bytes:
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return frame_head(kind, length=len(payload), flags=flags, stream=stream) + payload


def settings_frame(settings: dict[Http2Setting, int]) -> bytes:
    return frame(Http2FrameKind.SETTINGS, b"".join(_SETTING.pack(name, value) for name, value in settings.items()))


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """The payload has a multiple of 6 bytes."""
    return list(_SETTING.iter_unpack(payload))


def window_frame(stream: int, increment: int) -> bytes:
    return frame(Http2FrameKind.WINDOW_UPDATE, _NUMBER.pack(increment), stream=stream)


def reset_frame(stream: int, code: Code) -> bytes:
    return frame(Http2FrameKind.RST_STREAM, _NUMBER.pack(code), stream=stream)


def goaway_frame(last_stream: int, code: Code, words: bytes = b"") -> bytes:
    return frame(Http2FrameKind.GOAWAY, _NUMBER.pack(last_stream) + _NUMBER.pack(code) + words)


def number_of(payload: bytes) -> int:
    """Four bytes without the reserved bit."""
    return int(_NUMBER.unpack(payload)[0]) & STREAM_MAX
