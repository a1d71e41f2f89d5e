"""What one member of the metadata group keeps on its disk: term and vote, snapshot, entries.

Entries lie in a log of ours, one block each, at the offset that is their index. An installed snapshot starts a new log
(a *generation*); the snapshot's file names the log that counts, so replacing that one file changes both at once.

What a caller must keep: one thread at a time; after `MetadataPoisoned` close and open anew. There is no clock and no
thread in here. `tidelog.storage.raft.opening` opens, creates and sets aside; docs/formats/metadata.md has the files.

RST1  When `write` returns, all it was given survives a power cut: hard state first, then snapshot, then entries (RD2).
RST2  One fdatasync covers the entries of all Readys of a `write`.
RST3  A replaced suffix is gone from the disk, durably, before the first entry that replaces it is written (B5).
RST4  The mark is lowered durably before the log is cut, and raised only after the log was synced: it never promises
      more than the log holds.
RST5  Entries of an earlier generation never come back.
RST6  A log is never silently shorter than what was acked: each block proves that those before it exist, the mark proves
      the last.
RST7  After a failed write or sync nothing is written or acked again until the storage was opened anew (RD5, D2).
RST8  The log is trimmed only below a snapshot that is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidelog.core.raft.messages import Entry, EntryPlace, HardState, Ready, Snapshot
from tidelog.errors import DiskError, DiskFull, LogClosed, LogPoisoned, MetadataDamaged, MetadataPoisoned
from tidelog.storage.disk import Disk, FolderLock
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.raft.block import entry_block
from tidelog.storage.raft.files import (
    LOG_PREFIX,
    MARK_PREFIX,
    MarkFile,
    StoredIdentity,
    StoredSnapshot,
    write_hard_state,
    write_incarnation,
    write_outdated,
    write_snapshot,
)
from tidelog.units import MIB

METADATA_LOG = LogOptions(segment_bytes_max=1 * MIB, reserve_bytes=0)
"""Small segments, since only whole ones are trimmed. No reserve: the other logs leave theirs to this one (S4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStorageStatistics:
    generation: int
    first_index: int
    """The entries in the log on disk, including those that the snapshot covers."""
    last_index: int
    last_term: int
    snapshot_index: int
    snapshot_bytes: int
    log_bytes: int
    segments: int
    writes: int
    entries_written: int
    hard_states_written: int
    snapshots_written: int
    settled: bool
    """The mark of the last write is durable, too."""


class RaftStorage:
    """Built by `tidelog.storage.raft.opening`, which has read the disk.

    `hard_state` and `snapshot` are always what the disk holds. `entries` are those that opening found after the
    snapshot; take them and clear the list.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        folder: str,
        identity: StoredIdentity,
        hard_state: HardState,
        stored: StoredSnapshot,
        entries: list[Entry],
        terms: EpochHistory,
        log: Log,
        mark: MarkFile,
        lock: FolderLock,
        now_us: int,
        incarnation: int | None = None,
    ) -> None:
        self.identity = identity
        self.hard_state = hard_state
        self.snapshot = stored.snapshot
        self.entries = entries
        self.incarnation = incarnation
        """The highest incarnation that the folder was used under; None if it is not known."""
        self._disk = disk
        self._folder = folder
        self._generation = stored.generation
        self._terms = terms
        self._log = log
        self._mark = mark
        self._lock = lock
        self._now_us = now_us
        self._last = EntryPlace(log.log_end - 1, terms.epoch_at(log.log_end - 1))
        self._poison: str | None = None
        self._closed = False
        self._writes = self._entries_written = self._hard_states_written = self._snapshots_written = 0

    # --- queries -----------------------------------------------------------------------------------

    @property
    def last(self) -> EntryPlace:
        """The last entry that is durable, or the snapshot's if there is none after it."""
        return self._last

    def statistics(self) -> RaftStorageStatistics:
        log = self._log.statistics()
        return RaftStorageStatistics(
            generation=self._generation,
            first_index=log.log_start,
            last_index=self._last.index,
            last_term=self._last.term,
            snapshot_index=self.snapshot.head.index,
            snapshot_bytes=len(self.snapshot.data),
            log_bytes=log.bytes,
            segments=log.segments,
            writes=self._writes,
            entries_written=self._entries_written,
            hard_states_written=self._hard_states_written,
            snapshots_written=self._snapshots_written,
            settled=self._mark.settled,
        )

    # --- changes -----------------------------------------------------------------------------------

    def write(self, readys: Sequence[Ready]) -> None:
        """Make what these Readys ask for durable, in the order of their numbers (RST1, RST2).

        A crash before this returns leaves, on top of what was there, any first part of it: the hard state, then
        the snapshot, then the entries one by one; of a suffix to be replaced, any first part.
        """
        self._check_usable()
        hard_state, snapshot, entries = gathered(readys)
        self._check(hard_state, snapshot, entries)
        self._change(lambda: self._write(hard_state, snapshot, entries))

    def save_snapshot(self, snapshot: Snapshot, *, keep_from_index: int) -> None:
        """Keep the state machine's own snapshot, then drop whole segments below `keep_from_index` (RST8).

        It covers only entries that were written here. One that is not newer than what is held is no change.
        """
        self._check_usable()
        head = snapshot.head
        if head.index > self.snapshot.head.index:
            assert head.index <= self._last.index, "RST8: a local snapshot covers entries that are in the log"
            assert head.term == self._terms.epoch_at(head.index), "a snapshot has the term of its last entry"
            self._change(lambda: self._save_snapshot(snapshot, keep_from_index))

    def note_incarnation(self, incarnation: int) -> None:
        """The state machine's thread calls this before it announces an incarnation. Independent of `write` and its
        thread."""
        write_incarnation(self._disk, self._folder, incarnation)
        self.incarnation = incarnation

    def give_up(self, reason: str) -> MetadataDamaged:
        """Peers know a newer state of this member than the folder holds: it is never opened again, and nothing is
        written."""
        write_outdated(self._disk, self._folder, reason)
        error = MetadataDamaged(path=self._folder, problem=f"it is an older copy of itself: {reason}")
        self._poison = self._poison or str(error)
        return error

    def settle(self) -> None:
        """Make the newest mark durable. Call this when there is nothing else to do; it may cost a sync."""
        self._change(self._mark.settle)

    def close(self) -> None:
        """Settle, close the log and release the folder. After a failed write or sync, only release it."""
        if self._closed:
            return
        try:
            if self._poison is None:
                self._change(self._close_cleanly)
        finally:
            self._closed = True
            self._let_go_of_log()
            self._lock.release()

    # --- inside ------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._poison is not None:
            raise MetadataPoisoned(problem=self._poison)
        if self._closed:
            raise LogClosed(log=self._folder)

    def _change(self, action: Callable[[], None]) -> None:
        """Run the action, or never do anything again (RST7)."""
        self._check_usable()
        # Any interruption of the action, also one that is not handled here, leaves the storage poisoned.
        self._poison = "an earlier change was interrupted"
        try:
            action()
        except DiskFull as error:
            self._poison = f"{error}; the space kept in reserve is used up as well, so make room first"
            raise MetadataPoisoned(problem=self._poison, is_full=True) from error
        except (DiskError, LogPoisoned) as error:
            self._poison = str(error)
            raise MetadataPoisoned(problem=self._poison) from error
        self._poison = None

    def _check(self, hard_state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        """Check that the core's orders keep Raft's rules; a violation is a bug in Tidelog."""
        held = self.hard_state
        if hard_state is not None:
            assert hard_state.term >= held.term, "a term never falls"
            assert hard_state.term > held.term or held.vote in (None, hard_state.vote), "one vote in a term"
            held = hard_state
        base = self.snapshot.head.index
        last = self._last.index
        if snapshot is not None:
            assert snapshot.head.index >= base, "an installed snapshot is not older than the one held"
            assert snapshot.head.term <= held.term, "a snapshot of the future"
            base = last = snapshot.head.index
        if entries:
            assert base < entries[0].index <= last + 1, "entries continue or replace what the log holds"
            assert entries[-1].term <= held.term, "an entry of the future"

    def _write(self, hard_state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        if hard_state is not None and hard_state != self.hard_state:
            self._write_hard_state(hard_state)
        if snapshot is not None:
            self._install(snapshot)
        if entries:
            if entries[0].index <= self._last.index:
                self._cut(entries[0].index)
            self._append(entries)
        self._writes += 1

    def _write_hard_state(self, hard_state: HardState) -> None:
        write_hard_state(self._disk, self._folder, hard_state)
        self.hard_state = hard_state
        self._hard_states_written += 1

    def _append(self, entries: list[Entry]) -> None:
        log, now_us = self._log, self._now_us
        # Not the entry's own term: a suffix may be replaced by entries of an older term than its own, while the epochs
        # of a log never fall. The member's term never falls either.
        epoch = self.hard_state.term
        for entry in entries:
            log.stage(entry_block(entry, time_us=now_us), epoch=epoch, now_us=now_us)
            self._terms.note(entry.term, entry.index)
        log.commit(now_us)
        self._last = EntryPlace(entries[-1].index, entries[-1].term)
        self._entries_written += len(entries)
        self._mark.note(self._last)

    def _cut(self, index: int) -> None:
        """Remove the entries from `index` on (RST3)."""
        kept = EntryPlace(index - 1, self._terms.epoch_at(index - 1))
        self._lower_mark(kept)
        self._log.truncate(index)
        self._terms.truncate(index)
        self._last = kept

    def _lower_mark(self, place: EntryPlace) -> None:
        self._mark.note(place)
        self._mark.settle()  # RST4: else a power cut right after the cut would look like damage

    def _install(self, snapshot: Snapshot) -> None:
        """A snapshot from the leader takes the place of the whole log: it begins the next generation (RST5)."""
        generation = self._generation + 1
        place = EntryPlace(snapshot.head.index, snapshot.head.term)
        log = new_log(self._disk, self._folder, generation, place, now_us=self._now_us, options=self._log.options)
        try:
            mark = MarkFile.create(self._disk, f"{self._folder}/{MARK_PREFIX}{generation}", place)
            write_snapshot(self._disk, self._folder, StoredSnapshot(generation, snapshot))
        except BaseException:
            log.poison("its snapshot was not written")
            log.close()
            raise
        self._let_go_of_log()
        old, self._generation = self._generation, generation
        self._log, self._mark, self._last = log, mark, place
        self._terms = EpochHistory([(place.term, place.index)])
        self.snapshot = snapshot
        self._snapshots_written += 1
        remove_generation(self._disk, self._folder, old)

    def _save_snapshot(self, snapshot: Snapshot, keep_from_index: int) -> None:
        write_snapshot(self._disk, self._folder, StoredSnapshot(self._generation, snapshot))
        self.snapshot = snapshot
        self._snapshots_written += 1
        self._log.trim(min(keep_from_index, snapshot.head.index + 1), self._now_us)
        self._terms.trim(min(self._log.log_start, snapshot.head.index))

    def _close_cleanly(self) -> None:
        self._mark.settle()
        self._log.close(self._now_us)

    def _let_go_of_log(self) -> None:
        if not self._log.closed:
            self._log.poison("nothing more is written to it")
            self._log.close()
        self._mark.close()


def gathered(readys: Sequence[Ready]) -> tuple[HardState | None, Snapshot | None, list[Entry]]:
    """The combined result of several Readys that are carried out one after the other (RD3)."""
    hard_state, snapshot, entries = None, None, list[Entry]()
    for ready in readys:
        if ready.hard_state is not None:
            hard_state = ready.hard_state
        if ready.snapshot is not None:
            snapshot = ready.snapshot
            entries = []
        if ready.entries:
            if entries:
                kept = ready.entries[0].index - entries[0].index
                assert kept <= len(entries), "entries of a Ready continue or replace those of the one before"
                del entries[max(0, kept) :]
            entries += ready.entries
    for one, other in pairwise(entries):
        assert other.index == one.index + 1, "entries have one index after the other"
        assert other.term >= one.term, "the terms of entries never fall"
    return hard_state, snapshot, entries


def new_log(disk: Disk, folder: str, generation: int, after: EntryPlace, *, now_us: int, options: LogOptions) -> Log:
    """The empty log of a generation, whose first entry follows `after`."""
    return open_log(
        disk,
        f"{folder}/{LOG_PREFIX}{generation}",
        now_us=now_us,
        options=options,
        channel_id=generation,
        base_offset=after.index + 1,
    )


def remove_generation(disk: Disk, folder: str, generation: int) -> None:
    """Remove files that no snapshot names. A crash may bring them back; nothing reads them."""
    disk.remove_folder(f"{folder}/{LOG_PREFIX}{generation}")
    disk.remove(f"{folder}/{MARK_PREFIX}{generation}")
