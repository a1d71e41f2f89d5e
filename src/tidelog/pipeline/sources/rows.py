"""The rows of one task of Spark's data source, as record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from tidelog.pipeline.sources.columns import RowFilter, batches
from tidelog.pipeline.sources.logs import FRAME_KINDS, MESSAGE_KINDS, BlockFilter
from tidelog.pipeline.sources.planning import Bounds, Pieces, block_filter
from tidelog.pipeline.sources.source_options import SourceOptions

DESCRIPTORS: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("channel_id", pa.int64()),
        ("leader_epoch", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)


def rows_of(
    pieces: Pieces | None, options: SourceOptions, columns: pa.Schema, bounds: Mapping[str, Bounds]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in exactly these columns."""
    if pieces is None:
        return  # Spark runs one task even where nothing is planned
    if options.descriptors:
        yield _descriptors(pieces, columns)
        return
    messages = options.records == "messages"
    coarse = block_filter(bounds)
    wanted = BlockFilter(
        kinds=MESSAGE_KINDS if messages else FRAME_KINDS,
        from_seq=coarse.from_seq,
        before_seq=coarse.before_seq,
        from_time_us=coarse.from_time_us,
        before_time_us=coarse.before_time_us,
    )
    rows = RowFilter(pgns=_chosen_pgns(options.pgns, bounds.get("pgn")))
    logs = options.address.open_shared()
    for piece in pieces:
        runs = logs.blocks(piece, wanted=wanted, on_trimmed=options.on_trimmed, on_damaged=options.on_damaged)
        for batch in batches(runs, piece, columns.names, messages=messages, wanted=rows):
            if batch.num_rows:
                # The same arrays: Spark compares the schemas, with what may be null in each.
                yield pa.RecordBatch.from_arrays(batch.columns, schema=columns)


def _chosen_pgns(chosen: frozenset[int] | None, bounds: Bounds | None) -> frozenset[int] | None:
    """PGNs that are requested and that a filter allows; None is all of them."""
    if bounds is None or bounds.values is None:
        return chosen
    left = frozenset(value for value in bounds.values if isinstance(value, int) and -(2**31) <= value < 2**31)
    return left if chosen is None else left & chosen


def _descriptors(pieces: Pieces, columns: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([getattr(piece, field.name) for piece in pieces], field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
