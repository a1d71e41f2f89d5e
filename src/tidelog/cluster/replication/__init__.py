"""Replicas of channels: leading, following, what is stored in which order, and the transport between nodes.

Modules:

    effects          What the parts of a replica want done
    first_requests   First requests to leaders, paced
    fold             What a replica remembers of the records it holds
    following        A follower of one leader in one epoch
    history          A leader compares a follower's log with its own
    lag              What a node says of its replicas
    leading          The leader of a channel in one epoch
    orders           What a replica asks of its node's storage, and what comes back
    pairs            How often two nodes have to hear each other, by the channels that they share (R7)
    producer_expiry  Producers that nobody uses any more
    replica          One channel on one node
    replicas         All channels of a node
    state            What one replica knows of its channel and its log
    storage          Carrying out what replicas order of storage
    surroundings     Queries of a replica about its node
    tail             The newest blocks of a channel in memory
    transport        How a node's messages reach its peers
    trouble          What a replica does about a log that it cannot read
    witness          What one replica can testify to when a leader is elected
    writer           Carrying out what replicas order of storage
"""
