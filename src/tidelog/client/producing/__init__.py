"""Producing records: batches, sequence numbers, retries, receipts.

Modules:

    arrow_input   Arrow batches that a producer is given, as columns of blocks
    batching      Records that wait to become blocks
    core          What a producer does with its blocks
    producer      A producer
    receipts      What `send` gives back
    record_input  One record as a caller gives it to a producer
"""
