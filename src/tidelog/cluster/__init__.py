"""What runs in a node of the cluster, in rooms by who owns the state. Cores decide; `node.process` is the shell.

Modules:

    boats/          What a boat's channel holds and tells: folds over its log, events, devices, history
    clients/        Requests of native clients at a node: access, produce, fetch, and administration of channels
    groups/         Consumer groups at a node: their administration, and the coordinators that this node runs
    http/           The HTTP pages of a node and of a cloud, and the relay to the node that leads a boat
    local_channels  How the uplink, clients, groups and gateways reach the channels of their node
    metadata/       The node as a member of the metadata group, and what the metadata leader decides for nodes
    nats/           NATS inside the cluster: replication over a NATS server, and channels fed from NATS subjects
    node/           One node as a process: the core that puts its parts together, and the shell around it
    produce_order   What goes into a channel's leader, and what comes out
    replication/    Replicas of channels: leading, following, what is stored in which order
    status/         What a node says about itself and its channels: status, metrics, who holds a chain
    uplink/         Boats' streams at a node: identity, sessions, the instance that takes blocks, relays to the leader
"""
