"""What a boat declares to the cluster besides data: seqs that are void, seqs that are lost, and its boot id.

The journal's meta file keeps them until the cluster's cursor has passed them, so that neither a restart nor
retention loses them.

Each opening of the journal has a random *boot id*, so that a restored backup or a cloned card can be told from the
journal it was copied from (B7): the cluster remembers the boot id that it last heard, and a journal that does not have
that boot id in its own past is another one, however far its head is.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.core.ranges import RangeSet
from tidelog.errors import NotALog
from tidelog.storage.atomic import read_mark
from tidelog.storage.disk import Disk

META_NAME: Final = "journal.meta"
BOOT_IDS_MAX = 1_000
"""How many boot ids are kept that the cluster has not answered."""


class Declared:
    def __init__(self) -> None:
        self.void = RangeSet()
        self.lost = RangeSet()
        self.boot_id = b""
        self.opened_head = 0
        """The head at this opening: earlier boots cannot have sent anything above it."""
        self.earlier: list[tuple[bytes, int]] = []
        """Boot ids since the last one that the cluster answered, oldest first, each with the newest seq it may have
        sent."""

    def open_boot(self, boot_id: bytes, head: int) -> None:
        """The journal was opened, and its newest seq is `head`."""
        if self.boot_id:
            self.earlier = [*self.earlier, (self.boot_id, head)][-BOOT_IDS_MAX:]
        self.boot_id, self.opened_head = boot_id, head

    def answered(self) -> None:
        """The cluster has answered this boot id."""
        self.earlier.clear()

    def forked(self) -> Declared:
        """The declarations of a new lineage that begins under this boot id: none yet."""
        fresh = Declared()
        fresh.boot_id = self.boot_id
        return fresh

    def forget_through(self, acked: int) -> None:
        """The cluster's cursor is at `acked`: declarations up to there are dropped."""
        self.void.remove(range(0, acked + 1))
        self.lost.remove(range(0, acked + 1))

    def to_meta(self) -> dict[str, Any]:
        return {
            "void": self.void.pairs(),
            "lost": self.lost.pairs(),
            "life": self.boot_id.hex(),
            "earlier": [[boot_id.hex(), head] for boot_id, head in self.earlier],
        }

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Declared:
        declared = cls()
        declared.void = RangeSet.from_pairs(meta.get("void", []))
        declared.lost = RangeSet.from_pairs(meta.get("lost", []))
        declared.boot_id = bytes.fromhex(meta.get("life", ""))
        declared.earlier = [(bytes.fromhex(boot_id), int(head)) for boot_id, head in meta.get("earlier", [])]
        return declared


def read_meta(disk: Disk, folder: str) -> dict[str, Any] | None:
    """The content of the meta file of the journal in `folder`; None when there is none."""
    meta = read_mark(disk, f"{folder}/{META_NAME}")
    if meta is not None and meta.get("format") != 1:
        raise NotALog(path=folder, problem=f"journal format {meta.get('format')} needs a newer Tidelog")
    return meta
