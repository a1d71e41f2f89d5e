"""Whole clusters: nodes with their metadata and their channels, boats, clients that write and read, operators, faults.

The code under test is the production code: a `NodeCore` per node with all its channels, and their logs in a store on a
simulated disk; boats, and the uplink's core where their channels are led. Everything the metadata's world does to a
cluster happens here too. Checks run after each event; at the end the faults stop: every channel takes writes again,
every ISR is full, every replica holds the same bytes, and all that a boat has is in its channel. `tidelog sim cluster
--seed N` shows a failure again.

Links are TCP in most runs: what is sent over one arrives in order, or is lost when it breaks. In the others messages
overtake each other, which a link never does, and the replicas bear it all the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from tidelog.cluster.node.core import NodeOptions
from tidelog.core.catalog import (
    AlterChannel,
    Basis,
    ChangeLeader,
    ChannelRecord,
    Keeps,
    NodeState,
    ResumeChannel,
    SetReadonly,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.sim.cluster.admin import CHANNELS, create
from tidelog.sim.cluster.boat_mishaps import MISHAPS
from tidelog.sim.cluster.boats import ClusterBoats
from tidelog.sim.cluster.clients import SimProducer, SimProducers, SimReader
from tidelog.sim.cluster.liars import forgive, power_is_gone
from tidelog.sim.cluster.model import ClusterModel
from tidelog.sim.cluster.nats_server import SimNatsServer
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.metadata.model import ClusterBroken
from tidelog.sim.metadata.node import SimNode
from tidelog.sim.metadata.scene import FaultTable, MetadataWorld, random_options
from tidelog.sim.uplink.model import UplinkBroken as BrokenUplink
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.parts import StoreOptions
from tidelog.units import KIB

WRITES_MS: Final = 10_000
"""14: so long after the metadata is at rest every channel takes writes: five heartbeats, an election, and what the
sizes here add to that (a replica that withdrew, a lagging one that is waited for, a producer that sends again)."""


class ClusterWorld(MetadataWorld):
    node_counts: ClassVar[tuple[int, ...]] = (3, 3, 4, 5)
    model: ClusterModel
    nodes: dict[str, ClusterNode]  # type: ignore[assignment]

    def __init__(
        self,
        seed: int,
        *,
        nodes: int | None = None,
        quiet: bool = False,
        options: NodeOptions | None = None,
        transport: Literal["link", "nats"] = "link",
    ) -> None:
        shape = random.Random(f"{seed}/shape")
        self.ordered = quiet or shape.random() < 0.7
        self.channel_count = shape.choice((2, 3, 4, 6))
        self.log_options = LogOptions(
            reserve_bytes=shape.choice((0, 500)), segment_bytes_max=shape.choice((4 * KIB, 16 * KIB))
        )
        self.store_options = StoreOptions(
            log=self.log_options,
            scrub_bytes_per_s=0,
            wal_bytes_max=shape.choice((8 * KIB, 64 * KIB)),
            checkpoint_interval_ms=shape.choice((500, 5_000)),
        )
        self.refused: set[bytes] = set()
        """Heads of blocks that were refused for certain, and never sent again."""
        self.producers = SimProducers(self)
        self.readers: list[SimReader] = []
        self._arrives: dict[tuple[str, str], int] = {}
        self._links: dict[frozenset[str], int] = {}
        self._probes: dict[str, SimProducer] = {}
        self._settled_ms: int | None = None
        """When the metadata was at rest after the last fault."""
        self._excused_ms: dict[str, int] = {}
        """By channel: until when it could not take writes, because of a node that was still paused."""
        self.trace: list[str] | None = None
        self.boats: ClusterBoats | None = None
        self.nats = SimNatsServer(self, seed) if transport == "nats" else None
        """What replication goes over; None for the links."""
        super().__init__(seed, nodes=nodes, quiet=quiet, options=options)
        count = 0 if quiet else shape.choice((0, 1, 1, 2))
        if count:
            self.boats = ClusterBoats(self, seed, count, MISHAPS)
            self.model.boats = self.boats.accounts

    def _make_model(self) -> ClusterModel:
        return ClusterModel(self.counters)

    def _make_options(self, rng: random.Random) -> NodeOptions:
        options = random_options(rng)
        replication = ReplicationOptions(
            replica_max_lag_ms=rng.choice((1_000, 3_000)),
            replica_max_leader_timeout_ms=rng.choice((1_500, 5_000)),
            replica_max_idle_wait_ms=rng.choice((1_000, 10_000)),
            chunk_bytes_max=rng.choice((1, 2_000, 1 << 20)),
            uncommitted_bytes_max=rng.choice((3_000, 1 << 20)),
            tail_bytes_max=rng.choice((1, 3_000, 1 << 20)),
            tails_bytes_max=1 << 20,
            withdrawn_retry_ms=3_000,
            load_report_ms=rng.choice((500, 5_000)),
            snapshot_bytes=rng.choice((1_000, 8_000)),
        )
        return replace(options, replication=replication, serves_channels=True)

    def _make_node(self, name: str, peers: tuple[str, ...]) -> ClusterNode:
        node = ClusterNode(self, name, peers, self.options)
        if not self.quiet:
            node.store_ms = node.store_usual_ms = self.rng.choice((0, 0, 1, 5, 20))
        return node

    # --- links -------------------------------------------------------------------------------------------

    def send(self, source: SimNode, target: str, message: Any) -> None:
        if not self.ordered:
            super().send(source, target, message)
            return
        node = self.nodes.get(target)
        if node is None or node.core is None:
            return
        pair, weather, draw = (source.name, target), self.weather, self.rng.random
        if (self.cuts and pair in self.cuts) or (self.drops is not None and self.drops(source.name, target, message)):
            self.counters["lost_message"] += 1
            return
        if weather.loss and draw() < weather.loss / 20:
            self.break_link(source.name, target)
            return
        delay_ms = weather.delay_ms + int(draw() * weather.jitter_ms)
        if weather.spike and draw() < weather.spike / 10:
            delay_ms += int(draw() * weather.spike_ms)
        arrives_ms = max(self.scheduler.now_ms + delay_ms, self._arrives.get(pair, 0))
        self._arrives[pair] = arrives_ms
        link = frozenset(pair)
        number, process, name = self._links.get(link, 0), node.process, source.name

        def arrive() -> bool:
            if node.process != process or self._links.get(link, 0) != number:
                return False
            return node.deliver(name, message)

        self.scheduler.at(arrives_ms, arrive)

    def break_link(self, one: str, other: str) -> None:
        """What is on its way is lost; both sides hear of it, and of the next link."""
        link = frozenset((one, other))
        self._links[link] = self._links.get(link, 0) + 1
        self._arrives.pop((one, other), None)
        self._arrives.pop((other, one), None)
        self.counters["link_broken"] += 1
        for name, peer in ((one, other), (other, one)):
            node = self.nodes[name]
            process = node.process

            def tell(node: ClusterNode = node, process: int = process, peer: str = peer) -> bool:
                if node.process != process or self.nodes[peer].core is None:
                    return False
                node.do(lambda core: core.link_down(peer, node.clock_ms()))
                node.do(lambda core: core.link_up(peer, node.clock_ms()))
                return True

            self.scheduler.after(1 + int(self.rng.random() * 50), tell)

    # --- what others ask ------------------------------------------------------------------------------------

    def said(self, node: ClusterNode, line: str) -> None:
        """Count what happened, by what nodes say of it."""
        counters = self.counters
        if line.startswith("truncates"):
            counters["truncated"] += 1
        elif line.startswith("begins anew"):
            counters["skip_ahead"] += 1
        elif line.startswith("append refused"):
            counters["refused_append"] += 1
        if self.trace is not None:
            self.trace.append(f"{self.scheduler.now_ms} {node.name}: {line}")

    def power_is_gone(self, node: ClusterNode) -> None:
        power_is_gone(self, node)

    def look_up(self, channel: str) -> ChannelRecord | None:
        """What some node's catalog says of a channel; it may be late."""
        nodes = [node for node in self.nodes.values() if node.core is not None and node.core.catalog is not None]
        if not nodes:
            return None
        core = self.rng.choice(nodes).core
        assert core is not None
        return None if core.catalog is None else core.catalog.channel(channel)

    def may_tamper(self, name: str) -> bool:
        """Whether what this node holds may be harmed: of every channel somebody else holds everything, now."""
        forgive(self)
        if any(node.tampered for node in self.nodes.values() if node.name != name):
            return False
        for channel in self.model.channels.values():
            record = channel.record
            if record.member(name) is None and record.eligible_member(name) is None:
                continue
            if len(record.isr) < 2:
                return False
        return True

    # --- a run -------------------------------------------------------------------------------------------

    def run(self, duration_ms: int, faults: FaultTable) -> None:
        try:
            super().run(duration_ms, faults)
        except BrokenUplink as error:
            raise ClusterBroken(str(error)) from error

    def _start_clients(self) -> None:
        if self.boats is not None:
            self.boats.start()
        for number in range(self.channel_count):
            self.scheduler.after(1_500 + 100 * number, lambda number=number: self._create(CHANNELS[number]))  # type: ignore[misc]
        for number in range(self.rng.randint(2, 5)):
            channel = self.rng.choice(CHANNELS[: self.channel_count])
            producer = SimProducer(self, number + 1, channel, random.Random(self.rng.getrandbits(64)))
            self.producers.all.append(producer)
            self._every(self.rng.choice((20, 60, 200)), producer.step)
        for _ in range(self.rng.randint(1, 3)):
            reader = SimReader(
                self, self.rng.choice(CHANNELS[: self.channel_count]), random.Random(self.rng.getrandbits(64))
            )
            self.readers.append(reader)
            self._every(self.rng.choice((30, 150)), reader.step)

    def _every(self, pause_ms: int, step: Callable[[], None]) -> None:
        def again() -> None:
            step()
            self.scheduler.after(1 + int(self.rng.random() * 2 * pause_ms), again)

        self.scheduler.after(2_000, again)

    def _create(self, name: str) -> bool:
        """Ask until it is there."""
        if self.healed or self.model.reference.channel(name) is not None:
            return False
        active = [record.node for record in self.model.reference.nodes() if record.state is NodeState.ACTIVE]
        change = create(self.rng, name, active) if len(active) >= 2 else None
        if change is not None:
            self.clients.change(self.rng.choice(list(self.nodes.values())), change)
        self.scheduler.after(700, lambda: self._create(name))
        return True

    def heal(self) -> None:
        super().heal()
        for node in self.nodes.values():
            node.store_ms = node.store_usual_ms
        if self.boats is not None:
            self.boats.heal()
        if self.nats is not None:
            self.nats.heal()

    def unrest(self) -> str:
        now_ms = self.scheduler.now_ms
        self._excuse(now_ms)
        problem = super().unrest()
        if problem:
            return problem
        if self._settled_ms is None:
            self._settled_ms = now_ms
        problem = self._channel_unrest()
        if not self.healed or self.quiet:
            return problem
        for name, probe in self._probes.items():
            since_ms = max(self._settled_ms, self._excused_ms.get(name, 0))
            if not probe.acked and now_ms - since_ms > WRITES_MS:
                raise ClusterBroken(f"14: {name} took no write for {WRITES_MS // 1000} s: {problem}")
        return problem

    def _excuse(self, now_ms: int) -> None:
        """A pause that has not run out is a fault that has not stopped. Nobody can write what needs a paused node: a
        channel that lies there alone or whose minimal ISR counts it, or any if the metadata lacks its majority."""
        paused = {name for name, node in self.nodes.items() if node.paused}
        if not paused:
            return
        few = 2 * len(paused) >= len(self.model.members.voters)
        for channel in self.model.channels.values():
            record = channel.record
            standing = self.model.reference.candidates(record.channel_id)
            alone = standing.basis is Basis.REPORTS or paused.issuperset(standing.nodes)
            in_sync = set(record.isr_nodes) - paused
            if few or alone or len(in_sync) < record.config.effective_min_isr:
                self._excused_ms[record.name] = now_ms

    def _channel_unrest(self) -> str:
        """A channel that does not take writes yet, or whose replicas are not all in sync and equal."""
        catalog = self.model.reference
        active = {record.node for record in catalog.nodes() if record.state is NodeState.ACTIVE}
        if busy := [channel.name for channel in self.model.channels.values() if self._operate(channel.record)]:
            self._settled_ms = self.scheduler.now_ms
            return f"an operator works on {busy[0]}"
        written = [self._probe(channel.record) for channel in self.model.channels.values()]
        for channel in list(self.model.channels.values()):
            record = channel.record
            if record.leader is None or not catalog.has_live_leader(record):
                return f"nobody leads {record.name}: {catalog.candidates(record.channel_id)}"
            if set(record.isr_nodes) != set(self._replicas_of(record)):
                return f"the ISR of {record.name} is {record.isr_nodes} of {record.replicas}"
            wanted = min(record.config.effective_factor, len(active))
            if len(record.replicas) != wanted and not record.config.pinned_nodes:
                return f"{record.name} has {record.replicas}, of {wanted}"
            for name in self._replicas_of(record):
                core = self.nodes[name].core
                replica = None if core is None else core.channels.replicas.replica(record.channel_id)
                if replica is None or replica.storage.value != "ready":
                    return f"{record.name} is not open at {name}: {replica and replica.problem}"
                if replica.held_end != channel.end or replica.committed_end != channel.end:
                    ends = (replica.log_end, replica.held_end, replica.committed_end)
                    return f"{record.name} ends at {ends} at {name}, not at {channel.end}"
                if not replica.serves:
                    return f"{name} does not serve {record.name}"
        if not all(written):
            return "a channel takes no writes"
        return "" if self.boats is None else self.boats.unrest()

    def _replicas_of(self, record: ChannelRecord) -> list[str]:
        """Without nodes that were removed: a channel that is pinned to one has nowhere else to go."""
        nodes = {name: self.model.reference.node(name) for name in record.replicas}
        removed = {name for name, node in nodes.items() if node is None or node.state is NodeState.REMOVED}
        return [name for name in record.replicas if name not in removed or not record.config.pinned_nodes]

    def _homes_of(self, record: ChannelRecord) -> set[str]:
        """Nodes on which a replica of it may lie."""
        nodes = {one.node for one in self.model.reference.nodes()}
        return nodes & set(record.config.pinned_nodes) if record.config.pinned_nodes else nodes

    def _operate(self, record: ChannelRecord) -> bool:
        """What an operator must do so that a channel can come to rest: resume it, make it writable, ask for no more
        replicas in sync than there can be, name a leader."""
        key, epoch = record.channel_id, record.channel_epoch
        change: Any = None
        if record.paused:
            change = ResumeChannel(channel_id=key, expected_channel_epoch=epoch)
        elif record.readonly:
            change = SetReadonly(channel_id=key, expected_channel_epoch=epoch, readonly=False)
        elif record.config.effective_min_isr > len(self._homes_of(record)):
            # Nodes were removed, and it needs more of them in sync than are left (R4).
            fewer = replace(record.config, min_isr=1)
            change = AlterChannel(channel_id=key, expected_channel_epoch=epoch, config=fewer)
        else:
            standing = self.model.reference.candidates(key)
            if standing.nodes or standing.waiting_for:
                return False
            for name in record.replicas:
                node = self.model.reference.node(name)
                if node is not None and node.state is NodeState.ACTIVE:
                    change = ChangeLeader(
                        channel_id=key,
                        expected_channel_epoch=epoch,
                        leader=name,
                        incarnation=node.incarnation,
                        at_ms=1,
                        operator="anna",
                    )
        leader = self.leader()
        if change is not None and leader is not None:
            self.clients.change(leader, change)
        return change is not None

    def _probe(self, record: ChannelRecord) -> bool:
        """After the faults one more block must be taken by every channel."""
        probe = self._probes.get(record.name)
        if probe is None:
            rng = random.Random(1)
            probe = self._probes[record.name] = SimProducer(self, 900 + len(self._probes), record.name, rng)
            probe.idempotent, probe.careful, probe.window = True, False, 1
            probe.pending.append(probe._make())
            self._every(100, probe.step)
            # A boat that comes late has its channel created late: its time begins with it.
            self._excused_ms[record.name] = self.scheduler.now_ms
        return probe.acked > 0

    def check_end(self) -> None:
        super().check_end()
        for channel in self.model.channels.values():
            names = self._replicas_of(channel.record)
            logs = {name: self.nodes[name].entries(channel.channel_id) for name in names}
            tampered = {name for name in logs if self.nodes[name].rotten}
            copies = [self.model.copy_of(channel, name) for name in names]
            if channel.record.config.keeps is not Keeps.SYNCED and all(copy.damaged for copy in copies):
                tampered |= set(names)  # a crash may take what was not synced from the middle of a log, too
            self.model.check_logs(channel, logs, tampered)
            for entry in channel.entries:
                if entry.head[:64] in self.refused:
                    raise ClusterBroken(f"6: a block that was refused for certain is at {entry.base} of {channel.name}")
        if self.boats is not None:
            self.boats.check_end()
        for name, count in self.producers.open_at().items():
            if count > 200:
                raise ClusterBroken(f"12: {count} blocks were never answered at {name}")
