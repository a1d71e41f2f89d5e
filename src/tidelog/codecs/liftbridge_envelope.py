"""The envelope that Liftbridge puts around every NATS payload, public and internal: 8 bytes, or 12 with a checksum.

    0  4  magic b9 0e 43 b4
    4  1  version 0
    5  1  length of this head: 8, or 12 with a checksum
    6  1  flags: 1 = a checksum follows; others must be 0
    7  1  type of message
    8  4  CRC-32C of the payload, big-endian, if flagged

Liftbridge's servers verify a checksum and never write one. Ours do the same, so that what they send has the bytes that
a Liftbridge tool expects; clients of ours may write one.

CLE1  What is encoded decodes to the same payload, and what decodes encodes to the same bytes.
CLE2  No input makes decoding raise anything but `BadEnvelope`; the payload is a view, nothing is copied or allocated.
CLE3  A payload on a stream's subject is never refused: what is no good envelope of a published message is a plain NATS
     message, and its bytes are the value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from fastcrc.crc32 import iscsi as crc32c

from tidelog.errors import BadEnvelope

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = bytes.fromhex("b90e43b4")
VERSION: Final = 0
HEAD_BYTES: Final = 8
CHECKED_HEAD_BYTES: Final = 12

_CHECKSUM_FLAG: Final = 1
_HEAD: Final = struct.Struct(">4sBBBB")
_CHECKSUM: Final = struct.Struct(">I")


class MessageType(IntEnum):
    """Every type that Liftbridge's servers and clients put into an envelope."""

    PUBLISH = 0
    ACK = 1
    REPLICATION_REQUEST = 2
    REPLICATION_RESPONSE = 3
    RAFT_JOIN_REQUEST = 4
    RAFT_JOIN_RESPONSE = 5
    LEADER_EPOCH_OFFSET_REQUEST = 6
    LEADER_EPOCH_OFFSET_RESPONSE = 7
    PROPAGATED_REQUEST = 8
    PROPAGATED_RESPONSE = 9
    SERVER_INFO_REQUEST = 10
    SERVER_INFO_RESPONSE = 11
    PARTITION_STATUS_REQUEST = 12
    PARTITION_STATUS_RESPONSE = 13
    PARTITION_NOTIFICATION = 14


_TYPES: Final = {kind.value: kind for kind in MessageType}
_PLAIN_HEADS: Final = {kind: _HEAD.pack(MAGIC, VERSION, HEAD_BYTES, 0, kind) for kind in MessageType}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftbridgeEnvelope:
    kind: MessageType
    payload: memoryview
    is_checked: bool
    """It carried a checksum, which was right."""


# --- encoding ----------------------------------------------------------------------------------------


def envelope_head(kind: MessageType) -> bytes:
    """What goes before a payload that is sent in several buffers. Without a checksum, as Liftbridge's servers do it."""
    return _PLAIN_HEADS[kind]


def encode_envelope(kind: MessageType, payload: Buffer, *, checksum: bool = False) -> bytes:
    """A payload in its envelope."""
    if not checksum:
        return b"".join((_PLAIN_HEADS[kind], payload))
    head = _HEAD.pack(MAGIC, VERSION, CHECKED_HEAD_BYTES, _CHECKSUM_FLAG, kind)
    return b"".join((head, _CHECKSUM.pack(crc32c(payload)), payload))


# --- decoding ----------------------------------------------------------------------------------------


def decode_envelope(data: Buffer) -> LiftbridgeEnvelope:
    """Type and payload, checked (CLE2)."""
    view = memoryview(data)
    if len(view) < HEAD_BYTES:
        raise BadEnvelope(problem=f"{len(view)} bytes are shorter than an envelope")
    magic, version, head_bytes, flags, number = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise BadEnvelope(problem=f"the payload begins with {magic.hex()} and not with {MAGIC.hex()}")
    if version != VERSION:
        raise BadEnvelope(problem=f"version {version} of the envelope is unknown")
    kind = _TYPES.get(number)
    if kind is None:
        raise BadEnvelope(problem=f"no message has the type {number}")
    if flags & ~_CHECKSUM_FLAG:
        raise BadEnvelope(problem=f"the envelope has flags {flags:#04x} that are unknown")
    expected_bytes = CHECKED_HEAD_BYTES if flags else HEAD_BYTES
    if head_bytes != expected_bytes:
        raise BadEnvelope(problem=f"the envelope claims a head of {head_bytes} bytes where it has {expected_bytes}")
    if len(view) < head_bytes:
        raise BadEnvelope(problem="the envelope ends before its checksum")
    payload = view[head_bytes:]
    if flags:
        (claimed,) = _CHECKSUM.unpack_from(view, HEAD_BYTES)
        computed = crc32c(payload)
        if claimed != computed:
            raise BadEnvelope(problem=f"the checksum is {claimed:08x} but the payload gives {computed:08x}")
    return LiftbridgeEnvelope(kind=kind, payload=payload, is_checked=bool(flags))


def open_envelope(data: Buffer, expected: MessageType) -> memoryview:
    """The payload of an envelope of one type, where no other may come."""
    envelope = decode_envelope(data)
    if envelope.kind is not expected:
        raise BadEnvelope(problem=f"a message of type {envelope.kind} came where type {expected.value} is due")
    return envelope.payload


# --- payloads on a stream's subject --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMessage:
    """The bytes of an `api.Message`, as a Liftbridge client sends it. If they do not parse, the payload is plain."""

    message: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMessage:
    """A NATS message of anybody: all of it is the value, and nobody waits for an acknowledgement."""

    value: Buffer
    problem: str
    """Why it is no envelope, for counting and for those who wonder."""


def try_message(payload: Buffer) -> PublishedMessage | PlainMessage:
    """What came on a stream's subject (CLE3)."""
    try:
        return PublishedMessage(message=open_envelope(payload, MessageType.PUBLISH))
    except BadEnvelope as error:
        return PlainMessage(value=payload, problem=error.problem)
