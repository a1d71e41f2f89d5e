"""Rules of replication: roles, progress, elections, placement, budgets, metrics.

Modules:

    budget     How much of a link catch-up may use
    config     How a channel is opened by the embedded API: seed 001's `ReplicationConfig`, and the file it belongs to
    election   Which candidate leads a channel (R8)
    memory     State of a channel that a replica keeps beside its log
    messages   Messages between the replicas of a channel, and to the metadata leader
    metrics    Counters of replication per channel, under the names of seed 001, in Prometheus' text format
    options    The settings of replication that hold for a node and all its channels
    placement  Where the replicas of a channel are placed, and how they move until the load is even
    progress   How far each replica has confirmed the log, and the committed end
    roles      The role of a node in a channel, and every transition between roles
    witnesses  Replicas that reported a leader as silent
"""
