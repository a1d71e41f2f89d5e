"""Benchmarks of what clients use: the native client and the Liftbridge gateway.

Modules:

    client_bench     `tidelog bench client`
    gateway_bench    `tidelog bench doors`
    gateway_parties  The other processes of `tidelog bench doors`
"""
