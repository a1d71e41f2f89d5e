"""The uplink's two halves and the fold that says what a boat's channel holds.

Modules:

    backoff         How long a boat waits before it dials again
    budget          Token buckets
    checks          What a message may claim
    facts           What the log says of a boat besides its frames
    fold            What a channel holds of each lineage
    lplex_requests  What the cloud asks of a boat without lineages (lplex), and what it has learned from the answers
    messages        What boat and cloud say to each other, free of any wire
    metering        What a boat has sent today, and what it may still send
    receiver        The cloud's half of the uplink
    sender          The boat's half of the uplink
    tenure          Which process speaks for a boat
"""
