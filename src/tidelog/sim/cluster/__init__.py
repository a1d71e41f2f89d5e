"""Whole clusters: replicated channels, producers, readers, boats, and schedules that must hold.

Modules:

    account       The account of one channel
    admin         Operators of simulated channels
    boat          A boat of a simulated cluster
    boat_leader   A boat at the simulated node that leads its channel
    boat_mishaps  What happens to the boats of a simulated cluster, to their links, and to the nodes that serve them
    boats         The boats of a simulated cluster, and what the nodes do for them
    clients       Clients of simulated channels
    faults        What happens to a simulated cluster with channels
    liars         Nodes of a simulated cluster whose disks lie about channels
    model         What must hold of replicated channels
    nats_server   A simulated NATS server, and the connections of simulated nodes to it
    node          One node of a simulated cluster with its channels
    scene         Whole clusters: nodes, links, producers, readers and boats
    world         The world of whole clusters, run by seed
"""
