"""One log on a faulty disk.

Modules:

    model  The expected content of a log, as a plain list of blocks
    run    One log and its disk under a simulation
    world  One log, one faulty disk, one seed
"""
