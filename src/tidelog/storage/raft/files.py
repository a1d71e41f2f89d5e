"""The small files of a member's metadata: its identity, its term and vote, its snapshot, and the mark of its log.

docs/formats/metadata.md has the bytes. Unlike the marks of `tidelog.storage.atomic`, none of these can be rebuilt: a
file that is missing or does not check out is `MetadataDamaged`, never a default.

MF1  Identity, hard state and snapshot are replaced atomically and are durable when the call returns.
MF2  The mark has two slots. One of them is always durable and whole; only the other one is written.
MF3  Between two settled marks the end only rises, so any un-synced mark that survives a power cut is true.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from tidelog.codecs.raft_codec import NUMBER_MAX, decode_snapshot_head, encode_snapshot_head
from tidelog.core.raft.messages import EntryPlace, HardState, Snapshot
from tidelog.errors import BadMessage, FileMissing, MetadataDamaged
from tidelog.storage.atomic import folder_of, read_mark, write_mark
from tidelog.storage.disk import Buffer, Disk

IDENTITY_NAME: Final = "identity"
HARD_STATE_NAME: Final = "hard-state"
SNAPSHOT_NAME: Final = "snapshot"
INCARNATION_NAME: Final = "incarnation"
OUTDATED_NAME: Final = "outdated"
MARK_PREFIX: Final = "mark-"
LOG_PREFIX: Final = "log-"
FORMAT: Final = 1

_SNAPSHOT_MAGIC: Final = b"TLRSNP\x01\x00"
_SNAPSHOT: Final = struct.Struct("<8sQQI")
_MARK_MAGIC: Final = b"TLRMRK\x01\x00"
_MARK: Final = struct.Struct("<8sQQQ")
_CHECKSUM: Final = struct.Struct("<I")
_SLOT_BYTES: Final = _MARK.size + _CHECKSUM.size
MARK_SLOT_STEP: Final = 4096
"""The distance between the slots: no disk tears two places that far apart in one write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIdentity:
    """Which member of which cluster this folder belongs to. Written once."""

    cluster: bytes
    """16 bytes."""
    node: str
    disk: str
    """Drawn at random when the folder was made: a node that lost its disk is another member."""


# --- identity, term and vote -----------------------------------------------------------------------


def write_identity(disk: Disk, folder: str, identity: StoredIdentity) -> None:
    assert len(identity.cluster) == 16, "a cluster id has 16 bytes"
    value = {"format": FORMAT, "cluster": identity.cluster.hex(), "node": identity.node, "disk": identity.disk}
    write_mark(disk, f"{folder}/{IDENTITY_NAME}", value)


def read_identity(disk: Disk, folder: str) -> StoredIdentity:
    path = f"{folder}/{IDENTITY_NAME}"
    value = _read_value(disk, path)
    try:
        cluster, node, name = bytes.fromhex(value["cluster"]), value["node"], value["disk"]
        if len(cluster) != 16 or not isinstance(node, str) or not isinstance(name, str):
            raise ValueError("not an identity")
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataDamaged(path=path, problem="it does not say whose metadata this is") from error
    return StoredIdentity(cluster=cluster, node=node, disk=name)


def write_hard_state(disk: Disk, folder: str, state: HardState) -> None:
    write_mark(disk, f"{folder}/{HARD_STATE_NAME}", {"format": FORMAT, "term": state.term, "vote": state.vote})


def read_hard_state(disk: Disk, folder: str) -> HardState:
    path = f"{folder}/{HARD_STATE_NAME}"
    value = _read_value(disk, path)
    term, vote = value.get("term"), value.get("vote", "")
    if not isinstance(term, int) or not 0 <= term < NUMBER_MAX or vote == "" or not isinstance(vote, str | None):
        raise MetadataDamaged(path=path, problem="it does not hold a term and a vote")
    return HardState(term, vote)


def write_incarnation(disk: Disk, folder: str, incarnation: int) -> None:
    """The highest incarnation that this folder was used under: an older copy of the folder knows a lower one."""
    write_mark(disk, f"{folder}/{INCARNATION_NAME}", {"format": FORMAT, "incarnation": incarnation})


def read_incarnation(disk: Disk, folder: str) -> int | None:
    """None if it was never written, or is damaged: then it proves nothing."""
    value = (read_mark(disk, f"{folder}/{INCARNATION_NAME}") or {}).get("incarnation")
    return value if isinstance(value, int) else None


def write_outdated(disk: Disk, folder: str, reason: str) -> None:
    """Peers proved that this folder is an older copy: it is never opened again."""
    write_mark(disk, f"{folder}/{OUTDATED_NAME}", {"format": FORMAT, "reason": reason})


def check_not_outdated(disk: Disk, folder: str) -> None:
    value = read_mark(disk, f"{folder}/{OUTDATED_NAME}")
    if value is not None:
        raise MetadataDamaged(path=folder, problem=f"it is an older copy of itself: {value.get('reason')}")


def _read_value(disk: Disk, path: str) -> dict[str, Any]:
    value = read_mark(disk, path)
    if value is None:
        raise MetadataDamaged(path=path, problem="it is missing, or its checksum does not match")
    if value.get("format") != FORMAT:
        raise MetadataDamaged(path=path, problem=f"format {value.get('format')} needs a newer Tidelog")
    return value


# --- snapshots -------------------------------------------------------------------------------------


class StoredSnapshot(NamedTuple):
    """A snapshot and the generation of the log that continues it."""

    generation: int
    snapshot: Snapshot


def write_snapshot(disk: Disk, folder: str, stored: StoredSnapshot) -> None:
    """Durably replace the snapshot, and with it which log counts (MF1)."""
    head, data = encode_snapshot_head(stored.snapshot.head), stored.snapshot.data
    start = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, stored.generation, len(data), len(head)) + head
    checksum = _CHECKSUM.pack(crc32c(data, crc32c(start)))
    replace_file(disk, f"{folder}/{SNAPSHOT_NAME}", [start, data, checksum])


def read_snapshot(disk: Disk, folder: str) -> StoredSnapshot:
    path = f"{folder}/{SNAPSHOT_NAME}"
    content = memoryview(_read_file(disk, path))
    if len(content) < _SNAPSHOT.size + _CHECKSUM.size:
        raise MetadataDamaged(path=path, problem="it is cut off")
    magic, generation, data_bytes, head_bytes = _SNAPSHOT.unpack_from(content)
    start = _SNAPSHOT.size + head_bytes
    if magic != _SNAPSHOT_MAGIC or len(content) != start + data_bytes + _CHECKSUM.size:
        raise MetadataDamaged(path=path, problem="it is no snapshot, or has another length than it says")
    (checksum,) = _CHECKSUM.unpack_from(content, start + data_bytes)
    if crc32c(content[: start + data_bytes]) != checksum:
        raise MetadataDamaged(path=path, problem="its checksum does not match")
    try:
        head = decode_snapshot_head(content[_SNAPSHOT.size : start])
    except BadMessage as error:
        raise MetadataDamaged(path=path, problem=error.problem) from error
    return StoredSnapshot(generation, Snapshot(head, bytes(content[start : start + data_bytes])))


# --- the mark --------------------------------------------------------------------------------------


class MarkFile:
    """How far the log was known to be durable, so that damage at its very end is not taken for a torn write.

    `note` costs one small write. Only `settle` syncs, off the path of acks, and switches to the other slot (MF2).
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._file = disk.open(path)
        self._sequence = 0
        self._slot = 0
        self.settled = True
        """Nothing has been noted since the last sync."""

    @classmethod
    def create(cls, disk: Disk, path: str, place: EntryPlace) -> MarkFile:
        """A new file with both slots at `place`, instead of the one that may be there.

        Opening makes one, too: after a failed sync the old file may read as if it were whole (D2).
        """
        slot = _packed(0, place)
        replace_file(disk, path, [slot, bytes(MARK_SLOT_STEP - len(slot)), slot])
        return cls(disk, path)

    def note(self, place: EntryPlace) -> None:
        """Everything up to `place` is durable. Survives the process, but a power cut only once settled."""
        self.settled = False
        self._sequence += 1
        self._file.write_at(self._slot * MARK_SLOT_STEP, [_packed(self._sequence, place)])

    def settle(self) -> None:
        if not self.settled:
            self._file.sync()
            self._slot = 1 - self._slot
            self.settled = True

    def close(self) -> None:
        self._file.close()


def read_mark_place(disk: Disk, path: str) -> EntryPlace:
    """The place in the newer of the slots that check out."""
    content = _read_file(disk, path)
    found = [mark for start in (0, MARK_SLOT_STEP) if (mark := _unpacked(content[start : start + _SLOT_BYTES]))]
    if not found:
        raise MetadataDamaged(path=path, problem="neither of its slots checks out, so the log's end is not known")
    return max(found)[1]


def _packed(sequence: int, place: EntryPlace) -> bytes:
    data = _MARK.pack(_MARK_MAGIC, sequence, place.index, place.term)
    return data + _CHECKSUM.pack(crc32c(data))


def _unpacked(data: bytes) -> tuple[int, EntryPlace] | None:
    if len(data) < _SLOT_BYTES or crc32c(data[: _MARK.size]) != _CHECKSUM.unpack_from(data, _MARK.size)[0]:
        return None
    magic, sequence, index, term = _MARK.unpack_from(data)
    return (sequence, EntryPlace(index, term)) if magic == _MARK_MAGIC else None


# --- whole files -----------------------------------------------------------------------------------


def replace_file(disk: Disk, path: str, buffers: Sequence[Buffer]) -> None:
    """Durably replace a file; a crash leaves the old one or the new one."""
    temporary = f"{path}.tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, buffers)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_folder(folder_of(path))


def _read_file(disk: Disk, path: str) -> bytes:
    try:
        file = disk.open(path, writable=False)
    except FileMissing as error:
        raise MetadataDamaged(path=path, problem="it is missing") from error
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
