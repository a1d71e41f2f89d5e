"""The metadata group: members, clients, faults, and schedules that must hold.

Modules:

    clients           Clients of the metadata
    faults            Faults of a simulated cluster
    lies              Disks of the metadata group that lose synced data
    model             The invariants of a metadata group
    node              One node of the simulated cluster
    raft_storage_run  The storage of one member under random faults, compared with a model
    scene             A cluster's nodes, its clients and the links between them
    schedule          The operations of directed schedules
    schedules         Directed schedules
    world             The world of the metadata group, run by seed
"""
