"""Liftbridge's gRPC API, served by a node. A Liftbridge partition is a Tidelog channel.

Modules:

    activity       Publishes catalog events as the stream `__activity`
    admin          Creates, deletes, pauses streams, makes them readonly; stores cursors
    callers        Authenticates callers
    expected       Publishes to streams that check expected offsets
    gateway        The gRPC server on Liftbridge's port
    groups         Liftbridge's consumer groups
    logs           Reads a partition's log, from the local replica or a remote one
    names          Maps stream, partition, subject and cursor names to Tidelog's
    positions      Resolves the start and stop positions of a subscription
    producers      Native producers shared by all callers of the gateway
    publish        Publish and PublishToSubject; what the three publish calls share
    publish_async  PublishAsync
    refusals       Maps errors to gRPC statuses
    service        Dispatches the methods of `proto.API`
    streams        The catalog as streams, partitions and brokers
    subjects       PublishToSubject over NATS
    subscribe      Subscribe
    times          Timestamps in partition metadata
"""
