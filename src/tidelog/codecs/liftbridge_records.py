"""Liftbridge's records, as they lie in its logs and in its replication responses: one after the other, big-endian.

    0   8  offset            24  4  size of what follows           34  4+n  length and bytes of the key, -1: none
    8   8  timestamp, ns     28  4  CRC-32C of all after it        ..  4+n  the same of the value
    16  8  leader epoch      32  2  magic 1, attributes 0          ..  2    headers; each 2+n name, 4+n value

Our own log holds blocks. This is for whoever moves records between the two: imports, exports, tools, and tests that
compare us with Liftbridge.

LR1  What is encoded decodes to the same records, and what decodes encodes to the same bytes.
LR2  No input makes decoding raise anything but `BadLiftbridgeRecord`, which says where and why; every length is
     compared with the bytes that are there before it is used.
LR3  The checksum does not cover offset, timestamp and epoch, by Liftbridge's design. So those prove nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from fastcrc.crc32 import iscsi as crc32c

from tidelog.errors import BadLiftbridgeRecord, InvalidRecord

Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[tuple[str, bytes]]

SET_HEAD_BYTES: Final = 28
"""Offset, timestamp, epoch and size."""
RECORD_MAGIC: Final = 1
INDEX_ENTRY_BYTES: Final = 20

_SET_HEAD: Final = struct.Struct(">qqQi")
_CHECKSUM: Final = struct.Struct(">I")
_KIND: Final = struct.Struct(">BB")
_LENGTH: Final = struct.Struct(">i")
_COUNT: Final = struct.Struct(">h")
_INDEX_ENTRY: Final = struct.Struct(">iqii")
_NULL: Final = _LENGTH.pack(-1)
_KIND_BYTES: Final = _KIND.pack(RECORD_MAGIC, 0)
_MESSAGE_BYTES_MIN: Final = 16
"""Checksum, kind, two lengths and the count of headers."""
_BYTES_MAX: Final = 2**31 - 1
_SHORT_MAX: Final = 2**15 - 1
_EPOCH_MAX: Final = 2**64 - 1


class LiftbridgeRecord(NamedTuple):
    """One record; a named tuple, because a log has millions."""

    offset: int
    timestamp_ns: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    """In their order. Liftbridge's own always have `subject` and `reply`."""


class IndexEntry(NamedTuple):
    """Where a record lies in its segment."""

    relative_offset: int
    timestamp_ns: int
    position: int
    size: int
    """With the head of 28 bytes."""


# --- encoding ----------------------------------------------------------------------------------------


def encode_records(records: Iterable[LiftbridgeRecord]) -> bytes:
    """A message set: the records back to back."""
    parts: list[bytes] = []
    for record in records:
        message = _message(record.key, record.value, record.headers)
        parts.append(_set_head(record.offset, record.timestamp_ns, record.leader_epoch, len(message) + 4))
        parts.append(_CHECKSUM.pack(crc32c(message)))
        parts.append(message)
    return b"".join(parts)


def encode_run(
    *,
    base_offset: int,
    leader_epoch: int,
    timestamps_ns: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers],
) -> bytes:
    """Records of consecutive offsets and one epoch, from columns of the same length."""
    if not len(timestamps_ns) == len(keys) == len(values) == len(headers):
        raise InvalidRecord(problem="a run of records needs as many times, keys, values and lists of headers")
    return encode_records(
        LiftbridgeRecord(base_offset + index, timestamp_ns, leader_epoch, key, value, held)
        for index, (timestamp_ns, key, value, held) in enumerate(zip(timestamps_ns, keys, values, headers, strict=True))
    )


def _set_head(offset: int, timestamp_ns: int, leader_epoch: int, size: int) -> bytes:
    if size > _BYTES_MAX:
        raise InvalidRecord(problem=f"a record of {size} bytes is over Liftbridge's limit of 2 GiB; split its value")
    if not (0 <= offset < 2**63 and -(2**63) <= timestamp_ns < 2**63 and 0 <= leader_epoch <= _EPOCH_MAX):
        raise InvalidRecord(problem=f"offset {offset}, time {timestamp_ns} or epoch {leader_epoch} is out of range")
    return _SET_HEAD.pack(offset, timestamp_ns, leader_epoch, size)


def _message(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """What the checksum covers."""
    if len(headers) > _SHORT_MAX:
        raise InvalidRecord(problem=f"{len(headers)} headers are over Liftbridge's limit of {_SHORT_MAX}")
    parts = [_KIND_BYTES, *_sized(key), *_sized(value), _COUNT.pack(len(headers))]
    for name, content in headers:
        name_bytes = _name_bytes(name)
        if len(name_bytes) > _SHORT_MAX:
            raise InvalidRecord(problem=f"a header's name of {len(name_bytes)} bytes is over the limit of {_SHORT_MAX}")
        parts += (_COUNT.pack(len(name_bytes)), name_bytes, *_sized(content))
    return b"".join(parts)


def _name_bytes(name: str) -> bytes:
    try:
        return name.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidRecord(problem=f"the header name {name!r} cannot be written as UTF-8; choose another") from error


def _sized(data: bytes | None) -> tuple[bytes, ...]:
    if data is None:
        return (_NULL,)
    if len(data) > _BYTES_MAX:
        raise InvalidRecord(problem=f"{len(data)} bytes in one part of a record are over the limit of 2 GiB")
    return (_LENGTH.pack(len(data)), data)


# --- decoding ----------------------------------------------------------------------------------------


def decode_records(data: Buffer) -> list[LiftbridgeRecord]:
    """Every record of a message set, each with its checksum verified (LR2)."""
    view = memoryview(data)
    records: list[LiftbridgeRecord] = []
    position = 0
    while position < len(view):
        record, position = _record_at(view, position)
        records.append(record)
    return records


def _record_at(view: memoryview, position: int) -> tuple[LiftbridgeRecord, int]:
    left = len(view) - position - SET_HEAD_BYTES
    if left < 0:
        raise BadLiftbridgeRecord(position=position, problem="ends within its head")
    offset, timestamp_ns, leader_epoch, size = _SET_HEAD.unpack_from(view, position)
    if not _MESSAGE_BYTES_MIN <= size <= left:
        raise BadLiftbridgeRecord(position=position, problem=f"claims {size} bytes where {left} are left")
    if offset < 0:
        raise BadLiftbridgeRecord(position=position, problem=f"has offset {offset}")
    start = position + SET_HEAD_BYTES
    end = start + size
    (claimed,) = _CHECKSUM.unpack_from(view, start)
    message = view[start + 4 : end]
    if crc32c(message) != claimed:
        problem = f"has checksum {claimed:08x} but its bytes give {crc32c(message):08x}"
        raise BadLiftbridgeRecord(position=position, problem=problem)
    key, value, headers = _Message(message, position).read()
    return LiftbridgeRecord(offset, timestamp_ns, leader_epoch, key, value, headers), end


class _Message:
    """Reads what a checksum covers; a right checksum does not make lengths right."""

    def __init__(self, view: memoryview, position: int) -> None:
        self._view = view
        self._position = position
        """Of the record, for words."""
        self._at = 0

    def read(self) -> tuple[bytes | None, bytes | None, Headers]:
        magic, attributes = _KIND.unpack_from(self._take(_KIND.size))
        if (magic, attributes) != (RECORD_MAGIC, 0):
            raise self._bad(f"has magic {magic} and attributes {attributes}, which are unknown")
        key = self._bytes(_LENGTH, null=True)
        value = self._bytes(_LENGTH, null=True)
        (count,) = _COUNT.unpack_from(self._take(_COUNT.size))
        if count < 0:
            raise self._bad(f"claims {count} headers")
        headers: list[tuple[str, bytes]] = []
        for _ in range(count):
            name = self._bytes(_COUNT)
            content = self._bytes(_LENGTH)
            assert name is not None
            assert content is not None
            headers.append((name.decode(errors="surrogateescape"), content))
        if self._at != len(self._view):
            raise self._bad(f"has {len(self._view) - self._at} bytes left over")
        return key, value, tuple(headers)

    def _take(self, size: int) -> memoryview:
        taken = self._view[self._at : self._at + size]
        if len(taken) < size:
            raise self._bad("claims parts that are longer than itself")
        self._at += size
        return taken

    def _bytes(self, shape: struct.Struct, *, null: bool = False) -> bytes | None:
        (length,) = shape.unpack_from(self._take(shape.size))
        if length == -1 and null:
            return None
        if length < 0:
            raise self._bad(f"has a part of {length} bytes")
        return bytes(self._take(length))

    def _bad(self, problem: str) -> BadLiftbridgeRecord:
        return BadLiftbridgeRecord(position=self._position, problem=problem)


# --- the index beside a segment ------------------------------------------------------------------------


def index_records(data: Buffer, *, base_offset: int, position: int = 0) -> list[IndexEntry]:
    """The entries that Liftbridge keeps for a message set that lies at `position` of the segment of `base_offset`."""
    view = memoryview(data)
    entries: list[IndexEntry] = []
    at = 0
    while at < len(view):
        record, end = _record_at(view, at)
        relative_offset, place = record.offset - base_offset, position + at
        if not 0 <= relative_offset <= _BYTES_MAX or not 0 <= place <= _BYTES_MAX:
            problem = f"has offset {record.offset}, which no segment from {base_offset} on can index"
            raise BadLiftbridgeRecord(position=at, problem=problem)
        entries.append(IndexEntry(relative_offset, record.timestamp_ns, place, end - at))
        at = end
    return entries


def encode_index(entries: Iterable[IndexEntry]) -> bytes:
    return b"".join(_INDEX_ENTRY.pack(*entry) for entry in entries)


def decode_index(data: Buffer) -> list[IndexEntry]:
    """The entries of an index that was cut to its size."""
    if len(data) % INDEX_ENTRY_BYTES:
        position = len(data) - len(data) % INDEX_ENTRY_BYTES
        raise BadLiftbridgeRecord(position=position, problem="is an entry of an index that ends within itself")
    return [IndexEntry(*fields) for fields in _INDEX_ENTRY.iter_unpack(data)]
