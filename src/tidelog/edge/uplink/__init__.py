"""The boat's half of the uplink over gRPC, towards our clouds and towards lplex clouds.

Modules:

    client       The uplink over gRPC, boat side
    lplex_cloud  Feeding an lplex cloud
    target       Where a boat's cloud is, and who the boat is
    trouble      Why a boat cannot reach its cloud, in words that say what to do
    uplink       A boat's side of the uplink
"""
