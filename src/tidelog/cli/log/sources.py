"""What a path is, and how to read it without changing it.

A path may be a log folder, one segment file, a journal, a store's data folder or an lplex .lpj file. All
become a `LogSource`: one or more streams of verified blocks in offset order, a stream for each channel of a
store and one for everything else. What is none of these is refused with one sentence (`NotALog`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tidelog.blocks.block import Block
from tidelog.blocks.foreign import salvage_foreign
from tidelog.cli.log.files import BlockInFile, BrokenBytes, Item, LogFiles, load_mark
from tidelog.cli.log.store_files import StoreFiles
from tidelog.compat.capture_kinds import sniff
from tidelog.compat.lpj import FILE_MAGIC, LpjReader, LpjStoredBlock
from tidelog.edge.journal.journal import FRESH, SEALED
from tidelog.edge.journal.journal import META_NAME as JOURNAL_META_NAME
from tidelog.errors import BadBlock, BadJournalFile, DiskError, InvalidConfig, NotALog
from tidelog.storage.log.log import META_NAME
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, SEGMENT_MAGIC, SEGMENT_SUFFIX, base_offset_of
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import INTERNALS


class Stream(Protocol):
    """Blocks and damage in offset order."""

    @property
    def name(self) -> str | None: ...

    @property
    def total_bytes(self) -> int: ...

    def logs(self) -> Sequence[LogFiles]:
        """The logs behind it; none for a file that is not ours."""
        ...

    def items(self, start: int = 0) -> Iterator[Item]: ...


class LogStream:
    """A single log, or a lone segment."""

    def __init__(self, log: LogFiles) -> None:
        self.log = log

    @property
    def name(self) -> str | None:
        return self.log.name

    @property
    def total_bytes(self) -> int:
        return self.log.total_bytes

    def logs(self) -> list[LogFiles]:
        return [self.log]

    def items(self, start: int = 0) -> Iterator[Item]:
        return self.log.items(start)


class JournalStream:
    """A boat's journal: sealed blocks below the sealed log's end, fresh ones above it."""

    name = None

    def __init__(self, disk: OsDisk) -> None:
        self.meta_mark = load_mark(disk, JOURNAL_META_NAME)
        self.meta = self.meta_mark.value
        if self.meta and self.meta.get("format") != 1:
            raise NotALog(path=disk.root, problem=f"journal format {self.meta.get('format')} needs a newer Tidelog")
        self.fresh = LogFiles(disk, FRESH)
        # Fresh segments are dropped only after their sealed form was durable, so the sealed log reached that far.
        self.sealed = LogFiles(disk, SEALED, known_synced_end=self.fresh.log_start)

    @property
    def total_bytes(self) -> int:
        return self.sealed.total_bytes + self.fresh.total_bytes

    @cached_property
    def sealed_end(self) -> int:
        return self.sealed.end_offset()

    def logs(self) -> list[LogFiles]:
        return [self.sealed, self.fresh]

    def items(self, start: int = 0) -> Iterator[Item]:
        yield from self.sealed.items(start)
        for item in self.fresh.items(max(start, self.sealed_end)):
            if isinstance(item, BrokenBytes):
                if item.end_offset is None or item.end_offset > self.sealed_end:
                    yield item
            elif item.block.offsets.stop > self.sealed_end:
                yield item


class LpjStream:
    """An .lpj file. Its frames have no offsets of ours, so they are counted from 0."""

    name = None

    def __init__(self, path: str) -> None:
        self.path = path
        with LpjReader(path) as reader:
            self.version = reader.version
            self.block_size = reader.block_size
            self.compression = reader.compression_name
            self.indexed = reader.indexed
            self.torn_bytes = reader.torn_bytes
        self.total_bytes = os.stat(path).st_size

    def logs(self) -> list[LogFiles]:
        return []

    def items(self, start: int = 0) -> Iterator[Item]:
        offset = 0
        with LpjReader(self.path) as reader:
            for number in range(len(reader)):
                try:
                    stored = reader.block_at(number)
                except BadJournalFile as error:
                    yield self._broken(error.position, error.problem, offset)
                    continue
                try:
                    stored.check()
                    block, problem = _salvaged(stored, offset)
                except BadBlock as error:
                    yield self._broken(stored.position, error.problem, offset)
                    continue
                if block is not None and block.counted:
                    offset = block.offsets.stop
                    yield BlockInFile(self.path, stored.position, block)
                if problem:
                    yield self._broken(stored.position, problem, offset)

    def _broken(self, position: int, problem: str, offset: int) -> BrokenBytes:
        return BrokenBytes(self.path, position, offset, offset, problem)


def _salvaged(stored: LpjStoredBlock, offset: int) -> tuple[Block | None, str]:
    """The block, or its records before the first bad one as a block of ours, and why it is not whole."""
    found = salvage_foreign(
        stored.stored, version=stored.version, compression=stored.compression, block_size=stored.block_size
    )
    if found.made is None:
        return None, found.problem
    block = found.made.stamp(base_offset=offset, channel_id=0, leader_epoch=0, append_time_us=0, durable_end=0, path=0)
    return block, found.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    path: str
    kind: str
    """`log`, `segment`, `journal`, `store` or `lpj`."""
    streams: Sequence[Stream]
    store: StoreFiles | None = None

    @property
    def total_bytes(self) -> int:
        return sum(stream.total_bytes for stream in self.streams)


def open_source(path: str, *, channel: str | None = None) -> LogSource:
    """Find out what `path` is. `channel` chooses one channel of a store."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotALog(path=path, problem="there is no such file or folder; check the path") from None
    except OSError as error:
        raise NotALog(path=path, problem=f"it cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        source = _open_folder(path, channel)
    elif stat.S_ISREG(mode):
        source = _open_file(path)
    else:
        raise NotALog(path=path, problem="it is neither a file nor a folder")
    if channel is not None and source.kind != "store":
        raise InvalidConfig(section="--channel", problems=[f"{path} is a {source.kind} and has no channels by name"])
    return source


def _open_folder(path: str, channel: str | None) -> LogSource:
    root = os.path.abspath(path)
    if os.path.basename(root) == INTERNALS:
        root = os.path.dirname(root)
    try:
        names = os.listdir(root)
    except OSError as error:
        raise NotALog(path=path, problem=f"the folder cannot be read: {error.strerror}") from error
    disk = OsDisk(root)
    if INTERNALS in names:
        store = StoreFiles(disk)
        streams = [LogStream(log) for log in store.logs(channel)]
        return LogSource(path=path, kind="store", streams=streams, store=store)
    if JOURNAL_META_NAME in names or {FRESH, SEALED} <= set(names):
        return LogSource(path=path, kind="journal", streams=[JournalStream(disk)])
    if META_NAME in names or any(base_offset_of(name) is not None for name in names):
        return LogSource(path=path, kind="log", streams=[LogStream(LogFiles(disk, ""))])
    if not names:
        raise NotALog(path=path, problem="the folder is empty; there is no log in it")
    raise NotALog(
        path=path, problem="there is no log in this folder: no log.meta, no *.seg, no journal.meta, no .tidelog"
    )


def _open_file(path: str) -> LogSource:
    folder, name = os.path.split(os.path.abspath(path))
    try:
        with open(path, "rb") as file:
            start = file.read(SEGMENT_HEAD_BYTES)
    except OSError as error:
        raise NotALog(path=path, problem=f"the file cannot be read: {error.strerror}") from error
    if not start:
        raise NotALog(path=path, problem="the file is empty")
    if name.endswith(SEGMENT_SUFFIX) or start.startswith(SEGMENT_MAGIC):
        if len(start) < SEGMENT_HEAD_BYTES:
            raise NotALog(path=path, problem=f"the file is cut short: only {len(start)} bytes of a segment are left")
        return LogSource(path=path, kind="segment", streams=[LogStream(LogFiles(OsDisk(folder), "", only=name))])
    if start.startswith(FILE_MAGIC):
        return LogSource(path=path, kind="lpj", streams=[LpjStream(path)])
    raise NotALog(path=path, problem=_what_else(path))


def _what_else(path: str) -> str:
    """Why a file that exists is none of ours, with the way on where there is one."""
    if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(path)), META_NAME)):
        return "this is a part of a log; name its folder, or a .seg file in it"
    try:
        kind = sniff(path)
    except DiskError:
        kind = None
    if kind is None:
        return "this is neither a Tidelog segment nor an .lpj file"
    return f"this is a {kind} capture; bring it into a log first with `tidelog log import`"


__all__ = ["BlockInFile", "BrokenBytes", "Item", "JournalStream", "LogSource", "LogStream", "LpjStream", "open_source"]
