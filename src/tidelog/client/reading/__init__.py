"""Reading committed records: fetches ahead, positions, and the reader.

Modules:

    ahead      Fetches in flight after the one that is waited for
    fetching   Blocks from a channel's replicas
    positions  The position of a reader, and the new records of an answer
    reader     A reader
"""
