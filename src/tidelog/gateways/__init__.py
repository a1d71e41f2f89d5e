"""Other systems' clients at a node.

Modules:

    liftbridge/  Liftbridge's gRPC API in front of a node: a partition is a channel
"""
