"""The files of a member of the metadata group.

Modules:

    block    One Raft entry as one block
    files    The small files of a member's metadata
    opening  Opening, creating and setting aside the files of `RaftStorage`
    storage  What one member of the metadata group keeps on its disk
"""
