"""One log on a lying disk.

Modules:

    model  What a log must hold, kept as a plain list of blocks beside it
    run    One log and its disk under a simulation
    world  One log, one lying disk, one seed
"""
