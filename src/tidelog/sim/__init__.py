"""Worlds that run production code through seeded faults, and the checkers that look at them.

Modules:

    cluster/    Whole clusters: replicated channels, producers, readers, boats, and schedules that must hold
    disk        A disk in memory that forgets, tears, fills up and lies, by seed
    disk_nodes  What a `SimDisk` is made of
    journal/    A boat's journal on a lying disk
    log/        One log on a lying disk
    lying       A disk that lies
    metadata/   The metadata group: members, clients, faults, and schedules that must hold
    network     Virtual time, and a link between a boat and its cloud that behaves as badly as a real one
    power       A power cut in the middle of a call
    seeds       What all worlds share
    store/      One store of many channels on a lying disk
    uplink/     Boats and their cloud over a bad link
"""
