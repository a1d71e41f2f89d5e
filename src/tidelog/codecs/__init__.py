"""Bytes of messages: what nodes, boats and clients say, apart from how it is carried. Pure functions.

Modules:

    client_codec            What native clients and nodes say to each other, as bodies of the link
    error_codec             Typed errors that keep their class and their fields on the way to a client
    layout                  Where the numbers of a message lie in its bytes: one declaration for both ways
    liftbridge_envelope     The envelope that Liftbridge puts around every NATS payload, public and internal
    liveness_codec          The messages of liveness to and from bytes
    nats_replication_codec  Replication over NATS, from our messages to Liftbridge's bytes and back
    nats_response_parts     Answers of a leader over NATS: LeaderEpoch and HW as seed 002 has them, then our blocks
    nats_subjects           The NATS subjects of replication, as seed 002 has them, and how channels
    node_codec              What nodes say about the metadata, to and from the bodies of the link
    publish_codec           Publishing record by record
    raft_codec              Raft's messages and entries to and from bytes
    replication_codec       What replicas say to each other, as bodies of link kind 0x0E00
    stream_names            Streams and partitions, as Liftbridge names them, and the channels that they are here
    uplink_codec            The uplink's messages to and from the bytes of lplex.replication.v1
"""
