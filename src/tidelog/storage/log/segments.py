"""The segments of a log, what is staged for them, and how far they are written and durable.

`storage.log.log` adds appending, cutting and reading; the functions of `reading`, `repair` and `retention` work on what
is here. The invariants are those of `storage.log.log`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from tidelog.blocks.block import Block
from tidelog.errors import DiskError, DiskFull, LogClosed, LogPoisoned, SyncFailed
from tidelog.storage.atomic import folder_of
from tidelog.storage.disk import Disk, FolderLock
from tidelog.storage.files import FileCache
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.parts import RecoveryReport, Segment
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, SegmentHead, segment_name
from tidelog.storage.store.reserve import Reserve


class LogSegments:
    def __init__(
        self,
        *,
        disk: Disk,
        folder: str,
        channel_id: int,
        generation: int,
        options: LogOptions,
        files: FileCache,
        segments: list[Segment],
        durable_end: int,
        incarnation: int = 0,
        lock: FolderLock | None = None,
        on_disk: bool = True,
    ) -> None:
        self.disk = disk
        self.on_disk = on_disk
        self.folder = folder
        self.channel_id = channel_id
        self.generation = generation
        self.options = options
        self.files = files
        self.segments = segments
        self.incarnation = incarnation
        self.recovery: RecoveryReport | None = None
        self.mutex = threading.RLock()
        self._folder_lock = lock
        self._staged: list[Block] = []
        self._staged_bytes = 0
        self._log_end = self.written_end
        self._durable_end = durable_end
        self._dirty = False
        self._poison: str | None = None
        self._closed = False
        self._reserve = Reserve(disk, reserve_bytes=options.reserve_bytes)
        self._truncations = 0
        self._floors: dict[str, int] = {}
        self._watchers: list[Callable[[], None]] = []
        self.fold_epochs()

    def fold_epochs(self) -> None:
        self.epochs = EpochHistory(
            (pair for segment in self.segments for pair in segment.index.epochs),
            floor=max(segment.opening_epoch for segment in self.segments),
        )

    # --- where things are ------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        return self.segments[0].base_offset

    @property
    def log_end(self) -> int:
        """Offset that the next record will get."""
        return self._log_end

    @property
    def written_end(self) -> int:
        """End of what has been handed to the operating system."""
        return self.segments[-1].index.end_offset

    @property
    def durable_end(self) -> int:
        """End of what would survive a power cut, as far as this process knows."""
        return self._durable_end

    @property
    def staged_bytes(self) -> int:
        return self._staged_bytes

    @property
    def segment_folder(self) -> str:
        return self.folder if self.generation == 0 else f"{self.folder}/generation-{self.generation}"

    def damaged(self) -> list[range]:
        """Offsets that placeholders stand for: fetch them from a peer and `replace` them."""
        with self.mutex:
            return [part for segment in self.segments for part in segment.index.missing]

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` whenever an end moves. Returns the way to stop. It must not block."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _moved(self) -> None:
        for watcher in self._watchers:
            watcher()

    def check_usable(self) -> None:
        if self._poison is not None:
            raise LogPoisoned(log=self.folder, cause=self._poison)
        if self._closed:
            raise LogClosed(log=self.folder)

    @property
    def poisoned(self) -> bool:
        return self._poison is not None

    def poison(self, cause: str) -> None:
        """Never ack again (LLO4)."""
        self._poison = self._poison or cause
        self._moved()

    # --- segments --------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make what was flushed durable. After an error this log never acks again (LLO4)."""
        with self.mutex:
            self.check_usable()
            end, path, truncations = self.written_end, self.segments[-1].path, self._truncations
            if not self._dirty:
                self._durable_end = max(self._durable_end, end)
                return
            self._dirty = False
        try:
            with self.files.use(path) as file:
                file.sync()
        except DiskError as error:
            self.poison(str(error))
            raise
        with self.mutex:
            if truncations == self._truncations:
                self._durable_end = max(self._durable_end, end)
            self._moved()

    def roll(self, now_us: int) -> None:
        """Seal the newest segment and start another (LLO3)."""
        with self.mutex:
            self.check_usable()
            sealed = self.segments[-1]
            if not sealed.index.blocks:
                return
            self.sync()
            self.write_index(sealed)
            self.segments.append(self.create_segment(sealed.index.end_offset, now_us))

    def create_segment(self, base_offset: int, now_us: int, *, folder: str | None = None) -> Segment:
        # Only what lies before the segment: blocks that are staged for it may be truncated again, and an epoch
        # that no record has any more must not keep out the records that take their place.
        opening = max((segment.opening_epoch for segment in self.segments), default=0)
        epoch = max(opening, self.epochs.epoch_at(base_offset - 1)) if folder is None else self.epochs.newest
        folder = folder or self.segment_folder
        path = f"{folder}/{segment_name(base_offset)}"
        head = SegmentHead(
            channel_id=self.channel_id,
            base_offset=base_offset,
            generation=self.generation,
            created_us=now_us,
            epoch=epoch,
        )
        self.create_file(path, head.pack())
        interval = self.options.index_interval_bytes
        index = SegmentIndex(base_offset=base_offset, size=SEGMENT_HEAD_BYTES, interval_bytes=interval)
        return Segment(path, index, opening_epoch=head.epoch)

    def write_index(self, segment: Segment, *, sync: bool = True) -> None:
        """Put the index beside its segment. It is a cache: without space for it, opening scans the segment.

        Without `sync` a power cut may leave the old index or a torn one, which opening does not take.
        """
        if not self.on_disk:
            return
        try:
            file = self.disk.open(segment.index_path, create=True)
            try:
                packed = segment.index.pack()
                file.truncate(len(packed))
                file.write_at(0, [packed])
                if sync:
                    file.sync()
            finally:
                file.close()
        except DiskFull:
            self.disk.remove(segment.index_path)
        except SyncFailed as error:
            self.poison(str(error))
            raise

    def create_file(self, path: str, head: bytes) -> None:
        """Make the file of a new segment, name and all; what fails is undone."""
        folder = folder_of(path)
        try:
            file = self.disk.open(path, create=True)
            try:
                file.truncate(0)
                file.write_at(0, [head])
                file.sync()
            finally:
                file.close()
            self.disk.sync_folder(folder)
        except DiskError as error:
            # The newest segment goes on growing, so no later one may be found after a crash (LLO3).
            try:
                self.disk.remove(path)
                self.disk.sync_folder(folder)
            except DiskError:
                self.poison(f"{error}, which could not be undone")
            if isinstance(error, SyncFailed):
                self.poison(str(error))
            raise
        self.files.drop(path)  # a handle of an earlier file of this name

    def staged_blocks(self) -> Sequence[Block]:
        """Blocks that have offsets and are not in a segment yet, oldest first. Hold the mutex."""
        return self._staged

    @property
    def closed(self) -> bool:
        return self._closed

    def segment_of(self, offset: int) -> Segment:
        """The segment that holds a written offset. Hold the mutex."""
        return self.segments[bisect_right(self.segments, offset, key=_base_offset) - 1]

    # --- floors ----------------------------------------------------------------------------------

    def set_floor(self, name: str, offset: int | None) -> None:
        """Retention keeps everything at or above the lowest floor. None removes this one."""
        with self.mutex:
            if offset is None:
                self._floors.pop(name, None)
            else:
                self._floors[name] = offset

    def floor(self) -> int:
        with self.mutex:
            return min(self._floors.values(), default=self._log_end)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
