"""What a replica remembers of a channel beside its own log: how far it was committed, and how far others held it.

A log that was cut by a lying disk does not know that it was longer. So the durable ends that a leader hears of, its
own end, and the committed end that a replica was told of are kept apart from the log, in the small file of watermarks
(R9). They decide nothing by themselves: an election compares them with the logs (EL5), and a follower does not cut
below what it knows to be committed (FW6).

RM1  The committed end only rises, until an unclean election of a later epoch voids it: then nothing is known.
RM2  Ends are those of one leader epoch. Contact in a later one begins a new list; within one an end only rises, but for
     what was cut on a leader's word.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.core.replication.messages import LogMemory

_EPOCH = "epoch"
_COMMITTED = "committed"
_END = "end:"


class ReplicaMemory:
    __slots__ = ("committed_end", "ends", "epoch")

    def __init__(self) -> None:
        self.epoch = 0
        self.committed_end = 0
        self.ends: dict[str, int] = {}
        """By node."""

    def load(self, hints: Mapping[str, int], committed_end: int) -> None:
        """As an earlier life saved it; nothing if more is known already, such as an unclean election since (RM1).

        Older versions saved the committed end alone, of an epoch that is not known."""
        if hints.get(_EPOCH, 0) < self.epoch:
            return
        self.epoch = max(self.epoch, hints.get(_EPOCH, 0))
        self.committed_end = max(self.committed_end, hints.get(_COMMITTED, committed_end if self.epoch else 0))
        ends = {key.removeprefix(_END): end for key, end in hints.items() if key.startswith(_END)}
        self.ends = {node: max(end, self.ends.get(node, 0)) for node, end in ends.items()} | {
            node: end for node, end in self.ends.items() if node not in ends
        }

    def hints(self) -> dict[str, int]:
        return {_EPOCH: self.epoch, _COMMITTED: self.committed_end} | {
            f"{_END}{node}": end for node, end in self.ends.items()
        }

    def told(self) -> LogMemory:
        return LogMemory(epoch=self.epoch, committed_end=self.committed_end, ends=tuple(sorted(self.ends.items())))

    def in_contact(self, epoch: int) -> None:
        """Its leader of this epoch has answered, or it leads in it: older ends are of no use any more (RM2)."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.ends.clear()

    def committed(self, end: int) -> None:
        self.committed_end = max(self.committed_end, end)

    def held(self, node: str, end: int) -> None:
        """So far a log is durable at a node, in the epoch of the last contact."""
        if end > self.ends.get(node, 0):
            self.ends[node] = end

    def cut(self, node: str, end: int) -> None:
        """The node's own log was cut, as its leader said."""
        if end < self.ends.get(node, 0):
            self.ends[node] = end

    def elected_with_loss(self, epoch: int) -> bool:
        """An unclean election: what was committed before may be gone, and the catalog says so (RM1). Whether that is
        news here."""
        if epoch <= self.epoch:
            return False
        self.epoch, self.committed_end = epoch, 0
        self.ends.clear()
        return True
