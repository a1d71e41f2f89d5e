"""Producing records: batches, sequence numbers, retries, receipts.

Modules:

    arrow_input   Arrow batches from a caller, as columns of blocks
    batching      Records that wait to become blocks
    core          Sending blocks in order, retries, outcomes
    producer      A producer
    receipts      The results of `send`
    record_input  One record from a caller, checked
"""
