"""What a node says about itself and its channels: status, metrics, who holds a chain.

Modules:

    chain_holders   Who holds a channel's chain
    channel_status  The channels of the cluster as plain JSON, as one node sees them
    node_metrics    What a node counts, for Prometheus, and whether it is ready
    node_status     A node's view of the cluster as plain JSON, for status pages and tools
"""
