"""Logs in a folder: a node's data, a boat's journal, single logs, lplex files, or a folder of such.

Nothing is changed and nothing is locked, so a running process may go on writing. Complete blocks count as committed,
since a folder has no other replicas. (A power cut may cost a running process records that it had not synced yet.
Records that must never be read twice should be read from a cluster.)

Channels are named as the store names them; a journal or log by its folder, an lplex file by its name without the
suffix. Where no store has assigned an id, one is computed from the name and, for a journal, of its first lineage, so
that tables can tell two files apart; the offsets of an lplex file count its frames from 0.

FL1  What the folder holds is looked up anew for every call of `channels`; pieces are read by their channel id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.foreign import Salvaged, salvage_foreign
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import decode_messages
from tidelog.compat.lpj import LpjReader
from tidelog.errors import BadBlock, BadJournalFile, DamagedRange, LogError, NotALog, RecordsDamaged, UnknownChannel
from tidelog.pipeline.sources.folder_segments import SegmentFiles
from tidelog.pipeline.sources.logs import (
    FAIL,
    READ_BYTES,
    SKIP,
    BlockFilter,
    ChannelEnds,
    Logs,
    Piece,
    fits,
    is_data,
    is_glob,
    require_epoch,
    require_piece,
)
from tidelog.storage.atomic import read_either_mark
from tidelog.storage.log.log import META_NAME
from tidelog.storage.log.segment import base_offset_of
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import INTERNALS
from tidelog.storage.store.stored_channels import StoredChannel, stored_channels

LPJ_SUFFIX = ".lpj"
JOURNAL_META = "journal.meta"
SEALED, FRESH = "sealed", "fresh"


class ChannelFiles(Protocol):
    """The files of one channel."""

    @property
    def name(self) -> str: ...

    @property
    def channel_id(self) -> int: ...

    def ends(self) -> ChannelEnds: ...

    def blocks(self, start: int, end: int) -> Iterator[list[Block]]:
        """As `SegmentFiles.blocks`; may return less than requested."""
        ...


class FolderLogs(Logs):
    """See the module."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._channels: dict[int, ChannelFiles] = {}
        self._find()

    def channels(self, globs: Sequence[str] = ("*",)) -> list[ChannelEnds]:
        self._find()
        names = {files.name for files in self._channels.values()}
        for glob in globs:
            if not is_glob(glob) and glob not in names:
                raise UnknownChannel(channel=glob)
        chosen = [files for files in self._channels.values() if fits(files.name, globs)]
        return [files.ends() for files in sorted(chosen, key=lambda files: files.name)]

    def blocks(
        self, piece: Piece, *, wanted: BlockFilter | None = None, on_trimmed: str = FAIL, on_damaged: str = FAIL
    ) -> Iterator[list[Block]]:
        files = self._files(piece)
        left = require_piece(piece, files.ends(), on_trimmed=on_trimmed)
        while left:
            start = left.start
            try:
                for run in files.blocks(left.start, left.stop):
                    for block in run:
                        require_epoch(piece, block)
                    left = range(min(run[-1].end, left.stop), left.stop)
                    kept = run if wanted is None else [block for block in run if wanted.takes(block)]
                    if kept:
                        yield kept
                if left:
                    raise DamagedRange(start=left.start, end=left.stop, problem="no file holds them any more")
            except DamagedRange as error:
                if on_damaged != SKIP:
                    raise RecordsDamaged(
                        channel=piece.channel, start=error.start, end=error.end, problem=error.problem
                    ) from error
                left = range(max(error.end, left.start), left.stop)
                assert left.start > start, "skipping damage makes progress"

    def offset_at(self, channel: str, *, time_us: int | None = None, seq: int | None = None) -> int:
        (ends,) = self.channels([channel])
        piece = Piece(
            channel=channel,
            channel_id=ends.channel_id,
            leader_epoch=ends.leader_epoch,
            start=ends.log_start,
            end=ends.committed_end,
        )
        wanted = BlockFilter(from_time_us=time_us, from_seq=seq)
        for run in self.blocks(piece, wanted=wanted, on_damaged=SKIP):
            for block in filter(is_data, run):
                if (row := _first_row(block, time_us, seq)) is not None:
                    return block.leader.base_offset + row
        return ends.committed_end

    def set_cursors(self, name: str, offsets: Mapping[str, int]) -> dict[str, LogError]:
        """A folder keeps no cursors: its owner decides about retention."""
        return {}

    def close(self) -> None:
        self._channels = {}

    def _files(self, piece: Piece) -> ChannelFiles:
        files = self._channels.get(piece.channel_id)
        if files is None or (isinstance(files, _StoreChannelFiles) and not files.reaches(piece.end)):
            self._find()  # the write-ahead files are read only if the segments do not hold all of it
            files = self._channels.get(piece.channel_id)
        if files is None:
            # One of that name with another id is told apart by `require_piece`.
            files = next((one for one in self._channels.values() if one.name == piece.channel), None)
        if files is None:
            raise UnknownChannel(channel=piece.channel)
        return files

    def _find(self) -> None:
        """Known channels keep their cached files."""
        found = {}
        for files in _found(self._path):
            known = self._channels.get(files.channel_id)
            if known is not None and known.name == files.name and type(known) is type(files):
                if isinstance(known, _StoreChannelFiles) and isinstance(files, _StoreChannelFiles):
                    known.renew(files)
                files = known
            found[files.channel_id] = files
        self._channels = found


# --- what a path is ----------------------------------------------------------------------------------


def _found(path: str) -> list[ChannelFiles]:
    if os.path.isfile(path):
        if path.endswith(LPJ_SUFFIX):
            return [_LpjChannelFiles(path)]
        raise NotALog(path=path, problem="name the folder of a log, or an .lpj file")
    own = _of_folder(path)
    if own is not None:
        return own
    found: list[ChannelFiles] = []
    for name in sorted(_listed(path)):
        inner = os.path.join(path, name)
        if name.endswith(LPJ_SUFFIX) and os.path.isfile(inner):
            found.append(_LpjChannelFiles(inner))
        elif os.path.isdir(inner):
            found += _of_folder(inner) or []
    if not found:
        raise NotALog(path=path, problem="there is no log in this folder: no .tidelog, no journal, no *.seg, no *.lpj")
    return found


def _of_folder(path: str) -> list[ChannelFiles] | None:
    """The channels of a store, a journal or a log; None if the folder is none of these."""
    names = set(_listed(path))
    disk = OsDisk(path)
    if INTERNALS in names:
        return [_StoreChannelFiles(disk, channel) for channel in stored_channels(disk).values()]
    if JOURNAL_META in names or {SEALED, FRESH} <= names:
        return [_JournalFiles(disk, os.path.basename(path))]
    if META_NAME in names or any(base_offset_of(name) is not None for name in names):
        return [_LogFiles(disk, os.path.basename(path))]
    return None


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotALog(path=path, problem="there is no such file or folder; check the path") from None
    except OSError as error:
        raise NotALog(path=path, problem=f"the folder cannot be read: {error.strerror}") from error


def _made_id(*parts: str) -> int:
    """An id for a channel without one from a store: the same for the same name, as large as ids may be."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest(), "little") >> 2


# --- the kinds of channels ---------------------------------------------------------------------------


class _StoreChannelFiles:
    """A channel of a store: its segments, then what waits in the write-ahead files."""

    def __init__(self, disk: OsDisk, stored: StoredChannel) -> None:
        self._disk = disk
        self._stored = stored
        self._segments: SegmentFiles | None = None

    @property
    def name(self) -> str:
        return self._stored.name

    @property
    def channel_id(self) -> int:
        return self._stored.channel_id

    def renew(self, newer: _StoreChannelFiles) -> None:
        if newer._stored.log_generation != self._stored.log_generation:
            self._segments = None
        self._stored = newer._stored

    def reaches(self, offset: int) -> bool:
        return self._looked().tail().offset >= offset

    def ends(self) -> ChannelEnds:
        stored, segments = self._stored, self._looked()
        tail = segments.tail()
        end, epoch = max(tail.offset, stored.synced_end), tail.epoch
        for _, block in stored.waiting:
            if block.leader.base_offset <= end < block.end:
                end, epoch = block.end, max(epoch, block.leader.leader_epoch)
        return ChannelEnds(
            channel=stored.name,
            channel_id=stored.channel_id,
            leader_epoch=epoch,
            log_start=segments.log_start if segments.bases else stored.base_offset,
            committed_end=end,
        )

    def blocks(self, start: int, end: int) -> Iterator[list[Block]]:
        expected = start
        for run in self._looked().blocks(start, end):
            yield run
            expected = run[-1].end
        waiting = [
            block for _, block in self._stored.waiting if block.end > expected and block.leader.base_offset < end
        ]
        if waiting and waiting[0].leader.base_offset > expected:
            raise DamagedRange(
                start=expected,
                end=waiting[0].leader.base_offset,
                problem="neither a segment nor a write-ahead file holds them",
            )
        if waiting:
            yield waiting

    def _looked(self) -> SegmentFiles:
        if self._segments is None:
            self._segments = SegmentFiles(self._disk, self._stored.folder, channel_id=self._stored.channel_id)
        else:
            self._segments.look()
        return self._segments


class _LogFiles:
    """A single log."""

    def __init__(self, disk: OsDisk, name: str) -> None:
        self.name = name
        self.channel_id = _made_id("log", name)
        self._segments = SegmentFiles(disk, "")

    def ends(self) -> ChannelEnds:
        self._segments.look()
        tail = self._segments.tail()
        return ChannelEnds(
            channel=self.name,
            channel_id=self.channel_id,
            leader_epoch=tail.epoch,
            log_start=self._segments.log_start,
            committed_end=tail.offset,
        )

    def blocks(self, start: int, end: int) -> Iterator[list[Block]]:
        return self._segments.blocks(start, end)


class _JournalFiles:
    """A boat's journal: sealed blocks as far as there are, fresh ones behind them."""

    def __init__(self, disk: OsDisk, name: str) -> None:
        self._disk = disk
        self.name = name
        meta = read_either_mark(disk, JOURNAL_META) or {}
        lineages = sorted(meta.get("acks", {}) or [str(meta.get("lineage", ""))])
        self.channel_id = _made_id("journal", name, lineages[0])
        self._sealed, self._fresh = SegmentFiles(disk, SEALED), SegmentFiles(disk, FRESH)

    def ends(self) -> ChannelEnds:
        # The sealed log last: what sealing moves meanwhile is then in both, and never in neither.
        self._fresh.look()
        fresh = self._fresh.tail()
        self._sealed.look()
        sealed = self._sealed.tail()
        newest = fresh if fresh.offset >= sealed.offset else sealed
        return ChannelEnds(
            channel=self.name,
            channel_id=self.channel_id,
            leader_epoch=max(fresh.epoch, sealed.epoch),
            log_start=self._sealed.log_start if self._sealed.bases else self._fresh.log_start,
            committed_end=newest.offset,
        )

    def blocks(self, start: int, end: int) -> Iterator[list[Block]]:
        sealed_end = self._sealed.tail().offset
        expected = start
        if start < sealed_end:
            for run in self._sealed.blocks(start, min(end, sealed_end)):
                yield run
                expected = run[-1].end
        if expected < end:
            yield from self._fresh.blocks(expected, end)


class _LpjChannelFiles:
    """An lplex file. Its blocks are wrapped unchanged."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.name = os.path.basename(path).removesuffix(LPJ_SUFFIX)
        self.channel_id = _made_id("lpj", self.name)
        self._counts: list[int] = []
        """Frames of each block, as far as they were counted."""

    def ends(self) -> ChannelEnds:
        with LpjReader(self._path) as reader:
            for number in range(len(self._counts), len(reader)):
                self._counts.append(self._count(reader, number))
        return ChannelEnds(
            channel=self.name,
            channel_id=self.channel_id,
            leader_epoch=0,
            log_start=0,
            committed_end=sum(self._counts),
        )

    def _count(self, reader: LpjReader, number: int) -> int:
        """A damaged block counts as having no frames: their number is unknown."""
        try:
            return reader.block_at(number).frame_count
        except (BadJournalFile, BadBlock):
            return 0

    def blocks(self, start: int, end: int) -> Iterator[list[Block]]:
        run: list[Block] = []
        run_bytes = offset = 0
        append_time_us = os.stat(self._path).st_mtime_ns // 1_000
        with LpjReader(self._path) as reader:
            for number, count in enumerate(self._counts):
                if offset >= end:
                    break
                if not count or offset + count <= start:
                    offset += count
                    continue
                found: Salvaged | None = None
                try:
                    found = self._salvaged(reader, number)
                    kept, problem = len(found.frames), found.problem
                except (BadBlock, BadJournalFile) as error:
                    kept, problem = 0, str(error)
                good_end = offset + kept
                if found is not None and found.made is not None and good_end > start:
                    run.append(self._stamped(found.made, offset, append_time_us))
                offset += count
                # A record that cannot be read costs those behind it in its block, too.
                if good_end < min(offset, end):
                    if run:
                        yield run
                    raise DamagedRange(start=max(start, good_end), end=offset, problem=problem)
                run_bytes += run[-1].size
                if run_bytes >= READ_BYTES:
                    yield run
                    run, run_bytes = [], 0
        if run:
            yield run

    @staticmethod
    def _salvaged(reader: LpjReader, number: int) -> Salvaged:
        stored = reader.block_at(number)
        stored.check()
        return salvage_foreign(
            stored.stored, version=stored.version, compression=stored.compression, block_size=stored.block_size
        )

    @staticmethod
    def _stamped(made: MadeBlock, offset: int, append_time_us: int) -> Block:
        return made.stamp(
            base_offset=offset,
            channel_id=0,
            leader_epoch=0,
            append_time_us=append_time_us,
            durable_end=offset,
            path=0,
        )


def _first_row(block: Block, time_us: int | None, seq: int | None) -> int | None:
    """The first of the block's rows at or after the time, or the seq."""
    if seq is not None:
        row = 0
        for seqs in block.counted_seqs():
            if seqs.stop > seq:
                return row + max(0, seq - seqs.start)
            row += len(seqs)
        return None
    assert time_us is not None
    if block.maker.kind == BlockKind.MESSAGES:
        times = decode_messages(block.maker, block.raw_body()).times_us
        rows = [row for window in block.counted_ranges() for row in window]
        late = times[rows] >= time_us
    else:
        late = counted_frames(block).times_us >= time_us
    return int(late.argmax()) if late.any() else None
