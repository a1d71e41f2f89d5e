"""The block format: header, frames, messages, control records, foreign blocks. Pure, numpy.

Modules:

    arrow     Blocks to Arrow, whole columns at a time
    block     A block in memory
    columns   Records as columns
    control   Control records
    decode    From a verified block to its frames, whatever shape its body has
    foreign   Foreign blocks
    frames    Bodies of frame blocks
    header    The block header
    lpj       One logical block of an lplex journal (.lpj)
    messages  Bodies of message blocks
"""
