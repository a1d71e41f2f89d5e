"""Opening, creating and setting aside the files of `RaftStorage`.

Everything is read and checked on opening: metadata is small, and a member that votes by damaged state is worse than one
that is gone. A folder is blank (None), whole, or `MetadataDamaged`; a crash alone never makes it the latter. An
unreadable disk is its own `DiskError`. Nothing here touches a file outside the folder it was given, except that
`set_aside` moves things to the place it is told.

MO1  A folder is created under another name and renamed when it is whole, so a crash leaves it blank or complete.
MO2  What the snapshot does not name is ignored and cleaned up, once the name of the snapshot is durable.
MO3  The log must reach the mark and the snapshot, its indexes and terms must fit both, or it is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.core.raft.messages import Entry, EntryPlace, HardState, Snapshot
from tidelog.errors import BadBlock, BadMessage, DamagedRange, DiskError, MetadataDamaged, NotALog
from tidelog.storage.disk import Disk, FolderLock
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.raft.block import block_entry
from tidelog.storage.raft.files import (
    LOG_PREFIX,
    MARK_PREFIX,
    MarkFile,
    StoredIdentity,
    StoredSnapshot,
    check_not_outdated,
    read_hard_state,
    read_identity,
    read_incarnation,
    read_mark_place,
    read_snapshot,
    write_hard_state,
    write_identity,
    write_snapshot,
)
from tidelog.storage.raft.storage import METADATA_LOG, RaftStorage, new_log

LIVE_NAME = "live"
"""The subfolder that counts. Its presence says that creation was completed (MO1)."""
MAKING_NAME = "making"


def open_raft_storage(
    disk: Disk, folder: str, *, now_us: int, options: LogOptions = METADATA_LOG
) -> RaftStorage | None:
    """What the folder holds, or None if nothing was ever completed there."""
    if not disk.exists(folder):
        return None
    lock = disk.lock_folder(folder)
    try:
        storage = None
        if disk.exists(f"{folder}/{LIVE_NAME}"):
            disk.sync_folder(folder)  # the process that created it may have died before it was durable
            storage = _open_live(disk, f"{folder}/{LIVE_NAME}", lock, now_us, options)
    except BaseException:
        lock.release()
        raise
    if storage is None:
        lock.release()
    return storage


def create_raft_storage(
    disk: Disk,
    folder: str,
    *,
    identity: StoredIdentity,
    snapshot: Snapshot,
    hard_state: HardState,
    now_us: int,
    options: LogOptions = METADATA_LOG,
) -> RaftStorage:
    """Create the metadata of a new member, of a new cluster or as a learner of an old one (MO1)."""
    assert snapshot.head.term <= hard_state.term, "a snapshot of the future"
    disk.make_folder(folder)
    lock = disk.lock_folder(folder)
    try:
        live, making = f"{folder}/{LIVE_NAME}", f"{folder}/{MAKING_NAME}"
        if disk.exists(live):
            raise DiskError(operation="create", path=live, reason="there is metadata already; open it instead")
        disk.remove_folder(making)
        disk.make_folder(making)
        place = EntryPlace(snapshot.head.index, snapshot.head.term)
        new_log(disk, making, 1, place, now_us=now_us, options=options).close(now_us)
        MarkFile.create(disk, f"{making}/{MARK_PREFIX}1", place).close()
        write_snapshot(disk, making, StoredSnapshot(1, snapshot))
        write_hard_state(disk, making, hard_state)
        write_identity(disk, making, identity)
        disk.rename(making, live)
        disk.sync_folder(folder)
        return _open_live(disk, live, lock, now_us, options)
    except BaseException:
        lock.release()
        raise


def set_aside(disk: Disk, folder: str, *, to: str) -> str:
    """Move what the folder holds under `to`, so that it reads as blank; returns where it is now.

    Nothing is deleted. A crash leaves it in the one place or the other.
    """
    disk.make_folder(to)
    lock = disk.lock_folder(folder)
    try:
        stem = folder.rpartition("/")[2]
        taken = set(disk.list_folder(to))
        number = 1
        while f"{stem}-{number}" in taken:
            number += 1
        target = f"{to}/{stem}-{number}"
        disk.rename(f"{folder}/{LIVE_NAME}", target)
        disk.sync_folder(to)
        disk.sync_folder(folder)
        return target
    finally:
        lock.release()


# --- reading everything ----------------------------------------------------------------------------


def _open_live(disk: Disk, folder: str, lock: FolderLock, now_us: int, options: LogOptions) -> RaftStorage:
    check_not_outdated(disk, folder)
    identity = read_identity(disk, folder)
    hard_state = read_hard_state(disk, folder)
    stored = read_snapshot(disk, folder)
    head = stored.snapshot.head
    if head.term > hard_state.term:
        problem = f"the snapshot is of term {head.term}, the newest term seen is {hard_state.term}"
        raise MetadataDamaged(path=folder, problem=problem)
    log_folder = f"{folder}/{LOG_PREFIX}{stored.generation}"
    mark_path = f"{folder}/{MARK_PREFIX}{stored.generation}"
    marked = read_mark_place(disk, mark_path)
    if not disk.exists(log_folder):
        raise MetadataDamaged(path=log_folder, problem="it is missing")
    _clean_up(disk, folder, stored.generation)
    synced_end = max(marked.index, head.index) + 1
    log = _open_entries(disk, log_folder, now_us=now_us, options=options, synced_end=synced_end)
    try:
        entries, terms = _checked_entries(log, stored, marked, hard_state)
        last = log.log_end - 1
        mark = MarkFile.create(disk, mark_path, EntryPlace(last, terms.epoch_at(last)))
    except BaseException:
        log.poison("opening the metadata failed")
        log.close()
        raise
    return RaftStorage(
        disk=disk,
        folder=folder,
        identity=identity,
        hard_state=hard_state,
        stored=stored,
        entries=entries,
        terms=terms,
        log=log,
        mark=mark,
        lock=lock,
        now_us=now_us,
        incarnation=read_incarnation(disk, folder),
    )


def _clean_up(disk: Disk, folder: str, generation: int) -> None:
    """Remove what an interrupted change left behind (MO2)."""
    disk.sync_folder(folder)
    for name in disk.list_folder(folder):
        path = f"{folder}/{name}"
        if name.startswith(LOG_PREFIX) and name != f"{LOG_PREFIX}{generation}":
            disk.remove_folder(path)
        elif name.endswith(".tmp") or (name.startswith(MARK_PREFIX) and name != f"{MARK_PREFIX}{generation}"):
            disk.remove(path)


def _open_entries(disk: Disk, folder: str, *, now_us: int, options: LogOptions, synced_end: int) -> Log:
    """The log with every byte checked; what is gone below `synced_end` is damage, not a torn write (RST6)."""
    try:
        log = open_log(disk, folder, now_us=now_us, options=options, verify_all=True, known_synced_end=synced_end)
    except (NotALog, BadBlock) as error:
        raise MetadataDamaged(path=folder, problem=str(error)) from error
    damaged = log.damaged()
    if not damaged and log.log_end >= synced_end:
        return log
    log.poison("it is damaged")
    log.close()
    if damaged:
        parts = ", ".join(f"{part.start} to {part.stop - 1}" for part in damaged[:10])
        raise MetadataDamaged(path=folder, problem=f"entries {parts} can no longer be read")
    problem = f"entries up to {synced_end - 1} were durable, but the log ends at {log.log_end - 1}"
    raise MetadataDamaged(path=folder, problem=problem)


def _checked_entries(
    log: Log, stored: StoredSnapshot, marked: EntryPlace, hard_state: HardState
) -> tuple[list[Entry], EpochHistory]:
    """The entries after the snapshot, and the terms of all that the log holds (MO3)."""
    head = stored.snapshot.head
    if log.log_start > head.index + 1:
        problem = f"the snapshot ends at {head.index}, but the log begins at {log.log_start}"
        raise MetadataDamaged(path=log.folder, problem=problem)
    known = {head.index: head.term, marked.index: marked.term}
    entries = []
    terms = EpochHistory([(head.term, head.index)] if log.log_start == head.index + 1 else ())
    newest = 0
    for entry in _read_entries(log):
        if not newest <= entry.term <= hard_state.term or known.get(entry.index, entry.term) != entry.term:
            problem = f"the entry at {entry.index} has term {entry.term}, which does not fit the rest"
            raise MetadataDamaged(path=log.folder, problem=problem)
        newest = entry.term
        terms.note(entry.term, entry.index)
        if entry.index > head.index:
            if newest < head.term:
                problem = f"the entry at {entry.index} is of an older term than the snapshot before it"
                raise MetadataDamaged(path=log.folder, problem=problem)
            entries.append(entry)
    return entries, terms


def _read_entries(log: Log) -> Iterator[Entry]:
    """Every entry of the log in order, each where its index belongs."""
    try:
        for block in log.blocks():
            entry = block_entry(block)
            if block.offsets != range(entry.index, entry.index + 1):
                problem = f"an entry of index {entry.index} lies at {block.offsets.start}"
                raise MetadataDamaged(path=log.folder, problem=problem)
            yield entry
    except (BadBlock, BadMessage, DamagedRange) as error:
        raise MetadataDamaged(path=log.folder, problem=str(error)) from error
