"""The metadata group: members, clients, faults, and schedules that must hold.

Modules:

    clients           Clients of the metadata
    faults            What happens to a simulated cluster
    lies              Disks of the metadata group that lie
    model             What must hold of a metadata group
    node              One node of the simulated cluster
    raft_storage_run  A member's metadata through years of bad luck, against a model that remembers everything
    schedule          The words in which directed schedules are told
    schedules         Directed schedules
    world             A cluster's nodes, its clients and the links between them
"""
