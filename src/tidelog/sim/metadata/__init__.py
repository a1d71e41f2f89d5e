"""The metadata group: members, clients, faults, and schedules that must hold.

Modules:

    clients       Clients of the metadata
    faults        Faults of a simulated cluster
    lies          Disks of the metadata group that lose synced data
    model         The invariants of a metadata group
    node          One node of the simulated cluster
    scene         A cluster's nodes, its clients and the links between them
    stored_state  What the storage of a member of the metadata group may hold
    world         The world of the metadata group, run by seed
"""
