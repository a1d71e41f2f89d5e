"""Decisions without I/O: each core takes messages and the time, and returns what must be done.

Modules:

    catalog/         The replicated state of the cluster
    client_messages  Messages between a native client and a node
    founding         How a node without metadata founds or joins a cluster
    groups/          Consumer groups
    liveness/        Heartbeats between nodes, sessions with the metadata leader, the proximity graph
    member_memory    What a node remembers of the members of the metadata group
    membership       Which disks belong to the metadata group
    node_messages    Messages between nodes about the metadata
    raft/            Raft without I/O, in the shape of etcd's core
    ranges           Sets of positions kept as ranges
    replication/     Rules of replication: roles, progress, elections, placement, budgets, metrics
    subjects         NATS subjects and queue groups that a channel may be fed from
    uplink/          The uplink's two halves and the fold that says what a boat's channel holds
"""
