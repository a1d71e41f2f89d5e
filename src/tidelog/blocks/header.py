"""The block header: 64 bytes that the maker writes, 64 that the leader stamps, then the windows.

The maker (a boat, a client) fills the first half and never touches the block again. Its checksum
covers that half and the body, so the claim "these records are seqs 1000 to 3000 of that lineage"
is checked end to end, in Spark too. The leader stamps the second half when the block gets its
place in a channel; the header checksum covers both halves and the windows, so a block written to
the wrong place is caught. docs/formats/block.md is the byte table; a test compares it with
`MAKER_FIELDS` and `LEADER_FIELDS` below.

Everything is little-endian. Head and body are multiples of eight bytes, so blocks that lie one
after the other in a file stay aligned. The padding after a body is zero and is covered by the
maker's checksum.

BH1  Nothing is allocated or inflated from a field that has not been compared with `BlockLimits`.
BH2  Windows are ascending, disjoint, not empty and inside the block; none means all of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as _crc32c

from tidelog.errors import BlockCorrupt, BlockTooLarge, BlockTruncated
from tidelog.units import MIB

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"TLB1"
MAKER_BYTES: Final = 64
HEAD_BYTES: Final = 128
WINDOW_BYTES: Final = 8
NO_PRODUCER: Final = bytes(16)

MAKER_FIELDS: Final = (
    ("magic", "4s", "`TLB1`"),
    ("kind", "B", "1 frames, 2 messages, 3 foreign, 4 control, 5 missing"),
    ("form", "B", "how the body is laid out; its meaning depends on the kind"),
    ("codec", "B", "0 none, 1 zstd"),
    ("reserved", "B", "zero"),
    ("time_min_us", "q", "smallest record time, microseconds since 1970"),
    ("time_max_us", "q", "largest record time"),
    ("base_seq", "Q", "seq of record 0; 0 when the records have none"),
    ("producer", "16s", "lineage of a boat, or id of a producer; zero when there is none"),
    ("record_count", "I", "records in the body"),
    ("raw_bytes", "I", "length of the body before compression"),
    ("stored_bytes", "I", "length of the body as it lies here, without padding"),
    ("body_checksum", "I", "CRC-32C of bytes 0 to 59, the body and its padding"),
)
LEADER_FIELDS: Final = (
    ("base_offset", "Q", "offset of the first record that counts"),
    ("channel_id", "Q", "the channel this block belongs to"),
    ("leader_epoch", "Q", "epoch of the leader that stamped the block"),
    ("append_time_us", "q", "the leader's clock when it stamped the block"),
    ("durable_end", "Q", "log end known to be durable at that moment"),
    ("window_count", "I", "windows that follow the header; 0 means every record counts"),
    ("path", "B", "0 unknown, 1 live, 2 backfill, 3 publish"),
    ("reserved", "15s", "zero"),
    ("header_checksum", "I", "CRC-32C of bytes 0 to 123 and of the windows"),
)

_MAKER: Final = struct.Struct("<" + "".join(code for _, code, _ in MAKER_FIELDS))
_LEADER: Final = struct.Struct("<" + "".join(code for _, code, _ in LEADER_FIELDS))
_CHECKSUM: Final = struct.Struct("<I")
assert _MAKER.size == MAKER_BYTES
assert _LEADER.size == HEAD_BYTES - MAKER_BYTES

_RESERVED: Final = bytes(15)
_OFFSET_END: Final = 2**64
_UINT64_MAX: Final = 2**64 - 1


class BlockKind(IntEnum):
    FRAMES = 1
    MESSAGES = 2
    FOREIGN = 3
    CONTROL = 4
    MISSING = 5
    """Holds the place of records whose bytes were damaged, until a peer's bytes replace it."""


class Codec(IntEnum):
    NONE = 0
    ZSTD = 1


class Path(IntEnum):
    UNKNOWN = 0
    LIVE = 1
    BACKFILL = 2
    PUBLISH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLimits:
    """What a block may ask for. Checked before anything is allocated."""

    raw_bytes_max: int = 16 * MIB
    """Largest body after inflation."""
    stored_bytes_max: int = 16 * MIB
    """Largest body as stored."""
    records_max: int = 1 << 20
    windows_max: int = 1 << 16


DEFAULT_LIMITS: Final = BlockLimits()

# A live bus leaves 50,000 small blocks per million frames; comparing with plain numbers instead of
# enum members takes a tenth off the time to check a header.
_KIND_FRAMES: Final = int(BlockKind.FRAMES)
_KIND_FOREIGN: Final = int(BlockKind.FOREIGN)
_KIND_MISSING: Final = int(BlockKind.MISSING)
_CODEC_NONE: Final = int(Codec.NONE)
_CODEC_ZSTD: Final = int(Codec.ZSTD)


class Maker(NamedTuple):
    """The maker's half, in the order of its bytes."""

    magic: bytes
    kind: int
    form: int
    codec: int
    reserved: int
    time_min_us: int
    time_max_us: int
    base_seq: int
    producer: bytes
    record_count: int
    raw_bytes: int
    stored_bytes: int
    body_checksum: int

    @property
    def padded_bytes(self) -> int:
        """Length of the body with its padding."""
        return (self.stored_bytes + 7) & ~7

    @property
    def seqs(self) -> range:
        """The seqs of the records; empty when they have none (base_seq 0)."""
        return range(self.base_seq, self.base_seq + (self.record_count if self.base_seq else 0))


class Leader(NamedTuple):
    """The leader's half, in the order of its bytes."""

    base_offset: int
    channel_id: int
    leader_epoch: int
    append_time_us: int
    durable_end: int
    window_count: int
    path: int
    reserved: bytes
    header_checksum: int


def pack_maker(
    *,
    kind: int,
    form: int,
    codec: int,
    time_min_us: int,
    time_max_us: int,
    base_seq: int,
    producer: bytes,
    record_count: int,
    raw_bytes: int,
    body: Buffer,
    stored_bytes: int,
) -> bytes:
    """The maker's half for this (already padded) body, with its checksum."""
    fields = (MAGIC, kind, form, codec, 0, time_min_us, time_max_us, base_seq, producer)
    head = _MAKER.pack(*fields, record_count, raw_bytes, stored_bytes, 0)[:-4]
    return head + _CHECKSUM.pack(_crc32c(body, _crc32c(head)))


def pack_leader(
    maker: Buffer,
    *,
    base_offset: int,
    channel_id: int,
    leader_epoch: int,
    append_time_us: int,
    durable_end: int,
    path: int,
    windows: Sequence[range] = (),
) -> tuple[bytes, Leader]:
    """The whole head (the maker's bytes unchanged, the leader's stamp, the windows), and the stamp as parsed."""
    placed = (base_offset, channel_id, leader_epoch, append_time_us, durable_end, len(windows), path, _RESERVED)
    head = bytes(maker) + _LEADER.pack(*placed, 0)[:-4]
    packed = b""
    if windows:
        edges = [edge for window in windows for edge in (window.start, window.stop)]
        packed = struct.pack(f"<{len(edges)}I", *edges)
    checksum = _crc32c(packed, _crc32c(head))
    return head + _CHECKSUM.pack(checksum) + packed, Leader(*placed, checksum)


def parse_maker(data: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> Maker:
    """Read and check the maker's half against the limits; the body is checked by `check_body`."""
    if len(data) < MAKER_BYTES:
        raise BlockTruncated(problem=f"a block needs {MAKER_BYTES} bytes, only {len(data)} are there")
    maker = Maker._make(_MAKER.unpack_from(data))
    _check_maker(maker, limits)
    return maker


def parse_head(data: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> tuple[Maker, Leader, tuple[range, ...]]:
    """Read and check a whole head. `data` starts at the block and may reach beyond it."""
    available = len(data)
    if available < HEAD_BYTES:
        raise BlockTruncated(problem=f"a block header needs {HEAD_BYTES} bytes, only {available} are there")
    leader = Leader._make(_LEADER.unpack_from(data, MAKER_BYTES))
    windows: tuple[range, ...] = ()
    if leader.window_count:
        windows = _parse_windows(data, leader, limits)
    elif _crc32c(memoryview(data)[: HEAD_BYTES - 4]) != leader.header_checksum:
        raise _header_mismatch(data)
    maker = Maker._make(_MAKER.unpack_from(data))
    _check_maker(maker, limits)
    if leader.reserved != _RESERVED:
        raise BlockCorrupt(problem="reserved header bytes are not zero; this block needs a newer Tidelog")
    if leader.base_offset + maker.record_count > _OFFSET_END:
        raise BlockCorrupt(problem="the offsets of this block run past 2^64")
    if windows and windows[-1].stop > maker.record_count:
        raise BlockCorrupt(problem=f"a window ends at {windows[-1].stop} of {maker.record_count} records")
    return maker, leader, windows


def _header_mismatch(data: Buffer) -> BlockCorrupt:
    if bytes(data[:4]) != MAGIC:
        return BlockCorrupt(problem="no block starts here")
    return BlockCorrupt(problem="the header checksum does not match")


def _parse_windows(data: Buffer, leader: Leader, limits: BlockLimits) -> tuple[range, ...]:
    if bytes(data[:4]) != MAGIC:
        raise BlockCorrupt(problem="no block starts here")
    if leader.window_count > limits.windows_max:
        raise BlockTooLarge(problem=f"{leader.window_count} windows, at most {limits.windows_max} are allowed")
    head_bytes = HEAD_BYTES + WINDOW_BYTES * leader.window_count
    if len(data) < head_bytes:
        raise BlockTruncated(problem=f"the head needs {head_bytes} bytes, only {len(data)} are there")
    view = memoryview(data)
    if _crc32c(view[HEAD_BYTES:head_bytes], _crc32c(view[: HEAD_BYTES - 4])) != leader.header_checksum:
        raise BlockCorrupt(problem="the header checksum does not match")
    edges = struct.unpack_from(f"<{2 * leader.window_count}I", data, HEAD_BYTES)
    windows = tuple(range(edges[i], edges[i + 1]) for i in range(0, len(edges), 2))
    previous_end = 0
    for window in windows:
        if not previous_end <= window.start < window.stop:
            raise BlockCorrupt(problem="windows are not ascending, disjoint and filled")
        previous_end = window.stop
    return windows


def _check_maker(maker: Maker, limits: BlockLimits) -> None:
    magic, kind, _, codec, reserved, time_min_us, time_max_us, base_seq, _, count, raw_bytes, stored_bytes, _ = maker
    if magic != MAGIC:
        raise BlockCorrupt(problem="no block starts here")
    if stored_bytes > limits.stored_bytes_max or raw_bytes > limits.raw_bytes_max:
        raise BlockTooLarge(
            problem=f"the body claims {stored_bytes} stored and {raw_bytes} raw bytes; "
            f"at most {limits.stored_bytes_max} and {limits.raw_bytes_max} are allowed"
        )
    # A placeholder has no body, so its count asks for no memory.
    if count > limits.records_max and kind != _KIND_MISSING:
        raise BlockTooLarge(problem=f"{count} records, at most {limits.records_max} are allowed")
    if codec > _CODEC_ZSTD or not _KIND_FRAMES <= kind <= _KIND_MISSING or reserved:
        raise BlockCorrupt(problem=f"kind {kind} or codec {codec} is unknown; a newer Tidelog wrote this?")
    if raw_bytes != stored_bytes and codec == _CODEC_NONE and kind != _KIND_FOREIGN:
        raise BlockCorrupt(problem="an uncompressed body has two different lengths")
    if kind == _KIND_MISSING and (stored_bytes or raw_bytes):
        raise BlockCorrupt(problem="a placeholder has a body")
    if time_min_us > time_max_us:
        raise BlockCorrupt(problem="the smallest time is above the largest")
    if base_seq + count > _UINT64_MAX:
        raise BlockCorrupt(problem="the seqs of this block run past 2^64")


def check_body(maker_bytes: Buffer, maker: Maker, body: Buffer) -> None:
    """Compare the body, padding included, with the maker's checksum."""
    needed = (maker.stored_bytes + 7) & ~7
    if len(body) < needed:
        raise BlockTruncated(problem=f"the body needs {needed} bytes, {len(body)} are there")
    if len(body) > needed:
        raise BlockCorrupt(problem=f"{len(body) - needed} bytes follow the body")
    head = memoryview(maker_bytes)[: MAKER_BYTES - 4]
    if _crc32c(body, _crc32c(head)) != maker.body_checksum:
        raise BlockCorrupt(problem="the body checksum does not match")


def time_outside_span() -> BlockCorrupt:
    """What decoders raise: searches by time trust the header's span and would miss such a record."""
    return BlockCorrupt(problem="a record's time lies outside the span that the header gives")
