"""From verified blocks to records, one by one, or to whole Arrow batches.

RE1  Control blocks and placeholders hold no records for a reader; their offsets are skipped.
RE2  Records before the reader's position are left out, and so are those before its starting time or seq.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.blocks.block import Block
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import HAS_KEY, HAS_VALUE, decode_messages
from tidelog.client.options import Seq, Time

if TYPE_CHECKING:
    import pyarrow as pa

_DATA_KINDS = frozenset({int(BlockKind.FRAMES), int(BlockKind.MESSAGES), int(BlockKind.FOREIGN)})
_NO_HEADERS: tuple[tuple[str, bytes], ...] = ()


class Record(NamedTuple):
    """One message record."""

    offset: int
    time_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    seq: int
    """The producer's number for the record; 0 where it has none."""


class FrameRecord(NamedTuple):
    """One CAN frame."""

    offset: int
    time_us: int
    can_id: int
    data: bytes
    seq: int
    """The boat's number for the frame; 0 where it has none."""


AnyRecord: TypeAlias = Record | FrameRecord
Floor: TypeAlias = Time | Seq | None
"""The start of a reader, if records before it may follow in offset order (B2)."""


def holds_data(block: Block) -> bool:
    return block.maker.kind in _DATA_KINDS


def records_of(block: Block, *, start: int, floor: Floor = None) -> list[AnyRecord]:
    """The block's records from offset `start` on."""
    if not holds_data(block) or _is_below(block, floor):
        return []
    found = _messages(block) if block.maker.kind == BlockKind.MESSAGES else _frames(block)
    if start > block.leader.base_offset:
        found = found[start - block.leader.base_offset :]
    if isinstance(floor, Time):
        found = [record for record in found if record.time_us >= floor.time_us]
    elif isinstance(floor, Seq):
        found = [record for record in found if record.seq >= floor.seq]
    return found


def _is_below(block: Block, floor: Floor) -> bool:
    """Whether no record of the block is at or after the floor, according to its head."""
    if isinstance(floor, Time):
        return block.maker.time_max_us < floor.time_us
    return isinstance(floor, Seq) and block.maker.base_seq + block.maker.record_count <= floor.seq


def _places(block: Block) -> tuple[range, Sequence[int]]:
    """Offsets, and seqs (0 where there are none), of the records that count."""
    seqs = block.counted_seqs()
    if not seqs:
        return block.offsets, [0] * block.counted
    return block.offsets, seqs[0] if len(seqs) == 1 else list(chain.from_iterable(seqs))


def _messages(block: Block) -> list[AnyRecord]:
    columns = decode_messages(block.maker, block.raw_body())
    offsets, seqs = _places(block)
    flags = columns.flags.tolist()
    values: list[bytes | None] = list(columns.values.tolist())
    keys: list[bytes | None] = list(columns.keys.tolist()) if len(columns.keys.data) else [b""] * len(values)
    if not all(flag & HAS_VALUE for flag in flags):
        values = [value if flag & HAS_VALUE else None for value, flag in zip(values, flags, strict=True)]
    keys = [key if flag & HAS_KEY else None for key, flag in zip(keys, flags, strict=True)]
    headers: list[tuple[tuple[str, bytes], ...]] = [_NO_HEADERS] * len(values)
    if len(columns.header_names):
        headers = [tuple(row.headers) for row in columns.rows()]
    times = columns.times_us.tolist()
    if block.windows:
        kept = [index for window in block.windows for index in window]
        times, keys, values, headers = ([column[i] for i in kept] for column in (times, keys, values, headers))  # type: ignore[assignment]
    return list(map(Record._make, zip(offsets, times, keys, values, headers, seqs, strict=True)))


def _frames(block: Block) -> list[AnyRecord]:
    offsets, seqs = _places(block)
    rows = counted_frames(block).rows()
    return [
        FrameRecord(offset, time_us, can_id, data, seq)
        for offset, (time_us, can_id, data), seq in zip(offsets, rows, seqs, strict=True)
    ]


def batches_of(blocks: Sequence[Block], *, start: int, floor: Floor = None) -> list[pa.RecordBatch]:
    """The records of these blocks as few Arrow batches: one for each run of blocks of the same kind."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.blocks.arrow import frames_to_arrow, messages_to_arrow

    batches: list[pa.RecordBatch] = []
    run: list[Block] = []
    is_messages = False
    for block in [*blocks, None]:
        if block is not None and (not holds_data(block) or _is_below(block, floor)):
            continue
        if run and (block is None or (block.maker.kind == BlockKind.MESSAGES) != is_messages):
            batch = messages_to_arrow(run) if is_messages else frames_to_arrow(run)
            skip = max(0, start - run[0].leader.base_offset)
            batches.append(batch.slice(skip) if skip else batch)
            run = []
        if block is not None:
            is_messages = block.maker.kind == BlockKind.MESSAGES
            run.append(block)
    if isinstance(floor, Time):
        limit = pa.scalar(floor.time_us, pa.timestamp("us", tz="UTC"))
        batches = [batch.filter(pc.greater_equal(batch["time"], limit)) for batch in batches]
    elif isinstance(floor, Seq):
        batches = [
            batch.filter(pc.fill_null(pc.greater_equal(batch["seq"], pa.scalar(floor.seq, pa.uint64())), False))
            for batch in batches
        ]
    return [batch for batch in batches if batch.num_rows]
