"""Rules of replication: roles, progress, elections, placement, budgets, metrics.

Modules:

    budget     How much of a link catch-up may use
    config     How a channel is opened by the embedded API: seed 001's `ReplicationConfig`, and the file it belongs to
    election   Which candidate leads a channel (R8)
    memory     What a replica remembers of a channel beside its own log
    messages   What the replicas of a channel say to each other, and to the metadata leader, free of any wire
    metrics    What replication counts, per channel, under the names of seed 001, and the text that Prometheus reads
    options    The settings of replication that a node has, whatever the channel
    placement  Where the replicas of a channel live, and how they move until nodes carry alike
    progress   How far each replica is, as its leader sees it, and what is committed because of that
    roles      The role of a node in a channel, and every way from one to another
    witnesses  Who has reported a leader as silent
"""
