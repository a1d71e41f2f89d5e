"""Replicas of channels without a network or a clock: a small vocabulary for scenarios.

One catalog for all nodes, applied at once unless a node is told to lag; the production `Replicas`, `ChannelController`
and storage on a simulated disk. Messages wait in a queue until `run` delivers them, in order per pair as a link has
them; nodes can be cut off, frozen, killed, restarted. `check` states what must hold whatever happened.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from tests.core.catalog_kit import registration
from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import decode_messages, encode_values
from tidelog.cluster.metadata.channel_controller import ChannelController
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.effects import ProduceOutcome
from tidelog.cluster.replication.lag import statistics_of
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.replicas import Replicas
from tidelog.cluster.replication.storage import ReplicaStorage
from tidelog.core.catalog import (
    AdmitNode,
    AlterChannel,
    Applied,
    Catalog,
    Change,
    ChangeLeader,
    ChannelConfig,
    ChannelRecord,
    CreateChannel,
    FenceNode,
    FoundCluster,
    decode_change,
    encode_change,
)
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy
from tidelog.core.liveness import LivenessConfig, ProximityGraph
from tidelog.core.replication.messages import ReplicationMessage
from tidelog.core.replication.metrics import ChannelSample
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.errors import DiskFull, LogError, NotChannelLeader
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.channel_logs import ChannelLogs
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store

TO_METADATA = "metadata"
T = TypeVar("T")


class KitNode:
    def __init__(self, kit: Kit, name: str) -> None:
        self.kit = kit
        self.name = name
        self.disk = SimDisk(random.Random(f"{kit.seed}/{name}"))
        self.incarnation = 0
        self.alive = False
        self.frozen = False
        """A stopped process: it does nothing, and what is sent to it waits."""
        self.results: list[ProduceOutcome] = []
        self.lines: list[str] = []
        self.held_back: list[Any] | None = None
        """Storage orders that are not carried out while this is a list."""

    def start(self, **facts: Any) -> None:
        """As a new process on the same disk; `facts` go to its registration."""
        kit = self.kit
        self.incarnation += 1
        self.alive = True
        self._open()
        kit.hear()
        kit.take(registration(self.name, self.incarnation, **facts))
        self.core.follow_catalog(kit.catalog, None, incarnation=self.incarnation, now_ms=kit.now_ms)
        for peer in kit.nodes.values():
            if peer.alive and peer is not self:
                peer.core.link_up(self.name, kit.now_ms)

    def _open(self) -> None:
        kit = self.kit
        options = replace(LogOptions(reserve_bytes=0), **kit.log_options)
        store = open_store(self.disk, now_us=kit.now_us, options=StoreOptions(log=options, scrub_bytes_per_s=0))
        self.storage = ReplicaStorage(ChannelLogs(store), options=options)
        self.core = Replicas(
            node=self.name,
            options=kit.options,
            silence_of=lambda peer, now_ms: kit.silence_ms(self.name, peer),
            peak_of=lambda _: kit.peak_bytes_per_s,
            wall_us=lambda: kit.now_us,
            now_ms=kit.now_ms,
        )

    def kill(self) -> None:
        """Power is cut: what was not synced is gone."""
        self.alive = self.frozen = False
        self.held_back = None
        self.kit.queue = deque(item for item in self.kit.queue if item[0] != self.name)
        self.disk.crash()

    def reconnect(self) -> None:
        """The same process registers anew: only its session was lost."""
        record = self.kit.catalog.node(self.name)
        assert record is not None
        self.incarnation += 1
        self.kit.take(registration(self.name, self.incarnation, process_id=record.process_id))
        self.core.follow_catalog(self.kit.catalog, None, incarnation=self.incarnation, now_ms=self.kit.now_ms)

    def replica(self, channel_id: int = 1) -> ChannelReplica:
        found = self.core.replica(channel_id)
        assert found is not None
        return found

    def blocks(self, channel_id: int = 1) -> list[Block]:
        return list(self.storage.logs.log(channel_id).blocks())

    def values(self, channel_id: int = 1, *, end: int | None = None) -> list[bytes]:
        """The values of all message records, committed or not, or of those below `end`."""
        found: list[bytes] = []
        for block in self.storage.logs.log(channel_id).blocks(end=end):
            if block.maker.kind == BlockKind.MESSAGES:
                found += [row.value or b"" for row in decode_messages(block.maker, block.raw_body()).rows()]
        return found

    def committed(self, channel_id: int = 1) -> list[bytes]:
        """What a reader here gets."""
        replica = self.replica(channel_id)
        assert replica.serves, f"{self.name} does not serve: {statistics_of(replica)}"
        return self.values(channel_id, end=replica.committed_end)

    def bytes_of(self, channel_id: int = 1) -> bytes:
        return b"".join(bytes(buffer) for block in self.blocks(channel_id) for buffer in block.buffers)

    def counts(self, channel: str = "spray") -> ChannelSample:
        return self.core.metrics.channel(channel).sample()


class Kit:
    def __init__(
        self,
        *names: str,
        seed: int = 1,
        options: ReplicationOptions | None = None,
        peak_bytes_per_s: int = 125_000_000,
        **log_options: Any,
    ) -> None:
        self.seed = seed
        self.options = options or ReplicationOptions()
        self.peak_bytes_per_s = peak_bytes_per_s
        self.log_options = log_options
        self.now_ms = 10_000
        self.catalog = Catalog()
        self.index = 0
        self.queue: deque[tuple[str, str, ReplicationMessage]] = deque()
        """(to, from, message)"""
        self.frozen_mail: list[tuple[str, str, ReplicationMessage]] = []
        self.cuts: set[tuple[str, str]] = set()
        """(from, to) pairs over which nothing passes."""
        self.lose: Callable[[str, str, ReplicationMessage], bool] = lambda to, sender, message: False
        """Messages of which this says True are lost."""
        self.lagging: dict[str, list[int]] = {}
        """Nodes that have not heard of these changed channels yet."""
        self.dropped = 0
        self.sent: list[tuple[str, str, ReplicationMessage]] = []
        """All that was delivered, (to, from, message)."""
        self.trace: list[str] = []
        self.heard: dict[tuple[str, str], int] = {}
        """(who, whom): when it last had a heartbeat of it."""
        self.leaders: dict[tuple[int, int], str] = {}
        """By (channel, leader epoch): who led in it."""
        self.controller = ChannelController(
            node=TO_METADATA,
            options=self.options,
            proximity=ProximityGraph(config=LivenessConfig()),
            silence_of=lambda node, now_ms: self.silence_ms(TO_METADATA, node),
            wall_ms=lambda: self.now_ms,
            say=lambda what, **facts: self.trace.append(f"{self.now_ms} controller: {what} {facts}"),
        )
        self.controller_on = True
        self.nodes = {name: KitNode(self, name) for name in names}
        self.take(FoundCluster(cluster_id="0" * 32))
        for name in names:
            self.take(AdmitNode(node=name))
        for node in self.nodes.values():
            node.start()

    @property
    def now_us(self) -> int:
        return self.now_ms * 1000

    def __getitem__(self, name: str) -> KitNode:
        return self.nodes[name]

    # --- heartbeats ------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Every running, connected node is heard by all others at this moment."""
        for name, node in self.nodes.items():
            if node.alive and not node.frozen:
                for other in (*self.nodes, TO_METADATA):
                    if (name, other) not in self.cuts:
                        self.heard[(other, name)] = self.now_ms

    def silence_ms(self, me: str, peer: str) -> int:
        return self.now_ms - self.heard.get((me, peer), 0)

    # --- the catalog -----------------------------------------------------------------------------------

    def take(self, change: Change, *, must: bool = True) -> Applied:
        self.index += 1
        applied = self.catalog.apply(self.index, decode_change(encode_change(change)))
        if must:
            applied.raise_refusal()
        assert self.catalog.contradictions() == []
        self.controller.touched(applied.touched.channels)
        for node in applied.touched.nodes:
            self.controller.node_changed(self.catalog, node)
        for one in self.nodes.values():
            if one.alive and not one.frozen and (applied.touched.channels or applied.touched.nodes):
                if one.name in self.lagging:
                    self.lagging[one.name] += applied.touched.channels
                else:
                    self._follow(one, list(applied.touched.channels), list(applied.touched.nodes))
            elif one.frozen:
                self.lagging.setdefault(one.name, []).extend(applied.touched.channels)
        return applied

    def _follow(self, node: KitNode, channels: list[int], nodes: list[str]) -> None:
        node.core.follow_catalog(self.catalog, channels, nodes=nodes, incarnation=node.incarnation, now_ms=self.now_ms)

    def catch_up(self, name: str) -> None:
        """The node hears what the catalog applied meanwhile."""
        channels = self.lagging.pop(name, [])
        if channels and self.nodes[name].alive:
            self._follow(self.nodes[name], sorted(set(channels)), list(self.nodes))

    def record(self, channel_id: int = 1) -> ChannelRecord:
        record = self.catalog.channel(channel_id)
        assert record is not None
        return record

    def create(self, name: str = "spray", *, leader: str | None = None, **config: Any) -> int:
        settings = ChannelConfig(**config)
        replicas = tuple(list(self.nodes)[: settings.effective_factor])
        if settings.pinned_nodes:
            replicas = settings.pinned_nodes
        self.take(
            CreateChannel(
                name=name, config=settings, replicas=replicas, leader=leader or replicas[0], at_ms=self.now_ms
            )
        )
        record = self.catalog.channel(name)
        assert record is not None
        self.run()
        return record.channel_id

    def alter(self, channel_id: int = 1, *, replicas: tuple[str, ...] | None = None, **config: Any) -> None:
        record = self.record(channel_id)
        settings = replace(record.config, **config) if config else None
        self.take(
            AlterChannel(
                channel_id=channel_id,
                expected_channel_epoch=record.channel_epoch,
                config=settings,
                replicas=replicas,
            )
        )

    def elect(self, name: str, channel_id: int = 1) -> None:
        """As the metadata leader would, whichever node leads now."""
        self.take(
            ChangeLeader(
                channel_id=channel_id,
                expected_channel_epoch=self.record(channel_id).channel_epoch,
                leader=name,
                incarnation=self.nodes[name].incarnation,
                at_ms=self.now_ms,
            )
        )

    def fence(self, *names: str) -> None:
        for name in names:
            self.take(FenceNode(node=name, expected_incarnation=self.nodes[name].incarnation))

    # --- running ---------------------------------------------------------------------------------------

    def run(self, ms: int = 0, *, step_ms: int = 10) -> None:
        """Deliver until nothing moves, then let time pass in steps."""
        self._settle()
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += min(step_ms, end_ms - self.now_ms)
            self.hear()
            for node in self.nodes.values():
                if node.alive and not node.frozen:
                    node.core.wake(self.now_ms)
            if self.controller_on:
                self.controller.tend(self.catalog, self._propose, self.now_ms)
                for target, message in self.controller.messages:
                    self.queue.append((target, TO_METADATA, message))
                self.controller.messages.clear()
            self._settle()

    def run_until(self, holds: Callable[[], bool], *, ms: int = 60_000) -> int:
        """Run until it holds; how long that took. Fails when it never does."""
        begin_ms = self.now_ms
        self.run()
        while not holds():
            assert self.now_ms - begin_ms < ms, "\n".join(self.trace[-40:])
            self.run(10)
        return self.now_ms - begin_ms

    def _propose(self, change: Change) -> None:
        self.take(change, must=False)

    def _settle(self) -> None:
        for _ in range(30_000):
            moved = False
            for node in list(self.nodes.values()):
                moved |= node.alive and not node.frozen and self._pump(node)
            if self.queue:
                self._deliver(*self.queue.popleft())
                moved = True
            if not moved:
                self._note_leaders()
                return
        raise AssertionError("messages never end")

    def _note_leaders(self) -> None:
        """Invariant 3: at most one leader per (channel, epoch)."""
        for node in self.nodes.values():
            for replica in node.core.replicas() if node.alive else ():
                if replica.leading is not None:
                    key = (replica.channel_id, replica.leading.epoch)
                    assert self.leaders.setdefault(key, node.name) == node.name, f"two leaders in {key}"

    def _pump(self, node: KitNode) -> bool:
        output = node.core.poll(self.now_ms)
        if output is None:
            return False
        for peer, message in output.messages:
            self.queue.append((peer, node.name, message))
        for message in output.to_metadata:
            self.queue.append((TO_METADATA, node.name, message))
        node.results += output.produced
        node.lines += output.lines
        self.trace += [f"{self.now_ms} {node.name}: {line}" for line in output.lines]
        self.carry_out(node, list(output.orders))
        return True

    def carry_out(self, node: KitNode, orders: list[Any]) -> None:
        if node.held_back is not None:
            node.held_back += orders
            return
        for result in node.storage.carry_out(orders, self.now_us):
            node.core.storage_done(result, self.now_ms)

    def release(self, name: str) -> None:
        """Carry out what the node's disk was kept from doing."""
        node = self.nodes[name]
        assert node.held_back is not None
        orders, node.held_back = node.held_back, None
        self.carry_out(node, orders)
        self.run()

    def _deliver(self, target: str, sender: str, message: ReplicationMessage) -> None:
        dead = target != TO_METADATA and not self.nodes[target].alive
        if dead or (sender, target) in self.cuts or self.lose(target, sender, message):
            self.dropped += 1
            return
        if target != TO_METADATA and self.nodes[target].frozen:
            self.frozen_mail.append((target, sender, message))
            return
        self.sent.append((target, sender, message))
        if target == TO_METADATA:
            if self.controller_on:
                self.controller.receive(sender, message, self.catalog, self._propose, self.now_ms)
            return
        self.nodes[target].core.receive(sender, message, self.now_ms)

    def inject(self, target: str, sender: str, message: ReplicationMessage) -> None:
        """As if it had come over the link."""
        self.nodes[target].core.receive(sender, message, self.now_ms)
        self.run()

    def delivered(self, kind: type[T], *, to: str | None = None) -> list[T]:
        return [message for target, _, message in self.sent if type(message) is kind and to in (None, target)]

    # --- faults ----------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        self.cuts |= {(one, other), (other, one)}

    def isolate(self, name: str) -> None:
        for other in (*self.nodes, TO_METADATA):
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """Links come up again, which both ends notice."""
        pairs = sorted(self.cuts)
        self.cuts.clear()
        self.hear()
        for one, other in pairs:
            node = self.nodes.get(other)
            if node is not None and node.alive and one != TO_METADATA:
                node.core.link_up(one, self.now_ms)
        self.run()

    def freeze(self, name: str) -> None:
        self.nodes[name].frozen = True

    def thaw(self, name: str) -> None:
        self.nodes[name].frozen = False
        mail, self.frozen_mail = self.frozen_mail, []
        self.queue.extendleft(reversed(mail))
        self.catch_up(name)
        self.run()

    def stop(self, name: str) -> None:
        """Kill a node; its session ends at once."""
        self.nodes[name].kill()
        self.fence(name)
        self.run(50)

    @contextmanager
    def refusing(self, name: str, error: LogError | None = None, *, channel_id: int | None = None) -> Iterator[None]:
        """Appends on this node (to this channel) are refused inside, as by a full disk."""
        logs = self.nodes[name].storage.logs
        append = logs.append
        reason = error or DiskFull(operation="write_at", path="somewhere", reason="no space left")

        def refuse(appends: Any, now_us: int) -> Any:
            taken = append([one for one in appends if channel_id not in (None, one[0])], now_us)
            by_id = {outcome.channel_id: outcome for outcome in taken}
            return [by_id.get(key) or logs._outcome(key, reason) for key, _ in appends]

        logs.append = refuse  # type: ignore[method-assign]
        try:
            yield
        finally:
            logs.append = append  # type: ignore[method-assign]

    # --- clients ---------------------------------------------------------------------------------------

    def leader(self, channel_id: int = 1) -> KitNode:
        leader = self.record(channel_id).leader
        assert leader is not None
        return self.nodes[leader]

    def produce(
        self,
        *values: bytes,
        channel_id: int = 1,
        at: str | None = None,
        ack: AckPolicy = AckPolicy.ALL,
        token: Any = None,
        expected_offset: int = ANY_OFFSET,
        **how: Any,
    ) -> None:
        node = self.leader(channel_id) if at is None else self.nodes[at]
        made = encode_values(values, time_us=self.now_us, **how)
        order = ProduceOrder(token or values, made, ack, expected_offset=expected_offset)
        node.replica(channel_id).produce(order, self.now_ms)

    def write(self, *values: bytes, channel_id: int = 1) -> None:
        """One block each, all of them acknowledged before this returns. Who cannot lead yet is asked again."""
        for value in values:
            self.run_until(lambda value=value: self._try(value, channel_id), ms=5_000)  # type: ignore[misc]
        self.run_until(lambda: all((value,) in self.results() for value in values))
        assert [self.results()[(value,)].error for value in values] == [None] * len(values)

    def _try(self, value: bytes, channel_id: int) -> bool:
        try:
            self.produce(value, channel_id=channel_id)
        except NotChannelLeader:
            return False
        return True

    def results(self) -> dict[Any, ProduceOutcome]:
        return {result.token: result for node in self.nodes.values() for result in node.results}

    def roles(self, channel_id: int = 1) -> dict[str, Role]:
        return {name: node.replica(channel_id).role for name, node in self.nodes.items() if node.alive}

    def leading(self, channel_id: int = 1) -> list[str]:
        """Who believes to lead."""
        return [name for name, role in self.roles(channel_id).items() if role is Role.LEADER]

    def is_whole(self, channel_id: int = 1) -> bool:
        """All replicas in sync, all of the leader's log committed, and known so everywhere."""
        record = self.record(channel_id)
        replicas = [self.nodes[name].replica(channel_id) for name in record.replicas if self.nodes[name].alive]
        leader = self.leader(channel_id).replica(channel_id)
        end = leader.log_end
        return (
            leader.role is Role.LEADER
            and set(record.isr_nodes) == set(record.replicas)
            and all(
                replica.committed_end == end and replica.role in (Role.LEADER, Role.REPLICA) for replica in replicas
            )
        )

    def check(self, channel_id: int = 1) -> None:
        """Replicas hold the same bytes up to the committed end, and beyond it where the epoch is the same."""
        found: dict[int, tuple[int, bytes]] = {}
        for name in self.record(channel_id).replicas:
            node = self.nodes[name]
            if not node.alive:
                continue
            for block in node.blocks(channel_id):
                held = (block.leader.leader_epoch, b"".join(bytes(buffer) for buffer in block.buffers))
                known = found.setdefault(block.leader.base_offset, held)
                if known[0] == held[0] or block.offsets.stop <= node.replica(channel_id).committed_end:
                    assert known == held, f"offset {block.leader.base_offset} differs on {name}"
