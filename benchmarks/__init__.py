"""Benchmarks: what `tidelog bench NAME` runs. Each prints a ratio to a floor or to a peer measured in the same run.

Modules:

    clients/   Benchmarks of what clients use: the native client and the Liftbridge gateway
    cluster/   Benchmarks of nodes among themselves: replication, failover, metadata, the link, idle channels
    kits/      What several benchmarks share: clocks and statistics, processes of nodes, boats and clients
    log/       Benchmarks of files: blocks, logs, recovery and the journal of a boat
    nats/      A nats-server as the peer to compare with: the process, a client, and load
    pipeline/  Benchmarks of the pipeline: ingest, scans, decoding, and how fresh the tables are
    uplink/    Benchmarks of the uplink: live, backfill, and a whole fleet of boats
"""
