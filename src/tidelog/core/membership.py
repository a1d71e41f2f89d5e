"""Which disks belong to the metadata group: the catalog says which should, the leader changes the group step by step.

A *member* of the group is one disk of one node, `node/disk`. A node that lost its disk, or found it damaged, comes back
with a new one and is a new member: the old one can never vote again, and the new one votes only once it holds
everything. Nothing here does I/O.

N1  A node has at most one member that stays; the catalog's newest registration names its disk.
N2  No member is made a voter before it has caught up, nor while its node is fenced.
N3  A member is removed only when the catalog says so: its node is removed, or registered with another disk.
N4  A leader that must leave hands over first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.core.catalog import Catalog, NodeState
from tidelog.core.raft import AddLearner, MembersChange, Promote, Raft, Remove
from tidelog.core.raft.progress import Pace

VOTERS_MAX: Final = 5
"""More voters make every commit wait for more disks and survive no likelier failure; further nodes are learners."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The leader itself must leave the group: leadership first moves to this member."""

    member: str


Step: TypeAlias = MembersChange | Handover


def member_name(node: str, disk: str) -> str:
    return f"{node}/{disk}"


def node_of(member: str) -> str:
    return member.partition("/")[0]


def next_step(raft: Raft, catalog: Catalog, *, voters_max: int = VOTERS_MAX) -> Step | None:
    """The leader's next step to bring the group in line with the catalog; None if there is nothing to do now."""
    leading, members = raft.leading, raft.members
    if leading is None or not leading.has_committed or raft.log.members_index > raft.log.commit:
        return None
    if leading.transferring_to is not None:
        return None
    for member in members.all:
        if _must_go(member, catalog):
            if member != raft.me:
                return None if members.voters == (member,) else Remove(member)
            heirs = [voter for voter in members.voters if voter != member and not _must_go(voter, catalog)]
            best = max(heirs, key=lambda heir: (leading.progress[heir].match, heir), default=None)
            return None if best is None else Handover(best)
    wanted = [
        member_name(node.node, node.disk_id)
        for node in catalog.nodes()
        if node.disk_id and node.state in (NodeState.ACTIVE, NodeState.FENCED)
    ]
    for member in wanted:
        if member not in members:
            return AddLearner(member)
    if len(members.voters) < voters_max:
        for member in members.learners:
            node = catalog.node(node_of(member))
            progress = leading.progress[member]
            caught_up = progress.pace is Pace.REPLICATE and leading.lag_of(member) <= 0
            if caught_up and node is not None and node.state is NodeState.ACTIVE:
                return Promote(member)
    return None


def _must_go(member: str, catalog: Catalog) -> bool:
    """N3. A founder that has not registered yet has no disk in the catalog, and stays."""
    node = catalog.node(node_of(member))
    if node is None:
        return False
    if node.state is NodeState.REMOVED:
        return True  # checked first: a removal clears the disk's name
    return bool(node.disk_id) and member != member_name(node.node, node.disk_id)
