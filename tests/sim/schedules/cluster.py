"""The words in which directed schedules of channels are told: those of the metadata, and some about records.

A quiet cluster with one channel. Every check of the model runs here too; a schedule raises `ClusterBroken` when one
fires, or when what must come about does not.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar, Literal

from tests.sim.schedules.metadata import SLOW, Schedule
from tidelog.cluster.node.core import NodeOptions
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.core.catalog import ChangeLeader, ChannelConfig, CreateChannel
from tidelog.core.client_messages import AckPolicy
from tidelog.core.liveness import LivenessConfig
from tidelog.core.node_messages import ForMember
from tidelog.core.raft import RaftConfig
from tidelog.sim.cluster.account import ChannelAccount
from tidelog.sim.cluster.clients import SimProducer
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.cluster.scene import ClusterWorld
from tidelog.sim.metadata.model import ClusterBroken

CHANNEL = "c0"


class ClusterSchedule(Schedule):
    world: ClusterWorld
    transport: ClassVar[Literal["link", "nats"]] = "link"
    """What replication goes over, in all schedules that are told from now on."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        leader: str = "n2",
        replicas: tuple[str, ...] = (),
        liveness: LivenessConfig = SLOW,
        seed: int = 1,
        lag_ms: int | None = None,
        tail_bytes: int | None = None,
        **config: Any,
    ) -> None:
        """n1 leads the metadata; the channel is led by another node. `lag_ms` is `replica_max_lag_ms`, `tail_bytes` is
        `tail_bytes_max`."""
        wanted = {"replica_max_lag_ms": lag_ms, "tail_bytes_max": tail_bytes}
        self._replication = {name: value for name, value in wanted.items() if value is not None}
        super().__init__(nodes, raft=RaftConfig(), liveness=liveness, seed=seed)
        names = tuple(self.world.nodes)
        self.elect("n1")
        settings = ChannelConfig(**config)
        chosen = replicas or names[: settings.effective_factor]
        change = CreateChannel(name=CHANNEL, config=settings, replicas=chosen, leader=leader, at_ms=1)
        self.changed("n1", change)
        self.until(lambda: self.leads_channel(leader), "the channel is led")
        self._producers = 0

    def _make_world(self, seed: int, nodes: int, options: NodeOptions) -> ClusterWorld:
        options = replace(options, replication=replace(options.replication, **self._replication))
        return ClusterWorld(seed, nodes=nodes, quiet=True, options=options, transport=self.transport)

    def node(self, name: str) -> ClusterNode:
        return self.world.nodes[name]

    @property
    def channel(self) -> ChannelAccount:
        return next(channel for channel in self.world.model.channels.values() if channel.name == CHANNEL)

    def replica(self, name: str) -> ChannelReplica:
        replica = self.core(name).channels.replicas.replica(self.channel.channel_id)
        assert replica is not None, f"{name} has no replica"
        return replica

    # --- words ---------------------------------------------------------------------------------------------

    def producer(self, ack: AckPolicy = AckPolicy.ALL) -> SimProducer:
        """One that sends the same block until it is taken; `write` gives it something to send."""
        self._producers += 1
        producer = SimProducer(self.world, self._producers, CHANNEL, random.Random(self._producers))
        producer.idempotent, producer.careful, producer.window, producer.ack = True, False, 8, ack
        self.world._every(20, producer.step)
        return producer

    def write(self, producer: SimProducer, count: int = 1) -> None:
        producer.pending += [producer._make() for _ in range(count)]

    def written(self, producer: SimProducer, count: int = 1) -> None:
        """Write, and wait until it is acked."""
        wanted = producer.acked + count
        self.write(producer, count)
        self.until(lambda: producer.acked >= wanted, "the blocks are acked")

    def change_leader(self, name: str, operator: str = "") -> None:
        record = self.channel.record
        change = ChangeLeader(
            channel_id=record.channel_id,
            expected_channel_epoch=record.channel_epoch,
            leader=name,
            incarnation=self.core(name).incarnation,
            at_ms=1,
            operator=operator,
        )
        self.changed("n1", change)

    def deaf(self, *names: str) -> None:
        """These hear nothing of the metadata any more."""
        self.world.drops = lambda _, target, message: target in names and isinstance(message, ForMember)

    def cut_data(self, *names: str) -> None:
        """These get no message of another's channels, and send none; the metadata goes on."""

        def drops(source: str, target: str, message: Any) -> bool:
            return (source in names or target in names) and type(message).__name__ in (
                "SyncRequest",
                "SyncResponse",
                "SyncNack",
                "Notify",
            )

        self.world.drops = drops

    def isr(self) -> set[str]:
        return set(self.channel.record.isr_nodes)

    def until_in_sync(self, *names: str) -> None:
        self.until(lambda: self.isr() == set(names), f"the ISR is {names}")

    def leads_channel(self, name: str) -> bool:
        """In the newest epoch."""
        core = self.node(name).core
        replica = None if core is None else core.channels.replicas.replica(self.channel.channel_id)
        leading = None if replica is None else replica.leading
        return leading is not None and leading.epoch == self.channel.record.leader_epoch

    def must(self, held: bool, what: str) -> None:
        if not held:
            raise ClusterBroken(what)
