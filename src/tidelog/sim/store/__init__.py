"""One store of many channels on a faulty disk.

Modules:

    broken_folder  A `SimDisk` with bad sectors under one folder
    lies           The end of a store's world: synced data is lost
    model          The expected content of a store, as plain lists
    world          One store of many channels, one faulty disk, one seed
"""
