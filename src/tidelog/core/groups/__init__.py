"""Consumer groups: what their coordinator and the metadata leader decide. What a group is lies in `core.catalog`.

Modules:

    coordinator  The coordinator of a group
    office       Which node coordinates a group
"""
