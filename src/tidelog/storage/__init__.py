"""Files: the only door to a disk is `disk`; logs, the store that many channels share, and Raft's files are rooms.

Modules:

    atomic    Small files that are always whole
    disk      The only door to files
    files     A bounded cache of open files, so that ten thousand channels do not need ten thousand descriptors
    log/      One log: segments, index, recovery, repair, retention, and the thread that commits
    os_disk   The real file system behind a `Disk`
    raft/     The files of a member of the metadata group
    ram_disk  A disk in memory with a size
    store/    All logs of a node in one store: a shared write-ahead file, checkpoints, what a disk lost
"""
