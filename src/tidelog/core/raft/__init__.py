"""Raft without I/O, in the shape of etcd's core.

`Raft` decides, its caller acts. The caller feeds in messages (`step`), the time (`tick`) and proposals (`propose`),
takes out a `Ready` whenever there is one, and carries it out. The contract of `Ready` is the most important rule: what
a message promises must be on disk before the message leaves.

    while (ready := raft.ready()) is not None:
        send(ready.messages)
        disk.write(ready)            # hard state, snapshot, entries: one fsync
        raft.persisted(ready.number)
        send(ready.messages_after)   # only now
        apply(ready.committed)

Names: a *member* is one disk of one node, so a node that lost its disk is a new member and never votes twice.

Modules:

    config     How one member of a Raft group behaves
    leading    The leader's half of Raft
    log        The entries of one member that are newer than its snapshot, in memory
    members    The membership of a Raft group
    messages   Messages between members, and what the core orders from its caller
    outbox     Messages that gather between two `Ready`s
    progress   What a leader knows of one follower
    raft       One member of a Raft group
    receiving  A snapshot that arrives in chunks, until it is whole
"""

# isort would give each of these names a statement of its own.
# ruff: noqa: I001

from __future__ import annotations

from tidelog.core.raft.config import RaftConfig as RaftConfig
from tidelog.core.raft.members import (
    AddLearner as AddLearner,
    Demote as Demote,
    Members as Members,
    MembersChange as MembersChange,
    Promote as Promote,
    Remove as Remove,
)
from tidelog.core.raft.messages import (
    AppendAnswer as AppendAnswer,
    AppendEntries as AppendEntries,
    Entry as Entry,
    EntryKind as EntryKind,
    EntryPlace as EntryPlace,
    Envelope as Envelope,
    HardState as HardState,
    Message as Message,
    ReadAborted as ReadAborted,
    ReadReady as ReadReady,
    Ready as Ready,
    Snapshot as Snapshot,
    SnapshotAnswer as SnapshotAnswer,
    SnapshotChunk as SnapshotChunk,
    SnapshotHead as SnapshotHead,
    TimeoutNow as TimeoutNow,
    VoteAnswer as VoteAnswer,
    VoteRequest as VoteRequest,
)
from tidelog.core.raft.raft import Raft as Raft, RaftRole as RaftRole, RaftStatistics as RaftStatistics
