"""Benchmarks of the uplink: live, backfill, and a whole fleet of boats.

Modules:

    backfill      Backfill
    fleet_bench   `tidelog bench fleet`
    fleet_boats   The load generator of `tidelog bench fleet`
    floor         The floor under Live
    link          A long TCP link
    live          Live
    uplink_bench  `tidelog bench uplink`
    wire          Bytes on the wire
"""
