"""The messages of liveness to and from bytes: one bundle holds all that a node has for a peer at one moment.

A heartbeat and a session renewal for the same peer go in one bundle, so sessions cost no messages of their own. The
layout is in docs/protocols/liveness.md; numbers are little-endian. Decoding is strict: every length is checked before
it is used, every number is in its range, nothing may follow the end, or `BadMessage` says what was wrong and nothing
of the bundle counts.

LC1  What is encoded decodes to the same messages.
LC2  No input makes decoding raise anything but `BadMessage`, nor hold more than a few times its own size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from tidelog.codecs.layout import Layout
from tidelog.core.liveness import (
    CLAIMS_BYTES_MAX,
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    NODES_MAX,
    Echo,
    Hearing,
    HearingReport,
    Heartbeat,
    Message,
    RenewSession,
    SessionRefused,
    SessionRenewed,
)
from tidelog.core.liveness.messages import SILENCE_STEP_MS
from tidelog.errors import BadMessage
from tidelog.pki.identity import is_name

VERSION: Final = 1
MESSAGES_MAX: Final = 8
"""In one bundle. A node has at most a heartbeat, a renewal and an answer for one peer at one moment."""
BUNDLE_BYTES_MAX: Final = 128 * 1024

_HEARTBEAT: Final = 1
_RENEW: Final = 2
_RENEWED: Final = 3
_FENCED: Final = 4
_HAS_ECHO: Final = 1

_BUNDLE_HEAD: Final = struct.Struct("<BB")
_MESSAGE_HEAD: Final = struct.Struct("<BI")
_HEARTBEAT_HEAD: Final = struct.Struct("<QQIB")
_ECHO: Final = Layout(Echo, "", "incarnation", "counter", "held_us", shape="QQI")
_HEARING: Final = struct.Struct("<HHIQ")
_OF_SESSIONS: Final = {
    _RENEW: ("a session renewal", Layout(RenewSession, "", "incarnation", "counter")),
    _RENEWED: (
        "an answer to a session renewal",
        Layout(SessionRenewed, "", "incarnation", "counter", "timeout_ms", "confirmed_ago_ms", shape="QQII"),
    ),
    _FENCED: ("the word that a session is fenced", Layout(SessionRefused, "", "incarnation")),
}
"""What a message is called, and its numbers, which follow the name of the node."""
_KINDS: Final = {layout.message: kind for kind, (_, layout) in _OF_SESSIONS.items()}
_AGO_MS_MAX: Final = 2**32 - 1
_BYTE: Final = struct.Struct("<B")
_LENGTH: Final = struct.Struct("<I")

Buffer: TypeAlias = bytes | bytearray | memoryview


def encode_liveness(messages: Sequence[Message]) -> bytes:
    """One bundle, 1 to `MESSAGES_MAX` messages. The cores make only what fits; anything else is a bug in us."""
    assert 1 <= len(messages) <= MESSAGES_MAX
    parts = [_BUNDLE_HEAD.pack(VERSION, len(messages))]
    for message in messages:
        kind, body = _encode(message)
        parts += (_MESSAGE_HEAD.pack(kind, len(body)), body)
    bundle = b"".join(parts)
    assert len(bundle) <= BUNDLE_BYTES_MAX
    return bundle


def decode_liveness(data: Buffer) -> list[Message]:
    """The messages of one bundle, in order, or `BadMessage`."""
    if len(data) > BUNDLE_BYTES_MAX:
        raise BadMessage(problem=f"a liveness bundle has {len(data)} bytes, at most {BUNDLE_BYTES_MAX} are allowed")
    reader = _Reader(bytes(data), "a liveness bundle")
    version, count = reader.unpack(_BUNDLE_HEAD)
    if version != VERSION:
        raise BadMessage(problem=f"a liveness bundle is of version {version}, this node reads version {VERSION}")
    if not 1 <= count <= MESSAGES_MAX:
        raise BadMessage(problem=f"a liveness bundle has {count} messages, 1 to {MESSAGES_MAX} are allowed")
    messages = []
    for _ in range(count):
        kind, length = reader.unpack(_MESSAGE_HEAD)
        messages.append(_decode(kind, reader.take(length)))
    reader.end()
    return messages


# --- encoding ------------------------------------------------------------------------------------


def _encode(message: Message) -> tuple[int, bytes]:
    if isinstance(message, Heartbeat):
        return _HEARTBEAT, _encode_heartbeat(message)
    if isinstance(message, SessionRenewed) and message.confirmed_ago_ms > _AGO_MS_MAX:
        message = replace(message, confirmed_ago_ms=_AGO_MS_MAX)
    kind = _KINDS[type(message)]
    return kind, _encode_name(message.node) + _OF_SESSIONS[kind][1].pack(message)


def _encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    flags = 0 if heartbeat.echo is None else _HAS_ECHO
    parts = [_HEARTBEAT_HEAD.pack(heartbeat.incarnation, heartbeat.counter, heartbeat.interval_ms, flags)]
    if heartbeat.echo is not None:
        parts.append(_ECHO.pack(heartbeat.echo))
    parts += (_LENGTH.pack(len(heartbeat.claims)), heartbeat.claims)
    hearings = heartbeat.report.hearings
    parts.append(_BYTE.pack(len(hearings)))
    for hearing in hearings:
        steps = hearing.silence_ms // SILENCE_STEP_MS
        parts.append(_encode_name(hearing.node))
        parts.append(_HEARING.pack(steps, hearing.interval_ms, hearing.rtt_us, hearing.peak_bytes_per_s))
    return b"".join(parts)


def _encode_name(name: str) -> bytes:
    assert is_name(name), "node names are checked where they enter"
    return _BYTE.pack(len(name)) + name.encode("ascii")


# --- decoding ------------------------------------------------------------------------------------


class _Reader:
    """Takes bytes from the front, and never more than there are."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise BadMessage(problem=f"{self._what} ends too early, after {len(self._data)} bytes")
        self._at += length
        return self._data[self._at - length : self._at]

    def unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        return shape.unpack(self.take(shape.size))

    def name(self) -> str:
        (length,) = self.unpack(_BYTE)
        # Latin-1 takes any byte; the rule for names then lets ASCII through only.
        name = self.take(length).decode("latin-1")
        if not is_name(name):
            raise BadMessage(problem=f"{self._what} names a node {name[:80]!a}, which is not a name")
        return name

    def interval_ms(self, interval_ms: int) -> int:
        if not HEARTBEAT_MS_MIN <= interval_ms <= HEARTBEAT_MS_MAX:
            raise BadMessage(
                problem=f"{self._what} has an interval of {interval_ms} ms, "
                f"{HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX} are allowed"
            )
        return interval_ms

    def end(self) -> None:
        if self._at != len(self._data):
            raise BadMessage(problem=f"{self._what} has {len(self._data) - self._at} bytes after its end")


def _decode(kind: int, body: bytes) -> Message:
    message: Message
    if kind == _HEARTBEAT:
        reader = _Reader(body, "a heartbeat")
        message = _decode_heartbeat(reader)
    elif kind in _OF_SESSIONS:
        what, layout = _OF_SESSIONS[kind]
        reader = _Reader(body, what)
        message = layout.message(node=reader.name(), **layout.fields(reader.unpack(layout.struct)))
    else:
        raise BadMessage(problem=f"a liveness bundle has a message of unknown kind {kind}")
    reader.end()
    return message


def _decode_heartbeat(reader: _Reader) -> Heartbeat:
    incarnation, counter, interval_ms, flags = reader.unpack(_HEARTBEAT_HEAD)
    if flags & ~_HAS_ECHO:
        raise BadMessage(problem=f"a heartbeat has unknown flags {flags:#04x}")
    if counter == 0:
        raise BadMessage(problem="a heartbeat is numbered 0; they count from 1")
    reader.interval_ms(interval_ms)
    echo = None
    if flags & _HAS_ECHO:
        echo = Echo(**_ECHO.fields(reader.unpack(_ECHO.struct)))
    (claims_length,) = reader.unpack(_LENGTH)
    if claims_length > CLAIMS_BYTES_MAX:
        raise BadMessage(problem=f"a heartbeat has {claims_length} bytes of claims, at most {CLAIMS_BYTES_MAX} may be")
    return Heartbeat(
        incarnation=incarnation,
        counter=counter,
        interval_ms=interval_ms,
        echo=echo,
        claims=reader.take(claims_length),
        report=_decode_report(reader),
    )


def _decode_report(reader: _Reader) -> HearingReport:
    (count,) = reader.unpack(_BYTE)
    if count > NODES_MAX:
        raise BadMessage(problem=f"a heartbeat reports on {count} nodes, at most {NODES_MAX} can be")
    hearings = []
    last = ""
    for _ in range(count):
        node = reader.name()
        if node <= last:
            raise BadMessage(problem=f"a heartbeat reports on {node} after {last}; names must rise")
        last = node
        steps, interval_ms, rtt_us, peak = reader.unpack(_HEARING)
        hearings.append(
            Hearing(
                node=node,
                silence_ms=steps * SILENCE_STEP_MS,
                interval_ms=reader.interval_ms(interval_ms),
                rtt_us=rtt_us,
                peak_bytes_per_s=peak,
            )
        )
    return HearingReport(hearings=tuple(hearings))
