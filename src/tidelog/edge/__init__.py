"""What runs on a boat: the process, its journal, where frames come from, and the uplink's sending side.

Modules:

    boat          The boat process
    boat_clients  What lplex's own clients ask of a boat beyond reading
    boat_http     What a boat answers over HTTP: its bus as it happens, its journal, and how replication stands
    journal/      A boat's journal: fresh and sealed logs, leased seqs, the ring of newest frames
    sources/      Where a boat's frames come from: CAN interfaces, recordings, a simulated voyage;
    uplink/       The boat's half of the uplink over gRPC, towards our clouds and towards lplex clouds
"""
