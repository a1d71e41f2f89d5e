"""Benchmarks of nodes among themselves: replication, failover, metadata, the link, idle channels, catching up.

Modules:

    catchup_bench   `tidelog bench catchup`
    cluster_bench   `tidelog bench cluster`
    failover_bench  `tidelog bench failover`
    idle_bench      `tidelog bench idle`
    link_bench      `tidelog bench link`
    link_server     The serving processes of `tidelog bench link`
    metadata_bench  `tidelog bench metadata`
"""
