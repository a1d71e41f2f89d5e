"""`tidelog log import`: lplex journals and captures into a log of ours.

All or nothing: if it fails, a log that was made for it is gone again and one that existed ends where it
ended before; a source without any frame is a failure. Lines and blocks that cannot be taken are skipped and counted by
reason; of a block with a bad record under a good checksum, the records before it are taken, and the log says that the
others are lost.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import RangeLost, encode_control
from tidelog.blocks.foreign import Salvaged, salvage_foreign
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import BlockKind, Codec, Path
from tidelog.cli.log.sources import open_source
from tidelog.cli.output import print_json, progress
from tidelog.compat.capture_kinds import NAMES, open_capture, sniff
from tidelog.compat.lpj import LpjReader, LpjStoredBlock
from tidelog.errors import BadBlock, BadJournalFile, LogError, NotALog
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk
from tidelog.units import MIB, parse_time_us

BLOCK_FRAMES = 16_384
_COMMIT_BYTES = 8 * MIB


@dataclass(slots=True)
class Imported:
    source: str
    target: str
    format: str
    lineage: str
    blocks: int = 0
    frames: int = 0
    bytes: int = 0
    start: int = 0
    end: int = 0
    """Offsets in the target, half-open."""
    skipped: dict[str, int] = field(default_factory=dict)
    """How many lines, blocks or bytes were left out, by reason."""
    first_skipped: dict[str, str] = field(default_factory=dict)
    """Where the first one of each reason was."""

    def skip(self, reason: str, place: str, count: int = 1) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.first_skipped.setdefault(reason, place)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def run_import(
    source: str,
    target: str,
    *,
    kind: str | None,
    start: str | None,
    reencode: bool,
    append: bool,
    strict: bool,
    as_json: bool,
) -> None:
    found = kind or sniff(source)
    if found is None:
        raise NotALog(path=source, problem=f"it is not {NAMES}; say which with --format")
    start_us = None if start is None else parse_time_us(start)
    _check_target(target, append=append)
    result = Imported(source=source, target=target, format=found, lineage=uuid.uuid4().hex)
    made = _blocks(result, reencode=reencode, strict=strict, start_us=start_us)
    _write(target, made, result)
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)


def _print(result: Imported) -> None:
    print(
        f"{result.target}: {result.frames} frames in {result.blocks} blocks ({result.bytes} bytes) "
        f"at offsets [{result.start}, {result.end}), lineage {result.lineage}"
    )
    for reason, count in result.skipped.items():
        print(f"skipped {count} ({reason}), the first one at {result.first_skipped[reason]}")


def _check_target(target: str, *, append: bool) -> None:
    if not os.path.lexists(target):
        return
    if not os.path.isdir(target):
        raise NotALog(path=target, problem="this is a file; name a folder for the log")
    if not os.listdir(target):
        return
    if not append:
        raise NotALog(path=target, problem="the folder is not empty; choose another, or --append to its log")
    kind = open_source(target).kind
    if kind != "log":
        raise NotALog(path=target, problem=f"this is a {kind}; frames can be appended to a log folder only")


# --- writing -------------------------------------------------------------------------------------


def _write(target: str, blocks: Iterator[MadeBlock], result: Imported) -> None:
    folder, name = os.path.split(os.path.abspath(target))
    existed = os.path.isdir(target)
    fresh = not existed or not os.listdir(target)
    disk = OsDisk(folder)
    log = open_log(disk, name, now_us=_now_us())
    result.start = log.log_end
    try:
        with progress("importing", None) as advance:
            _append(log, blocks, result, advance)
        log.close(_now_us())
    except BaseException:
        _take_back(log, result.start)
        if fresh:
            disk.remove_folder(name)
            if existed:
                disk.make_folder(name)
        raise
    result.end = log.log_end


def _append(log: Log, blocks: Iterator[MadeBlock], result: Imported, advance: Any) -> None:
    epoch = max(1, log.epochs.newest)
    for made in blocks:
        staged = log.stage(made, epoch=epoch, now_us=_now_us(), path=Path.BACKFILL)
        if staged is None:
            continue
        result.bytes += staged.size
        if made.maker.kind != BlockKind.CONTROL:
            result.blocks += 1
            result.frames += staged.counted
            advance(staged.counted)
        if log.staged_bytes >= _COMMIT_BYTES:
            log.commit(_now_us())
    log.commit(_now_us())
    if not result.frames:
        raise NotALog(path=result.source, problem=_nothing(result))


def _nothing(result: Imported) -> str:
    """Why there is no frame to import: as a rule the file is of another kind."""
    left_out = "; ".join(
        f"skipped {count} ({reason}), the first one at {result.first_skipped[reason]}"
        for reason, count in result.skipped.items()
    )
    said = f"read as {result.format} it holds no frame"
    return f"{said}: {left_out}; check the file, or choose another --format" if left_out else f"{said}; check the file"


def _take_back(log: Log, start: int) -> None:
    """Cut off what was appended; the error that brought us here is the one to report."""
    try:
        log.discard_staged()
        log.truncate(start)
        log.close(_now_us())
    except LogError:
        log.close()


def _now_us() -> int:
    return time.time_ns() // 1000


# --- reading -------------------------------------------------------------------------------------


def _blocks(result: Imported, *, reencode: bool, strict: bool, start_us: int | None) -> Iterator[MadeBlock]:
    if result.format != "lpj":
        return _capture_blocks(result, strict=strict, start_us=start_us)
    return _reencoded_blocks(result, strict=strict) if reencode else _foreign_blocks(result, strict=strict)


def _encode(frames: FrameColumns, *, base_seq: int, lineage: str) -> MadeBlock:
    return encode_frames(frames, base_seq=base_seq, producer=bytes.fromhex(lineage), delta=True, codec=Codec.ZSTD)


def _capture_blocks(result: Imported, *, strict: bool, start_us: int | None) -> Iterator[MadeBlock]:
    on_malformed: Literal["raise", "skip"] = "raise" if strict else "skip"
    seq = 1
    opened = open_capture(
        result.source, result.format, chunk_frames=BLOCK_FRAMES, on_malformed=on_malformed, start_us=start_us
    )
    with opened as reader:
        for frames in reader:
            yield _encode(frames, base_seq=seq, lineage=result.lineage)
            seq += len(frames)
        for reason, count in reader.skipped.items():
            result.skip(str(reason), f"{reader.unit} {reader.first_skipped[reason]}", count)


def _foreign_blocks(result: Imported, *, strict: bool) -> Iterator[MadeBlock]:
    for stored, found in _salvaged_blocks(result, strict=strict):
        if found.made is not None:
            if not found.frame_count:
                result.skip("block without frames", f"byte {stored.position}")
            yield found.made
        yield from _lost_records(result, found)


def _reencoded_blocks(result: Imported, *, strict: bool) -> Iterator[MadeBlock]:
    """Frames of many lplex blocks gathered into ours; a block never spans a seq jump."""
    gathered: list[FrameColumns] = []
    first = following = 1
    for _, found in _salvaged_blocks(result, strict=strict):
        seq = found.base_seq or following
        if seq != following:
            yield from _cut(gathered, first, result.lineage, everything=True)
            gathered, first = [], seq
        gathered.append(found.frames)
        following = seq + len(found.frames)
        held = sum(map(len, gathered))
        if held >= BLOCK_FRAMES:
            yield from _cut(gathered, first, result.lineage, everything=False)
            frames = FrameColumns.concatenate(gathered)
            first = following - held % BLOCK_FRAMES
            gathered = [frames.slice(held - held % BLOCK_FRAMES, held)]
        yield from _lost_records(result, found)
    yield from _cut(gathered, first, result.lineage, everything=True)


def _salvaged_blocks(result: Imported, *, strict: bool) -> Iterator[tuple[LpjStoredBlock, Salvaged]]:
    for stored in _stored_blocks(result, strict=strict):
        try:
            found = salvage_foreign(
                stored.stored,
                version=stored.version,
                compression=stored.compression,
                block_size=stored.block_size,
                producer=bytes.fromhex(result.lineage),
            )
        except BadBlock as error:
            _skip_block(result, stored.position, error.problem, strict=strict)
            continue
        if found.problem:
            if strict:
                raise BadJournalFile(path=result.source, position=stored.position, problem=found.problem)
            missing = found.frame_count - len(found.frames)
            reason = f"damaged records: {found.problem}" if missing else f"device table: {found.problem}"
            result.skip(reason, f"byte {stored.position}", missing or 1)
        yield stored, found


def _lost_records(result: Imported, found: Salvaged) -> Iterator[MadeBlock]:
    """What a block should hold and does not, as a record of the log."""
    if found.lost:
        lost = RangeLost(
            lineage=result.lineage,
            start=found.lost.start,
            end=found.lost.stop,
            reason=f"damaged in the lplex journal: {found.problem}",
        )
        yield encode_control([lost], time_us=_now_us())


def _cut(gathered: list[FrameColumns], first: int, lineage: str, *, everything: bool) -> Iterator[MadeBlock]:
    frames = FrameColumns.concatenate(gathered)
    stop = len(frames) if everything else len(frames) - len(frames) % BLOCK_FRAMES
    for start in range(0, stop, BLOCK_FRAMES):
        yield _encode(frames.slice(start, min(start + BLOCK_FRAMES, stop)), base_seq=first + start, lineage=lineage)


def _stored_blocks(result: Imported, *, strict: bool) -> Iterator[LpjStoredBlock]:
    with LpjReader(result.source, on_damage="raise" if strict else "skip") as reader:
        yield from reader
        for damage in reader.damaged:
            result.skip(f"damaged block: {damage.problem}", f"byte {damage.position}")
        if reader.torn_bytes:
            size = os.stat(result.source).st_size
            result.skip("bytes of a torn tail", f"byte {size - reader.torn_bytes}", reader.torn_bytes)


def _skip_block(result: Imported, position: int, problem: str, *, strict: bool) -> None:
    if strict:
        raise BadJournalFile(path=result.source, position=position, problem=problem)
    result.skip(f"damaged block: {problem}", f"byte {position}")
