"""Gateways: servers in a node that speak the protocols of other systems' clients.

Modules:

    liftbridge/  Liftbridge's gRPC API; a Liftbridge partition is a Tidelog channel
"""
