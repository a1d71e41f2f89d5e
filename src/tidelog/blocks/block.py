"""A block in memory: made by a producer, then stamped by a leader.

`MadeBlock` is what travels up from a boat or a client. `Block` is what lies in a log: the same
bytes with a leader's stamp in front. Neither copies the body: a stamp is a new head beside it, and
`Block.buffers` goes to the disk or the wire as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Self

import zstandard

from tidelog.blocks.header import (
    DEFAULT_LIMITS,
    HEAD_BYTES,
    MAKER_BYTES,
    NO_PRODUCER,
    WINDOW_BYTES,
    BlockKind,
    BlockLimits,
    Buffer,
    Codec,
    Leader,
    Maker,
    check_body,
    pack_leader,
    pack_maker,
    parse_head,
    parse_maker,
)
from tidelog.errors import BlockCorrupt, BlockTooLarge, InvalidRecord
from tidelog.units import KIB

DEFAULT_ZSTD_LEVEL: Final = 3
_JOINED_BLOCK_BYTES: Final = 16 * KIB

_PADDING: Final = tuple(bytes(count) for count in range(8))


class MadeBlock:
    """A block as its maker left it: 64 bytes of head and the padded body."""

    __slots__ = ("body", "maker", "maker_bytes")

    def __init__(self, maker_bytes: Buffer, maker: Maker, body: Buffer) -> None:
        self.maker_bytes = maker_bytes
        self.maker = maker
        self.body = body

    @classmethod
    def parse(cls, data: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> Self:
        """Read one made block that fills `data` exactly, checking limits and checksum."""
        maker = parse_maker(data, limits)
        view = memoryview(data)
        body = view[MAKER_BYTES:]
        check_body(view, maker, body)
        return cls(view[:MAKER_BYTES], maker, body)

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        return self.maker_bytes, self.body

    def renumbered(self, *, base_seq: int, producer: bytes) -> MadeBlock:
        """The same records under other seqs, or of another producer: only the head is new."""
        maker = self.maker
        maker_bytes = pack_maker(
            kind=maker.kind,
            form=maker.form,
            codec=maker.codec,
            time_min_us=maker.time_min_us,
            time_max_us=maker.time_max_us,
            base_seq=base_seq,
            producer=producer,
            record_count=maker.record_count,
            raw_bytes=maker.raw_bytes,
            body=self.body,
            stored_bytes=maker.stored_bytes,
        )
        return MadeBlock(maker_bytes, parse_maker(maker_bytes), self.body)

    def stamp(
        self,
        *,
        base_offset: int,
        channel_id: int,
        leader_epoch: int,
        append_time_us: int,
        durable_end: int,
        path: int,
        windows: Sequence[range] = (),
    ) -> Block:
        """Give the block its place in a channel. The maker's bytes and the body stay as they are."""
        head, leader = pack_leader(
            self.maker_bytes,
            base_offset=base_offset,
            channel_id=channel_id,
            leader_epoch=leader_epoch,
            append_time_us=append_time_us,
            durable_end=durable_end,
            path=path,
            windows=windows,
        )
        return Block(head, self.body, self.maker, leader, tuple(windows))


class Block:
    """A stamped block: head (with windows) and padded body."""

    __slots__ = ("body", "end", "head", "leader", "maker", "position", "size", "windows")

    def __init__(self, head: Buffer, body: Buffer, maker: Maker, leader: Leader, windows: tuple[range, ...]) -> None:
        self.head = head
        self.body = body
        self.maker = maker
        self.leader = leader
        self.windows = windows
        self.size = len(head) + len(body)
        self.end = leader.base_offset + (counted_records(maker, windows) if windows else maker.record_count)
        """The offset after its last record; asked for many times on the way of every block."""
        self.position: int | None = None
        """Where it begins in its segment file, if it was read from one."""

    @classmethod
    def parse(cls, data: Buffer, position: int = 0, limits: BlockLimits = DEFAULT_LIMITS) -> Self:
        """Read and verify the block that starts at `position`, without copying its body."""
        view = memoryview(data)[position:]
        return cls.with_head(view, *parse_head(view, limits))

    @classmethod
    def with_head(cls, view: memoryview, maker: Maker, leader: Leader, windows: tuple[range, ...]) -> Self:
        """Verify the body of the block that starts at `view`, whose head `parse_head` has read and checked."""
        head_bytes = HEAD_BYTES + WINDOW_BYTES * len(windows)
        body = view[head_bytes : head_bytes + ((maker.stored_bytes + 7) & ~7)]
        check_body(view, maker, body)
        return cls(view[:head_bytes], body, maker, leader, windows)

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        return self.head, self.body

    @property
    def counted(self) -> int:
        """Records that have an offset: all of them, or those inside the windows."""
        return self.end - self.leader.base_offset

    @property
    def offsets(self) -> range:
        return range(self.leader.base_offset, self.end)

    def counted_ranges(self) -> tuple[range, ...]:
        """Positions in the body that count, ascending."""
        return self.windows or (range(self.maker.record_count),)

    def counted_seqs(self) -> list[range]:
        """The seqs of the records that count; empty when the records have none."""
        base = self.maker.base_seq
        return [range(base + part.start, base + part.stop) for part in self.counted_ranges()] if base else []

    def made(self) -> MadeBlock:
        """The block without its stamp, as a boat would send it."""
        return MadeBlock(memoryview(self.head)[:MAKER_BYTES], self.maker, self.body)

    def tobytes(self) -> bytes:
        return b"".join(self.buffers)

    def raw_body(self, limits: BlockLimits = DEFAULT_LIMITS) -> Buffer:
        return raw_body(self.maker, self.body, limits)


def buffers_to_send(blocks: Sequence[Block], size: int) -> list[Buffer]:
    """The bytes of these blocks for a connection; `size` is their sum. Large blocks are not copied; small ones are
    joined, since many small buffers cost more than one copy."""
    buffers = [buffer for block in blocks for buffer in block.buffers]
    if size > _JOINED_BLOCK_BYTES * len(blocks):
        return [buffer for buffer in buffers if len(buffer)]
    return [b"".join(buffers)]


def counted_records(maker: Maker, windows: Sequence[range]) -> int:
    return sum(len(window) for window in windows) if windows else maker.record_count


def make_block(
    raw: Buffer,
    *,
    kind: BlockKind,
    form: int,
    record_count: int,
    codec: Codec = Codec.NONE,
    level: int = DEFAULT_ZSTD_LEVEL,
    time_min_us: int = 0,
    time_max_us: int = 0,
    base_seq: int = 0,
    producer: bytes = NO_PRODUCER,
    limits: BlockLimits = DEFAULT_LIMITS,
) -> MadeBlock:
    """Wrap a body. zstd is kept only where it makes the body smaller."""
    if len(raw) > limits.raw_bytes_max or record_count > limits.records_max:
        raise InvalidRecord(
            problem=f"{record_count} records of {len(raw)} bytes do not fit one block "
            f"({limits.records_max} records, {limits.raw_bytes_max} bytes); make smaller blocks"
        )
    stored = raw
    if codec is Codec.ZSTD:
        squeezed = _squeezed(raw, level)
        if len(squeezed) < len(raw):
            stored = squeezed
        else:
            codec = Codec.NONE
    stored_bytes = len(stored)
    padding = -stored_bytes & 7
    body: Buffer = b"".join((stored, _PADDING[padding])) if padding else stored
    maker_bytes = pack_maker(
        kind=kind,
        form=form,
        codec=codec,
        time_min_us=time_min_us,
        time_max_us=time_max_us,
        base_seq=base_seq,
        producer=producer,
        record_count=record_count,
        raw_bytes=len(raw),
        body=body,
        stored_bytes=stored_bytes,
    )
    return MadeBlock(maker_bytes, parse_maker(maker_bytes, limits), body)


# Making a zstd context costs more than using it for a live block, and no two callers may use one at the same time. So
# those that are idle wait in a list: the taker uses it alone.
_idle_compressors: Final[dict[int, list[zstandard.ZstdCompressor]]] = {}
_idle_decompressors: Final[list[zstandard.ZstdDecompressor]] = []


def _squeezed(raw: Buffer, level: int) -> bytes:
    idle = _idle_compressors.setdefault(level, [])
    try:
        compressor = idle.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=level)
    squeezed = compressor.compress(raw)
    idle.append(compressor)
    return squeezed


def _inflated(stored: Buffer, size: int) -> bytes:
    try:
        decompressor = _idle_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    raw = decompressor.decompress(stored, max_output_size=size)
    _idle_decompressors.append(decompressor)  # one that failed is not used again
    return raw


def raw_body(maker: Maker, body: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> Buffer:
    """The body as it was before compression. Sizes are compared before anything is inflated (BH1)."""
    stored = memoryview(body)[: maker.stored_bytes]
    if maker.codec == Codec.NONE:
        return stored
    if maker.raw_bytes > limits.raw_bytes_max:
        raise BlockTooLarge(
            problem=f"the body inflates to {maker.raw_bytes} bytes, the limit is {limits.raw_bytes_max}"
        )
    try:
        frame = zstandard.get_frame_parameters(stored)
    except zstandard.ZstdError as error:
        raise BlockCorrupt(problem=f"the body is not a zstd frame: {error}") from error
    # python-zstandard trusts a size in the frame over max_output_size, so compare it first.
    if frame.content_size != maker.raw_bytes:
        raise BlockCorrupt(
            problem=f"the zstd frame holds {frame.content_size} bytes, the header says {maker.raw_bytes}"
        )
    if frame.window_size > max(limits.raw_bytes_max, 1 << 20):
        raise BlockTooLarge(problem=f"the zstd frame asks for a window of {frame.window_size} bytes")
    try:
        raw = _inflated(stored, maker.raw_bytes)
    except zstandard.ZstdError as error:
        raise BlockCorrupt(problem=f"the body does not inflate: {error}") from error
    if len(raw) != maker.raw_bytes:
        raise BlockCorrupt(problem=f"the body inflates to {len(raw)} bytes, the header says {maker.raw_bytes}")
    return raw


def iterate_blocks(data: Buffer, limits: BlockLimits = DEFAULT_LIMITS) -> Iterator[Block]:
    """The blocks that lie one after the other in `data`; raises at the first bad or cut one."""
    position = 0
    while position < len(data):
        block = Block.parse(data, position, limits)
        yield block
        position += block.size


def missing_block(
    *, offsets: range, channel_id: int, leader_epoch: int, append_time_us: int, durable_end: int
) -> Block:
    """A placeholder for records this replica once held and can no longer read."""
    assert len(offsets) < 2**32, "the caller splits longer ranges"
    maker_bytes = pack_maker(
        kind=BlockKind.MISSING,
        form=0,
        codec=Codec.NONE,
        time_min_us=append_time_us,
        time_max_us=append_time_us,
        base_seq=0,
        producer=NO_PRODUCER,
        record_count=len(offsets),
        raw_bytes=0,
        body=b"",
        stored_bytes=0,
    )
    return MadeBlock(maker_bytes, parse_maker(maker_bytes), b"").stamp(
        base_offset=offsets.start,
        channel_id=channel_id,
        leader_epoch=leader_epoch,
        append_time_us=append_time_us,
        durable_end=durable_end,
        path=0,
    )
