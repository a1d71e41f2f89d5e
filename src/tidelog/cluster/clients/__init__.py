"""Requests of native clients at a node: access, produce, fetch, and administration of channels.

Modules:

    access          Permissions of clients and operators
    chains          Fetches that follow each other
    channel_admin   Administration of channels
    channel_limits  Whether the cluster has room for another channel
    produce         Producing over the link
    producer_admin  Producers of a channel, closed and listed
    publish         Single records of clients, gathered into blocks
    rechecks        Refusals by an old catalog, checked again by a newer one
    requests        JSON requests of clients, parsed strictly
    service         The node's side of the client protocol
"""
