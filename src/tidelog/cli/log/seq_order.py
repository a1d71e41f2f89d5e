"""The frames of a log in the order of their seqs, whatever the order in which they arrived.

A log is in arrival order: what Backfill brought late lies behind newer frames. One pass over the blocks' headers finds
how they follow each other; pieces that rise are read as chains, a few at a time, so memory is bounded by the number of
blocks and not by their size, and a log that is in order already is read once.

LSO1  Lineages come one after the other, in the order of their first block; each rises in seq.
LSO2  A seq comes out once: what a later block repeats is left out and counted.
LSO3  Blocks without seqs come where they lie, behind the lineage before them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.cli.log.sources import BrokenBytes, Stream
from tidelog.errors import BadBlock

FRAME_KINDS = (BlockKind.FRAMES, BlockKind.FOREIGN)


@dataclass(frozen=True, slots=True)
class PieceInOrder:
    """Frames of one block whose seqs follow each other."""

    offset: int
    """The offset of the block."""
    start: int
    """Place of the first one among the block's counted frames."""
    seqs: range


@dataclass(slots=True)
class Chain:
    """Pieces in log order whose seqs rise."""

    pieces: list[PieceInOrder] = field(default_factory=list)


@dataclass(slots=True)
class LineageInOrder:
    producer: bytes
    chains: list[Chain] = field(default_factory=list)
    frames: int = 0
    _ends: list[tuple[int, int]] = field(default_factory=list)
    """(end seq, place) of every chain, sorted."""

    @property
    def is_in_order(self) -> bool:
        return len(self.chains) <= 1

    def add(self, piece: PieceInOrder) -> None:
        """To the chain that ends closest below it, so that Live and Backfill stay apart."""
        found = bisect_right(self._ends, (piece.seqs.start, len(self.chains))) - 1
        if found >= 0:
            _, place = self._ends.pop(found)
        else:
            place = len(self.chains)
            self.chains.append(Chain())
        self.chains[place].pieces.append(piece)
        insort(self._ends, (piece.seqs.stop, place))
        self.frames += len(piece.seqs)


def lineages_of(stream: Stream) -> dict[bytes, LineageInOrder]:
    """By producer, in the order of their first blocks. Blocks without seqs are under the producer with none."""
    found: dict[bytes, LineageInOrder] = {}
    unnumbered: dict[bytes, int] = {}
    for item in stream.items():
        if isinstance(item, BrokenBytes) or item.block.maker.kind not in FRAME_KINDS:
            continue
        block = item.block
        producer = bytes(block.maker.producer)
        lineage = found.setdefault(producer, LineageInOrder(producer))
        offset, start = block.offsets.start, 0
        for seqs in block.counted_seqs():
            lineage.add(PieceInOrder(offset, start, seqs))
            start += len(seqs)
        if not block.maker.base_seq:
            first = unnumbered.get(producer, 1)
            lineage.add(PieceInOrder(offset, 0, range(first, first + block.counted)))
            unnumbered[producer] = first + block.counted
    return found


class OrderedFrames:
    """The frames of some lineages of a stream. `repeated` counts what was left out by LSO2."""

    def __init__(self, stream: Stream, *, damaged: Callable[[str], None], advance: Callable[[int], None]) -> None:
        self._stream = stream
        self._damaged = damaged
        self._advance = advance
        self.repeated = 0

    def frames(self, lineage: LineageInOrder) -> Iterator[tuple[int, Block, FrameColumns]]:
        """(first seq, the block they are of, frames), rising."""
        following = 0
        for piece, block, frames in self._merged(lineage):
            known = min(max(0, following - piece.seqs.start), len(piece.seqs))
            self.repeated += known
            if known < len(piece.seqs):
                yield piece.seqs.start + known, block, frames.slice(known, len(frames))
                following = piece.seqs.stop

    def _merged(self, lineage: LineageInOrder) -> Iterator[tuple[PieceInOrder, Block, FrameColumns]]:
        """Chains are opened when they are due and read side by side while they overlap."""
        due = sorted(range(len(lineage.chains)), key=lambda place: lineage.chains[place].pieces[0].seqs.start)
        heads: list[tuple[int, int]] = [(lineage.chains[place].pieces[0].seqs.start, place) for place in due]
        heapq.heapify(heads)
        reading: dict[int, Iterator[tuple[PieceInOrder, Block, FrameColumns]]] = {}
        position = dict.fromkeys(due, 0)
        while heads:
            _, place = heapq.heappop(heads)
            chain = lineage.chains[place]
            if place not in reading:
                reading[place] = self._read(chain)
            found = next(reading[place], None)
            if found is None:
                continue
            yield found
            # Damage may have cost the chain some pieces: go on behind the one that came.
            position[place] = chain.pieces.index(found[0], position[place]) + 1
            if position[place] < len(chain.pieces):
                heapq.heappush(heads, (chain.pieces[position[place]].seqs.start, place))
            else:
                reading.pop(place)

    def _read(self, chain: Chain) -> Iterator[tuple[PieceInOrder, Block, FrameColumns]]:
        pieces = iter(chain.pieces)
        piece = next(pieces, None)
        if piece is None:
            return
        for item in self._stream.items(piece.offset):
            if piece is None:
                return
            if isinstance(item, BrokenBytes) or item.block.offsets.start < piece.offset:
                continue
            block = item.block
            while piece is not None and piece.offset < block.offsets.start:
                piece = next(pieces, None)
            if piece is None or piece.offset != block.offsets.start:
                continue
            self._advance(block.size)
            try:
                frames = counted_frames(block)
            except BadBlock as error:
                self._damaged(f"offsets from {block.offsets.start}: {error.problem}")
                frames = None
            while piece is not None and piece.offset == block.offsets.start:
                if frames is not None:
                    yield piece, block, frames.slice(piece.start, piece.start + len(piece.seqs))
                piece = next(pieces, None)
