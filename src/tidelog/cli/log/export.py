"""`tidelog log export`: frames of a log as .lpj, candump or canboat .raw, in the order of their seqs.

lplex blocks that fill a log by themselves, in order, are written out byte for byte; anything else is encoded anew, with
tables of the devices that the frames themselves and lplex's own tables tell of. What has no place in the format
(messages, control records) is left out and counted. Damage is named on stderr and makes the exit code 1; the rest is
exported all the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.foreign import open_foreign
from tidelog.blocks.header import BlockKind
from tidelog.blocks.lpj import LPJ_BLOCK_BYTES, LpjDevice
from tidelog.cli.log.lpj_copy import Shape, copy_blocks, shape_of
from tidelog.cli.log.lpj_devices import DeviceTables
from tidelog.cli.log.seq_order import FRAME_KINDS, LineageInOrder, OrderedFrames, lineages_of
from tidelog.cli.log.sources import BrokenBytes, Stream, open_source
from tidelog.cli.output import print_json, progress, warn
from tidelog.compat.captures import write_canboat_raw, write_candump
from tidelog.compat.lpj import CompressionName, LpjWriter
from tidelog.errors import InvalidConfig
from tidelog.units import parse_bytes

FILLED_MAX: Final = 10_000_000
"""Seqs that `--fill-gaps` writes a frame for: a boat leases some 16,000 ahead, and never has that many gaps."""
_SUFFIXES = {".lpj": "lpj", ".log": "candump", ".candump": "candump", ".txt": "candump", ".raw": "canboat"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LpjShape:
    """How an .lpj file is to be written; None for as the blocks are, or as lplex does."""

    compression: CompressionName | None = None
    block_bytes: int | None = None
    fill_gaps: bool = False
    """Put a frame that says so where a seq is missing, so that lplex finds no jump."""


@dataclass(slots=True)
class Exported:
    source: str
    target: str
    format: str
    frames: int = 0
    unchanged: bool = False
    """The blocks were copied byte for byte."""
    left_out: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    lineages: list[bytes] = field(default_factory=list)
    """Those that were exported, in the order in which they are in the file."""
    gaps: int = 0
    """Runs of seqs that the log does not have."""
    filled: int = 0
    """Seqs among them for which a frame without content was written."""

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "format": self.format,
            "frames": self.frames,
            "unchanged": self.unchanged,
            "left_out": dict(self.left_out),
            "damaged": self.damaged,
            "lineages": len(self.lineages),
            "lineage_list": [lineage.hex() for lineage in self.lineages],
            "gaps": self.gaps,
            "filled": self.filled,
        }


def run_export(
    source: str,
    target: str,
    *,
    kind: str | None,
    channel: str | None,
    lineage: str | None,
    compression: CompressionName | None,
    block_size: str | None,
    fill_gaps: bool,
    as_json: bool,
) -> int:
    suffix = os.path.splitext(target)[1].lower()
    chosen = kind or _SUFFIXES.get(suffix)
    if chosen is None:
        problem = f"{target} has none of the suffixes {', '.join(_SUFFIXES)}; say which format with --format"
        raise InvalidConfig(section="export", problems=[problem])
    if chosen != "lpj" and (compression or block_size or fill_gaps):
        problem = "--compression, --block-size and --fill-gaps are for .lpj files"
        raise InvalidConfig(section="export", problems=[problem])
    shape = LpjShape(
        compression=compression,
        block_bytes=None if block_size is None else parse_bytes(block_size),
        fill_gaps=fill_gaps,
    )
    opened = open_source(source, channel=channel)
    if len(opened.streams) != 1:
        raise InvalidConfig(section="export", problems=[f"{source} has several channels; choose one with --channel"])
    result = Exported(source=source, target=target, format=chosen)
    with progress("exporting", opened.total_bytes) as advance:
        frames = _Frames(opened.streams[0], result, advance, lineage)
        if chosen == "lpj":
            _write_lpj(target, frames, result, shape)
        else:
            write = write_candump if chosen == "candump" else write_canboat_raw
            result.frames = write(target, (columns for _, _, columns in frames))
    result.left_out += Counter({"frames whose seq came before": frames.ordered.repeated})
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)
    return 1 if result.damaged else 0


def _print(result: Exported) -> None:
    how = "copied unchanged" if result.unchanged else "written"
    print(f"{result.target}: {result.frames} frames {how} as {result.format}")
    for what, count in result.left_out.items():
        print(f"left out: {count} {what}")
    if result.gaps:
        filled = f"; {result.filled} frames that say `no frame` stand in for them" if result.filled else ""
        print(f"note: {result.gaps} runs of seqs are not in the log (lost, void or not there yet){filled}")
    if result.format == "lpj" and len(result.lineages) > 1:
        names = " ".join(lineage.hex() for lineage in result.lineages)
        print(
            f"note: {len(result.lineages)} lineages follow each other, and .lpj cannot tell them apart: lplex's verify"
            f" sees a jump; choose one with --lineage: {names}"
        )


class _Frames:
    """The frames of the chosen lineages in seq order, with an account of everything else."""

    def __init__(self, stream: Stream, result: Exported, advance: Any, lineage: str | None) -> None:
        self._stream = stream
        self._result = result
        self.ordered = OrderedFrames(stream, damaged=self._damaged, advance=advance)
        self.chosen = _chosen(lineages_of(stream), lineage)
        result.lineages = [found.producer for found in self.chosen if found.frames]
        result.gaps = sum(_gaps(found) for found in self.chosen)
        self._count_the_rest()

    def __iter__(self) -> Iterator[tuple[int, Block, FrameColumns]]:
        for lineage in self.chosen:
            yield from self.ordered.frames(lineage)

    def check_fillable(self) -> None:
        missing = sum(map(_missing, self.chosen))
        if missing > FILLED_MAX:
            problem = f"{missing} seqs are missing and --fill-gaps fills at most {FILLED_MAX}; export without it"
            raise InvalidConfig(section="export", problems=[problem])

    def without_gaps(self) -> Iterator[tuple[int, Block | None, FrameColumns]]:
        """The same, and between two seqs of a lineage what stands in for those that are missing, of no block."""
        from tidelog.edge.uplink.lplex_cloud import NO_FRAMES_MAX, no_frames

        for lineage in self.chosen:
            following: int | None = None
            for first_seq, block, columns in self.ordered.frames(lineage):
                while following is not None and following < first_seq:
                    count = min(first_seq - following, NO_FRAMES_MAX)
                    yield following, None, no_frames(count, int(columns.times_us[0]))
                    self._result.filled += count
                    following += count
                yield first_seq, block, columns
                following = first_seq + len(columns)

    def shape(self) -> Shape | None:
        """The shape that all blocks share, if they can be copied as they are, one behind the other."""
        if len(self.chosen) != 1 or not self.chosen[0].is_in_order:
            return None
        shapes: set[Shape | None] = set()
        for block in self._frame_blocks():
            if bytes(block.maker.producer) == self.chosen[0].producer:
                shapes.add(shape_of(block))
        return shapes.pop() if len(shapes) == 1 else None

    def stored_blocks(self) -> Iterator[Block]:
        """For copying: those of the one lineage, as they lie."""
        return (block for block in self._frame_blocks() if bytes(block.maker.producer) == self.chosen[0].producer)

    def _frame_blocks(self) -> Iterator[Block]:
        for item in self._stream.items():
            if not isinstance(item, BrokenBytes) and item.block.maker.kind in FRAME_KINDS:
                yield item.block

    def _count_the_rest(self) -> None:
        """Damage, and records that no frame format has a place for."""
        for item in self._stream.items():
            if isinstance(item, BrokenBytes):
                self._damaged(str(item))
                continue
            kind = BlockKind(item.block.maker.kind)
            if kind == BlockKind.MISSING:
                self._damaged(f"{item.file} at byte {item.position}: {item.block.counted} records are missing")
            elif kind not in FRAME_KINDS:
                self._result.left_out[f"{kind.name.lower()} records"] += item.block.counted

    def _damaged(self, problem: str) -> None:
        self._result.damaged += 1
        warn(problem)


def _chosen(found: dict[bytes, LineageInOrder], wanted: str | None) -> list[LineageInOrder]:
    if wanted is None:
        return list(found.values())
    fitting = [lineage for producer, lineage in found.items() if producer.hex().startswith(wanted.lower())]
    if len(fitting) != 1:
        names = ", ".join(producer.hex() for producer in found) or "none"
        problem = f"{wanted!r} begins {len(fitting)} lineages of this log; there are: {names}"
        raise InvalidConfig(section="export", problems=[problem])
    return fitting


def _holes(lineage: LineageInOrder) -> Iterator[range]:
    """Runs of seqs between the first and the last that the log does not have."""
    seqs = sorted((piece.seqs for chain in lineage.chains for piece in chain.pieces), key=lambda part: part.start)
    for before, after in pairwise(seqs):
        if before.stop < after.start:
            yield range(before.stop, after.start)


def _gaps(lineage: LineageInOrder) -> int:
    return sum(1 for _ in _holes(lineage))


def _missing(lineage: LineageInOrder) -> int:
    return sum(map(len, _holes(lineage)))


def _write_lpj(target: str, frames: _Frames, result: Exported, wanted: LpjShape) -> None:
    fills = wanted.fill_gaps and result.gaps > 0
    if fills:
        frames.check_fillable()
    shape = frames.shape() if replace(wanted, fill_gaps=fills) == LpjShape() else None
    if shape is not None:
        result.unchanged = True
        result.frames = copy_blocks(target, shape, frames.stored_blocks())
        return
    block_bytes = wanted.block_bytes or LPJ_BLOCK_BYTES
    writer = LpjWriter(target, block_size=block_bytes, compression=wanted.compression or "zstd")
    tables = DeviceTables(writer)
    try:
        for first_seq, block, columns in frames.without_gaps() if fills else frames:
            tables.append(columns, first_seq, known=() if block is None else _table_of(block))
        writer.close()
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    if tables.left_out:
        result.left_out[f"devices without room in a block of {block_bytes} bytes"] += tables.left_out
    result.frames = writer.frame_count


def _table_of(block: Block) -> Sequence[LpjDevice]:
    """What an lplex block says of the devices on the bus."""
    return open_foreign(block.maker, block.body).devices if block.maker.kind == BlockKind.FOREIGN else ()
