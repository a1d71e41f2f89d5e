"""One log on a lying disk.

Modules:

    life   One log and its disk under a simulation
    model  What a log must hold, kept as a plain list of blocks beside it
    world  One log, one lying disk, one seed
"""
