"""A boat's journal: fresh and sealed logs, leased seqs, the ring of newest frames.

Modules:

    declared      What a boat has to tell the cluster besides data
    journal       What a boat writes
    options       How a boat's journal is kept, and what it says about itself
    re_recording  Frames of an older lineage that the cluster never got, recorded again in the current one
    recorded      What a journal has of a range of seqs, as frames
    ring          The newest frames of the bus, in memory
    sealing       Turning runs of small fresh blocks into large delta-plane blocks (B3), finding the newest seq
    seq_log       A boat's frames by seq
    upkeep        What a journal has to do besides writing frames, and why it could not
"""
