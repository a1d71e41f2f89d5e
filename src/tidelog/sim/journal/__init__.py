"""A boat's journal on a lying disk.

Modules:

    life   One life of a boat's journal in the simulator
    model  What a boat's journal must hold
    world  One boat's journal, one lying disk, one seed
"""
