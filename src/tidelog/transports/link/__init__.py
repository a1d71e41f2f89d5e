"""The framed connection between nodes and of native clients: handshake, multiplexing, pool, TLS.

Modules:

    bulk        Large bodies on a link
    connection  One live link between two nodes
    events      Options of a link, and the events of its core
    frames      Frames of the link between nodes
    hello       The handshake of a link, and the bytes of a refusal
    link        The link between nodes
    memory      Reused memory for large bodies that arrive
    mux         The core of a link
    pool        Links to all peers of a node
    socket      A socket of a link, with TLS or (in development) plain, non-blocking and without copies
    tls         TLS for the link between nodes
    views       Adjacent pieces of a body as one piece
"""
