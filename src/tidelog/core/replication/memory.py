"""State of a channel that a replica keeps beside its log: how far it was committed, and how far others held it.

A log that was cut because a disk lost synced data does not show that it was longer. So the durable ends that followers
report to a leader, the leader's own end, and the committed end that a replica received are kept apart from the log, in
the small file of watermarks (R9). They decide nothing by themselves: an election compares them with the logs (EL5), and
a follower does not cut below the end that it knows to be committed (FW6).

RM1  The committed end only rises, until an unclean election of a later epoch voids it: then nothing is known.
RM2  Ends are those of one leader epoch. Contact in a later one begins a new list; within one an end only rises, except
     when a leader orders a cut.
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
        """Durable ends by node."""

    def load(self, hints: Mapping[str, int], committed_end: int) -> None:
        """Restore what an earlier run saved; nothing if more is known already, such as an unclean election since (RM1).

        Older versions saved the committed end alone, of an unknown epoch.
        """
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
        """Its leader of this epoch has answered, or this node leads in it: older ends are dropped (RM2)."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.ends.clear()

    def committed(self, end: int) -> None:
        self.committed_end = max(self.committed_end, end)

    def held(self, node: str, end: int) -> None:
        """A node's log is durable up to here, in the epoch of the last contact."""
        if end > self.ends.get(node, 0):
            self.ends[node] = end

    def cut(self, node: str, end: int) -> None:
        """The node's own log was cut by order of its leader."""
        if end < self.ends.get(node, 0):
            self.ends[node] = end

    def elected_with_loss(self, epoch: int) -> bool:
        """An unclean election: committed records may be gone (RM1). Returns whether that is new here."""
        if epoch <= self.epoch:
            return False
        self.epoch, self.committed_end = epoch, 0
        self.ends.clear()
        return True
