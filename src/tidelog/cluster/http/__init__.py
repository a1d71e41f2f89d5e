"""The HTTP pages of a node and of a cloud, and the relay to the node that leads a boat.

Modules:

    channel_http  HTTP pages about channels
    cloud_http    The HTTP server of a cloud: boats, their replication, frames and events
    node_http     The HTTP server of a node: health, cluster status, metrics
    relay         Relaying a request to the node that leads the boat
    store_view    `CloudView` of one node
"""
