"""The node as a member of the metadata group, and the controllers of the metadata leader.

Modules:

    channel_controller  The metadata leader's work for channels: elections, ISR, placement
    elections           Elections of channel leaders
    member              One member of the metadata group
    member_controller   The metadata leader's work for nodes: registration, sessions, fencing
    standing            The durable state of this node's disk, reported to other members
    writer              The thread that writes a node's metadata
"""
