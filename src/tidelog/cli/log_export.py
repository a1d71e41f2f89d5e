"""`tidelog log export`: frames of a log as .lpj, candump or canboat .raw.

lplex blocks that fill a log by themselves are written out byte for byte; anything else is encoded anew.
What has no place in the format (messages, control records) is left out and counted. Damage is named on
stderr and makes the exit code 1; the rest is exported all the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.cli.lpj_copy import Shape, copy_blocks, shape_of
from tidelog.cli.output import print_json, progress, warn
from tidelog.cli.sources import Broken, Source, open_source
from tidelog.compat.captures import write_canboat_raw, write_candump
from tidelog.compat.lpj import LpjWriter
from tidelog.errors import BadBlock, InvalidConfig

_SUFFIXES = {".lpj": "lpj", ".log": "candump", ".candump": "candump", ".txt": "candump", ".raw": "canboat"}


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
    lineages: set[bytes] = field(default_factory=set)

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
        }


def run_export(source: str, target: str, *, kind: str | None, channel: str | None, as_json: bool) -> int:
    suffix = os.path.splitext(target)[1].lower()
    chosen = kind or _SUFFIXES.get(suffix)
    if chosen is None:
        problem = f"{target} has none of the suffixes {', '.join(_SUFFIXES)}; say which format with --format"
        raise InvalidConfig(section="export", problems=[problem])
    opened = open_source(source, channel=channel)
    if len(opened.streams) != 1:
        raise InvalidConfig(section="export", problems=[f"{source} has several channels; choose one with --channel"])
    result = Exported(source=source, target=target, format=chosen)
    with progress("exporting", opened.total_bytes) as advance:
        blocks = _Blocks(opened, result, advance)
        if chosen == "lpj":
            _write_lpj(target, blocks, result)
        elif chosen == "candump":
            result.frames = write_candump(target, (frames for _, frames in blocks.frames()))
        else:
            result.frames = write_canboat_raw(target, (frames for _, frames in blocks.frames()))
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
    if result.format == "lpj" and len(result.lineages) > 1:
        print(f"note: seqs of {len(result.lineages)} lineages are mixed; .lpj cannot tell them apart")


class _Blocks:
    """The frame blocks of a source, with an account of everything else."""

    def __init__(self, source: Source, result: Exported, advance: Any) -> None:
        self._source = source
        self._result = result
        self._advance = advance

    def shape(self) -> Shape | None:
        """The shape that all blocks share, if they can be copied as they are."""
        shapes: set[Shape | None] = set()
        for item in self._source.streams[0].items():
            if isinstance(item, Broken) or item.block.maker.kind == BlockKind.MISSING:
                continue
            shapes.add(shape_of(item.block))
            if len(shapes) > 1 or None in shapes:
                return None
        return shapes.pop() if shapes else None

    def blocks(self) -> Iterator[Block]:
        for item in self._source.streams[0].items():
            if isinstance(item, Broken):
                self._damaged(str(item))
                continue
            block = item.block
            self._advance(block.size)
            kind = BlockKind(block.maker.kind)
            if kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
                self._result.lineages.add(bytes(block.maker.producer))
                yield block
            elif kind == BlockKind.MISSING:
                self._damaged(f"{item.file} at byte {item.position}: {block.counted} records are missing")
            else:
                self._result.left_out[f"{kind.name.lower()} records"] += block.counted

    def frames(self) -> Iterator[tuple[Block, FrameColumns]]:
        for block in self.blocks():
            try:
                yield block, counted_frames(block)
            except BadBlock as error:
                self._damaged(f"offsets from {block.offsets.start}: {error.problem}")

    def _damaged(self, problem: str) -> None:
        self._result.damaged += 1
        warn(problem)


def _write_lpj(target: str, blocks: _Blocks, result: Exported) -> None:
    shape = blocks.shape()
    if shape is not None:
        result.unchanged = True
        result.frames = copy_blocks(target, shape, blocks.blocks())
        return
    writer = LpjWriter(target)
    try:
        following = 1
        for block, frames in blocks.frames():
            if block.maker.kind == BlockKind.FOREIGN:
                result.left_out["device tables"] += 1
            following = _append(writer, block, frames, following)
        writer.close()
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    result.frames = writer.frame_count


def _append(writer: LpjWriter, block: Block, frames: FrameColumns, following: int) -> int:
    """Add the frames under their seqs; those that have none are numbered on."""
    start = 0
    for seqs in block.counted_seqs() or [range(following, following + len(frames))]:
        writer.append(frames.slice(start, start + len(seqs)), first_seq=seqs.start)
        start += len(seqs)
        following = seqs.stop
    return following
