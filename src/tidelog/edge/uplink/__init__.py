"""The boat's half of the uplink over gRPC, to Tidelog's clouds and to lplex clouds.

Modules:

    client       The uplink over gRPC, boat side
    lplex_cloud  Sending to an lplex cloud
    target       The address of the cloud, the boat's name and certificates
    trouble      Why a boat cannot reach its cloud, and what to do
    uplink       Journal, ring and sender of a boat together
"""
