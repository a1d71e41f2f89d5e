"""Consumer groups: what their coordinator and the metadata leader decide. What a group is lies in `core.catalog`.

Modules:

    controller   Which node coordinates a group
    coordinator  The coordinator of a group
"""
