"""A log in memory: the same interface as a persistent one, a hard cap, and the right to skip ahead."""

from __future__ import annotations

from dataclasses import replace

from tidelog.errors import DiskFull, MemoryLogFull
from tidelog.storage.files import FileCache
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import MEMORY_LOG_BYTES_MAX, LogOptions
from tidelog.storage.log.parts import Segment
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES
from tidelog.storage.ram_disk import RamDisk


class MemoryLog(Log):
    """Keeps its segments in a `RamDisk`. "Durable" means held by this process."""

    persistent = False

    def __init__(
        self,
        name: str,
        *,
        now_us: int,
        channel_id: int = 0,
        base_offset: int = 0,
        options: LogOptions | None = None,
        bytes_max: int = MEMORY_LOG_BYTES_MAX,
    ) -> None:
        disk = RamDisk(bytes_max=bytes_max)
        disk.make_folder(name)
        options = _with_reserve(options or LogOptions())
        super().__init__(
            disk=disk,
            folder=name,
            channel_id=channel_id,
            generation=0,
            options=options,
            files=FileCache(disk),
            segments=[_no_segment(base_offset, options)],
            durable_end=base_offset,
        )
        self.segments = [self.create_segment(base_offset, now_us)]
        self._ram = disk

    @property
    def held_bytes(self) -> int:
        return self._ram.bytes_used

    def alter(self, options: LogOptions, *, bytes_max: int | None = None) -> None:
        """Go on with other options, and another cap. A cap below what is held refuses appends until a sweep."""
        super().alter(_with_reserve(options))
        self._ram.bytes_max = self._ram.bytes_max if bytes_max is None else bytes_max

    def flush(self, now_us: int) -> None:
        try:
            super().flush(now_us)
        except DiskFull as error:
            raise MemoryLogFull(log=self.folder, held_bytes=self.held_bytes, bytes_max=self._ram.bytes_max) from error

    def commit(self, now_us: int) -> None:
        try:
            super().commit(now_us)
        except MemoryLogFull:
            self.discard_staged()
            raise

    def write_index(self, segment: Segment, *, sync: bool = True) -> None:
        """A memory log is never recovered, and an index file would count against the cap."""

    def reset(self, offset: int, now_us: int) -> None:
        """Drop everything and go on at `offset`, which may also lie below; no epoch is remembered.

        What follows comes from another log, whose records may be of older epochs than those dropped here.
        """
        with self.mutex:
            self.check_usable()
            self.epochs = EpochHistory()
            self._start_over(offset, now_us)

    def _start_over(self, offset: int, now_us: int) -> None:
        for segment in self.segments:
            self.disk.remove(segment.index_path)
            self.disk.remove(segment.path)
            self.files.drop(segment.path)
            segment.version += 1
        self.segments = [_no_segment(offset, self.options)]
        self.segments = [self.create_segment(offset, now_us)]
        self.forget_staged(log_end=offset, durable_end=offset)


def _with_reserve(options: LogOptions) -> LogOptions:
    """The reserve is room for the empty segment that a sweep of the newest one leaves behind."""
    return replace(options, reserve_bytes=SEGMENT_HEAD_BYTES)


def _no_segment(base_offset: int, options: LogOptions) -> Segment:
    """Stands in until the first segment is made."""
    return Segment("", SegmentIndex(base_offset=base_offset, size=0, interval_bytes=options.index_interval_bytes))
