"""The uplink's two halves and the fold that says what a boat's channel holds.

Modules:

    backoff         How long a boat waits before it dials again
    budget          Token buckets
    checks          Limits of the seqs in a message
    facts           Facts about a boat in its log, besides frames
    fold            What a channel holds of each lineage
    lplex_requests  Requests of the cloud to a boat without lineages (lplex), and what the answers showed
    messages        Messages between boat and cloud
    metering        The bytes a boat has sent today, and may still send
    receiver        The cloud's half of the uplink
    sender          The boat's half of the uplink
    tenure          Which process owns the session of a boat
"""
