"""Requests of native clients at a node: access, produce, fetch, and administration of channels.

Modules:

    access          Who may do what
    chains          Fetches that follow each other
    channel_admin   Administration of channels
    channel_limits  Whether the cluster has room for another channel
    produce         Producing over the link
    producer_admin  Producers of a channel, closed and listed
    publish         Records that clients publish one by one
    rechecks        Refusals that an old catalog may have given, checked again before they are given
    requests        What clients ask in JSON, read strictly into records
    service         The node's side of the client protocol
"""
