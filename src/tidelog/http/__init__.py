"""What boat and cloud share of HTTP: access, routes, streams of frames, the server.

Modules:

    access      Who asks over HTTP, and what they may see
    bus_routes  What is asked of a bus, on the boat itself or of one boat among many
    decoded     The latest values of a bus, decoded
    feed        What happens on one bus, as it happens, for any number of readers
    filters     Which frames a reader wants
    frames      Frames as JSON, the way lplex's clients read them, a whole block at a time
    health      Routes that every server of ours has
    metrics     Prometheus' text format, version 0.0.4
    openapi     The OpenAPI 3.1 document of a server, written from the routes that it serves
    routes      What a server answers
    server      One HTTP(S) server on an event loop that others use too
    sessions    Buffered sessions of lplex's clients
    shapes      The shapes of JSON answers that boat and cloud share, as JSON Schema, and the parameters that they take
    streams     Answers that are written piece by piece
    tls         The certificate a server shows, read again when it changes, without a restart
    values      The latest frame of every (source, PGN) of a bus
    waiting     What a process answers over HTTP while it waits for its disk
"""
