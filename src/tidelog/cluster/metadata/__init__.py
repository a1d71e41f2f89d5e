"""The node as a member of the metadata group, and what the metadata leader decides for nodes and channels.

Modules:

    channel_controller  What the node that leads the metadata does for channels
    elections           Elections of channels, as the metadata leader holds them
    member              One member of the metadata group
    member_controller   What the node that leads the metadata does for the others
    standing            Where this node's disk stands in the metadata group, told to the others
    writer              The thread that writes a node's metadata
"""
