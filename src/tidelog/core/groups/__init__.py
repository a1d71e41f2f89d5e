"""Consumer groups: the decisions of their coordinator and of the metadata leader. Their records are in `core.catalog`.

Modules:

    controller   Which node coordinates a group
    coordinator  The coordinator of a group
"""
