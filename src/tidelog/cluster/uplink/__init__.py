"""Boats' streams at a node: identity, sessions, the instance that takes blocks, relays to the leader.

Modules:

    appends       A boat at the leader of its channel, without an event loop
    boats         The boats of a cluster as one node has them
    identity      Who calls the uplink
    instance      One boat at the leader of its channel
    led_channel   A boat's channel as this node leads it, in one leader epoch
    log_lines     What a node's log says of boats that come, are fenced, are refused and come back
    lplex_frames  Single frames of an lplex boat, gathered into blocks
    maintenance   What a node does for the boats it leads beside serving them
    mark          What makes a channel a boat's
    options       How a node serves boats
    process       A node's side of the uplink
    refusals      How a refusal reaches a boat
    relay         Passing a boat's calls on to the node that leads its channel, message by message, bytes as they are
    service       The uplink over gRPC, node side
    session       One session of a boat
    streams       The messages of one uplink stream, cloud side
    tls_reload    The cloud's TLS files, read again whenever they change, without a restart
"""
