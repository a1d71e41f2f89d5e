"""A boat's journal on a faulty disk.

Modules:

    model  What a boat's journal must hold
    run    One run of a boat's journal in the simulator
    world  One boat's journal, one faulty disk, one seed
"""
