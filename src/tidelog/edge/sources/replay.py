"""Replays files onto the boat: .lpj journals and every kind of capture, at any speed.

Frames keep their distances in time, divided by the speed. Where the recorded clock goes back (the start of the
next file, a clock that was set) the next frame follows at once; a long gap can be cut short.

Invariants:
RY1  Every frame of every file comes out once per round, in file order; raw CAN frames after reassembly
     (`fast_packet`), which counts what it could not make whole.
RY2  No frame comes out before its time; at speed 0 every frame is due at once.
RY3  At most one chunk of frames (of an .lpj file: one block) is in memory, however long the file is.
RY4  Where a file cannot be read further, the chunks before that place come out first; then `read` raises once. For
     text, all lines of the chunk with the bad one are left out; with `on_damage="skip"` only the bad ones.
RY5  A block of an .lpj file with a bad record under a good checksum, as lplex's own writer makes them, gives the
     records before it, and the file is read on. It counts as damaged; with `on_damage="raise"` the end of that file
     raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tidelog.blocks.columns import FrameColumns
from tidelog.compat.capture_kinds import NAMES, Kind, holds_messages, open_capture, sniff
from tidelog.compat.captures import CaptureReader, SkipReason
from tidelog.compat.lpj import LpjReader
from tidelog.errors import BadJournalFile, InvalidConfig, LogError, NotALog
from tidelog.nmea.fast_packet import AssemblerStatistics, FastPacketAssembler
from tidelog.units import US_PER_S

GAP_US_MAX: Final = 5 * US_PER_S
CHUNK_FRAMES: Final = 4096
READ_FRAMES_MAX: Final = 8192
UNTIMED_FRAMES_PER_S: Final = 500
"""How fast frames come that were recorded without a time: about a busy bus."""

_UNTIMED_US: Final = -1
"""No candump line can say this time."""
_GAP_US_LIMIT: Final = 1 << 42
"""Fifty days. With the limit below it keeps files with absurd times inside 64 bits."""
_ELAPSED_US_LIMIT: Final = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    speed: float = 1.0
    """1 is real time, 10 ten times faster, 0 as fast as frames are read."""
    stamps: Literal["original", "now"] = "original"
    """Frames keep the time they were recorded at, or get the time they come out at."""
    gap_us_max: int | None = GAP_US_MAX
    """Longer silences are cut to this, in recorded time; None keeps them, up to fifty days."""
    loop: bool = False
    """Begin anew at the end. Original time stamps then go back."""
    on_damage: Literal["raise", "skip"] = "raise"
    """Damaged blocks and malformed lines stop the replay, or are counted and left out."""

    def __post_init__(self) -> None:
        problems = []
        if self.speed != 0 and not 1e-3 <= self.speed <= 1e6:
            problems.append(f"speed {self.speed:g} must be 0 (as fast as possible) or 0.001 to a million")
        if self.gap_us_max is not None and self.gap_us_max < 0:
            problems.append("gap_us_max must not be negative")
        if problems:
            raise InvalidConfig(section="replay", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStatistics:
    frames: int
    """Frames given out so far. Counts of what was left out are complete once its file was read to the end."""
    rounds: int
    """How often all files were read to their end."""
    skipped: dict[SkipReason, int]
    """Lines of captures that gave no frame."""
    damaged_blocks: int
    """Blocks of .lpj files that were left out, in whole or in part (RY5)."""
    assembler: AssemblerStatistics
    """The counts of the file of raw frames that is being read, or the last one."""


@dataclass(slots=True)
class _Chunk:
    frames: FrameColumns
    elapsed_us: npt.NDArray[np.int64]
    """When each frame is due, in recorded time since the replay began, gaps cut. Never falls."""
    given: int = 0


class ReplaySource:
    """One or more files, in the order given. The replay begins with the first `read`."""

    def __init__(self, paths: Sequence[str], *, options: ReplayOptions | None = None) -> None:
        if not paths:
            raise InvalidConfig(section="replay", problems=["there is no file to replay; name at least one"])
        self._options = options or ReplayOptions()
        # Checked now, so that a wrong path is an error at the start and not in the middle of the night.
        self._files = [(path, _kind_of(path)) for path in paths]
        self._skipped: Counter[SkipReason] = Counter()
        self._damaged_blocks = 0
        self._assembler = FastPacketAssembler()
        self._frame_count = 0
        self._rounds = 0
        self._began_us: int | None = None
        self._clock_us = 0
        self._elapsed_us = 0
        self._recorded_us: int | None = None
        self._ended = False
        self._failure: LogError | None = None
        self._parts = self._all_parts()
        self._chunk: _Chunk | None = None

    @property
    def ended(self) -> bool:
        return self._ended

    def read(self, now_us: int) -> FrameColumns:
        self._follow_clock(now_us)
        chunk = self._next_chunk()
        if chunk is None:
            self._ended = True
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            return FrameColumns.from_rows([])
        end = min(len(chunk.frames), chunk.given + READ_FRAMES_MAX)
        if self._options.speed:
            due_us = self._due_us(chunk.elapsed_us[chunk.given : end])
            end = chunk.given + int(np.searchsorted(due_us, now_us, side="right"))
        frames = chunk.frames.slice(chunk.given, end)
        if self._options.stamps == "now":
            frames = self._restamped(frames, chunk.elapsed_us[chunk.given : chunk.given + len(frames)], now_us)
        chunk.given += len(frames)
        self._frame_count += len(frames)
        # Looks ahead, so that `ended` is true with the last frame and `wake_at_us` knows the next.
        self._next_chunk()
        return frames

    def wake_at_us(self) -> int | None:
        if self._ended:
            return None
        chunk = self._chunk
        if self._began_us is None or chunk is None or not self._options.speed:
            return self._clock_us
        return int(self._due_us(chunk.elapsed_us[chunk.given : chunk.given + 1])[0])

    def close(self) -> None:
        self._parts.close()
        self._chunk = None
        self._ended = True

    def statistics(self) -> ReplayStatistics:
        return ReplayStatistics(
            frames=self._frame_count,
            rounds=self._rounds,
            skipped=dict(self._skipped),
            damaged_blocks=self._damaged_blocks,
            assembler=self._assembler.statistics(),
        )

    # --- time -------------------------------------------------------------------------------------

    def _follow_clock(self, now_us: int) -> None:
        if self._began_us is None:
            self._began_us = now_us
        elif now_us < self._clock_us:
            # A clock that was set back must not silence the replay until it catches up.
            self._began_us += now_us - self._clock_us
        self._clock_us = now_us

    def _due_us(self, elapsed_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        assert self._began_us is not None
        paced_us = np.minimum(np.ceil(elapsed_us / self._options.speed), float(_ELAPSED_US_LIMIT))
        return self._began_us + paced_us.astype(np.int64)

    def _restamped(self, frames: FrameColumns, elapsed_us: npt.NDArray[np.int64], now_us: int) -> FrameColumns:
        paced = bool(self._options.speed)
        times_us = self._due_us(elapsed_us) if paced else np.full(len(frames), now_us, dtype=np.int64)
        return FrameColumns(
            times_us=times_us,
            can_ids=frames.can_ids,
            payload_offsets=frames.payload_offsets,
            payload=frames.payload,
        )

    def _paced(self, frames: FrameColumns) -> _Chunk:
        before_us = int(frames.times_us[0]) if self._recorded_us is None else self._recorded_us
        limit_us = _GAP_US_LIMIT if self._options.gap_us_max is None else min(self._options.gap_us_max, _GAP_US_LIMIT)
        gaps_us = np.clip(np.diff(frames.times_us, prepend=before_us), 0, limit_us)
        elapsed_us = min(self._elapsed_us, _ELAPSED_US_LIMIT) + np.cumsum(gaps_us)
        self._recorded_us = int(frames.times_us[-1])
        self._elapsed_us = int(elapsed_us[-1])
        return _Chunk(frames=frames, elapsed_us=elapsed_us)

    # --- frames -----------------------------------------------------------------------------------

    def _next_chunk(self) -> _Chunk | None:
        """The chunk with the next frame; None at the end, and where a file fails."""
        if self._chunk is not None and self._chunk.given == len(self._chunk.frames):
            self._chunk = None
        while self._chunk is None and not self._ended and self._failure is None:
            try:
                part = next(self._parts, None)
            except LogError as error:
                # This may be reading ahead, with good frames waiting: they go out first.
                self._failure = error
                break
            if part is None:
                self._ended = True
            elif len(part):
                self._chunk = self._paced(part)
        return self._chunk

    def _all_parts(self) -> Generator[FrameColumns, None, None]:
        while True:
            empty = True
            for path, kind in self._files:
                for part in self._parts_of(path, kind):
                    empty = empty and not len(part)
                    yield part
            self._rounds += 1
            # A round without frames would be followed by another one, for ever.
            if empty or not self._options.loop:
                return

    def _parts_of(self, path: str, kind: Kind) -> Iterator[FrameColumns]:
        if kind == "lpj":
            return self._lpj_parts(path)
        reader = open_capture(
            path, kind, chunk_frames=CHUNK_FRAMES, on_malformed=self._options.on_damage, untimed_at_us=_UNTIMED_US
        )
        return self._capture_parts(reader) if holds_messages(path, kind) else self._assembled_parts(reader)

    def _lpj_parts(self, path: str) -> Iterator[FrameColumns]:
        first: BadJournalFile | None = None
        with LpjReader(path, on_damage=self._options.on_damage) as reader:
            for stored in reader.blocks():
                block = stored.decode(salvage=True)
                yield block.frames
                if block.damage is not None:
                    self._damaged_blocks += 1
                    first = first or BadJournalFile(path=path, position=stored.position, problem=block.damage)
            self._damaged_blocks += len(reader.damaged)
        if first is not None and self._options.on_damage == "raise":
            raise first

    def _capture_parts(self, reader: CaptureReader) -> Iterator[FrameColumns]:
        with reader:
            yield from reader
        self._skipped += reader.skipped

    def _assembled_parts(self, reader: CaptureReader) -> Iterator[FrameColumns]:
        self._assembler = FastPacketAssembler()
        time_us = 0
        for part in self._capture_parts(reader):
            rows = []
            for recorded_us, can_id, payload in part.rows():
                untimed = recorded_us == _UNTIMED_US
                time_us = time_us + US_PER_S // UNTIMED_FRAMES_PER_S if untimed else recorded_us
                row = self._assembler.receive(time_us, can_id, payload)
                if row is not None:
                    rows.append(row)
            yield FrameColumns.from_rows(rows)


def _kind_of(path: str) -> Kind:
    kind = sniff(path)
    if kind is None:
        raise NotALog(path=path, problem=f"this is not {NAMES}")
    return kind
