"""Everything on disk: single logs, the store that the channels of a node share, and Raft's files.

Modules:

    atomic    Small files that are always whole
    disk      The interface to a file system
    files     A bounded cache of open files, so that ten thousand channels do not need ten thousand descriptors
    log/      One log: segments, index, recovery, repair, retention, and the thread that commits
    os_disk   The real file system behind a `Disk`
    raft/     The files of a member of the metadata group
    ram_disk  A disk in memory with a size
    store/    All logs of a node in one store: a shared write-ahead file, checkpoints, what a disk lost
"""
