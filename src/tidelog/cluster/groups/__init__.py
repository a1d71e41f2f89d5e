"""Consumer groups at a node: their administration, and the coordinators that this node runs.

Modules:

    admin         Administration of consumer groups
    coordinators  A node's part in consumer groups
"""
