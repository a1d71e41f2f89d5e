"""The write-ahead files of a store: the one that is written, the older ones that are still needed, and their mark.

WF1  Files are numbered without a gap, and each names in its head the one before it and how much of that was durable.
     With the mark (`tidelog.storage.store.wal_mark`) a file that is missing, or shorter than it was, is noticed.
WF2  A failed write of the mark refuses nothing: what is synced is synced. The mark then promises less, never too much.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.blocks.header import BlockLimits
from tidelog.errors import DiskError
from tidelog.storage.disk import Disk
from tidelog.storage.store.parts import TABLE_PATH, WAL_FOLDER, WAL_MARK_PATH, wal_path
from tidelog.storage.store.wal import WAL_HEAD_BYTES, WalScan, WalWriter, read_wal_head, scan_wal, wal_numbers
from tidelog.storage.store.wal_mark import WalEnd, WalMark


class WalChain:
    """The files that are there, held against what their mark and their heads say must be there (WF1)."""

    def __init__(self, disk: Disk, *, table_floor: int, mark: WalEnd | None) -> None:
        self.numbers = wal_numbers(disk, WAL_FOLDER)
        self._disk = disk
        self._mark = mark
        self._floor = max(table_floor, mark.floor) if mark is not None else table_floor
        self._durable_sizes: dict[int, int] = {}
        """How much of it was durable, as far as the mark or the head of a later file says."""
        if mark is not None:
            self._durable_sizes[mark.number] = mark.size
        for number in self.numbers:
            head = read_wal_head(disk, WAL_FOLDER, number)
            if head is not None and head.previous_size:
                known = self._durable_sizes.get(head.previous_number, 0)
                self._durable_sizes[head.previous_number] = max(known, head.previous_size)

    def scan(self, number: int, limits: BlockLimits) -> WalScan:
        durable_size = self._durable_sizes.get(number, 0) if number >= self._floor else 0
        return scan_wal(self._disk, WAL_FOLDER, number, limits, durable_size=durable_size)

    def missing(self) -> list[int]:
        """Files that must be there and are not. Without a mark only gaps in the numbers are noticed."""
        live = [number for number in self.numbers if number >= self._floor]
        first = self._floor if self._mark is not None and self._floor else min(live, default=0)
        last = max([*live, self._mark.number if self._mark is not None else 0])
        return sorted(set(range(max(first, 1), last + 1)).difference(live)) if last else []

    def losses(self, scans: Mapping[int, WalScan], *, marked: bool, table_absent: bool) -> list[str]:
        """In plain words what was synced and is gone: which file, what was expected, what was found."""
        found = []
        if self._mark is None and marked:
            found.append(
                f"{WAL_MARK_PATH} is missing or damaged, so nobody knows how far the write-ahead files should reach"
            )
        if table_absent and self._mark is not None and self._mark.floor:
            found.append(f"{TABLE_PATH} and its copy are missing or damaged, and with them the ends of the channels")
        for number in self.missing():
            size = self._durable_sizes.get(number)
            known = f"it was durable up to byte {size}" if size else "it was begun and no checkpoint was done with it"
            found.append(f"{wal_path(number)} is missing: {known}")
        for number, scan in scans.items():
            if not scan.damaged_bytes:
                continue
            held = f"has {scan.file_bytes} bytes" if scan.file_bytes < scan.sync_point else "has its length"
            found.append(
                f"{wal_path(number)} was durable up to byte {scan.sync_point}; it {held}, and {scan.damaged_bytes} "
                "bytes below are gone or damaged"
            )
        return found


class WalFiles:
    def __init__(self, disk: Disk) -> None:
        self.current: WalWriter | None = None
        self.old: dict[int, int] = {}
        """Older files that a checkpoint may remove, oldest first, and how many bytes of each were durable."""
        self.next_number = 1
        self.trouble: DiskError | None = None
        """Why the mark could not be written; None once it was again."""
        self._disk = disk
        self._floor = 0
        self._mark: WalMark | None = None
        self._last = (0, 0)

    def remember(self, floor: int, ends: Mapping[int, int]) -> bool:
        """Write the mark of this run: these files were replayed, and must be there until a table no longer needs them.

        Returns whether it could be written. If not, the mark of the previous run stays, and stays true.
        """
        newest = max(ends, default=self.next_number - 1)
        self._floor, self._last = floor, (newest, ends.get(newest, 0))
        try:
            self._mark = WalMark(self._disk, WAL_MARK_PATH, WalEnd(floor, *self._last))
        except DiskError as error:
            self.trouble = error
        return self._mark is not None

    def begin(self) -> WalWriter:
        """Start the next file. Raises `DiskError`; then there is none."""
        wal = WalWriter(self._disk, WAL_FOLDER, self.next_number, previous=self._last)
        self.next_number += 1
        self.current = wal
        self._note(WAL_HEAD_BYTES)
        self.settle()
        return wal

    def sync(self) -> None:
        """Make what was written durable. Only a failure to do that is raised (WF2)."""
        wal = self.current
        assert wal is not None
        wal.sync()
        self._note(wal.durable_size)

    def finish(self) -> None:
        """Nothing more is written to the current file."""
        wal = self.current
        if wal is not None:
            self.old[wal.number] = wal.durable_size
            wal.close()
            self.current = None

    def raise_floor(self, floor: int) -> None:
        """A table was saved that needs no file below this number."""
        self._floor = floor

    def drop_old(self) -> None:
        while self.old:
            number = next(iter(self.old))
            self._disk.remove(wal_path(number))
            del self.old[number]

    def settle(self) -> None:
        """Let the mark survive a power cut, too. Costs a sync if anything was noted; call it when idle."""
        if self._mark is None:
            return
        try:
            self._mark.settle()
        except DiskError as error:
            self.trouble = error

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
        if self._mark is not None:
            self._mark.close()

    def _note(self, size: int) -> None:
        assert self.current is not None
        self._last = (self.current.number, size)
        if self._mark is None:
            return
        try:
            self._mark.note(WalEnd(self._floor, *self._last))
            self.trouble = None
        except DiskError as error:
            self.trouble = error
