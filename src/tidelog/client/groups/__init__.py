"""Consumer groups: membership, and feeds of the assigned channels.

Modules:

    feeds       The channels that are assigned to a member, read side by side
    group       Reading as a member of a consumer group
    membership  This process as a member of a consumer group
"""
