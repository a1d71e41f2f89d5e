"""Blocks as Arrow batches: the same rows as one by one, in any choice of columns, cut anywhere."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.crafted import LINEAGE, messages, rows, windows_of
from tests.pipeline.folders import control_block
from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import NO_PRODUCER, BlockKind
from tidelog.blocks.messages import decode_messages, encode_messages
from tidelog.nmea.pgns import pgn_of
from tidelog.pipeline.sources.columns import FRAMES, MESSAGES, RowFilter, batches
from tidelog.pipeline.sources.logs import Piece


@st.composite
def logs(draw: st.DrawFn) -> list[Block]:
    """Blocks of all kinds that follow each other, with and without windows, seqs and lineages."""
    blocks: list[Block] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        seq = draw(st.sampled_from([0, 1, 7_000]))
        producer = draw(st.sampled_from([NO_PRODUCER, LINEAGE]))
        kind = draw(st.sampled_from(["frames", "messages", "control"]))
        if kind == "frames":
            made = encode_frames(
                FrameColumns.from_rows(draw(rows(max_size=9))),
                base_seq=seq,
                producer=producer,
                delta=draw(st.booleans()),
            )
        elif kind == "messages":
            made = encode_messages(draw(messages), base_seq=seq, producer=producer)
        else:
            made = control_block()
        windows = draw(windows_of(made.maker.record_count)) if kind != "control" else ()
        block = made.stamp(
            base_offset=offset,
            channel_id=3,
            leader_epoch=draw(st.integers(1, 4)),
            append_time_us=draw(st.integers(0, 2**50)),
            durable_end=0,
            path=draw(st.integers(0, 3)),
            windows=windows,
        )
        if block.counted:
            blocks.append(block)
            offset = block.end
    return blocks


def frame_rows(block: Block) -> list[dict[str, Any]]:
    """The same the slow way."""
    seqs: list[int | None] = [seq for part in block.counted_seqs() for seq in part]
    seqs = seqs or [None] * block.counted
    producer = bytes(block.maker.producer)
    found = []
    for offset, seq, (time_us, can_id, data) in zip(block.offsets, seqs, counted_frames(block).rows(), strict=True):
        is_addressed = (can_id >> 16 & 0xFF) < 240
        found.append(
            {
                "channel": "boat",
                "lineage": None if producer == NO_PRODUCER else producer.hex(),
                "seq": seq,
                "offset": offset,
                "epoch": block.leader.leader_epoch,
                "time": time_us,
                "priority": can_id >> 26,
                "pgn": pgn_of(can_id),
                "source": can_id & 0xFF,
                "destination": can_id >> 8 & 0xFF if is_addressed else 255,
                "data": data,
                "path": (None, "live", "backfill", "publish")[block.leader.path],
                "append_time": block.leader.append_time_us,
            }
        )
    return found


def message_rows(block: Block) -> list[dict[str, Any]]:
    seqs: list[int | None] = [seq for part in block.counted_seqs() for seq in part]
    seqs = seqs or [None] * block.counted
    records = list(decode_messages(block.maker, block.raw_body()).rows())
    counted = [records[row] for part in block.counted_ranges() for row in part]
    return [
        {
            "channel": "boat",
            "offset": offset,
            "epoch": block.leader.leader_epoch,
            "seq": seq,
            "time": record.time_us,
            "key": record.key,
            "value": record.value,
            "headers": [{"name": name, "value": value} for name, value in record.headers],
            "append_time": block.leader.append_time_us,
        }
        for offset, seq, record in zip(block.offsets, seqs, counted, strict=True)
    ]


def listed(made: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Times as numbers: a datetime cannot say what a boat's clock may."""
    found = []
    for batch in made:
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
        ]
        found += pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return found


@given(data=st.data(), blocks=logs(), messages=st.booleans())
def test_batches_are_the_rows_one_by_one(data: st.DataObject, blocks: list[Block], messages: bool) -> None:
    schema = MESSAGES if messages else FRAMES
    first, last = (blocks[0].offsets.start, blocks[-1].end) if blocks else (0, 0)
    start = data.draw(st.integers(max(0, first - 2), last + 2), label="start")
    end = data.draw(st.integers(start, last + 2), label="end")
    columns = data.draw(st.lists(st.sampled_from(schema.names), min_size=1, unique=True), label="columns")
    piece = Piece(channel="boat", channel_id=3, leader_epoch=9, start=start, end=end)
    kinds = {BlockKind.MESSAGES: message_rows} if messages else {BlockKind.FRAMES: frame_rows}
    slow = [row for block in blocks for row in kinds.get(BlockKind(block.maker.kind), lambda _: [])(block)]
    expected = [{name: row[name] for name in columns} for row in slow if start <= row["offset"] < end]
    runs = [blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]]
    made = list(batches(runs, piece, columns, messages=messages, rows_max=5))
    assert listed(made) == expected
    assert all(batch.schema == pa.schema([schema.field(name) for name in columns]) for batch in made)
    if not messages and slow:
        pgn = slow[0]["pgn"]
        wanted = RowFilter(pgns=frozenset({pgn}))
        chosen = listed(list(batches(runs, piece, columns, wanted=wanted)))
        kept = [row for row in slow if row["pgn"] == pgn and start <= row["offset"] < end]
        assert chosen == [{name: row[name] for name in columns} for row in kept]
