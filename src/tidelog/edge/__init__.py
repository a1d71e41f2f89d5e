"""What runs on a boat: the process, its journal, where frames come from, and the uplink's sending side.

Modules:

    boat          The boat process
    boat_clients  Requests of lplex's clients beyond reading: sessions, sending, queries
    boat_http     The HTTP server of a boat: live frames, the journal, the state of replication
    journal/      A boat's journal: fresh and sealed logs, leased seqs, the ring of newest frames
    sources/      Sources of frames: CAN interfaces, recordings, a simulated voyage
    uplink/       The boat's half of the uplink over gRPC, towards our clouds and towards lplex clouds
"""
