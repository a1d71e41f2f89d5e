"""Boats and their cloud over a bad link.

Modules:

    boat          A boat of the uplink world
    choices       The random settings of an uplink world
    cloud         The cloud of the uplink world
    fed           A Tidelog boat with an lplex cloud
    hostile       A hostile boat
    lplex         An lplex boat in the uplink world
    lplex_blocks  Blocks of an lplex journal as its writer leaves them when it goes wrong
    lplex_cloud   The cloud of lplex, with a Tidelog boat
    model         The invariants of boats and their cloud
    world         Boats, a cloud and the links between them
"""
