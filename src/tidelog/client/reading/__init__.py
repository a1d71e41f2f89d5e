"""Reading committed records: fetches ahead, positions, and the reader that puts them together.

Modules:

    ahead      Fetches under way behind the one that is waited for, so that a replica always has something to send
    fetching   Blocks from a channel's replicas
    positions  Where a reader stands, and what of an answer is new to it
    reader     A reader
"""
