"""Liftbridge's gRPC API in front of a node: a partition is a channel.

Modules:

    activity       The activity stream
    admin          Streams created, deleted, paused, made readonly, and their cursors
    callers        Who calls the Liftbridge gateway, and what it may do
    expected       Messages of streams that check offsets
    gateway        The gRPC server on Liftbridge's port, in front of a running node
    groups         Liftbridge's consumer groups
    logs           A partition's log as a subscription reads it
    names          How Liftbridge's streams, partitions, subjects and cursors are named here
    positions      Where a subscription begins and ends in a partition's log
    producers      The way into the log for messages of Liftbridge clients
    publish        Publish, PublishAsync and PublishToSubject
    publish_async  PublishAsync
    refusals       How a refusal reaches a Liftbridge client
    service        The methods of `proto.API`, each handed to the part that carries it out
    streams        The catalog as Liftbridge's clients see it
    subjects       PublishToSubject over NATS, as Liftbridge does it
    subscribe      Subscribe
    times          When messages came, and when a partition was paused, resumed, or made readonly
"""
