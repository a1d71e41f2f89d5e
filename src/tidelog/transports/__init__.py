"""How bytes travel between processes.

Modules:

    grpc/  A gRPC server of our own on HTTP/2, for many small messages
    link/  The framed connection between nodes, and of native clients: handshake, multiplexing, pool, TLS
    nats/  A connection to NATS servers
"""
