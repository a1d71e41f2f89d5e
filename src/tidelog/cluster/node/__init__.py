"""One node as a process: the core that puts its parts together, and the shell around it.

Modules:

    addresses         The addresses of a node, and of its peers
    adoption          Taking over a data folder of a cloud that knew no catalog
    channels          The channels of a node beside its part in the metadata
    cloud             A cloud
    cluster_client    An operator's way into a cluster
    core              A node's part in the cluster's memory
    core_parts        Options, facts and output of a node's core
    driver            Drives a node's core: feeds it what arrives, and carries out what it says
    handover          What a node does before it stops on purpose
    node_file         What a node remembers of itself, beside the metadata
    options           What the process of a node is told at its start
    process           A node of the cluster as a process
    registration      A process's registration in the catalog: its incarnation, whether it is valid
    repairer          Repair of damaged records from other replicas
    replica_channels  `LocalChannels` over the replicas of a running node
    requests          Requests to a node: changes, linearizable reads, leadership
    store_thread      The channels' storage of a running node
"""
