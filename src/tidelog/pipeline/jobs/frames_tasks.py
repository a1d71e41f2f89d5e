"""A task of the frames job: its pieces of the log into Parquet files, a few blocks at a time.

Runs in Spark's Python workers and knows nothing of Spark. Names that are the same for a whole block (channel, lineage,
path) are passed on as dictionaries: written out per row they would cost more than the frames themselves.

FT1  Every committed frame of the pieces is in exactly one of the files that are returned, in offset order per file.
FT2  Memory does not grow with the length of a piece.
FT3  Lost and void ranges in control records among them are returned too, whether frames follow or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.blocks.block import Block
from tidelog.blocks.header import NO_PRODUCER, BlockKind
from tidelog.blocks.header import Path as BlockPath
from tidelog.pipeline.jobs.lost_ranges import ControlWatch, SaidRange
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.columns import batches
from tidelog.pipeline.sources.logs import FAIL, FRAME_KINDS, BlockFilter, Piece
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.parquet_files import PartitionedWriter, constant
from tidelog.pipeline.tables.table import DataFile

_BATCH_ROWS: Final = 1 << 17
_DAY_US: Final = 86_400 * 1_000_000
_PER_BLOCK: Final = frozenset({"channel", "lineage", "path", "append_day"})
_READ: Final = tuple(name for name in FRAMES_LAYOUT.schema.names if name not in _PER_BLOCK)
_WANTED: Final = BlockFilter(kinds=FRAME_KINDS | {int(BlockKind.CONTROL)})
_PATH_NAMES: Final = {BlockPath.LIVE: "live", BlockPath.BACKFILL: "backfill", BlockPath.PUBLISH: "publish"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesOrder:
    """One task: which pieces, from where, to where. Pickled."""

    address: LogsAddress
    pieces: tuple[Piece, ...]
    folder: str
    on_trimmed: str = FAIL
    on_damaged: str = FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file with rows of one channel."""

    channel_id: int
    file: DataFile


@dataclass(slots=True, kw_only=True)
class PiecesWritten:
    """The result of a task."""

    files: list[WrittenFile] = field(default_factory=list)
    said: list[SaidRange] = field(default_factory=list)


def write_pieces(order: FramesOrder) -> PiecesWritten:
    """Read, check, decode and write the pieces of one task."""
    logs = order.address.open_shared()
    done = PiecesWritten()
    for channel_id in dict.fromkeys(piece.channel_id for piece in order.pieces):
        pieces = [piece for piece in order.pieces if piece.channel_id == channel_id]
        control = ControlWatch(pieces[0].channel)
        with PartitionedWriter(Path(order.folder), FRAMES_LAYOUT) as writer:
            for piece in pieces:
                runs = logs.blocks(piece, wanted=_WANTED, on_trimmed=order.on_trimmed, on_damaged=order.on_damaged)
                for day, batch in frame_rows(control.watched(runs), piece):
                    writer.write(batch, (day, piece.channel))
            done.files += [WrittenFile(channel_id=channel_id, file=file) for file in writer.close()]
        done.said += control.said()
    return done


def frame_rows(runs: Iterable[Sequence[Block]], piece: Piece) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows in the layout of `frames`, each batch of one append day, with that day."""
    heads = _BlockHeads()
    for batch in batches(heads.watched(runs), piece, _READ, rows_max=_BATCH_ROWS):
        if batch.num_rows:
            offsets = batch.column("offset").to_numpy()
            lineages, paths = heads.columns(offsets)
            yield from _by_day(batch, piece.channel, lineages, paths)


def _by_day(
    batch: pa.RecordBatch, channel: str, lineages: pa.Array, paths: pa.Array
) -> Iterator[tuple[str, pa.RecordBatch]]:
    days = batch.column("append_time").cast(pa.int64()).to_numpy() // _DAY_US
    first, last = int(days.min()), int(days.max())
    for day in range(first, last + 1) if last - first < 2 else np.unique(days).tolist():
        chosen = None if first == last else pa.array(days == day)
        rows = batch.num_rows if chosen is None else int(pc.sum(chosen).as_py() or 0)
        if not rows:
            continue
        when = datetime.fromtimestamp(day * 86_400, UTC).date()
        made: dict[str, Any] = {
            "channel": constant(channel, pa.string(), rows),
            "lineage": lineages if chosen is None else lineages.filter(chosen),
            "path": paths if chosen is None else paths.filter(chosen),
            "append_day": constant(when, pa.date32(), rows),
        }
        read = batch if chosen is None else batch.filter(chosen)
        columns = [made[name] if name in made else read.column(name) for name in FRAMES_LAYOUT.schema.names]
        yield when.isoformat(), pa.RecordBatch.from_arrays(columns, names=FRAMES_LAYOUT.schema.names)


@dataclass(slots=True)
class _BlockHeads:
    """Lineage and path of the blocks that were read and whose rows have not come yet."""

    _starts: list[int] = field(default_factory=list)
    _lineages: list[bytes] = field(default_factory=list)
    _paths: list[int] = field(default_factory=list)

    def watched(self, runs: Iterable[Sequence[Block]]) -> Iterator[Sequence[Block]]:
        for run in runs:
            for block in run:
                self._starts.append(block.leader.base_offset)
                self._lineages.append(block.maker.producer)
                self._paths.append(block.leader.path)
            yield run

    def columns(self, offsets: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
        """The values of rows with these rising offsets, which come in the order of the blocks."""
        places = np.searchsorted(np.array(self._starts, dtype=np.int64), offsets, side="right") - 1
        first, last = int(places[0]), int(places[-1])
        places -= first
        lineages = [_lineage(one) for one in self._lineages[first : last + 1]]
        paths = [_PATH_NAMES.get(BlockPath(one)) for one in self._paths[first : last + 1]]
        # The last block may have rows still to come.
        del self._starts[:last], self._lineages[:last], self._paths[:last]
        return _spread(lineages, places), _spread(paths, places)


def _lineage(producer: bytes) -> str | None:
    return None if producer == NO_PRODUCER else bytes(producer).hex()


def _spread(values: Sequence[str | None], places: npt.NDArray[np.intp]) -> pa.DictionaryArray:
    """The value of each row's block, as a dictionary."""
    distinct = [value for value in dict.fromkeys(values) if value is not None]
    if len(distinct) + (None in values) == 1:
        return constant(values[0], pa.string(), len(places))
    codes = {value: code for code, value in enumerate(distinct)}
    by_block = np.array([codes.get(value, -1) if value is not None else -1 for value in values], dtype=np.int32)
    indices = by_block[places]
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=indices < 0), pa.array(distinct, pa.string()))
