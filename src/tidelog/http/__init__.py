"""What boat and cloud share of HTTP: access, routes, streams of frames, the server.

Modules:

    access      Authentication of callers, and their permissions
    bus_routes  Routes for the data of a bus, on a boat and in the cloud
    decoded     The latest values of a bus, decoded
    feed        Live frames and changes of one bus, for any number of readers
    filters     Which frames a reader wants
    frames      Frames as JSON, the way lplex's clients read them, a whole block at a time
    health      Health and metrics routes
    metrics     Prometheus' text format, version 0.0.4
    openapi     The OpenAPI 3.1 document of a server, written from the routes that it serves
    routes      The table of routes
    server      One HTTP(S) server on an event loop that others use too
    sessions    Buffered sessions of lplex's clients
    shapes      The shapes of JSON answers that boat and cloud share, as JSON Schema, and the parameters that they take
    streams     Answers that are written piece by piece
    tls         The certificate a server shows, read again when it changes, without a restart
    values      The latest frame of every (source, PGN) of a bus
    waiting     The HTTP server of a process that waits for its disk
"""
