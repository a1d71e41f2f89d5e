"""A node's status, its channels' status, metrics, and the nodes that hold a chain.

Modules:

    chain_holders   The nodes that hold a channel's chain
    channel_status  The channels of the cluster as plain JSON, as one node sees them
    node_metrics    The metrics of a node for Prometheus, and its readiness
    node_status     A node's view of the cluster as plain JSON, for status pages and tools
"""
