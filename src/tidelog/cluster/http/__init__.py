"""The HTTP pages of a node and of a cloud, and the relay to the node that leads a boat.

Modules:

    channel_http  What a node answers over HTTP about channels
    cloud_http    What a cloud answers over HTTP: its boats, how their replication stands, their frames now
    node_http     What a node answers over HTTP: whether it is well, how the cluster stands as it sees it
    relay         Passing a reader's request on to the node that leads the boat it asks about
    store_view    `CloudView` of one node
"""
