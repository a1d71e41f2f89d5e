"""Bodies of message blocks: key, value, headers and time of each record, as columns.

The body is a small head, then the columns, each little-endian and four-byte aligned:

    u32 header_count (of all records together), u32 wide (1: times have 64 bits)
    times        distance from the block's smallest time, u64 when wide, else u32   [n]
    key ends     Arrow offsets, i32                                                 [n + 1]
    value ends   Arrow offsets, i32                                                 [n + 1]
    header ends  first header of each record, i32                                   [n + 1]
    name ends, header value ends, i32                                               [header_count + 1] each
    flags        one byte a record: 1 has a key, 2 has a value                      [n]
    bytes        keys, values, header names, header values

A missing key and an empty key are two different things, and so are values: hence the flags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np

from tidelog.blocks.block import DEFAULT_ZSTD_LEVEL, MadeBlock, make_block
from tidelog.blocks.columns import Int32s, Int64s, UInt8s
from tidelog.blocks.header import (
    DEFAULT_LIMITS,
    NO_PRODUCER,
    BlockKind,
    BlockLimits,
    Buffer,
    Codec,
    Maker,
    time_outside_span,
)
from tidelog.errors import BlockCorrupt, InvalidRecord

MESSAGE_FORM: Final = 1
HAS_KEY: Final = 1
HAS_VALUE: Final = 2

_HEAD: Final = struct.Struct("<II")
_FEW: Final = 16
"""Up to so many values an array costs more than it saves."""


class Message(NamedTuple):
    """One message record. A named tuple, because producers make millions and it costs a third of a dataclass."""

    time_us: int
    value: bytes | None = b""
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """Byte strings end to end: number i is data[offsets[i]:offsets[i + 1]]."""

    offsets: Int32s
    data: UInt8s

    @classmethod
    def gather(cls, parts: Sequence[bytes | memoryview]) -> BytesColumn:
        data = b"".join(parts)
        if len(data) >= 2**31:
            raise InvalidRecord(problem="a block's strings together must stay below 2 GiB; make smaller blocks")
        offsets = np.zeros(len(parts) + 1, dtype=np.int32)
        if data:
            np.cumsum(np.array([*map(len, parts)], dtype=np.int32), out=offsets[1:])
        return cls(offsets=offsets, data=np.frombuffer(data, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tolist(self) -> list[bytes]:
        data, ends = self.data.tobytes(), self.offsets.tolist()
        return [data[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class MessageColumns:
    times_us: Int64s
    flags: UInt8s
    keys: BytesColumn
    values: BytesColumn
    header_ends: Int32s
    header_names: BytesColumn
    header_values: BytesColumn

    def __len__(self) -> int:
        return len(self.times_us)

    def rows(self) -> Iterator[Message]:
        """The messages one by one: for tools and tests, not for hot paths."""
        keys, values = self.keys.tolist(), self.values.tolist()
        names, contents = self.header_names.tolist(), self.header_values.tolist()
        ends = self.header_ends.tolist()
        for index, (time_us, flags) in enumerate(zip(self.times_us.tolist(), self.flags.tolist(), strict=True)):
            held = range(ends[index], ends[index + 1])
            yield Message(
                time_us=time_us,
                key=keys[index] if flags & HAS_KEY else None,
                value=values[index] if flags & HAS_VALUE else None,
                headers=tuple((names[i].decode("utf-8", "replace"), contents[i]) for i in held),
            )

    @classmethod
    def from_rows(cls, rows: Iterable[Message]) -> MessageColumns:
        listed = list(rows)
        header_ends = np.zeros(len(listed) + 1, dtype=np.int32)
        # Lists and not generators, and nothing for absent headers: small commits spend most of their time here.
        headers_of = [row.headers for row in listed]
        headers: list[tuple[str, bytes]] = []
        if any(headers_of):
            headers = [header for group in headers_of for header in group]
            np.cumsum([*map(len, headers_of)], out=header_ends[1:])
        flags = [(row.key is not None) * HAS_KEY | (row.value is not None) * HAS_VALUE for row in listed]
        return cls(
            times_us=np.array([row.time_us for row in listed], dtype=np.int64),
            flags=np.frombuffer(bytes(flags), dtype=np.uint8),
            keys=BytesColumn.gather([row.key or b"" for row in listed]),
            values=BytesColumn.gather([row.value or b"" for row in listed]),
            header_ends=header_ends,
            header_names=BytesColumn.gather([name.encode() for name, _ in headers]),
            header_values=BytesColumn.gather([content for _, content in headers]),
        )


def encode_messages(
    messages: MessageColumns | Iterable[Message],
    *,
    base_seq: int = 0,
    producer: bytes = NO_PRODUCER,
    codec: Codec = Codec.NONE,
    level: int = DEFAULT_ZSTD_LEVEL,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> MadeBlock:
    columns = messages if isinstance(messages, MessageColumns) else MessageColumns.from_rows(messages)
    times = columns.times_us
    smallest, largest = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    wide = largest - smallest >= 2**32
    distances = times.view(np.uint64) - np.uint64(smallest & 0xFFFF_FFFF_FFFF_FFFF)
    strings = (columns.keys, columns.values, columns.header_names, columns.header_values)
    raw = b"".join(
        (
            _HEAD.pack(len(columns.header_names), wide),
            distances.astype("<u8" if wide else "<u4").tobytes(),
            columns.keys.offsets.astype("<i4", copy=False).tobytes(),
            columns.values.offsets.astype("<i4", copy=False).tobytes(),
            columns.header_ends.astype("<i4", copy=False).tobytes(),
            columns.header_names.offsets.astype("<i4", copy=False).tobytes(),
            columns.header_values.offsets.astype("<i4", copy=False).tobytes(),
            columns.flags.tobytes(),
            *(column.data.tobytes() for column in strings),
        )
    )
    return make_block(
        raw,
        kind=BlockKind.MESSAGES,
        form=MESSAGE_FORM,
        record_count=len(times),
        codec=codec,
        level=level,
        time_min_us=smallest,
        time_max_us=largest,
        base_seq=base_seq,
        producer=producer,
        limits=limits,
    )


def encode_values(
    values: Sequence[bytes | memoryview],
    *,
    time_us: int,
    base_seq: int = 0,
    producer: bytes = NO_PRODUCER,
    codec: Codec = Codec.NONE,
    level: int = DEFAULT_ZSTD_LEVEL,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> MadeBlock:
    """Messages that are a value and nothing else, all of one time: the cheapest way in.

    The bytes are those of `encode_messages`, without an object and a column pass for each message.
    """
    count = len(values)
    if count <= _FEW:
        data = b"".join(values)
        ends = struct.pack(f"<{count + 1}i", 0, *accumulate(map(len, values)))
    else:
        column = BytesColumn.gather(values)
        data, ends = column.data.tobytes(), column.offsets.astype("<i4", copy=False).tobytes()
    nothing = bytes(4 * (count + 1))
    raw = b"".join(
        (
            _HEAD.pack(0, 0),
            nothing[4:],  # times: no distance
            nothing,  # keys
            ends,
            nothing,  # headers
            bytes(8),
            bytes([HAS_VALUE]) * count,
            data,
        )
    )
    return make_block(
        raw,
        kind=BlockKind.MESSAGES,
        form=MESSAGE_FORM,
        record_count=count,
        codec=codec,
        level=level,
        time_min_us=time_us if count else 0,
        time_max_us=time_us if count else 0,
        base_seq=base_seq,
        producer=producer,
        limits=limits,
    )


def decode_messages(maker: Maker, raw: Buffer) -> MessageColumns:
    """The columns of a message body that has been checked and inflated."""
    if maker.form != MESSAGE_FORM:
        raise BlockCorrupt(problem=f"message form {maker.form} is unknown; a newer Tidelog wrote this block")
    count = maker.record_count
    if len(raw) < _HEAD.size:
        raise BlockCorrupt(problem="a message body is shorter than its head")
    header_count, wide = _HEAD.unpack_from(raw)
    time_bytes = 8 if wide else 4
    needed = _HEAD.size + count * (time_bytes + 13) + 12 + 8 * (header_count + 1)
    if wide > 1 or len(raw) < needed:
        raise BlockCorrupt(problem=f"{count} messages with {header_count} headers need {needed} bytes or more")
    position = _HEAD.size
    distances = np.frombuffer(raw, dtype="<u8" if wide else "<u4", count=count, offset=position)
    position += count * time_bytes
    ends: list[Int32s] = []
    for entries in (count + 1, count + 1, count + 1, header_count + 1, header_count + 1):
        ends.append(np.frombuffer(raw, dtype="<i4", count=entries, offset=position))
        position += 4 * entries
    flags = np.frombuffer(raw, dtype=np.uint8, count=count, offset=position)
    position += count
    keys, values, header_ends, names, contents = ends
    if any(int(column[0]) != 0 or bool((column[1:] < column[:-1]).any()) for column in ends):
        raise BlockCorrupt(problem="offsets of a message body do not rise from 0")
    if int(header_ends[-1]) != header_count:
        raise BlockCorrupt(problem="the records do not share out all headers")
    columns: list[BytesColumn] = []
    for offsets in (keys, values, names, contents):
        length = int(offsets[-1])
        if position + length > len(raw):
            raise BlockCorrupt(problem="strings of a message body run past its end")
        columns.append(BytesColumn(offsets, np.frombuffer(raw, dtype=np.uint8, count=length, offset=position)))
        position += length
    if position != len(raw):
        raise BlockCorrupt(problem=f"{len(raw) - position} bytes are left over in a message body")
    if count and int(distances.max()) > maker.time_max_us - maker.time_min_us:
        raise time_outside_span()
    times = (distances + np.uint64(maker.time_min_us & 0xFFFF_FFFF_FFFF_FFFF)).view(np.int64)
    return MessageColumns(times, flags, columns[0], columns[1], header_ends, columns[2], columns[3])
