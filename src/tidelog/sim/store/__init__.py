"""One store of many channels on a lying disk.

Modules:

    broken_folder  A `SimDisk` with bad sectors under one folder
    lies           The last act of a store's world
    model          What a store must hold, kept as plain lists beside it
    world          One store of many channels, one lying disk, one seed
"""
