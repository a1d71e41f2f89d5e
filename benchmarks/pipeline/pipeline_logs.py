"""Logs for the pipeline's benchmarks: simulated voyages written straight through storage, in three kinds of blocks.

Frames are made, encoded and appended a stretch of the voyage at a time. No sync is paid for: these logs are read, and
nothing is learnt from how they were written.

PPL1  The plain and the delta log hold the same frames with the same seqs, offsets and append times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import codec_for, encode_frames
from tidelog.blocks.header import Codec
from tidelog.blocks.header import Path as BlockPath
from tidelog.edge.sources.voyage import Voyage
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import Fsync, LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk
from tidelog.units import MIB, US_PER_S

PLAIN: Final = "plain"
DELTA: Final = "delta"
LIVE: Final = "live"
BLOCK_FRAMES: Final = 16_384
"""The frames of a sealed block, and of a plain one."""
LIVE_FRAMES: Final = 20
"""What a live block of a quiet bus holds."""
_START_US: Final = 1_780_000_000 * US_PER_S
_STRETCH_US: Final = 3_000 * US_PER_S
_COMMIT_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLogs:
    """Where the logs lie, one folder of channels for each kind."""

    folder: Path
    channels: tuple[str, ...]
    frames: int
    """The sizes of the plain and of the delta log."""
    live_frames: int

    def path(self, kind: str) -> str:
        return str(self.folder / kind)

    def log_bytes(self, kind: str) -> int:
        return sum(
            os.stat(os.path.join(parent, name)).st_size
            for parent, _, names in os.walk(self.folder / kind)
            for name in names
        )

    def first(self, frames: int) -> dict[str, int]:
        """The offset in each channel before which so many frames lie in all."""
        share = frames // len(self.channels)
        return dict.fromkeys(self.channels, share)


def write_logs(folder: Path, *, frames: int, live_frames: int, boats: int) -> BenchLogs:
    """`frames` of all boats together in the first two logs, `live_frames` of them in the third."""
    assert frames % boats == 0
    assert live_frames % boats == 0
    assert live_frames <= frames
    names = tuple(f"boat-{number:03d}" for number in range(1, boats + 1))
    for number, name in enumerate(names):
        _write_boat(folder, name, seed=number, frames=frames // boats, live_frames=live_frames // boats)
    return BenchLogs(folder=folder, channels=names, frames=frames, live_frames=live_frames)


def _write_boat(folder: Path, name: str, *, seed: int, frames: int, live_frames: int) -> None:
    plain, delta, live = (_opened(folder / kind, name) for kind in (PLAIN, DELTA, LIVE))
    producer = seed.to_bytes(16, "big", signed=False)[:15] + b"\x01"
    seq = 1
    for stretch in stretches(seed, frames):
        for start in range(0, len(stretch), BLOCK_FRAMES):
            part = stretch.slice(start, min(start + BLOCK_FRAMES, len(stretch)))
            now_us = int(part.times_us[-1])
            made = encode_frames(part, base_seq=seq, producer=producer)
            plain.stage(made, epoch=1, now_us=now_us, path=BlockPath.LIVE)
            made = encode_frames(part, base_seq=seq, producer=producer, delta=True, codec=Codec.ZSTD)
            delta.stage(made, epoch=1, now_us=now_us, path=BlockPath.LIVE)
            _write_live(live, part, base_seq=seq, producer=producer, end_seq=live_frames + 1)
            seq += len(part)
            for log in (plain, delta, live):
                if log.staged_bytes >= _COMMIT_BYTES:
                    log.commit(now_us)
    for log in (plain, delta, live):
        log.close(_START_US)


def _write_live(live: Log, frames: FrameColumns, *, base_seq: int, producer: bytes, end_seq: int) -> None:
    """The frames below `end_seq` as a live bus leaves them."""
    count = min(len(frames), max(0, end_seq - base_seq))
    for start in range(0, count, LIVE_FRAMES):
        part = frames.slice(start, min(start + LIVE_FRAMES, count))
        made = encode_frames(part, base_seq=base_seq + start, producer=producer, codec=codec_for(part), level=1)
        live.stage(made, epoch=1, now_us=int(part.times_us[-1]), path=BlockPath.LIVE)


def stretches(seed: int, frames: int) -> Iterator[FrameColumns]:
    """Exactly so many frames of one voyage, at the pace of real instruments."""
    voyage = Voyage(seed=seed, start_us=_START_US)
    start_us, left = _START_US, frames
    while left:
        made = voyage.frames(start_us, start_us + _STRETCH_US)
        start_us += _STRETCH_US
        part = made.slice(0, min(left, len(made)))
        left -= len(part)
        yield part


def _opened(folder: Path, name: str) -> Log:
    folder.mkdir(parents=True, exist_ok=True)
    options = LogOptions(fsync=Fsync.NEVER, reserve_bytes=0)
    return open_log(OsDisk(str(folder)), name, now_us=_START_US, options=options)
