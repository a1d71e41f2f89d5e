"""Worlds that run production code under seeded faults, and the checkers of their invariants.

Modules:

    cluster/    Whole clusters: replicated channels, producers, readers, boats, and schedules that must hold
    disk        A disk in memory that loses, tears and corrupts writes and fills up, by seed
    disk_nodes  Inodes, folders and name journals of a `SimDisk`
    journal/    A boat's journal on a faulty disk
    log/        One log on a faulty disk
    lying       Faults that lose synced data
    metadata/   The metadata group: members, clients, faults, and schedules that must hold
    network     Virtual time, and a link between a boat and its cloud that behaves as badly as a real one
    power       A power cut in the middle of a call
    seeds       Running a world for many seeds
    store/      One store of many channels on a faulty disk
    uplink/     Boats and their cloud over a bad link
"""
