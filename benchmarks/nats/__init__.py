"""A nats-server as the peer to compare with: the process, a client, and load.

Modules:

    client  A raw client of the NATS text protocol, for the peer of our benchmarks
    load    What JetStream does on this machine
    peer    Three nats-server processes with JetStream on one machine
"""
