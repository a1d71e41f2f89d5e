"""What a boat has to tell the cluster besides data: seqs that are void, seqs that are lost, and who it is.

Kept in the journal's meta file until the cluster's cursor has passed them, so that neither a restart nor
retention makes the boat forget to say it.

A *life* is one opening of the journal. It has a random name, so that a backup that was put back or a cloned card
can be told from the journal it was copied from (B7): the cluster remembers the life it last spoke with, and a
journal that knows of no such life in its own past is another one, however far its head is.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.core.ranges import RangeSet
from tidelog.errors import NotALog
from tidelog.storage.atomic import read_mark
from tidelog.storage.disk import Disk

META_NAME: Final = "journal.meta"
LIVES_MAX = 1_000
"""Lives without a word from the cluster that are remembered."""


class Declared:
    def __init__(self) -> None:
        self.void = RangeSet()
        self.lost = RangeSet()
        self.life = b""
        self.opened_head = 0
        """The head when this life began: nothing above it can have been sent by an earlier one."""
        self.earlier: list[tuple[bytes, int]] = []
        """Lives since the last one that the cluster answered, oldest first, each with the newest seq it can have
        sent."""

    def open_life(self, life: bytes, head: int) -> None:
        """The journal was opened, and its newest seq is `head`."""
        if self.life:
            self.earlier = [*self.earlier, (self.life, head)][-LIVES_MAX:]
        self.life, self.opened_head = life, head

    def answered(self) -> None:
        """The cluster knows this life now."""
        self.earlier.clear()

    def forked(self) -> Declared:
        """What is to be said of a new lineage that begins in this life: nothing yet."""
        fresh = Declared()
        fresh.life = self.life
        return fresh

    def forget_through(self, acked: int) -> None:
        """The cluster's cursor is at `acked`: it knows."""
        self.void.remove(range(0, acked + 1))
        self.lost.remove(range(0, acked + 1))

    def to_meta(self) -> dict[str, Any]:
        return {
            "void": self.void.pairs(),
            "lost": self.lost.pairs(),
            "life": self.life.hex(),
            "earlier": [[life.hex(), head] for life, head in self.earlier],
        }

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Declared:
        declared = cls()
        declared.void = RangeSet.from_pairs(meta.get("void", []))
        declared.lost = RangeSet.from_pairs(meta.get("lost", []))
        declared.life = bytes.fromhex(meta.get("life", ""))
        declared.earlier = [(bytes.fromhex(life), int(head)) for life, head in meta.get("earlier", [])]
        return declared


def read_meta(disk: Disk, folder: str) -> dict[str, Any] | None:
    """What the meta file of the journal in `folder` says; None when there is none."""
    meta = read_mark(disk, f"{folder}/{META_NAME}")
    if meta is not None and meta.get("format") != 1:
        raise NotALog(path=folder, problem=f"journal format {meta.get('format')} needs a newer Tidelog")
    return meta
