"""Boats and their cloud over a bad link.

Modules:

    boat          A boat of the uplink world
    choices       How a life of the uplink world is set up
    cloud         The cloud of the uplink world
    fed           A boat of ours whose cloud is an lplex one, and what happens to it
    hostile       A boat that lies
    lplex         An lplex boat in the uplink world
    lplex_blocks  Blocks of an lplex journal as its writer leaves them when it goes wrong
    lplex_cloud   The cloud of lplex, as a boat of ours meets it
    model         What must hold between boats and their cloud
    world         Boats, a cloud and the links between them
"""
