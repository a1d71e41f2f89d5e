"""A boat's journal: fresh and sealed logs, leased seqs, the ring of newest frames.

Modules:

    declared      What a boat declares to the cluster besides data
    journal       The journal: recording, reading, retention
    options       The options and statistics of a journal
    re_recording  Frames of an older lineage that the cluster never got, recorded again in the current one
    recorded      Recorded frames of a range of seqs
    ring          The newest frames of the bus, in memory
    sealing       Turning runs of small fresh blocks into large delta-plane blocks (B3), finding the newest seq
    seq_log       A boat's frames by seq
    upkeep        Failures of a journal's maintenance
"""
