"""NATS inside the cluster: replication over a NATS server, and channels fed from NATS subjects.

Modules:

    exchange      One node's replication over NATS, without I/O
    subject_core  Messages of a NATS subject on their way into the attached channel
    subject_feed  Channels fed from NATS subjects, in a running node
    transport     Replication over a NATS server, in a running node
"""
