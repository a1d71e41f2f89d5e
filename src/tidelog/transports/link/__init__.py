"""The framed connection between nodes, and of native clients: handshake, multiplexing, pool, TLS.

Modules:

    bulk        Large bodies on a link
    connection  One live link between two nodes
    events      What a link is set to, and what its core tells its shell
    frames      Frames of the link between nodes
    hello       What two ends of a link tell each other before anything else, and how a refusal travels
    link        The link between nodes
    memory      Memory for large bodies that arrive, used again once nobody looks at it
    mux         The core of a link
    pool        Links to all peers of a node
    socket      A socket of a link, secure or (in development) plain, without waiting and without copies
    tls         TLS for the link between nodes
    views       Pieces of a body that lie side by side in memory, as one piece
"""
