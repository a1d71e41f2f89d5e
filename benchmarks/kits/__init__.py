"""What several benchmarks share: clocks and statistics, processes of nodes, boats and clients, synthetic traffic.

Modules:

    channel_kit     Channels of a `ClusterKit` for benchmarks
    client_floor    The floor of fetching in `tidelog bench client`
    cluster_client  Raw pipelined clients of a channel's leader
    cluster_kit     Real node processes on one machine, for fault tests and benchmarks
    cluster_load    Asking the nodes of a cluster as another node would
    fault_proxy     A network between the nodes of a `ClusterKit` that can be cut
    grpc_pump       A gRPC client for measuring
    measure         What every benchmark needs
    node_fronts     A TCP proxy in front of every node of a `ClusterKit`
    peaked_node     A node that believes its links to have a given peak
    process_tree    Processor time of this process and of all that it has started
    traffic         Made-up bus traffic that compresses and decodes like the real thing
    uplink_parties  Who takes part in an uplink benchmark
"""
