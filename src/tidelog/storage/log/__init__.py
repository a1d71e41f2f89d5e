"""One log: segments, index, recovery, repair, retention, and the thread that commits.

Modules:

    epochs      Which leader epoch began at which offset
    index       What a segment holds, folded from its block headers
    log         An append-only log of blocks on a disk, for one writer and many readers
    memory_log  A log in memory
    options     How a log is kept
    parts       What a log is made of and what it reports
    reading     Reading a log
    recovery    Opening a log
    repair      Changing what already lies on disk
    retention   Trimming a log from the front, in whole segments
    scrub       Reading everything again, slowly
    segment     One file of blocks
    segments    The segments of a log and what is staged for them
    span        A part of a segment for an answer
    writer      Group commit
"""
