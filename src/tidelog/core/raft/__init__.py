"""Raft without I/O: what the members of a cluster agree on, in the shape of etcd's core.

`Raft` decides, its caller acts. The caller feeds in messages (`step`), the time (`tick`) and proposals
(`propose`), takes out a `Ready` whenever there is one, and carries it out. The contract of `Ready` is the heart of it:
what a message says must be on disk before the message leaves.

    while (ready := raft.ready()) is not None:
        send(ready.messages)
        disk.write(ready)            # hard state, snapshot, entries: one fsync
        raft.persisted(ready.number)
        send(ready.messages_after)   # only now
        apply(ready.committed)

Names: a *member* is one disk of one node, so a node that lost its disk is a new member and never votes twice.
"""

from tidelog.core.raft.config import RaftConfig
from tidelog.core.raft.members import AddLearner, Demote, Members, MembersChange, Promote, Remove
from tidelog.core.raft.messages import (
    Append,
    AppendAnswer,
    Entry,
    EntryKind,
    Envelope,
    HardState,
    Message,
    Place,
    ReadAborted,
    ReadReady,
    Ready,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from tidelog.core.raft.raft import Raft, RaftStatistics, Role

__all__ = [
    "AddLearner",
    "Append",
    "AppendAnswer",
    "Demote",
    "Entry",
    "EntryKind",
    "Envelope",
    "HardState",
    "Members",
    "MembersChange",
    "Message",
    "Place",
    "Promote",
    "Raft",
    "RaftConfig",
    "RaftStatistics",
    "ReadAborted",
    "ReadReady",
    "Ready",
    "Remove",
    "Role",
    "Snapshot",
    "SnapshotAnswer",
    "SnapshotChunk",
    "SnapshotHead",
    "TimeoutNow",
    "VoteAnswer",
    "VoteRequest",
]
