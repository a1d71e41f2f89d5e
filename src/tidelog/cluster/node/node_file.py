"""A node's own state file, beside the metadata: its cluster, its incarnation, how it stopped.

Two copies are kept. If both are lost, nothing breaks: the catalog knows the incarnation, and treats the disk as one
that may have lost anything.

NF1  An incarnation is on disk before anyone hears of it, so none is ever used twice (R5).
NF2  The mark of a clean stop names the incarnation that stopped so, and is taken away when the node starts.
NF3  That logs may have lost records is remembered until the catalog has been told. Opening them repairs what it finds,
     so the next start finds nothing; a node that died in between would be trusted with what it no longer holds (R5).
NF4  The known incarnation, by which the catalog tells an older copy of a disk (R5), is the highest that was on the disk
     when the process started, and from then on the last under which it was registered: a node that is fenced and
     registers again without having stopped has lost nothing. Asking for an incarnation does not raise it: a restored
     backup asks for one above the catalog's too. One that dies before it is registered counts as unverified (NF3).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from tidelog.errors import InvalidConfig
from tidelog.storage.atomic import COPY_SUFFIX, read_either_mark, remove_durably, write_mark_twice
from tidelog.storage.disk import Disk

NODE_FILE = "node.state"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedNodeState:
    """As stored. The defaults are those of a node that never ran."""

    node: str
    cluster: str = ""
    incarnation: int = 0
    """The highest incarnation that this node ever asked for."""
    clean_incarnation: int | None = None
    """The incarnation that stopped cleanly, all synced; None after a crash and while the node runs."""
    in_doubt: bool = False
    """Its logs were not whole at this start or an earlier one, and it has not been registered with that fact (NF3)."""


def stored_node(disk: Disk, folder: str) -> str | None:
    """The node that a data folder belongs to; None for a folder that no node has used."""
    stored = read_either_mark(disk, f"{folder}/{NODE_FILE}")
    return None if stored is None else SavedNodeState(**stored).node


def forget_cluster(disk: Disk, folder: str) -> None:
    """Allow a node whose metadata is gone to found a cluster again; only where no other node of the old one can
    exist."""
    for path in (f"{folder}/{NODE_FILE}", f"{folder}/{NODE_FILE}{COPY_SUFFIX}"):
        if disk.exists(path):
            remove_durably(disk, path)


class NodeFile:
    def __init__(self, disk: Disk, folder: str, *, node: str) -> None:
        self._disk = disk
        self._path = f"{folder}/{NODE_FILE}"
        disk.make_folder(folder)
        stored = read_either_mark(disk, self._path)
        found = SavedNodeState(node=node) if stored is None else SavedNodeState(**stored)
        if found.node != node:
            problem = (
                f"the data folder belongs to node {found.node}; start it with --id {found.node}, or use another folder"
            )
            raise InvalidConfig(section="node", problems=(problem,))
        self.known_incarnation = found.incarnation
        """NF4."""
        self.is_told = False
        """The catalog knows the losses that this process found when it started."""
        self.clean_incarnation = found.clean_incarnation
        self.state = replace(found, clean_incarnation=None)
        if found.clean_incarnation is not None:
            self._write()  # NF2

    def belongs_to(self, cluster: bytes) -> None:
        if self.state.cluster != cluster.hex():
            self.state = replace(self.state, cluster=cluster.hex())
            self._write()

    def raise_incarnation(self, above: int) -> int:
        """A fresh incarnation above this one and all that were ever used here, durable (NF1). If `above` was never used
        here, a process that this disk does not remember has used it (NF4)."""
        in_doubt = self.state.in_doubt or above > self.state.incarnation
        self.state = replace(self.state, incarnation=max(above, self.state.incarnation) + 1, in_doubt=in_doubt)
        self._write()
        return self.state.incarnation

    def vouches(self, *, verified: bool) -> bool:
        """Whether the logs are whole: `verified` in this start, and in all since the last registration (NF3)."""
        if not verified and not self.state.in_doubt:
            self.state = replace(self.state, in_doubt=True)
            self._write()
        return not self.state.in_doubt

    def registered(self) -> None:
        """The catalog has registered this node with the reported facts."""
        self.known_incarnation, self.is_told = self.state.incarnation, True  # NF4
        if self.state.in_doubt:
            self.state = replace(self.state, in_doubt=False)
            self._write()

    def stopped_cleanly(self, incarnation: int | None) -> None:
        """Everything is synced. A process that never registered leaves the mark that it found (R5)."""
        clean = self.clean_incarnation if incarnation is None else incarnation
        self.state = replace(self.state, clean_incarnation=clean)
        self._write()

    def _write(self) -> None:
        write_mark_twice(self._disk, self._path, asdict(self.state))
