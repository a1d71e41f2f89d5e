"""A gRPC server in Python on HTTP/2, for many small messages.

Modules:

    call              One call of gRPC on a stream of HTTP/2
    hpack             Header compression of HTTP/2 (RFC 7541)
    http2_connection  The server's end of one HTTP/2 connection (RFC 9113), without I/O: bytes in, events and bytes out
    http2_frames      Frames of HTTP/2 (RFC 9113)
    server            A gRPC server in Python for many small messages
    tls_accept        TLS for accepted connections of an event loop, without a receive buffer for each of them
"""
