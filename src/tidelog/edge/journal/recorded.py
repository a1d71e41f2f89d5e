"""The recorded frames of a range of seqs."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import decode_block_frames
from tidelog.edge.journal.journal import SEQ_MAX, Journal


def recorded_runs(
    journal: Journal, lineage: bytes, *, from_seq: int, before_seq: int = SEQ_MAX
) -> Iterator[tuple[int, FrameColumns]]:
    """A run of frames for each block, with its first seq, in the order of the journal; missing seqs are left out."""
    wanted = journal.blocks(from_seq=from_seq, before_seq=before_seq, producer=lineage, skip_damaged=True)
    for block in wanted:
        held = block.maker.seqs
        start, stop = max(held.start, from_seq), min(held.stop, before_seq)
        yield start, decode_block_frames(block.made()).slice(start - held.start, stop - held.start)
