"""Decisions without I/O: each core takes messages and the time, and returns what must be done.

Modules:

    catalog/         The cluster's memory
    client_messages  What a native client and a node say to each other, free of any wire
    founding         What a node without metadata does
    groups/          Consumer groups
    liveness/        Liveness, sans-IO: heartbeats between nodes, sessions with the metadata leader, the proximity graph
    member_memory    What a node remembers of the members of the metadata group
    membership       Which disks belong to the metadata group
    node_messages    What nodes say to each other about the metadata, free of any wire
    raft/            Raft without I/O: what the members of a cluster agree on, in the shape of etcd's core
    ranges           Sets of positions kept as ranges
    replication/     Rules of replication: roles, progress, elections, placement, budgets, metrics
    subjects         NATS subjects and queue groups that a channel may be fed from
    uplink/          The uplink's two halves and the fold that says what a boat's channel holds
"""
