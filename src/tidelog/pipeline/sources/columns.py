"""Blocks to Arrow batches in the schemas that Spark and the tables use, narrow on request.

The body of a block is opened only if a column of it is wanted; offsets, seqs and header fields cost a few numpy calls
for a whole run of blocks. No path takes a Python step per record.

PC1  The columns come in the requested order, with exactly the types of `FRAMES` and `MESSAGES`.
PC2  Only records inside the piece that count are rows; control records and placeholders are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.blocks.arrow import frames_to_arrow, messages_to_arrow
from tidelog.blocks.block import Block
from tidelog.blocks.header import NO_PRODUCER, Path
from tidelog.pipeline.sources.logs import FRAME_KINDS, MESSAGE_KINDS, Piece

ROWS_MAX: Final = 65_536
"""The most rows of one batch: larger ones gain nothing in Spark."""
BODY_BYTES_MAX: Final = 64 << 20
"""The most bytes of bodies that are opened together, according to their headers."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

FRAMES: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("lineage", pa.string()),  # 32 hex digits, null for none
        ("seq", pa.int64()),
        ("offset", pa.int64()),
        ("epoch", pa.int64()),  # the leader epoch of the block
        ("time", _TIME),  # the boat's own clock, whatever it says
        ("priority", pa.int8()),
        ("pgn", pa.int32()),
        ("source", pa.int16()),
        ("destination", pa.int16()),  # 255 for everybody
        ("data", pa.binary()),
        ("path", pa.string()),  # live, backfill or publish
        ("append_time", _TIME),  # the leader's clock
    ]
)
MESSAGES: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("offset", pa.int64()),
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("time", _TIME),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("append_time", _TIME),
    ]
)

_FRAME_BODY: Final = frozenset({"time", "priority", "pgn", "source", "destination", "data"})
_MESSAGE_BODY: Final = frozenset({"time", "key", "value", "headers"})
_PATHS: Final = (None, "live", "backfill", "publish")
# No array of pyarrow's is made when this is imported: the first one imports pandas, a quarter of a second that Spark's
# planning processes can do without.
_BROADCAST: Final = 255
_PDU2: Final = 240

_Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The rows that Spark needs; it filters exactly by itself, this only saves it the others."""

    pgns: frozenset[int] | None = None


def frame_batch(blocks: Sequence[Block], piece: Piece, columns: Sequence[str]) -> pa.RecordBatch:
    """The frames of these verified blocks that are in the piece; blocks of other kinds are skipped."""
    held = [block for block in blocks if block.maker.kind in FRAME_KINDS]
    return _cut(_frames(held, piece, columns), held, piece)


def message_batch(blocks: Sequence[Block], piece: Piece, columns: Sequence[str]) -> pa.RecordBatch:
    """The same for messages."""
    held = [block for block in blocks if block.maker.kind in MESSAGE_KINDS]
    return _cut(_messages(held, piece, columns), held, piece)


def batches(
    runs: Iterable[Sequence[Block]],
    piece: Piece,
    columns: Sequence[str],
    *,
    messages: bool = False,
    rows_max: int = ROWS_MAX,
    wanted: RowFilter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of up to `rows_max` rows; small blocks are decoded together."""
    make, kinds = (message_batch, MESSAGE_KINDS) if messages else (frame_batch, FRAME_KINDS)
    pgns = wanted.pgns if wanted is not None and not messages else None
    asked = list(columns)
    if pgns is not None and "pgn" not in asked:
        asked.append("pgn")
    for gathered in _gathered(runs, kinds, rows_max):
        batch = make(gathered, piece, asked)
        if pgns is not None:
            batch = batch.filter(pc.is_in(batch["pgn"], value_set=pa.array(sorted(pgns), pa.int32())))
            batch = batch.select(list(columns))
        for start in range(0, batch.num_rows, rows_max):
            yield batch.slice(start, rows_max)


def _gathered(runs: Iterable[Sequence[Block]], kinds: frozenset[int], rows_max: int) -> Iterator[list[Block]]:
    """Blocks of these kinds in groups that fill a batch without exceeding the limit of opened bodies."""
    group: list[Block] = []
    rows = body_bytes = 0
    for run in runs:
        for block in run:
            if block.maker.kind not in kinds:
                continue
            if group and (rows + block.counted > rows_max or body_bytes + block.maker.raw_bytes > BODY_BYTES_MAX):
                yield group
                group, rows, body_bytes = [], 0, 0
            group.append(block)
            rows += block.counted
            body_bytes += block.maker.raw_bytes
    if group:
        yield group


# --- rows of a run of blocks -------------------------------------------------------------------------


def _cut(batch: pa.RecordBatch, blocks: Sequence[Block], piece: Piece) -> pa.RecordBatch:
    """Without the rows before and after the piece: blocks rise in offsets, so those are at the two ends."""
    before = after = 0
    for block in blocks:
        if block.leader.base_offset >= piece.start:
            break
        before += min(block.end, piece.start) - block.leader.base_offset
    for block in reversed(blocks):
        if block.end <= piece.end:
            break
        after += block.end - max(block.leader.base_offset, piece.end)
    if before or after:
        return batch.slice(before, max(0, batch.num_rows - before - after))
    return batch


def _frames(blocks: Sequence[Block], piece: Piece, columns: Sequence[str]) -> pa.RecordBatch:
    body = frames_to_arrow(blocks) if not _FRAME_BODY.isdisjoint(columns) else None
    heads = _Heads(blocks, piece)
    made: dict[str, pa.Array] = {}
    if body is not None:
        made["time"], made["data"] = body["time"], body["data"]
        made.update(_can_id_columns(body["can_id"].to_numpy(), columns))
    arrays = [made[name] if name in made else heads.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([FRAMES.field(name) for name in columns]))


def _messages(blocks: Sequence[Block], piece: Piece, columns: Sequence[str]) -> pa.RecordBatch:
    body = messages_to_arrow(blocks) if not _MESSAGE_BODY.isdisjoint(columns) else None
    heads = _Heads(blocks, piece)
    arrays = [body[name] if body is not None and name in _MESSAGE_BODY else heads.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([MESSAGES.field(name) for name in columns]))


def _can_id_columns(can_ids: npt.NDArray[np.uint32], columns: Sequence[str]) -> dict[str, pa.Array]:
    """The fields of a 29-bit id. Below PDU format 240 its second byte is a destination, else a part of the PGN."""
    made: dict[str, pa.Array] = {}
    if "priority" in columns:
        made["priority"] = pa.array((can_ids >> 26 & 7).astype(np.int8))
    if "source" in columns:
        made["source"] = pa.array((can_ids & 0xFF).astype(np.int16))
    if "pgn" not in columns and "destination" not in columns:
        return made
    is_addressed = (can_ids >> 16 & 0xFF) < _PDU2
    if "pgn" in columns:
        pgns = can_ids >> 8 & 0x3_FFFF
        made["pgn"] = pa.array(np.where(is_addressed, pgns & 0x3_FF00, pgns).astype(np.int32))
    if "destination" in columns:
        made["destination"] = pa.array(np.where(is_addressed, can_ids >> 8 & 0xFF, _BROADCAST).astype(np.int16))
    return made


class _Heads:
    """Columns that need the headers alone. A live bus leaves thousands of small blocks in a batch, so a block costs no
    more than one step of a generator for each column."""

    def __init__(self, blocks: Sequence[Block], piece: Piece) -> None:
        self._blocks = blocks
        self._channel = piece.channel
        self._firsts = self._of_blocks(block.leader.base_offset for block in blocks)
        self._counts = self._of_blocks(block.end for block in blocks) - self._firsts
        self._rows = int(self._counts.sum())

    def column(self, name: str) -> pa.Array:
        blocks = self._blocks
        match name:
            case "channel":
                return pa.repeat(pa.scalar(self._channel, pa.string()), self._rows)
            case "lineage":
                return self._picked([block.maker.producer for block in blocks], _lineages)
            case "path":
                return self._picked([block.leader.path for block in blocks], _paths)
            case "epoch":
                return self._repeated(block.leader.leader_epoch for block in blocks)
            case "append_time":
                return self._repeated(block.leader.append_time_us for block in blocks).view(_TIME)
            case "offset":
                return pa.array(_counted_on(self._firsts, self._counts))
            case "seq":
                return self._seqs()
            case _:
                raise AssertionError(f"no column {name!r}")

    def _of_blocks(self, values: Iterable[int]) -> _Int64s:
        return np.fromiter(values, np.int64, len(self._blocks))

    def _repeated(self, values: Iterable[int]) -> pa.Array:
        return pa.array(np.repeat(self._of_blocks(values), self._counts))

    def _picked(self, values: list[Any], name: Callable[[list[Any]], pa.Array]) -> pa.Array:
        """A text per block: looked up once for each that differs, then spread over the rows in one call."""
        distinct = list(dict.fromkeys(values))
        if len(distinct) == 1:
            return pa.repeat(name(distinct)[0], self._rows)
        places = {value: place for place, value in enumerate(distinct)}
        return name(distinct).take(self._repeated(places[value] for value in values))

    def _seqs(self) -> pa.Array:
        firsts, counts = self._of_blocks(block.maker.base_seq for block in self._blocks), self._counts
        if any(block.windows for block in self._blocks):
            firsts, counts = self._seqs_by_window()
        found = pa.array(_counted_on(firsts, counts))
        has_seq = firsts != 0
        if has_seq.all():
            return found
        return pc.if_else(pa.array(np.repeat(has_seq, counts)), found, pa.scalar(None, pa.int64()))

    def _seqs_by_window(self) -> tuple[_Int64s, _Int64s]:
        spans: list[tuple[int, int]] = []
        for block in self._blocks:
            base = block.maker.base_seq
            spans += [(base and base + part.start, len(part)) for part in block.counted_ranges()]
        firsts, counts = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        return firsts, counts


def _counted_on(firsts: _Int64s, counts: _Int64s) -> _Int64s:
    """Rows that count up from each span's first number."""
    rows: _Int64s = np.arange(int(counts.sum()), dtype=np.int64)
    if not len(firsts):
        return rows
    ahead = firsts - (np.cumsum(counts) - counts)
    if (ahead == ahead[0]).all():
        rows += ahead[0]  # the spans follow each other: the usual case
    else:
        rows += np.repeat(ahead, counts)
    return rows


def _lineages(producers: list[bytes]) -> pa.Array:
    return pa.array([None if one == NO_PRODUCER else bytes(one).hex() for one in producers], pa.string())


def _paths(paths: list[int]) -> pa.Array:
    return pa.array([_PATHS[path] if path <= Path.PUBLISH else None for path in paths], pa.string())
