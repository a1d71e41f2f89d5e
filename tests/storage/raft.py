"""What the tests of the Raft storage share: entries, Readys, a storage on a simulated disk."""

from __future__ import annotations

import random
from typing import Any

from tidelog.core.raft.members import Members
from tidelog.core.raft.messages import Entry, EntryKind, HardState, Ready, Snapshot, SnapshotHead
from tidelog.sim.metadata.stored_state import StoredState
from tidelog.sim.power import PluggedDisk
from tidelog.storage.log.options import LogOptions
from tidelog.storage.raft.files import StoredIdentity
from tidelog.storage.raft.opening import create_raft_storage, open_raft_storage
from tidelog.storage.raft.storage import RaftStorage

FOLDER = ".tidelog/metadata"
LIVE = f"{FOLDER}/live"
IDENTITY = StoredIdentity(cluster=bytes(range(16)), node="n1", disk="0011223344556677")
MEMBERS = Members(("n1", "n2"), ("n3",))
FOUNDED = StoredState(HardState(1, "n1"), Snapshot(SnapshotHead(0, 0, MEMBERS), b"start"), ())
SMALL = LogOptions(segment_bytes_max=4096, reserve_bytes=0)


def new_disk(seed: int = 1) -> PluggedDisk:
    return PluggedDisk(random.Random(seed))


def entry(index: int, term: int = 1, data: bytes | None = None) -> Entry:
    return Entry(index, term, EntryKind.CHANGE, f"change {index} of term {term}".encode() if data is None else data)


def entries(first: int, last: int, term: int = 1, size: int | None = None) -> tuple[Entry, ...]:
    return tuple(
        entry(index, term, None if size is None else index.to_bytes(8) * (size // 8))
        for index in range(first, last + 1)
    )


def ready(*of: Entry, hard_state: HardState | None = None, snapshot: Snapshot | None = None, number: int = 1) -> Ready:
    return Ready(
        number=number,
        hard_state=hard_state,
        snapshot=snapshot,
        entries=of,
        messages=(),
        messages_after=(),
        committed=(),
        reads=(),
    )


def snapshot_at(index: int, term: int = 1, data: bytes = b"state") -> Snapshot:
    return Snapshot(SnapshotHead(index, term, MEMBERS), data)


def created(disk: Any, state: StoredState = FOUNDED, options: LogOptions = SMALL) -> RaftStorage:
    return create_raft_storage(
        disk,
        FOLDER,
        identity=IDENTITY,
        snapshot=state.snapshot,
        hard_state=state.hard_state,
        now_us=1,
        options=options,
    )


def opened(disk: Any, options: LogOptions = SMALL) -> RaftStorage:
    storage = open_raft_storage(disk, FOLDER, now_us=2, options=options)
    assert storage is not None
    return storage


def state_of(storage: RaftStorage) -> StoredState:
    """As it was opened."""
    return StoredState(storage.hard_state, storage.snapshot, tuple(storage.entries))


def killed(storage: RaftStorage) -> None:
    """The process is gone, the machine is not."""
    storage._poison = storage._poison or "the process was killed"
    storage.close()


def after_power_cut(disk: PluggedDisk) -> StoredState:
    disk.crash()
    storage = opened(disk)
    state = state_of(storage)
    killed(storage)
    return state


def files_below(disk: Any, folder: str = LIVE) -> dict[str, bytes]:
    """The content of every file below a folder, by path."""
    found = {}
    for name in disk.list_folder(folder):
        path = f"{folder}/{name}"
        if name.startswith("log-") or name in ("live", "making", "quarantine") or name.startswith("metadata-"):
            found.update(files_below(disk, path))
            continue
        file = disk.open(path, writable=False)
        found[path] = file.read_at(0, file.size())
        file.close()
    return found
