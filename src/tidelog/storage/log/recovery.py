"""Opening a log: scan what is on disk, cut what was never durable, quarantine what is damaged.

The rule (B4): the highest `durable_end` in any good block is the sync point. Above it a bad block is what a power cut
leaves behind: the log is cut there, however good the blocks after it look. Below it a bad block is damage: it becomes a
placeholder for a peer to fill. Opening never raises because of what the files contain; it reports how much it cut.

After a clean close nothing is scanned. After a crash the newest segment is scanned, since only it
can be torn (LLO3); older ones are taken from their index, which was synced after them. `verify_all`
reads and checks every byte of the log instead. What lies above the sync point is then copied to a new
segment, since after a failed sync it may be in the page cache only (D2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tidelog.errors import FileMissing, NotALog
from tidelog.storage.atomic import read_mark, write_mark
from tidelog.storage.disk import Disk, FolderLock
from tidelog.storage.files import FileCache
from tidelog.storage.log import repair
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.log import META_NAME, STATE_NAME, Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.parts import RecoveryReport, Segment
from tidelog.storage.log.segment import (
    INDEX_SUFFIX,
    OFFSET_LIMIT,
    SEGMENT_HEAD_BYTES,
    Scan,
    SegmentDamage,
    SegmentHead,
    base_offset_of,
    segment_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKnowledge:
    """What a store knows of a channel from its own files, so that the log need not scan for it."""

    channel_id: int
    clean: bool
    synced_end: int
    """Everything below was synced to the segments: damage there is damage, not a torn write."""


def open_log(
    disk: Disk,
    folder: str,
    *,
    now_us: int,
    options: LogOptions | None = None,
    channel_id: int = 0,
    base_offset: int = 0,
    files: FileCache | None = None,
    managed: StoreKnowledge | None = None,
    verify_all: bool = False,
    known_synced_end: int = 0,
) -> Log:
    """Open the log in `folder`, making it (first offset `base_offset`) if there is none.

    `known_synced_end` is for a caller that knows from elsewhere that everything below was durable.
    """
    options = options or LogOptions()
    files = files or FileCache(disk)
    disk.make_folder(folder)
    lock = None if managed else disk.lock_folder(folder)
    try:
        return _Opening(disk, folder, options, files, lock, managed, known_synced_end).run(
            channel_id=managed.channel_id if managed else channel_id,
            base_offset=base_offset,
            now_us=now_us,
            verify_all=verify_all,
        )
    except BaseException:
        if lock is not None:
            lock.release()
        raise


class _Opening:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        options: LogOptions,
        files: FileCache,
        lock: FolderLock | None,
        managed: StoreKnowledge | None,
        known_synced_end: int,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.options = options
        self.files = files
        self.lock = lock
        self.managed = managed
        self.known_synced_end = known_synced_end
        self.scans: dict[int, Scan] = {}
        self.bad_heads: set[int] = set()
        self.bytes_scanned = 0

    def run(self, *, channel_id: int, base_offset: int, now_us: int, verify_all: bool) -> Log:
        channel_id, generation = self._read_meta(channel_id)
        state = self._begin_life()
        log = Log(
            disk=self.disk,
            folder=self.folder,
            channel_id=channel_id,
            generation=generation,
            options=self.options,
            files=self.files,
            segments=[Segment("", _empty_index(base_offset, self.options))],
            durable_end=0,
            incarnation=int(state.get("incarnation", 0)) + 1 if self.managed is None else 0,
            lock=self.lock,
        )
        self._tidy(log)
        log.segments = self._find_segments(log, state, verify_all=verify_all)
        if not log.segments:
            # A log that was closed at an offset never gives it out again, even if its segments are gone.
            log.segments.append(log.create_segment(max(base_offset, int(state.get("log_end", 0))), now_us))
        log.fold_epochs()
        log.recovery = self._settle(log, state)
        log.fold_epochs()
        log.discard_staged()  # sets the log end to what the files hold
        log.note_durable(log.written_end)
        return log

    # --- marks -----------------------------------------------------------------------------------

    def _read_meta(self, channel_id: int) -> tuple[int, int]:
        path = f"{self.folder}/{META_NAME}"
        meta = read_mark(self.disk, path)
        if meta is None:
            channel_id, generation = self._meta_from_segments(channel_id)
            write_mark(self.disk, path, repair.log_meta(channel_id, generation))
            return channel_id, generation
        if meta.get("format") != 1:
            raise NotALog(path=self.folder, problem=f"log format {meta.get('format')} needs a newer Tidelog")
        if self.managed and meta["channel_id"] != self.managed.channel_id:
            raise NotALog(path=self.folder, problem=f"this folder belongs to channel {meta['channel_id']}")
        return int(meta["channel_id"]), int(meta["generation"])

    def _meta_from_segments(self, channel_id: int) -> tuple[int, int]:
        """A lost or damaged meta file must not orphan the segments: they name their channel too."""
        names = self.disk.list_folder(self.folder)
        generations = [int(name[11:]) for name in names if name.startswith("generation-") and name[11:].isdecimal()]
        places = [(f"{self.folder}/generation-{number}", number) for number in sorted(generations)]
        for place, generation in [(self.folder, 0), *places]:
            for name in self.disk.list_folder(place):
                if base_offset_of(name) is not None:
                    head = _read_head(self.disk, f"{place}/{name}")
                    if head is not None:
                        return head.channel_id, generation
        return channel_id, 0

    def _begin_life(self) -> dict[str, Any]:
        """Read the state mark, then replace it by "not clean" before anything else is written."""
        if self.managed is not None:
            return {}
        path = f"{self.folder}/{STATE_NAME}"
        state = read_mark(self.disk, path) or {}
        write_mark(self.disk, path, {"clean": False, "incarnation": int(state.get("incarnation", 0)) + 1})
        return state

    def _tidy(self, log: Log) -> None:
        """Remove what an interrupted rewrite or rebuild left behind."""
        current = log.segment_folder.rpartition("/")[2] if log.generation else ""
        # The meta file that was read may not be durable yet. The old generation must not be removed before it is.
        self.disk.sync_folder(self.folder)
        for name in self.disk.list_folder(self.folder):
            if name.startswith("generation-") and name != current:
                self.disk.remove_folder(f"{self.folder}/{name}")
            elif name.endswith(".tmp") or (
                log.generation and base_offset_of(name.removesuffix(INDEX_SUFFIX)) is not None
            ):
                self.disk.remove(f"{self.folder}/{name}")

    # --- segments --------------------------------------------------------------------------------

    def _find_segments(self, log: Log, state: dict[str, Any], *, verify_all: bool) -> list[Segment]:
        try:
            names = self.disk.list_folder(log.segment_folder)
        except FileMissing:
            return []
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        for name in names:
            if name.endswith(".tmp"):
                self.disk.remove(f"{log.segment_folder}/{name}")
        clean = self.managed.clean if self.managed else bool(state.get("clean"))
        segments = []
        for base, following in zip_longest(bases, bases[1:]):
            segment = Segment(f"{log.segment_folder}/{segment_name(base)}", _empty_index(base, self.options))
            newest = following is None
            index = None if verify_all or (newest and not clean) else self._load_index(segment, state, newest=newest)
            if index is None:
                self._scan(log, segment, OFFSET_LIMIT if following is None else following)
            else:
                segment.index = index
            segments.append(segment)
        return segments

    def _load_index(self, segment: Segment, state: dict[str, Any], *, newest: bool) -> SegmentIndex | None:
        try:
            file = self.disk.open(segment.index_path, writable=False)
        except FileMissing:
            return None
        try:
            index = SegmentIndex.unpack(file.read_at(0, file.size()))
        finally:
            file.close()
        with self.files.use(segment.path) as data_file:
            size = data_file.size()
            head = SegmentHead.unpack(data_file.read_at(0, SEGMENT_HEAD_BYTES))
        if index is None or index.size != size or index.base_offset != segment.base_offset or head is None:
            return None
        known = (state.get("newest_base"), state.get("newest_size"))
        if newest and self.managed is None and known != (segment.base_offset, size):
            return None
        segment.opening_epoch = head.epoch
        return index

    def _scan(self, log: Log, segment: Segment, offset_limit: int) -> None:
        with self.files.use(segment.path) as file:
            head = SegmentHead.unpack(file.read_at(0, SEGMENT_HEAD_BYTES))
            scan = repair.scan_file(log, segment.base_offset, file, offset_limit=offset_limit)
        if head is None or head.base_offset != segment.base_offset or head.channel_id != log.channel_id:
            self.bad_heads.add(segment.base_offset)
        else:
            segment.opening_epoch = head.epoch
        self.bytes_scanned += scan.file_bytes
        self.scans[segment.base_offset] = scan
        segment.index = scan.index

    # --- cutting and quarantining ----------------------------------------------------------------

    def _settle(self, log: Log, state: dict[str, Any]) -> RecoveryReport:
        sync_point = self._sync_point(log, state)
        clean = not self.scans and (self.managed.clean if self.managed else bool(state.get("clean")))
        quarantined: list[range] = []
        bytes_cut = 0
        for segment, following in zip_longest(list(log.segments), log.segments[1:]):
            if following is None:
                cut, gone = self._settle_newest(log, segment, sync_point)
            else:
                cut, gone = self._settle_sealed(log, segment, following.base_offset)
            bytes_cut += cut
            quarantined += gone
        return RecoveryReport(
            clean=clean,
            segments=len(log.segments),
            bytes_scanned=self.bytes_scanned,
            bytes_cut=bytes_cut,
            quarantined=tuple(quarantined),
            sync_point=sync_point,
        )

    def _sync_point(self, log: Log, state: dict[str, Any]) -> int:
        marks = [self.known_synced_end, *(segment.index.durable_end for segment in log.segments)]
        marks += [scan.durable_end for scan in self.scans.values()]
        if self.managed is not None:
            # On a follower the sync marks in blocks describe its leader's disk; the store knows about this disk.
            return self.managed.synced_end
        if state.get("clean"):
            marks.append(int(state["log_end"]))
        return max(marks)

    def _settle_sealed(self, log: Log, segment: Segment, end_offset: int) -> tuple[int, list[range]]:
        """A sealed segment was synced whole: whatever is wrong with it is damage."""
        scan = self.scans.get(segment.base_offset)
        if scan is None and segment.index.end_offset != end_offset:
            self._scan(log, segment, end_offset)
            scan = self.scans[segment.base_offset]
        damages = scan.damages_up_to(end_offset) if scan else []
        if damages:
            gone = repair.place_holders(log, segment, damages, end_offset=end_offset, durable_end=end_offset)
            return _garbage_bytes(damages, end_offset), gone
        if segment.base_offset in self.bad_heads:
            repair.rewrite_segment(log, segment, [range(SEGMENT_HEAD_BYTES, segment.index.size)])
        elif scan is not None:
            with self.files.use(segment.path) as file:
                file.sync()  # a process that died while opening may not have synced it
            if not self._index_is_current(segment):
                log.write_index(segment)
        return 0, []

    def _index_is_current(self, segment: Segment) -> bool:
        """The scan found what the index file says: no need to write and sync it once more."""
        try:
            file = self.disk.open(segment.index_path, writable=False)
        except FileMissing:
            return False
        try:
            packed = segment.index.pack()
            return file.read_at(0, len(packed) + 1) == packed
        finally:
            file.close()

    def _settle_newest(self, log: Log, segment: Segment, sync_point: int) -> tuple[int, list[range]]:
        """Cut the newest segment at its first bad block above the sync point; quarantine below it."""
        if segment.base_offset not in self.scans and segment.index.end_offset < sync_point:
            self._scan(log, segment, OFFSET_LIMIT)  # its index is whole, but a later segment is gone with its file
        scan = self.scans.get(segment.base_offset)
        if scan is None:
            return 0, []
        known = scan.damages_up_to(sync_point)
        torn = next((one for one in known if one.first_offset >= sync_point and not one.is_garbage), None)
        damages = known[: known.index(torn)] if torn else known
        keep_bytes = torn.start if torn else scan.file_bytes
        cut = scan.file_bytes - keep_bytes
        if damages:
            gone = repair.place_holders(
                log, segment, damages, end_offset=sync_point, durable_end=sync_point, file_end=keep_bytes
            )
            return cut + _garbage_bytes(damages, sync_point), gone
        if segment.base_offset in self.bad_heads:
            keep = range(SEGMENT_HEAD_BYTES, segment.index.size)
            repair.rewrite_segment(log, segment, [keep])
            return max(0, scan.file_bytes - segment.index.size), []
        with self.files.use(segment.path) as file:
            if cut:
                file.truncate(keep_bytes)
            file.sync()
        self.disk.sync_folder(log.segment_folder)
        self._move_tail(log, segment, sync_point)
        return cut, []

    def _move_tail(self, log: Log, segment: Segment, sync_point: int) -> None:
        """Copy what is not known to be durable to a new file.

        After a failed sync the kernel takes the pages that it could not write for clean: they are read as
        if nothing had happened, a second sync does nothing for them, and a power cut loses them (D2).
        Writing them again in place could tear what is durable already. Copying the tail only, not the
        segment, keeps this cheap, and possible on a disk that is nearly full.
        """
        index = segment.index
        if not index.blocks or index.end_offset <= sync_point:
            return
        entry = index.entry_before(sync_point)
        offset, tail = index.entry_offsets[entry], range(index.entry_positions[entry], index.size)
        if offset == segment.base_offset:
            repair.rewrite_segment(log, segment, [tail])
        else:
            log.segments.append(repair.split_segment(log, segment, offset, tail))


def _garbage_bytes(damages: list[SegmentDamage], end_offset: int) -> int:
    """Bytes that go although no record is missing: a stray block, or a tail that a later segment holds."""
    return sum(
        damage.end - damage.start
        for damage in damages
        if damage.first_offset == (end_offset if damage.end_offset is None else damage.end_offset)
    )


def _empty_index(base_offset: int, options: LogOptions) -> SegmentIndex:
    interval_bytes = options.index_interval_bytes
    return SegmentIndex(base_offset=base_offset, size=SEGMENT_HEAD_BYTES, interval_bytes=interval_bytes)


def _read_head(disk: Disk, path: str) -> SegmentHead | None:
    file = disk.open(path, writable=False)
    try:
        return SegmentHead.unpack(file.read_at(0, SEGMENT_HEAD_BYTES))
    finally:
        file.close()
