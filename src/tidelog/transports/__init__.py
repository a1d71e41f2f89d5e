"""Connections between processes.

Modules:

    grpc/  A gRPC server in Python on HTTP/2, for many small messages
    link/  The framed connection between nodes, and of native clients: handshake, multiplexing, pool, TLS
    nats/  A connection to NATS servers
"""
