"""Directed schedules of the simulated worlds: cases that random runs do not find, or find too seldom, step by step.

Modules:

    cluster             The operations of schedules of channels
    cluster_lies        Disks that lie
    cluster_schedules   Schedules of channels
    metadata            The operations of schedules of the metadata group
    metadata_schedules  Schedules of the metadata group
"""
