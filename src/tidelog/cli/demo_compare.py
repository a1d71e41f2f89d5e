"""The end of the demo: the boat's journal and the cloud's log, read from their files and held against each other.

Reads only, and only after both processes have ended, except `seal`, which does at once what a journal does by
itself within a minute.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.cli.log_files import Broken
from tidelog.cli.sources import open_source
from tidelog.compat.lpj import LpjWriter
from tidelog.edge.journal import open_journal
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.writer import wall_clock_us

POSITION_PGN: Final = 129_025
"""Position, rapid update: latitude and longitude as 32-bit integers of 1e-7 degrees."""
_PGN_MASK: Final = 0x3FFFF

Key: TypeAlias = tuple[bytes, int]
"""Lineage and seq: what names a frame for good."""
Frames: TypeAlias = dict[Key, tuple[int, int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one log holds."""

    frames: Frames
    twice: int
    """Frames that count more than once. There should be none."""
    damage: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    time_us: int
    latitude: float
    longitude: float

    def __str__(self) -> str:
        north, east = "N" if self.latitude >= 0 else "S", "E" if self.longitude >= 0 else "W"
        return f"{abs(self.latitude):.5f} {north}, {abs(self.longitude):.5f} {east}"


def seal(journal: Path) -> None:
    """Turn the small blocks of every second into large compressed ones, as a journal does once a minute."""
    now_us = wall_clock_us()
    opened = open_journal(OsDisk(journal.parent), journal.name, now_us=now_us, new_lineage=lambda: uuid.uuid4().bytes)
    try:
        opened.seal_all(now_us)
    finally:
        opened.close(now_us)


def read_held(path: Path, *, channel: str | None = None) -> Held:
    """Every frame that counts in a journal, or in a channel of a store."""
    frames: Frames = {}
    twice = 0
    damage: list[str] = []
    for block in _blocks(path, channel, damage):
        lineage = bytes(block.maker.producer)
        seqs = [seq for part in block.counted_seqs() for seq in part]
        for seq, row in zip(seqs, counted_frames(block).rows(), strict=True):
            twice += (lineage, seq) in frames
            frames[lineage, seq] = row
    return Held(frames=frames, twice=twice, damage=tuple(damage))


def _blocks(path: Path, channel: str | None, damage: list[str]) -> Iterator[Block]:
    (stream,) = open_source(str(path), channel=channel).streams
    for item in stream.items():
        if isinstance(item, Broken):
            damage.append(str(item))
        elif item.block.maker.kind in (BlockKind.FRAMES, BlockKind.FOREIGN):
            yield item.block


def log_bytes(path: Path, *, channel: str | None = None) -> int:
    return open_source(str(path), channel=channel).total_bytes


def write_lpj(frames: Frames, path: Path) -> int:
    """The same frames as an lplex journal file, compressed; its size."""
    with LpjWriter(path) as writer:
        run: list[tuple[int, int, bytes]] = []
        next_seq = 0
        for (_, seq), row in sorted(frames.items()):
            if seq != next_seq and run:
                writer.append(FrameColumns.from_rows(run), first_seq=next_seq - len(run))
                run = []
            run.append(row)
            next_seq = seq + 1
        if run:
            writer.append(FrameColumns.from_rows(run), first_seq=next_seq - len(run))
    return path.stat().st_size


def last_position(frames: Frames) -> Position | None:
    """Decoded from the newest frame that says where the boat is."""
    positions = [row for row in frames.values() if row[1] >> 8 & _PGN_MASK == POSITION_PGN]
    if not positions:
        return None
    time_us, _, payload = max(positions)
    latitude, longitude = np.frombuffer(payload, dtype="<i4")[:2] * 1e-7
    return Position(time_us=time_us, latitude=float(latitude), longitude=float(longitude))
